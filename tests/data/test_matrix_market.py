"""Matrix Market files of every form are read as SciPy reads them; others are refused before it sees them."""

from __future__ import annotations

import gzip
import io
import itertools
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnsparse.data import load_matrix

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


@pytest.mark.parametrize(("layout", "field", "storage"), FORMS)
@settings(max_examples=5)
@given(size=st.tuples(st.integers(1, 9), st.integers(1, 9)), seed=st.integers(0, 9))
def test_every_form_is_read_as_scipy_reads_it(
    tmp_path: Path, layout: str, field: str, storage: str, size: tuple[int, int], seed: int
) -> None:
    rng = np.random.default_rng(seed)
    size = size if storage == "general" else (size[0], size[0])
    low = 0 if field == "unsigned-integer" else -9
    dense = rng.integers(low, 10, size) if "integer" in field else rng.normal(size=size).round(3)
    dense = np.where(rng.random(size) < 0.5, dense, 0)
    if storage != "general":
        lower = np.tril(dense, -1)
        dense = lower - lower.T if storage == "skew-symmetric" else np.tril(dense) + lower.T
    # SciPy writes neither doubles nor integers without a sign nor real Hermitian matrices.
    written = {"field": {"double": "real", "unsigned-integer": "integer"}.get(field, field)}
    written["symmetry"] = storage.replace("hermitian", "symmetric")
    stream = io.BytesIO()
    scipy.io.mmwrite(stream, sp.coo_array(dense) if layout == "coordinate" else dense, "note", **written)
    _, _, body = stream.getvalue().decode().partition("\n")
    text = f"%%MatrixMarket matrix {layout} {field} {storage}\n% note\n\n{body}"
    expected = scipy.io.mmread(io.StringIO(text), spmatrix=False)
    expected = expected.toarray() if sp.issparse(expected) else expected
    (tmp_path / "m.mtx").write_text(text)
    (tmp_path / "m.mtx.gz").write_bytes(gzip.compress(text.encode()))
    for path in (tmp_path / "m.mtx", tmp_path / "m.mtx.gz"):
        graph = load_matrix(path)
        assert graph.nnz == np.count_nonzero(dense)
        assert np.array_equal(graph.to_scipy().toarray(), expected.astype(np.float32))


COORDINATE = "%%MatrixMarket matrix coordinate real general\n"
SYMMETRIC = "%%MatrixMarket matrix coordinate real symmetric\n"
SKEW = "%%MatrixMarket matrix coordinate real skew-symmetric\n"
ARRAY = "%%MatrixMarket matrix array real general\n"
GARBLED = {
    "row 0": (COORDINATE + "2 2 1\n0 1 1.0\n", "row of element 0 is 0; accepted: 1 to 2"),
    "row 3": (COORDINATE + "2 2 2\n1 1 1.0\n3 1 1.0\n", "row of element 1 is 3; accepted: 1 to 2"),
    "column": (COORDINATE + "2 2 1\n1 -5 1.0\n", "column of element 0 is -5"),
    "fraction": (COORDINATE + "2 2 1\n1.5 1 1.0\n", "something else than numbers"),
    "too few values": (COORDINATE + "2 2 2\n1 1 1.0\n1 2\n", "elements: .*row 2"),
    "too many values": (COORDINATE + "2 2 2\n1 1 1.0\n1 2 3 4\n", "elements: .*row 2"),
    "fewer": (COORDINATE + "2 2 3\n1 1 1.0\n1 2 1.0\n", "2 rows; accepted: 3"),
    "more": (COORDINATE + "2 2 1\n1 1 1.0\n1 2 1.0\n", "more rows; accepted: 1"),
    "nothing": (COORDINATE + "2 2 1\n", "sizes: promise|0 rows"),
    "empty": ("", "banner: got ''"),
    "no banner": ("3 3 1\n1 1 1.0\n", "banner: got"),
    "complex": (COORDINATE.replace("real", "complex") + "2 2 1\n1 1 1.0 2.0\n", "holds complex numbers"),
    "infinite": (COORDINATE + "2 2 1\n1 1 inf\n", "inf; accepted: finite"),
    "too large": (COORDINATE + "2 2 1\n1 1 1e300\n", "inf; accepted: finite"),
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


def test_a_text_that_unpacks_to_more_than_its_matrix_needs_is_refused(tmp_path: Path) -> None:
    text = COORDINATE.encode() + b"2 2 1\n1 1 1.0\n" + b"% a comment\n" * 200_000
    (tmp_path / "bomb.mtx.gz").write_bytes(gzip.compress(text))
    with pytest.raises(ValueError, match=r"bomb\.mtx\.gz: has more than \d+ bytes for 1 rows"):
        load_matrix(tmp_path / "bomb.mtx.gz")
