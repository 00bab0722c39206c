"""Readers of sparse matrices: Matrix Market, DLMC's smtx, and npz archives of CSR arrays.

Sizes, types and ranges are checked before SciPy or native code sees an array: SciPy's own reader of Matrix
Market (1.17) ends the process at a file that was cut short.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from gnnsparse.data.array_files import Arrays, bounded_line, open_npz, parse_rows, read_lines
from gnnsparse.errors import bad_value, check_memory, path_of
from gnnsparse.runtime.safe_io import open_text, reading
from gnnsparse.sparse.graph import SparseGraph

_LAYOUTS = ("coordinate", "array")
#: The types of elements, with numpy's type of each; a pattern has none.
_FIELDS = {"real": "f8", "double": "f8", "integer": "i8", "unsigned-integer": "u8", "pattern": None}
#: For each kind of storage the sign of the elements on the other side of the diagonal; None: both are stored.
_SIGNS = {"general": None, "symmetric": 1, "skew-symmetric": -1, "hermitian": 1}
_MAX_SIZE = 2**31 - 1


@dataclass(frozen=True)
class Coordinates:
    """The elements of a matrix in any order, repeats included: row and col int32 [elements], in range."""

    shape: tuple[int, int]
    row: np.ndarray
    col: np.ndarray
    values: np.ndarray | None  # float64 or integers; None: the matrix is a pattern


def read_mtx(path: Path) -> Coordinates:
    """Read a Matrix Market file, `.mtx` or `.mtx.gz`; zeros of an array are left out, others are kept."""
    with open_text(path) as (file, size), reading(path):
        layout, field, storage, shape, count = _read_head(file, size)
        number, lines, sign = _FIELDS[field], read_lines(file, count), _SIGNS[storage]
        dtype = [("value", number)] if number else []
        if layout == "coordinate":
            columns = None if number else (0, 1)  # some published patterns have weights, which are left out
            dtype = [("row", "i8"), ("col", "i8"), *dtype]
            table = parse_rows("elements", lines, dtype, count, columns=columns)
            row = _indices("row", table["row"], shape[0])
            col = _indices("column", table["col"], shape[1])
            values = np.ascontiguousarray(table["value"]) if number else None
        else:
            flat = parse_rows("elements", lines, dtype, count)["value"]
            at = flat.nonzero()[0]
            # With a sign, columns one after another from the diagonal down: the rows of an upper triangle.
            ends = np.triu_indices(shape[0], int(storage == "skew-symmetric")) if sign else None
            col, row = np.divmod(at, max(shape[0], 1)) if ends is None else (ends[0][at], ends[1][at])
            row, col, values = row.astype(np.int32), col.astype(np.int32), flat[at]
        if sign is not None:
            beside = row != col
            if sign < 0 and values is not None and values[~beside].any():
                problem = "one on the diagonal is not 0; accepted: 0 in a skew-symmetric matrix"
                raise ValueError(f"elements: {problem}")
            row, col = np.concatenate([row, col[beside]]), np.concatenate([col, row[beside]])
            if values is not None:
                mirrored = values[beside] if sign > 0 else -values[beside].astype(np.float64)
                values = np.concatenate([values, mirrored])
        return Coordinates(shape, row, col, values)


def _read_head(file: BinaryIO, size: int) -> tuple[str, str, str, tuple[int, int], int]:
    """Read the banner, the comments and the line of sizes, which must fit the bytes that there can be."""
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
    names = "rows, columns and elements" if layout == "coordinate" else "rows and columns"
    rows, cols, *more = _sizes("sizes", line, 3 if layout == "coordinate" else 2, names)
    if storage != "general" and rows != cols:
        got = f"got {rows} rows and {cols} columns of a {storage} matrix"
        raise ValueError(f"sizes: {got}; accepted: a square one")
    # An array has all elements, or if it is symmetric those from the diagonal down.
    triangle = rows * (rows - 1 if storage == "skew-symmetric" else rows + 1) // 2
    lines = more[0] if more else rows * cols if storage == "general" else triangle
    shortest = (2 if layout == "array" else 4) * lines - 1  # "1 1" or "1", and the end of the line
    if shortest > size:
        problem = f"promise {lines} lines in at most {size} bytes"
        raise ValueError(f"sizes: {problem}; accepted: what they can hold")
    check_memory("sizes", 32 * lines, f"a matrix of {rows} rows, {cols} columns and {lines} elements")
    return layout, field, storage, (rows, cols), lines


def _sizes(name: str, line: bytes, count: int, names: str) -> list[int]:
    """Return the numbers in a line, of which the first two are below 2^31."""
    words = line.decode("latin1").replace(",", " ").split()
    sizes = [int(word) if word.isdecimal() and len(word) < 20 else -1 for word in words]
    if len(sizes) != count or min(sizes) < 0 or max(sizes[:2]) > _MAX_SIZE:
        got = line.strip()[:80].decode("latin1")
        raise ValueError(f"{name}: got {got!r}; accepted: {names}, the first two below 2^31")
    return sizes


def _indices(name: str, given: np.ndarray, limit: int) -> np.ndarray:
    wrong = (given < 1) | (given > limit)
    if wrong.any():
        at = int(wrong.argmax())
        raise ValueError(f"elements: the {name} of element {at} is {given[at]}; accepted: 1 to {limit}")
    return (given - 1).astype(np.int32)


#: Characters of a number below 2^63, with the space after it.
_DIGITS = 20


def load_matrix(path: str | os.PathLike[str]) -> SparseGraph:
    """Read a sparse matrix from a file.

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
    path = path_of("path", path, "the path of a file")
    ending = path.name[path.name.rfind(".", 0, -3) :] if path.name.endswith(".gz") else path.suffix
    read = _READERS.get(ending)
    if read is None:
        bad_value("path", f"got {str(path)!r}; accepted: a file {', '.join(_READERS)}")
    return read(path)


