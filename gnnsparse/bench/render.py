"""A report as a page and in Markdown, its charts as SVG, and the tables in Markdown that all pages have.

The templates of the page and of its charts escape all text as HTML, that of Markdown as Markdown.
It stands alone because scripts make the tables and figures of README and docs with it.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import jinja2
from markupsafe import Markup

from gnnsparse.errors import bad_value
from gnnsparse.runtime.safe_io import read_json

#: Kinds of a bar: a time or speed of ours, or of another library.
OURS, PEER = "ours", "peer"
#: Rows and columns of a table up to which a page shows it unfolded.
_UNFOLDED = 40, 16


@dataclass(frozen=True)
class Table:
    """A table, whose columns are keys of results (`peak_bytes`); a folded one is shown on request."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    folded: bool = False


@dataclass(frozen=True)
class Bar:
    """A value with a label and an interval; without a value `text` says why."""

    label: str
    value: float | None
    text: str
    kind: str = OURS
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Bars:
    """Horizontal bars from zero; `line` is a value that is marked, such as 1 for ratios."""

    title: str
    bars: tuple[Bar, ...]
    line: float | None = None


@dataclass(frozen=True)
class Picture:
    """A drawing as SVG, which is trusted: nothing in it is escaped."""

    title: str
    svg: str


Part = Table | Bars | Picture


#: A time of ours beside the best time of others in the same case, by the keys that tables show: "section",
#: "case", "ours", "ours_ms", "best other", "other_ms", "speed" (below 1 the other is faster),
#: "fastest of ours_ms" (kernels that are forced count, too) and "file".
Comparison = dict[str, Any]


@dataclass(frozen=True)
class ResultFile:
    """A file of results, named without the folders above it, and the environments of its parts.

    The result.json of a run is named with its folder, or as many as tell the runs apart.
    """

    name: str
    content: dict[str, Any]
    environments: tuple[dict[str, Any], ...]
    path: Path | None = None


@dataclass
class Report:
    """What a report shows: for each section pairs (name of the file, part), and all comparisons.

    `problems` are lines about what could not be shown, and about what to know of files.
    """

    files: list[ResultFile]
    problems: list[str]
    made: str
    sections: dict[str, list[tuple[str, Part]]] = field(default_factory=dict)
    comparisons: list[Comparison] = field(default_factory=list)


# Files of results: which there are, and whether they are ours.

#: Keys by which a file of ours is known: what `gnnsparse.runtime.environment.describe_environment` returns.
ENVIRONMENT = ("device", "device_name", "threads", "versions", "commit", "date")
_REQUIRED = {"device_name": str, "versions": dict, "date": str}


def read_results(paths: Sequence[Path]) -> tuple[list[ResultFile], list[str]]:
    """Read JSON files, also in folders; return the results, and a line for each file that is none."""
    found: dict[Path, str] = {}
    results, problems = [], []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*.json") if file.is_file() and _is_shown(file))
            found |= {file.resolve(): file.relative_to(path).as_posix() for file in inside}
            if not inside:
                problems.append(f"{path.name}: the folder has no file .json")
        elif path.exists():
            found.setdefault(path.resolve(), path.name)
        else:
            bad_value("RUN", f"there is no file or folder {path}")
    if runs := [path for path in found if path.name == "result.json"]:
        base = os.path.commonpath([path.parent.parent for path in runs])
        found |= {path: path.relative_to(base).as_posix() for path in runs}
    for path, name in found.items():
        try:
            content = read_json(path)
        except (ValueError, OSError, MemoryError, RecursionError) as error:
            # The message begins with the whole path, which must not get into a page that is published.
            reason = " ".join(str(error).replace(str(path), name).removeprefix(f"{name}: ").split())
            problems.append(f"{name}: {reason}")
            continue
        if environments := _environments(content):
            results.append(ResultFile(name, content, environments, path))
        else:
            problems.append(f"{name}: is no result of gnnsparse: it lacks {', '.join(_missing(content))}")
    return results, problems


def _is_shown(file: Path) -> bool:
    """Return whether a file is no trace, and no result of a run before it was resumed."""
    return file.name != "trace.json" and not re.fullmatch(r"result-\d+\.json", file.name)


def _missing(content: Any) -> list[str]:
    """Return the keys that make an object a result, and that this one lacks or has of another type."""
    of = content if isinstance(content, dict) else {}
    return [key for key, kind in _REQUIRED.items() if not isinstance(of.get(key), kind)]


