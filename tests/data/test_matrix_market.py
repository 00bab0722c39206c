"""Matrix Market files of every form are read as SciPy reads them; others are refused before it sees them."""

from __future__ import annotations

import gzip
import itertools
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st

from gnnsparse.data import load_matrix
from gnnsparse.testing import random_graph

FORMS = [
    (layout, field, storage)
    for layout, field, storage in itertools.product(
        ("coordinate", "array"),
        ("real", "double", "integer", "unsigned-integer", "pattern"),
        ("general", "symmetric", "skew-symmetric", "hermitian"),
    )
    if not (field == "pattern" and (layout == "array" or storage == "skew-symmetric"))
    and not (field == "unsigned-integer" and storage == "skew-symmetric")
]


def text_of(layout: str, field: str, storage: str, dense: np.ndarray) -> str:
    """A file of the lower triangle of `dense`, or of all of it."""
    first = {"general": -max(dense.shape), "symmetric": 0, "hermitian": 0, "skew-symmetric": 1}[storage]
    places = [(i, j) for j in range(dense.shape[1]) for i in range(max(j + first, 0), dense.shape[0])]
    if layout == "coordinate":
        places = [place for place in places if dense[place]]
        values = ["" if field == "pattern" else str(dense[place]) for place in places]
        lines = [f"{i + 1} {j + 1} {value}" for (i, j), value in zip(places, values, strict=True)]
        sizes = f"{dense.shape[0]} {dense.shape[1]} {len(lines)}"
    else:
        lines, sizes = [str(dense[place]) for place in places], f"{dense.shape[0]} {dense.shape[1]}"
    return (
        "\n".join([f"%%MatrixMarket matrix {layout} {field} {storage}", "% note", "", sizes, *lines]) + "\n"
    )


@pytest.mark.parametrize(("layout", "field", "storage"), FORMS)
def test_every_form_is_read_as_scipy_reads_it(tmp_path: Path, layout: str, field: str, storage: str) -> None:
    rng = np.random.default_rng(0)
    shape = (5, 7) if storage == "general" else (6, 6)
    low = 0 if field == "unsigned-integer" else -9
    dense = rng.integers(low, 10, shape) if "integer" in field else rng.normal(size=shape).round(3)
    dense = np.where(rng.random(shape) < 0.5, dense, 0)
    path = tmp_path / "m.mtx"
    path.write_text(text_of(layout, field, storage, dense))
    expected = scipy.io.mmread(path, spmatrix=False)
    expected = expected.toarray() if sp.issparse(expected) else expected
    graph = load_matrix(path)
    assert graph.nnz > 5
    assert np.array_equal(graph.to_scipy().toarray(), expected.astype(np.float32))


