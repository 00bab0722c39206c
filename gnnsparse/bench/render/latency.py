"""The view of `gnnsparse bench latency`: what calls take, beside the fastest other, and preparation."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from gnnsparse.bench.render.cells import as_cells, is_number, shown_number
from gnnsparse.bench.render.model import OURS, PEER, Bar, Bars, Comparison, Part, Table
from gnnsparse.bench.render.times import competes

__all__ = ["KEYS", "show_latency", "show_preparation"]

#: Keys by which rows of this benchmark are known.
KEYS = ("model", "dataset", "backend", "precision", "mode", "p50_ms", "ours", "ok")
_COLUMNS = (
    "model", "dataset", "batch", "backend", "precision", "mode", "cache", "p50_ms", "p90_ms", "p99_ms",
    "max_ms", "samples_per_s", "gpu_ms", "first_result_ms", "peak_bytes", "speed", "error",
)  # fmt: skip
_PREPARATION = (
    "model", "dataset", "batch", "backend", "precision", "mode", "preprocess_ms", "prepare_ms", "capture_ms",
    "break_even",
)  # fmt: skip
_TITLE = "Latency; a speed is in units of the fastest other's"
_CASE = ("model", "dataset", "batch", "cache")

Row = dict[str, Any]


def _case(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in _CASE)


def _name(row: Row) -> str:
    return f"{row['backend']} {row['precision']} {row['mode']}"


def _words(case: tuple[Any, ...]) -> str:
    model, dataset, batch, cache = case
    parts = [str(model), str(dataset)]
    parts += [] if batch in (None, 1) else [f"batch {batch}"]
    return ", ".join([*parts, f"{cache} cache"] if cache is not None else parts)


def show_latency(file: str, rows: list[Row]) -> tuple[list[Part], list[Comparison]]:
    """Returns charts and tables, and the comparisons of ours with the fastest right peer of a case.

    A peer counts in the same precision or in fp32. What Python launches is compared with what Python
    launches, what is captured in a CUDA graph with everything.

    Raises:
        KeyError, TypeError, ValueError: rows lack a key, or a value is of another type.
    """
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        if not is_number(row["p50_ms"]) or row["p50_ms"] <= 0:
            raise ValueError(f"p50_ms: got {row['p50_ms']!r}; accepted: a number above 0")
        groups[_case(row)].append(row)
    charts: list[Part] = []
    comparisons, speeds = [], dict[int, float]()
    for case, group in groups.items():
        ours = [row for row in group if row["ours"] and row["ok"]]
        for row in ours:
            rivals = [
                peer for peer in group
                if not peer["ours"] and peer["ok"] and peer["precision"] in (row["precision"], "fp32")
                and competes(_name(peer), _name(row))
            ]  # fmt: skip
            if not rivals:
                continue
            best = min(rivals, key=lambda peer: peer["p50_ms"])
            fastest = min(r["p50_ms"] for r in ours if r["precision"] == row["precision"])
            times = float(row["p50_ms"]), float(best["p50_ms"]), float(fastest)
            found = Comparison("latency", file, _words(case), _name(row), _name(best), *times)
            comparisons.append(found)
            speeds[id(row)] = found.speed
        charts.append(Bars(f"{_words(case)}: p50 (line: to p99), ms", tuple(map(_bar, group))))
    shown = [row | {"speed": speeds.get(id(row)), "error": _verdict(row)} for row in rows]
    used = [key for key in _COLUMNS if any(row.get(key) is not None for row in shown)]
    cells = tuple(tuple(row.get(key) for key in used) for row in shown)
    every = Table("Every value", *as_cells(rows), folded=True)
    return [
        *charts,
        Table(_TITLE, tuple(used), cells),
        every,
    ], comparisons


def _verdict(row: Row) -> Any:
    return row.get("error") if row["ok"] else f"WRONG: {row.get('problem', '')}"


def _bar(row: Row) -> Bar:
    kind = OURS if row["ours"] else PEER
    if not row["ok"]:
        return Bar(_name(row), None, f"wrong: {row.get('problem', '')}", kind)
    value = float(row["p50_ms"])
    high = row.get("p99_ms")
    low = value if is_number(high) else None
    return Bar(_name(row), value, shown_number(value), kind, low, high if low is not None else None)


def show_preparation(rows: list[Row]) -> list[Part]:
    """Returns what preparing costs, and after how many inferences ours has made up for it."""
    found = [
        row for row in rows if is_number(row.get("preprocess_ms")) and row.get("cache") in (None, "warm")
    ]
    if not found:
        return []
    used = [key for key in _PREPARATION if any(row.get(key) is not None for row in found)]
    cells = tuple(tuple(row.get(key) for key in used) for row in found)
    return [Table("Preparing, and inferences after which ours is ahead (break even)", tuple(used), cells)]
