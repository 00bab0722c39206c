"""Attention as an operator of torch.library, with its fake and gradient, and the choice of its backend."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from gnnsparse.ops import operators
from gnnsparse.ops.attention import chain, cpu, cuda
from gnnsparse.ops.attention.call import AttentionCall, Grads, Needs
from gnnsparse.ops.attention.layout import as_given, empty_heads, four_dimensions
from gnnsparse.ops.attention.quantized import dequantized
from gnnsparse.ops.common import direct, needs_grad
from gnnsparse.ops.library import register
from gnnsparse.ops.vmap import loop
from gnnsparse.plan import ChainPlan, Plan
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import alive, enclosed, is_batch_of_gradients, is_direct, settled
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.operand import operand_of

__all__ = ["run_backward", "run_forward", "transformed", "with_grad"]

_Backward = Callable[[AttentionCall, torch.Tensor, torch.Tensor, torch.Tensor, Needs], Grads]


def run_forward(call: AttentionCall, plan: Plan | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes the output and the statistics of each row's softmax on the operand's device.

    Returns:
        [B, H, L, Dv] in the dtype and memory order of q, and float32 [B, H, L, 2].
    """
    if path().takes(call.operand.device):
        return cuda.forward(call, plan)
    call = dequantized(call)
    return chain.forward(call) if _as_chain(call, plan) else cpu.forward(call)


def _as_chain(call: AttentionCall, plan: Plan | None) -> bool:
    """Returns whether attention on a CPU runs as a chain: by the plan, or as the only one of a format."""
    return isinstance(plan, ChainPlan) or call.operand.kernels.runs_format_alone


@ranged("attention_backward")
def run_backward(
    call: AttentionCall, out: torch.Tensor, stats: torch.Tensor, grad: torch.Tensor, needs: Needs,
    plan: Plan | None = None,
) -> Grads:  # fmt: skip
    """Computes the gradients of q, k, v and bias on the operand's device; those not needed are None.

    Where k and v are rounded to 8 bits, gradients pass the rounding unchanged.
    """
    given, call = call, dequantized(call)
    if path().takes(call.operand.device):
        dq, dk, dv, dbias = cuda.backward(call, out, stats, grad, needs, plan)
    else:
        run = chain.backward if _as_chain(call, plan) else cpu.backward
        dq, dk, dv, dbias = run(call, out, stats, grad, needs)
    return (
        dq,
        None if dk is None else dk.to(given.k.dtype),
        None if dv is None else dv.to(given.v.dtype),
        dbias,
    )