def _environments(content: Any) -> tuple[dict[str, Any], ...]:
    """Return the environment of a file, or of each of its parts; empty if it is no result."""
    if _missing(content):
        parts = list(content.values()) if isinstance(content, dict) else []
        if any(map(_missing, parts)):
            return ()
    else:
        parts = [content]
    return tuple({key: part.get(key) for key in ENVIRONMENT} for part in parts)


def row_lists(content: dict[str, Any], at: str = "") -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield every list of objects in a result with its place, such as ("rows", [...])."""
    inner = {key: value for key, value in content.items() if key not in ENVIRONMENT}
    if not at and inner and not any(map(_missing, inner.values())):
        yield "", [{"name": key, **value} for key, value in inner.items()]
        return
    for key, value in inner.items():
        place = f"{at}.{key}" if at else str(key)
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            yield place, value
        elif isinstance(value, dict):
            yield from row_lists(value, place)


# Cells of tables as text: numbers with four digits, bytes with a unit, nested values as JSON.

#: Characters of a cell that holds other values; what is longer is cut, and says how long it was.
_LONG = 160
_UNITS = {"_ms": "ms", "_milliseconds": "ms", "_seconds": "s", "_gb": "GB", "_us": "us"}


def is_number(value: Any) -> bool:
    """Return whether a value is a finite number, and no truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def shown_number(value: float) -> str:
    """Return a number with four significant digits; integers with all of theirs."""
    if isinstance(value, int):
        return f"{value:,}"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{value:,.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"


def shown_cell(column: str, value: Any) -> str:
    """Return a cell as text; those of columns `..._bytes` are shown in MiB or GiB."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        if column.endswith("bytes") and value >= 2**20:
            return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"
        return shown_number(value)
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(map(is_number, value)):
        text = ", ".join(map(shown_number, value))
    else:
        text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _LONG:
        return text
    count = f"{len(value)} values: " if isinstance(value, list) else ""
    return f"{count}{text[:_LONG]}..."


def column_name(key: str) -> str:
    """Return the heading of a column: `forward_ms` is "forward, ms"."""
    for ending, unit in _UNITS.items():
        if key.endswith(ending):
            return f"{key.removesuffix(ending).replace('_', ' ')}, {unit}"
    return key.removesuffix("_bytes").replace("_", " ")


def table_of(title: str, rows: Sequence[dict[str, Any]], folded: bool = False) -> Table:
    """Return a table, folded if large, of each key, nested ones too, that has a value somewhere."""
    flat = [_flat(row) for row in rows]
    header = tuple(
        dict.fromkeys(key for row in flat for key, value in row.items() if value not in (None, ""))
    )
    cells = tuple(tuple(row.get(key) for key in header) for row in flat)
    return Table(title, header, cells, folded or len(rows) > _UNFOLDED[0] or len(header) > _UNFOLDED[1])


def _flat(row: dict[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in row.items():
        name = f"{before}{key}"
        if isinstance(value, dict) and value and len(value) <= 12:
            found |= _flat(value, f"{name}.")
        else:
            found[name] = value
    return found


# What both forms of a report say in the same words: where others are faster, and where results come from.


def losses_table(comparisons: list[Comparison]) -> Table | None:
    """Return the cases in which the best of the others is faster than ours, worst first; None: none."""
    lost = sorted((found for found in comparisons if found["speed"] < 1), key=lambda found: found["speed"])
    rows = tuple(tuple(found.values()) for found in lost)
    return Table("Cases in which another is faster", tuple(lost[0]), rows) if lost else None


def losses_text(comparisons: list[Comparison]) -> str:
    """Return how many cases were compared, and in how many of them another is faster."""
    if not comparisons:
        return "No result was compared with another library."
    lost = sum(found["speed"] < 1 for found in comparisons)
    slower = f"{lost} of them {'is' if lost == 1 else 'are'} slower" if lost else "none of them is slower"
    return (
        f"{len(comparisons)} times of ours were compared with the fastest other result of the same case; "
        f"{slower}. A speed is the other's time divided by ours."
    )


def files_table(report: Report) -> Table:
    """Return where, by which versions and from which commit the results of each file come."""
    rows = {}
    for file in report.files:
        for found in file.environments:
            versions, commit = found["versions"], str(found.get("commit") or "")
            row = (
                file.name, found["device_name"], *(versions.get(of) for of in ("torch", "cuda", "python")),
                found.get("threads"), commit[:7] + "-dirty" * commit.endswith("-dirty"), found["date"][:10],
            )  # fmt: skip
            rows[repr(row)] = row  # environments of a file's parts may differ in the time of day alone
    header = ("file", "device", "torch", "CUDA", "Python", "threads", "commit", "date")
    return Table("Files", header, tuple(rows.values()))


# The page, its charts, and the report in Markdown.

#: The sections in their order: heading, sentence.
SECTIONS = {
    "kernels": ("Kernels", "Products and attention by themselves, beside the fastest of other libraries."),
    "latency": ("Latency", "Inference: what a call takes."),
    "training": ("Training", "Runs, steps of training and epochs."),
    "precision": ("Precision and accuracy", "How exact results are, and what models score."),
    "preprocessing": ("Preprocessing", "What preparing a graph takes."),
    "other": ("Other results", "What has no view of its own."),
}
#: The section of the cases that benchmarks themselves call lost, which stand under "Where we lose".
LOST = "lost"
#: Values from which on nothing is drawn.
_MOST = 1e150
_MARKUP = re.compile(r"([\\`*_\[\]<>#|~&])")


def _cut(text: str, room: int) -> str:
    return text if len(text) <= room else f"{text[: max(room - 1, 1)]}\u2026"


def _can_be_drawn(value: float | None) -> TypeGuard[float]:
    """Return whether a value is a number whose products with lengths do not overflow."""
    return value is not None and math.isfinite(value) and abs(value) < _MOST


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
        autoescape=jinja2.select_autoescape(disabled_extensions=("md.jinja",), default=True),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    made.globals.update(
        by_file=_by_file, can_be_drawn=_can_be_drawn, column_name=column_name, cut=_cut, draw=draw,
        is_number=is_number, markdown_of=_markdown_of, number_columns=_number_columns, plain=_as_text,
        shown_cell=shown_cell, shown_number=shown_number,
    )  # fmt: skip
    return made


def as_html(report: Report) -> str:
    """Return the page, which loads nothing and runs no script."""
    return _rendered("page.html.jinja", report)


def as_markdown(report: Report) -> str:
    """Return the report in Markdown: its tables, and the values of its charts; of folded tables the name."""
    return _rendered("page.md.jinja", report)


def _rendered(template: str, report: Report) -> str:
    page: str = _environment().get_template(template).render(
        report=report, sections=SECTIONS, losses=losses_text(report.comparisons),
        lost=losses_table(report.comparisons), lost_parts=report.sections.get(LOST, []),
        origins=files_table(report),
    )  # fmt: skip
    return page.lstrip()


def draw(chart: Bars | Picture, width: int | None = None, style: str = "") -> str:
    """Return a chart as SVG, or "" if it is empty; `width` and `style` are of a file, None in a page."""
    if isinstance(chart, Picture):
        return Markup(chart.svg)
    if not any(_can_be_drawn(bar.value) for bar in chart.bars):
        return ""
    ends = [x for bar in chart.bars for x in (bar.value, bar.low, bar.high) if _can_be_drawn(x)]
    high = max([*ends, chart.line or 0.0]) or 1.0

    def place(value: float) -> float:
        return 4.0 + 352.0 * min(max(value / high, 0.0), 1.0)

    attributes = "" if width is None else f'xmlns="http://www.w3.org/2000/svg" width="{width}" '
    given = Markup(attributes), Markup(f"<style>{style}</style>" if style else "")
    templates = _environment().get_template("charts.jinja").module
    return templates.bars(chart, 34 * len(chart.bars), place, _lost(chart), *given)


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


def markdown_table(header: Iterable[str], rows: Iterable[Iterable[str]], right: Sequence[bool] = ()) -> str:
    """Return a table of cells in Markdown; columns of which `right` is true are aligned to the right."""
    header = list(header)
    rule = ["---:" if number else "---" for number in right or [False] * len(header)]
    return "\n".join("| " + " | ".join(line) + " |" for line in (header, rule, *rows))


def _markdown_of(part: Part) -> str:
    if isinstance(part, Picture):
        return "The page in HTML has this picture."
    if isinstance(part, Bars):
        part = Table("", ("", "value"), tuple((bar.label, bar.text) for bar in part.bars))
    rows = (map(_as_text, map(shown_cell, part.header, row)) for row in part.rows)
    return markdown_table(map(_as_text, map(column_name, part.header)), rows, _number_columns(part))


def _as_text(text: str) -> str:
    """Return text without a meaning in Markdown or HTML, in one line."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))
