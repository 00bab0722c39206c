"""The maximum and the minimum in place of SpMM's sum; alone, as an operation of its own.

What the gradient needs of the forward pass is the column of the nonzero that gave each element, int32. A
kernel over the transpose, whose rows are the columns, compares it with its row; none adds atomically.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from gnnsparse.ops import dispatch, heads
from gnnsparse.plan import Plan
from gnnsparse.runtime.functorch import alive, materialised
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.operand import SparseOperand


def spmm_max(
    a: SparseOperand, x: torch.Tensor, values: torch.Tensor | None, largest: bool, plan: Plan | None
) -> torch.Tensor:
    """Compute the maximum or minimum; values None are A's weights, or [nnz, heads] with x [k, heads, d]."""
    a.kernels.require("reduce", "a max" if largest else "a min", None)
    bind = lambda: partial(heads.spmm_max, a.kernels, largest=largest, plan=plan)  # noqa: E731
    operator = torch.ops.gnnsparse.spmm_max
    return dispatch.call(_SpmmMax, operator, a, (x, values), bind, (largest,))[0]


class _SpmmMax(dispatch.Operation):
    name = "spmm_max"

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, values = inputs[:2]
        ctx.mark_non_differentiable(output[1])
        ctx.operand, ctx.x_dtype = dispatch.operand_at(inputs[2]), x.dtype
        needs_x = values is not None and values.requires_grad
        ctx.save_for_backward(x if needs_x else None, values, output[1])

    @staticmethod
    @ranged("spmm_backward")
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        """Compute the gradients of x and of the values: sums of what each nonzero has given."""
        saved = x, values, _ = alive(ctx.saved_tensors)
        grad = dispatch.gradient("spmm", grad)
        native, composed = lambda: _grads(ctx, grad, *saved), lambda: _composed_grads(ctx, grad, *saved)
        grads = dispatch.native_or_composed((grad, x, values), native, composed)
        return *grads, *[None] * (len(ctx.needs_input_grad) - 2)


