"""The command `gnnsparse bench accuracy`: what each precision does to results, measured against float64."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gnnsparse.bench.accuracy_effects import accumulation_rows, overflow_rows, scaling_rows
from gnnsparse.bench.accuracy_operations import OPERATIONS, RANGES, ROUNDING, operation_rows
from gnnsparse.bench.arguments import device_option, file_option, plot_option, seed_option
from gnnsparse.bench.figures import form_of, plot_accuracy
from gnnsparse.bench.session import new_table
from gnnsparse.precision import ROUNDED_PRECISIONS
from gnnsparse.runtime.environment import DEVICES, describe_environment, write_json
from gnnsparse.runtime.profiler import wide_console

__all__ = [
    "DESCRIPTION", "PARTS", "AccuracySettings", "add_arguments", "measure_parts", "print_report",
    "problems", "run", "run_accuracy", "settings_of",
]  # fmt: skip

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
    """Measure, and return the content of the JSON file.

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
    """Measure, print the report, and write it to files.

    Args:
        settings: what to measure.
        out: the JSON file to write; None: none.
        plot: the figure to write; None: none.

    Returns:
        The exit status: 1 if a result is less exact than its precision promises, or a kernel failed.
    """
    progress = Console(stderr=True)
    content = measure_parts(settings, lambda line: progress.print(line, markup=False, highlight=False))
    if out is not None:
        write_json(out, content)
    print_report(content, wide_console(160))
    if plot is not None:
        plot_accuracy(content, plot)
    return 1 if problems(content) else 0


# The options of `gnnsparse bench accuracy`.

DESCRIPTION = """\
Measures what each precision does to results: errors of operations against float64, sums in float32 beside
sums in float16 (emulated), gradients with and without scaling of the loss, and overflow (docs/numerics.md).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gnnsparse bench accuracy`."""
    choices = {
        "--part": (tuple(PARTS), "what to measure"),
        "--op": (tuple(OPERATIONS), "operations of the part operations"),
        "--range": (tuple(RANGES), "operands of the part operations"),
        "--precision": (
            tuple(p.value for p in ROUNDED_PRECISIONS),
            "of all parts but accumulation, which is of fp16",
        ),
    }
    for name, (accepted, text) in choices.items():
        about = f"{text}: {', '.join(accepted)}; default: all"
        parser.add_argument(name, nargs="+", choices=accepted, default=accepted, metavar="NAME", help=about)
    parser.add_argument(
        "--device", type=device_option, default="auto", metavar="NAME",
        help=f"{', '.join(DEVICES)}; default: auto",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=seed_option, default=0, metavar="N", help="of all operands; default: 0"
    )
    parser.add_argument("--out", type=file_option, metavar="FILE.json", help="write all measurements")
    parser.add_argument(
        "--plot", type=plot_option, metavar="FILE.png", help="draw the errors (needs matplotlib)"
    )


def settings_of(options: argparse.Namespace) -> AccuracySettings:
    """Make the settings of parsed options; `options.fail` is called if they do not go together."""
    parts, precisions = tuple(dict.fromkeys(options.part)), tuple(dict.fromkeys(options.precision))
    if "operations" not in parts:
        for name, everything in (("op", OPERATIONS), ("range", RANGES)):
            if tuple(getattr(options, name)) != tuple(everything):
                options.fail(f"argument --{name}: goes with --part operations")
    if parts == ("scaling",) and not {"fp16", "bf16"} & set(precisions):
        options.fail("argument --precision: scaling is of fp16 and bf16; accepted: one of them")
    return AccuracySettings(
        parts=parts,
        ops=tuple(dict.fromkeys(options.op)),
        ranges=tuple(dict.fromkeys(options.range)),
        precisions=precisions,
        device=options.device,
        seed=options.seed,
    )


# The report of `gnnsparse bench accuracy`.

_WAYS = {"unscaled": "unscaled", "scaled": "times 2^16", "dynamic": "by GradScaler"}


def _error(value: float | None) -> str:
    return "inf" if value is None else f"{value:.1e}"


def _percent(value: float) -> str:
    percent = 100 * value
    return f"{percent:.3g} %" if percent >= 0.01 else "< 0.01 %"


def _left_table(
    title: str, texts: Iterable[str], numbers: Iterable[str], caption: str | None = None
) -> Table:
    return new_table(title, texts, numbers, title_justify="left", caption=caption, caption_justify="left")


def _by(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], Row]:
    return {tuple(row[key] for key in keys): row for row in rows}


