"""Files of results, the parts of a report that views make of them, and cells as text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnnsparse.errors import bad_value
from gnnsparse.runtime.safe_io import read_json

__all__ = [
    "ENVIRONMENT", "OURS", "PEER", "Bar", "Bars", "Comparison", "Curves", "Part", "Report", "ResultFile",
    "Table", "column_name", "files_table", "is_number", "losses_table", "losses_text", "read_results",
    "row_lists", "shown_cell", "shown_number", "table_of",
]  # fmt: skip

#: Kinds of a bar: a time or speed of ours, or of another library.
OURS, PEER = "ours", "peer"
#: Rows and columns of a table up to which a page shows it unfolded.
_UNFOLDED = 40, 16


@dataclass(frozen=True)
class Table:
    """A table. Columns are named by keys of results (`peak_bytes`), from which units are read.

    A page shows a folded one only when it is asked for.
    """

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
    """Horizontal bars from zero, or points with intervals on an axis that begins elsewhere.

    `line` is a value that is marked, such as 1 for ratios.
    """

    title: str
    bars: tuple[Bar, ...]
    line: float | None = None
    points: bool = False


@dataclass(frozen=True)
class Curves:
    """Curves (name, values at equal distances) over a common axis; `line` is a value that is marked."""

    title: str
    x_label: str
    curves: tuple[tuple[str, tuple[float, ...]], ...]
    line: float | None = None
    log: bool = False


Part = Table | Bars | Curves


@dataclass(frozen=True)
class Comparison:
    """A time of ours beside the best time of others in the same case.

    `fastest_ms` is that of the fastest of ours in this case.
    """

    section: str
    file: str
    case: str
    ours: str
    best: str
    ours_ms: float
    best_ms: float
    fastest_ms: float

    @property
    def speed(self) -> float:
        """The speed of ours in units of the other's: below 1 the other is faster."""
        return self.best_ms / self.ours_ms


@dataclass(frozen=True)
class ResultFile:
    """A file of results, named without the folders above it, and what they were obtained with.

    A file has one environment, or one for each of its parts.
    """

    name: str
    content: dict[str, Any]
    environments: tuple[dict[str, Any], ...]


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
#: How deep in a file lists of rows are looked for.
_DEPTH = 4


def read_results(paths: Sequence[Path]) -> tuple[list[ResultFile], list[str]]:
    """Read JSON files, also in folders; return the results, and a line for each file that is none."""
    found: dict[Path, str] = {}
    results, problems = [], []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*.json") if file.is_file())
            found |= {file.resolve(): file.relative_to(path).as_posix() for file in inside}
            if not inside:
                problems.append(f"{path.name}: the folder has no file .json")
        elif path.exists():
            found.setdefault(path.resolve(), path.name)
        else:
            bad_value("files", f"there is no file or folder {path}")
    for path, name in found.items():
        try:
            content = read_json(path)
        except (ValueError, OSError, MemoryError, RecursionError) as error:
            # The message begins with the whole path, which must not get into a page that is published.
            reason = " ".join(str(error).replace(str(path), name).removeprefix(f"{name}: ").split())
            problems.append(f"{name}: {reason}")
            continue
        if environments := _environments(content):
            results.append(ResultFile(name, content, environments))
        else:
            problems.append(f"{name}: is no result of gnnsparse: it lacks {', '.join(_missing(content))}")
    return results, problems


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


def row_lists(content: Any, at: str = "", depth: int = _DEPTH) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield every list of objects in a result with its place, such as ("rows", [...]).

    An object of results, as that of fuzz.json, is such a list, with its keys as the column "name".
    """
    if not isinstance(content, dict) or depth == 0:
        return
    inner = {key: value for key, value in content.items() if key not in ENVIRONMENT}
    if not at and inner and not any(map(_missing, inner.values())):
        yield "", [{"name": key, **value} for key, value in inner.items()]
        return
    for key, value in inner.items():
        place = f"{at}.{key}" if at else str(key)
        if isinstance(value, list) and value and all(isinstance(row, dict) for row in value):
            yield place, value
        elif isinstance(value, dict):
            yield from row_lists(value, place, depth - 1)


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
    lost = sorted((found for found in comparisons if found.speed < 1), key=lambda found: found.speed)
    header = (
        "section", "case", "ours", "ours_ms", "best other", "other_ms", "speed", "fastest of ours_ms", "file",
    )  # fmt: skip
    rows = tuple(
        (c.section, c.case, c.ours, c.ours_ms, c.best, c.best_ms, c.speed, c.fastest_ms, c.file) for c in lost
    )
    return Table("Cases in which another is faster", header, rows) if rows else None


def losses_text(comparisons: list[Comparison]) -> str:
    """Return how many cases were compared, and in how many of them another is faster."""
    if not comparisons:
        return "No result was compared with another library."
    lost = sum(found.speed < 1 for found in comparisons)
    slower = f"{lost} of them {'is' if lost == 1 else 'are'} slower" if lost else "none of them is slower"
    return (
        f"{len(comparisons)} times of ours were compared with the fastest other result of the same case; "
        f"{slower}. A speed is the other's time divided by ours."
    )


def files_table(report: Report) -> Table:
    """Return where, by which versions and from which commit the results of each file come."""
    # Environments of the parts of a file may differ in nothing but the time of day.
    rows = [_origin(file.name, found) for file in report.files for found in file.environments]
    header = ("file", "device", "torch", "CUDA", "Python", "threads", "commit", "date")
    return Table("Files", header, tuple({repr(row): row for row in rows}.values()))


def _origin(name: str, environment: dict[str, Any]) -> tuple[Any, ...]:
    versions, commit = environment["versions"], str(environment.get("commit") or "")
    short = commit[:7] + "-dirty" * commit.endswith("-dirty")
    return (
        name, environment["device_name"], *(versions.get(of) for of in ("torch", "cuda", "python")),
        environment.get("threads"), short, environment["date"][:10],
    )  # fmt: skip
