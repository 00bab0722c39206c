"""Runs of `train.py` in one table, and their curves in one picture, for a report."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import rich.table
from rich.box import SIMPLE
from rich.markup import escape

from gnnsparse.bench.render import (
    ENVIRONMENT,
    Part,
    Picture,
    ResultFile,
    Table,
    column_name,
    shown_cell,
    table_of,
)
from gnnsparse.bench.session import new_table
from gnnsparse.precision import Precision

#: What tells runs apart, in the order of the table.
_KEYS = ("dataset", "model", "precision", "seed")
#: What a run took, in the order of the table.
_COSTS = ("best_epoch", "epochs", "epoch_milliseconds", "fit_seconds", "peak_memory_bytes", "parameters")
#: Curves up to which each has a color and a line in the legend.
_MOST_NAMED = 10


def is_run(content: dict[str, Any]) -> bool:
    """Return whether a result is one of `train.py`."""
    metrics = content.get("metrics")
    whole = isinstance(metrics, dict) and all(isinstance(part, dict) for part in metrics.values())
    return whole and "fit_seconds" in content


def show_runs(files: Sequence[ResultFile], problems: list[str]) -> list[Part]:
    """Return the table of runs, their curves, and what else is known of them; add lines to `problems`."""
    files = sorted(files, key=_place)
    curves = {}
    for file in files:
        try:
            curves[file.name] = _curves_of(file)
        except (OSError, ValueError, csv.Error) as error:
            problems.append(f"{file.name}: its curves can't be read ({error})".replace(str(file.path), "log"))
    parts: list[Part] = [
        table_of("Scores of the best epoch, time and memory", [_row(file) for file in files])
    ]
    if drawn := {name: rows for name, rows in curves.items() if rows}:
        try:
            parts.append(Picture("Losses and validation scores by epoch", _draw(files, drawn)))
        except ImportError:
            problems.append("curves are not drawn, as matplotlib is missing (pip install matplotlib)")
    elif files:
        problems.append(
            "the runs have no curves: there is no logs/csv/*/metrics.csv beside their result.json"
        )
    classes = [
        {"run": _name(file), **row}
        for file in files
        if isinstance(of := file.content.get("classes"), list)
        for row in of
        if isinstance(row, dict)
    ]
    shown = {*_KEYS, *_COSTS, "metrics", "classes", *ENVIRONMENT} - {"device_name"}
    rest = [
        {"run": _name(file)} | {key: value for key, value in file.content.items() if key not in shown}
        for file in files
    ]
    parts.append(table_of("Scores of each class in the test part", classes, folded=len(files) > 1))
    parts.append(table_of("Further values", rest, folded=True))
    return [part for part in parts if not isinstance(part, Table) or part.rows]


def compared(files: Sequence[ResultFile]) -> rich.table.Table:
    """Return the table of runs for a terminal: what tells them apart, test scores, time and memory."""
    rows = [_row(file) for file in sorted(files, key=_place)]
    keys = [key for key in _KEYS if len({row[key] for row in rows}) > 1]
    scores = dict.fromkeys(name for row in rows for name in row if name.startswith("test "))
    columns = [*scores, "epoch_milliseconds", "fit_seconds", "peak_memory_bytes"]
    table = new_table("", ["run", *keys], [column_name(name) for name in columns], box=SIMPLE)
    for row in rows:
        table.add_row(*(escape(shown_cell(name, row.get(name))) for name in ("run", *keys, *columns)))
    return table


def _place(file: ResultFile) -> tuple[str, str, int, str, float]:
    """Return by what a run finds its place in the table: precisions from fp32 on, seeds as numbers."""
    of, precisions = file.content, [precision.value for precision in Precision]
    precision, seed = str(of.get("precision")), of.get("seed")
    known = precisions.index(precision) if precision in precisions else len(precisions)
    number = seed if isinstance(seed, int) else -1
    return str(of.get("dataset")), str(of.get("model")), known, precision, number


def _name(file: ResultFile) -> str:
    return file.name.removesuffix("/result.json")


def _row(file: ResultFile) -> dict[str, Any]:
    """Return a run's row: its name, what it is of, test scores, that of its best epoch, and what it took."""
    of, parts = file.content, file.content["metrics"]
    best = list(parts.get("val", {}).items())[:1]
    scores = {f"test {name}": value for name, value in parts.get("test", {}).items()}
    scores |= {f"val {name}": value for name, value in best}
    return {
        "run": _name(file), **{key: of.get(key) for key in _KEYS}, **scores,
        **{key: of.get(key) for key in _COSTS},
    }  # fmt: skip


