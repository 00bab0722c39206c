"""The view of rows that hold times of ours and of others: training steps, layers, attention, latency."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from gnnsparse.bench.render.cells import as_cells, is_number, shown_number
from gnnsparse.bench.render.model import OURS, PEER, Bar, Bars, Comparison, Part, Table

__all__ = ["competes", "is_paired", "is_timed", "kind_of", "show_pairs", "show_times", "time_keys"]

#: Keys that name what was timed, the first that a row has.
_NAMES = ("backend", "name", "kernel", "variant")
#: Keys that say what was computed; rows that agree in them are compared.
_CASES = (
    "model", "dataset", "graph", "layer", "pattern", "score", "features", "op", "values", "precision",
    "batch", "batch_size", "heads", "width", "hidden", "layers", "length", "sparsity", "cache", "device",
)  # fmt: skip
#: Times that tell how much a measurement scatters, or that are no times of what was computed.
_STATISTICS = re.compile(
    r"fastest|slowest|quartile|floor|epoch|preprocess|prepare|warmup|p90|p95|p99|max_|_max|min_|_min|first|baseline"
)
#: Names of what is not ours. "sparse" and "fp16" alone are ours.
_PEERS = re.compile(
    r"pyg|dgl|dense|cudnn|flex|cusparse|sparse_mm|torch|gather|sampled|eager|compile|efficient|math|flash"
)
#: A word in the names of what is replayed as a CUDA graph, in which nothing waits for Python.
_CAPTURED = "captured"
#: Keys of a time of ours and of PyG's in one row.
_PAIR = ("accelerated_ms", "pyg_ms")
#: Bars of a chart that is drawn.
_BARS = 14
_UNFOLDED = 40

Row = dict[str, Any]


def time_keys(rows: list[Row]) -> list[str]:
    """Returns the keys of the times that rows are compared by, such as "ms" or "forward_ms"."""
    keys = dict.fromkeys(key for row in rows for key in row)
    timed = [key for key in keys if key == "ms" or key.endswith(("_ms", "_milliseconds"))]
    return [
        key for key in timed
        if not _STATISTICS.search(key) and any(is_number(row.get(key)) for row in rows)
    ]  # fmt: skip


def name_key(rows: list[Row]) -> str | None:
    """Returns the key that says what was timed, or None."""
    return next((key for key in _NAMES if all(isinstance(row.get(key), str) for row in rows)), None)


def is_timed(rows: list[Row]) -> bool:
    """Returns whether rows name what was timed, and have times."""
    return name_key(rows) is not None and bool(time_keys(rows))


def kind_of(name: str) -> str:
    """Returns OURS or PEER: whose a name in a result is."""
    return PEER if not name.startswith("gnnsparse") and _PEERS.search(name.lower()) else OURS


def competes(peer: str, ours: str) -> bool:
    """Returns whether a peer is compared with ours: what Python launches is not, with what is captured."""
    return _CAPTURED in ours or _CAPTURED not in peer


def _cases(rows: list[Row]) -> dict[tuple[tuple[str, Any], ...], list[Row]]:
    """Groups rows by what was computed; peers that are dense, or in fp32, join the cases of ours."""
    keys = [key for key in _CASES if any(key in row for row in rows) and key != name_key(rows)]
    varying = [key for key in keys if len({repr(row.get(key)) for row in rows}) > 1]
    ours = [row for row in rows if kind_of(str(row[name_key(rows) or ""])) == OURS]
    groups: dict[tuple[tuple[str, Any], ...], list[Row]] = {}
    for row in ours or rows:
        groups.setdefault(tuple((key, _plain(row.get(key))) for key in varying), [])
    for row in rows:
        for case, group in groups.items():
            if _belongs(row, case, kind_of(str(row[name_key(rows) or ""]))):
                group.append(row)
    return groups


def _belongs(row: Row, case: tuple[tuple[str, Any], ...], kind: str) -> bool:
    for key, value in case:
        mine = _plain(row.get(key))
        if mine == value:
            continue
        if kind == PEER and (
            mine in (None, "dense")
            or (key == "precision" and mine == "fp32")
            or (key == "sparsity" and mine == 0)
        ):
            continue
        return False
    return True


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _words(case: tuple[tuple[str, Any], ...]) -> str:
    parts = [
        str(value) if isinstance(value, str) else f"{key.replace('_', ' ')} {value}"
        for key, value in case
        if value is not None
    ]
    return ", ".join(parts)


def show_times(
    file: str, rows: list[Row], section: str, about: str = ""
) -> tuple[list[Part], list[Comparison]]:
    """Returns a table and charts of timed rows, and comparisons of ours with the best of the others.

    Args:
        file: name of the file.
        rows: rows for which `is_timed` holds.
        section: the section of the comparisons.
        about: what all rows have in common, in words.
    """
    label = name_key(rows)
    assert label is not None
    comparisons: list[Comparison] = []
    charts: list[Part] = []
    for key in time_keys(rows):
        what = "" if key in ("ms", "milliseconds") else key.rpartition("_")[0].replace("_", " ")
        for case, group in _cases(rows).items():
            timed = [row for row in group if is_number(row.get(key)) and row[key] > 0 and _is_right(row)]
            words = ", ".join(filter(None, (about, _words(case), what)))
            comparisons += _compared(file, timed, label, key, words, section)
            bars = tuple(
                _bar(row, label, key, group)
                for row in group
                if row in timed or isinstance(row.get("error"), str)
            )
            if 1 < len(bars) <= _BARS:
                charts.append(Bars(f"{words or file}, ms", bars))
    header, cells = as_cells(rows)
    kept = [n for n, key in enumerate(header) if any(_shown(row[n]) for row in cells)]
    table = Table(
        "Measurements" + (f": {about}" if about else ""),
        tuple(header[n] for n in kept),
        tuple(tuple(row[n] for n in kept) for row in cells),
        len(cells) > _UNFOLDED,
    )
    return [*charts, table], comparisons


def is_paired(rows: list[Row]) -> bool:
    """Returns whether each row holds a time of ours and one of PyG's."""
    return all(is_number(row.get(key)) and row[key] > 0 for row in rows for key in _PAIR)


