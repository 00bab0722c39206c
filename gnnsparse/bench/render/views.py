"""The view of rows that hold times of ours and of others: training steps, layers, attention, latency."""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from gnnsparse.bench.render.results import (
    OURS,
    PEER,
    Bar,
    Bars,
    Comparison,
    Curves,
    Intervals,
    Part,
    Table,
    as_cells,
    is_number,
    shown_number,
)

__all__ = [
    "KERNEL_KEYS", "LATENCY_KEYS", "competes", "is_losses", "is_paired", "is_scores", "is_timed",
    "kind_of", "run_rows", "show_kernels", "show_latency", "show_losses", "show_pairs",
    "show_preparation", "show_scores", "show_times", "time_keys",
]  # fmt: skip

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
    """Return the keys of the times that rows are compared by, such as "ms" or "forward_ms"."""
    keys = dict.fromkeys(key for row in rows for key in row)
    timed = [key for key in keys if key == "ms" or key.endswith(("_ms", "_milliseconds"))]
    return [
        key for key in timed
        if not _STATISTICS.search(key) and any(is_number(row.get(key)) for row in rows)
    ]  # fmt: skip


def name_key(rows: list[Row]) -> str | None:
    """Return the key that says what was timed, or None."""
    return next((key for key in _NAMES if all(isinstance(row.get(key), str) for row in rows)), None)


def is_timed(rows: list[Row]) -> bool:
    """Return whether rows name what was timed, and have times."""
    return name_key(rows) is not None and bool(time_keys(rows))


def kind_of(name: str) -> str:
    """Return OURS or PEER: whose a name in a result is."""
    return PEER if not name.startswith("gnnsparse") and _PEERS.search(name.lower()) else OURS


def competes(peer: str, ours: str) -> bool:
    """Return whether a peer is compared with ours: what Python launches is not, with what is captured."""
    return _CAPTURED in ours or _CAPTURED not in peer


def _cases(rows: list[Row]) -> dict[tuple[tuple[str, Any], ...], list[Row]]:
    """Group rows by what was computed; peers that are dense, or in fp32, join the cases of ours."""
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


def _words_of(case: tuple[tuple[str, Any], ...]) -> str:
    parts = [
        str(value) if isinstance(value, str) else f"{key.replace('_', ' ')} {value}"
        for key, value in case
        if value is not None
    ]
    return ", ".join(parts)


def show_times(
    file: str, rows: list[Row], section: str, about: str = ""
) -> tuple[list[Part], list[Comparison]]:
    """Return a table and charts of timed rows, and comparisons of ours with the best of the others.

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
            words = ", ".join(filter(None, (about, _words_of(case), what)))
            comparisons += _compared(file, timed, label, key, words, section)
            bars = tuple(
                _bar(row, label, key, group)
                for row in group
                if row in timed or isinstance(row.get("error"), str)
            )
            if 1 < len(bars) <= _BARS:
                charts.append(Bars(f"{words or file}, ms", bars))
    header, cells = as_cells(rows)
    used = [n for n, key in enumerate(header) if any(_shown(row[n]) for row in cells)]
    table = Table(
        "Measurements" + (f": {about}" if about else ""),
        tuple(header[n] for n in used),
        tuple(tuple(row[n] for n in used) for row in cells),
        len(cells) > _UNFOLDED,
    )
    return [*charts, table], comparisons


def is_paired(rows: list[Row]) -> bool:
    """Return whether each row holds a time of ours and one of PyG's."""
    return all(is_number(row.get(key)) and row[key] > 0 for row in rows for key in _PAIR)


def show_pairs(file: str, rows: list[Row], section: str) -> tuple[list[Part], list[Comparison]]:
    """Return a table and a chart of rows for which `is_paired` holds, and comparisons of their two times."""
    comparisons, bars = [], []
    for row in rows:
        words = _words_of(tuple((key, _plain(row[key])) for key in _CASES if row.get(key) is not None))
        ours, peer = (float(row[key]) for key in _PAIR)
        found = Comparison(section, file, words, "accelerated", "pyg", ours, peer, ours)
        comparisons.append(found)
        bars.append(Bar(words, found.speed, f"{found.speed:.2f}x, {shown_number(ours)} ms"))
    chart = Bars("Speed in units of PyG's", tuple(bars), line=1.0)
    return [chart, Table("Measurements", *as_cells(rows))], comparisons


def _is_right(row: Row) -> bool:
    """Return whether a row may be compared: whether it does not say that its result is wrong."""
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


# The view of `gnnsparse bench kernels`: speeds of the plan's choice, tables of times, and what was wrong.

