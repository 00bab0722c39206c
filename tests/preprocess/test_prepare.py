"""prepare: weights, orders of edge values, formats, devices, errors."""

from __future__ import annotations

import functools
import gc
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.formats import format_spec, operations
from gnnsparse.testing import assert_accurate, random_graph
from tests.helpers import (
    FORMAT_PRECISIONS,
    FORMATS,
    FREE_FORMATS,
    dense_matrix,
    make,
    plain_product,
    precision_for,
    product_scale,
)

EDGES = torch.tensor([[0, 1, 1, 2, 1], [1, 0, 0, 2, 3]])  # 1 -> 0 twice, a self-loop at 2


def matrix_of(a: gnnsparse.SparseOperand) -> torch.Tensor:
    return a @ torch.eye(a.shape[1])


def normalized(dense: torch.Tensor) -> torch.Tensor:
    scale = dense.sum(1).rsqrt()
    return scale[:, None] * dense * scale


@pytest.mark.parametrize("form", [tuple, list, lambda ends: tuple(e.tolist() for e in ends)])
@pytest.mark.parametrize("num_nodes", [4, (4, 6)])
def test_a_pair_of_sources_and_targets_is_an_edge_index(form: Any, num_nodes: Any) -> None:
    """The form of DGL's graphs, which a CSR pair is told from by the number of nodes."""
    values = torch.arange(1.0, EDGES.shape[1] + 1)
    pair = gnnsparse.prepare(form(EDGES), num_nodes=num_nodes, values=values, cache=False)
    want = gnnsparse.prepare(EDGES, num_nodes=num_nodes, values=values, cache=False)
    assert pair.shape == want.shape
    assert torch.equal(matrix_of(pair), matrix_of(want))
    mixed = gnnsparse.prepare((EDGES[0].int(), EDGES[1]), num_nodes=num_nodes, cache=False)
    assert torch.equal(mixed.to_dense() != 0, want.to_dense() != 0)


def test_matrices_are_taken_as_they_are() -> None:
    matrix = sp.random_array((5, 7), density=0.4, rng=np.random.default_rng(0), dtype=np.float32).tocsr()
    want = torch.from_numpy(matrix.toarray())
    for given_as in (matrix, (matrix.indptr, matrix.indices, matrix.data), matrix.tocoo()):
        options = {"num_cols": 7} if isinstance(given_as, tuple) else {}
        assert torch.equal(matrix_of(gnnsparse.prepare(given_as, **options)), want)
    pattern = gnnsparse.prepare((matrix.indptr, matrix.indices), num_cols=7)
    assert torch.equal(matrix_of(pattern), (want != 0).float())
    weighted = gnnsparse.prepare((matrix.indptr, matrix.indices), num_cols=7, values=2 * matrix.data)
    assert torch.equal(matrix_of(weighted), 2 * want)


@pytest.mark.parametrize(("weight", "loop"), [(None, 1.0), (torch.arange(2.0, 7.0), 2.0)])
def test_gcn_weights(weight: torch.Tensor | None, loop: float) -> None:
    """D^-1/2 (A + I) D^-1/2 with the self-loop at 2 kept as it is."""
    a = gnnsparse.prepare(EDGES, num_nodes=4, values="gcn", edge_weight=weight, self_loop_weight=loop)
    dense = loop * torch.diag(torch.tensor([1.0, 1, 0, 1]))
    dense.index_put_((EDGES[1], EDGES[0]), torch.ones(5) if weight is None else weight, accumulate=True)
    assert_accurate(matrix_of(a), normalized(dense), normalized(dense.double()))


@pytest.mark.parametrize("weights", ["gcn", "mean"])
def test_rank_one_weights_store_no_values(weights: str) -> None:
    a = make(random_graph(60, 60, 0.1, weighted=False), "cpu", values=weights, format="window")
    assert a.stats()["bytes"]["values"] == 0
    assert a.kernels.values is None
    assert a.kernels.blocked.values is None
    ones = gnnsparse.prepare(EDGES[:, [0, 1]], num_nodes=4, values=torch.ones(2))
    assert ones.kernels.values is None