def show_pairs(file: str, rows: list[Row], section: str) -> tuple[list[Part], list[Comparison]]:
    """Returns a table and a chart of rows for which `is_paired` holds, and comparisons of their two times."""
    comparisons, bars = [], []
    for row in rows:
        words = _words(tuple((key, _plain(row[key])) for key in _CASES if row.get(key) is not None))
        ours, peer = (float(row[key]) for key in _PAIR)
        found = Comparison(section, file, words, "accelerated", "pyg", ours, peer, ours)
        comparisons.append(found)
        bars.append(Bar(words, found.speed, f"{found.speed:.2f}x, {shown_number(ours)} ms"))
    chart = Bars("Speed in units of PyG's", tuple(bars), line=1.0)
    return [chart, Table("Measurements", *as_cells(rows))], comparisons


def _is_right(row: Row) -> bool:
    """Returns whether a row may be compared: whether it does not say that its result is wrong."""
    return row.get("ok") is not False and row.get("accurate") is not False


def _shown(value: Any) -> bool:
    return value is not None and value != ""


def _bar(row: Row, label: str, key: str, group: list[Row]) -> Bar:
    value: Any = row.get(key)
    if not is_number(value):
        return Bar(row[label], None, str(row.get("error")), kind_of(row[label]))
    name = row[label]
    if len({other[label] for other in group}) < len(group) and "precision" in row:
        name = f"{name} {row['precision']}"
    low, high = row.get("fastest_ms"), row.get("slowest_ms")
    if key != "ms" or not (is_number(low) and is_number(high)):
        low = high = None
    return Bar(name, value, f"{shown_number(float(value))}", kind_of(row[label]), low, high)


def _compared(
    file: str, timed: list[Row], label: str, key: str, words: str, section: str
) -> list[Comparison]:
    peers: dict[str, list[Row]] = defaultdict(list)
    for row in timed:
        peers[kind_of(row[label])].append(row)
    fastest = float(min((row[key] for row in peers[OURS]), default=0.0))
    found = []
    for row in peers[OURS]:
        rivals = [peer for peer in peers[PEER] if competes(peer[label], row[label])]
        if rivals:
            best = min(rivals, key=lambda peer: peer[key])
            times = float(row[key]), float(best[key]), fastest
            found.append(Comparison(section, file, words, row[label], best[label], *times))
    return found
