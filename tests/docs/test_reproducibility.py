"""notes/reproducibility.md names every file of results."""

from __future__ import annotations

import re

from tests.docs.blocks import ROOT

PAGE = ROOT / "notes" / "reproducibility.md"


def test_every_file_of_results_is_named() -> None:
    files = {path.name for path in (ROOT / "benchmarks" / "results").glob("*.json")}
    # The study's own file, whatever it is called later, and what a run leaves.
    others = {"study.json", "result.json"}
    assert set(re.findall(r"\b(\w+\.json)\b", PAGE.read_text())) - others == files
