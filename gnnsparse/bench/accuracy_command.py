"""The command `gnnsparse bench accuracy`: what each precision does to results, measured against float64."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable, Iterator

from rich.console import Console
from rich.table import Table
from rich.text import Text

from gnnsparse.bench.accuracy import (
    OPERATIONS,
    RANGES,
    ROUNDING,
    accumulation_rows,
    operation_rows,
    overflow_rows,
    scaling_rows,
)
from gnnsparse.bench.arguments import Several, add_device, add_outputs, seed_option
from gnnsparse.bench.figures import accuracy_panels, form_of, plot
from gnnsparse.bench.session import Row, new_table, progress
from gnnsparse.precision import ROUNDED_PRECISIONS
from gnnsparse.runtime.environment import describe_environment, write_json
from gnnsparse.runtime.profiler import wide_console

__all__ = ["DESCRIPTION", "PARTS", "add_arguments", "check_options", "problems", "run"]


#: What the file says of the options.
_SETTINGS = ("parts", "ops", "ranges", "precisions", "device", "seed")


# The options of `gnnsparse bench accuracy`.

DESCRIPTION = """\
Measures what each precision does to results: errors of operations against float64, sums in float32 beside
sums in float16 (emulated), gradients with and without scaling of the loss, and overflow (docs/numerics.md).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gnnsparse bench accuracy`."""
    precisions = tuple(p.value for p in ROUNDED_PRECISIONS)
    several: dict[str, tuple[str, tuple[str, ...], str]] = {
        "--part": ("parts", tuple(PARTS), "what to measure"),
        "--op": ("ops", tuple(OPERATIONS), "operations of the part operations"),
        "--range": ("ranges", tuple(RANGES), "operands of the part operations"),
        "--precision": ("precisions", precisions, "of all parts but accumulation, which is of fp16"),
    }
    for name, (dest, accepted, text) in several.items():
        parser.add_argument(
            name, dest=dest, nargs="+", action=Several, choices=accepted, default=accepted, metavar="NAME",
            help=f"{text}: {', '.join(accepted)}; default: all",
        )  # fmt: skip
    add_device(parser)
    parser.add_argument(
        "--seed", type=seed_option, default=0, metavar="N", help="of all operands; default: 0"
    )
    add_outputs(parser, "errors")


def check_options(options: argparse.Namespace) -> None:
    """Call `options.fail` if parsed options do not go together."""
    if "operations" not in options.parts:
        for name, given, everything in (("op", options.ops, OPERATIONS), ("range", options.ranges, RANGES)):
            if given != tuple(everything):
                options.fail(f"argument --{name}: goes with --part operations")
    if options.parts == ("scaling",) and not {"fp16", "bf16"} & set(options.precisions):
        options.fail("argument --precision: scaling is of fp16 and bf16; accepted: one of them")


# The report of `gnnsparse bench accuracy`.

_SCALINGS = {"unscaled": "unscaled", "scaled": "times 2^16", "dynamic": "by GradScaler"}


def _error(value: float | None) -> str:
    return "inf" if value is None else f"{value:.1e}"


def _percent(value: float) -> str:
    percent = 100 * value
    return f"{percent:.3g} %" if percent >= 0.01 else "< 0.01 %"


def _pivot(
    title: str, heads: Iterable[str], rows: Iterable[Row], down: Callable[[Row], tuple[str, ...]],
    across: Callable[[Row], str], cell: Callable[[Row], Text], caption: str | None = None,
) -> Table:  # fmt: skip
    """Return a table with a line for each value of `down`, and a column for each value of `across`."""
    found: dict[tuple[str, ...], dict[str, Text]] = {}
    for row in rows:
        found.setdefault(down(row), {})[across(row)] = cell(row)
    columns = list(dict.fromkeys(name for cells in found.values() for name in cells))
    table = new_table(title, heads, columns, title_justify="left", caption=caption, caption_justify="left")
    for names, cells in found.items():
        table.add_row(*names, *(cells.get(name, "") for name in columns))
    return table


def _operation_tables(rows: list[Row]) -> Iterable[Table]:
    caption = "relative error (Frobenius norm), and in brackets that which 90 % of the elements do not exceed"
    for op in dict.fromkeys(row["op"] for row in rows):
        yield _pivot(
            f"{op}: error against float64", ["precision"], (row for row in rows if row["op"] == op),
            lambda row: (form_of(row),), lambda row: row["range"], _operation_cell, caption,
        )  # fmt: skip


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
    names = {
        "kernel": "float32, measured", "half_blocks": "float16 in blocks of 16, emulated",
        "half": "float16, emulated",
    }  # fmt: skip
    yield _pivot(
        "Sums of products of float16 operands, by accumulator: relative error", ["terms", "count"],
        ({**row, "accumulator": key} for row in rows for key in names),
        lambda row: (row["series"], str(row["terms"])), lambda row: names[row["accumulator"]],
        lambda row: Text(_error(row[row["accumulator"]]), style="" if row["ok"] else "red"),
    )  # fmt: skip


def _scaling_tables(rows: list[Row]) -> Iterable[Table]:
    def cell(row: Row) -> Text:
        lost = f", {_percent(row['lost'])} lost" if row["lost"] else ""
        scale = f" at 2^{math.log2(row['scale']):g}" if row["way"] == "dynamic" else ""
        return Text(f"{_error(row['error'])}{lost}{scale}" + ("" if row["ok"] else " WRONG"))

    if rows:
        yield _pivot(
            "Gradients of a product, by their size and the scaling of the loss", ["size"], rows,
            lambda row: (f"2^{row['magnitude']}",), lambda row: f"{row['precision']} {_SCALINGS[row['way']]}",
            cell, "relative error, and the part of the elements that became 0",
        )  # fmt: skip


def _overflow_tables(rows: list[Row]) -> Iterable[Table]:
    def cell(row: Row) -> Text:
        text = f"{row['infinite']} of {row['elements']} inf" if row["infinite"] else f"{row['result']:g}"
        return Text(text + ("" if row["ok"] else " WRONG"))

    yield _pivot(
        "Overflow of results", ["precision", "reduce"], rows, lambda row: (form_of(row), row["reduce"]),
        lambda row: f"degree {row['degree']}", cell,
        "the result of equal terms of 8; float16 ends at 65504",
    )  # fmt: skip


#: What measures each part, and what makes its tables, by the key of its rows in the file.
PARTS: dict[
    str, tuple[Callable[[argparse.Namespace], Iterator[Row]], Callable[[list[Row]], Iterable[Table]]]
] = {
    "operations": (
        lambda s: operation_rows(s.ops, s.ranges, s.precisions, s.seed, s.device), _operation_tables
    ),
    "accumulation": (lambda s: accumulation_rows(s.device, s.seed), _accumulation_tables),
    "scaling": (lambda s: scaling_rows(s.device, s.seed, s.precisions), _scaling_tables),
    "overflow": (lambda s: overflow_rows(s.device, s.precisions), _overflow_tables),
}  # fmt: skip
#: What names a result in a line about it.
_PLACE = (
    "op", "range", "series", "terms", "precision", "output", "reduce", "degree", "magnitude", "way",
)  # fmt: skip


def problems(content: Row) -> list[str]:
    """Return a line for each result that is less exact than its precision promises, or failed."""
    return [
        f"WRONG: {part}: {', '.join(str(row[name]) for name in _PLACE if name in row)}: "
        f"{row.get('problem') or 'less exact than its precision'}"
        for part in PARTS
        for row in content.get(part, ())
        if not row["ok"]
    ]


def print_report(content: Row, console: Console) -> None:
    """Print the tables of all measured parts, and what is wrong."""
    for part, (_, make) in PARTS.items():
        if part in content:
            for table in make(content[part]):
                console.print(table)
    for line in problems(content):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def run(options: argparse.Namespace) -> int:
    """Run the command; the status is 1 if a result is less exact than its precision promises, or failed."""
    check_options(options)
    say, settings = progress(), {name: getattr(options, name) for name in _SETTINGS}
    content = {**describe_environment(options.device), "settings": settings, "rounding": ROUNDING}
    for part in options.parts:
        say(f"measuring {part}")
        content[part] = list(PARTS[part][0](options))
    if options.out is not None:
        write_json(options.out, content)
    print_report(content, wide_console(160))
    if options.plot is not None:
        plot(accuracy_panels(content), options.plot)
    return 1 if problems(content) else 0
