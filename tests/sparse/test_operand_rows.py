"""Sizes of an operand, and rows of it, as an operand of their own."""

from __future__ import annotations

import itertools
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseOperand, masks
from gnnsparse.nn import GATConv, GCNConv
from gnnsparse.testing import assert_accurate, random_graph
from tests.helpers import FORMAT_PRECISIONS, PRECISIONS, plain_product

ROWS = 30
CHOICES: dict[str, Any] = {
    "slice": slice(3, 20), "backwards": slice(None, None, -2), "none": slice(5, 5), "beyond": slice(20, 99),
    "numbers": torch.tensor([4, 4, -1, 0]), "int32": torch.tensor([7, 2], dtype=torch.int32),
    "list": [1, -30], "empty list": [], "array": np.array([3, 29]), "mask": torch.arange(ROWS) % 3 == 0,
    "mask list": [True] * 2 + [False] * 28, "no row": torch.zeros(ROWS, dtype=torch.bool),
    "many": torch.arange(37) ** 2 % ROWS,
}  # fmt: skip


def taken(dense: torch.Tensor, rows: Any) -> torch.Tensor:
    """The rows by NumPy's indexing."""
    if isinstance(rows, list) and not rows:
        rows = slice(0, 0)
    return torch.from_numpy(dense.numpy()[rows.numpy() if isinstance(rows, torch.Tensor) else rows].copy())


OPTIONS: list[dict[str, Any]] = [
    {}, {"values": "gcn", "reorder": "rcm"}, {"values": "mean", "reorder": "degree", "precision": "fp16"},
    {"format": "csr", "precision": "bf16"},
]  # fmt: skip
FORMATS = [{"format": name, "precision": precision} for name, precision in FORMAT_PRECISIONS]


@pytest.mark.parametrize(
    ("options", "name"),
    [*itertools.product(OPTIONS, CHOICES), *itertools.product(FORMATS, ["many"])],
    ids=str,
)
def test_rows(device: str, name: str, options: dict[str, Any]) -> None:
    """The rows are converted to their format again, and rounded once."""
    ends = torch.randint(0, ROWS, (2, 150))
    weights = {} if "values" in options else {"values": torch.randn(150)}
    a = gnnsparse.prepare(ends, num_nodes=ROWS, cache=False, **{**weights, **options}).to(device)
    for of in (a, a.T):
        part = of[CHOICES[name]]
        want = taken(of.to_dense().cpu(), CHOICES[name])
        assert torch.equal(part.to_dense().cpu(), want)
        assert torch.equal(part.T.to_dense().cpu(), want.T)
        facts = [(p.precision, p.device, p.normalization, p.stats()["format"]) for p in (of, part)]
        assert facts[0] == facts[1]
        assert part.num_edges == part.nnz
        x, probe = torch.randn(ROWS, 5, requires_grad=True), torch.randn(len(want), 5)
        y = part @ x.to(device)
        (gradient,) = torch.autograd.grad(y, x, probe.to(device))
        if device == "cpu" and options not in FORMATS:
            assert torch.equal(y, taken((of @ x).detach(), CHOICES[name]))
        back = part.T @ probe.to(device)
        for got, matrix, right in ((y, want, x.detach()), (gradient, want.T, probe), (back, want.T, probe)):
            plain = plain_product(matrix, right, of.precision.value)
            assert_accurate(got, plain, matrix.double() @ right.double())


@given(
    shape=st.tuples(st.integers(0, 9), st.integers(0, 9)), density=st.sampled_from([0.0, 0.3, 1.0]),
    data=st.data(), precision=st.sampled_from(PRECISIONS),
)  # fmt: skip
@settings(deadline=None, max_examples=80)
def test_any_rows(shape: tuple[int, int], density: float, data: st.DataObject, precision: str) -> None:
    a = gnnsparse.prepare(random_graph(*shape, density), precision=precision, cache=False)
    ends = st.integers(-12, 12) | st.none()
    kinds = [st.builds(slice, ends, ends, (st.integers(-4, 4) | st.none()).filter(lambda step: step != 0))]
    if shape[0]:
        kinds.append(st.lists(st.integers(-shape[0], shape[0] - 1), max_size=12).map(np.array))
    kinds.append(st.lists(st.booleans(), min_size=shape[0], max_size=shape[0]).map(lambda m: torch.tensor(m)))
    rows = data.draw(st.one_of(kinds))
    if isinstance(rows, np.ndarray):
        rows = rows.astype(np.int64)
    elif isinstance(rows, torch.Tensor):
        rows = rows.bool()
    part = a[rows]
    assert torch.equal(part.to_dense(), taken(a.to_dense(), rows))
    assert torch.equal(part[::-1].to_dense(), part.to_dense().flip(0))


def test_layers_take_rows() -> None:
    graph = random_graph(20, 20, 0.3, weighted=False)
    a, x = gnnsparse.prepare(graph, values="gcn", cache=False), torch.randn(20, 6)
    conv = GCNConv(6, 4)
    rows = torch.arange(20).flip(0)
    torch.testing.assert_close(conv(x, a[rows]), conv(x, a)[rows])
    assert a.has_self_loops
    assert not a[rows].has_self_loops, "they are no longer on the diagonal"
    assert a[rows].added_loops == a.added_loops
    gat = GATConv(6, 4, add_self_loops=False)
    plain = gnnsparse.prepare(graph, cache=False)
    torch.testing.assert_close(gat((x, x[3:9]), plain[3:9]), gat(x, plain)[3:9])


