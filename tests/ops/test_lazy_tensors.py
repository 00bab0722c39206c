"""Tensors whose memory does not hold their numbers: negative views, parts of conjugates, zero tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import SparseOperand
from gnnsparse.nn import AGNNConv, GCNConv, SparseLinear
from gnnsparse.plan import Plan
from gnnsparse.testing import random_graph
from tests.gpu_paths import RecordingPath
from tests.helpers import make

ROWS, COLS, WIDTH = 30, 20, 8


def conjugate_part(t: torch.Tensor) -> torch.Tensor:
    """Returns -t as the imaginary part of a conjugate."""
    return torch.complex(torch.zeros_like(t), t).conj().imag


#: What stands for the negative of a tensor without being computed.
LAZY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "negative view": torch._neg_view,
    "part of a conjugate": conjugate_part,
    "slice of a negative view": lambda t: torch._neg_view(torch.cat([t, t]))[: t.shape[0]],
    "parameter": lambda t: torch.nn.Parameter(torch._neg_view(t)),
}


@pytest.fixture(params=LAZY)
def lazy(request: pytest.FixtureRequest) -> Callable[[torch.Tensor], torch.Tensor]:
    return LAZY[request.param]


class NegatesGradients(torch.autograd.Function):
    """The identity, whose gradient is handed on as a negative view of the negated gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch._neg_view(grad.neg())


