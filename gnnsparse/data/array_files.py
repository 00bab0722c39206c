"""Arrays and tables of numbers from npy, npz and text files that others wrote.

The headers are checked before memory is allocated: types, shapes and sizes must fit the bytes of the file.
Pickled objects are never loaded.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np

from gnnsparse.errors import bad_value, check_memory
from gnnsparse.runtime.safe_io import check_inflated, open_regular, open_text, reading

__all__ = [
    "Arrays", "bounded_line", "bytes_of", "map_npy", "open_npz", "parse_rows", "read_csv", "read_lines",
    "read_npy",
]  # fmt: skip

#: Bytes that are read at a time.
_CHUNK = 2**24
_FORMS = {
    "b": "bools",
    "i": "integers",
    "u": "unsigned integers",
    "f": "real numbers",
    "S": "bytes",
    "U": "text",
}

Shape = tuple[int | None, ...]


class Arrays:
    """The arrays of an npz archive by name, of which each is read when it is asked for.

    Attributes:
        names: the names of the arrays.
    """

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self._archive = archive
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name in self._members:
                bad_value(name, "is in the archive twice; accepted: one array of a name")
            if member.compress_size > size:
                bad_value(
                    name, f"promises {member.compress_size} bytes of a file of {size}; accepted: a whole file"
                )
            self._members[name] = member
        self.names = frozenset(self._members)

    def read(self, name: str, kinds: str, shape: Shape) -> np.ndarray:
        """Reads an array.

        Args:
            name: its name.
            kinds: the kinds of numpy's types that are accepted, as in "iu".
            shape: its shape, in which None stands for any size.

        Returns:
            The array, in the byte order of this machine, contiguous and writable.

        Raises:
            ValueError: there is no such array, it is damaged, or of another type or shape.
            MemoryError: it does not fit into memory.
        """
        member = self._member(name)
        check_inflated(name, member.file_size, member.compress_size)
        with self._archive.open(member) as file:
            return _read_array(name, file, member.file_size, kinds, shape)

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape that the header of an array promises.

        Raises:
            ValueError: as `read`.
        """
        with self._archive.open(self._member(name)) as file:
            return _header(name, file)[0]

    def _member(self, name: str) -> zipfile.ZipInfo:
        member = self._members.get(name)
        if member is None:
            bad_value(name, f"is missing; the archive has {', '.join(sorted(self.names)[:8]) or 'nothing'}")
        if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            bad_value(name, "is encrypted, or compressed by another method; accepted: stored or deflated")
        if member.compress_type == zipfile.ZIP_STORED and member.file_size != member.compress_size:
            bad_value(name, f"promises {member.file_size} bytes in {member.compress_size}; accepted: as many")
        return member

    def scalar(self, name: str) -> int:
        """Reads an array of one integer.

        Raises:
            ValueError: as `read`.
        """
        return int(self.read(name, "iu", ()))

    def pair(self, name: str) -> tuple[int, int]:
        """Reads an array of two integers, the shape of a matrix.

        Raises:
            ValueError: as `read`.
        """
        rows, cols = self.read(name, "iu", (2,)).tolist()
        return rows, cols


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[Arrays]:
    """Opens an npz archive. Errors inside the `with` block name the file.

    Raises:
        ValueError: it is no archive, or damaged.
        OSError: it can't be opened.
    """
    with open_regular(path) as file, reading(path):
        if file.read(6) == np.lib.format.MAGIC_PREFIX:
            raise ValueError("is a single array, not an npz archive")
        file.seek(0)
        with zipfile.ZipFile(file) as archive:
            yield Arrays(archive, os.fstat(file.fileno()).st_size)


def read_npy(path: Path, kinds: str, shape: Shape) -> np.ndarray:
    """Reads the array of an npy file; `Arrays.read` documents the arguments and errors."""
    with open_regular(path) as file, reading(path):
        return _read_array("array", file, os.fstat(file.fileno()).st_size, kinds, shape)


def bytes_of(array: np.ndarray) -> memoryview:
    """Returns the bytes of a contiguous array, which are not copied."""
    view: Any = array.reshape(-1).view(np.uint8)
    return memoryview(view)


