"""spmm, sddmm and edge_softmax of several heads at once, with their gradients, against float64."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.plan import Plan
from gnnsparse.testing import assert_all_accurate, random_graph
from tests.gpu_paths import RecordingPath
from tests.helpers import PRECISIONS, ROUNDING, make, plain_product, product_scale
from tests.ops.conftest import Place, graphs
from tests.ops.reductions import compare, on_grid

#: Heads and features of each.
SHAPES = ((1, 1), (1, 40), (2, 8), (3, 5), (16, 1), (4, 7), (8, 16), (2, 47), (17, 3), (1, 128), (4, 128))
#: Lanes of a vector of features and of a row, and the longest row that is not cut.
PLANS = tuple(
    Plan("csr", *lanes, row_limit=limit)
    for *lanes, limit in (
        (1, 1, 8), (1, 32, 8), (2, 8, 50), (8, 8, 9), (32, 32, 8), (1, 32, 10_000), (4, 16, 10_000),
        (32, 32, 10_000),
    )
)  # fmt: skip
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def by_head(function: Any, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """A function of each head by itself: x[:, h] and others[:, h]."""
    return torch.stack([function(*(t[:, h] for t in (x, *others))) for h in range(x.shape[1])], 1)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("shape", SHAPES)
def test_products_match_float64(device: str, precision: str, shape: tuple[int, int]) -> None:
    """Each head beside a dense matrix of its own."""
    heads, width = shape
    graph = random_graph(90, 130, 0.08, weighted=False, hubs=2, empty_rows=0.1)
    a = make(graph, device, precision=precision, reorder="degree")
    x, values, q = torch.randn(130, heads, width), torch.randn(a.nnz, heads), torch.randn(90, heads, width)
    y = gnnsparse.spmm(a, x.to(device), values.to(device)).cpu()
    scores = gnnsparse.sddmm(a, q.to(device), x.to(device)).cpu()
    assert y.shape == (90, heads, width)
    assert scores.shape == (a.nnz, heads)
    row, col = a.indices().cpu()
    floor = max(ROUNDING[precision], 1e-6)

    def results(dense: Any, dots: Any) -> tuple[torch.Tensor, torch.Tensor]:
        def multiply(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            return dense(x.new_zeros(90, 130).index_put((row, col), values), x)

        return by_head(multiply, x, values), by_head(lambda x, q: dots(q, x.T)[row, col], x, q)

    plain = results(*[partial(plain_product, precision=precision)] * 2)
    exact = results(*[lambda m, x: m.double() @ x.double()] * 2)
    sizes = results(product_scale, product_scale)
    assert_all_accurate((y, scores), plain, exact, floor=floor, scales=sizes)


def operand(device: str, precision: str) -> gnnsparse.SparseOperand:
    """40 x 130 with hubs among its rows; the transpose has them among its columns."""
    graph = random_graph(40, 130, 0.06, weighted=False, hubs=2, empty_rows=0.2)
    return make(graph, device, precision=precision)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients(place: Place, precision: str, shape: tuple[int, int]) -> None:
    """Of every reduction, without heads, too; the pass over the transpose has hubs, too."""
    a = operand(place.device, precision)
    dtypes = dict.fromkeys((torch.float32, a.precision.storage))
    if place.path is None and shape in ((2, 8), (3, 5), (16, 1)):
        dtypes = dict.fromkeys(DTYPES)
    for of, dtype in itertools.product((a, a.T), dtypes):
        x, q = (on_grid(of.shape[side], *shape, seed=side).to(dtype) for side in (1, 0))
        values = on_grid(a.nnz, shape[0], seed=1, step=0.5, most=3).to(dtype)
        for reduce in ("sum", "mean", "max", "min"):
            compare(gnnsparse.spmm, of, [x, values], reduce=reduce)
            if shape == (4, 7):
                compare(gnnsparse.spmm, of, [x.flatten(1)], reduce=reduce)
                compare(gnnsparse.spmm, of, [x.flatten(1), values[:, 0]], reduce=reduce)
        compare(gnnsparse.sddmm, of, [q, x])
    if shape[0] > 1:  # one head takes the kernels of rows without heads
        assert place.ran("cuda_spmm_heads", "cuda_spmm_extreme", "cuda_sddmm_heads")


def test_heads_that_share_weights_are_columns(device: str, precision: str) -> None:
    graph = random_graph(90, 90, 0.1, weighted=False, hubs=1, empty_rows=0.1)
    a = make(graph, device, precision=precision, values="gcn")
    x, values = torch.randn(90, 3, 20, device=device), torch.randn(a.nnz, device=device)
    for reduce in ("sum", "mean", "max"):
        for given_values in ((), (values,)):
            y = gnnsparse.spmm(a, x, *given_values, reduce=reduce)
            flat = gnnsparse.spmm(a, x.flatten(1), *given_values, reduce=reduce)
            assert torch.equal(y, flat.view(90, 3, 20))
    assert torch.equal(gnnsparse.spmm(a, x), (a @ x.flatten(1)).view(90, 3, 20))


@pytest.mark.parametrize("width", [8, 5])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_any_strides(device: str, width: int, precision: str) -> None:
    a = make(random_graph(50, 80, 0.1), device, precision=precision)
    q, values = torch.randn(50, 3, width, device=device), torch.randn(a.nnz, 3, device=device)
    big = torch.randn(160, 6, 40, device=device)
    views = {
        "head-major": torch.randn(3, 80, width, device=device).transpose(0, 1),
        "slice of rows, heads and features": big[::2, 1:4, 3 : 3 + width],
        "every other head": big[:80, ::2, :width],
        "whole rows of more heads": big[:80, :3, :width],
        "one of several in a row": torch.randn(80, 3, 3, width, device=device)[:, 1],
        "expanded heads": torch.randn(80, 1, width, device=device).expand(80, 3, width),
        "features first": torch.randn(width, 3, 80, device=device).permute(2, 1, 0),
        "reversed": big[:80, :3, :width].flip(0, 1, 2),
    }
    for name, x in views.items():
        same = x.clone(memory_format=torch.contiguous_format)
        for reduce in ("sum", "max"):
            got, want = (gnnsparse.spmm(a, t, values, reduce=reduce) for t in (x, same))
            assert torch.equal(got, want), name
        assert torch.equal(gnnsparse.sddmm(a, q, x), gnnsparse.sddmm(a, q, same)), name
    by_column = values.T.contiguous().T
    assert torch.equal(gnnsparse.spmm(a, same, by_column), gnnsparse.spmm(a, same, values))
    assert torch.equal(gnnsparse.edge_softmax(a, by_column), gnnsparse.edge_softmax(a, values))


@pytest.mark.parametrize("shape", [(0, 0), (0, 5), (5, 0), (4, 4)])
@pytest.mark.parametrize("density", [0.0, 1.0])
@pytest.mark.parametrize("size", [(16,), (0,), (3, 4), (0, 4), (3, 0)])
def test_nothing_to_compute(
    device: str, shape: tuple[int, int], density: float, size: tuple[int, ...]
) -> None:
    """Results of every reduction, scores and weights have their shapes, and so have gradients."""
    a = make(random_graph(*shape, density), device, precision="fp16")
    q, x = (torch.randn(rows, *size, device=device, requires_grad=True) for rows in shape)
    values = torch.randn(a.nnz, *size[:-1], device=device, requires_grad=True)
    scores = gnnsparse.edge_softmax(a, gnnsparse.sddmm(a, q, x) + values)
    assert scores.shape == values.shape
    total = scores.square().sum()
    for reduce in ("sum", "mean", "max", "min"):
        for y in (gnnsparse.spmm(a, x, reduce=reduce), gnnsparse.spmm(a, x, values, reduce=reduce)):
            assert y.shape == (shape[0], *size)
            assert a.nnz > 0 or not y.any()
            total = total + y.sum()
    total.backward()
    assert x.grad.shape == x.shape
    assert a.nnz > 0 or not x.grad.any()


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: f"{plan.lanes}-{plan.row_lanes}-{plan.row_limit}")
def test_every_csr_plan(place: Place, precision: str, plan: Plan) -> None:
    """Values of heads, of all heads and the matrix's own; rows are cut and not."""
    a = operand(place.device, precision)
    for of in (a, a.T):
        x, values = on_grid(of.shape[1], 3, 20), on_grid(a.nnz, 3, seed=1, step=0.5, most=3)
        for reduce in ("sum", "mean", "max", "min"):
            compare(gnnsparse.spmm, of, [x, values], reduce=reduce, plan=plan)
            compare(gnnsparse.spmm, of, [x, values[:, 0]], reduce=reduce, plan=plan)
        for reduce, width in itertools.product(("max", "min"), (1, 7, 64, 72)):
            compare(gnnsparse.spmm, of, [on_grid(of.shape[1], width)], reduce=reduce, plan=plan)
        compare(gnnsparse.sddmm, of, [on_grid(of.shape[0], 3, 20), x], plan=plan)


