"""spmm, sddmm and edge_softmax of several heads at once, with their gradients, against float64."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse.plan import Plan
from gnnsparse.testing import assert_accurate, assert_all_accurate, random_graph, with_gradients
from tests.helpers import PRECISIONS, ROUNDING, make, plain_product, product_scale
from tests.reductions import compare, on_grid

#: Heads and features of each.
SHAPES = ((1, 1), (1, 40), (2, 8), (3, 5), (16, 1), (4, 7), (8, 16), (2, 47), (17, 3), (1, 128), (4, 128))


def by_head(function: Any, x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """A function of each head by itself: x[:, h] and others[:, h]."""
    return torch.stack([function(*(t[:, h] for t in (x, *others))) for h in range(x.shape[1])], 1)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
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


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_gradients(device: str, precision: str, dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """Of products of every reduction; the pass over the transpose has hubs, too."""
    graph = random_graph(30, 200, 0.06, weighted=False, hubs=2, empty_rows=0.2)
    a = make(graph, device, precision=precision)
    for operand in (a, a.T):
        x, q = (on_grid(operand.shape[side], *shape, seed=side).to(dtype) for side in (1, 0))
        values = on_grid(a.nnz, shape[0], seed=1, step=0.5, most=3).to(dtype)
        for reduce in ("sum", "mean", "max", "min"):
            compare(gnnsparse.spmm, operand, [x, values], reduce=reduce)
        compare(gnnsparse.sddmm, operand, [q, x])


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("heads", [1, 2, 3, 8, 16, 33, 70])
@pytest.mark.parametrize("spread", [0.1, 60.0])
def test_softmax(device: str, dtype: torch.dtype, heads: int, spread: float) -> None:
    """Rows with some masked edges, one with no other, and long ones."""
    for graph in (random_graph(50, 60, 0.2, empty_rows=0.2), random_graph(5, 2000, 0.01, hubs=2)):
        a = make(graph, device)
        scores = (spread * torch.randn(a.nnz, heads)).to(dtype)
        row = a.indices()[0].cpu()
        scores[::7] = scores[row == row[0]] = -torch.inf

        got = gnnsparse.edge_softmax(a, scores.to(device))
        plain, exact = (
            gnnsparse.edge_softmax(a, t.to(device), impl="reference") for t in (scores, scores.double())
        )
        assert_accurate(got, plain, exact)
        assert (got.cpu()[row == row[0]] == 0).all()
        assert_accurate(got[:, 0], gnnsparse.edge_softmax(a, scores[:, 0].to(device)), exact[:, 0])
        check_softmax_gradient(a, scores.to(device))


def check_softmax_gradient(a: gnnsparse.SparseOperand, scores: torch.Tensor) -> None:
    """What the backward pass has of the forward pass are the weights, in their own dtype."""
    weights, got = with_gradients(partial(gnnsparse.edge_softmax, a), [scores])
    assert got.dtype == scores.dtype
    probe = torch.randn(scores.shape, generator=torch.Generator().manual_seed(0)).to(weights)
    row = a.indices()[0]

    def of_row(x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(a.shape[0], *x.shape[1:]).index_add(0, row, x)[row]

    def formula(p: torch.Tensor, dp: torch.Tensor) -> torch.Tensor:
        return p * (dp - of_row(p * dp))

    p, dp = weights.double(), probe.double()
    # The difference cancels where one weight is nearly the whole row.
    size = p * (dp.square() + of_row((p * dp).square())).sqrt()
    assert_accurate(got, formula(weights.float(), probe.float()).to(scores.dtype), formula(p, dp), scale=size)


def test_nan_stays_in_its_row_and_head(device: str) -> None:
    a = make(random_graph(30, 1500, 0.1), device)
    row = a.indices()[0]
    scores = torch.randn(a.nnz, 3, device=device)
    scores[row == 3, 1] = float("nan")
    p = gnnsparse.edge_softmax(a, scores)
    assert p[row == 3, 1].isnan().all()
    scores[row == 3, 1] = 0.0
    assert torch.equal(p.nan_to_num(), torch.where(p.isnan(), 0.0, gnnsparse.edge_softmax(a, scores)))


@pytest.mark.parametrize("precision", PRECISIONS)
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


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (4, 4)])
def test_nothing_to_compute(device: str, shape: tuple[int, int]) -> None:
    for density in (0.0, 1.0):
        a = make(random_graph(*shape, density), device, precision="fp16")
        for heads, width in ((3, 4), (0, 4), (3, 0)):
            q, x = (torch.randn(rows, heads, width, device=device, requires_grad=True) for rows in shape)
            values = torch.randn(a.nnz, heads, device=device, requires_grad=True)
            y = gnnsparse.spmm(a, x, values)
            scores = gnnsparse.edge_softmax(a, gnnsparse.sddmm(a, q, x) + values)
            assert y.shape == (shape[0], heads, width)
            assert scores.shape == (a.nnz, heads)
            (y.sum() + scores.square().sum()).backward()
            assert x.grad.shape == x.shape


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("lanes", [(1, 1), (1, 32), (4, 16), (32, 32)])
@pytest.mark.parametrize("limit", [8, 10_000])
def test_every_csr_plan(device: str, lanes: tuple[int, int], limit: int) -> None:
    a = make(random_graph(70, 300, 0.05, hubs=3), device, precision="fp16")
    plan = Plan("csr", *lanes, row_limit=limit)
    x, values = on_grid(300, 3, 20), on_grid(a.nnz, 3, seed=1, step=0.5)
    for reduce in ("sum", "mean", "max", "min"):
        compare(gnnsparse.spmm, a, [x, values], reduce=reduce, plan=plan)
        compare(gnnsparse.spmm, a, [x, values[:, 0]], reduce=reduce, plan=plan)
    compare(gnnsparse.sddmm, a, [on_grid(70, 3, 20), x], plan=plan)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_twenty_runs_are_bitwise_equal(device: str, precision: str) -> None:
    a = make(random_graph(300, 300, 0.05, hubs=4), device, precision=precision)
    inputs = [torch.randn(300, 5, 12, device=device) for _ in range(3)]
    first = with_gradients(partial(attention, a), inputs)
    for _ in range(20):
        for got, want in zip(with_gradients(partial(attention, a), inputs), first, strict=True):
            assert torch.equal(got, want)


def attention(
    a: gnnsparse.SparseOperand, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, impl: str = "auto"
) -> torch.Tensor:
    scores = gnnsparse.sddmm(a, q, k, impl=impl)
    weights = gnnsparse.edge_softmax(a, scores, impl=impl)
    return gnnsparse.spmm(a, v, weights, impl=impl)


@pytest.mark.filterwarnings("ignore")  # torch's compiler warns about itself
def test_compiles_without_graph_breaks(device: str) -> None:
    a = make(random_graph(40, 50, 0.15, weighted=False, hubs=1), device, precision="fp16")
    inputs = [torch.randn(rows, 3, 5, device=device) for rows in (40, 50, 50)]
    torch._dynamo.reset()
    compiled = torch.compile(partial(attention, a), fullgraph=True, backend="aot_eager")
    for got, want in zip(
        with_gradients(compiled, inputs), with_gradients(partial(attention, a), inputs), strict=True
    ):
        assert torch.equal(got, want)


@pytest.mark.filterwarnings("ignore")
def test_opcheck(device: str) -> None:
    a = make(random_graph(40, 50, 0.15, weighted=False, hubs=1), device, precision="fp16")
    q, k = (torch.randn(rows, 3, 5, device=device, requires_grad=True) for rows in (40, 50))
    values = torch.randn(a.nnz, 3, device=device, requires_grad=True)
    ops = torch.ops.gnnsparse
    torch.library.opcheck(ops.spmm.default, (k, values, a.handle))
    torch.library.opcheck(ops.sddmm.default, (q, k, a.handle))
    torch.library.opcheck(ops.edge_softmax.default, (values, a.handle))
    weights = values.detach()
    torch.library.opcheck(ops.edge_softmax_grad.default, (weights, weights + 1, a.handle))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_gradients_of_gradients_and_transforms(device: str) -> None:
    a = make(random_graph(20, 30, 0.2, weighted=False, hubs=1, empty_rows=0.2), device)
    tensors = [torch.randn(rows, 3, 4, device=device) for rows in (20, 30, 30)]

    def results(impl: str, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
        run = partial(attention, a, impl=impl)
        leaves = [t.to(dtype, copy=True).requires_grad_() for t in tensors]
        first = torch.autograd.grad(run(*leaves).square().sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), leaves)
        plain = tuple(t.to(dtype) for t in tensors)
        many = torch.func.vmap(run, in_dims=(None, 1, -1))(
            plain[0], torch.stack([plain[1], plain[2]], 1), torch.stack([plain[2], plain[1]], -1)
        )
        return [*second, many]

    assert_all_accurate(results("auto"), results("reference"), results("reference", torch.float64))


def test_what_is_refused() -> None:
    a = make(random_graph(20, 30, 0.2), "cpu", precision="fp16")
    x, values, q = torch.randn(30, 3, 4), torch.randn(a.nnz, 3), torch.randn(20, 3, 4)
    with pytest.raises(ValueError, match=r"x: has shape \(29, 3, 4\); accepted: \(30, any, any\)"):
        gnnsparse.spmm(a, x[1:], values)
    with pytest.raises(ValueError, match=rf"values: has shape \({a.nnz}, 2\); accepted: \({a.nnz}, 3\)"):
        gnnsparse.spmm(a, x, values[:, :2])
    with pytest.raises(ValueError, match=rf"values: has shape \({a.nnz}, 3\); accepted: \({a.nnz}\)"):
        gnnsparse.spmm(a, x[:, 0], values)
    with pytest.raises(ValueError, match=r"k: has shape \(30, 2, 4\); accepted: \(30, 3, 4\), as q"):
        gnnsparse.sddmm(a, q, x[:, :2])
    with pytest.raises(ValueError, match=r"k: has shape \(30, 4\); accepted: \(30, 3, 4\), as q"):
        gnnsparse.sddmm(a, q, x[:, 0])
    with pytest.raises(ValueError, match=rf"scores: has shape \({a.nnz}, 3, 1\)"):
        gnnsparse.edge_softmax(a, values[..., None])
    with pytest.raises(ValueError, match=rf"scores: has shape \({a.nnz - 1}, 3\)"):
        gnnsparse.edge_softmax(a, values[1:])
    with pytest.raises(TypeError, match=r"values: got a tensor of dtype torch\.float64"):
        gnnsparse.spmm(a, x, values.double())


@given(
    rows=st.integers(1, 40),
    cols=st.integers(1, 90),
    density=st.sampled_from([0.0, 0.05, 0.9]),
    heads=st.integers(1, 17),
    width=st.integers(1, 128),
    order=st.permutations(range(3)),
    step=st.integers(1, 2),
    precision=st.sampled_from(PRECISIONS),
    reduce=st.sampled_from(["sum", "mean", "max", "min"]),
    seed=st.integers(0, 2**20),
)
def test_property(
    device: str, rows: int, cols: int, density: float, heads: int, width: int, order: list[int], step: int,
    precision: str, reduce: str, seed: int,
) -> None:  # fmt: skip
    graph = random_graph(rows, cols, density, seed=seed, weighted=False, hubs=1, empty_rows=0.2)
    a = make(graph, device, precision=precision)
    sizes = (cols, heads, width * step)
    stored = on_grid(*(sizes[dim] for dim in order), seed=seed)
    x = stored.permute(*(order.index(dim) for dim in range(3)))[..., ::step]
    values = on_grid(a.nnz, heads, seed=seed + 1, step=0.5)
    compare(gnnsparse.spmm, a, [x, values], reduce=reduce)
    compare(gnnsparse.sddmm, a, [on_grid(rows, heads, width, seed=seed), x])
    compare(gnnsparse.edge_softmax, a, [values])
