"""SDDMM as an operator of torch.library, with its fake and its gradient, and the choice of its backend."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from gnnsparse.cuda_path import path
from gnnsparse.kernel_cache import SddmmCall
from gnnsparse.operand import SparseOperand, operand_of
from gnnsparse.ops import operators
from gnnsparse.ops.common import direct
from gnnsparse.ops.library import REGISTERED, Products, eager, register
from gnnsparse.ops.sddmm import cpu, cuda

__all__ = ["backend", "with_grad"]


def backend(device: torch.device) -> ModuleType:
    """Returns the module (sddmm.cpu or sddmm.cuda) whose `bind` serves a device."""
    return cuda if path().takes(device) else cpu


def _run(q: torch.Tensor, k: torch.Tensor, operand: int) -> torch.Tensor:
    a = operators.sddmm(q, k, operand)
    result: torch.Tensor = backend(q.device).bind(a.kernels, q.shape[1], q.dtype)(q, k)
    return result


def _fake(q: torch.Tensor, k: torch.Tensor, operand: int) -> torch.Tensor:
    return q.new_empty(operators.sddmm(q, k, operand).nnz)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    q, k, handle = inputs[:3]
    ctx.operand = operand_of(handle)
    ctx.save_for_backward(q, k)


def _grad(ctx: Any, grad: torch.Tensor, use: Products) -> tuple[Any, ...]:
    """Computes dQ = S K and dK = S^T Q, where the values of S are the gradient of the scores."""
    q, k = ctx.saved_tensors
    operand: SparseOperand = ctx.operand
    grad = grad.contiguous()
    grad_q = use.spmm(operand, k, grad).to(q.dtype) if ctx.needs_input_grad[0] else None
    grad_k = None
    if ctx.needs_input_grad[1]:
        grad_k = use.spmm(operand.T, q, use.transpose_values(operand, grad)).to(k.dtype)
    return grad_q, grad_k, None


register(
    "sddmm(Tensor q, Tensor k, int operand) -> Tensor",
    _run,
    _fake,
    _setup,
    lambda ctx, grad: _grad(ctx, grad, REGISTERED),
)


class _Sddmm(torch.autograd.Function):
    @staticmethod
    def forward(q: torch.Tensor, k: torch.Tensor, handle: int, run: SddmmCall) -> Any:
        return run(q, k)

    setup_context = staticmethod(_setup)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return *_grad(ctx, grad, eager()), None


#: (q, k, the operand's handle, the bound call) -> scores, recorded by autograd.
with_grad = direct(_Sddmm)
