"""Products and softmax of several heads at once, and of every reduction, with gradients, against float64."""

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
from gnnsparse.formats.policy import TILE_POLICY
from gnnsparse.plan import Plan
from gnnsparse.testing import assert_accurate, assert_all_accurate, random_graph
from tests.gpu_paths import RecordingPath
from tests.helpers import (
    FREE_FORMATS,
    PRECISIONS,
    ROUNDING,
    has_precision,
    make,
    plain_product,
    product_scale,
)
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
REDUCTIONS = ("mean", "max", "min")
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
        for reduce in ("sum", *REDUCTIONS):
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
@pytest.mark.parametrize("precision", ["fp16", "int8", "fp8"])
def test_nothing_to_compute(
    device: str, shape: tuple[int, int], density: float, size: tuple[int, ...], precision: str
) -> None:
    """Results of every reduction, scores and weights have their shapes, and so have gradients."""
    a = make(random_graph(*shape, density), device, precision=precision)
    q, x = (torch.randn(rows, *size, device=device, requires_grad=True) for rows in shape)
    values = torch.randn(a.nnz, *size[:-1], device=device, requires_grad=True)
    scores = gnnsparse.edge_softmax(a, gnnsparse.sddmm(a, q, x) + values)
    assert scores.shape == values.shape
    total = scores.square().sum()
    for reduce in ("sum", *REDUCTIONS):
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
        for reduce in ("sum", *REDUCTIONS):
            compare(gnnsparse.spmm, of, [x, values], reduce=reduce, plan=plan)
            compare(gnnsparse.spmm, of, [x, values[:, 0]], reduce=reduce, plan=plan)
        for reduce, width in (("max", 1), ("min", 7), ("max", 64), ("min", 72)):
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
    precision=st.sampled_from(PRECISIONS), reduce=st.sampled_from(["sum", *REDUCTIONS]),
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
    compare(gnnsparse.spmm, a, [x[:, -1]], reduce=reduce)
    compare(gnnsparse.spmm, a, [x[:, -1], values[:, -1]], reduce=reduce)
    compare(gnnsparse.sddmm, a, [on_grid(graph.num_rows, heads, width), x])
    compare(gnnsparse.edge_softmax, a, [values])
    compare(gnnsparse.edge_softmax, a, [values[:, -1]])


# The mean, the maximum and the minimum in place of the sum.


def scattered(a: gnnsparse.SparseOperand, x: torch.Tensor, values: torch.Tensor, reduce: str) -> torch.Tensor:
    """The result by torch.scatter_reduce."""
    row, col = a.indices().cpu()
    terms = x[col] * values.reshape(-1, *[1] * (x.dim() - 1))
    at = row.reshape(-1, *[1] * (x.dim() - 1)).expand(terms.shape)
    kind = {"mean": "mean", "max": "amax", "min": "amin"}[reduce]
    return x.new_zeros(a.shape[0], *x.shape[1:]).scatter_reduce(0, at, terms, kind, include_self=False)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("width", [1, 7, 8, 33, 64, 100, 128, 200])
def test_matches_scatter_reduce(device: str, reduce: str, precision: str, width: int) -> None:
    graph = random_graph(150, 130, 0.06, weighted=False, hubs=2, empty_rows=0.2)
    a = make(graph, device, precision=precision, reorder="degree")
    x, values = on_grid(130, width), on_grid(a.nnz, seed=1, step=0.5, most=3)
    ones = torch.ones(a.nnz)
    for weights, given_values in ((ones, None), (values, values)):
        arguments = [t.to(device) for t in (x, given_values) if t is not None]
        y = gnnsparse.spmm(a, *arguments, reduce=reduce)
        exact = scattered(a, x.double(), weights.double(), reduce)
        assert y.dtype == x.dtype
        assert_accurate(y.cpu(), scattered(a, x, weights, reduce), exact)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("name", FREE_FORMATS)
