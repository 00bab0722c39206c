"""The arrays of a matrix in CSR form as .npy files, written as their elements are found."""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import xxhash

from gnnsparse.data.large.folder import FILES, StoredFile
from gnnsparse.data.large.space import writing
from gnnsparse.data.npz import bytes_of

__all__ = ["CsrWriter", "NpyWriter"]

#: Offsets that are computed at a time.
_OFFSETS = 1 << 20


def npy_header(dtype: Any, count: int) -> bytes:
    """Returns the header of a .npy file of `count` elements; its length does not depend on their number."""
    head = io.BytesIO()
    about = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(head, about)
    return head.getvalue()


class NpyWriter:
    """Writes a one-dimensional .npy file whose length is known at the end.

    Args:
        path: the file, which must not exist.
        dtype: the type of its elements.

    Attributes:
        count: how many elements were written.
    """

    def __init__(self, path: Path, dtype: Any) -> None:
        self._path, self._dtype, self._sum = path, np.dtype(dtype), xxhash.xxh3_128()
        self.count = 0
        with writing(path):
            self._file = open(path, "xb")  # noqa: SIM115, as `close` closes it
            self._file.write(npy_header(dtype, 0))

    def append(self, values: np.ndarray[Any, Any]) -> None:
        """Writes elements, which are converted to the file's type."""
        content = bytes_of(np.ascontiguousarray(values, self._dtype))
        self._sum.update(content)
        with writing(self._path):
            self._file.write(content)
        self.count += len(values)

    def finish(self) -> StoredFile:
        """Completes the file, and waits until it is on the disk; returns its size and checksum."""
        with writing(self._path):
            self._file.seek(0)
            self._file.write(npy_header(self._dtype, self.count))
            self._file.flush()
            os.fsync(self._file.fileno())
        return StoredFile(os.fstat(self._file.fileno()).st_size, self._sum.hexdigest())

    def close(self) -> None:
        """Closes the file, complete or not."""
        with writing(self._path):
            self._file.close()


class CsrWriter:
    """Writes the offsets and columns of a matrix from its nonzeros in the order of rows and columns.

    Args:
        folder: where `indptr.npy` and `indices.npy` are made.
        rows, cols: the shape of the matrix.
    """

    def __init__(self, folder: Path, rows: int, cols: int) -> None:
        self._rows, self._cols, self._row = rows, cols, 0
        self._indptr = NpyWriter(folder / FILES[0], np.int64)
        self._indices = NpyWriter(folder / FILES[1], np.int32)
        self._indptr.append(np.zeros(1))

    def __enter__(self) -> CsrWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (self._indptr, self._indices):
            try:
                file.close()
            except OSError:
                if error is None:  # else what is buffered may not fit, which was said already
                    raise

    @property
    def nnz(self) -> int:
        """How many nonzeros were written."""
        return self._indices.count

    def append(self, keys: np.ndarray[Any, Any]) -> None:
        """Writes nonzeros.

        Args:
            keys: row * columns + column, ascending and above those that were written before.
        """
        if not len(keys):
            return
        rows = keys // self._cols
        self._end_rows(rows, int(rows[-1]))
        self._indices.append(keys - rows * self._cols)

    def _end_rows(self, rows: np.ndarray[Any, Any], last: int) -> None:
        """Writes where rows below `last` end, `rows` being those of the nonzeros that are written next."""
        while self._row < last:
            end = min(self._row + _OFFSETS, last)
            inside = np.searchsorted(rows, np.arange(self._row, end), "right")
            self._indptr.append(self.nnz + inside)
            self._row = end

    def finish(self) -> dict[str, StoredFile]:
        """Completes both files; returns the size and the checksum of each by its name."""
        self._end_rows(np.empty(0, np.int64), self._rows)
        return dict(zip(FILES, (self._indptr.finish(), self._indices.finish()), strict=True))