#: Keys by which rows of this benchmark are known.
KERNEL_KEYS = ("graph", "op", "width", "precision", "kernel", "ours", "ok", "ms")
#: A chart names up to this many cases; more are drawn as a curve.
_NAMED = 12
#: Cases of a file up to which the table of times is shown unfolded.
_UNFOLDED_CASES = 40

Case = tuple[Any, ...]


def _kernel_case(row: Row) -> Case:
    return row["graph"], row["op"], row.get("values", "gcn"), row["width"]


def _kernel_words(case: Case) -> str:
    graph, op, values, width = case
    weights = "" if op == "sddmm" else f", weights {values}"
    return f"{graph}, {op}{weights}, N = {width}"


@dataclass(frozen=True)
class _Compared:
    """A comparison with the case and the precision that it is of."""

    found: Comparison
    case: Case
    precision: str


def _check_times(rows: list[Row], key: str) -> None:
    for row in rows:
        if not is_number(row[key]) or row[key] <= 0:
            raise ValueError(f"{key}: got {row[key]!r}; accepted: a number above 0")


def show_kernels(file: str, rows: list[Row]) -> tuple[list[Part], list[Comparison]]:
    """Return tables and charts of a file, and the comparisons of the plan's choice with the best peer.

    A peer counts in the same precision or in fp32, if its result is right.

    Raises:
        KeyError, TypeError, ValueError: rows lack a key, or a value is of another type.
    """
    _check_times(rows, "ms")
    peers: dict[tuple[Case, str], list[Row]] = defaultdict(list)
    for row in rows:
        if not row["ours"] and row["ok"]:
            peers[_kernel_case(row), row["precision"]].append(row)
    compared, cells = list[_Compared](), []
    for row in (row for row in rows if row["kernel"] == "auto"):
        case, precision = _kernel_case(row), row["precision"]
        # In its own precision, or in fp32.
        against = [peer for p in dict.fromkeys((precision, "fp32")) for peer in peers[case, p]]
        best = min(against, key=lambda peer: peer["ms"], default=None)
        name = other = None
        if best is not None:
            name, other = f"{best['kernel']} {best['precision']}", float(best["ms"])
        if name is not None and other is not None and row["ok"]:
            ours, words = (
                str(row.get("plan") or "auto").partition(":")[0],
                f"{_kernel_words(case)}, {precision}",
            )
            times = float(row["ms"]), other, float(row["ms"])
            compared.append(
                _Compared(Comparison("kernels", file, words, ours, name, *times), case, precision)
            )
        speed = None if other is None else other / row["ms"]
        cells.append((*case, precision, row["ms"], name, other, speed, row.get("of_floor"), _verdict(row)))
    parts: list[Part] = [*_means(compared), *_charts(compared)]
    header = (
        "graph", "op", "values", "width", "precision", "ours_ms", "best other", "other_ms", "speed",
        "of floor", "error",
    )  # fmt: skip
    if cells:
        parts.append(Table("Times of the plan's choice", header, tuple(cells), len(cells) > _UNFOLDED_CASES))
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
            bars = tuple(map(_speed_bar, ordered))
            charts.append(Bars(f"{name}: speed in units of the best other's", bars, line=1.0))
        else:
            speeds = tuple(one.found.speed for one in ordered)
            title = f"{name}: speed in units of the best other's, all {len(group)} cases"
            charts.append(Curves(title, "cases, the slowest first", (("", speeds),), line=1.0, log=True))
    return charts


def _speed_bar(one: _Compared) -> Bar:
    graph, op, values, width = one.case
    weights = "" if values == "gcn" or op == "sddmm" else f", weights {values}"
    found = one.found
    return Bar(f"{graph}{weights}, N = {width}", found.speed, f"{found.speed:.2f}x, {found.ours_ms:.3f} ms")


def _every_time(rows: list[Row]) -> Table:
    """Return the times of all kernels and peers, one row for each case."""
    names = tuple(dict.fromkeys((row["kernel"], row["ours"]) for row in rows))
    columns = [name for name, _ in sorted(names, key=lambda pair: not pair[1])]
    found: dict[tuple[Any, ...], dict[str, Any]] = defaultdict(dict)
    for row in rows:
        found[(*_kernel_case(row), row["precision"])][row["kernel"]] = row["ms"]
    cells = tuple((*case, *(times.get(name) for name in columns)) for case, times in found.items())
    header = ("graph", "op", "values", "width", "precision", *(f"{name}_ms" for name in columns))
    return Table("Every measurement", header, cells, folded=True)


