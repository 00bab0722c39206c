"""Graph attention as an operator of torch.library: fake, gradient, and the choice of its backend."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from gnnsparse.ops.common import direct, needs_grad
from gnnsparse.ops.graph_attention import chain, cpu, cuda
from gnnsparse.ops.graph_attention.call import OPTIONS, Arrays, GraphCall, Result
from gnnsparse.ops.library import register
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import alive, settled
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.operand import SparseOperand, operand_of

__all__ = ["Outputs", "outputs_of", "registered", "require_rows", "run", "with_grad"]

_ARRAYS = len(Arrays._fields)
#: out, mapped, stats and weights, empty where there is none or it is not wanted.
Outputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _backend(operand: SparseOperand) -> ModuleType:
    return cuda if path().takes(operand.device) else cpu


def require_rows(operand: SparseOperand) -> None:
    """Raises ValueError if the operand's format was asked for: the kernels here run over CSR rows."""
    operand.kernels.require("A", "graph attention by other than scaled, biased dot products", None)


def outputs_of(result: Result, weights: torch.Tensor | None) -> Outputs:
    """Returns results as an operator does, which can't return None: empty tensors stand for it."""

    def present(x: torch.Tensor | None) -> torch.Tensor:
        return result.out.new_empty(0) if x is None else x

    return result.out, present(result.mapped), result.stats, present(weights)


def run(call: GraphCall, wants_weights: bool) -> Outputs:
    """Computes attention on the operand's device.

    Returns:
        The attributes of Result, and the weights after dropout, float32 [nnz, H].
    """
    require_rows(call.operand)
    backend = _backend(call.operand)
    result: Result = backend.forward(call)
    return outputs_of(result, backend.weights(call, result) if wants_weights else None)


@ranged("graph_attention_backward")
def _gradients(
    call: GraphCall, outputs: Outputs, grads: tuple[torch.Tensor | None, ...], needs: tuple[bool, ...]
) -> Arrays:
    """Computes the gradients of the arrays on the operand's device; those not needed are None."""
    out, mapped, stats, _ = outputs
    result = Result(out, mapped if call.arrays.mapped is not None and call.to_values else None, stats)
    grad_out, grad_mapped, grad_weights = (None if g is None else settled(g) for g in grads)
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    found: Arrays = _backend(call.operand).backward(
        call, result, grad_out, None if result.mapped is None else grad_mapped, grad_weights, needs
    )
    return found


def _named(options: Any) -> dict[str, Any]:
    return dict(zip(OPTIONS, options, strict=True))


def _call(handle: int, arrays: tuple[Any, ...], seed: torch.Tensor | None, options: Any) -> GraphCall:
    return GraphCall.of(operand_of(handle), Arrays(*arrays), options, seed)


# The registered operators. An operator can't return None, so what is not wanted is an empty tensor.


def _run_registered(*arguments: Any) -> Outputs:
    *arrays, seed, handle, wants_weights = arguments[: _ARRAYS + 3]
    return run(_call(handle, tuple(arrays), seed, arguments[_ARRAYS + 3 :]), wants_weights)


def _fake(*arguments: Any) -> Outputs:
    *tensors, _, handle, wants_weights = arguments[: _ARRAYS + 3]
    arrays, operand = Arrays(*tensors), operand_of(handle)
    require_rows(operand)
    to_values = _named(arguments[_ARRAYS + 3 :])["to_values"]
    v = arrays.v
    assert v is not None
    rows, heads = operand.shape[0], v.shape[1]
    mapped, weights = v.new_empty(0), v.new_empty(0)
    if arrays.mapped is not None and to_values:
        mapped = v.new_empty(rows, heads, arrays.mapped.shape[-1])
    stats = v.new_empty(rows, heads, 2, dtype=torch.float32)
    if wants_weights:
        weights = v.new_empty(operand.nnz, heads, dtype=torch.float32)
    return v.new_empty(rows, heads, v.shape[-1]), mapped, stats, weights


def _run_grad(*arguments: Any) -> tuple[torch.Tensor, ...]:
    *arrays, seed = arguments[: _ARRAYS + 1]
    out, mapped, stats, *grads, handle, needs = arguments[_ARRAYS + 1 : _ARRAYS + 9]
    call = _call(handle, tuple(arrays), seed, arguments[_ARRAYS + 9 :])
    found = _gradients(call, (out, mapped, stats, out), tuple(grads), tuple(needs))
    return tuple(out.new_empty(0) if g is None else g for g in found)


