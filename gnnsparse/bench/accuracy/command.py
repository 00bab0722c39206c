"""The command `gnnsparse bench accuracy`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from gnnsparse.bench.accuracy.accumulation import accumulation_rows
from gnnsparse.bench.accuracy.operations import ROUNDING, operation_rows
from gnnsparse.bench.accuracy.overflow import overflow_rows
from gnnsparse.bench.accuracy.scaling import scaling_rows
from gnnsparse.runtime.environment import describe_environment, write_json

__all__ = ["PARTS", "AccuracySettings", "measure_parts", "run_accuracy"]

#: Characters of a line if the output is no terminal; in a narrower table numbers would be cut.
_WIDTH = 160

Row = dict[str, Any]


@dataclass(frozen=True)
class AccuracySettings:
    """What is measured.

    Attributes:
        parts: names in PARTS.
        ops, ranges, precisions: operations, ranges of their operands, and precisions.
        device: "cpu" or "cuda".
        seed: seed of all operands.
    """

    parts: tuple[str, ...]
    ops: tuple[str, ...]
    ranges: tuple[str, ...]
    precisions: tuple[str, ...]
    device: str
    seed: int = 0


def _operations(s: AccuracySettings) -> Iterator[Row]:
    return operation_rows(s.ops, s.ranges, s.precisions, s.seed, s.device)


#: What measures each part, by the key of its rows in the file.
PARTS: dict[str, Callable[[AccuracySettings], Iterator[Row]]] = {
    "operations": _operations,
    "accumulation": lambda s: accumulation_rows(s.device, s.seed),
    "scaling": lambda s: scaling_rows(s.device, s.seed, s.precisions),
    "overflow": lambda s: overflow_rows(s.device, s.precisions),
}


def measure_parts(
    settings: AccuracySettings, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measures, and returns the content of the JSON file.

    Args:
        settings: what to measure.
        say: called with a line before each part.
    """
    content = {**describe_environment(settings.device), "settings": asdict(settings), "rounding": ROUNDING}
    for part in settings.parts:
        say(f"measuring {part}")
        content[part] = list(PARTS[part](settings))
    return content


def run_accuracy(settings: AccuracySettings, out: Path | None = None, plot: Path | None = None) -> int:
    """Measures, prints the report, and writes it to files.

    Args:
        settings: what to measure.
        out: the JSON file to write; None: none.
        plot: the figure to write; None: none.

    Returns:
        The exit status: 1 if a result is less exact than its precision promises, or a kernel failed.
    """
    from gnnsparse.bench.accuracy.report import print_report, problems

    console = Console()
    console = console if console.is_terminal else Console(width=max(_WIDTH, console.width))
    progress = Console(stderr=True)
    content = measure_parts(settings, lambda line: progress.print(line, markup=False, highlight=False))
    if out is not None:
        write_json(out, content)
    print_report(content, console)
    if plot is not None:
        from gnnsparse.bench.accuracy.plot import plot_accuracy

        plot_accuracy(content, plot)
    return 1 if problems(content) else 0
