"""Readers of sparse matrices: Matrix Market, DLMC's smtx, and npz archives of CSR arrays.

Sizes, types and ranges are checked before native code of ours sees an array; SciPy reads Matrix Market.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gnnsparse.data.array_files import Arrays, bounded_line, open_npz, parse_rows, read_text
from gnnsparse.errors import bad_type, bad_value, check_memory
from gnnsparse.runtime.safe_io import open_text, reading
from gnnsparse.sparse.graph import SparseGraph

if TYPE_CHECKING:
    import scipy.sparse

__all__ = ["csr_of_archive", "load_matrix", "read_mtx"]

_MAX_SIZE = 2**31 - 1
#: Bytes of memory for each byte of a Matrix Market text.
_TEXT_FACTOR = 4
#: Characters of a number below 2^63, with the space after it.
_DIGITS = 20


def read_mtx(path: Path) -> tuple[scipy.sparse.coo_array, bool]:
    """Reads a Matrix Market file, `.mtx` or `.mtx.gz`, by SciPy.

    Coordinates and arrays of real numbers and integers, and patterns, are read, in symmetric storage as well.

    Returns:
        All elements, and whether the file has values: those of symmetric storage are on both sides of the
        diagonal, and repeated ones are not yet summed. The zeros of an array are left out.

    Raises:
        ValueError: the file is damaged, an element is out of range, or its numbers are complex.
        MemoryError: the matrix does not fit into memory.
        OSError: the file can't be read.
    """
    import scipy.io
    import scipy.sparse

    with reading(path):
        text = read_text(path, _TEXT_FACTOR)
        try:
            rows, cols, lines, layout, field, symmetry = scipy.io.mminfo(io.BytesIO(text))
        except Exception as error:  # of many types
            raise ValueError(f"banner: {str(error)[:200]}") from error
        if field == "complex":
            raise ValueError("banner: the file holds complex numbers; accepted: real, integer or pattern")
        if not (0 <= rows <= _MAX_SIZE and 0 <= cols <= _MAX_SIZE and lines >= 0):
            raise ValueError(f"sizes: got {rows} rows and {cols} columns; accepted: sizes below 2^31")
        if symmetry != "general" and rows != cols:
            raise ValueError(
                f"sizes: got {rows} rows and {cols} columns of a {symmetry} matrix; accepted: a square one"
            )
        stored = lines // 2 - cols if layout == "array" and symmetry != "general" else lines
        if (2 if layout == "array" else 4) * stored - 1 > len(text):  # "1 1" or "1", and the end of the line
            raise ValueError(f"sizes: promise {lines} elements in {len(text)} bytes; accepted: fewer")
        check_memory("sizes", 32 * lines, f"a matrix of {rows} rows, {cols} columns and {lines} elements")
        try:
            found = scipy.io.mmread(io.BytesIO(text), spmatrix=False)
        except Exception as error:
            raise ValueError(f"elements: {str(error)[:200]}") from error
        if symmetry == "skew-symmetric" and found.diagonal().any():
            raise ValueError("elements: one on the diagonal is not 0; accepted: 0 in a skew-symmetric matrix")
        return scipy.sparse.coo_array(found), field != "pattern"


def load_matrix(path: str | os.PathLike[str]) -> SparseGraph:
    """Reads a sparse matrix from a file.

    The ending of the name decides the format:

    * `.mtx`, `.mtx.gz`: Matrix Market. Symmetric storage is expanded, stored zeros are kept.
    * `.smtx`, `.smtx.gz`: DLMC's text form of a CSR pattern, in three lines: "rows, cols, nnz", the offsets,
      and the columns.
    * `.npz`: an archive written by scipy.sparse.save_npz; or one with `indptr` and `indices`, and optionally
      `num_nodes`, which is then checked; or gnn-benchmark's, with `adj_indptr`, `adj_indices`, `adj_data` and
      `adj_shape`.

    Args:
        path: the file.

    Returns:
        The matrix: int64 offsets [rows + 1], int32 columns [nnz], and float32 values [nnz], or None if the
        file has none or all are 1.

    Raises:
        TypeError: `path` is no path.
        ValueError: the name has another ending; or the file is no regular file, is malformed, holds complex
            numbers, numbers that are not finite as float32, or pickled objects, or promises more than its
            bytes can hold. The message names the file, the array, and what is wrong.
        MemoryError: the matrix needs more memory than this process can get.
        OSError: there is no such file, or it can't be opened.
    """
    if not isinstance(path, (str, os.PathLike)):
        bad_type("path", path, "the path of a file")
    path = Path(path)
    plain = path.name.removesuffix(".gz")
    ending = plain[plain.rfind(".") :] if "." in plain else ""
    read = _READERS.get(ending)
    if read is None or (ending == ".npz" and plain != path.name):
        bad_value("path", f"got {str(path)!r}; accepted: a file .mtx, .mtx.gz, .smtx, .smtx.gz or .npz")
    return read(path)


def _from_csr(indptr: np.ndarray, indices: np.ndarray, data: np.ndarray | None, cols: int) -> SparseGraph:
    """Makes a graph of CSR arrays, with values None if all are 1. The graph's own checks are the checks."""
    offsets, columns = _integers("indptr", indptr), _integers("indices", indices)
    if data is None:
        return SparseGraph(SparseGraph.from_csr(offsets, columns, None, cols).csr)
    if data.shape != columns.shape:
        bad_value("data", f"has {data.size} values for {columns.size} columns; accepted: as many")
    with np.errstate(over="ignore"):  # too large values become infinite, and from_csr refuses those
        graph = SparseGraph.from_csr(offsets, columns, data.astype(np.float32), cols)
    has_weights = graph.values is not None and bool(graph.values.ne(1).any())
    return SparseGraph(graph.csr, graph.values if has_weights else None)


