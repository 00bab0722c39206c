"""A report as a page and in Markdown, its charts as SVG, and the tables in Markdown that all pages have.

The page is made by templates/page.html.jinja and the charts by templates/charts.jinja, which escape all text.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import jinja2
from markupsafe import Markup  # of jinja2

from gnnsparse.bench.render.results import (
    OURS,
    PEER,
    Bars,
    Curves,
    Part,
    Report,
    Table,
    column_name,
    files_table,
    is_number,
    losses_table,
    losses_text,
    shown_cell,
    shown_number,
)  # fmt: skip

__all__ = ["LOST", "SECTIONS", "as_html", "as_markdown", "draw", "markdown_table"]

#: The sections in their order: heading, sentence.
SECTIONS = {
    "kernels": ("Kernels", "Products and attention by themselves, beside the fastest of other libraries."),
    "latency": ("Latency", "Inference: what a call takes."),
    "training": ("Training", "Steps of training and epochs."),
    "precision": ("Precision and accuracy", "How exact results are, and what models score."),
    "preprocessing": ("Preprocessing", "What preparing a graph takes."),
    "other": ("Other results", "What has no view of its own."),
}
#: The section of the cases that benchmarks themselves call lost, which stand under "Where we lose".
LOST = "lost"
#: Curves of a chart that are drawn, and values from which on nothing is.
_CURVES, _MOST = 6, 1e150
_MARKUP = re.compile(r"([\\`*_\[\]<>#|~&])")


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(room - 1, 1)]}\u2026"


def _can_be_drawn(value: float | None) -> TypeGuard[float]:
    """Return whether a value is a number whose products with lengths do not overflow."""
    return value is not None and math.isfinite(value) and abs(value) < _MOST


def _finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if _can_be_drawn(value)]


def _number_columns(table: Table) -> list[bool]:
    return [all(row[n] is None or is_number(row[n]) for row in table.rows) for n in range(len(table.header))]


def _by_file(parts: list[tuple[str, Part]]) -> dict[str, list[Part]]:
    """Return the parts of each file, files with charts before those without."""
    files: dict[str, list[Part]] = {}
    for name, part in parts:
        files.setdefault(name, []).append(part)
    return dict(sorted(files.items(), key=lambda file: all(isinstance(part, Table) for part in file[1])))


@functools.cache
def _environment() -> Any:
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.globals.update(
        by_file=_by_file, can_be_drawn=_can_be_drawn, column_name=column_name, cut=_cut, draw=draw,
        is_number=is_number, number_columns=_number_columns, shown_cell=shown_cell, shown_number=shown_number,
    )  # fmt: skip
    return made


def as_html(report: Report) -> str:
    """Return the page, which loads nothing and runs no script."""
    page: str = _environment().get_template("page.html.jinja").render(
        report=report, sections=SECTIONS, losses=losses_text(report.comparisons),
        lost=losses_table(report.comparisons), lost_parts=report.sections.get(LOST, []),
        origins=files_table(report),
    )  # fmt: skip
    return page.lstrip()


def draw(chart: Bars | Curves, width: int | None = None, style: str = "") -> str:
    """Return a chart as an SVG element, or "" if it has nothing to draw.

    `width` in pixels and `style` are of a file of its own; None: the element stands in a page.
    """
    templates = _environment().get_template("charts.jinja").module
    if isinstance(chart, Curves):
        return _draw_curves(chart, templates.curves)
    if not any(_can_be_drawn(bar.value) for bar in chart.bars):
        return ""
    ends = _finite(x for bar in chart.bars for x in (bar.value, bar.low, bar.high))
    if chart.points:
        room = 0.08 * (max(ends) - min(ends)) or 0.5
        low, high, lost = min(ends) - room, max(ends) + room, set()
    else:
        low, high, lost = 0.0, max([*ends, chart.line or 0.0]), _lost(chart)
    span = (high - low) or 1.0

    def place(value: float) -> float:
        return 4.0 + 352.0 * min(max((value - low) / span, 0.0), 1.0)

    attributes = "" if width is None else f'xmlns="http://www.w3.org/2000/svg" width="{width}" '
    ticks = (shown_number(float(low)), shown_number(float(high))) if chart.points else None
    height = 34 * len(chart.bars) + (18 if ticks else 0)
    given = Markup(attributes), Markup(f"<style>{style}</style>" if style else "")
    drawn: str = templates.bars(chart, height, place, lost, ticks, *given)
    return drawn


def _lost(chart: Bars) -> set[int]:
    """Return the numbers of the bars where another is faster.

    These are speeds below the line. Of times, for which there is no line, it is the fastest of ours if
    another library's is less.
    """
    drawn = [(bar.value, number) for number, bar in enumerate(chart.bars) if _can_be_drawn(bar.value)]
    if chart.line is not None:
        return {number for value, number in drawn if value < chart.line}
    ours = [found for found in drawn if chart.bars[found[1]].kind == OURS]
    peers = [value for value, number in drawn if chart.bars[number].kind == PEER]
    return {min(ours)[1]} if ours and peers and min(peers) < min(ours)[0] else set()


def _draw_curves(chart: Curves, template: Callable[..., str]) -> str:
    shown = [(name, values) for name, values in chart.curves if len(values) > 1][:_CURVES]
    ends = _finite([*(value for _, values in shown for value in values), chart.line])
    if chart.log:
        ends = [value for value in ends if value > 0]
    if not shown or not ends:
        return ""
    scale: Callable[[float], float] = math.log10 if chart.log else float
    low, high = scale(min(ends)), scale(max(ends))
    span = (high - low) or 1.0

    def height_of(value: float) -> float:
        return 168.0 - 158.0 * (scale(value) - low) / span

    def points(values: tuple[float, ...]) -> list[tuple[float, float]]:
        step = 304.0 / (len(values) - 1)
        right = [(at, v) for at, v in enumerate(values) if _can_be_drawn(v) and (v > 0 or not chart.log)]
        return [(44.0 + step * at, height_of(value)) for at, value in right]

    marked = [float(value) for value in dict.fromkeys((min(ends), max(ends), *_finite([chart.line])))]
    return template(chart, [(name, points(values)) for name, values in shown], height_of, marked)


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[str]], right: Sequence[bool] = ()) -> str:
    """Return a table of cells in Markdown; columns of which `right` is true are aligned to the right."""
    header = list(header)
    rule = ["---:" if number else "---" for number in right or [False] * len(header)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *rows))


def as_markdown(report: Report) -> str:
    """Return the report in Markdown: its tables, and the values of its charts; of folded tables the name."""
    losses, lost = _as_text(losses_text(report.comparisons)), losses_table(report.comparisons)
    blocks = ["# gnnsparse: results", _as_text(report.made), losses]
    if report.problems:
        blocks += ["## To be noted", "\n".join(f"- {_as_text(problem)}" for problem in report.problems)]
    for name, (title, about) in SECTIONS.items():
        if parts := report.sections.get(name):
            blocks += [f"## {title}", about, *_markdown_files(parts)]
    blocks += ["## Where we lose", losses, *([_markdown_of(lost)] if lost else [])]
    blocks += [*_markdown_files(report.sections.get(LOST, [])), "## Files", _markdown_of(files_table(report))]
    return "\n\n".join(blocks) + "\n"


def _markdown_files(all_parts: list[tuple[str, Part]]) -> Iterator[str]:
    for file, parts in _by_file(all_parts).items():
        yield f"### {_as_text(file)}"
        for part in parts:
            if isinstance(part, Table) and part.folded:
                yield f"{_as_text(part.title)}: {len(part.rows)} rows, in the file."
            elif not isinstance(part, Curves):  # a line of hundreds of values says nothing
                yield f"{_as_text(part.title)}:"
                yield _markdown_of(part)


def _markdown_of(part: Table | Bars) -> str:
    if isinstance(part, Bars):
        part = Table("", ("", "value"), tuple((bar.label, bar.text) for bar in part.bars))
    rows = (map(_as_text, map(shown_cell, part.header, row)) for row in part.rows)
    return markdown_table(map(_as_text, map(column_name, part.header)), rows, _number_columns(part))


def _as_text(text: str) -> str:
    """Return text without a meaning in Markdown or HTML, in one line."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))
