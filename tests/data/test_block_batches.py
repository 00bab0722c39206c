"""Batches of graphs against the graphs one by one, and pooling against loops."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph, SparseOperand
from gnnsparse.data import BlockBatch, BlockBatches, block_diagonal
from gnnsparse.nn import pool_graphs
from gnnsparse.runtime import device as device_module
from gnnsparse.testing import assert_accurate, random_graph
from tests.gpu_paths import RecordingPath
from tests.helpers import ROUNDING, plain_product, product_scale

SIZES = (3, 7, 1, 5, 9)


def graphs(symmetric: bool = False) -> list[SparseGraph]:
    return [random_graph(n, n, 0.4, seed=n, weighted=not symmetric, symmetric=symmetric) for n in SIZES]


def batches_of(
    blocks: list[SparseGraph], values: str | None, device: str = "cpu", precision: str = "fp32"
) -> BlockBatches:
    whole, ptr = block_diagonal(blocks)
    whole = (whole if values is None else SparseGraph(whole.csr)).to(device)
    options = {"values": values, "precision": precision, "format": "csr", "cache": False}
    return BlockBatches(gnnsparse.prepare(whole, **options), ptr)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("values", [None, "gcn", "mean"])
def test_products_are_those_of_the_graphs(device: str, values: str | None, symmetric: bool) -> None:
    blocks, chosen = graphs(symmetric), [4, 0, 2, 0]
    batch = batches_of(blocks, values, device).select(torch.tensor(chosen))
    rows = [SIZES[i] for i in chosen]
    assert batch.graph_ptr.tolist() == [0, *torch.tensor(rows).cumsum(0).tolist()]
    plain = [blocks[i] if values is None else SparseGraph(blocks[i].csr) for i in chosen]
    single = [gnnsparse.prepare(graph, values=values, cache=False) for graph in plain]
    dense = torch.block_diag(*(one.to_dense().double() for one in single))
    x = torch.randn(sum(rows), 5)
    assert batch.adj.shape == dense.shape
    assert (batch.adj.normalization, batch.adj.nnz) == (values, sum(one.nnz for one in single))
    edge = torch.randn(batch.adj.nnz)
    weighted = torch.zeros_like(dense).index_put(tuple(batch.adj.indices().cpu()), edge.double())
    forward = edge.to(device)
    back = batch.adj.transpose_values(forward)
    for operand, of_edges, matrix, other in (
        (batch.adj, forward, dense, weighted), (batch.adj.T, back, dense.T, weighted.T)
    ):  # fmt: skip
        found = (operand @ x.to(device)).cpu()
        assert_accurate(found, matrix.float() @ x, matrix @ x.double())
        found = gnnsparse.spmm(operand, x.to(device), of_edges).cpu().double()
        torch.testing.assert_close(found, other @ x.double(), rtol=1e-5, atol=1e-5)


def check(found: torch.Tensor, alone: SparseOperand, x: torch.Tensor, precision: str) -> None:
    matrix = alone.to_dense().double()
    floor, scale = max(ROUNDING[precision], 1e-6), product_scale(matrix, x)
    assert_accurate(found, plain_product(matrix, x, precision), matrix @ x.double(), floor=floor, scale=scale)


@pytest.mark.usefixtures("poisoned", "copyless")
@pytest.mark.parametrize("values", [None, "gcn"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_products_of_emulated_kernels(precision: str, values: str | None) -> None:
    """Of packed batches, and of padded ones one after another in the same arrays, with a split row."""
    blocks = [random_graph(n, n, 0.4, seed=n) for n in (3, 7, 1, 15, 9)]
    packed = batches_of(blocks, values, precision=precision)
    for batch in packed.split(torch.tensor([4, 0, 1, 3, 3, 2, 1]), [2, 1, 4]):
        for adj in (batch.adj, batch.adj.T):
            x = torch.randn(adj.shape[1], 16)
            check(adj @ x, adj, x, precision)
    star = torch.stack([torch.arange(300), torch.zeros(300, dtype=torch.int64)])
    batches = batches_of([*blocks, SparseGraph.from_edge_index(star, 300)], values, precision=precision)
    padded = batches.padded(3, 384, 1024)
    for graphs in ([4, 0, 5], [1, 3, 3], [5, 2, 1]):
        padded.chosen[:-1].copy_(torch.tensor(graphs))
        padded.assemble()
        batch = batches.select(torch.tensor(graphs))
        nodes = batch.adj.shape[0]
        for adj, alone in ((padded.adj, batch.adj), (padded.adj.T, batch.adj.T)):
            x = torch.randn(384, 16)
            found = adj @ x
            check(found[:nodes], alone, x[:nodes], precision)
            assert not found[nodes:].any()


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("symmetric", [False, True])
def test_functions_over_edges(device: str, symmetric: bool) -> None:
    """Of batches, and of padded ones, whose edges of padding have results and gradients of 0."""

    def message(x_j: torch.Tensor, e_ij: torch.Tensor, a_ij: torch.Tensor, weight: torch.Tensor) -> Any:
        return x_j * e_ij * 2, e_ij + torch.nn.functional.linear(a_ij, weight)

    batches, width = batches_of(graphs(symmetric), None, device), 160
    padded = batches.padded(3, 128, 256)
    for chosen in ([4, 0, 2], [1, 3, 3], [2, 2, 1]):
        padded.chosen[:-1].copy_(torch.tensor(chosen))
        padded.assemble()
        for adj in (batches.select(torch.tensor(chosen)).adj, padded.adj):
            edges, (rows, cols) = batches.select(torch.tensor(chosen)).adj.nnz, adj.indices()
            shapes = (adj.shape[1], width), (adj.nnz, width), (adj.nnz, 3), (width, 3)
            given = [torch.randn(shape, device=device, requires_grad=True) for shape in shapes]
            x, e, a, weight = given
            mean, new = gnnsparse.aggregate_edges(
                adj, message, reduce=("mean", "none"), x_j=x, e_ij=e, a_ij=a, weight=weight
            )
            counts = rows[:edges].bincount(minlength=len(x)).clamp(min=1)[:, None]
            exact = torch.zeros_like(x).index_add(0, rows[:edges], (x[cols] * e * 2)[:edges]) / counts
            torch.testing.assert_close(mean, exact, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(new[:edges], (e + a @ weight.T)[:edges], rtol=1e-4, atol=1e-5)
            assert not new[edges:].any()
            probe = torch.randn_like(x), torch.randn_like(e)
            found = torch.autograd.grad([mean, new], given, probe)
            want = torch.autograd.grad(
                [exact, (e + a @ weight.T)[:edges]], given, (probe[0], probe[1][:edges])
            )
            for one, other in zip(found, want, strict=True):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def arrays_of(batch: BlockBatch) -> list[torch.Tensor]:
    """Every array of a batch, in both orientations."""
    found = [batch.nodes, batch.graph_ptr, batch.adj.prepared.transpose_map]
    for matrix in (batch.adj.prepared.forward, batch.adj.prepared.backward):
        given = matrix.own_values(), matrix.given_row_scale, matrix.given_col_scale
        found += [matrix.csr.indptr, matrix.csr.indices, *(part for part in given if part is not None)]
    return found


@given(
    chosen=st.lists(st.lists(st.integers(0, len(SIZES) - 1), min_size=1, max_size=6), min_size=1, max_size=5),
    values=st.sampled_from([None, "gcn", "mean"]), symmetric=st.booleans(),
)  # fmt: skip
@settings(max_examples=40, deadline=None)
def test_batches_that_are_made_at_once_are_those_made_one_by_one(
    chosen: list[list[int]], values: str | None, symmetric: bool
) -> None:
    whole = batches_of(graphs(symmetric), values)
    packed = torch.tensor([i for batch in chosen for i in batch])
    found = whole.split(packed, [len(batch) for batch in chosen])
    dense = whole.select(torch.arange(len(SIZES))).adj.to_dense()
    ends = torch.tensor(SIZES).cumsum(0).tolist()
    rows = [slice(end - size, end) for end, size in zip(ends, SIZES, strict=True)]
    for batch, ids in zip(found, chosen, strict=True):
        assert torch.equal(batch.adj.to_dense(), torch.block_diag(*(dense[rows[i], rows[i]] for i in ids)))
        assert batch.nodes.tolist() == [row for i in ids for row in range(ends[i] - SIZES[i], ends[i])]
        one = whole.select(torch.tensor(ids))
        mine, right = arrays_of(batch), arrays_of(one)
        assert len(mine) == len(right)
        assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(mine, right, strict=True))
        x = torch.randn(batch.adj.shape[1], 3)
        for a, b in ((batch.adj, one.adj), (batch.adj.T, one.adj.T)):
            assert torch.equal(a @ x, b @ x)
            assert (a.nnz, a.num_edges, a.has_self_loops) == (b.nnz, b.num_edges, b.has_self_loops)
    assert whole.elements(packed) == sum(batch.adj.nnz + batch.adj.shape[0] for batch in found)


def test_nothing_waits_for_a_gpu_and_plans_are_shared() -> None:
    """Neither the making of batches nor their first products: a launch costs less than a wait."""
    path = RecordingPath()
    waits: list[torch.device] = []
    path.finish = waits.append  # type: ignore[method-assign]
    with device_module.use(path):
        whole = batches_of(graphs(), "gcn")
        waits.clear()
        found = whole.split(torch.arange(5).repeat(4), [7, 6, 7])
        plans = []
        for batch in found:
            for operand in (batch.adj, batch.adj.T):
                operand @ torch.randn(operand.shape[1], 32)
                plans.append(operand.plan(32))
        assert waits == []
        assert len(path.calls) == 6
        assert [plan is plans[at % 2] for at, plan in enumerate(plans)] == [True] * 6
        assert all(plan.kernel == "csr" and plan.group == 0 for plan in plans)  # type: ignore[attr-defined]
        for batch in found:
            adj = batch.adj
            for array in (adj.kernels.csr.indices, adj.T.kernels.csr.indices, adj.prepared.transpose_map):
                assert array.data_ptr() % 16 == 0, "kernels read several indices at a time"


def test_long_rows_are_cut() -> None:
    """Where a graph has a hub, the work list of a batch is made of its rows."""
    star = torch.stack([torch.arange(1, 900), torch.zeros(899, dtype=torch.int64)])
    whole, ptr = block_diagonal([SparseGraph.from_edge_index(star, 900)] * 3)
    with device_module.use(RecordingPath()):
        batches = BlockBatches(gnnsparse.prepare(whole, cache=False), ptr)
        batch = batches.select(torch.tensor([1, 2]))
        batch.adj @ torch.randn(1800, 32)
        limit = batch.adj.plan(32).row_limit  # type: ignore[attr-defined]
        assert limit < 899
        assert batch.adj.kernels.row_work(limit).cuts.shape[0] == 2


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_no_synchronisation_on_a_gpu() -> None:
    whole, host = (batches_of(graphs(), "gcn", device) for device in ("cuda", "cpu"))
    chosen, sizes = torch.tensor([4, 1, 1, 3, 0, 2]), [2, 3, 1]
    x = torch.randn(40, 16)
    whole.split(chosen, sizes)  # chooses nothing, but initialises what torch keeps
    before = torch.cuda.get_sync_debug_mode()
    on_gpu = x.cuda()
    try:
        torch.cuda.set_sync_debug_mode("error")
        found = [batch.adj @ on_gpu[: batch.adj.shape[1]] for batch in whole.split(chosen, sizes)]
    finally:
        torch.cuda.set_sync_debug_mode(before)
    for mine, batch in zip(found, host.split(chosen, sizes), strict=True):
        torch.testing.assert_close(mine.cpu(), batch.adj @ x[: batch.adj.shape[1]])


def test_what_batches_refuse() -> None:
    whole, ptr = block_diagonal(graphs())
    operand = gnnsparse.prepare(whole, cache=False)
    batches = BlockBatches(operand, ptr)
    assert len(batches) == len(SIZES)
    reordered = gnnsparse.prepare(whole, reorder="degree", cache=False)
    joined = gnnsparse.prepare(torch.tensor([[0, 1, 1], [1, 2, 1]]), cache=False)
    chosen, outside = torch.tensor([0, 1, 1]), "graphs: is empty, or has numbers out of range; accepted: 0 "
    cases: list[tuple[Callable[..., Any], tuple[Any, ...], str]] = [
        (batches.select, (torch.tensor([5]),), outside),
        (batches.select, (torch.tensor([-1]),), outside),
        (batches.select, (torch.zeros(0, dtype=torch.int64),), outside),
        (batches.select, (torch.tensor([1.0]),), "graphs: got a tensor of dtype"),
        (batches.select, ([0],), "graphs: got list"),
        (batches.split, (chosen, [2, 2]), "sizes: are 4 together; accepted: 3, as many as graphs"),
        (batches.split, (chosen, [3, 0]), "sizes: got 0; accepted: a positive integer"),
        (batches.split, (chosen, [1.0, 2]), "sizes: got float"),
        (BlockBatches, (whole, ptr), "operand: got SparseGraph"),
        (BlockBatches, (reordered, ptr), "operand: has reordered rows"),
        (BlockBatches, (operand, ptr[:-1]), "graph_ptr: does not lead from 0 to 25"),
        (BlockBatches, (joined, torch.tensor([0, 1, 3])), "graph_ptr: an edge joins two of its graphs"),
    ]
    for call, arguments, message in cases:
        with pytest.raises((ValueError, TypeError), match=re.escape(message)):
            call(*arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pool", ["sum", "mean", "max"])
def test_pooling(device: str, pool: str, dtype: torch.dtype) -> None:
    lengths = [3, 1, 0, 40, 2]
    ptr = torch.tensor([0, *torch.tensor(lengths).cumsum(0).tolist()], device=device)
    x = torch.randn(sum(lengths), 6, device=device).to(dtype).requires_grad_()
    found = pool_graphs(x, ptr, pool)
    assert (found.dtype, found.shape) == (dtype, (5, 6))

    def loop(values: torch.Tensor) -> torch.Tensor:
        reduce = {"sum": lambda p: p.sum(0), "mean": lambda p: p.mean(0), "max": lambda p: p.amax(0)}[pool]
        parts = values.split(lengths)
        return torch.stack([reduce(part) if len(part) else part.new_zeros(6) for part in parts])

    exact = loop(x.detach().double().cpu())
    # A sum of 40 terms of size 1 rounds 40 partial sums of up to some 20, in whatever order a CPU takes.
    rounds = 40 if dtype in (torch.float32, torch.float64) else 6  # these add up in float32
    tolerance = {"rtol": 3 * torch.finfo(dtype).eps, "atol": rounds * torch.finfo(dtype).eps}
    torch.testing.assert_close(found.cpu().double(), exact, **tolerance)
    assert torch.equal(found, pool_graphs(x, ptr, pool)), "the same in every run"
    weights = torch.randn(5, 6, dtype=torch.float64)
    (gradient,) = torch.autograd.grad(found, x, weights.to(device, dtype))
    twin = x.detach().double().cpu().requires_grad_()
    (want,) = torch.autograd.grad(loop(twin), twin, weights.to(dtype).double())
    torch.testing.assert_close(gradient.cpu().double(), want, **tolerance)


@given(st.lists(st.integers(0, 70), max_size=12), st.integers(0, 40), st.booleans())
@settings(max_examples=40, deadline=None)
def test_sums_are_those_of_torch_bit_for_bit(lengths: list[int], width: int, strided: bool) -> None:
    ptr = torch.tensor([0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()])
    x = torch.randn(width, sum(lengths)).T if strided else torch.randn(sum(lengths), width)
    x.requires_grad_()
    found = pool_graphs(x, ptr)
    if not lengths:
        assert found.shape == (0, width)
        return
    plain = torch.segment_reduce(x.detach(), "sum", offsets=ptr, initial=0.0, unsafe=True)
    assert torch.equal(found, plain)
    weights = torch.randn_like(found)
    (gradient,) = torch.autograd.grad(found, x, weights, create_graph=True)
    assert torch.equal(gradient, weights.repeat_interleave(ptr.diff(), 0))


def test_pooling_where_a_call_is_not_direct() -> None:
    ptr, x = torch.tensor([0, 3, 3, 7]), torch.randn(7, 5)
    plain = torch.stack([part.sum(0) for part in x.split([3, 0, 4])])
    compiled = torch.compile(lambda x: pool_graphs(x, ptr), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), plain)
    gradient = torch.func.grad(lambda x: pool_graphs(x, ptr).square().sum())(x)
    torch.testing.assert_close(gradient, 2 * plain.repeat_interleave(ptr.diff(), 0))
    ptr, x = torch.tensor([0, 2, 3]), torch.randn(3, 2, requires_grad=True)
    (first,) = torch.autograd.grad(pool_graphs(x, ptr).pow(3).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    sums = torch.stack([x[:2].sum(0)] * 2 + [x[2]])
    torch.testing.assert_close(second, 6 * sums * torch.tensor([[2.0], [2.0], [1.0]]))


@pytest.mark.parametrize(
    ("x", "ptr", "pool", "message"),
    [
        (torch.ones(3, 2), torch.tensor([0, 3]), "median", "pool: got 'median'; accepted: sum, mean, max"),
        (torch.ones(3, 2), torch.tensor([0, 2]), "sum", "graph_ptr: does not ascend from 0 to 3"),
        (torch.ones(3, 2), torch.tensor([0, 2, 1, 3]), "sum", "graph_ptr: does not ascend"),
        (torch.ones(3, 2), torch.tensor([0.0, 3.0]), "sum", "graph_ptr: got a tensor of dtype"),
        (torch.ones(3), torch.tensor([0, 3]), "sum", "x: has shape (3,)"),
    ],
)
def test_what_pooling_refuses(x: torch.Tensor, ptr: torch.Tensor, pool: str, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        pool_graphs(x, ptr, pool)
