"""The view of `gnnsparse bench kernels`: speeds of the plan's choice, tables of times, and what was wrong."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from gnnsparse.bench.render.cells import is_number
from gnnsparse.bench.render.model import OURS, Bar, Bars, Comparison, Curves, Part, Table

__all__ = ["KEYS", "show_kernels"]

#: Keys by which rows of this benchmark are known.
KEYS = ("graph", "op", "width", "precision", "kernel", "ours", "ok", "ms")
#: A chart names up to this many cases; more are drawn as a curve.
_NAMED = 12
#: Cases of a file up to which the table of times is shown unfolded.
_UNFOLDED = 40

Row = dict[str, Any]
Case = tuple[Any, ...]


def _case(row: Row) -> Case:
    return row["graph"], row["op"], row.get("values", "gcn"), row["width"]


def _words(case: Case) -> str:
    graph, op, values, width = case
    weights = "" if op == "sddmm" else f", weights {values}"
    return f"{graph}, {op}{weights}, N = {width}"


def _at_least(precision: str) -> tuple[str, ...]:
    """Returns the precisions of peers that a result may be compared with: its own, and fp32."""
    return tuple(dict.fromkeys((precision, "fp32")))


@dataclass(frozen=True)
class _Compared:
    """A comparison with the case and the precision that it is of."""

    found: Comparison
    case: Case
    precision: str


def _check_times(rows: list[Row]) -> None:
    for row in rows:
        if not is_number(row["ms"]) or row["ms"] <= 0:
            raise ValueError(f"ms: got {row['ms']!r}; accepted: a number above 0")


def show_kernels(file: str, rows: list[Row]) -> tuple[list[Part], list[Comparison]]:
    """Returns tables and charts of a file, and the comparisons of the plan's choice with the best peer.

    A peer counts in the same precision or in fp32, if its result is right.

    Raises:
        KeyError, TypeError, ValueError: rows lack a key, or a value is of another type.
    """
    _check_times(rows)
    peers: dict[tuple[Case, str], list[Row]] = defaultdict(list)
    for row in rows:
        if not row["ours"] and row["ok"]:
            peers[_case(row), row["precision"]].append(row)
    compared, cells = list[_Compared](), []
    for row in (row for row in rows if row["kernel"] == "auto"):
        case, precision = _case(row), row["precision"]
        against = [peer for p in _at_least(precision) for peer in peers[case, p]]
        best = min(against, key=lambda peer: peer["ms"], default=None)
        name = other = None
        if best is not None:
            name, other = f"{best['kernel']} {best['precision']}", float(best["ms"])
        if name is not None and other is not None and row["ok"]:
            ours, words = str(row.get("plan") or "auto").partition(":")[0], f"{_words(case)}, {precision}"
            times = float(row["ms"]), other, float(row["ms"])
            found = Comparison("kernels", file, words, ours, name, *times)
            compared.append(_Compared(found, case, precision))
        speed = None if other is None else other / row["ms"]
        error = row.get("error") if row["ok"] else f"WRONG: {row.get('problem', '')}"
        cells.append((*case, precision, row["ms"], name, other, speed, row.get("of_floor"), error))
    parts: list[Part] = [*_means(compared), *_charts(compared)]
    header = (
        "graph", "op", "values", "width", "precision", "ours_ms", "best other", "other_ms", "speed",
        "of floor", "error",
    )  # fmt: skip
    if cells:
        parts.append(Table("Times of the plan's choice", header, tuple(cells), len(cells) > _UNFOLDED))
    wrong = [row for row in rows if not row["ok"]]
    if wrong:
        keys = ("graph", "op", "width", "precision", "kernel", "problem")
        parts.append(Table("Wrong results", keys, tuple(tuple(r.get(k) for k in keys) for r in wrong)))
    return [*parts, _every_time(rows)], [one.found for one in compared]


def _means(compared: list[_Compared]) -> list[Part]:
    groups: dict[str, list[float]] = defaultdict(list)
    for one in compared:
        groups[f"{one.case[1]} {one.precision}"].append(one.found.speed)
    if len(groups) == len(compared):  # there is nothing to take a mean of
        return []
    bars = []
    for name, speeds in groups.items():
        mean, low, high = statistics.geometric_mean(speeds), min(speeds), max(speeds)
        text = f"{mean:.2f}x ({low:.2f} to {high:.2f}, {len(speeds)} cases)"
        bars.append(Bar(name, mean, text, OURS, low, high))
    return [Bars("Speed in units of the best other's: mean, least and largest", tuple(bars), line=1.0)]


def _charts(compared: list[_Compared]) -> list[Part]:
    groups: dict[str, list[_Compared]] = defaultdict(list)
    for one in compared:
        groups[f"{one.case[1]} in {one.precision}"].append(one)
    charts: list[Part] = []
    for name, group in groups.items():
        ordered = sorted(group, key=lambda one: one.found.speed)
        if len(group) <= _NAMED:
            bars = tuple(map(_bar, ordered))
            charts.append(Bars(f"{name}: speed in units of the best other's", bars, line=1.0))
        else:
            speeds = tuple(one.found.speed for one in ordered)
            title = f"{name}: speed in units of the best other's, all {len(group)} cases"
            charts.append(Curves(title, "cases, the slowest first", (("", speeds),), line=1.0, log=True))
    return charts


def _bar(one: _Compared) -> Bar:
    graph, op, values, width = one.case
    weights = "" if values == "gcn" or op == "sddmm" else f", weights {values}"
    found = one.found
    return Bar(f"{graph}{weights}, N = {width}", found.speed, f"{found.speed:.2f}x, {found.ours_ms:.3f} ms")


def _every_time(rows: list[Row]) -> Table:
    """Returns the times of all kernels and peers, one row for each case."""
    names = tuple(dict.fromkeys((row["kernel"], row["ours"]) for row in rows))
    columns = [name for name, _ in sorted(names, key=lambda pair: not pair[1])]
    found: dict[tuple[Any, ...], dict[str, Any]] = defaultdict(dict)
    for row in rows:
        found[(*_case(row), row["precision"])][row["kernel"]] = row["ms"]
    cells = tuple((*case, *(times.get(name) for name in columns)) for case, times in found.items())
    header = ("graph", "op", "values", "width", "precision", *(f"{name}_ms" for name in columns))
    return Table("Every measurement", header, cells, folded=True)
