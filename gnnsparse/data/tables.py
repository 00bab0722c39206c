"""Tables of numbers in text files, of which the number of rows is known before they are read."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from gnnsparse.errors import bad_value, check_memory
from gnnsparse.runtime.safe_io import open_text, reading

__all__ = ["bounded_line", "parse_rows", "read_csv", "read_lines"]

_CHUNK = 2**24
#: Bytes of the longest line of a table, and of a row of `read_lines` beside comments.
_LINE, _ROW = 2**20, 256


def bounded_line(file: BinaryIO, limit: int = _LINE) -> bytes:
    """Reads a line, which is empty at the end of the file.

    Raises:
        ValueError: the line has more than `limit` bytes.
    """
    line = file.readline(limit + 1)
    if len(line) > limit:
        raise ValueError(f"has a line of more than {limit} bytes; accepted: at most as many")
    return line


def read_lines(file: BinaryIO, rows: int) -> io.BytesIO:
    """Reads the rest of a file, of which a table of `rows` rows and comments can have so many bytes.

    Raises:
        ValueError: there are more bytes than that.
    """
    limit, found = _ROW * rows + _LINE, bytearray()
    while chunk := file.read(_CHUNK):
        found += chunk
        if len(found) > limit:
            raise ValueError(f"has more than {limit} bytes for {rows} rows; accepted: at most as many")
    return io.BytesIO(found)


def parse_rows(
    name: str,
    lines: Iterable[bytes],
    dtype: Any,
    rows: int,
    delimiter: str | None = None,
    columns: tuple[int, ...] | None = None,
    exact: bool = True,
) -> np.ndarray:
    """Parses lines of numbers; lines without any, and what follows `%`, are left out.

    Args:
        name: the name of the table in errors.
        lines: the lines.
        dtype: a numpy type for all columns, or a structured one.
        rows: the number of rows.
        delimiter: what separates numbers; None: white space.
        columns: the columns to read, so that others may hold anything; None: all.
        exact: whether there must be so many rows; else there may be fewer.

    Returns:
        [rows, columns], or [rows] of a structured type.

    Raises:
        ValueError: there are more or fewer rows, rows have different numbers of columns, or something is no
            number, or no integer that fits where integers are asked for.
    """
    dtype = np.dtype(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # releases of numpy warn of what later ones refuse
        try:
            table = np.loadtxt(
                lines, dtype, comments="%", delimiter=delimiter, encoding="latin1",
                usecols=columns, ndmin=1 if dtype.names else 2, max_rows=rows + 1,
            )  # fmt: skip
        except UserWarning:  # there are no lines
            table = np.empty(0 if dtype.names else (0, 1), dtype)
        except DeprecationWarning as error:
            bad_value(name, str(error))
        except ValueError as error:
            bad_value(name, f"has something else than numbers: {str(error).partition(';')[0][:200]}")
    if len(table) > rows or (exact and len(table) < rows):
        least = "" if exact else "at most "
        bad_value(name, f"has {'more' if len(table) > rows else len(table)} rows; accepted: {least}{rows}")
    return table


def read_csv(path: Path, dtype: Any, rows: int, columns: int | None = None, exact: bool = True) -> np.ndarray:
    """Reads a table of comma-separated numbers without a head, `.csv.gz`.

    Args:
        path: the file.
        dtype: a numpy type.
        rows: the number of rows.
        columns: the number of columns; None: any.
        exact: whether there must be so many rows; else there may be fewer.

    Returns:
        [rows, columns].

    Raises:
        ValueError: the file is damaged, or has another number of rows or columns.
        MemoryError: the table does not fit into memory.
        OSError: the file can't be read.
    """
    with open_text(path) as (file, size), reading(path):
        first = bounded_line(file)
        width = first.count(b",") + 1
        if columns is not None and first and width != columns:
            raise ValueError(f"has {width} columns; accepted: {columns}")
        if exact and rows * 2 * width > size + 1:  # a digit and what follows it
            raise ValueError(f"has at most {size} bytes; accepted: {rows} rows of {width} columns")
        check_memory(
            "rows", rows * width * np.dtype(dtype).itemsize, f"a table of {rows} rows and {width} columns"
        )
        table = parse_rows("table", _lines(first, file), dtype, rows, ",", exact=exact)
        return table.reshape(len(table), width)


def _lines(first: bytes, file: BinaryIO) -> Iterator[bytes]:
    while first:
        yield first
        first = bounded_line(file)