def csr_of_arrays(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray | None, shape: tuple[int, int]
) -> SparseGraph:
    """Make a graph of CSR arrays, with values None if all are 1. The graph's own checks are the checks."""
    offsets, columns, (rows, cols) = _integers("indptr", indptr), _integers("indices", indices), shape
    if indptr.size != rows + 1:
        bad_value("indptr", f"has {indptr.size} offsets; accepted: rows + 1 = {rows + 1}")
    if data is None:
        return SparseGraph(SparseGraph.from_csr(offsets, columns, None, cols).csr)
    if data.shape != columns.shape:
        bad_value("data", f"has {data.size} values for {columns.size} columns; accepted: as many")
    with np.errstate(over="ignore"):  # too large values become infinite, and from_csr refuses those
        graph = SparseGraph.from_csr(offsets, columns, data.astype(np.float32), cols)
    has_weights = graph.values is not None and bool(graph.values.ne(1).any())
    return SparseGraph(graph.csr, graph.values if has_weights else None)


def dense(name: str, matrix: SparseGraph) -> np.ndarray:
    """Return features that a file has as a sparse matrix, if there is memory for them."""
    rows, cols = matrix.num_rows, matrix.num_cols
    check_memory(name, 4 * rows * cols, f"a dense matrix of {rows} nodes and {cols} features")
    return matrix.to_scipy().toarray()


