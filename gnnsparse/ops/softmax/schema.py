"""The softmax over edges as an operator of torch.library: fake, gradient, and the choice of its backend."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from gnnsparse.ops import operators
from gnnsparse.ops.common import direct, needs_grad
from gnnsparse.ops.library import register
from gnnsparse.ops.softmax import cpu, cuda
from gnnsparse.ops.vmap import loop
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import alive, enclosed, is_batch_of_gradients, is_direct, settled
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.operand import SparseOperand, operand_of

__all__ = ["backend", "times_jacobian", "transformed", "with_grad"]


def backend(device: torch.device) -> ModuleType:
    """Returns the module (softmax.cpu or softmax.cuda) whose functions serve a device."""
    return cuda if path().takes(device) else cpu


def _run(scores: torch.Tensor, operand: int) -> torch.Tensor:
    result: torch.Tensor = backend(scores.device).edge_softmax(operand_of(operand).kernels, scores)
    return result


def _run_grad(weights: torch.Tensor, grad: torch.Tensor, operand: int) -> torch.Tensor:
    run = backend(grad.device).edge_softmax_grad
    result: torch.Tensor = run(operators.edge_softmax_grad(weights, grad, operand).kernels, weights, grad)
    return result


def _run_checked(scores: torch.Tensor, operand: int) -> torch.Tensor:
    operators.edge_softmax(scores, operand)
    return _run(scores, operand)


def _fake(scores: torch.Tensor, operand: int) -> torch.Tensor:
    operators.edge_softmax(scores, operand)
    return scores.new_empty(scores.shape)


def _fake_grad(weights: torch.Tensor, grad: torch.Tensor, operand: int) -> torch.Tensor:
    operators.edge_softmax_grad(weights, grad, operand)
    return weights.new_empty(weights.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.operand = operand_of(inputs[1])
    ctx.save_for_backward(output)


def times_jacobian(operand: SparseOperand, weights: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """Computes p (d - sum of p d over the row) for the softmax p in torch operations, which compose.

    The Jacobian of the softmax is symmetric: `d` may be a gradient of p or a tangent of the scores.
    """
    row, p, d = operand.indices()[0], weights.float(), d.float()
    inner = p.new_zeros(operand.shape[0], *p.shape[1:]).index_add(0, row, p * d)
    return (p * (d - inner[row])).to(weights.dtype)


@ranged("edge_softmax_backward")
def _grad(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    """Computes ds = p (dp - sum of p dp over the row) for the softmax p of the scores s."""
    (weights,) = alive(ctx.saved_tensors)
    if not is_direct() or is_batch_of_gradients(grad) or needs_grad(grad, weights):
        return times_jacobian(ctx.operand, weights, grad), None
    return backend(grad.device).edge_softmax_grad(ctx.operand.kernels, weights, settled(grad)), None


def _registered_grad(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    (weights,) = ctx.saved_tensors
    return torch.ops.gnnsparse.edge_softmax_grad(weights, grad.contiguous(), ctx.operand.handle), None


register(
    "edge_softmax(Tensor scores, int operand) -> Tensor",
    _run_checked,
    _fake,
    _setup,
    _registered_grad,
)
register(
    "edge_softmax_grad(Tensor weights, Tensor grad, int operand) -> Tensor",
    _run_grad,
    _fake_grad,
)


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(scores: torch.Tensor, handle: int) -> Any:
        return _run(scores, handle)

    setup_context = staticmethod(_setup)

    backward = staticmethod(_grad)


#: (scores, the operand's handle) -> weights, recorded by autograd.
with_grad = direct(_EdgeSoftmax)


class _Transformed(torch.autograd.Function):
    """The softmax with rules for every transform; `forward` sees the scores when all are undone."""

    @staticmethod
    def forward(scores: torch.Tensor, handle: int) -> Any:
        return _run(settled(scores), handle)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _setup(ctx, inputs, output)
        ctx.save_for_forward(output)

    backward = staticmethod(_grad)

    @staticmethod
    @enclosed
    def jvp(ctx: Any, saved: Any, tangent: torch.Tensor, _: Any) -> Any:
        return times_jacobian(ctx.operand, saved[0], tangent)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], scores: torch.Tensor, handle: int) -> Any:
        return loop(info, in_dims[:1], lambda s: _Transformed.apply(s, handle), scores)


#: (scores, the operand's handle) -> weights, inside torch.func and forward-mode AD.
transformed = _Transformed.apply
