"""The command `gnnsparse bench kernels`."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from gnnsparse.bench.kernels import Bench, Settings
from gnnsparse.bench.report import add_ratios, as_json, print_report
from gnnsparse.bench.resume import go_on
from gnnsparse.runtime.environment import write_json

__all__ = ["run_kernels"]

#: Characters of a line if the output is no terminal; in a narrower table numbers would be cut.
_WIDTH = 160


def run_kernels(
    settings: Settings, out: Path | None = None, plot: Path | None = None, *, resume: bool = False
) -> int:
    """Measures, prints the report, and writes it to files.

    Args:
        settings: what to measure.
        out: the JSON file to write; None: none.
        plot: the figure to write; None: none.
        resume: whether matrices that the file `out` has are left out, and its measurements kept.

    Returns:
        The exit status: 1 if a kernel of this package is wrong or failed, or a matrix could not be read.

    Raises:
        ValueError: `resume`, and the file `out` can't be gone on with.
    """
    console = Console()
    console = console if console.is_terminal else Console(width=max(_WIDTH, console.width))
    progress = Console(stderr=True)
    bench = Bench(settings, lambda line: progress.print(line, markup=False, highlight=False, soft_wrap=True))
    done = go_on(bench, out) if resume and out is not None else set()
    for spec in settings.matrices:
        if spec.name in done:
            continue
        bench.run_matrix(spec)
        add_ratios(bench.rows, settings.device)
        if out is not None:  # after each matrix, because a run of hours may be killed
            write_json(out, as_json(bench))
    add_ratios(bench.rows, settings.device)
    print_report(bench, console)
    if plot is not None:
        from gnnsparse.bench.plot import plot_ratios

        plot_ratios(bench.rows, plot)
    wrong = any(row["ours"] and not row["ok"] for row in bench.rows)
    failed = any(case.failed and (case.ours or not case.name) for case in bench.skipped)
    return 1 if wrong or failed else 0