def _fake_grad(*arguments: Any) -> tuple[torch.Tensor, ...]:
    arrays, needs, out = arguments[:_ARRAYS], arguments[_ARRAYS + 8], arguments[_ARRAYS + 1]
    return tuple(
        x.new_empty(x.shape) if x is not None and need else out.new_empty(0)
        for x, need in zip(arrays, needs, strict=True)
    )


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    """Saves the arguments and results for the gradient."""
    *tensors, handle, _ = inputs[: _ARRAYS + 3]
    ctx.operand, ctx.options = operand_of(handle), inputs[_ARRAYS + 3 :]
    ctx.save_for_backward(*tensors, *output[:3])
    ctx.set_materialize_grads(False)


def _registered_grads(ctx: Any, *grads: Any) -> Any:
    *arrays, seed, out, mapped, stats = ctx.saved_tensors
    needs = list(ctx.needs_input_grad[:_ARRAYS])
    grad_out = torch.zeros_like(out) if grads[0] is None else grads[0]
    found = torch.ops.gnnsparse.graph_attention_grad(
        *arrays,
        seed,
        out,
        mapped,
        stats,
        grad_out,
        grads[1],
        grads[3],
        ctx.operand.handle,
        needs,
        *ctx.options,
    )
    given = (g if need else None for g, need in zip(found, needs, strict=True))
    return (*given, None, None, None, *(None for _ in ctx.options))


_TENSORS = (
    "Tensor q, Tensor k, Tensor v, Tensor? att, Tensor? bias, Tensor? features, Tensor? gate, "
    "Tensor? mapped, Tensor? mapped_q, Tensor? seed"
)
_OPTIONS = (
    "str score, float scale, float negative_slope, bool to_keys, bool to_values, float clamp, "
    "bool normalize, bool is_causal, float dropout_p"
)
register(
    f"graph_attention({_TENSORS}, int operand, bool wants_weights, {_OPTIONS}) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
    _run_registered,
    _fake,
    _setup,
    _registered_grads,
)
register(
    f"graph_attention_grad({_TENSORS}, Tensor out, Tensor result_mapped, Tensor stats, Tensor grad_out, "
    f"Tensor? grad_mapped, Tensor? grad_weights, int operand, bool[{_ARRAYS}] needs, {_OPTIONS}) -> "
    f"({', '.join(['Tensor'] * _ARRAYS)})",
    _run_grad,
    _fake_grad,
)


def registered(call: GraphCall, wants_weights: bool) -> Outputs:
    """Calls the operator, for torch.compile and subclasses of Tensor."""
    found: Outputs = torch.ops.gnnsparse.graph_attention(
        *call.arrays, call.seed, call.operand.handle, wants_weights, *call.options
    )
    return found


# Eager calls.


def _grads_with_graph(ctx: Any, grads: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
    """Computes gradients through the differentiable chain, for second derivatives."""
    saved = alive(ctx.saved_tensors[: _ARRAYS + 1])
    *arrays, seed = saved
    needs = ctx.needs_input_grad[:_ARRAYS]
    call = _call(ctx.operand.handle, tuple(arrays), seed, ctx.options)
    result, weights = chain.forward(call)
    outputs = zip((result.out, result.mapped, weights), grads, strict=True)
    pairs = [(y, g) for y, g in outputs if y is not None and g is not None]
    wanted = [x for x, need in zip(arrays, needs, strict=True) if need]
    given = [g for _, g in pairs]
    found = iter(
        torch.autograd.grad([y for y, _ in pairs], wanted, given, create_graph=True, allow_unused=True)
    )
    return tuple(next(found) if need else None for need in needs)


class _GraphAttention(torch.autograd.Function):
    """Graph attention of plain tensors outside of transforms."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Outputs:
        output = _run_registered(*inputs)
        _setup(ctx, inputs, output)
        ctx.mark_non_differentiable(output[2])
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        needs, rest = ctx.needs_input_grad[:_ARRAYS], [None] * (3 + len(ctx.options))
        wanted = grads[0], grads[1], grads[3]
        if all(g is None for g in wanted):
            return *(None for _ in needs), *rest
        if torch.is_grad_enabled():
            return *_grads_with_graph(ctx, wanted), *rest
        *arrays, seed, out, mapped, stats = ctx.saved_tensors
        call = _call(ctx.operand.handle, tuple(arrays), seed, ctx.options)
        return *_gradients(call, (out, mapped, stats, out), wanted, needs), *rest


_quick = direct(_GraphAttention)


def with_grad(call: GraphCall, wants_weights: bool) -> Outputs:
    """Computes attention, recorded by autograd if a tensor needs a gradient."""
    if not needs_grad(*call.arrays):
        return run(call, wants_weights)
    found: Outputs = _quick(*call.arrays, call.seed, call.operand.handle, wants_weights, *call.options)
    return found
