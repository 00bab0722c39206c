"""Both operations as operators of torch.library and of autograd, and the choice of the kernels that run them.

An operator can't return None: what there is not, or is not needed, is an empty tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import torch

from gnnsparse.ops import operators
from gnnsparse.ops.attention import cpu, cuda_panels, cuda_rows, unfused
from gnnsparse.ops.attention.arguments import (
    Arrays,
    AttentionCall,
    Grads,
    GraphCall,
    Needs,
    Result,
    empty_heads,
    four_dimensions,
)
from gnnsparse.ops.attention.quantized import dequantized, takes_bytes
from gnnsparse.ops.dispatch import direct, needs_grad, register
from gnnsparse.plan import AttentionGradPlan, AttentionPlan, CsrAttentionPlan, Plan, UnfusedPlan
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import alive, is_batch_of_gradients, is_eager, materialised
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.operand import SparseOperand, operand_of

__all__ = [
    "Outputs", "outputs_of", "registered_graph", "require_rows", "run_backward", "run_forward", "run_graph",
    "with_grad", "with_graph_grad",
]  # fmt: skip

Tensors = Sequence["torch.Tensor | None"]


def _grads_with_graph(
    compute: Callable[[Sequence[Any]], Tensors], tensors: Sequence[Any], needs: Sequence[bool], grads: Tensors
) -> tuple[torch.Tensor | None, ...]:
    """Compute gradients that can be differentiated again, through the unfused operation.

    Args:
        compute: the operation, which returns its outputs.
        tensors: its arguments.
        needs: whether the gradient of each of them is needed.
        grads: gradients of the outputs; None: it has none.
    """

    def run(*wanted: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = iter(wanted)
        outputs = compute([next(found) if need else x for x, need in zip(tensors, needs, strict=True)])
        return tuple(y for y, g in zip(outputs, grads, strict=True) if y is not None and g is not None)

    _, pull, *_ = torch.func.vjp(run, *(x for x, need in zip(tensors, needs, strict=True) if need))
    found = iter(pull(tuple(g for g in grads if g is not None)))
    return tuple(next(found) if need else None for need in needs)


def _or_empty(grads: Tensors, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(like.new_empty(0) if g is None else g for g in grads)


# Attention: the choice of its kernels.


def _runs_unfused(call: AttentionCall, plan: Plan | None) -> bool:
    """Return whether attention on a CPU is not fused: by the plan, or as the only way of a format."""
    return isinstance(plan, UnfusedPlan) or call.operand.kernels.runs_format_alone


def run_forward(call: AttentionCall, plan: Plan | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the output and the statistics of each row's softmax on the operand's device.

    Args:
        call: the arguments of attention.
        plan: the plan to run by; None: the operand's own.

    Returns:
        [B, H, L, Dv] in the dtype and memory order of q, and float32 [B, H, L, 2].
    """
    if not path().takes(call.operand.device):
        run = unfused.forward if _runs_unfused(call, plan) else cpu.forward
        return run(dequantized(call))
    plan = plan or call.operand.kernels.plan_of(call.product("attention"))
    in_bytes = takes_bytes(call, plan)
    if not in_bytes:
        call = dequantized(call)
    if isinstance(plan, AttentionPlan):
        return cuda_panels.forward(call, plan, in_bytes)
    return cuda_rows.forward(call) if isinstance(plan, CsrAttentionPlan) else unfused.forward(call)


def _grad_plan(call: AttentionCall, plan: Plan | None) -> Plan:
    """Return the plan of the gradients for a forward pass by `plan`; None: the operand's own plans."""
    if isinstance(plan, (UnfusedPlan, CsrAttentionPlan)):
        return plan
    if isinstance(plan, AttentionPlan) and plan.backward is not None:
        return plan.backward
    operand = call.operand
    return operand.kernels.plan_of(call.product("attention_grad"), operand.T.kernels)


@ranged("attention_backward")
def run_backward(
    call: AttentionCall, out: torch.Tensor, stats: torch.Tensor, grad: torch.Tensor, needs: Needs,
    plan: Plan | None = None,
) -> Grads:  # fmt: skip
    """Compute the gradients of q, k, v and bias on the operand's device; those not needed are None.

    Where k and v are rounded to 8 bits, gradients pass the rounding unchanged.

    Args:
        call: the arguments of `run_forward`.
        out, stats: its results.
        grad: gradient of `out`, [B, H, L, Dv], any strides.
        needs: which gradients are needed.
        plan: the plan given for the forward pass; None: the operand's own.

    Returns:
        Gradients in the shapes and dtypes of the arguments; those of q, k and v in their memory orders.
    """
    given, call = call, dequantized(call)
    if not path().takes(call.operand.device):
        if _runs_unfused(call, plan):
            found = unfused.backward(call, grad, needs)
        else:
            found = cpu.backward(call, stats, grad, needs)
    else:
        plan = _grad_plan(call, plan)
        if isinstance(plan, AttentionGradPlan):
            found = cuda_panels.backward(call, plan, out, stats, grad, needs)
        elif isinstance(plan, CsrAttentionPlan):
            found = cuda_rows.backward(call, out, stats, grad, needs)
        else:
            found = unfused.backward(call, grad, needs)
    pairs = zip(found, (given.q, given.k, given.v, given.bias), strict=True)
    dq, dk, dv, dbias = (None if g is None or x is None else g.to(x.dtype) for g, x in pairs)
    return dq, dk, dv, dbias


