"""SDDMM as an operator of torch.library, with its fake and its gradient, and the choice of its backend."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse.ops import heads_cpu, heads_cuda, operators
from gnnsparse.ops.common import direct
from gnnsparse.ops.library import REGISTERED, Products, eager, register
from gnnsparse.ops.sddmm import cpu, cuda
from gnnsparse.ops.vmap import loop
from gnnsparse.plan import Plan
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import alive, enclosed, settled
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.kernel_cache import KernelCache, SddmmCall
from gnnsparse.sparse.operand import SparseOperand, operand_of

__all__ = ["bind", "transformed", "with_grad"]


def bind(kernels: KernelCache, q: torch.Tensor, plan: Plan | None = None) -> SddmmCall:
    """Returns a function that runs SDDMM for Q and K of the form of `q`: (q, k) -> scores.

    Args:
        kernels: cache of the operand.
        q: [m, d], or [m, heads, d].
        plan: the plan to run by; None: the operand's own.
    """
    on_gpu = path().takes(q.device)
    kernels.require("A", "sddmm", "sddmm")
    if q.dim() == 3 and kernels.runs_format_alone:
        return lambda q, k: _by_head(kernels, q, k, plan)
    if q.dim() == 3:
        by_head = (heads_cuda if on_gpu else heads_cpu).sddmm
        return lambda q, k: by_head(kernels, q, k, None, plan)
    make = cuda.bind if on_gpu else cpu.bind
    return make(kernels, q.shape[1], q.dtype, plan)


def _by_head(kernels: KernelCache, q: torch.Tensor, k: torch.Tensor, plan: Plan | None) -> torch.Tensor:
    """Computes the scores of each head, in formats that have room for those of one."""
    out = q.new_zeros(kernels.csr.nnz, q.shape[1])
    for h in range(q.shape[1]):
        out[:, h] = bind(kernels, q[:, h], plan)(q[:, h], k[:, h])
    return out


def _run(q: torch.Tensor, k: torch.Tensor, operand: int) -> torch.Tensor:
    return bind(operators.sddmm(q, k, operand).kernels, q)(q, k)


def _fake(q: torch.Tensor, k: torch.Tensor, operand: int) -> torch.Tensor:
    return q.new_empty(operators.sddmm(q, k, operand).nnz, *q.shape[1:-1])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    q, k, handle = inputs[:3]
    ctx.operand = operand_of(handle)
    ctx.save_for_backward(q, k)


@ranged("sddmm_backward")
def _grad(ctx: Any, grad: torch.Tensor, use: Products) -> tuple[Any, ...]:
    """Computes dQ = S K and dK = S^T Q, where the values of S are the gradient of the scores."""
    q, k = alive(ctx.saved_tensors)
    operand: SparseOperand = ctx.operand.unquantized
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
        return *_grad(ctx, grad, eager(grad)), None


#: (q, k, the operand's handle, the bound call) -> scores, recorded by autograd.
with_grad = direct(_Sddmm)


class _Transformed(torch.autograd.Function):
    """SDDMM with rules for every transform; `forward` sees the tensors that are left when all are undone."""

    @staticmethod
    def forward(q: torch.Tensor, k: torch.Tensor, handle: int, plan: Plan | None) -> Any:
        run = bind(operand_of(handle).kernels, q, plan)
        return run(settled(q), settled(k))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        q, k, handle, ctx.plan = inputs
        ctx.operand = operand_of(handle)
        ctx.save_for_backward(q, k)
        ctx.save_for_forward(q, k)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return *_grad(ctx, grad, eager(grad)), None

    @staticmethod
    @enclosed
    def jvp(ctx: Any, saved: Any, dq: torch.Tensor | None, dk: torch.Tensor | None, *_: Any) -> Any:
        """Computes dQ K^T + Q dK^T at the nonzeros."""
        q, k = saved
        terms = []
        if dq is not None:
            terms.append(eager().sddmm(ctx.operand, dq, k, plan=ctx.plan))
        if dk is not None:
            terms.append(eager().sddmm(ctx.operand, q, dk, plan=ctx.plan))
        return sum(terms[1:], terms[0])

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], q: torch.Tensor, k: torch.Tensor, handle: int,
        plan: Plan | None,
    ) -> Any:  # fmt: skip
        operand = operand_of(handle)
        return loop(info, in_dims[:2], lambda q, k: eager().sddmm(operand, q, k, plan=plan), q, k)


#: (q, k, the operand's handle, a plan or None) -> scores, inside torch.func and forward-mode AD.
transformed = _Transformed.apply