def _curves_of(file: ResultFile) -> list[dict[str, float]]:
    """Return the rows of a run's log, its numbers by name; none if it has no log."""
    logs = [] if file.path is None else sorted(file.path.parent.glob("logs/csv/*/metrics.csv"))
    if not logs:
        return []
    with logs[-1].open(newline="", encoding="utf-8") as lines:
        return [
            {key: float(text) for key, text in row.items() if key and isinstance(text, str) and text}
            for row in csv.DictReader(lines)
        ]


def _labels(files: Sequence[ResultFile], names: Sequence[str]) -> dict[str, str]:
    """Return what the curve of each run is called: what tells it apart, among many runs all but its seed."""
    of = {file.name: file for file in files if file.name in names}
    keys = _KEYS if len(of) <= _MOST_NAMED else _KEYS[:-1]
    differing = [key for key in keys if len({str(file.content.get(key)) for file in of.values()}) > 1]
    labels = {}
    for name, file in of.items():
        words = {key: str(file.content.get(key)) for key in differing}
        text = ", ".join(f"seed {word}" if key == "seed" else word for key, word in words.items()) or "all"
        labels[name] = "".join(filter(str.isprintable, text)).replace("$", r"\$")
    unclear = not differing or len(set(labels.values())) < len(of)
    if len(of) <= _MOST_NAMED and unclear:  # they differ in other options
        return {name: _name(file).replace("$", r"\$") for name, file in of.items()}
    return labels


def _panels(files: Sequence[ResultFile]) -> dict[str, tuple[str, ...]]:
    """Return what is drawn, columns of logs by title: losses, and the scores that best epochs go by."""
    scores = dict.fromkeys(next(iter(file.content["metrics"].get("test", {})), "") for file in files)
    losses = {"loss: validation, training (dashed)": ("val/loss", "train/loss")}
    return {**losses, **{f"validation {name}": (f"val/{name}",) for name in scores if name}}


def _draw(files: Sequence[ResultFile], curves: dict[str, list[dict[str, float]]]) -> str:
    """Return the curves as SVG that a page can hold."""
    import matplotlib
    from matplotlib.figure import Figure  # not pyplot, which keeps every figure and looks for a display
    from matplotlib.lines import Line2D

    panels, labels = _panels(files), _labels(files, list(curves))
    colors = {label: f"C{number % 10}" for number, label in enumerate(dict.fromkeys(labels.values()))}
    gray: Any = dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "grid.color"), "#808080")
    # Black text is written without its color, so that a page can show it light or dark.
    with matplotlib.rc_context({**gray, "svg.fonttype": "none", "svg.hashsalt": "gnnsparse"}):
        figure = Figure(figsize=(4.6 * len(panels), 3.6), layout="constrained")
        for axes, (title, names) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
            for run, rows in curves.items():
                for name in names:
                    found = [(row["epoch"], row[name]) for row in rows if {"epoch", name} <= row.keys()]
                    points = np.array(found).reshape(-1, 2)
                    points = points[np.isfinite(points).all(axis=1)]
                    style = "--" if name.startswith("train") else "." if len(points) == 1 else "-"
                    axes.plot(*points.T, style, color=colors[labels[run]], linewidth=1.2)
            axes.set(xlabel="epoch", title=title)
            axes.xaxis.get_major_locator().set_params(integer=True)
            axes.grid(alpha=0.3)
        handles = [Line2D([], [], color=color) for color in colors.values()]
        figure.legend(handles, list(colors), loc="outside lower center", ncols=3, frameon=False)
        file, about = io.StringIO(), dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=about)
    text = file.getvalue()
    return text[text.index("<svg") :]
