"""attention as a registered operator: opcheck, torch.compile, CUDA graphs."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import masks
from gnnsparse.testing import assert_accurate, assert_all_accurate, random_graph, with_gradients
from tests.helpers import WARNINGS_OF_TORCH, capture, make

pytestmark = WARNINGS_OF_TORCH


@pytest.fixture
def operand(device: str) -> gnnsparse.SparseOperand:
    graph = random_graph(40, 40, 0.15, hubs=1, empty_rows=0.1)
    return make(graph, device, precision="fp16", reorder="degree")


def arguments(a: gnnsparse.SparseOperand, interleaved: bool, width: int = 8) -> list[torch.Tensor]:
    if interleaved:
        return [torch.randn(2, 40, 3, width, device=a.device).transpose(1, 2) for _ in range(3)]
    return [torch.randn(2, 3, 40, width, device=a.device) for _ in range(3)]


@pytest.mark.parametrize("bias", [None, (1, 1), (1, 3), (2, 3)])
@pytest.mark.parametrize("over_rows", [False, True])
def test_opcheck(operand: gnnsparse.SparseOperand, over_rows: bool, bias: tuple[int, ...] | None) -> None:
    """A GPU computes fp32 of more than 32 features over rows; strides are as torch.compile expects them."""
    interleaved = over_rows == (bias in (None, (1, 3)))  # a CPU has one kernel for both
    if over_rows:
        graph = random_graph(40, 40, 0.15, hubs=1, empty_rows=0.1)
        operand = make(graph, str(operand.device), precision="fp32")
    tensors = arguments(operand, interleaved, width=40 if over_rows else 8)
    q, k, v = (x.requires_grad_() for x in tensors)
    values = seed = None
    if bias is not None:
        values = torch.randn(*bias, operand.nnz, device=operand.device, requires_grad=True)
        seed = torch.tensor([123], device=operand.device)
    options = (0.4, 0.3 if bias is not None else 0.0, bias == (1, 3))
    ops = torch.ops.gnnsparse
    torch.library.opcheck(ops.attention.default, (q, k, v, values, seed, operand.handle, *options))
    with torch.no_grad():
        out, stats = ops.attention(q, k, v, values, seed, operand.handle, *options)
    plain = [x if x is None else x.detach() for x in (q, k, v, values)]
    for needs in ([True, True, True, bias is not None], [False, True, False, False]):
        torch.library.opcheck(
            ops.attention_grad.default,
            (*plain, out, stats, torch.randn_like(out), seed, operand.handle, *options, needs),
        )


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [{}, {"bias": True, "is_causal": True}, {"fused": False, "is_causal": True}, {"return_weights": True}],
    ids=str,
)
def test_compiles_without_graph_breaks(operand: gnnsparse.SparseOperand, options: dict[str, Any]) -> None:
    heads = 3
    inputs = [torch.randn(2, 40, 8 * heads, device=operand.device) for _ in range(3)]
    options = dict(options)
    if options.pop("bias", False):
        inputs.append(torch.randn(operand.nnz, device=operand.device))

    def layer(*tensors: torch.Tensor, impl: str = "auto") -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (heads, 8)).transpose(1, 2) for t in tensors[:3])
        bias = tensors[3] if len(tensors) > 3 else None
        out = gnnsparse.attention(operand, q, k, v, bias=bias, impl=impl, **options)
        weights = 0.0
        if isinstance(out, tuple):
            out, weights = out[0], out[1].square().sum()
        return out.transpose(1, 2).flatten(2).relu().square().sum() + weights

    torch._dynamo.reset()
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    exact = with_gradients(partial(layer, impl="reference"), [t.double() for t in inputs])
    assert_all_accurate(with_gradients(compiled, inputs), with_gradients(layer, inputs), exact)


@pytest.mark.slow
def test_compiled_dropout_draws_anew(operand: gnnsparse.SparseOperand) -> None:
    """Calls differ, a seed repeats them, and forward and backward drop the same edges."""
    torch._dynamo.reset()
    q, k, v = (x.requires_grad_() for x in arguments(operand, False))
    compiled = torch.compile(lambda *x: gnnsparse.attention(operand, *x, dropout_p=0.5), fullgraph=True)
    torch.manual_seed(1)
    first, second = compiled(q, k, v), compiled(q, k, v)
    torch.manual_seed(1)
    assert torch.equal(compiled(q, k, v), first)
    assert not torch.equal(first, second)
    # out is linear in v: <out, g> = <v, gradient of v> holds for the same dropped edges alone.
    g = torch.randn_like(first)
    (grad,) = torch.autograd.grad(first, v, g)
    # Without dropout the sides differ by the roundings of v and g to fp16 alone, as they may here.
    plain = gnnsparse.attention(operand, q, k, v)
    (plain_grad,) = torch.autograd.grad(plain, v, g)
    left, right, plain_left, plain_right = (
        (a.double() * b.double()).sum() for a, b in ((first, g), (v, grad), (plain, g), (v, plain_grad))
    )
    assert_accurate(
        left, right + plain_left - plain_right, right,
        floor=2 * torch.finfo(torch.float16).eps, scale=(first.double() * g).norm(),
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("strips", [False, True])
def test_cuda_graph_replays_with_new_input(precision: str, dropout_p: float, strips: bool) -> None:
    graph = masks.vector_wise(300, 0.95, seed=3) if strips else random_graph(300, 300, 0.05, hubs=3)
    a = make(graph, "cuda", precision=precision)
    static = [torch.randn(2, 300, 32, device="cuda", requires_grad=True) for _ in range(3)]

    def step() -> tuple[torch.Tensor, ...]:
        out = gnnsparse.attention(a, *static, dropout_p=dropout_p)
        return out, *torch.autograd.grad(out.square().sum(), static)

    replayed, captured = capture(step, runs=3)
    for _ in range(2):
        with torch.no_grad():
            for tensor in static:
                tensor.copy_(torch.randn_like(tensor))
        state = torch.cuda.get_rng_state()
        replayed.replay()
        torch.cuda.set_rng_state(state)
        for got, want in zip(captured, step(), strict=True):
            assert torch.equal(got, want)
