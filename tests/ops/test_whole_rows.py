"""Padded rows, which begin at sectors: products keep them, and layers on a GPU make them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
from gnnsparse import SparseOperand
from gnnsparse.nn import GCNConv, SAGEConv, linear
from gnnsparse.nn.linear import linear_in_padded_rows
from gnnsparse.ops.dense import has_padded_rows, padded_width
from gnnsparse.ops.spmm_kernels import spmm_into
from gnnsparse.plan import Plan
from gnnsparse.sparse.kernel_cache import Product
from gnnsparse.testing import random_graph
from tests.gpu_paths import RunningPath
from tests.helpers import make


@pytest.fixture
def few_are_many(native: RunningPath, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training pads few rows, too, on the path of a GPU."""
    monkeypatch.setattr(linear, "MANY_ROWS", 1)


WIDTHS = (3, 7, 41, 602)
DTYPES = torch.float32, torch.float16


def padded_rows(x: torch.Tensor) -> torch.Tensor:
    """A copy of x with padded rows; NaN lies between them."""
    wide = torch.full((x.shape[0], padded_width(x.shape[1], x.dtype)), float("nan"), dtype=x.dtype)
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]


def operand(weights: str | None = "gcn", rows: int = 60, **options: object) -> SparseOperand:
    graph = random_graph(rows, 60, 0.15, weighted=False, hubs=2, empty_rows=0.1)
    return make(graph, "cpu", values=weights, **options)


def check_products(a: SparseOperand, dtype: torch.dtype, widths: tuple[int, ...] = WIDTHS) -> None:
    """The first product of a form goes another way than later ones, and training goes a third way."""
    for width in widths:
        x = torch.randn(a.shape[1], width).to(dtype)
        for reduce in ("sum", "mean"):
            want, wide = gnnsparse.spmm(a, x, reduce=reduce), padded_rows(x)
            assert want.is_contiguous()
            for _ in range(2):
                y = gnnsparse.spmm(a, wide, reduce=reduce)
                assert torch.equal(y, want)
                assert has_padded_rows(y)
        x.requires_grad_()
        seed = torch.randn(a.shape[0], width).to(dtype)
        wide = padded_rows(x.detach()).requires_grad_()
        for _ in range(2):
            y = a @ wide
            y.relu_()  # no view, which autograd would refuse to change
            (got,) = torch.autograd.grad(y, wide, seed)
            (right,) = torch.autograd.grad((a @ x).relu(), x, seed)
            assert torch.equal(got, right)
            assert has_padded_rows(got)
            (again,) = torch.autograd.grad(
                a @ wide, wide, seed, create_graph=True
            )  # recorded, and no less right
            (right,) = torch.autograd.grad(a @ x, x, seed)
            assert torch.equal(again, right)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("format", ["csr", "window"])
def test_products_keep_whole_rows(dtype: torch.dtype, format: str) -> None:
    precision = "fp16" if dtype == torch.float16 else "tf32"
    check_products(operand(None, 90, format=format, precision=precision), dtype)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_products_of_a_gpu_keep_whole_rows(native: RunningPath, precision: str) -> None:
    for dtype in DTYPES:
        check_products(operand(precision=precision), dtype, (7, 41))


def test_padded_rows_have_a_plan_of_their_own(native: RunningPath) -> None:
    """Called by Python, by native code, and in training; a plan that is asked for is both."""
    a, product = operand(precision="fp32"), Product("spmm", 41)
    plans = Plan("csr", group=20, prescale=False), Plan("panel", height=16)
    for rows, plan in zip(("packed", "padded"), plans, strict=True):
        a.kernels.memo.put(("plan", replace(product, rows_of_x=rows), None), plan)
    x = torch.randn(60, 41)
    packed, apart = (gnnsparse.spmm(a, x, plan=plan) for plan in plans)
    assert not torch.equal(packed, apart)
    for _ in range(2):
        assert torch.equal(a @ x, packed)
        y = a @ padded_rows(x)
        assert has_padded_rows(y)
        assert torch.equal(y, apart)
        assert torch.equal(a @ padded_rows(x).requires_grad_(), apart)
    launch = a.kernels.dispatch_cache.multiply[False]
    assert torch.equal(launch(padded_rows(x)), apart)
    spmm_into(a, x, y)
    assert torch.equal(y, packed)
    a.kernels.use_plan(product, plans[1])
    assert torch.equal(a @ x, apart)
    a.kernels.use_plan(product, plans[0])
    assert torch.equal(a @ padded_rows(x), packed)