def map_npy(path: Path, dtypes: tuple[Any, ...], shape: Shape) -> np.ndarray:
    """Maps the array of an npy file into memory, of which nothing is read but the header.

    The mapping goes on when the file is replaced by another one of its name. A file that is cut short while
    it is mapped ends the process at the next access to what is missing.

    Args:
        path: the file.
        dtypes: the types that are accepted, in the byte order of this machine.
        shape: its shape, in which None stands for any size.

    Returns:
        The array, which can't be written to.

    Raises:
        ValueError: it is no npy file, damaged, or of another type or shape; the message names the file.
        OSError: it can't be opened.
    """
    with open_regular(path) as file, reading(path):
        found, fortran, dtype, header = _header("array", file)
        names = [np.dtype(accepted).name for accepted in dtypes]
        if dtype not in [np.dtype(accepted) for accepted in dtypes]:
            bad_value("array", f"is of type {dtype}; accepted: {' or '.join(names)}")
        _check_extent("array", found, shape, dtype, os.fstat(file.fileno()).st_size - header)
        if 0 in found:  # there is nothing to map
            return np.empty(found, dtype)
        order: Any = "F" if fortran else "C"
        return np.memmap(file, dtype, "r", header, found, order).view(np.ndarray)


def _check_extent(
    name: str, shape: tuple[int, ...], wanted: Shape, dtype: np.dtype[Any], nbytes: int
) -> None:
    """Raises ValueError if a shape is not the wanted one, or does not take the bytes that are there."""
    if len(shape) != len(wanted) or any(w not in (None, s) for w, s in zip(wanted, shape, strict=True)):
        sizes = ", ".join("any" if size is None else str(size) for size in wanted)
        bad_value(name, f"has shape {str(shape)[:80]}; accepted: ({sizes})")
    if math.prod(shape) * dtype.itemsize != nbytes:
        bad_value(name, f"has {nbytes} bytes; accepted: those of its shape {str(shape)[:80]} of {dtype}")


def _read_array(name: str, file: IO[bytes], size: int, kinds: str, wanted: Shape) -> np.ndarray:
    """Reads an array of `size` bytes with its header."""
    shape, fortran, dtype, header = _header(name, file)
    accepted = " or ".join(_FORMS[kind] for kind in kinds)
    if dtype.kind not in kinds or dtype.itemsize == 0:
        bad_value(name, f"is of type {dtype}; accepted: {accepted}")
    _check_extent(name, shape, wanted, dtype, size - header)
    check_memory(name, size, f"an array of shape {shape}")
    flat = _fill(name, file, np.empty(math.prod(shape), dtype))
    if dtype.kind == "b":
        flat = flat.view(np.uint8) != 0  # other bytes than 0 and 1 are no bools for native code
    if not dtype.isnative:
        flat = flat.astype(dtype.newbyteorder("="))
    if fortran and len(shape) > 1:
        return np.ascontiguousarray(flat.reshape(shape[::-1]).T)
    return flat.reshape(shape)


def _header(name: str, file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Returns shape, whether the order is Fortran's, type, and number of bytes of an array's header."""
    start = file.tell()
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        version = np.lib.format.read_magic(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers that Python 2 wrote, and of aliases of types
            shape, fortran, dtype = readers[version](file)
    except Exception as error:  # a type or a shape may be written as any text, and errors are of many types
        bad_value(
            name, f"is no array of the npy format 1.0 or 2.0 ({type(error).__name__}: {str(error)[:200]})"
        )
    if any(isinstance(size, bool) or size < 0 for size in shape):
        bad_value(name, f"has shape {str(shape)[:80]}; accepted: sizes from 0 on")
    return shape, fortran, dtype, file.tell() - start


def _fill(name: str, file: IO[bytes], array: np.ndarray) -> np.ndarray:
    """Reads an array's bytes into it, to the end of the file, where an archive checks its checksum."""
    target: Any = bytes_of(array)
    at = 0
    while chunk := file.read(min(_CHUNK, len(target) - at) or 1):
        if at + len(chunk) > len(target):
            bad_value(name, "has bytes after its last element; accepted: none")
        target[at : at + len(chunk)] = chunk
        at += len(chunk)
    if at < len(target):
        bad_value(name, f"ends after {at} of its {len(target)} bytes")
    return array


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
