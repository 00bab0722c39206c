"""The Matrix Market format: a text of the elements of a sparse or dense matrix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from gnnsparse.data.tables import bounded_line, parse_rows, read_lines
from gnnsparse.errors import check_memory
from gnnsparse.runtime.safe_io import open_text, reading

__all__ = ["Coordinates", "read_mtx"]

_LAYOUTS = ("coordinate", "array")
#: The types of elements, with numpy's type of each; a pattern has none.
_FIELDS = {"real": "f8", "double": "f8", "integer": "i8", "unsigned-integer": "u8", "pattern": None}
#: For each kind of storage the sign of the elements on the other side of the diagonal; None: both are stored.
_SIGNS = {"general": None, "symmetric": 1, "skew-symmetric": -1, "hermitian": 1}
_MAX_SIZE = 2**31 - 1


@dataclass(frozen=True)
class Coordinates:
    """The elements of a matrix in any order, in which repeated ones are not yet summed.

    Attributes:
        shape: number of rows and of columns.
        row, col: int32 [elements], in range.
        values: float64 or integers [elements]; None: the matrix is a pattern.
    """

    shape: tuple[int, int]
    row: np.ndarray
    col: np.ndarray
    values: np.ndarray | None


@dataclass(frozen=True)
class _Head:
    layout: str
    field: str
    storage: str
    rows: int
    cols: int
    lines: int


def read_mtx(path: Path) -> Coordinates:
    """Reads a Matrix Market file, `.mtx` or `.mtx.gz`.

    Coordinates and arrays of real numbers and integers, and patterns, are read; of general, symmetric and
    skew-symmetric matrices, and Hermitian ones of real numbers, which are symmetric.

    Returns:
        All elements: those of symmetric storage on both sides of the diagonal. The zeros of an array are left
        out, and those of coordinates are kept.

    Raises:
        ValueError: the file is damaged, an element is out of range, or its numbers are complex.
        MemoryError: the matrix does not fit into memory.
        OSError: the file can't be read.
    """
    with open_text(path) as (file, size), reading(path):
        head = _read_head(file, size)
        lines = read_lines(file, head.lines)
        return _coordinates(head, lines) if head.layout == "coordinate" else _array(head, lines)


def _read_head(file: BinaryIO, size: int) -> _Head:
    """Reads the banner, the comments and the line of sizes, which must fit the bytes that there can be."""
    banner = bounded_line(file).decode("latin1").split()
    accepted = "%%MatrixMarket matrix coordinate|array real|integer|pattern general|symmetric|skew-symmetric"
    if len(banner) != 5 or banner[0].lower() not in ("%%matrixmarket", "%matrixmarket"):
        raise ValueError(f"banner: got {' '.join(banner)[:80]!r}; accepted: {accepted}")
    what, layout, field, storage = (word.lower() for word in banner[1:])
    if field == "complex":
        raise ValueError("banner: the file holds complex numbers; accepted: real, integer or pattern")
    known = what == "matrix" and layout in _LAYOUTS and field in _FIELDS and storage in _SIGNS
    if not known or (field == "pattern" and (layout == "array" or storage == "skew-symmetric")):
        raise ValueError(f"banner: got {' '.join(banner)[:80]!r}; accepted: {accepted}")
    line = bounded_line(file)
    while line and (line.startswith(b"%") or not line.strip()):
        line = bounded_line(file)
    count = 3 if layout == "coordinate" else 2
    sizes = [
        int(word) if word.isdecimal() and len(word) < 20 else -1 for word in line.decode("latin1").split()
    ]
    if len(sizes) != count or min(sizes) < 0 or max(sizes[:2]) > _MAX_SIZE:
        names = "rows, columns and elements" if count == 3 else "rows and columns"
        raise ValueError(
            f"sizes: got {line.strip()[:80].decode('latin1')!r}; accepted: {names}, the first two below 2^31"
        )
    rows, cols = sizes[:2]
    if storage != "general" and rows != cols:
        raise ValueError(
            f"sizes: got {rows} rows and {cols} columns of a {storage} matrix; accepted: a square one"
        )
    lines = sizes[2] if layout == "coordinate" else _stored(rows, cols, storage)
    shortest = (2 if layout == "array" else 4) * lines - 1  # "1 1" or "1", and the end of the line
    if shortest > size:
        raise ValueError(
            f"sizes: promise {lines} lines in at most {size} bytes; accepted: what they can hold"
        )
    check_memory("sizes", 32 * lines, f"a matrix of {rows} rows, {cols} columns and {lines} elements")
    return _Head(layout, field, storage, rows, cols, lines)


def _stored(rows: int, cols: int, storage: str) -> int:
    """Returns the number of elements that an array stores: of symmetric ones those from the diagonal down."""
    if storage == "general":
        return rows * cols
    return rows * (rows - 1) // 2 if storage == "skew-symmetric" else rows * (rows + 1) // 2


def _coordinates(head: _Head, lines: Iterable[bytes]) -> Coordinates:
    number = _FIELDS[head.field]
    dtype = [("row", "i8"), ("col", "i8"), *([("value", number)] if number else [])]
    columns = None if number else (0, 1)  # some published patterns have weights, which are left out
    table = parse_rows("elements", lines, dtype, head.lines, columns=columns)
    row = _indices("row", table["row"], head.rows)
    col = _indices("column", table["col"], head.cols)
    values = np.ascontiguousarray(table["value"]) if number else None
    sign = _SIGNS[head.storage]
    if sign is None:
        return Coordinates((head.rows, head.cols), row, col, values)
    beside = row != col
    if sign < 0 and values is not None and values[~beside].any():
        raise ValueError("elements: one on the diagonal is not 0; accepted: 0 in a skew-symmetric matrix")
    row, col = np.concatenate([row, col[beside]]), np.concatenate([col, row[beside]])
    if values is not None:
        values = np.concatenate([values, _mirrored(values[beside], sign)])
    return Coordinates((head.rows, head.cols), row, col, values)


def _mirrored(values: np.ndarray, sign: int) -> np.ndarray:
    return values if sign > 0 else -values.astype(np.float64)


def _indices(name: str, given: np.ndarray, limit: int) -> np.ndarray:
    """Returns indices from 0 on of those from 1 on, int32."""
    wrong = (given < 1) | (given > limit)
    if wrong.any():
        at = int(wrong.argmax())
        raise ValueError(f"elements: the {name} of element {at} is {given[at]}; accepted: 1 to {limit}")
    return (given - 1).astype(np.int32)


def _array(head: _Head, lines: Iterable[bytes]) -> Coordinates:
    flat = parse_rows("elements", lines, [("value", _FIELDS[head.field])], head.lines)["value"]
    sign = _SIGNS[head.storage]
    if sign is None:
        col, row = np.divmod(flat.nonzero()[0], max(head.rows, 1))
        values = flat[flat != 0]
        return Coordinates((head.rows, head.cols), row.astype(np.int32), col.astype(np.int32), values)
    # Columns one after another from the diagonal down, which are the rows of an upper triangle.
    col, row = np.triu_indices(head.rows, 1 if sign < 0 else 0)
    kept = flat.nonzero()[0]
    row, col, values = row[kept].astype(np.int32), col[kept].astype(np.int32), flat[kept]
    beside = row != col
    return Coordinates(
        (head.rows, head.cols),
        np.concatenate([row, col[beside]]),
        np.concatenate([col, row[beside]]),
        np.concatenate([values, _mirrored(values[beside], sign)]),
    )
