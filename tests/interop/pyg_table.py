"""The table of notes/pyg-layers.md: which layers are accelerated, found by calling them.

`python -m tests.interop.pyg_table` writes it into the page.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.interop.pyg_cases import CASES, MODELS, NOT_CALLED, WIDTH, Case, Graph, interop, made

PAGE = Path(__file__).parents[2] / "notes" / "pyg-layers.md"
BEGIN, END = "<!-- table of layers: begin -->", "<!-- table of layers: end -->"


@dataclass(frozen=True)
class Entry:
    """A class of PyG, what its first case runs on, and why it is left to PyG."""

    name: str
    runs_on: str
    why: str


def _entry(name: str, case: Case) -> Entry:
    torch.manual_seed(0)
    edges = torch.randint(0, 30, (2, 120)).unique(dim=1)
    layer = interop.accelerate(made(name, case), convert="always")
    case.call(layer, torch.randn(40, WIDTH), Graph(edges, 40))
    report = interop.report(layer)
    calls = {what.partition(",")[0] for row in report.rows for what in row.calls}
    if calls:
        part = any(
            row.fallbacks or row.runs_on == "PyG" or "in part" in str(row.calls) for row in report.rows
        )
        return Entry(name, " and ".join(sorted(calls)), "in part" if part else "")
    reasons: list[Any] = [why for row in report.rows for why in ((row.why,) if row.why else row.fallbacks)]
    return Entry(name, "PyG", reasons[0] if reasons else "it passes no messages of its own")


def rows() -> list[Entry]:
    """Returns what each class runs on, in the order of the alphabet; models follow."""
    found = [_entry(name, cases[0]) for group in (CASES, MODELS) for name, cases in sorted(group.items())]
    return found + [Entry(name, "PyG", f"not tested: {why}") for name, why in NOT_CALLED.items()]


def markdown(entries: list[Entry]) -> str:
    """Returns the table as Markdown."""
    lines = ["| class | runs on | |", "|---|---|---|"]
    return "\n".join(lines + [f"| `{e.name}` | {e.runs_on} | {e.why} |" for e in entries])


def main() -> None:
    """Writes the table into the page."""
    text = PAGE.read_text()
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{markdown(rows())}\n{END}{after}")


if __name__ == "__main__":
    main()
