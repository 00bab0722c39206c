"""Figures of measurements: ratios of kernels to their baseline, latencies, and errors of precisions."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnnsparse.bench.session import Row

#: What adds the products of float16 numbers up, by the key of its error.
ACCUMULATORS = {"kernel": "float32", "half_blocks": "float16, blocks of 16", "half": "float16"}


@dataclass
class Panel:
    """A diagram with a logarithmic vertical axis; `line` is a value that is marked.

    Points of a series are (x, y) or (x, y, the end of a line above it), x a number or a word.
    """

    title: str
    y: str
    x: str = ""
    line: float | None = None
    series: dict[str, list[tuple[Any, ...]]] = field(default_factory=lambda: defaultdict(list))
    styles: dict[str, str] = field(default_factory=dict)


@contextlib.contextmanager
def drawing(path: Path, size: tuple[float, float]) -> Iterator[Any]:
    """Yield an empty figure of a size in inches, which is written to a file .png, .pdf or .svg at the end."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would choose a backend that may need a display
    yield figure
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def plot(panels: list[Panel], path: Path) -> None:
    """Draw panels below each other, with one colour for each name, to a file .png, .pdf or .svg."""
    from matplotlib import colormaps

    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    palette = colormaps["tab10" if len(names) <= 10 else "tab20"]
    words = [
        list(dict.fromkeys(p[0] for points in panel.series.values() for p in points if isinstance(p[0], str)))
        for panel in panels
    ]
    width = max(8.0, 0.35 * max(map(len, words), default=0) + 2)
    with drawing(path, (width, 4.5 * max(len(panels), 1))) as figure:
        for number, (panel, ticks) in enumerate(zip(panels, words, strict=True)):
            _draw(figure.add_subplot(len(panels), 1, number + 1), panel, ticks, names, palette)


def _draw(axes: Any, panel: Panel, ticks: list[Any], names: list[str], palette: Any) -> None:
    for at, (name, points) in enumerate(panel.series.items()):
        shift = 0.5 * (at / len(panel.series) - 0.5)  # beside each other, because some are equal
        x = [ticks.index(point[0]) + shift if ticks else point[0] for point in points]
        color = palette(names.index(name) % palette.N)
        axes.plot(x, [point[1] for point in points], panel.styles.get(name, "o"), color=color, label=name)
        axes.vlines(x, [point[1] for point in points], [point[-1] for point in points], color)
    if panel.line is not None:
        axes.axhline(panel.line, color="grey", linewidth=0.8)
    axes.set(yscale="log", ylabel=panel.y, xlabel=panel.x, title=panel.title)
    if ticks:
        axes.set_xticks(range(len(ticks)), ticks, rotation=90, fontsize="small")
        axes.set_xlim(-0.5, len(ticks) - 0.5)
    axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))


def ratio_panels(rows: list[Row]) -> list[Panel]:
    """Return the right rows' ratios to the baseline (`add_ratios`), a panel for each op and precision."""
    panels: dict[str, Panel] = {}
    for row in rows:
        if row["over_baseline"] is None or not row["ok"]:
            continue
        title = f"{row['op']} {row['precision']}"
        panel = panels.setdefault(title, Panel(title, f"speed / {row['baseline']}", line=1.0))
        # Of ours with the variant that says how it is given its operands.
        name = f"{row['kernel']} ({row['variant']})" if row["ours"] and row.get("variant") else row["kernel"]
        panel.series[name].append((f"{row['graph']} {row['values']} N={row['width']}", row["over_baseline"]))
        panel.styles[name] = "o" if name.startswith("auto") else "x"
    return list(panels.values())


def latency_panels(rows: list[Row]) -> list[Panel]:
    """Return the right latencies of each case, p50 as a point and p99 as a line above it, by model."""
    panels: dict[str, Panel] = {}
    right = [row for row in rows if row["ok"]]
    for row in [row for row in right if row["cache"] == "warm"] or right:
        panel = panels.setdefault(row["model"], Panel(row["model"], "ms, p50 (line: p99)"))
        batch = f"\nbatch {row['batch']}" if row["model"] == "transformer" else ""
        case = f"{row['dataset']}\n{row['precision']}{batch}"
        panel.series[f"{row['backend']}, {row['mode']}"].append((case, row["p50_ms"], row["p99_ms"]))
    return list(panels.values())


def form_of(row: Row) -> str:
    """Return the precision of a row, with the dtype of the result where that has 16 bits."""
    return row["precision"] + ("" if row["output"] == "float32" else f", {row['output']} result")


def accuracy_panels(content: Row) -> list[Panel]:
    """Return the errors of operations, of sums by accumulator, and of gradients, where they were measured."""
    operations = Panel("operations, by the range of their operands", "relative error")
    for row in content.get("operations", ()):
        if row["error"]:
            operations.series[form_of(row)].append((f"{row['op']} {row['range']}", row["error"]))
    sums = Panel("sums of float16 products, by accumulator", "relative error", "terms")
    for row in content.get("accumulation", ()):
        for style, (key, accumulator) in zip(("-", "--", ":"), ACCUMULATORS.items(), strict=True):
            if row[key]:
                name = f"{row['series']}, {accumulator}"
                sums.series[name].append((row["terms"], row[key]))
                sums.styles[name] = style
    gradients = Panel(
        "gradients, by the scaling of the loss", "relative error", "size of the gradient, power of 2"
    )
    for row in content.get("scaling", ()):
        if row["error"]:
            name = f"{row['precision']} {row['way']}"
            gradients.series[name].append((row["magnitude"], row["error"]))
            gradients.styles[name] = ".-"
    return [panel for panel in (operations, sums, gradients) if panel.series]
