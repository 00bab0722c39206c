"""A report in Markdown: its tables, and of its charts the values. Markup from files is shown as text."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gnnsparse.bench.render.cells import column_name, is_number, shown_cell
from gnnsparse.bench.render.model import Curves, Part, Report, Table
from gnnsparse.bench.render.summary import LOSSES, files_table, losses_table, losses_text, problem_text

__all__ = ["as_markdown"]

_MARKUP = re.compile(r"([\\`*_\[\]<>#|~&])")


def as_markdown(report: Report) -> str:
    """Returns the report; tables that a page folds are left out, and named."""
    lines = ["# gnnsparse: results", "", _plain(report.made), "", _plain(losses_text(report.comparisons)), ""]
    if report.problems:
        lines += ["## To be noted", ""]
        lines += [f"- {_plain(problem_text(problem))}" for problem in report.problems] + [""]
    for section in report.sections:
        lines += [f"## {section.title}", "", section.about, ""]
        for file in dict.fromkeys(name for name, _ in section.parts):
            lines += [f"### {_plain(file)}", ""]
            lines += _parts(part for name, part in section.parts if name == file)
    lines += [f"## {LOSSES[1]}", "", _plain(losses_text(report.comparisons)), ""]
    table = losses_table(report.comparisons)
    lines += [] if table is None else _table(table)
    for file, part in report.lost:
        lines += [f"### {_plain(file)}", "", *_parts([part])]
    lines += ["## Files", "", *_table(files_table(report))]
    return "\n".join(lines).rstrip("\n") + "\n"


def _parts(parts: Iterable[Part]) -> list[str]:
    lines = []
    for part in parts:
        if isinstance(part, Curves):  # a line of hundreds of values says nothing
            continue
        if not isinstance(part, Table):
            rows = tuple((bar.label, bar.text) for bar in part.bars)
            lines += [f"{_plain(part.title)}:", "", *_table(Table("", ("", "value"), rows))]
        elif part.folded:
            lines += [f"{_plain(part.title)}: {len(part.rows)} rows, in the file.", ""]
        else:
            lines += [f"{_plain(part.title)}:", "", *_table(part)]
    return lines


def _table(table: Table) -> list[str]:
    right = [all(row[n] is None or is_number(row[n]) for row in table.rows) for n in range(len(table.header))]
    lines = [_row(column_name(key) for key in table.header)]
    lines.append("| " + " | ".join("---:" if number else "---" for number in right) + " |")
    lines += [_row(map(shown_cell, table.header, row)) for row in table.rows]
    return [*lines, ""]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(map(_plain, cells)) + " |"


def _plain(text: str) -> str:
    """Returns text without a meaning in Markdown or HTML, in one line."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))
