"""The report of `gnnsparse bench accuracy`."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["form_of", "print_report", "problems"]

Row = dict[str, Any]

_WAYS = {"unscaled": "unscaled", "scaled": "times 2^16", "dynamic": "by GradScaler"}


def form_of(row: Row) -> str:
    """Returns the precision of a row, with the dtype of the result where that has 16 bits."""
    return row["precision"] if row["output"] == "float32" else f"{row['precision']}, {row['output']} result"


def _error(value: float | None) -> str:
    return "inf" if value is None else f"{value:.1e}"


def _share(value: float) -> str:
    percent = 100 * value
    return f"{percent:.3g} %" if percent >= 0.01 else "< 0.01 %"


def _table(title: str, texts: Iterable[str], numbers: Iterable[str], caption: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _by(rows: Iterable[Row], *keys: str) -> dict[tuple[Any, ...], Row]:
    return {tuple(row[key] for key in keys): row for row in rows}


def _operations(rows: list[Row]) -> Iterable[Table]:
    ranges = list(dict.fromkeys(row["range"] for row in rows))
    caption = "relative error (Frobenius norm), and in brackets that which 90 % of the elements do not exceed"
    for op in dict.fromkeys(row["op"] for row in rows):
        mine = [row for row in rows if row["op"] == op]
        table = _table(f"{op}: error against float64", ["precision"], ranges, caption)
        for form in dict.fromkeys(map(form_of, mine)):
            of = {row["range"]: row for row in mine if form_of(row) == form}
            table.add_row(Text(form), *(_operation_cell(of[name]) for name in ranges))
        yield table


def _operation_cell(row: Row) -> Text:
    if row["error"] is None:
        return Text(
            "FAILED" if row["problem"] else "no finite element", style="red" if row["problem"] else ""
        )
    notes = [f"{_share(row['lost'])} lost"] if row["lost"] else []
    notes += [f"{row['infinite']} infinite"] if row["infinite"] else []
    text = f"{_error(row['error'])} ({_error(row['elements'])})" + "".join(f", {note}" for note in notes)
    return Text(text) if row["ok"] else Text(f"WRONG {text}", style="red")


def _accumulation(rows: list[Row]) -> Iterable[Table]:
    header = ("float32, measured", "float16 in blocks of 16, emulated", "float16, emulated")
    table = _table(
        "Sums of products of float16 operands, by accumulator: relative error", ["terms", "count"], header
    )
    for row in rows:
        cells = (_error(row[name]) for name in ("kernel", "half_blocks", "half"))
        table.add_row(row["series"], str(row["terms"]), *cells, style=None if row["ok"] else "red")
    yield table


def _scaling(rows: list[Row]) -> Iterable[Table]:
    of = _by(rows, "precision", "way", "magnitude")
    ways = list(dict.fromkeys((row["precision"], row["way"]) for row in rows))
    if not ways:
        return
    caption = "relative error, and the part of the elements that became 0"
    header = [f"{precision} {_WAYS[way]}" for precision, way in ways]
    table = _table(
        "Gradients of a product, by their size and the scaling of the loss", ["size"], header, caption
    )
    for magnitude in dict.fromkeys(row["magnitude"] for row in rows):
        cells = []
        for precision, way in ways:
            row = of[precision, way, magnitude]
            lost = f", {_share(row['lost'])} lost" if row["lost"] else ""
            scale = f" at 2^{math.log2(row['scale']):g}" if way == "dynamic" else ""
            cells.append(f"{_error(row['error'])}{lost}{scale}" + ("" if row["ok"] else " WRONG"))
        table.add_row(f"2^{magnitude}", *cells)
    yield table


def _overflow(rows: list[Row]) -> Iterable[Table]:
    of = _by(((row | {"form": form_of(row)}) for row in rows), "form", "reduce", "degree")
    degrees = list(dict.fromkeys(row["degree"] for row in rows))
    header = [f"degree {degree}" for degree in degrees]
    caption = "the result of equal terms of 8; float16 ends at 65504"
    table = _table("Overflow of results", ["precision", "reduce"], header, caption)
    for form, reduce in dict.fromkeys((form, reduce) for form, reduce, _ in of):
        cells = []
        for degree in degrees:
            row = of[form, reduce, degree]
            text = f"{row['infinite']} of {row['elements']} inf" if row["infinite"] else f"{row['result']:g}"
            cells.append(text + ("" if row["ok"] else " WRONG"))
        table.add_row(form, reduce, *cells)
    yield table


_TABLES = {
    "operations": _operations,
    "accumulation": _accumulation,
    "scaling": _scaling,
    "overflow": _overflow,
}


def problems(content: dict[str, Any]) -> list[str]:
    """Returns a line for each result that is less exact than its precision promises, or failed."""
    lines = []
    for part in _TABLES:
        for row in content.get(part, ()):
            if row["ok"]:
                continue
            names = (
                "op",
                "range",
                "series",
                "terms",
                "precision",
                "output",
                "reduce",
                "degree",
                "magnitude",
                "way",
            )
            where = ", ".join(str(row[name]) for name in names if name in row)
            lines.append(f"WRONG: {part}: {where}: {row.get('problem') or 'less exact than its precision'}")
    return lines


def print_report(content: dict[str, Any], console: Console) -> None:
    """Prints the tables of all measured parts, and what is wrong."""
    for part, make in _TABLES.items():
        if part in content:
            for table in make(content[part]):
                console.print(table)
    for line in problems(content):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