def _integers(name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint64 and array.size and array.max() > np.iinfo(np.int64).max:
        bad_value(name, f"holds {array.max()}; accepted: integers below 2^63")
    return array if array.dtype in (np.int32, np.int64) else array.astype(np.int64)


def _shape(arrays: Arrays, name: str) -> tuple[int, int]:
    rows, cols = arrays.read(name, "iu", (2,)).tolist()
    if not (0 <= rows <= _MAX_SIZE and 0 <= cols <= _MAX_SIZE):
        bad_value(name, f"is ({rows}, {cols}); accepted: sizes from 0 to 2^31 - 1")
    return rows, cols


def _from_coordinates(found: Coordinates) -> SparseGraph:
    """Make a graph of elements in range, of which repeated ones are summed in float64."""
    import scipy.sparse

    rows, count, values = found.shape[0], found.row.size, found.values
    check_memory("rows", 24 * rows + 16 * count, f"a matrix of {rows} rows and {count} elements")
    data = np.ones(count, np.float32) if values is None else values.astype(np.float64)
    matrix = scipy.sparse.coo_array((data, (found.row, found.col)), shape=found.shape).tocsr()
    return csr_of_arrays(matrix.indptr, matrix.indices, None if values is None else matrix.data, found.shape)


def _read_mtx(path: Path) -> SparseGraph:
    found = read_mtx(path)
    with reading(path):
        return _from_coordinates(found)


def _read_smtx(path: Path) -> SparseGraph:
    with open_text(path) as (file, size), reading(path):
        rows, cols, nnz = _sizes("line 1", bounded_line(file), 3, "rows, cols, nnz")
        if 2 * (rows + nnz) > size:  # a digit and a space
            raise ValueError(f"line 1: promises {rows + 1} offsets and {nnz} columns in at most {size} bytes")
        check_memory("line 1", 16 * (rows + nnz), f"a matrix of {rows} rows and {nnz} elements")
        offsets = _line_of_integers(bounded_line(file, _DIGITS * (rows + 2) + 80))
        columns = _line_of_integers(bounded_line(file, _DIGITS * (nnz + 1) + 80))
        if columns.size != nnz:
            raise ValueError(f"line 3: has {columns.size} columns; accepted: nnz = {nnz}")
        while rest := bounded_line(file):
            if rest.strip():
                raise ValueError("has more than three lines; accepted: three")
        return csr_of_arrays(offsets, columns, None, (rows, cols))


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
            nodes = max(indptr.size - 1, 0)
            if "num_nodes" in arrays.names:
                nodes = int(arrays.read("num_nodes", "iu", ()))
            if not 0 <= nodes <= _MAX_SIZE:
                bad_value("num_nodes", f"is {nodes}; accepted: 0 to 2^31 - 1")
            return csr_of_arrays(indptr, arrays.read("indices", "iu", (None,)), None, (nodes, nodes))
        raise ValueError(
            f"holds {', '.join(sorted(arrays.names)[:8]) or 'nothing'}; accepted: what "
            "scipy.sparse.save_npz writes, indptr and indices, or adj_indptr, adj_indices and adj_shape"
        )


def csr_of_archive(arrays: Arrays, prefix: str) -> SparseGraph:
    """Make a matrix of the arrays indptr, indices, shape and data, if there is one, with a prefix."""
    shape = _shape(arrays, prefix + "shape")
    indptr = arrays.read(prefix + "indptr", "iu", (None,))
    indices = arrays.read(prefix + "indices", "iu", (None,))
    has_data = prefix + "data" in arrays.names
    data = arrays.read(prefix + "data", "biuf", (None,)) if has_data else None
    return csr_of_arrays(indptr, indices, data, shape)


def _from_scipy(arrays: Arrays) -> SparseGraph:
    """Make a matrix of what scipy.sparse.save_npz writes, by SciPy, whose own checks are the checks."""
    import scipy.sparse

    form: str = arrays.read("format", "SU", ()).item()
    if form == "csr":
        return csr_of_archive(arrays, "")
    if form not in _INDEX_ARRAYS:
        bad_value("format", f"is {form[:40]!r}; accepted: csr, {', '.join(_INDEX_ARRAYS)}")
    shape = _shape(arrays, "shape")
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
    return _from_coordinates(Coordinates(shape, found.row, found.col, found.data))


#: The arrays of indices of each form beside CSR.
_INDEX_ARRAYS = {
    "csc": ("indices", "indptr"), "bsr": ("indices", "indptr"), "coo": ("row", "col"), "dia": ("offsets",),
}  # fmt: skip


_READERS = {
    ".mtx": _read_mtx, ".mtx.gz": _read_mtx, ".smtx": _read_smtx, ".smtx.gz": _read_smtx, ".npz": _read_npz,
}  # fmt: skip
