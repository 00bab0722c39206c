"""SpMM as an operator of torch.library, with its fake and its gradient, and the choice of its backend."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from gnnsparse.cuda_path import path
from gnnsparse.kernel_cache import SpmmCall
from gnnsparse.operand import SparseOperand, operand_of
from gnnsparse.ops import operators
from gnnsparse.ops.common import direct
from gnnsparse.ops.library import REGISTERED, Products, eager, register
from gnnsparse.ops.spmm import cpu, cuda
from gnnsparse.ops.vmap import loop
from gnnsparse.plan import Plan
from gnnsparse.transforms import alive, enclosed, settled

__all__ = ["backend", "transformed", "with_grad"]


def backend(device: torch.device) -> ModuleType:
    """Returns the module (spmm.cpu or spmm.cuda) whose `bind` serves a device."""
    return cuda if path().takes(device) else cpu


def _run(x: torch.Tensor, values: torch.Tensor | None, operand: int) -> torch.Tensor:
    a = operators.spmm(x, values, operand)
    call = backend(x.device).bind(a.kernels, x.shape[1], x.dtype, values is not None)
    result: torch.Tensor = call(x, values)
    return result


def _fake(x: torch.Tensor, values: torch.Tensor | None, operand: int) -> torch.Tensor:
    return x.new_empty(operators.spmm(x, values, operand).shape[0], x.shape[1])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, values, handle = inputs[:3]
    ctx.operand = operand_of(handle)
    ctx.x_dtype = x.dtype
    needs_x = values is not None and values.requires_grad
    ctx.save_for_backward(x if needs_x else None, values)


def _grad(ctx: Any, grad: torch.Tensor, use: Products) -> tuple[Any, ...]:
    """Computes dX = A^T dY, and the values' gradient: dY X^T at the nonzeros of A."""
    x, values = alive(ctx.saved_tensors)
    operand: SparseOperand = ctx.operand
    grad = grad.contiguous()  # autograd may pass an expanded tensor, with strides of 0
    grad_x = grad_values = None
    if ctx.needs_input_grad[0]:
        values_t = None if values is None else use.transpose_values(operand, values)
        grad_x = use.spmm(operand.T, grad, values_t).to(ctx.x_dtype)
    if values is not None and ctx.needs_input_grad[1]:
        grad_values = use.sddmm(operand, grad, x).to(values.dtype)
    return grad_x, grad_values, None


register(
    "spmm(Tensor x, Tensor? values, int operand) -> Tensor",
    _run,
    _fake,
    _setup,
    lambda ctx, grad: _grad(ctx, grad, REGISTERED),
)


class _Spmm(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, values: torch.Tensor | None, handle: int, run: SpmmCall) -> Any:
        return run(x, values)

    setup_context = staticmethod(_setup)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return *_grad(ctx, grad, eager(grad)), None


#: (x, values or None, the operand's handle, the bound call) -> y, recorded by autograd.
with_grad = direct(_Spmm)


class _Transformed(torch.autograd.Function):
    """SpMM with rules for every transform; `forward` sees the tensors that are left when all are undone."""

    @staticmethod
    def forward(x: torch.Tensor, values: torch.Tensor | None, handle: int, plan: Plan | None) -> Any:
        bind = backend(x.device).bind
        run = bind(operand_of(handle).kernels, x.shape[1], x.dtype, values is not None, plan)
        return run(settled(x), None if values is None else settled(values))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        x, values, handle, ctx.plan = inputs
        ctx.operand = operand_of(handle)
        ctx.x_dtype = x.dtype
        ctx.save_for_backward(x, values)
        ctx.save_for_forward(x, values)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return *_grad(ctx, grad, eager(grad)), None

    @staticmethod
    @enclosed
    def jvp(ctx: Any, saved: Any, dx: torch.Tensor | None, dvalues: torch.Tensor | None, *_: Any) -> Any:
        """Computes A(values) dX + A(dvalues) X."""
        x, values = saved
        terms = []
        if dx is not None:
            terms.append(eager().spmm(ctx.operand, dx, values, plan=ctx.plan))
        if dvalues is not None:
            terms.append(eager().spmm(ctx.operand, x, dvalues))
        return sum(terms[1:], terms[0])

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, values: torch.Tensor | None,
        handle: int, plan: Plan | None,
    ) -> Any:  # fmt: skip
        """Folds a batch of X into its columns; multiplies one by one if the values are a batch."""
        operand = operand_of(handle)
        if in_dims[1] is not None:
            return loop(info, in_dims[:2], lambda x, v: eager().spmm(operand, x, v, plan=plan), x, values)
        x = x.movedim(in_dims[0], 1)
        y = eager().spmm(operand, x.flatten(1), values, plan=plan)
        return y.unflatten(1, x.shape[1:]), 1


#: (x, values or None, the operand's handle, a plan or None) -> y, inside torch.func and forward-mode AD.
transformed = _Transformed.apply
