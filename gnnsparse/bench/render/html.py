"""A report as one HTML page, which loads nothing and runs no script. All text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

from gnnsparse.bench.render.cells import column_name, is_number, shown_cell
from gnnsparse.bench.render.model import Part, Report, Section, Table
from gnnsparse.bench.render.summary import LOSSES, files_table, losses_table, losses_text, problem_text
from gnnsparse.bench.render.svg import draw

__all__ = ["as_html"]

_STYLE = Path(__file__).with_name("page.css")
#: Characters from which on a cell may be broken into lines.
_LONG = 60
#: Charts of a file in a section that are shown unfolded.
_CHARTS = 12
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def as_html(report: Report) -> str:
    """Returns the page."""
    title = "gnnsparse: results"
    sections = [*((s.name, s.title) for s in report.sections), LOSSES, ("files", "Files")]
    links = "".join(f'<li><a href="#{name}">{escape(text)}</a></li>' for name, text in sections)
    body = [
        f"<header><h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(report.made)}</p>',
        f"<p>{escape(losses_text(report.comparisons))}</p>",
        '<p class="soft"><span class="key ours"></span>ours ',
        '<span class="key peer"></span>other libraries <span class="key lost"></span>another is faster</p>',
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header>',
        _problems(report),
        "<main>",
        *(_section(section) for section in report.sections),
        _losses(report),
        f'<section id="files"><h2>Files</h2>{_table(files_table(report), titled=False)}</section>',
        "</main>",
    ]
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{escape(title)}</title><style>\n{_STYLE.read_text(encoding='utf-8')}</style>"
    )
    lines = "\n".join(filter(None, body))
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>\n<body>\n{lines}\n</body></html>\n'


def _problems(report: Report) -> str:
    if not report.problems:
        return ""
    items = "".join(f"<li>{escape(problem_text(problem))}</li>" for problem in report.problems)
    return f'<div class="problems" role="note"><strong>To be noted</strong><ul>{items}</ul></div>'


def _losses(report: Report) -> str:
    name, title = LOSSES
    table = losses_table(report.comparisons)
    inner = "" if table is None else _table(table)
    about = escape(losses_text(report.comparisons))
    inner += "".join(f"<h3>{escape(file)}</h3>{_parts([part])}" for file, part in report.lost)
    return f'<section id="{name}"><h2>{title}</h2><p>{about}</p>{inner}</section>'


def _section(section: Section) -> str:
    body = []
    for file in dict.fromkeys(name for name, _ in section.parts):
        parts = [part for name, part in section.parts if name == file]
        body.append(f"<h3>{escape(file)}</h3>{_parts(parts)}")
    about = f'<p class="soft">{escape(section.about)}</p>'
    return f'<section id="{section.name}"><h2>{escape(section.title)}</h2>{about}{"".join(body)}</section>'


def _parts(parts: Iterable[Part]) -> str:
    charts, tables = [], []
    for part in parts:
        if isinstance(part, Table):
            tables.append(_table(part))
        elif drawn := draw(part):
            charts.append(f"<figure><figcaption>{escape(part.title)}</figcaption>{drawn}</figure>")
    grids = [
        f'<div class="charts">{"".join(drawn)}</div>'
        for drawn in (charts[:_CHARTS], charts[_CHARTS:])
        if drawn
    ]
    if len(grids) > 1:
        count = len(charts) - _CHARTS
        grids[1] = f"<details><summary>{count} more charts</summary>{grids[1]}</details>"
    return "".join([*grids, *tables])


def _table(table: Table, *, titled: bool = True) -> str:
    numbers = [
        all(row[n] is None or is_number(row[n]) for row in table.rows) for n in range(len(table.header))
    ]
    head = "".join(
        f'<th scope="col"{_class("number" if number else "")}>{escape(column_name(key))}</th>'
        for key, number in zip(table.header, numbers, strict=True)
    )
    rows = "".join(f"<tr>{_cells(table.header, row)}</tr>" for row in table.rows)
    label = escape(table.title, quote=True)
    # A box that scrolls can be reached by keyboard alone if it can have the focus.
    box = (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )
    count = f"{escape(table.title)} ({len(table.rows)} rows)"
    if table.folded:
        return f"<details><summary>{count}</summary>{box}</details>"
    title = f'<p class="soft">{escape(table.title)}</p>' if titled else ""
    return title + box


def _cells(header: tuple[str, ...], row: tuple[object, ...]) -> str:
    cells = []
    for key, value in zip(header, row, strict=True):
        text = shown_cell(key, value)
        kind = "number" if is_number(value) else "long" if len(text) > _LONG else ""
        if text.startswith("WRONG"):
            kind = f"{kind} bad".strip()
        cells.append(f"<td{_class(kind)}>{escape(text)}</td>")
    return "".join(cells)


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
