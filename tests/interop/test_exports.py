"""Graphs and operands in the forms of SciPy and PyTorch, and back."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph, SparseOperand
from gnnsparse.testing import assert_accurate, random_graph
from tests.helpers import PRECISIONS, dense_matrix, has_precision, make, plain_product

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")  # torch says that its sparse tensors are new

LAYOUTS = {"csr": torch.sparse_csr, "coo": torch.sparse_coo, "csc": torch.sparse_csc}


@st.composite
def matrices(draw: Any) -> SparseGraph:
    rows, cols = draw(st.integers(0, 12)), draw(st.integers(0, 12))
    weighted, empty = draw(st.booleans()), draw(st.sampled_from([0.0, 0.5]))
    density, seed = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0])), draw(st.integers(0, 5))
    return random_graph(rows, cols, density, seed=seed, weighted=weighted, empty_rows=empty)


def with_zeros(graph: SparseGraph) -> SparseGraph:
    """The graph with a stored zero in place of every third value."""
    values = torch.randn(graph.nnz)
    values[::3] = 0
    return SparseGraph.from_csr(graph.csr.indptr, graph.csr.indices, values, graph.num_cols)


def same(found: SparseGraph, graph: SparseGraph) -> bool:
    values = [torch.ones(g.nnz) if g.values is None else g.values for g in (found, graph)]
    return (
        found.num_cols == graph.num_cols
        and torch.equal(found.csr.indptr, graph.csr.indptr)
        and torch.equal(found.csr.indices, graph.csr.indices)
        and torch.equal(*values)
    )


@given(
    graph=matrices(),
    layout=st.sampled_from(list(LAYOUTS)),
    kind=st.sampled_from(["csr", "csc", "coo", "lil", "dok", "bsr", "dia"]),
    zeros=st.booleans(),
)
def test_there_and_back(graph: SparseGraph, layout: str, kind: str, zeros: bool) -> None:
    graph = with_zeros(graph) if zeros else graph
    found = graph.to_torch_sparse(layout)
    assert found.layout == LAYOUTS[layout]
    assert found.dtype == torch.float32
    assert same(SparseGraph.from_torch_sparse(found), graph)
    assert torch.equal(found.to_dense(), graph.to_dense())
    if layout == "coo":
        assert found.is_coalesced()
        again = torch.sparse_coo_tensor(found._indices(), found._values(), found.shape)
        assert torch.equal(found._indices(), again.coalesce().indices())
    array = graph.to_scipy()
    assert array.has_canonical_format
    assert same(SparseGraph.from_scipy(array), graph)
    assert torch.equal(SparseGraph.from_scipy(array.asformat(kind)).to_dense(), graph.to_dense())


@given(seed=st.integers(0, 5), small=st.booleans(), repeats=st.integers(0, 20))
def test_sparse_tensors_that_are_not_coalesced(seed: int, small: bool, repeats: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    at = torch.randint(0, 5, (2, repeats), generator=generator)
    values = torch.randn(repeats, generator=generator)
    matrix = torch.sparse_coo_tensor(at, values, (5, 6))
    right = torch.zeros(5, 6).index_put_((at[0], at[1]), values, accumulate=True)
    torch.testing.assert_close(SparseGraph.from_torch_sparse(matrix).to_dense(), right)
    csr = right.to_sparse_csr()
    if small:
        csr = torch.sparse_csr_tensor(csr.crow_indices().int(), csr.col_indices().int(), csr.values(), (5, 6))
    torch.testing.assert_close(SparseGraph.from_torch_sparse(csr).to_dense(), right)


def operands(precision: str) -> list[tuple[SparseOperand, torch.Tensor]]:
    """Operands with every kind of weights, in stored order and reordered, and the matrices that they are."""
    graph = random_graph(20, 20, 0.2, seed=1, empty_rows=0.2)
    binary = SparseGraph(graph.csr)
    positive = SparseGraph(graph.csr, torch.rand(graph.nnz) + 0.5)
    found = []
    options_of = [{}, {"reorder": "degree"}, {"reorder": "rcm"}]
    if has_precision("hrpb", precision):
        options_of.append({"reorder": "degree", "format": "hrpb"})
    sources = [(binary, None), (graph, None), (binary, "mean"), (binary, "gcn"), (positive, "gcn")]
    for options, (source, weights) in itertools.product(options_of, sources):
        a = make(source, "cpu", values=weights, precision=precision, **options)
        matrix = dense_matrix(source, weights)
        found += [(a, matrix), (a.T, matrix.T)]
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_operand_is_the_matrix_of_its_weights(precision: str) -> None:
    eps = {"fp32": 2**-23, "tf32": 2**-11, "fp16": 2**-11, "bf16": 2**-8}[precision]
    for a, matrix in operands(precision):
        dense = a.to_dense()
        assert (dense.double() - matrix).abs().max() <= 2 * eps * matrix.abs().max()
        x = torch.randn(a.shape[1], 5)
        assert_accurate(a @ x, plain_product(matrix.float(), x, precision), matrix @ x.double())
        for layout in LAYOUTS:
            assert torch.equal(a.to_torch_sparse(layout).to_dense(), dense)
        found = a.to_scipy()
        assert found.has_canonical_format
        assert found.nnz == a.nnz
        np.testing.assert_array_equal(found.toarray(), dense.numpy())
        assert torch.equal(make(SparseGraph.from_scipy(found), "cpu", precision=precision).to_dense(), dense)


def test_results_own_their_memory() -> None:
    graph = random_graph(6, 6, 0.5)
    a, right = make(graph, "cpu"), graph.to_dense()
    for of in (graph, a):
        matrix = of.to_scipy()
        matrix.data[:], matrix.indices[:] = 7, 0
        of.to_torch_sparse("coo")._values().fill_(7)
        of.to_torch_sparse("coo")._indices().zero_()
        csr, csc = of.to_torch_sparse("csr"), of.to_torch_sparse("csc")
        of_csc = csc.ccol_indices(), csc.row_indices(), csc.values()
        for array in (csr.crow_indices(), csr.col_indices(), csr.values(), *of_csc):
            array.zero_()
        of.to_dense().zero_()
        assert torch.equal(of.to_dense(), right)
    x = torch.randn(6, 3)
    assert torch.equal(make(graph, "cpu") @ x, a @ x)


@pytest.mark.parametrize(("layout", "error"), [("bsr", ValueError), (torch.sparse_csr, TypeError)])
def test_other_layouts_are_refused(layout: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"layout: got .*; accepted: .*csr, coo, csc"):
        random_graph(3, 3, 0.5).to_torch_sparse(layout)


def test_a_dense_matrix_that_does_not_fit_is_refused() -> None:
    graph = SparseGraph.from_edge_index([[0], [0]], 10**6)
    with pytest.raises(MemoryError, match="to_dense: a dense matrix of 1000000 rows"):
        graph.to_dense()
    with pytest.raises(MemoryError):
        gnnsparse.prepare(graph, cache=False).to_dense()


@pytest.mark.gpu
def test_conversions_on_a_gpu() -> None:
    graph = random_graph(20, 30, 0.2)
    for of in (graph.to("cuda"), make(graph, "cuda", reorder="degree")):
        assert torch.equal(of.to_dense().cpu(), graph.to_dense())
        for layout in LAYOUTS:
            found = of.to_torch_sparse(layout)
            assert found.device.type == "cuda"
            assert torch.equal(found.to_dense().cpu(), graph.to_dense())
        np.testing.assert_array_equal(of.to_scipy().toarray(), graph.to_dense().numpy())
