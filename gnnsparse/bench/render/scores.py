"""The views of scores of trained models, of single runs of train.py, and of loss curves."""

from __future__ import annotations

from typing import Any

from gnnsparse.bench.render.cells import as_cells, is_number
from gnnsparse.bench.render.model import PEER, Bar, Curves, Intervals, Part, Table
from gnnsparse.bench.render.times import kind_of

__all__ = ["is_losses", "is_scores", "run_rows", "show_losses", "show_scores"]

#: Keys of a score's deviation, the first that a row has.
_DEVIATIONS = ("standard_deviation", "std", "deviation")
#: Points of a curve that are drawn, each the mean of those around it.
_POINTS = 200
#: Columns of the table of scores; others are in the folded table of every value.
_COLUMNS = (
    "model", "dataset", "variant", "precision", "seeds", "metric", "mean", "standard_deviation", "std",
    "baseline", "baseline_standard_deviation", "difference", "interval", "p", "p_corrected", "paper",
    "epoch_milliseconds", "baseline_epoch_milliseconds", "peak_memory_bytes",
)  # fmt: skip

Row = dict[str, Any]


def is_scores(rows: list[Row]) -> bool:
    """Returns whether rows are scores of models: means over seeds with deviations."""
    return all(
        is_number(row.get("mean")) and "dataset" in row and any(k in row for k in _DEVIATIONS) for row in rows
    )


def show_scores(rows: list[Row]) -> list[Part]:
    """Returns the scores of models by data set, with their deviations over the seeds, and a table."""
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
    kept = [n for n, key in enumerate(header) if key in _COLUMNS]
    table = Table(
        "Scores: mean and deviation over the seeds, per cent",
        tuple(header[n] for n in kept),
        tuple(tuple(row[n] for n in kept) for row in cells),
    )
    return [*charts, table, Table("Every value", header, cells, folded=True)]


def _score(name: str, mean: Any, deviation: Any, kind: str) -> Bar:
    if not is_number(mean):
        return Bar(name, None, "", kind)
    if not is_number(deviation):
        return Bar(name, mean, f"{mean:.2f}", kind)
    return Bar(name, mean, f"{mean:.2f} ± {deviation:.2f}", kind, mean - deviation, mean + deviation)


def is_losses(rows: list[Row]) -> bool:
    """Returns whether rows are loss curves."""
    return all(
        isinstance(row.get("losses"), list) and row["losses"] and all(map(is_number, row["losses"]))
        for row in rows
    )


def show_losses(rows: list[Row]) -> list[Part]:
    """Returns the curves of the losses, and a table of what else the rows have."""
    curves = tuple((str(row.get("variant", row.get("name", ""))), _thinned(row["losses"])) for row in rows)
    header, cells = as_cells([{key: row[key] for key in row if key != "losses"} for row in rows])
    return [Curves("Loss", "steps of training", curves), Table("Scores", header, cells)]


def _thinned(values: list[float]) -> tuple[float, ...]:
    """Returns at most _POINTS values, each the mean of those around it."""
    size = -(-len(values) // _POINTS)
    parts = [values[at : at + size] for at in range(0, len(values), size)]
    return tuple(sum(part) / len(part) for part in parts)


def run_rows(content: dict[str, Any]) -> tuple[list[Row], list[Row], list[Row]]:
    """Returns the rows of a run of train.py: training, scores and preprocessing; empty if it is none."""
    if not isinstance(content.get("metrics"), dict) or "fit_seconds" not in content:
        return [], [], []
    what = {key: content.get(key) for key in ("model", "dataset", "precision", "seed")}
    training = (
        "epochs",
        "best_epoch",
        "epoch_milliseconds",
        "fit_seconds",
        "peak_memory_bytes",
        "parameters",
    )
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