@pytest.mark.parametrize("weights", [None, "gcn", "mean", "random"])
def test_every_format_and_weight(device: str, reduce: str, name: str, weights: str | None) -> None:
    graph = random_graph(90, 90, 0.08, weighted=weights == "random", hubs=2, empty_rows=0.1)
    values = None if weights == "random" else weights
    for precision in ("fp32", "fp16"):
        a = make(graph, device, precision=precision, format=name, values=values)
        x = torch.randn(90, 40)
        y = gnnsparse.spmm(a, x.to(device), reduce=reduce)
        plain = gnnsparse.spmm(a, x.to(device), reduce=reduce, impl="reference")
        exact = gnnsparse.spmm(a, x.double().to(device), reduce=reduce, impl="reference")
        assert_accurate(y, plain, exact, floor=2**-9 if precision == "fp16" else None)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("name", "plan"),
    [
        ("window", Plan("window", tile_limit=1)),
        ("csr", Plan("csr", 8, 32, row_limit=9)),
        ("csr", Plan("csr", 8, 8, group=20)),
        ("csr", Plan("panel", height=16, tile_limit=1)),
        ("csr", Plan("panel", height=32)),
        ("rs-tile", Plan("window", policy=TILE_POLICY)),
    ],
)
@pytest.mark.parametrize("weights", [None, "gcn", "random"])
def test_every_kernel_of_the_mean(
    gpu_place: Place, precision: str, name: str, plan: Plan, weights: str | None
) -> None:
    if (plan.kernel == "window" and precision == "fp32") or not has_precision(name, precision):
        pytest.skip("the window kernel runs on Tensor Cores, and rs-tile in the precision of its paper")
    graph = random_graph(60, 60, 0.1, weighted=weights == "random", hubs=2, empty_rows=0.2)
    values = None if weights == "random" else weights
    a = make(graph, gpu_place.device, precision=precision, format=name, values=values, reorder="degree")
    compare(gnnsparse.spmm, a, [on_grid(60, 40)], reduce="mean", plan=plan)
    if plan.kernel != "panel" and a.kernels.blocked is None:
        compare(gnnsparse.spmm, a, [on_grid(60, 40), on_grid(a.nnz)], reduce="mean", plan=plan)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_a_mean_of_many_does_not_overflow(device: str, precision: str) -> None:
    graph = random_graph(2, 400, 1.0, weighted=False)
    a = make(graph, device, precision=precision)
    x = torch.full((400, 9), 1000.0, dtype=torch.float16, device=device)
    assert torch.equal(gnnsparse.spmm(a, x, reduce="mean"), x[:2])


@pytest.mark.parametrize("reduce", ["max", "min"])
def test_ties_go_to_the_first_nonzero(device: str, reduce: str) -> None:
    a = make(random_graph(12, 300, 0.5, weighted=False, hubs=2), device)
    x = torch.ones(300, 5, device=device, requires_grad=True)
    gnnsparse.spmm(a, x, reduce=reduce).sum().backward()
    row, col = a.indices().cpu()
    first = torch.stack([col[row == r].min() for r in range(12)])
    assert torch.equal(x.grad[:, 0].cpu(), torch.bincount(first, minlength=300).float())


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("reduce", ["max", "min"])
@pytest.mark.parametrize("limit", [9, 1000])
def test_nan_and_infinity(place: Place, reduce: str, precision: str, limit: int) -> None:
    """NaN stays in its rows; rows of one infinity are that, with a gradient; cut rows leave no trace."""
    a = make(random_graph(40, 130, 0.1, weighted=False, hubs=2), place.device, precision=precision)
    x = on_grid(130, 11)
    x[7], x[20:90, 4], x[:, 5], x[:, 6] = torch.nan, torch.inf, -torch.inf, torch.inf
    plan, want = Plan("csr", 8, 32, row_limit=limit), scattered(a, x, torch.ones(a.nnz), reduce)
    leaf, reference = (x.to(place.device).requires_grad_() for _ in range(2))
    y = gnnsparse.spmm(a, leaf, reduce=reduce, plan=plan)
    torch.testing.assert_close(y.detach().cpu(), want, rtol=0, atol=0, equal_nan=True)
    y.sum().backward()
    gnnsparse.spmm(a, reference, reduce=reduce, impl="reference").sum().backward()
    torch.testing.assert_close(leaf.grad, reference.grad, rtol=0, atol=0, equal_nan=True)
