"""The product of each head with a matrix of its own, for tensors stored node by node."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse.ops.common import direct
from gnnsparse.runtime.functorch import is_direct

__all__ = ["by_head"]


def _product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Computes [n, H, b] node by node; torch's own product gives it head by head, and adding that is slow."""
    out = x.new_empty(*x.shape[:2], weight.shape[2])
    torch.bmm(x.transpose(0, 1), weight, out=out.transpose(0, 1))
    return out


class _ByHead(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        product = by_head if torch.is_grad_enabled() else _product
        dx = product(grad, weight.mT) if ctx.needs_input_grad[0] else None
        dw = torch.bmm(x.permute(1, 2, 0), grad.transpose(0, 1)) if ctx.needs_input_grad[1] else None
        return dx, dw


_quick = direct(_ByHead)


def by_head(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiplies each head by its matrix. Differentiable.

    Args:
        x: [n, H, a].
        weight: [H, a, b], of the dtype of x.

    Returns:
        [n, H, b] in the dtype of x.
    """
    if is_direct() and not torch.is_autocast_enabled(x.device.type):
        return _quick(x, weight)
    return torch.bmm(x.transpose(0, 1), weight).transpose(0, 1).to(x.dtype)