# The view of `gnnsparse bench latency`: what calls take, beside the fastest other, and preparation.

#: Keys by which rows of this benchmark are known.
LATENCY_KEYS = ("model", "dataset", "backend", "precision", "mode", "p50_ms", "ours", "ok")
_LATENCY_COLUMNS = (
    "model", "dataset", "batch", "backend", "precision", "mode", "cache", "p50_ms", "p90_ms", "p99_ms",
    "max_ms", "samples_per_s", "gpu_ms", "first_result_ms", "peak_bytes", "speed", "error",
)  # fmt: skip
_PREPARATION = (
    "model", "dataset", "batch", "backend", "precision", "mode", "preprocess_ms", "prepare_ms", "capture_ms",
    "break_even",
)  # fmt: skip
_TITLE = "Latency; a speed is in units of the fastest other's"
_LATENCY_CASE = ("model", "dataset", "batch", "cache")


def _latency_case(row: Row) -> tuple[Any, ...]:
    return tuple(row.get(key) for key in _LATENCY_CASE)


def _latency_name(row: Row) -> str:
    return f"{row['backend']} {row['precision']} {row['mode']}"


def _latency_words(case: tuple[Any, ...]) -> str:
    model, dataset, batch, cache = case
    parts = [str(model), str(dataset)]
    parts += [] if batch in (None, 1) else [f"batch {batch}"]
    return ", ".join([*parts, f"{cache} cache"] if cache is not None else parts)


def show_latency(file: str, rows: list[Row]) -> tuple[list[Part], list[Comparison]]:
    """Return charts and tables, and the comparisons of ours with the fastest right peer of a case.

    A peer counts in the same precision or in fp32. What Python launches is compared with what Python
    launches, what is captured in a CUDA graph with everything.

    Raises:
        KeyError, TypeError, ValueError: rows lack a key, or a value is of another type.
    """
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    _check_times(rows, "p50_ms")
    for row in rows:
        groups[_latency_case(row)].append(row)
    charts: list[Part] = []
    comparisons, speeds = [], dict[int, float]()
    for case, group in groups.items():
        ours = [row for row in group if row["ours"] and row["ok"]]
        for row in ours:
            rivals = [
                peer for peer in group
                if not peer["ours"] and peer["ok"] and peer["precision"] in (row["precision"], "fp32")
                and competes(_latency_name(peer), _latency_name(row))
            ]  # fmt: skip
            if not rivals:
                continue
            best = min(rivals, key=lambda peer: peer["p50_ms"])
            fastest = min(r["p50_ms"] for r in ours if r["precision"] == row["precision"])
            times = float(row["p50_ms"]), float(best["p50_ms"]), float(fastest)
            found = Comparison(
                "latency", file, _latency_words(case), _latency_name(row), _latency_name(best), *times
            )
            comparisons.append(found)
            speeds[id(row)] = found.speed
        charts.append(
            Bars(f"{_latency_words(case)}: p50 (line: to p99), ms", tuple(map(_latency_bar, group)))
        )
    shown = [row | {"speed": speeds.get(id(row)), "error": _verdict(row)} for row in rows]
    every = Table("Every value", *as_cells(rows), folded=True)
    return [*charts, _columns_of(shown, _LATENCY_COLUMNS, _TITLE), every], comparisons


def _columns_of(rows: list[Row], columns: tuple[str, ...], title: str) -> Table:
    """Return a table of those columns in which a row has a value."""
    used = tuple(key for key in columns if any(row.get(key) is not None for row in rows))
    return Table(title, used, tuple(tuple(row.get(key) for key in used) for row in rows))


def _verdict(row: Row) -> Any:
    return row.get("error") if row["ok"] else f"WRONG: {row.get('problem', '')}"


def _latency_bar(row: Row) -> Bar:
    kind = OURS if row["ours"] else PEER
    if not row["ok"]:
        return Bar(_latency_name(row), None, f"wrong: {row.get('problem', '')}", kind)
    value = float(row["p50_ms"])
    high = row.get("p99_ms")
    low = value if is_number(high) else None
    return Bar(_latency_name(row), value, shown_number(value), kind, low, high if low is not None else None)


def show_preparation(rows: list[Row]) -> list[Part]:
    """Return what preparing costs, and after how many inferences ours has made up for it."""
    found = [
        row for row in rows if is_number(row.get("preprocess_ms")) and row.get("cache") in (None, "warm")
    ]
    if not found:
        return []
    return [
        _columns_of(found, _PREPARATION, "Preparing, and inferences after which ours is ahead (break even)")
    ]