# Attention: its operators. Their arguments are those of `_call`, in its order.


def _call(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, seed: torch.Tensor | None,
    operand: int, scale: float, dropout_p: float, is_causal: bool,
) -> AttentionCall:  # fmt: skip
    heads = four_dimensions(q), four_dimensions(k), four_dimensions(v)
    return AttentionCall(operand_of(operand), *heads, bias, seed, scale, dropout_p, is_causal)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Save the arguments and results for the gradient; only the bias has a value for each edge."""
    q, k, v, bias, seed, handle, *ctx.options = inputs
    ctx.operand = operand_of(handle)
    ctx.save_for_backward(q, k, v, bias, seed, *output)


def _as_given(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Undo `four_dimensions` for a tensor that had `dim` dimensions."""
    return x if dim == 4 else x[(0,) * (4 - dim)]


def _grads(ctx: Any, saved: Any, grad: torch.Tensor, run: Callable[..., Grads]) -> Tensors:
    """Compute the gradients of q, k, v and the bias, with the dimensions that the arguments had.

    `saved` are the saved tensors. Checkpointing computes them again, and lets them be read one time only.
    """
    q, k, v, bias, seed, out, stats = saved
    call = _call(q, k, v, bias, seed, ctx.operand.handle, *ctx.options[:3])
    needs = tuple(ctx.needs_input_grad[:4])
    *grads, dbias = run(call, four_dimensions(out), stats, four_dimensions(materialised(grad)), needs)
    return *(None if x is None else _as_given(x, q.dim()) for x in grads), dbias


def _check(*arguments: Any) -> None:
    q, k, v, bias, seed, operand, _, dropout_p, _ = arguments
    operators.attention(q, k, v, bias, seed, operand, dropout_p)