@given(
    n=st.integers(1, 15),
    count=st.integers(0, 60),
    reorder=st.sampled_from(["none", "degree", "rcm", "metis", "community"]),
    loops=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_orders_of_edge_values(n: int, count: int, reorder: str, loops: bool, seed: int) -> None:
    """Values given by edge reach the right places, there and in the transpose, and come back."""
    generator = torch.Generator().manual_seed(seed)
    edges = torch.randint(0, n, (2, count), generator=generator)
    values = torch.randn(count, generator=generator)
    a = gnnsparse.prepare(edges, num_nodes=n, values="gcn" if loops else None, reorder=reorder, cache=False)
    assert a.num_edges == count
    mine = a.from_coo_order(values)
    plain, exact, squares = (
        torch.zeros(n, n, dtype=v.dtype).index_put((edges[1], edges[0]), v, accumulate=True)
        for v in (values, values.double(), values.double().square())
    )
    got = torch.zeros(n, n).index_put(tuple(a.indices()), mine)
    assert_accurate(got, plain, exact, scale=squares.sqrt())  # the values of an edge given twice may cancel
    back = torch.zeros(n, n).index_put(tuple(a.T.indices()), a.transpose_values(mine))
    assert torch.equal(back, got.T)
    assert torch.equal(a.to_coo_order(mine), got[edges[1], edges[0]])
    assert torch.equal(a.T.to_coo_order(a.transpose_values(mine)), got[edges[1], edges[0]])
    assert torch.equal(a.T.transpose_values(a.transpose_values(mine)), mine)
    heads = torch.stack([values, 2 * values], 1)
    assert torch.equal(a.from_coo_order(heads)[:, 1], 2 * mine)


def test_edge_values_are_differentiable() -> None:
    a = gnnsparse.prepare(EDGES, num_nodes=4, reorder="degree")
    values = torch.randn(5, requires_grad=True)
    (3 * a.to_coo_order(a.from_coo_order(values))).sum().backward()
    # The two edges 1 -> 0 are summed into one, which both read back.
    assert torch.equal(values.grad, torch.tensor([3.0, 6.0, 6.0, 3.0, 3.0]))


def test_density_is_of_the_windows() -> None:
    """Rows that are kept out do not count."""
    for panel, windows, columns in ((16, 6, 192), (32, 6, 96)):
        full = make(random_graph(96, 32, 1.0), "cpu", format="hrpb", panel=panel, precision="tf32").stats()
        assert (full["density"], full["windows"], full["columns"]) == (1.0, windows, columns)
    graph = random_graph(400, 400, 0.02, hubs=8, seed=3)
    a = make(graph, "cpu", format="rs-tile", precision="tf32")
    blocked = a.kernels.require_blocked()
    assert blocked.residual is not None
    assert a.stats()["density"] == (graph.nnz - blocked.residual.nnz) / (8 * blocked.slots)


@pytest.mark.parametrize(("name", "precision"), FORMAT_PRECISIONS)
def test_stats(name: str, precision: str) -> None:
    graph = random_graph(100, 80, 0.1)
    a = make(graph, "cpu", format=name, precision=precision)
    stats = a.stats()
    assert (stats["rows"], stats["cols"], stats["nnz"]) == (100, 80, graph.nnz)
    assert stats["format"] == name
    kernel = "csr" if name in FREE_FORMATS else "blocked"
    chosen = {op: of["name"] for op, of in stats["kernel"].items()}
    assert chosen == dict.fromkeys(operations(name), kernel)
    assert stats["kernel"]["spmm"]["why"]
    assert a.plan(8).kernel == kernel
    if name == "csr":
        assert stats["format_bytes"] is None
    elif name == "window":
        assert stats["format_bytes"] == {"stored": stats["bytes"]["blocked"], "paper": None}
    else:
        stored, paper = stats["format_bytes"]["stored"], stats["format_bytes"]["paper"]
        assert 0 < paper < stored == stats["bytes"]["blocked"]
    assert not stats["symmetric"]
    assert (stats["windows"] is None) == (name == "csr")
    assert 0 < stats["density"] <= 1
    assert stats["columns"] is None or stats["density"] < 0.9
    assert stats["bytes"]["csr"] == 8 * 101 + 4 * graph.nnz


def test_symmetric_graphs_share_one_structure() -> None:
    graph = random_graph(80, 80, 0.1, weighted=False, symmetric=True)
    a = make(graph, "cpu", values="gcn", format="window")
    assert a.stats()["symmetric"]
    assert a.T.kernels.csr is a.kernels.csr
    assert a.T.kernels.blocked is a.kernels.blocked
    directed = make(random_graph(80, 80, 0.1, weighted=False), "cpu", values="gcn", format="window")
    assert not directed.stats()["symmetric"]
    assert directed.T.kernels.csr is not directed.kernels.csr
    assert directed.T.kernels.blocked is not directed.kernels.blocked


def test_transpose_of_the_transpose() -> None:
    a = make(random_graph(30, 20, 0.2), "cpu")
    assert a.T.T is a
    transposed = a.T
    want = matrix_of(a)
    del a
    gc.collect()
    assert torch.equal(matrix_of(transposed), want.T)
    assert torch.equal(matrix_of(transposed.T), want)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_moving_between_devices(precision: str) -> None:
    graph = random_graph(90, 90, 0.1)
    a = gnnsparse.prepare(graph, precision=precision, cache=False)
    there = a.cuda()
    assert there.device.type == "cuda"
    assert there.stats()["format"] == ("window" if precision == "fp16" else "csr")
    x, dense = torch.randn(90, 40), dense_matrix(graph, None)
    for mine, matrix in ((there, dense), (there.T, dense.T)):
        assert_accurate(mine @ x.cuda(), plain_product(matrix, x, precision), matrix @ x.double())
    assert torch.equal(a.T.cuda().T.cpu() @ x, a @ x)
    assert there.to("cuda:0") is there
    assert there.cpu().stats()["format"] == "csr"


@pytest.mark.gpu
@pytest.mark.parametrize("name", FORMATS)
def test_gpu_conversion_gives_the_cpu_arrays(name: str) -> None:
    graph = random_graph(333, 200, 0.05, hubs=2, empty_rows=0.2)
    host = make(graph, "cpu", format=name, precision=precision_for(name)).kernels
    there = make(graph, "cuda", format=name, precision=precision_for(name)).kernels
    assert torch.equal(there.csr.indices.cpu(), host.csr.indices)
    if host.blocked is None:
        assert there.blocked is None
        return
    assert host.blocked.arrays.keys() == there.blocked.arrays.keys()
    for key, array in host.blocked.arrays.items():
        assert torch.equal(there.blocked.arrays[key].cpu(), array), key


G = random_graph(12, 12, 0.3)
A = make(G, "cpu")
R = make(random_graph(5, 7, 0.3), "cpu")
BAD: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
    (None, {}, TypeError, "graph"),
    ([1, 2, 3, 4], {}, TypeError, "graph"),
    (torch.eye(3), {}, TypeError, "edge_index"),
    (EDGES, {"precision": "fp7"}, ValueError, "precision.*fp7.*fp32"),
    (EDGES, {"precision": 16}, TypeError, "precision"),
    (EDGES, {"format": 3}, TypeError, "format"),
    (EDGES, {"format": "window", "panel": 32}, ValueError, "panel"),
    (EDGES, {"format": "hrpb", "panel": 64}, ValueError, "panel.*64"),
    (EDGES, {"values": "max"}, ValueError, "values.*max.*gcn"),
    (EDGES, {"edge_weight": torch.ones(5)}, ValueError, "edge_weight"),
    (EDGES, {"num_cols": 4}, ValueError, "num_cols"),
    (EDGES, {"cache": 1}, TypeError, "cache"),
    (EDGES, {"self_loop_weight": "2"}, TypeError, "self_loop_weight"),
    (G, {"num_nodes": 3}, ValueError, "num_nodes"),
    (([0, 2, 3], [1, 1, 0, 2]), {"num_nodes": 3}, ValueError, "sources and targets have 3 and 4 .*CSR"),
    (([0, 2], [1, 3]), {"num_nodes": 3}, ValueError, "edge_index"),
    (([0.5], [1]), {"num_nodes": 3}, TypeError, r"graph\[0\]"),
    (([0], [1]), {"num_nodes": 3, "num_cols": 3}, ValueError, "num_cols"),
    (([0, 1], [0], [1.0]), {"num_nodes": 3}, ValueError, "num_nodes"),
    (sp.eye(3), {"values": torch.ones(3)}, ValueError, "values"),
    (random_graph(5, 7, 0.2), {"values": "gcn"}, ValueError, "values.*square"),
]


