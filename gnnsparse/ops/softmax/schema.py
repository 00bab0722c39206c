"""The softmax over edges as an operator of torch.library: fake, gradient, and the choice of its backend."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from gnnsparse.cuda_path import path
from gnnsparse.operand import operand_of
from gnnsparse.ops import operators
from gnnsparse.ops.common import direct
from gnnsparse.ops.library import register
from gnnsparse.ops.softmax import cpu, cuda

__all__ = ["backend", "with_grad"]


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


def _grad(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    """Computes ds = p (dp - sum of p dp over the row) for the softmax p of the scores s."""
    (weights,) = ctx.saved_tensors
    grad = grad.contiguous()
    if torch.is_grad_enabled() and (grad.requires_grad or weights.requires_grad):
        row = ctx.operand.indices()[0]  # in torch operations, for second derivatives
        inner = grad.new_zeros(ctx.operand.shape[0]).index_add(0, row, weights * grad)
        return weights * (grad - inner[row]), None
    return backend(grad.device).edge_softmax_grad(ctx.operand.kernels, weights, grad), None


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