def _operation_tables(rows: list[Row]) -> Iterable[Table]:
    ranges = list(dict.fromkeys(row["range"] for row in rows))
    caption = "relative error (Frobenius norm), and in brackets that which 90 % of the elements do not exceed"
    for op in dict.fromkeys(row["op"] for row in rows):
        mine = [row for row in rows if row["op"] == op]
        table = _left_table(f"{op}: error against float64", ["precision"], ranges, caption)
        for form in dict.fromkeys(map(form_of, mine)):
            of = {row["range"]: row for row in mine if form_of(row) == form}
            table.add_row(Text(form), *(_operation_cell(of[name]) for name in ranges))
        yield table


def _operation_cell(row: Row) -> Text:
    if row["error"] is None:
        return Text(
            "FAILED" if row["problem"] else "no finite element", style="red" if row["problem"] else ""
        )
    notes = [f"{_percent(row['lost'])} lost"] if row["lost"] else []
    notes += [f"{row['infinite']} infinite"] if row["infinite"] else []
    text = f"{_error(row['error'])} ({_error(row['elements'])})" + "".join(f", {note}" for note in notes)
    return Text(text) if row["ok"] else Text(f"WRONG {text}", style="red")


def _accumulation_tables(rows: list[Row]) -> Iterable[Table]:
    header = ("float32, measured", "float16 in blocks of 16, emulated", "float16, emulated")
    table = _left_table(
        "Sums of products of float16 operands, by accumulator: relative error", ["terms", "count"], header
    )
    for row in rows:
        cells = (_error(row[name]) for name in ("kernel", "half_blocks", "half"))
        table.add_row(row["series"], str(row["terms"]), *cells, style=None if row["ok"] else "red")
    yield table


def _scaling_tables(rows: list[Row]) -> Iterable[Table]:
    of = _by(rows, "precision", "way", "magnitude")
    ways = list(dict.fromkeys((row["precision"], row["way"]) for row in rows))
    if not ways:
        return
    caption = "relative error, and the part of the elements that became 0"
    header = [f"{precision} {_WAYS[way]}" for precision, way in ways]
    table = _left_table(
        "Gradients of a product, by their size and the scaling of the loss", ["size"], header, caption
    )
    for magnitude in dict.fromkeys(row["magnitude"] for row in rows):
        cells = []
        for precision, way in ways:
            row = of[precision, way, magnitude]
            lost = f", {_percent(row['lost'])} lost" if row["lost"] else ""
            scale = f" at 2^{math.log2(row['scale']):g}" if way == "dynamic" else ""
            cells.append(f"{_error(row['error'])}{lost}{scale}" + ("" if row["ok"] else " WRONG"))
        table.add_row(f"2^{magnitude}", *cells)
    yield table


def _overflow_tables(rows: list[Row]) -> Iterable[Table]:
    of = _by(((row | {"form": form_of(row)}) for row in rows), "form", "reduce", "degree")
    degrees = list(dict.fromkeys(row["degree"] for row in rows))
    header = [f"degree {degree}" for degree in degrees]
    caption = "the result of equal terms of 8; float16 ends at 65504"
    table = _left_table("Overflow of results", ["precision", "reduce"], header, caption)
    for form, reduce in dict.fromkeys((form, reduce) for form, reduce, _ in of):
        cells = []
        for degree in degrees:
            row = of[form, reduce, degree]
            text = f"{row['infinite']} of {row['elements']} inf" if row["infinite"] else f"{row['result']:g}"
            cells.append(text + ("" if row["ok"] else " WRONG"))
        table.add_row(form, reduce, *cells)
    yield table


_TABLES = {
    "operations": _operation_tables,
    "accumulation": _accumulation_tables,
    "scaling": _scaling_tables,
    "overflow": _overflow_tables,
}


def problems(content: dict[str, Any]) -> list[str]:
    """Return a line for each result that is less exact than its precision promises, or failed."""
    lines = []
    for part in _TABLES:
        for row in content.get(part, ()):
            if row["ok"]:
                continue
            names = (
                "op", "range", "series", "terms", "precision", "output", "reduce", "degree", "magnitude",
                "way",
            )  # fmt: skip
            where = ", ".join(str(row[name]) for name in names if name in row)
            lines.append(f"WRONG: {part}: {where}: {row.get('problem') or 'less exact than its precision'}")
    return lines


def print_report(content: dict[str, Any], console: Console) -> None:
    """Print the tables of all measured parts, and what is wrong."""
    for part, make in _TABLES.items():
        if part in content:
            for table in make(content[part]):
                console.print(table)
    for line in problems(content):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def run(options: argparse.Namespace) -> int:
    """Run the command with parsed options, and return its exit status."""
    return run_accuracy(settings_of(options), options.out, options.plot)
