"""The command `gnnsparse bench latency`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from gnnsparse.bench.latency.report import as_json, print_report
from gnnsparse.bench.latency.run import LatencyBench
from gnnsparse.bench.latency.settings import LatencySettings
from gnnsparse.runtime.environment import write_json

__all__ = ["run_latency"]

#: Characters of a line if the output is no terminal; in a narrower table numbers would be cut.
_WIDTH = 200


def run_latency(settings: LatencySettings, out: Path | None = None, plot: Path | None = None) -> int:
    """Measures, prints the report, and writes it to files.

    Args:
        settings: what to measure.
        out: the JSON file to write, after each task, because a run may be ended; None: none.
        plot: the figure to write; None: none.

    Returns:
        The exit status: 1 if a result of this package is wrong or failed, or a data set could not be loaded.
    """
    console = Console()
    console = console if console.is_terminal else Console(width=max(_WIDTH, console.width))
    progress = Console(stderr=True)

    def save(bench: LatencyBench) -> None:
        if out is not None:
            write_json(out, as_json(bench))

    def tell(line: str) -> None:
        progress.print(line, markup=False, highlight=False, soft_wrap=True)

    bench = LatencyBench(settings, tell, save)
    bench.run()
    save(bench)
    print_report(bench, console)
    if plot is not None:
        from gnnsparse.bench.latency.plot import plot_latencies

        plot_latencies(bench.rows, plot)
    wrong = any(row["ours"] and not row["ok"] for row in bench.rows)
    failed = any(case.failed and case.backend in ("", "gnnsparse") for case in bench.skipped)
    return 1 if wrong or failed else 0
