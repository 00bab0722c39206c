"""Cells of tables as text: numbers with four digits, bytes with a unit, nested values as JSON."""

from __future__ import annotations

import json
import math
from typing import Any

__all__ = ["as_cells", "column_name", "is_number", "shown_cell", "shown_number"]

#: Characters of a cell that holds other values; what is longer is cut, and says how long it was.
_LONG = 160


def is_number(value: Any) -> bool:
    """Returns whether a value is a finite number, and no truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def shown_number(value: float) -> str:
    """Returns a number with four significant digits; integers with all of theirs."""
    if isinstance(value, int):
        return f"{value:,}"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{value:,.{max(0, 3 - math.floor(math.log10(abs(value))))}f}"


def shown_cell(column: str, value: Any) -> str:
    """Returns a cell as text.

    Args:
        column: the key of the column; `..._bytes` are shown in MiB or GiB.
        value: the cell.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        if column.endswith("bytes") and value >= 2**20:
            return f"{value / 2**30:.2f} GiB" if value >= 2**30 else f"{value / 2**20:.1f} MiB"
        return shown_number(value)
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and all(map(is_number, value)):
        text = ", ".join(map(shown_number, value))
    else:
        text = json.dumps(value, ensure_ascii=False)
    if len(text) <= _LONG:
        return text
    count = f"{len(value)} values: " if isinstance(value, list) else ""
    return f"{count}{text[:_LONG]}..."


def column_name(key: str) -> str:
    """Returns the heading of a column: `forward_ms` is "forward, ms"."""
    for ending, unit in (
        ("_ms", "ms"),
        ("_milliseconds", "ms"),
        ("_seconds", "s"),
        ("_gb", "GB"),
        ("_us", "us"),
    ):
        if key.endswith(ending):
            return f"{key.removesuffix(ending).replace('_', ' ')}, {unit}"
    return key.removesuffix("_bytes").replace("_", " ")


def as_cells(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], tuple[tuple[Any, ...], ...]]:
    """Returns the header and the rows of a table with every key of every row, nested ones too."""
    flat = [_flat(row) for row in rows]
    header = tuple(dict.fromkeys(key for row in flat for key in row))
    return header, tuple(tuple(row.get(key) for key in header) for row in flat)


def _flat(row: dict[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in row.items():
        name = f"{before}{key}"
        if isinstance(value, dict) and value and len(value) <= 12:
            found |= _flat(value, f"{name}.")
        else:
            found[name] = value
    return found
