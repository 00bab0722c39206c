"""Arrays and tables of numbers from npy, npz and text files that others wrote.

The headers are checked before memory is allocated: types, shapes and sizes must fit the bytes of the file.
Pickled objects are never loaded.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
import warnings
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any, BinaryIO, NoReturn

import numpy as np

from gnnsparse.errors import bad_value, check_memory
from gnnsparse.runtime.safe_io import check_inflated, open_regular, open_text, reading

#: Bytes that are read at a time.
_CHUNK = 2**24
_FORMS = {
    "b": "bools", "i": "integers", "u": "unsigned integers", "f": "real numbers", "S": "bytes", "U": "text",
}  # fmt: skip

Shape = tuple[int | None, ...]


class Arrays:
    """The arrays of an npz archive, `names`, of which each is checked and read when it is asked for."""

    def __init__(self, archive: zipfile.ZipFile, size: int) -> None:
        self._archive = archive
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            name, nbytes = member.filename.removesuffix(".npy"), member.compress_size
            if name in self._members:
                bad_value(name, "is in the archive twice; accepted: one array of a name")
            if nbytes > size:
                bad_value(name, f"promises {nbytes} bytes of a file of {size}; accepted: a whole file")
            self._members[name] = member
        self.names = frozenset(self._members)

    def read(self, name: str, kinds: str, shape: Shape | None = None) -> np.ndarray:
        """Read an array, in the byte order of this machine, contiguous and writable; bytes become texts.

        `kinds` are those of numpy's types that are accepted, as in "iu"; None in `shape` stands for any size.
        """
        member = self._members.get(name)
        if member is None:
            bad_value(name, f"is missing; the archive has {', '.join(sorted(self.names)[:8]) or 'nothing'}")
        if member.flag_bits & 1 or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            bad_value(name, "is encrypted, or compressed by another method; accepted: stored or deflated")
        check_inflated(name, member.file_size, member.compress_size)
        with self._archive.open(member) as file:
            return _read_array(name, file, kinds, shape)


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[Arrays]:
    """Open an npz archive. Errors inside the `with` block name the file."""
    with open_regular(path) as file, reading(path):
        if file.read(6) == np.lib.format.MAGIC_PREFIX:
            raise ValueError("is a single array, not an npz archive")
        file.seek(0)
        with zipfile.ZipFile(file) as archive:
            yield Arrays(archive, os.fstat(file.fileno()).st_size)


def read_npy(path: Path, kinds: str, shape: Shape | None) -> np.ndarray:
    """Read the array of an npy file; `Arrays.read` documents the arguments and errors."""
    with open_regular(path) as file, reading(path):
        check_memory("array", os.fstat(file.fileno()).st_size, "an array")
        return _read_array("array", file, kinds, shape)


def bytes_of(array: np.ndarray) -> memoryview:
    """Return the bytes of a contiguous array, which are not copied."""
    view: Any = array.reshape(-1).view(np.uint8)
    return memoryview(view)


def map_npy(path: Path, dtypes: tuple[Any, ...], shape: Shape) -> np.ndarray:
    """Map the array of an npy file into memory for reading, of which nothing is read but the header.

    A file that is cut short while it is mapped ends the process at the next access to what is missing; one
    that is replaced by another of its name stays mapped. `dtypes` are in this machine's byte order.
    """
    open_regular(path).close()
    with reading(path):
        try:
            array = np.lib.format.open_memmap(path, mode="r")
        except OSError:
            raise
        except Exception as error:  # a type or a shape may be written as any text, and errors are many
            _refuse("array", error)
        if array.dtype not in [np.dtype(accepted) for accepted in dtypes]:
            names = " or ".join(np.dtype(accepted).name for accepted in dtypes)
            bad_value("array", f"is of type {array.dtype}; accepted: {names}")
        _check_shape("array", array, shape)
        return array.view(np.ndarray)


def _refuse(name: str, error: Exception) -> NoReturn:
    bad_value(name, f"is no whole array of the npy format ({type(error).__name__}: {str(error)[:200]})")


def _check_shape(name: str, array: np.ndarray, wanted: Shape) -> None:
    if array.ndim != len(wanted) or any(w not in (None, s) for w, s in zip(wanted, array.shape, strict=True)):
        sizes = ", ".join("any" if size is None else str(size) for size in wanted)
        bad_value(name, f"has shape {str(array.shape)[:80]}; accepted: ({sizes})")


def _read_array(name: str, file: IO[bytes], kinds: str, wanted: Shape | None) -> np.ndarray:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of headers that Python 2 wrote, and of aliases of types
            array = np.lib.format.read_array(file, allow_pickle=False)
        rest = file.read(1)  # behind the end an archive checks the checksum
    except Exception as error:  # a type or a shape may be written as any text, and errors are of many types
        _refuse(name, error)
    if rest:
        bad_value(name, "has bytes after its last element; accepted: none")
    if array.dtype.kind not in kinds or array.dtype.itemsize == 0:
        accepted = " or ".join(_FORMS[kind] for kind in kinds)
        bad_value(name, f"is of type {array.dtype}; accepted: {accepted}")
    if wanted is not None:
        _check_shape(name, array, wanted)
    if array.dtype.kind == "S":
        return np.char.decode(array, "utf-8")
    array = np.require(array, array.dtype.newbyteorder("="), ("C", "W"))
    # Other bytes than 0 and 1 are no bools for native code.
    return array.view(np.uint8) != 0 if array.dtype.kind == "b" else array


#: Bytes of the longest line of a table, and of a row of `read_lines` beside comments.
_LINE, _ROW = 2**20, 256


def bounded_line(file: BinaryIO, limit: int = _LINE) -> bytes:
    """Read a line of at most `limit` bytes, which is empty at the end of the file."""
    line = file.readline(limit + 1)
    if len(line) > limit:
        raise ValueError(f"has a line of more than {limit} bytes; accepted: at most as many")
    return line


def read_text(path: Path, factor: int) -> bytes:
    """Return the bytes of a text, decompressed, if memory has room for `factor` times as many."""
    content = bytearray()
    with open_text(path) as (file, _):
        while chunk := file.read(_CHUNK):
            content += chunk
            check_memory("text", factor * len(content), f"a text of {len(content)} bytes or more")
    return bytes(content)


def read_lines(file: BinaryIO, rows: int) -> io.BytesIO:
    """Read the rest of a file, if it has no more bytes than a table of `rows` rows and comments can have."""
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
    """Parse lines of numbers to [rows, columns], or [rows] of a structured type; `%` begins a comment.

    `columns` are those that are read, so that others may hold anything. With `exact` False there may be fewer
    rows. Numbers are separated by white space if `delimiter` is None.
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
    """Read a table [rows, columns] of comma-separated numbers without a head; `exact` as in `parse_rows`."""
    with open_text(path) as (file, size), reading(path):
        first = bounded_line(file)
        width = first.count(b",") + 1
        if columns is not None and first and width != columns:
            raise ValueError(f"has {width} columns; accepted: {columns}")
        if exact and rows * 2 * width > size + 1:  # a digit and what follows it
            raise ValueError(f"has at most {size} bytes; accepted: {rows} rows of {width} columns")
        nbytes = rows * width * np.dtype(dtype).itemsize
        check_memory("rows", nbytes, f"a table of {rows} rows and {width} columns")
        lines = itertools.chain([first], iter(lambda: bounded_line(file), b"")) if first else ()
        table = parse_rows("table", lines, dtype, rows, ",", exact=exact)
        return table.reshape(len(table), width)