def _grads(
    ctx: Any, grad: torch.Tensor, x: torch.Tensor, values: torch.Tensor | None, argmax: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Compute the gradients by kernels, or by the operators that stand for them."""
    grad_x = grad_values = None
    if dispatch.is_plain(grad, x, values):
        grad, of_x, operand = materialised(grad), _grad_of_x, ctx.operand
        of_values = lambda grad, x, argmax, a: heads.sddmm(a.kernels, grad, x, argmax)  # noqa: E731
    else:
        ops, operand = torch.ops.gnnsparse, ctx.operand.handle
        of_x, of_values = ops.spmm_max_grad, ops.spmm_max_values_grad
    if ctx.needs_input_grad[0]:
        grad_x = of_x(grad, argmax, values, operand).to(ctx.x_dtype)
    if values is not None and ctx.needs_input_grad[1]:
        grad_values = of_values(grad, x, argmax, operand).to(values.dtype)
    return grad_x, grad_values


def _grad_of_x(
    grad: torch.Tensor, argmax: torch.Tensor, values: torch.Tensor | None, operand: SparseOperand
) -> torch.Tensor:
    turned = None if values is None else operand.transpose_values(values)
    return heads.spmm_max_grad(operand.T.kernels, grad, argmax, turned)


# In torch operations, which compose with every transform and have gradients again.


def _composed_grads(
    ctx: Any, grad: torch.Tensor, x: torch.Tensor | None, values: torch.Tensor | None, argmax: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    operand: SparseOperand = ctx.operand
    at, grad32 = argmax.clamp(min=0).long(), grad.float()
    grad_x = grad_values = None
    if ctx.needs_input_grad[0]:
        terms = grad32 * _weights_at(operand, values, argmax)
        grad_x = terms.new_zeros(operand.shape[1], *grad.shape[1:]).scatter_add(0, at, terms).to(ctx.x_dtype)
    if values is not None and x is not None and ctx.needs_input_grad[1]:
        terms = grad32 * torch.where(argmax >= 0, x.float().gather(0, at), 0.0)
        edges = _by_head(_edges_of(operand, argmax), values)
        sums = terms.new_zeros(values.shape).scatter_add(0, edges, _by_head(terms, values))
        grad_values = sums.to(values.dtype)
    return grad_x, grad_values


def _by_head(t: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Bring [m, n], or [m, heads, d], into the shape in which [nnz], or [nnz, heads], is gathered."""
    return t.flatten() if weights.dim() == 1 else t.movedim(1, 2).flatten(0, 1)


def _edges_of(operand: SparseOperand, argmax: torch.Tensor) -> torch.Tensor:
    """Return the index of the nonzero that gave each element; any where there is none."""
    csr, ids = operand.kernels.csr, operand.kernels.row_ids
    # In A's own order, rows and the columns in a row ascend.
    keys = csr.row_index() * csr.cols + csr.indices
    rows = torch.arange(csr.rows, dtype=torch.int64, device=argmax.device)
    stored = rows if ids is None else torch.empty_like(rows).index_copy(0, ids.long(), rows)
    first = (stored * csr.cols).reshape(-1, *[1] * (argmax.dim() - 1))
    return torch.searchsorted(keys, first + argmax.clamp(min=0)).clamp(max=max(csr.nnz - 1, 0))


def _weights_at(operand: SparseOperand, values: torch.Tensor | None, argmax: torch.Tensor) -> torch.Tensor:
    """Return the weight of the nonzero that gave each element, float32; 0 where there is none."""
    weights = operand.kernels.own_weights if values is None else values
    if weights is None:
        return (argmax >= 0).float()
    edges = _edges_of(operand, argmax)
    chosen = weights.float().gather(0, _by_head(edges, weights))
    if weights.dim() > 1:
        chosen = chosen.unflatten(0, (edges.shape[0], edges.shape[2])).movedim(1, 2)
    return torch.where(argmax >= 0, chosen.reshape(edges.shape), 0.0)


# The operators.


def _of_features(x: torch.Tensor, values: torch.Tensor | None, handle: int) -> SparseOperand:
    operand = dispatch.operand_of_product(x, values, handle)
    operand.kernels.require("operand", "a maximum or minimum", None)
    return operand


def _of_grad(
    grad: torch.Tensor, argmax: torch.Tensor, handle: int, values: torch.Tensor | None = None,
    x: torch.Tensor | None = None,
) -> SparseOperand:  # fmt: skip
    """Return the operand, after checking the gradient [m, n] or [m, heads, d], and what goes with it."""
    operand = dispatch.operand_at(handle)
    operand.kernels.require("operand", "a maximum or minimum", None)
    dispatch.check_operator_tensor("grad", grad, operand, dispatch.row_of_heads(grad, operand.shape[0]))
    dispatch.check_operator_tensor("argmax", argmax, operand, tuple(grad.shape), (torch.int32,))
    if values is not None:
        dispatch.check_operator_tensor("values", values, operand, (operand.nnz, *grad.shape[1:-1]))
    if x is not None:
        dispatch.check_operator_tensor("x", x, operand, (operand.shape[1], *grad.shape[1:]))
    return operand


def _fake(x: torch.Tensor, values: torch.Tensor | None, operand: int, largest: bool) -> Any:
    shape = (_of_features(x, values, operand).shape[0], *x.shape[1:])
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int32)


dispatch.register(
    "spmm_max(Tensor x, Tensor? values, int operand, bool largest) -> (Tensor, Tensor)",
    lambda x, values, a, largest: heads.spmm_max(_of_features(x, values, a).kernels, x, values, largest),
    _fake,
    _SpmmMax.setup_context,
    _SpmmMax.backward,
)
dispatch.register(
    "spmm_max_grad(Tensor grad, Tensor argmax, Tensor? values, int operand) -> Tensor",
    lambda grad, argmax, values, a: _grad_of_x(grad, argmax, values, _of_grad(grad, argmax, a, values)),
    lambda grad, argmax, values, a: grad.new_empty(
        _of_grad(grad, argmax, a, values).shape[1], *grad.shape[1:]
    ),
)
dispatch.register(
    "spmm_max_values_grad(Tensor grad, Tensor x, Tensor argmax, int operand) -> Tensor",
    lambda grad, x, argmax, a: heads.sddmm(_of_grad(grad, argmax, a, x=x).kernels, grad, x, argmax),
    lambda grad, x, argmax, a: grad.new_empty(_of_grad(grad, argmax, a, x=x).nnz, *grad.shape[1:-1]),
)