BAD_CALLS: list[tuple[Any, type[Exception], str]] = [
    *((functools.partial(gnnsparse.prepare, graph, **options), *error) for graph, options, *error in BAD),
    (lambda: A @ torch.randn(11, 4), ValueError, r"x.*\(11, 4\).*12"),
    (lambda: A @ torch.randn(12, 4, 2, 2), ValueError, "x"),
    (lambda: A @ torch.randn(12, 4).double(), TypeError, "x.*float64.*float32"),
    (lambda: A @ torch.randn(12, 4).to_sparse(), TypeError, "x"),
    (lambda: A @ "x", TypeError, "x"),
    (lambda: A @ torch.randn(12, 4, device="meta"), ValueError, "x.*meta"),
    (lambda: torch.randn(4, 12) @ A, TypeError, "A.T @ x.T"),
    (lambda: gnnsparse.spmm(G, torch.randn(12, 4)), TypeError, "A.*prepare"),
    (lambda: gnnsparse.spmm(A, torch.randn(12, 4), torch.ones(3)), ValueError, "values"),
    (lambda: gnnsparse.spmm(A, torch.randn(12, 4), "gcn"), TypeError, "values"),
    (lambda: gnnsparse.spmm(A, torch.randn(12, 4), impl="fast"), ValueError, "impl.*fast.*reference"),
    (lambda: gnnsparse.spmm(A, torch.randn(12, 4), impl="cuda"), ValueError, "impl.*cpu"),
    (lambda: gnnsparse.sddmm(R, torch.randn(5, 4), torch.randn(5, 4)), ValueError, "k.*7"),
    (lambda: gnnsparse.sddmm(R, torch.randn(5, 4), torch.randn(7, 3)), ValueError, "k.*3.*4"),
    (lambda: gnnsparse.edge_softmax(A, torch.randn(A.nnz + 1)), ValueError, "scores"),
    (lambda: gnnsparse.edge_softmax(A, torch.ones(A.nnz, dtype=torch.int32)), TypeError, "scores"),
    (lambda: A.to_coo_order(torch.ones(A.nnz + 1)), ValueError, "values"),
    (lambda: A.to_coo_order(torch.ones(A.nnz).to_sparse()), TypeError, "values"),
    (lambda: A.from_coo_order(torch.ones(A.num_edges).to_sparse()), TypeError, "values"),
    (lambda: A.transpose_values(torch.ones(A.nnz).to_sparse()), TypeError, "values"),
    (lambda: A.from_coo_order(torch.ones(3)), ValueError, "values"),
    (lambda: format_spec("ell"), ValueError, "format.*ell"),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD_CALLS)
