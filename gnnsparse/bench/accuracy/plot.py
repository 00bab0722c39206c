"""A figure of the errors of `gnnsparse bench accuracy`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gnnsparse.bench.accuracy.report import form_of

__all__ = ["plot_accuracy"]


def plot_accuracy(content: dict[str, Any], path: Path) -> None:
    """Draws the errors of the operations, of sums by accumulator, and of gradients, where they were measured.

    Args:
        content: what `measure_parts` returns.
        path: a file that ends in .png, .pdf or .svg.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file can't be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    draws = {"operations": _operations, "accumulation": _accumulation, "scaling": _scaling}
    shown = [part for part in draws if content.get(part)]
    figure = Figure(figsize=(8.0, 3.5 * max(len(shown), 1)), layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would choose a backend that may need a display
    for number, part in enumerate(shown):
        axes = figure.add_subplot(len(shown), 1, number + 1)
        draws[part](axes, content[part])
        axes.set(yscale="log", ylabel="relative error")
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _operations(axes: Any, rows: list[dict[str, Any]]) -> None:
    cases = list(dict.fromkeys((row["op"], row["range"]) for row in rows))
    for number, form in enumerate(dict.fromkeys(map(form_of, rows))):
        shift = 0.1 * (number - 2.5)  # beside each other, because some precisions have equal errors
        points = [
            (cases.index((r["op"], r["range"])) + shift, r["error"]) for r in rows if form_of(r) == form
        ]
        points = [point for point in points if point[1]]
        if points:
            axes.plot(*zip(*points, strict=True), "o" if "result" not in form else "x", label=form)
    axes.set_xticks(range(len(cases)), [f"{op} {name}" for op, name in cases], rotation=90, fontsize="small")
    axes.set_title("operations, by the range of their operands")


def _accumulation(axes: Any, rows: list[dict[str, Any]]) -> None:
    names = {"kernel": "float32", "half_blocks": "float16, blocks of 16", "half": "float16"}
    for number, series in enumerate(dict.fromkeys(row["series"] for row in rows)):
        mine = [row for row in rows if row["series"] == series]
        for style, (key, name) in zip(("-", "--", ":"), names.items(), strict=True):
            points = [(row["terms"], row[key]) for row in mine if row[key]]
            if points:
                axes.plot(*zip(*points, strict=True), style, color=f"C{number}", label=f"{series}, {name}")
    axes.set(xscale="log", xlabel="terms", title="sums of float16 products, by accumulator")


def _scaling(axes: Any, rows: list[dict[str, Any]]) -> None:
    for precision, way in dict.fromkeys((row["precision"], row["way"]) for row in rows):
        mine = [r for r in rows if (r["precision"], r["way"]) == (precision, way) and r["error"]]
        if mine:
            axes.plot(
                [r["magnitude"] for r in mine], [r["error"] for r in mine], ".-", label=f"{precision} {way}"
            )
    axes.set(xlabel="size of the gradient, power of 2", title="gradients, by the scaling of the loss")
