"""The maximum and the minimum in place of SpMM's sum: operators of torch.library, gradients, transforms.

What the gradient needs of the forward pass is which nonzero gave each element of the result: its column,
since a row has each column once. It is int32 for every matrix, and a kernel that runs over the transpose,
whose rows are the columns, compares it with the row that it is at. No kernel adds atomically.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from gnnsparse.ops import heads_cpu, heads_cuda, operators
from gnnsparse.ops.common import direct, is_plain, needs_grad
from gnnsparse.ops.library import register
from gnnsparse.ops.vmap import loop
from gnnsparse.plan import Plan
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import alive, enclosed, is_batch_of_gradients, is_direct, settled
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.operand import SparseOperand, operand_of

__all__ = ["extreme"]


def _backend(device: torch.device) -> ModuleType:
    return heads_cuda if path().takes(device) else heads_cpu


def _run(
    x: torch.Tensor, values: torch.Tensor | None, operand: int, largest: bool, plan: Plan | None = None
) -> Any:
    kernels = operand_of(operand).kernels
    return _backend(x.device).spmm_extreme(kernels, x, values, largest, plan)


def _won(
    operand: SparseOperand, grad: torch.Tensor, winners: torch.Tensor, values: torch.Tensor | None
) -> Any:
    values_t = None if values is None else operand.transpose_values(values)
    return _backend(grad.device).spmm_won(operand.T.kernels, grad, winners, values_t)


def _at_winners(operand: SparseOperand, grad: torch.Tensor, x: torch.Tensor, winners: torch.Tensor) -> Any:
    return _backend(grad.device).sddmm(operand.kernels, grad, x, winners)


def _run_checked(x: torch.Tensor, values: torch.Tensor | None, operand: int, largest: bool) -> Any:
    operators.spmm_extreme(x, values, operand)
    return _run(x, values, operand, largest)


def _fake(x: torch.Tensor, values: torch.Tensor | None, operand: int, largest: bool) -> Any:
    shape = (operators.spmm_extreme(x, values, operand).shape[0], *x.shape[1:])
    return x.new_empty(shape), x.new_empty(shape, dtype=torch.int32)


def _run_grad(grad: torch.Tensor, winners: torch.Tensor, values: torch.Tensor | None, operand: int) -> Any:
    return _won(operators.spmm_extreme_grad(grad, winners, values, operand), grad, winners, values)


def _fake_grad(grad: torch.Tensor, winners: torch.Tensor, values: torch.Tensor | None, operand: int) -> Any:
    a = operators.spmm_extreme_grad(grad, winners, values, operand)
    return grad.new_empty(a.shape[1], *grad.shape[1:])


def _run_values_grad(grad: torch.Tensor, x: torch.Tensor, winners: torch.Tensor, operand: int) -> Any:
    return _at_winners(operators.spmm_extreme_values_grad(grad, x, winners, operand), grad, x, winners)


def _fake_values_grad(grad: torch.Tensor, x: torch.Tensor, winners: torch.Tensor, operand: int) -> Any:
    a = operators.spmm_extreme_values_grad(grad, x, winners, operand)
    return grad.new_empty(a.nnz, *grad.shape[1:-1])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, values, handle, ctx.largest = inputs[:4]
    winners = output[1]
    ctx.mark_non_differentiable(winners)
    ctx.operand, ctx.x_dtype = operand_of(handle), x.dtype
    needs_x = values is not None and values.requires_grad
    ctx.save_for_backward(x if needs_x else None, values, winners)


def _registered_grad(ctx: Any, grad: torch.Tensor, _: Any) -> tuple[Any, ...]:
    x, values, winners = ctx.saved_tensors
    grad, ops, handle = grad.contiguous(), torch.ops.gnnsparse, ctx.operand.handle
    grad_x = grad_values = None
    if ctx.needs_input_grad[0]:
        grad_x = ops.spmm_extreme_grad(grad, winners, values, handle).to(ctx.x_dtype)
    if values is not None and ctx.needs_input_grad[1]:
        grad_values = ops.spmm_extreme_values_grad(grad, x, winners, handle).to(values.dtype)
    return grad_x, grad_values, None, None


register(
    "spmm_extreme(Tensor x, Tensor? values, int operand, bool largest) -> (Tensor, Tensor)",
    _run_checked,
    _fake,
    _setup,
    _registered_grad,
)
register(
    "spmm_extreme_grad(Tensor grad, Tensor winners, Tensor? values, int operand) -> Tensor",
    _run_grad,
    _fake_grad,
)
register(
    "spmm_extreme_values_grad(Tensor grad, Tensor x, Tensor winners, int operand) -> Tensor",
    _run_values_grad,
    _fake_values_grad,
)


# In torch operations, which compose with every transform and have gradients again.


def _edges_of(operand: SparseOperand, winners: torch.Tensor) -> torch.Tensor:
    """Returns the index of the nonzero that has won each element; any where there is none."""
    csr, ids = operand.kernels.csr, operand.kernels.row_ids
    # In A's own order, rows and the columns in a row ascend.
    keys = csr.row_index() * csr.cols + csr.indices
    rows = torch.arange(csr.rows, dtype=torch.int64, device=winners.device)
    stored = rows if ids is None else torch.empty_like(rows).index_copy(0, ids.long(), rows)
    first = (stored * csr.cols).reshape(-1, *[1] * (winners.dim() - 1))
    return torch.searchsorted(keys, first + winners.clamp(min=0)).clamp(max=max(csr.nnz - 1, 0))


def _weights_at(operand: SparseOperand, values: torch.Tensor | None, winners: torch.Tensor) -> Any:
    """Returns the weight of the nonzero that has won each element, float32; 0 where there is none."""
    some = winners >= 0
    weights = operand.kernels.own_weights if values is None else values
    if weights is None:
        return some.float()
    edges = _edges_of(operand, winners)
    if weights.dim() == 1:
        chosen = weights.float()[edges]
    else:
        chosen = weights.float().gather(0, edges.flatten(2).movedim(1, 2).flatten(0, 1))
        chosen = chosen.unflatten(0, (edges.shape[0], edges.shape[2])).movedim(1, 2)
    return torch.where(some, chosen, 0.0)


def _chosen(
    operand: SparseOperand, x: torch.Tensor, values: torch.Tensor | None, winners: torch.Tensor
) -> torch.Tensor:
    """Computes the products of the nonzeros that have won: the result, as a function of x and the values."""
    rows = x.float().gather(0, winners.clamp(min=0).long())
    return (torch.where(winners >= 0, rows, 0.0) * _weights_at(operand, values, winners)).to(x.dtype)


def _composed_grads(ctx: Any, grad: torch.Tensor, saved: Any) -> tuple[Any, ...]:
    x, values, winners = saved
    operand: SparseOperand = ctx.operand
    grad_x = grad_values = None
    grad32, at = grad.float(), winners.clamp(min=0).long()
    if ctx.needs_input_grad[0]:
        terms = grad32 * _weights_at(operand, values, winners)
        grad_x = terms.new_zeros(operand.shape[1], *terms.shape[1:]).scatter_add(0, at, terms).to(ctx.x_dtype)
    if values is not None and ctx.needs_input_grad[1]:
        terms = torch.where(winners >= 0, grad32 * x.float().gather(0, at), 0.0)
        edges = _edges_of(operand, winners)
        if values.dim() == 1:
            sums = terms.new_zeros(operand.nnz).index_add(0, edges.flatten(), terms.flatten())
        else:
            edges, terms = (t.movedim(1, 2).flatten(0, 1) for t in (edges, terms))
            sums = terms.new_zeros(values.shape).scatter_add(0, edges, terms)
        grad_values = sums.to(values.dtype)
    return grad_x, grad_values


@ranged("spmm_backward")
def _grads(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    """Computes the gradients of x and of the values: sums of what each nonzero has won."""
    saved = x, values, winners = alive(ctx.saved_tensors)
    if not is_direct() or is_batch_of_gradients(grad) or needs_grad(grad, x, values):
        return _composed_grads(ctx, grad, saved)
    grad, grad_x, grad_values = settled(grad).contiguous(), None, None
    if ctx.needs_input_grad[0]:
        grad_x = _won(ctx.operand, grad, winners, values).to(ctx.x_dtype)
    if values is not None and ctx.needs_input_grad[1]:
        grad_values = _at_winners(ctx.operand, grad, x, winners).to(values.dtype)
    return grad_x, grad_values


class _Extreme(torch.autograd.Function):
    @staticmethod
    def forward(
        x: torch.Tensor, values: torch.Tensor | None, handle: int, largest: bool, plan: Plan | None
    ) -> Any:
        return _run(x, values, handle, largest, plan)

    setup_context = staticmethod(_setup)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        return *_grads(ctx, grad), None, None, None


_with_grad = direct(_Extreme)


class _Transformed(torch.autograd.Function):
    """The extreme with rules for every transform; `forward` sees the tensors left when all are undone."""

    @staticmethod
    def forward(
        x: torch.Tensor, values: torch.Tensor | None, handle: int, largest: bool, plan: Plan | None
    ) -> Any:
        return _run(settled(x), None if values is None else settled(values), handle, largest, plan)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, values, handle = inputs[:3]
        ctx.mark_non_differentiable(output[1])
        ctx.operand, ctx.x_dtype = operand_of(handle), x.dtype
        ctx.save_for_backward(x, values, output[1])
        ctx.save_for_forward(x, values, output[1])

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: Any) -> Any:
        return *_grads(ctx, grad), None, None, None

    @staticmethod
    @enclosed
    def jvp(ctx: Any, saved: Any, dx: torch.Tensor | None, dvalues: torch.Tensor | None, *_: Any) -> Any:
        x, values, winners = saved
        terms = []
        if dx is not None:
            terms.append(_chosen(ctx.operand, dx, values, winners))
        if dvalues is not None:
            terms.append(_chosen(ctx.operand, x, dvalues, winners))
        return sum(terms[1:], terms[0]), None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, values: torch.Tensor | None, handle: int,
        largest: bool, plan: Plan | None,
    ) -> Any:  # fmt: skip
        call = lambda x, values: _Transformed.apply(x, values, handle, largest, plan)  # noqa: E731
        return loop(info, in_dims[:2], call, x, values)


def extreme(
    a: SparseOperand, x: torch.Tensor, values: torch.Tensor | None, largest: bool, plan: Plan | None
) -> torch.Tensor:
    """Computes the largest or smallest product of each row and feature, recorded by autograd.

    Args:
        a: the operand.
        x: [k, n], or [k, heads, d] with edge values [nnz, heads].
        values: [nnz] or [nnz, heads]; None: A's weights.
        largest: True for the maximum, False for the minimum.
        plan: a plan of the csr kernel; None: a default one.
    """
    result: torch.Tensor
    if not is_plain(x, values):
        result = torch.ops.gnnsparse.spmm_extreme(x, values, a.handle, largest)[0]
    elif not is_direct():
        result = _Transformed.apply(x, values, a.handle, largest, plan)[0]
    elif needs_grad(x, values):
        result = _with_grad(x, values, a.handle, largest, plan)[0]
    else:
        result = _run(x, values, a.handle, largest, plan)[0]
    return result