# The views of scores of trained models, of single runs of train.py, and of loss curves.

#: Keys of a score's deviation, the first that a row has.
_DEVIATIONS = ("standard_deviation", "std", "deviation")
#: Points of a curve that are drawn, each the mean of those around it.
_POINTS = 200
#: Columns of the table of scores; others are in the folded table of every value.
_SCORE_COLUMNS = (
    "model", "dataset", "variant", "precision", "seeds", "metric", "mean", "standard_deviation", "std",
    "baseline", "baseline_standard_deviation", "difference", "interval", "p", "p_corrected", "paper",
    "epoch_milliseconds", "baseline_epoch_milliseconds", "peak_memory_bytes",
)  # fmt: skip


def is_scores(rows: list[Row]) -> bool:
    """Return whether rows are scores of models: means over seeds with deviations."""
    return all(
        is_number(row.get("mean")) and "dataset" in row and any(k in row for k in _DEVIATIONS) for row in rows
    )


def show_scores(rows: list[Row]) -> list[Part]:
    """Return the scores of models by data set, with their deviations over the seeds, and a table."""
    groups: dict[str, list[Bar]] = {}
    for row in rows:
        title = ", ".join(str(row[key]) for key in ("model", "dataset") if row.get(key))
        bars = groups.setdefault(title, [])
        deviation = next((row[k] for k in _DEVIATIONS if is_number(row.get(k))), None)
        name = " ".join(str(row[key]) for key in ("backend", "variant", "precision") if row.get(key))
        kind = kind_of(name)
        bars.append(_score(name, row["mean"], deviation, kind))
        peer = _score("PyG fp32", row.get("baseline"), row.get("baseline_standard_deviation"), PEER)
        if peer.value is not None and peer not in bars:
            bars.append(peer)
    charts: list[Part] = [
        Intervals(f"{title}: score, per cent", tuple(sorted(bars, key=lambda bar: bar.kind)))
        for title, bars in groups.items()
    ]
    header, cells = as_cells(rows)
    used = [n for n, key in enumerate(header) if key in _SCORE_COLUMNS]
    table = Table(
        "Scores: mean and deviation over the seeds, per cent",
        tuple(header[n] for n in used),
        tuple(tuple(row[n] for n in used) for row in cells),
    )
    return [*charts, table, Table("Every value", header, cells, folded=True)]


def _score(name: str, mean: Any, deviation: Any, kind: str) -> Bar:
    if not is_number(mean):
        return Bar(name, None, "", kind)
    if not is_number(deviation):
        return Bar(name, mean, f"{mean:.2f}", kind)
    return Bar(name, mean, f"{mean:.2f} ± {deviation:.2f}", kind, mean - deviation, mean + deviation)


def is_losses(rows: list[Row]) -> bool:
    """Return whether rows are loss curves."""
    return all(
        isinstance(row.get("losses"), list) and row["losses"] and all(map(is_number, row["losses"]))
        for row in rows
    )


def show_losses(rows: list[Row]) -> list[Part]:
    """Return the curves of the losses, and a table of what else the rows have."""
    curves = tuple((str(row.get("variant", row.get("name", ""))), _thinned(row["losses"])) for row in rows)
    header, cells = as_cells([{key: row[key] for key in row if key != "losses"} for row in rows])
    return [Curves("Loss", "steps of training", curves), Table("Scores", header, cells)]


def _thinned(values: list[float]) -> tuple[float, ...]:
    """Return at most _POINTS values, each the mean of those around it."""
    size = -(-len(values) // _POINTS)
    parts = [values[at : at + size] for at in range(0, len(values), size)]
    return tuple(sum(part) / len(part) for part in parts)


def run_rows(content: dict[str, Any]) -> tuple[list[Row], list[Row], list[Row]]:
    """Return the rows of a run of train.py: training, scores and preprocessing; empty if it is none."""
    if not isinstance(content.get("metrics"), dict) or "fit_seconds" not in content:
        return [], [], []
    what = {key: content.get(key) for key in ("model", "dataset", "precision", "seed")}
    training = (
        "epochs", "best_epoch", "epoch_milliseconds", "fit_seconds", "peak_memory_bytes", "parameters",
    )  # fmt: skip
    scores = {
        f"{part} {name}": value
        for part, found in content["metrics"].items()
        if isinstance(found, dict)
        for name, value in found.items()
    }
    prepared = ("preprocess_seconds", "cache_hit")
    return (
        [what | {key: content.get(key) for key in training}],
        [what | scores],
        [what | {key: content.get(key) for key in prepared}],
    )