def operations(a: SparseOperand, **how: Any) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Returns the operations with the shapes of their arguments, by name."""
    q, k, v, edges = (ROWS, WIDTH), (COLS, WIDTH), (COLS, 6), (a.nnz,)

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, b: torch.Tensor, **more: Any) -> Any:
        return gnnsparse.attention(a, q, k, v, bias=b, **how, **more)

    return {
        "matmul": (lambda x: gnnsparse.spmm(a, x, **how) if how else a @ x, (k,)),
        "vector": (lambda x: a @ x, ((COLS,),)),
        "spmm": (partial(gnnsparse.spmm, a, **how), (k, edges)),
        "sddmm": (partial(gnnsparse.sddmm, a, **how), (q, k)),
        "softmax": (partial(gnnsparse.edge_softmax, a, **how), (edges,)),
        "attention": (attention, (q, k, v, edges)),
        "heads": (attention, ((2, 3, *q), (2, 3, *k), (2, 3, *v), (3, a.nnz))),
        "unfused": (partial(attention, fused=False), (q, k, v, edges)),
        "orders": (lambda v: a.T.transpose_values(a.transpose_values(a.to_coo_order(v))), (edges,)),
    }


NAMES = ("matmul", "vector", "spmm", "sddmm", "softmax", "attention", "heads", "unfused", "orders")


@pytest.mark.parametrize("name", NAMES)
def test_results_are_those_of_computed_tensors(
    device: str, precision: str, name: str, lazy: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    a = make(random_graph(ROWS, COLS, 0.2, seed=1), device, precision=precision)
    f, shapes = operations(a)[name]
    arguments = [torch.randn(shape, device=device) for shape in shapes]
    zeros = [torch.zeros(shape, device=device) for shape in shapes]
    assert torch.equal(f(*(torch._efficientzerotensor(shape, device=device) for shape in shapes)), f(*zeros))
    for with_grad in (False, True):
        plain = [(-t).requires_grad_(with_grad) for t in arguments]
        signed = [lazy(t).detach().requires_grad_(with_grad) for t in arguments]
        assert all(t.is_neg() for t in signed)
        want = f(*plain)
        for i, one in enumerate(signed):  # of several
            assert torch.equal(f(*plain[:i], one, *plain[i + 1 :]), want)
        for _ in range(2):  # the second call finds what the first has kept
            got = f(*signed)
            assert torch.equal(got, want)
            assert got.requires_grad is with_grad
        assert torch.equal(f(*plain), want)
    with torch.no_grad():
        assert not f(*plain).requires_grad
    g = torch.randn_like(want)
    expected = torch.autograd.grad(want, plain, g)
    for found in (
        torch.autograd.grad(got, signed, torch._neg_view(-g), retain_graph=True),
        torch.autograd.grad(NegatesGradients.apply(got), signed, g),
    ):
        assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("name", ["matmul", "spmm", "sddmm", "softmax", "attention"])
def test_the_reference_and_the_operators(device: str, name: str) -> None:
    a = make(random_graph(ROWS, COLS, 0.2, seed=1), device)
    ops, h = torch.ops.gnnsparse, a.handle
    registered = {
        "matmul": lambda x: ops.spmm(x, None, h),
        "spmm": lambda *t: ops.spmm(*t, h),
        "sddmm": lambda *t: ops.sddmm(*t, h),
        "softmax": lambda *t: ops.edge_softmax(*t, h),
        "attention": lambda *t: ops.attention(*(x[None, None] for x in t), None, h, 1.0, 0.0, False)[0],
    }[name]
    reference, shapes = operations(a, impl="reference")[name]
    arguments = [torch.randn(shape, device=device) for shape in shapes]
    negative = [torch._neg_view(-t) for t in arguments]
    assert torch.equal(registered(*negative), registered(*arguments))
    # On a GPU the reference adds in any order.
    close = {"rtol": 0, "atol": 0} if device == "cpu" else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(reference(*negative), reference(*arguments), **close)


# Beside operations.


@pytest.mark.parametrize("kernel", ["csr", "window", "panel"])
def test_a_gpu_reads_computed_numbers(kernel: str, recorded: RecordingPath) -> None:
    a = gnnsparse.prepare(random_graph(ROWS, ROWS, 0.2, weighted=False), precision="fp16", cache=False)
    x = torch.randn(ROWS, 64).half()
    gnnsparse.spmm(a, torch._neg_view(x), plan=Plan(kernel))
    assert (read := recorded.views())
    tensors = [t for _, arguments in recorded.calls for t in arguments if isinstance(t, torch.Tensor)]
    assert x.data_ptr() not in [t.data_ptr() for t in (*tensors, *(view.tensor for view in read))]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_prepare_reads_negative_views() -> None:
    index, values, x = torch.randint(0, ROWS, (2, 90)), torch.rand(90), torch.randn(ROWS, WIDTH)
    negative = torch._neg_view

    def product(given: torch.Tensor, **options: Any) -> torch.Tensor:
        return gnnsparse.prepare(given, num_nodes=ROWS, cache=False, **options) @ x

    want = product(index, values=-values)
    assert torch.equal(product(index, values=negative(values)), want)
    assert torch.equal(product(negative(-index), values=-values), want)
    sparse = torch.sparse_coo_tensor(index.flip(0), negative(values), (ROWS, ROWS))  # not transposed
    assert torch.equal(gnnsparse.prepare(sparse, cache=False) @ x, want)
    weighted, plain = (product(index, values="gcn", edge_weight=w) for w in (negative(-values), values))
    assert torch.equal(weighted, plain)


def test_the_cache_tells_a_tensor_from_its_negative_view(tmp_path: Path) -> None:
    index, values, x = torch.randint(0, ROWS, (2, 90)), torch.rand(90), torch.randn(ROWS, WIDTH)

    def prepared(values: torch.Tensor) -> SparseOperand:
        return gnnsparse.prepare(index, num_nodes=ROWS, values=values, cache=tmp_path)

    plain, negative = prepared(values), prepared(torch._neg_view(values))
    assert not negative.cache_hit
    assert torch.equal(negative @ x, -(plain @ x))
    assert prepared(-values).cache_hit


def test_layers_read_negative_views() -> None:
    index = torch.randint(0, ROWS, (2, 90))
    x, weight = torch.randn(ROWS, WIDTH), torch.rand(90)
    gcn, agnn = GCNConv(WIDTH, 4), AGNNConv()
    assert torch.equal(gcn(torch._neg_view(-x), index), gcn(x, index))
    assert torch.equal(gcn(x, index, torch._neg_view(-weight)), gcn(x, index, weight))
    assert torch.equal(agnn(torch._neg_view(-x), index), agnn(x, index))
    dense = torch.nn.Linear(16, 8)
    layer = SparseLinear.from_dense(dense, sparsity=0.5)
    y = torch.randn(3, 16)
    assert torch.equal(layer(torch._neg_view(-y)), layer(y))
    with torch.no_grad():
        dense.weight.set_(torch._neg_view(-dense.weight.detach()).resolve_neg())
    assert torch.equal(SparseLinear.from_dense(dense, sparsity=0.5).to_dense(), layer.to_dense())
