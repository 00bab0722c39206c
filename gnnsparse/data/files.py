"""Readers of sparse matrices: Matrix Market, DLMC's smtx, and npz archives of CSR arrays."""

from __future__ import annotations

import gzip
import os
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from gnnsparse.errors import bad_type, bad_value
from gnnsparse.graph import SparseGraph

__all__ = ["load_matrix"]

#: Exceptions that reading a damaged file raises, in addition to ValueError.
_DAMAGED = (EOFError, KeyError, TypeError, OverflowError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile)


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
        ValueError: the name has another ending; or the file is malformed, or holds complex numbers, numbers
            that are not finite as float32, or pickled objects.
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
    with open(path, "rb"):
        pass  # a missing file raises OSError here; later errors mean that the content is malformed
    try:
        return read(path)
    except (ValueError, *_DAMAGED) as error:
        text = f"{type(error).__name__}: {error}" if isinstance(error, _DAMAGED) else str(error)
        raise ValueError(f"{path}: {text}") from error


def _refuse(problem: str) -> NoReturn:
    raise ValueError(problem)


def _from_csr(indptr: Any, indices: Any, data: Any, cols: int) -> SparseGraph:
    """Makes a graph of CSR arrays, with values None if all are 1."""
    offsets, columns = _integers("indptr", indptr), _integers("indices", indices)
    if data is None:
        return SparseGraph(SparseGraph.from_csr(offsets, columns, None, cols).csr)
    values = np.asarray(data)
    if values.dtype.kind not in "biuf":
        _refuse(f"its values are of type {values.dtype}; accepted: real numbers")
    if values.shape != columns.shape:
        _refuse(f"it has {values.size} values for {columns.size} columns")
    with np.errstate(over="ignore"):  # too large values become infinite, and from_csr refuses those
        graph = SparseGraph.from_csr(offsets, columns, values.astype(np.float32), cols)
    has_weights = graph.values is not None and bool(graph.values.ne(1).any())
    return SparseGraph(graph.csr, graph.values if has_weights else None)


def _integers(name: str, array: Any) -> np.ndarray:
    array = np.asarray(array)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        _refuse(f"{name} is of type {array.dtype}, with {array.ndim} dimensions; accepted: integers, 1")
    return array if array.dtype in (np.int32, np.int64) else array.astype(np.int64)


def _read_mtx(path: Path) -> SparseGraph:
    import scipy.io
    import scipy.sparse

    field = scipy.io.mminfo(path)[4]
    if field == "complex":
        _refuse("it holds complex numbers; accepted: real, integer or pattern")
    matrix = scipy.sparse.coo_array(scipy.io.mmread(path, spmatrix=False)).tocsr()
    if field == "pattern":
        matrix.data[:] = 1  # reading has summed the ones of repeated elements
    return _from_csr(matrix.indptr, matrix.indices, matrix.data, matrix.shape[1])


def _read_smtx(path: Path) -> SparseGraph:
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="ascii") as file:
        lines = [file.readline() for _ in range(3)]
        if file.read().strip():
            _refuse("it has more than three lines")
    head = [int(part) for part in lines[0].replace(",", " ").split()]
    if len(head) != 3 or min(head) < 0:
        _refuse(f"line 1 is {lines[0].strip()[:80]!r}; accepted: rows, cols, nnz")
    rows, cols, nnz = head
    offsets, columns = (np.array(line.split(), dtype=np.int64) for line in lines[1:])
    if offsets.size != rows + 1:
        _refuse(f"line 2 has {offsets.size} offsets; accepted: rows + 1 = {rows + 1}")
    if columns.size != nnz:
        _refuse(f"line 3 has {columns.size} columns; accepted: nnz = {nnz}")
    return _from_csr(offsets, columns, None, cols)


def _read_npz(path: Path) -> SparseGraph:
    with open(path, "rb") as file:  # numpy leaks the file handle if it opens a damaged archive by its path
        archive = np.load(file, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            _refuse("it is a single array, not an npz archive")
        with archive:
            return _from_archive(path, archive)


def _from_archive(path: Path, archive: Any) -> SparseGraph:
    names = set(archive.files)
    if {"format", "shape"} <= names:
        return _read_scipy_npz(path)
    if {"adj_indptr", "adj_indices", "adj_shape"} <= names:
        rows, cols = (int(size) for size in archive["adj_shape"])
        data = archive["adj_data"] if "adj_data" in names else None
        return _checked_rows(_from_csr(archive["adj_indptr"], archive["adj_indices"], data, cols), rows)
    if {"indptr", "indices"} <= names:
        indptr = archive["indptr"]
        nodes = int(archive["num_nodes"]) if "num_nodes" in names else indptr.size - 1
        return _checked_rows(_from_csr(indptr, archive["indices"], None, max(nodes, 0)), nodes)
    _refuse(
        f"it holds {', '.join(sorted(names)[:8]) or 'nothing'}; accepted: what scipy.sparse.save_npz writes, "
        "indptr and indices, or adj_indptr, adj_indices, adj_data and adj_shape"
    )


def _read_scipy_npz(path: Path) -> SparseGraph:
    import scipy.sparse

    matrix = scipy.sparse.load_npz(path)
    if matrix.ndim != 2:
        _refuse(f"its array has {matrix.ndim} dimensions; accepted: 2")
    matrix = matrix.tocsr()
    return _from_csr(matrix.indptr, matrix.indices, matrix.data, matrix.shape[1])


def _checked_rows(graph: SparseGraph, rows: int) -> SparseGraph:
    if graph.num_rows != rows:
        _refuse(f"indptr has {graph.num_rows + 1} offsets; accepted: rows + 1 = {rows + 1}")
    return graph


_READERS = {".mtx": _read_mtx, ".smtx": _read_smtx, ".npz": _read_npz}
