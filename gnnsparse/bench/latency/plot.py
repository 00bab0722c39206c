"""A figure of latencies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["plot_latencies"]


def plot_latencies(rows: list[dict[str, Any]], path: Path) -> None:
    """Draws the latency of each case, p50 as a bar and p99 as a line above it, a diagram for each model.

    Args:
        rows: measurements; those that are wrong are left out.
        path: a file that ends in .png, .pdf or .svg.

    Raises:
        ImportError: matplotlib is not installed.
        OSError: the file can't be written.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = [row for row in rows if row["ok"] and row["cache"] == "warm"] or [r for r in rows if r["ok"]]
    models = list(dict.fromkeys(row["model"] for row in shown))
    cases = {m: list(dict.fromkeys(_case(row) for row in shown if row["model"] == m)) for m in models}
    widest = max((len(found) for found in cases.values()), default=1)
    figure = Figure(figsize=(max(8.0, 1.3 * widest + 4), 3.4 * max(len(models), 1)), layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would choose a backend that may need a display
    for number, model in enumerate(models):
        axes = figure.add_subplot(len(models), 1, number + 1)
        mine = [row for row in shown if row["model"] == model]
        series = list(dict.fromkeys(_series(row) for row in mine))
        for place, name in enumerate(series):
            bars = [row for row in mine if _series(row) == name]
            at = [cases[model].index(_case(row)) + 0.8 * place / len(series) for row in bars]
            p50 = [row["p50_ms"] for row in bars]
            above = [row["p99_ms"] - row["p50_ms"] for row in bars]
            errors = [[0.0] * len(bars), above]
            axes.bar(at, p50, 0.8 / len(series), yerr=errors, label=name, error_kw={"linewidth": 0.8})
        axes.set_xticks([i + 0.4 for i in range(len(cases[model]))], cases[model], fontsize="small")
        axes.set(yscale="log", ylabel="ms, p50 (line: p99)", title=model)
        axes.legend(fontsize="x-small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _case(row: dict[str, Any]) -> str:
    batch = f"\nbatch {row['batch']}" if row["model"] == "transformer" else ""
    return f"{row['dataset']}\n{row['precision']}{batch}"


def _series(row: dict[str, Any]) -> str:
    return f"{row['backend']}, {row['mode']}"