def _call(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, seed: torch.Tensor | None,
    operand: int, scale: float, dropout_p: float, is_causal: bool,
) -> AttentionCall:  # fmt: skip
    operands = four_dimensions(q), four_dimensions(k), four_dimensions(v)
    return AttentionCall(operand_of(operand), *operands, bias, seed, scale, dropout_p, is_causal)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Saves the arguments and results for the gradient; only the bias has a value for each edge."""
    q, k, v, bias, seed, handle, *ctx.options = inputs
    ctx.operand = operand_of(handle)
    ctx.save_for_backward(q, k, v, bias, seed, *output)


def _grads(ctx: Any, saved: Any, grad: torch.Tensor, run: _Backward) -> tuple[torch.Tensor | None, ...]:
    """Computes the gradients of q, k, v and the bias, with the dimensions that the arguments had.

    `saved` are the saved tensors. Checkpointing computes them again, and lets them be read one time only.
    """
    q, k, v, bias, seed, out, stats = saved
    needs: Any = tuple(ctx.needs_input_grad[:4])
    grad = four_dimensions(settled(grad))
    call = _call(q, k, v, bias, seed, ctx.operand.handle, *ctx.options[:3])
    *grads, dbias = run(call, four_dimensions(out), stats, grad, needs)
    return *(None if x is None else as_given(x, q.dim()) for x in grads), dbias


# The registered operators. An operator can't return None, so gradients that are not needed are empty tensors.


def _run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, seed: torch.Tensor | None,
    operand: int, scale: float, dropout_p: float, is_causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    operators.attention(q, k, v, bias, seed, operand, dropout_p)
    return run_forward(_call(q, k, v, bias, seed, operand, scale, dropout_p, is_causal))


def _fake(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, seed: torch.Tensor | None,
    operand: int, scale: float, dropout_p: float, is_causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    operators.attention(q, k, v, bias, seed, operand, dropout_p)
    return empty_heads(q, v.shape[-1]), q.new_empty((*q.shape[:3], 2), dtype=torch.float32)


def _run_grad(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor,
    stats: torch.Tensor, grad: torch.Tensor, seed: torch.Tensor | None, operand: int, scale: float,
    dropout_p: float, is_causal: bool, needs: list[bool],
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    operators.attention_grad(q, k, v, bias, out, stats, grad, seed, operand, dropout_p, needs)
    call = _call(q, k, v, bias, seed, operand, scale, dropout_p, is_causal)
    wanted: Any = tuple(needs)
    return tuple(q.new_empty(0) if g is None else g for g in run_backward(call, out, stats, grad, wanted))


def _fake_grad(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor,
    stats: torch.Tensor, grad: torch.Tensor, seed: torch.Tensor | None, operand: int, scale: float,
    dropout_p: float, is_causal: bool, needs: list[bool],
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    operators.attention_grad(q, k, v, bias, out, stats, grad, seed, operand, dropout_p, needs)
    grads = [empty_heads(x, x.shape[-1]) if need else None for x, need in zip((q, k, v), needs, strict=False)]
    grads.append(bias.new_empty(bias.shape) if bias is not None and needs[3] else None)
    return tuple(q.new_empty(0) if g is None else g for g in grads)


def _registered_backward(
    call: AttentionCall, out: torch.Tensor, stats: torch.Tensor, grad: torch.Tensor, needs: Needs
) -> Any:
    grads = torch.ops.gnnsparse.attention_grad(
        call.q, call.k, call.v, call.bias, out, stats, grad, call.seed, call.operand.handle, call.scale,
        call.dropout_p, call.is_causal, list(needs),
    )  # fmt: skip
    return tuple(g if need else None for g, need in zip(grads, needs, strict=True))


def _registered_grads(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
    return *_grads(ctx, ctx.saved_tensors, grad, _registered_backward), None, None, None, None, None


register(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? seed, int operand, float scale, "
    "float dropout_p, bool is_causal) -> (Tensor, Tensor)",
    _run,
    _fake,
    _setup,
    _registered_grads,
)
register(
    "attention_grad(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor out, Tensor stats, Tensor grad, "
    "Tensor? seed, int operand, float scale, float dropout_p, bool is_causal, bool[4] needs) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _run_grad,
    _fake_grad,
)


# Eager calls.


def _grads_with_graph(ctx: Any, tensors: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    """Computes gradients through the differentiable chain, for second derivatives and inside transforms."""
    *saved, seed = alive(tensors[:5])
    needs = ctx.needs_input_grad[:4]

    def output(*wanted: torch.Tensor) -> torch.Tensor:
        given = iter(wanted)
        q, k, v, bias = (next(given) if need else x for x, need in zip(saved, needs, strict=True))
        call = _call(q, k, v, bias, seed, ctx.operand.handle, *ctx.options[:3])
        return chain.chain(call, "auto")[0]

    _, pull, *_ = torch.func.vjp(output, *(x for x, need in zip(saved, needs, strict=True) if need))
    found = iter(pull(four_dimensions(grad)))
    return tuple(next(found) if need else None for need in needs)


class _Attention(torch.autograd.Function):
    """Attention of arguments with two to four dimensions; views made outside would be nodes of autograd."""

    @staticmethod
    def forward(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
        seed: torch.Tensor | None, handle: int, scale: float, dropout_p: float, is_causal: bool,
        plan: Plan | None,
    ) -> Any:  # fmt: skip
        out, stats = run_forward(_call(q, k, v, bias, seed, handle, scale, dropout_p, is_causal), plan)
        return as_given(out, q.dim()), stats

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _setup(ctx, inputs, output)
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        saved = ctx.saved_tensors
        if is_batch_of_gradients(grad):
            grads = _grads(ctx, saved, grad, _registered_backward)
        elif not is_direct() or needs_grad(grad, *saved[:4]):
            grads = _grads_with_graph(ctx, saved, grad)
        else:
            grads = _grads(ctx, saved, grad, partial(run_backward, plan=ctx.options[3]))
        return *grads, None, None, None, None, None, None


#: (q, k, v, bias, seed, handle, scale, dropout_p, is_causal, plan) -> (out, stats), recorded by autograd.
with_grad = direct(_Attention)


class _Transformed(torch.autograd.Function):
    """Attention with rules for every transform; `forward` sees the tensors that are left without them."""

    @staticmethod
    def forward(
        q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
        seed: torch.Tensor | None, handle: int, scale: float, dropout_p: float, is_causal: bool,
        plan: Plan | None,
    ) -> Any:  # fmt: skip
        q, k, v = settled(q), settled(k), settled(v)
        bias = None if bias is None else settled(bias)
        return run_forward(_call(q, k, v, bias, seed, handle, scale, dropout_p, is_causal), plan)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _setup(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:5])
        ctx.mark_non_differentiable(output[1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        return *_grads_with_graph(ctx, ctx.saved_tensors, grad), None, None, None, None, None, None

    @staticmethod
    @enclosed
    def jvp(ctx: Any, saved: Any, *tangents: Any) -> Any:
        q, k, v, bias, seed = saved
        call = _call(q, k, v, bias, seed, ctx.operand.handle, *ctx.options[:3])
        return chain.tangent(call, *tangents[:4]), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
        bias: torch.Tensor | None, seed: torch.Tensor | None, *options: Any,
    ) -> Any:  # fmt: skip
        """Folds the dimension that is mapped over into the batch of attention.

        With dropout the entries are computed one by one: which weights are dropped depends on the position of
        a head, which folding changes.
        """
        if seed is not None:
            one = lambda *tensors: _Transformed.apply(*tensors, *options)  # noqa: E731
            return loop(info, in_dims[:5], one, q, k, v, bias, seed)

        def first(x: torch.Tensor, dim: int | None) -> torch.Tensor:
            return x.expand(info.batch_size, *x.shape) if dim is None else x.movedim(dim, 0)

        q, k, v = (first(x, dim) for x, dim in zip((q, k, v), in_dims, strict=False))
        if bias is not None:
            bias = first(bias, in_dims[3])
            bias = bias.expand(*q.shape[:2], *bias.shape[2:]).flatten(0, 1)
        out, stats = _Transformed.apply(
            q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), bias, None, *options
        )
        return (out.unflatten(0, q.shape[:2]), stats.unflatten(0, q.shape[:2])), (0, 0)


#: Takes the arguments of `with_grad`, with four dimensions, inside torch.func and forward-mode AD.
transformed = _Transformed.apply
