"""Checks of the stories about measurements and plans."""

from __future__ import annotations

import json

from tests.stories import given
from tests.stories.checks import story
from tests.stories.running import Outcome


@story("What does a step cost?")
def _(outcome: Outcome) -> None:
    assert "gnnsparse.spmm" in outcome.output
    assert json.loads((outcome.folder / "trace.json").read_text())["traceEvents"]


@story("Measure my matrix, and report it", given=given.matrix, warns=True)
def _(outcome: Outcome) -> None:
    assert outcome.errors.startswith("graph.mtx: 60 x 60, ")  # what is measured just now
    page = (outcome.folder / "report.html").read_text()
    assert "<html" in page
    assert "graph" in page
    rows = outcome.json("result.json")["rows"]
    assert {row["kernel"] for row in rows} >= {"auto", "sparse_mm"}
    assert all(row["ok"] for row in rows)


@story("Which kernel, and why?")
def _(outcome: Outcome) -> None:
    assert outcome.output.split()[1] == "degree"
    assert "csr" in outcome.output


@story("The same bits again")
def _(outcome: Outcome) -> None:
    assert outcome.output == "True\n"
