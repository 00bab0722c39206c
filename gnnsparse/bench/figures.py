"""Figures of measurements: ratios of kernels to their baseline, latencies, and errors of precisions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["colors_of", "form_of", "plot_accuracy", "plot_latencies", "plot_ratios"]


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would choose a backend that may need a display
    return figure


def _save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def plot_ratios(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the ratios of speed to the baseline's, in a diagram for each op and precision.

    Args:
        rows: measurements with ratios (`add_ratios`); those without a ratio, or wrong, are left out.
        path: a file that ends in .png, .pdf or .svg.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file can't be written.
    """
    shown = [row for row in rows if row["over_baseline"] is not None and row["ok"]]
    panels = list(dict.fromkeys((row["op"], row["precision"]) for row in shown))
    cases = {panel: _cases(shown, panel) for panel in panels}
    most = max(map(len, cases.values()), default=0)
    figure = _figure(max(8.0, 0.35 * most + 2), max(3.0, 4.5 * len(panels) + 1))
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
    _save(figure, path)


def colors_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a colour for each kernel and peer, which is the same in all diagrams of a figure."""
    from matplotlib import colormaps

    names = list(dict.fromkeys(map(_name, rows)))
    palette = colormaps["tab10" if len(names) <= 10 else "tab20"]
    return {name: palette(number % palette.N) for number, name in enumerate(names)}


def _name(row: dict[str, Any]) -> str:
    """Return the name of a kernel, of ours with the variant that says how it is given its operands."""
    variant = row.get("variant") if row["ours"] else ""
    return f"{row['kernel']} ({variant})" if variant else str(row["kernel"])


def _panel(row: dict[str, Any]) -> tuple[str, str]:
    return row["op"], row["precision"]


def _cases(rows: list[dict[str, Any]], panel: tuple[str, str]) -> list[str]:
    """Return the cases of a diagram: those of other operations would be empty columns in it."""
    return list(dict.fromkeys(_label(row) for row in rows if _panel(row) == panel))


def _label(row: dict[str, Any]) -> str:
    return f"{row['graph']} {row['values']} N={row['width']}"


def plot_latencies(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the latency of each case, p50 as a bar and p99 as a line above it, a diagram for each model.

    Args:
        rows: measurements; those that are wrong are left out.
        path: a file that ends in .png, .pdf or .svg.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file can't be written.
    """
    shown = [row for row in rows if row["ok"] and row["cache"] == "warm"] or [r for r in rows if r["ok"]]
    models = list(dict.fromkeys(row["model"] for row in shown))
    cases = {m: list(dict.fromkeys(_case_label(row) for row in shown if row["model"] == m)) for m in models}
    widest = max((len(found) for found in cases.values()), default=1)
    figure = _figure(max(8.0, 1.3 * widest + 4), 3.4 * max(len(models), 1))
    for number, model in enumerate(models):
        axes = figure.add_subplot(len(models), 1, number + 1)
        mine = [row for row in shown if row["model"] == model]
        series = list(dict.fromkeys(_series(row) for row in mine))
        for place, name in enumerate(series):
            bars = [row for row in mine if _series(row) == name]
            at = [cases[model].index(_case_label(row)) + 0.8 * place / len(series) for row in bars]
            p50 = [row["p50_ms"] for row in bars]
            above = [row["p99_ms"] - row["p50_ms"] for row in bars]
            errors = [[0.0] * len(bars), above]
            axes.bar(at, p50, 0.8 / len(series), yerr=errors, label=name, error_kw={"linewidth": 0.8})
        axes.set_xticks([i + 0.4 for i in range(len(cases[model]))], cases[model], fontsize="small")
        axes.set(yscale="log", ylabel="ms, p50 (line: p99)", title=model)
        axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    _save(figure, path)


def _case_label(row: dict[str, Any]) -> str:
    batch = f"\nbatch {row['batch']}" if row["model"] == "transformer" else ""
    return f"{row['dataset']}\n{row['precision']}{batch}"


def _series(row: dict[str, Any]) -> str:
    return f"{row['backend']}, {row['mode']}"


def form_of(row: dict[str, Any]) -> str:
    """Return the precision of a row, with the dtype of the result where that has 16 bits."""
    return (
        str(row["precision"]) if row["output"] == "float32" else f"{row['precision']}, {row['output']} result"
    )


def plot_accuracy(content: dict[str, Any], path: Path) -> None:
    """Draw the errors of the operations, of sums by accumulator, and of gradients, where they were measured.

    Args:
        content: what `measure_parts` returns.
        path: a file that ends in .png, .pdf or .svg.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file can't be written.
    """
    draws = {"operations": _draw_operations, "accumulation": _draw_accumulation, "scaling": _draw_scaling}
    shown = [part for part in draws if content.get(part)]
    figure = _figure(8.0, 3.5 * max(len(shown), 1))
    for number, part in enumerate(shown):
        axes = figure.add_subplot(len(shown), 1, number + 1)
        draws[part](axes, content[part])
        axes.set(yscale="log", ylabel="relative error")
        axes.legend(fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    _save(figure, path)


def _draw_operations(axes: Any, rows: list[dict[str, Any]]) -> None:
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


def _draw_accumulation(axes: Any, rows: list[dict[str, Any]]) -> None:
    names = {"kernel": "float32", "half_blocks": "float16, blocks of 16", "half": "float16"}
    for number, series in enumerate(dict.fromkeys(row["series"] for row in rows)):
        mine = [row for row in rows if row["series"] == series]
        for style, (key, name) in zip(("-", "--", ":"), names.items(), strict=True):
            points = [(row["terms"], row[key]) for row in mine if row[key]]
            if points:
                axes.plot(*zip(*points, strict=True), style, color=f"C{number}", label=f"{series}, {name}")
    axes.set(xscale="log", xlabel="terms", title="sums of float16 products, by accumulator")


def _draw_scaling(axes: Any, rows: list[dict[str, Any]]) -> None:
    for precision, way in dict.fromkeys((row["precision"], row["way"]) for row in rows):
        mine = [r for r in rows if (r["precision"], r["way"]) == (precision, way) and r["error"]]
        if mine:
            axes.plot(
                [r["magnitude"] for r in mine], [r["error"] for r in mine], ".-", label=f"{precision} {way}"
            )
    axes.set(xlabel="size of the gradient, power of 2", title="gradients, by the scaling of the loss")