def test_torch_compile_sees_contiguous_results() -> None:
    """Its own memory may have other strides than the X that was traced."""
    a = operand(None)
    product = torch.compile(lambda x: (a @ x).view(-1) + 1, backend="aot_eager", fullgraph=True)
    x = torch.randn(60, 41)
    assert torch.equal(product(padded_rows(x)), (a @ x).view(-1) + 1)


@pytest.mark.usefixtures("poisoned", "few_are_many")
@pytest.mark.parametrize("width", [7, 41, 48])
@pytest.mark.parametrize("kind", [GCNConv, SAGEConv])
def test_layers_make_whole_rows(kind: type, width: int) -> None:
    """Outputs and gradients against float64, in inference and in each of the steps of training."""
    torch.manual_seed(0)
    layer, a = kind(128, width), operand("gcn" if kind is GCNConv else "mean")
    x, seed = torch.randn(60, 128), torch.randn(60, width)
    parameters = list(layer.parameters())
    by_name = {name: p.detach().double().requires_grad_() for name, p in layer.named_parameters()}
    if kind is GCNConv:
        right = a.to_dense().double() @ (x.double() @ by_name["lin.weight"].T) + by_name["bias"]
    else:
        neighbours = a.to_dense().double() @ (x.double() @ by_name["lin_l.weight"].T)
        right = neighbours + by_name["lin_l.bias"] + x.double() @ by_name["lin_r.weight"].T
    wanted = torch.autograd.grad(right, list(by_name.values()), seed.double())
    for step in range(3):
        y = layer(x, a)
        torch.testing.assert_close(y.double(), right, rtol=1e-4, atol=1e-4)
        if kind is GCNConv:
            assert has_padded_rows(y) == (width % 8 != 0), step
        for got, want in zip(torch.autograd.grad(y, parameters, seed), wanted, strict=True):
            torch.testing.assert_close(got.double(), want, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        torch.testing.assert_close(layer(x, a).double(), right, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("few_are_many")
def test_whole_rows_under_autocast() -> None:
    """What autocast converts, and nothing where it converts nothing."""
    x, weight = torch.randn(50, 20, requires_grad=True), torch.randn(41, 20, requires_grad=True)
    seed = torch.randn(50, 41).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        got, want = linear_in_padded_rows(x, weight), F.linear(x, weight)
        assert linear_in_padded_rows(x.double(), weight.double()).dtype == torch.float64
    assert has_padded_rows(got)
    assert got.dtype == want.dtype
    torch.testing.assert_close(got, want)
    found, right = (torch.autograd.grad(y, (x, weight), seed) for y in (got, want))
    torch.testing.assert_close(found, right, rtol=0.02, atol=0.02)


@pytest.mark.usefixtures("few_are_many")
def test_gradients_of_a_linear_layer_with_whole_rows() -> None:
    x = torch.randn(9, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    y = linear_in_padded_rows(x, weight)
    assert has_padded_rows(y)
    assert torch.equal(y, F.linear(x, weight))
    assert torch.autograd.gradcheck(linear_in_padded_rows, (x, weight))
    assert torch.autograd.gradgradcheck(linear_in_padded_rows, (x, weight))
    for one in (x.detach(), weight.detach()):
        other = [t if t.shape != one.shape else one for t in (x, weight)]
        assert torch.autograd.gradcheck(linear_in_padded_rows, other)