COORDINATE = "%%MatrixMarket matrix coordinate real general\n"
SYMMETRIC = "%%MatrixMarket matrix coordinate real symmetric\n"
SKEW = "%%MatrixMarket matrix coordinate real skew-symmetric\n"
ARRAY = "%%MatrixMarket matrix array real general\n"
GARBLED = {
    "row 0": (COORDINATE + "2 2 1\n0 1 1.0\n", "row of element 0 is 0; accepted: 1 to 2"),
    "row 3": (COORDINATE + "2 2 2\n1 1 1.0\n3 1 1.0\n", "row of element 1 is 3; accepted: 1 to 2"),
    "column": (COORDINATE + "2 2 1\n1 -5 1.0\n", "column of element 0 is -5"),
    "column beyond int64": (COORDINATE + f"2 2 1\n1 {10**30} 1.0\n", "something else than numbers"),
    "fraction": (COORDINATE + "2 2 1\n1.5 1 1.0\n", "something else than numbers"),
    "too few values": (COORDINATE + "2 2 2\n1 1 1.0\n1 2\n", "elements: .*row 2"),
    "too many values": (COORDINATE + "2 2 2\n1 1 1.0\n1 2 3 4\n", "elements: .*row 2"),
    "fewer": (COORDINATE + "2 2 3\n1 1 1.0\n1 2 1.0\n", "2 rows; accepted: 3"),
    "more": (COORDINATE + "2 2 1\n1 1 1.0\n1 2 1.0\n", "more rows; accepted: 1"),
    "nothing": (COORDINATE + "2 2 1\n", "sizes: promise|0 rows"),
    "empty": ("", "banner: got ''"),
    "no banner": ("3 3 1\n1 1 1.0\n", "banner: got"),
    "complex": (COORDINATE.replace("real", "complex") + "2 2 1\n1 1 1.0 2.0\n", "holds complex numbers"),
    "word": (COORDINATE + "2 2 1\n1 1 one\n", "something else than numbers"),
    "infinite": (COORDINATE + "2 2 1\n1 1 inf\n", "inf; accepted: finite"),
    "too large": (COORDINATE + "2 2 1\n1 1 1e300\n", "inf; accepted: finite"),
    "nan": (COORDINATE + "2 2 1\n1 1 nan\n", "nan; accepted: finite"),
    "zero byte": (COORDINATE + "2 2 1\n1 1\x00 1\n", "something else than numbers"),
    "10^18 elements": (COORDINATE + f"2 2 {10**18}\n1 1 1.0\n", f"sizes: promise {10**18} lines in at most"),
    "10^30 elements": (COORDINATE + f"2 2 {10**30}\n1 1 1.0\n", "sizes: got"),
    "2^31 rows": (COORDINATE + f"{2**31} 2 1\n1 1 1.0\n", "below 2\\^31"),
    "negative": (COORDINATE + "-2 2 1\n1 1 1.0\n", "sizes: got '-2 2 1'"),
    "large array": (ARRAY + "1000000 1000000\n1.0\n", "sizes: promise"),
    "not square": (SYMMETRIC + "2 3 1\n1 1 1.0\n", "accepted: a square one"),
    "skew diagonal": (SKEW + "2 2 1\n1 1 1.0\n", "accepted: 0 in a skew-symmetric matrix"),
    "banner": ("%%MatrixMarket vector coordinate real general\n2 2 1\n1 1 1\n", "banner: got"),
    "pattern array": ("%%MatrixMarket matrix array pattern general\n2 2\n", "banner: got"),
    "long line": ("%" * 3_000_000, "line of more than"),
}


@pytest.mark.parametrize("case", GARBLED)
def test_garbled_files_are_refused(tmp_path: Path, case: str) -> None:
    text, problem = GARBLED[case]
    (tmp_path / "bad.mtx").write_text(text)
    with pytest.raises(ValueError, match=rf"bad\.mtx: .*(?:{problem})"):
        load_matrix(tmp_path / "bad.mtx")


@given(
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)), seed=st.integers(0, 9), weighted=st.booleans(),
    ending=st.sampled_from([".mtx", ".mtx.gz"]),
)  # fmt: skip
def test_what_scipy_writes_of_a_graph_is_that_graph(
    tmp_path_factory: pytest.TempPathFactory, size: tuple[int, int], seed: int, weighted: bool, ending: str
) -> None:
    graph = random_graph(*size, 0.4, seed=seed, weighted=weighted)
    path = tmp_path_factory.mktemp("m") / "m.mtx"
    scipy.io.mmwrite(path, graph.to_scipy())
    if ending == ".mtx.gz":
        path.with_suffix(".mtx.gz").write_bytes(gzip.compress(path.read_bytes()))
    found = load_matrix(path.with_suffix(ending))
    assert found.csr.indptr.tolist() == graph.csr.indptr.tolist()
    assert found.csr.indices.tolist() == graph.csr.indices.tolist()
    assert found.to_dense().tolist() == graph.to_dense().tolist()


def test_a_text_that_unpacks_to_more_than_its_matrix_needs_is_refused(tmp_path: Path) -> None:
    text = COORDINATE.encode() + b"2 2 1\n1 1 1.0\n" + b"% a comment\n" * 200_000
    (tmp_path / "bomb.mtx.gz").write_bytes(gzip.compress(text))
    with pytest.raises(ValueError, match=r"bomb\.mtx\.gz: has more than \d+ bytes for 1 rows"):
        load_matrix(tmp_path / "bomb.mtx.gz")