def test_plans_of_other_kernels_are_refused(recorded: RecordingPath) -> None:
    a, panel = operand("cpu", "fp16"), Plan("panel", height=16)
    x, values = torch.randn(130, 3, 8), torch.randn(a.nnz, 3)
    for call in (
        lambda: gnnsparse.spmm(a, x, values, plan=panel),
        lambda: gnnsparse.spmm(a, x[:, 0], reduce="max", plan=panel),
        lambda: gnnsparse.sddmm(a, torch.randn(40, 3, 8), x, plan=panel),
    ):
        with pytest.raises(ValueError, match=r"plan: got panel 16 with heads, .*; accepted: csr"):
            call()


@given(
    graph=graphs(40, 90, (0.0, 0.05, 0.9), weighted=False, hubs=1, empty_rows=0.2), heads=st.integers(1, 17),
    width=st.integers(1, 128), order=st.permutations(range(3)), step=st.integers(1, 2),
    precision=st.sampled_from(PRECISIONS), reduce=st.sampled_from(["sum", "mean", "max", "min"]),
)  # fmt: skip
def test_property(
    place: Place, graph: SparseGraph, heads: int, width: int, order: list[int], step: int, precision: str,
    reduce: str,
) -> None:  # fmt: skip
    a = make(graph, place.device, precision=precision)
    if place.path is not None:
        width = min(width, 40)  # emulated kernels take long
    sizes = (graph.num_cols, heads, width * step)
    stored = on_grid(*(sizes[dim] for dim in order))
    x = stored.permute(*(order.index(dim) for dim in range(3)))[..., ::step]
    values = on_grid(a.nnz, heads, seed=1, step=0.5)
    compare(gnnsparse.spmm, a, [x, values], reduce=reduce)
    compare(gnnsparse.spmm, a, [x[:, 0]], reduce=reduce)
    compare(gnnsparse.spmm, a, [x[:, 0], values[:, 0]], reduce=reduce)
    compare(gnnsparse.sddmm, a, [on_grid(graph.num_rows, heads, width), x])
    compare(gnnsparse.edge_softmax, a, [values])