def test_edge_values_of_rows() -> None:
    a = gnnsparse.prepare(random_graph(12, 9, 0.4), reorder="degree", cache=False)
    part, q, k = a[2:7], torch.randn(12, 5), torch.randn(9, 5)
    scores = gnnsparse.sddmm(part, q[2:7], k)
    row, col = part.indices()
    torch.testing.assert_close(scores, (q[2:7] @ k.T)[row, col])
    assert torch.equal(part.to_coo_order(scores), scores), "its edges are its nonzeros"


def test_rows_while_compiling() -> None:
    a, x = gnnsparse.prepare(random_graph(12, 9, 0.4), cache=False), torch.randn(9, 5)
    assert torch.equal(torch.compile(lambda x: a[2:7] @ x, backend="eager")(x), a[2:7] @ x)


def test_rows_in_inference_mode_serve_training() -> None:
    a = gnnsparse.prepare(random_graph(12, 9, 0.4), cache=False)
    with torch.inference_mode():
        part = a[2:7]
    x = torch.randn(9, 5, requires_grad=True)
    (part @ x).sum().backward()
    assert x.grad is not None


A = gnnsparse.prepare(random_graph(12, 9, 0.4), cache=False)


@pytest.mark.parametrize(("rows", "kind", "message"), [
    (3, TypeError, "rows: got int; accepted: a slice, row numbers (int32 or int64 [k]) or a mask"),
    (None, TypeError, "rows: got NoneType"),
    ((slice(0, 2), slice(0, 2)), TypeError, "columns are A.T[columns].T"),
    ("a", TypeError, "rows: got str"),
    (["a"], TypeError, "rows: got dtype <U1"),
    ([[1], [2, 3]], TypeError, "rows: got a list that is no array"),
    (slice("a", "b"), TypeError, "rows: slice indices must be integers"),
    (slice(0, 4, 0), ValueError, "rows: slice step cannot be zero"),
    (torch.tensor([0.5]), TypeError, "rows: got a tensor of dtype torch.float32"),
    (torch.tensor([1], dtype=torch.uint8), TypeError, "rows: got a tensor of dtype torch.uint8"),
    (torch.tensor([12]), ValueError, "rows: element 0 is 12; accepted: 0 to 11, as A has 12 rows"),
    (torch.tensor([1, -13]), ValueError, "rows: element 1 is -1; accepted: 0 to 11"),
    (torch.tensor(1), ValueError, "rows: has 0 dimensions"),
    (torch.ones(2, 2, dtype=torch.int64), ValueError, "rows: has 2 dimensions"),
    (torch.ones(9, dtype=torch.bool), ValueError, "rows: is a mask of shape (9,); accepted: (12,)"),
    ([True, False], ValueError, "rows: is a mask of shape (2,); accepted: (12,)"),
    (torch.eye(3).to_sparse(), TypeError, "rows: got a tensor of dtype"),
], ids=str)  # fmt: skip
def test_what_rows_refuse(rows: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        A[rows]


def test_rows_too_many_for_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    a = gnnsparse.prepare(random_graph(4, 4000, 1.0), cache=False)
    many = torch.zeros(200_000, dtype=torch.int64)
    limit = type("Limit", (), {"free": 2**20, "name": "the test"})()
    monkeypatch.setattr("gnnsparse.errors.available_memory", lambda: limit)
    with pytest.raises(MemoryError, match="rows: a matrix of 200000 rows and 800000000 nonzeros needs"):
        a[many]


def test_an_operand_is_no_sequence() -> None:
    with pytest.raises(TypeError, match="not iterable"):
        iter(A)


def test_sizes() -> None:
    graph = random_graph(12, 9, 0.4)
    for thing in (A, graph):
        assert thing.size() == thing.shape == (12, 9)
        assert isinstance(thing.size(), torch.Size)
        assert [thing.size(d) for d in (0, 1, -1, -2)] == [12, 9, 9, 12]
        assert (thing.dim(), thing.ndim) == (2, 2)
        with pytest.raises(ValueError, match=re.escape("dim: got 2; accepted: 0 or -2 (rows), 1 or -1")):
            thing.size(2)
        with pytest.raises(TypeError, match="dim: got str"):
            thing.size("rows")  # type: ignore[call-overload]
    assert A.T.size() == (9, 12)


@pytest.mark.parametrize(("precision", "dtype"), [
    ("fp32", torch.float32), ("tf32", torch.float32), ("fp16", torch.float16), ("bf16", torch.bfloat16),
])  # fmt: skip
def test_dtype(precision: str, dtype: torch.dtype) -> None:
    a = gnnsparse.prepare(random_graph(5, 5, 0.4), precision=precision, cache=False)
    assert a.dtype is a.T.dtype is a[1:3].dtype is dtype


def test_short_texts() -> None:
    """No arrays are printed, however large the matrix."""
    mask = masks.window(4096, 128)
    assert repr(mask) == "SparseGraph(4096 x 4096, nnz=1036160, no values, device=cpu)"
    assert repr(mask.csr) == "Csr(4096 x 4096, nnz=1036160, device=cpu)"
    assert "with values" in repr(random_graph(3, 4, 1.0))
    a: SparseOperand = gnnsparse.prepare(mask, cache=False)
    assert repr(a[:5]) == "SparseOperand(5 x 4096, nnz=655, fp32, format=csr, device=cpu)"
    a = gnnsparse.prepare(mask, precision="tf32", format="window", cache=False)
    assert repr(a) == "SparseOperand(4096 x 4096, nnz=1036160, tf32, format=window, device=cpu)"
