"""A figure of the ratios to the baseline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["PLOT_ENDINGS", "colors_of", "plot_ratios"]

PLOT_ENDINGS = (".png", ".pdf", ".svg")


def plot_ratios(rows: list[dict[str, Any]], path: Path) -> None:
    """Draws the ratios of speed to the baseline's, in a diagram for each op and precision.

    Args:
        rows: measurements with ratios (`add_ratios`); those without a ratio, or wrong, are left out.
        path: a file that ends in .png, .pdf or .svg.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file can't be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [row for row in rows if row["over_baseline"] is not None and row["ok"]]
    panels = list(dict.fromkeys((row["op"], row["precision"]) for row in shown))
    cases = {panel: _cases(shown, panel) for panel in panels}
    most = max(map(len, cases.values()), default=0)
    size = (max(8.0, 0.35 * most + 2), max(3.0, 4.5 * len(panels) + 1))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would choose a backend that may need a display
    colors = colors_of(shown)
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(len(panels), 1, number + 1)
        mine, names = [row for row in shown if _panel(row) == panel], cases[panel]
        for kernel in dict.fromkeys(map(_name, mine)):
            points = [(names.index(_label(r)), r["over_baseline"]) for r in mine if _name(r) == kernel]
            x, y = zip(*points, strict=True)
            axes.plot(x, y, "o" if kernel.startswith("auto") else "x", color=colors[kernel], label=kernel)
        axes.axhline(1.0, color="grey", linewidth=0.8)
        axes.set(yscale="log", ylabel=f"speed / {mine[0]['baseline']}", title=" ".join(panel))
        axes.set_xticks(range(len(names)), names, rotation=90)
        axes.set_xlim(-0.5, len(names) - 0.5)
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def colors_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a colour for each kernel and peer, which is the same in all diagrams of a figure."""
    from matplotlib import colormaps

    names = list(dict.fromkeys(map(_name, rows)))
    palette = colormaps["tab10" if len(names) <= 10 else "tab20"]
    return {name: palette(number % palette.N) for number, name in enumerate(names)}


def _name(row: dict[str, Any]) -> str:
    """Returns the name of a kernel, of ours with the way that it is given its operands."""
    way = row.get("variant") if row["ours"] else ""
    return f"{row['kernel']} ({way})" if way else str(row["kernel"])


def _panel(row: dict[str, Any]) -> tuple[str, str]:
    return row["op"], row["precision"]


def _cases(rows: list[dict[str, Any]], panel: tuple[str, str]) -> list[str]:
    """Returns the cases of a diagram: those of other operations would be empty columns in it."""
    return list(dict.fromkeys(_label(row) for row in rows if _panel(row) == panel))


def _label(row: dict[str, Any]) -> str:
    return f"{row['graph']} {row['values']} N={row['width']}"