def test_bad_calls(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("shape", [(0, 0), (0, 4), (4, 0), (3, 3), (1, 1), (9, 1), (1, 9)])
@pytest.mark.parametrize("weights", [None, "mean"])
def test_degenerate_matrices_are_legal(name: str, shape: tuple[int, int], weights: str | None) -> None:
    for density in (0.0, 1.0):
        graph = random_graph(*shape, density, weighted=False)
        a = make(graph, "cpu", format=name, precision=precision_for(name), values=weights, reorder="degree")
        x = torch.randn(shape[1], 3)
        dense = dense_matrix(graph, weights)
        plain, exact = plain_product(dense, x, a.precision), dense @ x.double()
        assert_accurate(a @ x, plain, exact, scale=product_scale(dense, x))
        if "sddmm" in operations(name):
            assert gnnsparse.sddmm(a, torch.randn(shape[0], 2), torch.randn(shape[1], 2)).shape == (a.nnz,)
            assert gnnsparse.edge_softmax(a, torch.randn(a.nnz)).shape == (a.nnz,)
        assert a.T.shape == shape[::-1]
        a.stats()


def test_edge_index_class_of_pyg() -> None:
    pyg = pytest.importorskip("torch_geometric")
    edge_index = pyg.EdgeIndex(EDGES, sparse_size=(4, 4))
    assert torch.equal(matrix_of(gnnsparse.prepare(edge_index)), matrix_of(gnnsparse.prepare(EDGES)))


def test_graph_with_other_values() -> None:
    """Values for a SparseGraph are in the order of the edges it was made of."""
    graph = SparseGraph.from_edge_index(EDGES, 4)
    values = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    want = torch.zeros(4, 4).index_put((EDGES[1], EDGES[0]), values, accumulate=True)
    assert torch.equal(matrix_of(gnnsparse.prepare(graph, values=values)), want)


def test_values_beyond_the_range_of_the_precision() -> None:
    edges = torch.tensor([[0, 1, 1], [1, 0, 0]])
    weights = torch.tensor([-7e4, 4e4, 4e4])
    for precision in ("fp32", "tf32", "bf16"):
        gnnsparse.prepare(edges, values=weights, precision=precision, cache=False)
    with pytest.raises(ValueError, match=r"values: the largest.* is 80000; .*fp16.* at most 65504"):
        gnnsparse.prepare(edges, values=weights, precision="fp16", cache=False)
    gnnsparse.prepare(edges, values=weights / 2, precision="fp16", cache=False)
    gnnsparse.prepare(edges, values="gcn", edge_weight=weights.abs(), precision="fp16", cache=False)
    with pytest.raises(ValueError, match=r"values: the largest.* is inf; .*fp32"):
        gnnsparse.prepare(edges, values=torch.tensor([1.0, 2e38, 2e38]), cache=False)
