"""Readers of matrix files: what they read, and how they refuse what they can't."""

from __future__ import annotations

import gzip
import io
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnsparse import SparseGraph
from gnnsparse.data import load_matrix

MATRIX = sp.csr_array(np.array([[0, 2.5, 0, -1], [0, 0, 0, 0], [4, 0, 1, 0]], dtype=np.float64))


def same(graph: SparseGraph, matrix: sp.csr_array) -> bool:
    return graph.num_rows == matrix.shape[0] and (graph.to_scipy() != matrix.astype(np.float32)).nnz == 0


def write(path: Path, text: str) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "indptr", "indices", "values"),
    [
        ("pattern general\n% note\n3 4 4\n1 2\n3 1\n3 1\n1 4\n", [0, 2, 2, 3], [1, 3, 0], None),
        # SuiteSparse has patterns with weights, such as Ragusa16.
        ("pattern general\n2 2 2\n1 1 2.5\n2 1 7\n", [0, 1, 2], [0, 0], None),
        # Stored zeros are elements.
        ("integer symmetric\n3 3 3\n1 1 7\n2 1 5\n3 2 0\n", [0, 2, 4, 5], [0, 1, 0, 2, 1], [7, 5, 5, 0, 0]),
    ],
)
def test_matrix_market(
    text: str, indptr: list[int], indices: list[int], values: list[float] | None, tmp_path: Path
) -> None:
    graph = load_matrix(write(tmp_path / "m.mtx", f"%%MatrixMarket matrix coordinate {text}"))
    assert graph.csr.indptr.tolist() == indptr
    assert graph.csr.indices.tolist() == indices
    assert (None if graph.values is None else graph.values.tolist()) == values


@pytest.mark.parametrize("ending", [".smtx", ".smtx.gz"])
@pytest.mark.parametrize("separator", [", ", ",", " "])
@settings(max_examples=10)
@given(rows=st.integers(0, 6), cols=st.integers(1, 6), ends=st.integers(0, 2), data=st.data())
def test_smtx(
    tmp_path: Path, ending: str, separator: str, rows: int, cols: int, ends: int, data: st.DataObject
) -> None:
    """Without elements the last line is empty, or is left out."""
    pattern = [sorted(data.draw(st.sets(st.integers(0, cols - 1)))) for _ in range(rows)]
    offsets = np.cumsum([0, *map(len, pattern)]).tolist()
    columns = [column for row in pattern for column in row]
    head = separator.join(map(str, (rows, cols, len(columns))))
    text = "\n".join([head, " ".join(map(str, offsets)), " ".join(map(str, columns))])
    graph = load_matrix(write(tmp_path / f"m{ending}", text.rstrip() + ends * "\n"))
    assert (graph.num_rows, graph.num_cols, graph.values) == (rows, cols, None)
    assert graph.csr.indptr.tolist() == offsets
    assert graph.csr.indices.tolist() == columns


@pytest.mark.parametrize("kind", [sp.csr_array, sp.csc_array, sp.coo_array, sp.bsr_array, sp.dia_array])
def test_npz_of_scipy(tmp_path: Path, kind: type) -> None:
    sp.save_npz(tmp_path / "m.npz", kind(MATRIX))
    graph = load_matrix(tmp_path / "m.npz")
    assert graph.num_cols == 4
    assert same(graph, MATRIX)
    sp.save_npz(tmp_path / "ones.npz", kind(MATRIX != 0))
    assert load_matrix(tmp_path / "ones.npz").values is None


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint16])
def test_npz_of_csr_arrays(tmp_path: Path, dtype: type) -> None:
    arrays = {"indptr": np.array([0, 2, 2, 3], dtype), "indices": np.array([1, 2, 0], dtype)}
    np.savez(tmp_path / "m.npz", **arrays, num_nodes=np.int64(3), labels=np.zeros(3))
    np.savez(tmp_path / "n.npz", **arrays)
    for name in ("m", "n"):
        graph = load_matrix(tmp_path / f"{name}.npz")
        assert (graph.num_rows, graph.num_cols, graph.values) == (3, 3, None)
        assert graph.csr.indices.tolist() == [1, 2, 0]


def test_npz_of_gnn_benchmark(tmp_path: Path) -> None:
    arrays = {f"adj_{name}": getattr(MATRIX, name) for name in ("data", "indices", "indptr", "shape")}
    np.savez(tmp_path / "m.npz", **arrays)
    assert same(load_matrix(tmp_path / "m.npz"), MATRIX)
    np.savez(tmp_path / "n.npz", **{**arrays, "adj_data": np.ones(4, np.float32)})
    assert load_matrix(tmp_path / "n.npz").values is None


SMTX = "3, 4, 3\n0 2 2 3\n1 3 0\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("3, 4\n0 0 0 0\n\n", "line 1: got '3, 4'; accepted: rows, cols, nnz"),
        ("-1, 4, 0\n0\n\n", "line 1: got"),
        ("3, 4, é\n", "line 1: got"),
        ("3, 4, 3\n0 2 3\n1 3 0\n", "indptr: has 3 offsets; accepted: rows . 1 = 4"),
        ("3, 4, 3\n0 3 2 3\n1 3 0\n", "indptr: decreases"),
        ("3, 4, 3\n0 2 2 2\n1 3 0\n", "indptr: "),
        ("3, 4, 3\n0 2 2 3\n1 3\n", "line 3: has 2 columns; accepted: nnz = 3"),
        ("3, 4, 3\n0 2 2 3\n1 4 0\n", "indices: element 1 is 4"),
        ("3, 4, 3\n0 2 2 3\n1.5 3 0\n", "line: has something else than numbers"),
        (f"{SMTX}7 7\n", "has more than three lines"),
        (f"{10**12}, 4, 3\n0 2\n1\n", "line 1: "),
        (f"3, 4, {10**12}\n0 2 2 3\n1 3 0\n", "line 1: promises 4 offsets and 1000000000000 columns"),
    ],
)
def test_malformed_smtx_files_are_named(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=rf"m\.smtx: {problem}"):
        load_matrix(write(tmp_path / "m.smtx", text))


