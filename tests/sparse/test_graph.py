"""SparseGraph: canonical form from every input, and clear errors for bad ones."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.formats.csr import Csr
from gnnsparse.testing import assert_accurate
from tests.helpers import assert_same_by_threads


def dense(graph: SparseGraph) -> np.ndarray:
    return graph.to_scipy().toarray()


@st.composite
def edge_lists(draw: st.DrawFn) -> tuple[int, int, list[tuple[int, int]]]:
    rows, cols = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    edge = st.tuples(st.integers(0, cols - 1), st.integers(0, rows - 1))
    return rows, cols, draw(st.lists(edge, max_size=60))


@given(edge_lists(), st.booleans(), st.sampled_from([torch.int32, torch.int64]))
def test_edge_index(case: Any, weighted: bool, dtype: torch.dtype) -> None:
    """A[target, source] is the sum over the edges from source to target, as scipy sums them."""
    rows, cols, edges = case
    edge_index = torch.tensor(edges, dtype=dtype).reshape(-1, 2).T
    values = torch.randn(len(edges)) if weighted else None
    graph = SparseGraph.from_edge_index(edge_index, (cols, rows), values)
    data = np.ones(len(edges), dtype=np.float32) if values is None else values.numpy()
    assert_sums(graph, sp.coo_array((data, (edge_index[1], edge_index[0])), shape=(rows, cols)))
    check_canonical(graph)
    # Every edge knows its nonzero.
    row, col = graph.csr.row_index(), graph.csr.indices.long()
    slots = torch.arange(graph.nnz) if graph.nnz_index_of_edge is None else graph.nnz_index_of_edge.long()
    assert torch.equal(row[slots], edge_index[1].long())
    assert torch.equal(col[slots], edge_index[0].long())


def assert_sums(graph: SparseGraph, coo: sp.coo_array) -> None:
    """The values are the sums of the entries of the same place, which may cancel."""
    plain, exact, squares = (
        torch.from_numpy(sp.coo_array((data, coo.coords), shape=coo.shape).toarray())
        for data in (coo.data, coo.data.astype(np.float64), coo.data.astype(np.float64) ** 2)
    )
    assert_accurate(torch.from_numpy(dense(graph)), plain, exact, scale=squares.sqrt())


def check_canonical(graph: SparseGraph) -> None:
    row, col = graph.csr.row_index(), graph.csr.indices.long()
    key = row * max(graph.num_cols, 1) + col
    assert bool((key.diff() > 0).all())
    assert graph.csr.indptr[0] == 0
    assert graph.csr.indptr[-1] == graph.nnz


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@given(edge_lists(), st.booleans())
def test_csr_and_scipy_and_torch(case: Any, canonical: bool) -> None:
    rows, cols, edges = case
    array = np.array(edges).reshape(-1, 2)
    data = np.random.default_rng(0).standard_normal(len(edges)).astype(np.float32)
    coo = sp.coo_array((data, (array[:, 1], array[:, 0])), shape=(rows, cols))
    csr = coo.tocsr()
    if not canonical and csr.nnz:  # rows backwards
        order = np.concatenate(
            [np.arange(a, b)[::-1] for a, b in zip(csr.indptr, csr.indptr[1:], strict=False)]
        )
        csr = sp.csr_array((csr.data[order], csr.indices[order], csr.indptr), shape=csr.shape)
    want = coo.toarray()
    inputs = [
        SparseGraph.from_csr(csr.indptr, csr.indices, csr.data, cols),
        SparseGraph.from_scipy(csr),
        SparseGraph.from_scipy(coo),
        SparseGraph.from_scipy(sp.csc_matrix(coo)),
        SparseGraph.from_torch_sparse(torch.from_numpy(want).to_sparse()),
        SparseGraph.from_torch_sparse(torch.from_numpy(want).to_sparse_csr()),
        SparseGraph.from_torch_sparse(torch.from_numpy(want).to_sparse_csc()),
    ]
    for graph in inputs:
        assert_sums(graph, coo)
        check_canonical(graph)


def test_num_nodes_is_found() -> None:
    assert SparseGraph.from_edge_index(torch.tensor([[0, 4], [2, 1]])).num_rows == 5
    empty = SparseGraph.from_edge_index(torch.empty(2, 0, dtype=torch.int64))
    assert (empty.num_rows, empty.num_cols, empty.nnz) == (0, 0, 0)


@pytest.mark.usefixtures("any_threads")
def test_large_inputs_use_every_thread_alike() -> None:
    generator = torch.Generator().manual_seed(1)
    edge_index = torch.randint(0, 5000, (2, 200_000), generator=generator)
    values = torch.randn(200_000, generator=generator)

    def made() -> list[torch.Tensor]:
        graph = SparseGraph.from_edge_index(edge_index, 5000, values)
        assert graph.values is not None
        assert graph.nnz_index_of_edge is not None
        transposed, source = graph.csr.transpose()
        return [graph.values, graph.csr.indices, graph.nnz_index_of_edge, transposed.indices, source]

    found, *_ = assert_same_by_threads(made)
    plain, exact = (
        torch.from_numpy(
            sp.coo_array((v.numpy(), edge_index.flip(0).numpy()), shape=(5000, 5000)).tocsr().data
        )
        for v in (values, values.double())
    )
    assert_accurate(found, plain, exact)


def test_fingerprint_tells_contents_apart() -> None:
    edges = torch.tensor([[0, 1, 2], [1, 2, 0]])
    graphs = [
        SparseGraph.from_edge_index(edges, 3),
        SparseGraph.from_edge_index(edges, 4),
        SparseGraph.from_edge_index(edges, 3, torch.tensor([1.0, 2.0, 3.0])),
        SparseGraph.from_edge_index(edges.flip(0), 3),
    ]
    assert len({g.fingerprint for g in graphs}) == len(graphs)
    again = SparseGraph.from_edge_index(edges[:, [2, 0, 1]], 3)
    assert again.fingerprint == graphs[0].fingerprint


def test_later_changes_of_the_input_do_not_reach_the_graph() -> None:
    indptr, indices = torch.tensor([0, 1, 2]), torch.tensor([0, 1], dtype=torch.int32)
    values = torch.tensor([1.0, 2.0])
    graph = SparseGraph.from_csr(indptr, indices, values)
    indices.fill_(7)
    values.fill_(0)
    indptr.fill_(0)
    assert dense(graph).tolist() == [[1.0, 0.0], [0.0, 2.0]]


def _unordered(kind: str) -> Any:
    """A SciPy matrix whose elements are in no order and, unless it is made of blocks, repeat."""
    if kind == "bsr":
        blocks = np.arange(1.0, 17.0).reshape(4, 2, 2)
        return sp.bsr_matrix((blocks, [2, 0, 1, 0], [0, 2, 4]), shape=(4, 6))
    arrays = (np.arange(1.0, 7.0), np.array([2, 0, 2, 1, 0, 0]), np.array([0, 3, 3, 6]))
    return {"csr": sp.csr_matrix, "csc": sp.csc_matrix}[kind](arrays, shape=(3, 3))


@pytest.mark.parametrize("kind", ["csr", "csc", "bsr"])
@pytest.mark.parametrize("cache", [False, True])
def test_edges_of_scipy_matrices_are_in_the_order_of_tocsr(kind: str, cache: bool) -> None:
    matrix = _unordered(kind)
    csr = matrix.tocsr()
    rows = np.repeat(np.arange(csr.shape[0]), np.diff(csr.indptr))
    for _ in range(1 + cache):
        a = gnnsparse.prepare(matrix, cache=cache)
        merged = np.asarray(csr.todense())[rows, csr.indices]
        assert a.num_edges == csr.nnz
        own = a.from_coo_order(torch.from_numpy(csr.data).float())
        assert a.to_coo_order(own).tolist() == merged.tolist()
    assert a.cache_hit == cache


E, P, J = torch.tensor([[0, 1], [1, 0]]), torch.tensor([0, 1, 3]), torch.tensor([1, 0, 1])
GOOD: dict[Any, dict[str, Any]] = {
    SparseGraph.from_edge_index: {"edge_index": E}, SparseGraph.from_csr: {"indptr": P, "indices": J}
}  # fmt: skip
BAD_EDGES: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"edge_index": torch.tensor([[0, -1], [1, 0]])}, ValueError, "edge_index.*-1"),
    ({"edge_index": torch.tensor([[0, 9], [1, 0]]), "num_nodes": 3}, ValueError, "edge_index.*9.*num_nodes"),
    ({"edge_index": torch.tensor([[0, 1], [1, 2**40]]), "num_nodes": 3}, ValueError, "edge_index"),
    ({"edge_index": torch.tensor([[0, 1], [1, 2**40]])}, ValueError, "edge_index.*num_nodes"),
    ({"edge_index": E.float()}, TypeError, "edge_index.*float"),
    ({"edge_index": E.to(torch.int16)}, TypeError, "edge_index.*int16"),
    ({"edge_index": E.bool()}, TypeError, "edge_index"),
    ({"edge_index": E[0]}, ValueError, "edge_index.*dimensions"),
    ({"edge_index": torch.zeros(3, 4, dtype=torch.int64)}, ValueError, r"edge_index.*\(3, 4\)"),
    ({"edge_index": "edges"}, TypeError, "edge_index"),
    ({"edge_index": np.array([[0.5, 1], [1, 0]])}, TypeError, "edge_index.*float"),
    ({"num_nodes": -1}, ValueError, "num_nodes"),
    ({"num_nodes": 2**31}, ValueError, "num_nodes.*2\\^31"),
]
BAD_CSR: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"indptr": torch.tensor([1, 1, 3])}, ValueError, "indptr.*from 1"),
    ({"indptr": torch.tensor([0, 1, 2])}, ValueError, "indptr.*to 2"),
    ({"indptr": torch.tensor([0, 4, 3])}, ValueError, "indptr.*decreases"),
    ({"indptr": torch.empty(0, dtype=torch.int64)}, ValueError, "indptr.*empty"),
    ({"indptr": P.float()}, TypeError, "indptr"),
    ({"indices": torch.tensor([1, 0, 2])}, ValueError, "indices.*num_cols"),
    ({"indices": torch.tensor([1, -5, 1])}, ValueError, "indices.*-5"),
    ({"indices": torch.tensor([2**33, 0, 1])}, ValueError, "indices"),
    ({"num_cols": 2**31}, ValueError, "num_cols"),
    ({"num_cols": "3"}, TypeError, "num_cols"),
]


@pytest.mark.parametrize(
    ("make", "changed", "error", "message"),
    [(make, *row) for make, rows in zip(GOOD, (BAD_EDGES, BAD_CSR), strict=True) for row in rows],
)
def test_bad_arrays(
    device: str, make: Any, changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    given = {**GOOD[make], **changed}
    with pytest.raises(error, match=message):
        make(**{name: v.to(device) if isinstance(v, torch.Tensor) else v for name, v in given.items()})


def test_other_matrices() -> None:
    for matrix in (None, torch.eye(3), np.eye(3), sp.csr_array(np.eye(2) * 1j)):
        with pytest.raises(TypeError, match="matrix"):
            SparseGraph.from_scipy(matrix)
    for matrix in (None, torch.eye(3), torch.ones(2, 2, 2).to_sparse(), sp.eye(3)):
        with pytest.raises((TypeError, ValueError), match="matrix"):
            SparseGraph.from_torch_sparse(matrix)


@given(edge_lists())
def test_self_loops_by_sorting_are_those_of_the_host(case: Any) -> None:
    rows, cols, edges = case
    size = max(rows, cols)
    index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).T
    csr = SparseGraph.from_edge_index(index, (size, size)).csr
    (looped, places), (sorted_csr, by_sorting) = csr.add_self_loops(), csr._add_self_loops_by_sorting()
    assert sorted_csr.equals(looped)
    assert torch.equal(by_sorting, places)
    assert torch.equal(looped.indices[places.long()], csr.indices)
    assert bool((looped.row_index() == looped.indices).sum() == size)


@pytest.mark.gpu
@given(edge_lists(), st.booleans(), st.sampled_from([torch.int32, torch.int64]))
def test_gpu_builds_what_the_cpu_builds(case: Any, weighted: bool, dtype: torch.dtype) -> None:
    rows, cols, edges = case
    edge_index = torch.tensor(edges, dtype=dtype).reshape(-1, 2).T
    values = torch.randn(len(edges)) if weighted else None
    host = SparseGraph.from_edge_index(edge_index, (cols, rows), values)
    there = SparseGraph.from_edge_index(
        edge_index.cuda(), (cols, rows), None if values is None else values.cuda()
    )
    if values is not None:
        coo = sp.coo_array((values.numpy(), edge_index.flip(0).numpy()), shape=(rows, cols))
        assert_sums(there.to(torch.device("cpu")), coo)
    pairs: list[Any] = [(there.csr, host.csr), (there.nnz_index_of_edge, host.nnz_index_of_edge)]
    pairs += zip(there.csr.transpose(), host.csr.transpose(), strict=True)
    if rows == cols:
        pairs += zip(there.csr.add_self_loops(), host.csr.add_self_loops(), strict=True)
    for got, want in pairs:
        same = want.equals if isinstance(want, Csr) else functools.partial(torch.equal, want)
        assert same(got.to(torch.device("cpu")))