def _integers(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        bad_value(name, f"holds {array.max()}; accepted: integers below 2^63")
    return array if array.dtype in (np.int32, np.int64) else array.astype(np.int64)


def _check_shape(name: str, rows: int, cols: int) -> None:
    if not (0 <= rows <= _MAX_SIZE and 0 <= cols <= _MAX_SIZE):
        bad_value(name, f"is ({rows}, {cols}); accepted: sizes from 0 to 2^31 - 1")


def _from_coordinates(
    shape: tuple[int, int], row: np.ndarray, col: np.ndarray, values: np.ndarray | None
) -> SparseGraph:
    """Makes a graph of elements in range, of which repeated ones are summed in float64."""
    import scipy.sparse

    rows, cols = shape
    check_memory("rows", 24 * rows + 16 * row.size, f"a matrix of {rows} rows and {row.size} elements")
    data = np.ones(row.size, np.float32) if values is None else values.astype(np.float64)
    matrix = scipy.sparse.coo_array((data, (row, col)), shape=shape).tocsr()
    return _from_csr(matrix.indptr, matrix.indices, None if values is None else matrix.data, cols)


def _read_mtx(path: Path) -> SparseGraph:
    found, has_values = read_mtx(path)
    with reading(path):
        return _from_coordinates(found.shape, found.row, found.col, found.data if has_values else None)


def _read_smtx(path: Path) -> SparseGraph:
    with open_text(path) as (file, size), reading(path):
        head = bounded_line(file).decode("latin1")
        words = head.replace(",", " ").split()
        sizes = [int(word) if word.isdecimal() and len(word) < 20 else -1 for word in words]
        if len(sizes) != 3 or min(sizes) < 0 or max(sizes[:2]) > _MAX_SIZE:
            raise ValueError(
                f"line 1: is {head.strip()[:80]!r}; accepted: rows, cols, nnz, the first two below 2^31"
            )
        rows, cols, nnz = sizes
        if 2 * (rows + nnz) > size:  # a digit and a space
            raise ValueError(f"line 1: promises {rows + 1} offsets and {nnz} columns in at most {size} bytes")
        check_memory("line 1", 16 * (rows + nnz), f"a matrix of {rows} rows and {nnz} elements")
        offsets = _line_of_integers(bounded_line(file, _DIGITS * (rows + 2) + 80))
        columns = _line_of_integers(bounded_line(file, _DIGITS * (nnz + 1) + 80))
        if offsets.size != rows + 1:
            raise ValueError(f"line 2: has {offsets.size} offsets; accepted: rows + 1 = {rows + 1}")
        if columns.size != nnz:
            raise ValueError(f"line 3: has {columns.size} columns; accepted: nnz = {nnz}")
        while rest := bounded_line(file):
            if rest.strip():
                raise ValueError("has more than three lines; accepted: three")
        return _from_csr(offsets, columns, None, cols)


def _line_of_integers(line: bytes) -> np.ndarray:
    return parse_rows("line", [line], np.int64, 1)[0] if line.strip() else np.empty(0, np.int64)


def _read_npz(path: Path) -> SparseGraph:
    with open_npz(path) as arrays:
        if {"format", "shape"} <= arrays.names:
            return _from_scipy(arrays)
        if {"adj_indptr", "adj_indices", "adj_shape"} <= arrays.names:
            return csr_of_archive(arrays, "adj_")
        if {"indptr", "indices"} <= arrays.names:
            indptr = arrays.read("indptr", "iu", (None,))
            nodes = arrays.scalar("num_nodes") if "num_nodes" in arrays.names else max(indptr.size - 1, 0)
            _check_shape("num_nodes", nodes, nodes)
            return _checked_rows(_from_csr(indptr, arrays.read("indices", "iu", (None,)), None, nodes), nodes)
        raise ValueError(
            f"holds {', '.join(sorted(arrays.names)[:8]) or 'nothing'}; accepted: what "
            "scipy.sparse.save_npz writes, indptr and indices, or adj_indptr, adj_indices and adj_shape"
        )


def csr_of_archive(arrays: Arrays, prefix: str) -> SparseGraph:
    """Makes a matrix of the arrays indptr, indices and shape, and data if there is one, of an archive.

    Args:
        arrays: the archive.
        prefix: the names of the arrays begin with it.

    Raises:
        ValueError: an array is missing, of another type or shape, or out of range.
    """
    rows, cols = arrays.pair(prefix + "shape")
    _check_shape(prefix + "shape", rows, cols)
    indptr = arrays.read(prefix + "indptr", "iu", (None,))
    indices = arrays.read(prefix + "indices", "iu", (None,))
    has_data = prefix + "data" in arrays.names
    data = arrays.read(prefix + "data", "biuf", (None,)) if has_data else None
    return _checked_rows(_from_csr(indptr, indices, data, cols), rows)


def _from_scipy(arrays: Arrays) -> SparseGraph:
    """Makes a matrix of what scipy.sparse.save_npz writes, by SciPy, whose own checks are the checks."""
    import scipy.sparse

    form: Any = arrays.read("format", "SU", ()).item()
    form = form.decode("latin1") if isinstance(form, bytes) else form
    if form == "csr":
        return csr_of_archive(arrays, "")
    if form not in _INDEX_ARRAYS:
        bad_value("format", f"is {form[:40]!r}; accepted: csr, {', '.join(_INDEX_ARRAYS)}")
    shape = arrays.pair("shape")
    _check_shape("shape", *shape)
    data = arrays.read("data", "biuf").astype(np.float64)
    index = [_integers(name, arrays.read(name, "iu", (None,))) for name in _INDEX_ARRAYS[form]]
    check_memory("data", 24 * data.size, f"a matrix of {data.size} elements")
    parts = (data, tuple(index)) if form == "coo" else (data, *index)
    try:
        matrix = getattr(scipy.sparse, f"{form}_array")(parts, shape=shape)
        if form in ("csc", "bsr"):
            matrix.check_format(full_check=True)
        found = matrix.tocoo()
    except (ValueError, IndexError, ZeroDivisionError) as error:
        bad_value(form, str(error))
    return _from_coordinates(shape, found.row, found.col, found.data)


#: The arrays of indices of each form beside CSR.
_INDEX_ARRAYS = {
    "csc": ("indices", "indptr"), "bsr": ("indices", "indptr"), "coo": ("row", "col"), "dia": ("offsets",),
}  # fmt: skip


def _checked_rows(graph: SparseGraph, rows: int) -> SparseGraph:
    if graph.num_rows != rows:
        bad_value("indptr", f"has {graph.num_rows + 1} offsets; accepted: rows + 1 = {rows + 1}")
    return graph


_READERS = {".mtx": _read_mtx, ".smtx": _read_smtx, ".npz": _read_npz}