def _run(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    _check(*arguments)
    return run_forward(_call(*arguments))


def _fake(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    _check(*arguments)
    q, v = arguments[0], arguments[2]
    return empty_heads(q, v.shape[-1]), q.new_empty((*q.shape[:3], 2), dtype=torch.float32)


def _checked_grad(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor,
    stats: torch.Tensor, grad: torch.Tensor, seed: torch.Tensor | None, operand: int, scale: float,
    dropout_p: float, is_causal: bool, needs: list[bool],
) -> tuple[AttentionCall, tuple[Any, ...]]:  # fmt: skip
    """Return the arguments of `run_backward` of those of the operator."""
    operators.attention_grad(q, k, v, bias, out, stats, grad, seed, operand, dropout_p, needs)
    call = _call(q, k, v, bias, seed, operand, scale, dropout_p, is_causal)
    return call, (out, stats, grad, tuple(needs))


def _run_grad(*arguments: Any) -> tuple[torch.Tensor, ...]:
    call, others = _checked_grad(*arguments)
    return _or_empty(run_backward(call, *others), call.q)


def _fake_grad(*arguments: Any) -> tuple[torch.Tensor, ...]:
    call, (*_, needs) = _checked_grad(*arguments)
    inputs = zip((call.q, call.k, call.v), needs, strict=False)
    grads = [empty_heads(x, x.shape[-1]) if need else None for x, need in inputs]
    grads.append(call.bias.new_empty(call.bias.shape) if call.bias is not None and needs[3] else None)
    return _or_empty(grads, call.q)


def _registered_backward(
    call: AttentionCall, out: torch.Tensor, stats: torch.Tensor, grad: torch.Tensor, needs: Needs
) -> Any:
    grads = torch.ops.gnnsparse.attention_grad(
        call.q, call.k, call.v, call.bias, out, stats, grad, call.seed, call.operand.handle, call.scale,
        call.dropout_p, call.is_causal, list(needs),
    )  # fmt: skip
    return tuple(g if need else None for g, need in zip(grads, needs, strict=True))


register(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? seed, int operand, float scale, "
    "float dropout_p, bool is_causal) -> (Tensor, Tensor)",
    _run,
    _fake,
    _setup,
    lambda ctx, grad, _: (*_grads(ctx, ctx.saved_tensors, grad, _registered_backward), *(None,) * 5),
)
register(
    "attention_grad(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor out, Tensor stats, Tensor grad, "
    "Tensor? seed, int operand, float scale, float dropout_p, bool is_causal, bool[4] needs) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _run_grad,
    _fake_grad,
)


class _Attention(torch.autograd.Function):
    """Attention of arguments with two to four dimensions; views made outside would be nodes of autograd."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Any:
        out, stats = run_forward(_call(*inputs[:-1]), inputs[-1])
        output = _as_given(out, inputs[0].dim()), stats
        _setup(ctx, inputs, output)
        ctx.mark_non_differentiable(stats)
        return output

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        saved = ctx.saved_tensors
        grads: Tensors
        if is_batch_of_gradients(grad):
            grads = _grads(ctx, saved, grad, _registered_backward)
        elif is_eager() and not needs_grad(grad, *saved[:4]):
            grads = _grads(ctx, saved, grad, partial(run_backward, plan=ctx.options[3]))
        else:
            *tensors, seed = alive(saved[:5])

            def compute(given: Sequence[Any]) -> Tensors:
                call = _call(*given, seed, ctx.operand.handle, *ctx.options[:3])  # type: ignore[call-arg]
                return unfused.by_operations(call)[:1]

            needs = ctx.needs_input_grad[:4]
            grads = _grads_with_graph(compute, tensors, needs, (four_dimensions(grad),))
        return *grads, *(None,) * 6


#: (q, k, v, bias, seed, handle, scale, dropout_p, is_causal, plan) -> (out, stats), recorded by autograd.
with_grad = direct(_Attention)


# Graph attention: the choice of its kernels.

_ARRAYS = len(Arrays._fields)
#: out, mapped, stats and weights, empty where there is none or it is not wanted.
Outputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _backend(operand: SparseOperand) -> ModuleType:
    return cuda_rows if path().takes(operand.device) else cpu


def require_rows(operand: SparseOperand) -> None:
    """Raise ValueError if the operand's format was asked for: the kernels here run over CSR rows."""
    operand.kernels.require("A", "graph attention by other than scaled, biased dot products", None)


def outputs_of(result: Result, weights: torch.Tensor | None) -> Outputs:
    """Return results as an operator does."""
    mapped, weights = _or_empty((result.mapped, weights), result.out)
    return result.out, mapped, result.stats, weights


def run_graph(call: GraphCall, wants_weights: bool) -> Outputs:
    """Compute graph attention on the operand's device.

    Returns:
        The attributes of Result, and the weights after dropout, float32 [nnz, H].
    """
    require_rows(call.operand)
    backend = _backend(call.operand)
    result: Result = backend.graph_forward(call)
    return outputs_of(result, backend.graph_weights(call, result) if wants_weights else None)


@ranged("graph_attention_backward")
def _graph_gradients(call: GraphCall, outputs: Tensors, grads: Tensors, needs: tuple[bool, ...]) -> Arrays:
    """Compute the gradients of the arrays on the operand's device; those not needed are None.

    Args:
        call: the arguments of graph attention.
        outputs: out, mapped and stats, as an operator returns them.
        grads: gradients of out, of mapped and of the weights; None: there is none.
        needs: which gradients are needed.
    """
    out, mapped, stats = outputs
    assert out is not None
    assert stats is not None
    result = Result(out, mapped if call.arrays.mapped is not None and call.to_values else None, stats)
    grad_out, grad_mapped, grad_weights = (None if g is None else materialised(g) for g in grads)
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    found: Arrays = _backend(call.operand).graph_backward(
        call, result, grad_out, None if result.mapped is None else grad_mapped, grad_weights, needs
    )
    return found


# Graph attention: its operators. Their arguments are arrays, seed, operand, wants_weights and options.


def _graph_call(arrays: Sequence[Any], seed: Any, handle: int, options: Any) -> GraphCall:
    return GraphCall.of(operand_of(handle), Arrays(*arrays), options, seed)


def _run_graph(*arguments: Any) -> Outputs:
    *arrays, seed, handle, wants_weights = arguments[: _ARRAYS + 3]
    return run_graph(_graph_call(arrays, seed, handle, arguments[_ARRAYS + 3 :]), wants_weights)


def _fake_graph(*arguments: Any) -> Outputs:
    *arrays, seed, handle, wants_weights = arguments[: _ARRAYS + 3]
    call = _graph_call(arrays, seed, handle, arguments[_ARRAYS + 3 :])
    operand, v, mapped = call.operand, call.arrays.v, call.arrays.mapped
    require_rows(operand)
    rows, heads = operand.shape[0], v.shape[1]
    return (
        v.new_empty(rows, heads, v.shape[-1]),
        v.new_empty((rows, heads, mapped.shape[-1]) if mapped is not None and call.to_values else 0),
        v.new_empty(rows, heads, 2, dtype=torch.float32),
        v.new_empty(operand.nnz, heads, dtype=torch.float32) if wants_weights else v.new_empty(0),
    )


def _run_graph_grad(*arguments: Any) -> tuple[torch.Tensor, ...]:
    *arrays, seed = arguments[: _ARRAYS + 1]
    out, mapped, stats, *grads, handle, needs = arguments[_ARRAYS + 1 : _ARRAYS + 9]
    call = _graph_call(arrays, seed, handle, arguments[_ARRAYS + 9 :])
    return _or_empty(_graph_gradients(call, (out, mapped, stats), grads, tuple(needs)), out)


def _fake_graph_grad(*arguments: Any) -> tuple[torch.Tensor, ...]:
    arrays, out, needs = arguments[:_ARRAYS], arguments[_ARRAYS + 1], arguments[_ARRAYS + 8]
    pairs = zip(arrays, needs, strict=True)
    return _or_empty([x.new_empty(x.shape) if x is not None and need else None for x, need in pairs], out)


def _setup_graph(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    """Save the arguments and results for the gradient."""
    *tensors, handle, _ = inputs[: _ARRAYS + 3]
    ctx.operand, ctx.options = operand_of(handle), inputs[_ARRAYS + 3 :]
    ctx.save_for_backward(*tensors, *output[:3])
    ctx.set_materialize_grads(False)


def _registered_graph_grads(ctx: Any, *grads: Any) -> Any:
    saved = ctx.saved_tensors
    needs = list(ctx.needs_input_grad[:_ARRAYS])
    grad_out = torch.zeros_like(saved[_ARRAYS + 1]) if grads[0] is None else grads[0]
    found = torch.ops.gnnsparse.graph_attention_grad(
        *saved, grad_out, grads[1], grads[3], ctx.operand.handle, needs, *ctx.options
    )
    given = (g if need else None for g, need in zip(found, needs, strict=True))
    return *given, *(None,) * (3 + len(ctx.options))


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
    _run_graph,
    _fake_graph,
    _setup_graph,
    _registered_graph_grads,
)
register(
    f"graph_attention_grad({_TENSORS}, Tensor out, Tensor result_mapped, Tensor stats, Tensor grad_out, "
    f"Tensor? grad_mapped, Tensor? grad_weights, int operand, bool[{_ARRAYS}] needs, {_OPTIONS}) -> "
    f"({', '.join(['Tensor'] * _ARRAYS)})",
    _run_graph_grad,
    _fake_graph_grad,
)


def _graph_inputs(call: GraphCall, wants_weights: bool) -> tuple[Any, ...]:
    return *call.arrays, call.seed, call.operand.handle, wants_weights, *call.options


def registered_graph(call: GraphCall, wants_weights: bool) -> Outputs:
    """Call the operator, for torch.compile and subclasses of Tensor."""
    found: Outputs = torch.ops.gnnsparse.graph_attention(*_graph_inputs(call, wants_weights))
    return found


class _GraphAttention(torch.autograd.Function):
    """Graph attention of plain tensors outside of transforms."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Outputs:
        output = _run_graph(*inputs)
        _setup_graph(ctx, inputs, output)
        ctx.mark_non_differentiable(output[2])
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        needs, rest = ctx.needs_input_grad[:_ARRAYS], (None,) * (3 + len(ctx.options))
        wanted = grads[0], grads[1], grads[3]
        if all(g is None for g in wanted):
            return *(None for _ in needs), *rest
        *arrays, seed, out, mapped, stats = ctx.saved_tensors
        if not torch.is_grad_enabled():
            call = _graph_call(arrays, seed, ctx.operand.handle, ctx.options)
            return *_graph_gradients(call, (out, mapped, stats), wanted, needs), *rest
        *arrays, seed = alive((*arrays, seed))

        def compute(given: Sequence[Any]) -> Tensors:
            call = _graph_call(given, seed, ctx.operand.handle, ctx.options)
            result, weights = unfused.graph_forward(call)
            return result.out, result.mapped, weights

        return *_grads_with_graph(compute, arrays, needs, wanted), *rest


_quick_graph = direct(_GraphAttention)


def with_graph_grad(call: GraphCall, wants_weights: bool) -> Outputs:
    """Compute graph attention, recorded by autograd if a tensor needs a gradient."""
    if not needs_grad(*call.arrays):
        return run_graph(call, wants_weights)
    found: Outputs = _quick_graph(*_graph_inputs(call, wants_weights))
    return found