INDPTR, INDICES = np.array([0, 1, 2]), np.array([1, 0])


def csr(prefix: str = "", **more: Any) -> dict[str, Any]:
    """Arrays of a matrix of two rows, of which None leaves one out."""
    arrays = {"indptr": INDPTR, "indices": INDICES, **more}
    return {prefix + name: array for name, array in arrays.items() if array is not None}


def of_scipy(form: bytes = b"csc", **more: Any) -> dict[str, Any]:
    return csr(**{"format": form, "shape": np.array([2, 2]), "data": np.array([1.0, 2]), **more})


BAD_ARCHIVES = {
    "unknown names": ({"rows": INDPTR}, "rows"),
    "nothing": ({}, "nothing"),
    "floats": (csr(indices=INDICES * 1.0), "indices: is of type float64"),
    "two dimensions": (csr(indices=INDICES[None]), r"indices: has shape \(1, 2\)"),
    "another size": (csr(num_nodes=np.int64(5)), r"indptr: has 3 offsets; accepted: rows \+ 1 = 6"),
    "a negative size": (csr(num_nodes=np.int64(-5)), "num_nodes: is -5; accepted: 0 to"),
    "column": (csr(indices=INDICES + 7), "element 0 is 8"),
    "pickle": (csr(indptr=np.array([0, 1, None])), "indptr: .*Object arrays can"),
    "no format": ({"format": np.array(b"xyz"), "shape": np.array([2, 2])}, "xyz"),
    "values": (csr("adj_", shape=[2, 2], data=np.ones(5)), "5 values for 2 columns"),
    "complex scipy": (csr(format=b"csr", shape=[2, 2], data=np.ones(2, "c8")), "complex64"),
    "complex": (csr("adj_", shape=[2, 2], data=np.ones(2) * 1j), "complex128"),
    "shape": (csr("adj_", shape=[2], data=np.ones(2)), "adj_shape: has shape"),
    "csc: row": (of_scipy(indices=[0, 10**6]), "csc: indices must be < 2"),
    "csc: negative row": (of_scipy(indices=[0, -1]), "csc: indices must be >= 0"),
    "csc: descends": (of_scipy(indptr=[0, 10**6, 2]), "csc: indptr must be a non-decreasing"),
    "csc: few offsets": (of_scipy(indptr=[0, 2]), "csc: index pointer size 2 should be 3"),
    "csc: many columns": (of_scipy(shape=[2, 10**12]), "shape: is"),
    "csc: negative rows": (of_scipy(shape=[-2, 2]), "shape: is"),
    "coo: no rows": (of_scipy(b"coo"), "row: is missing"),
    "coo: row": (of_scipy(b"coo", row=[0, 2], col=[0, 1]), "coo: axis 0 index 2 exceeds"),
    "bsr: blocks": (of_scipy(b"bsr", data=np.ones((2, 2, 0))), "bsr: "),
    "bsr: column": (
        of_scipy(b"bsr", data=np.ones((1, 2, 2)), indices=[7], indptr=[0, 1]),
        "bsr: column index values",
    ),
    "dia: twice": (
        of_scipy(b"dia", data=np.ones((2, 2)), offsets=[1, 1]),
        "dia: offset array contains duplicate",
    ),
}


@pytest.mark.parametrize("case", BAD_ARCHIVES)
def test_bad_archives_are_named(tmp_path: Path, case: str) -> None:
    arrays, problem = BAD_ARCHIVES[case]
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ValueError, match=rf"bad\.npz: .*{problem}"):
        load_matrix(tmp_path / "bad.npz")


def bytes_of(save: Callable[..., None], matrix: Any) -> bytes:
    save(stream := io.BytesIO(), matrix)
    return stream.getvalue()


NPZ = bytes_of(sp.save_npz, sp.random_array((50, 50), density=0.5, rng=np.random.default_rng(0)).tocsr())


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("m.npz", b"not an archive", "is damaged"),
        ("m.npz", b"", "is damaged"),
        ("m.npz", bytes_of(np.save, INDPTR), "is a single array"),
        ("m.npz", NPZ[:-20], ""),
        ("m.smtx.gz", SMTX.encode(), ""),
        ("m.smtx.gz", gzip.compress(100 * SMTX.encode())[:-20], ""),
        ("m.mtx.gz", gzip.compress(100 * SMTX.encode())[:-20], ""),
    ],
    ids=range(7),
)
def test_what_is_no_whole_archive_is_refused(name: str, content: bytes, problem: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(f"{name}: {problem}")):
        load_matrix(tmp_path / name)


@pytest.mark.parametrize("name", ["m.txt", "m", "m.npz.gz", "mtx"])
def test_other_endings_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(ValueError, match=r"path: got .*accepted: .*\.mtx"):
        load_matrix(tmp_path / name)
    with pytest.raises(TypeError, match="path: got BytesIO"):
        load_matrix(io.BytesIO())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["m.mtx", "m.smtx.gz", "m.npz"])
def test_missing_files_and_pipes_are_not_waited_for(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match=name):
        load_matrix(tmp_path / name)
    os.mkfifo(tmp_path / name)
    with pytest.raises(ValueError, match="is a pipe, a device or a socket; accepted: a regular file"):
        load_matrix(tmp_path / name)
