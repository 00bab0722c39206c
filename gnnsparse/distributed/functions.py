"""Autograd functions around exchanges between ranks."""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from gnnsparse.distributed.exchange import Exchange, FeatureExchange, sum_over_ranks

__all__ = ["Multiplier", "extend", "multiply", "shared_sum", "to_features", "to_rows", "total_of"]


class Multiplier(Protocol):
    """A product with a matrix whose rows are divided among ranks, and with its transpose."""

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the own rows of A x; x has the own rows too."""

    def multiply_transposed(self, grad: torch.Tensor) -> torch.Tensor:
        """Returns the own rows of A^T grad; grad has the own rows too."""


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, matrix: Multiplier) -> torch.Tensor:
        ctx.matrix = matrix
        return matrix.multiply(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return ctx.matrix.multiply_transposed(grad.contiguous()), None


def multiply(matrix: Multiplier, x: torch.Tensor) -> torch.Tensor:
    """Multiplies a matrix that is divided among ranks. Differentiable once."""
    found: torch.Tensor = _Product.apply(x, matrix)
    return found


class _Extend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, exchange: Exchange, has_own: bool, wire: Any) -> torch.Tensor:
        ctx.exchange, ctx.rows, ctx.has_own = exchange, x.shape[0], has_own
        received = exchange.start(x if wire is None else x.to(wire)).wait().to(x.dtype)
        return received if has_own else torch.cat([x, received])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        of_others = grad if ctx.has_own else grad[ctx.rows :]
        pending = ctx.exchange.start_back(of_others.contiguous())
        dtype = _sum_dtype(grad.dtype)
        if ctx.has_own:
            total = torch.zeros((ctx.rows, *grad.shape[1:]), dtype=dtype, device=grad.device)
        else:
            total = grad[: ctx.rows].to(dtype, copy=True)
        ctx.exchange.add_back(total, pending.wait())
        return total.to(grad.dtype), None, None, None


def _sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype in which gradients of a dtype are added up."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def extend(
    x: torch.Tensor, exchange: Exchange, *, has_own: bool, wire: torch.dtype | None = None
) -> torch.Tensor:
    """Adds the features of other ranks' nodes to those of the own. Differentiable once.

    Gradients return to the ranks that own the nodes, which add them up in the order of ranks, in float32.

    Args:
        x: [rows, ...], features of the own nodes.
        exchange: how features travel.
        has_own: whether the layout of the exchange has columns for the own nodes.
        wire: the dtype in which features travel; None: that of x. Gradients travel in that of x.

    Returns:
        [rows + columns, ...], own nodes first; with `has_own` [columns, ...].
    """
    found: torch.Tensor = _Extend.apply(x, exchange, has_own, wire)
    return found


class _Turn(torch.autograd.Function):
    """Rows of all features become all rows of a slice of the features, or with `to_rows` the reverse."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, exchange: FeatureExchange, to_rows: bool) -> torch.Tensor:
        ctx.exchange, ctx.to_rows = exchange, to_rows
        return exchange.to_rows(x) if to_rows else exchange.to_features(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _Turn.apply(grad, ctx.exchange, not ctx.to_rows), None, None


def to_features(x: torch.Tensor, exchange: FeatureExchange) -> torch.Tensor:
    """Returns all rows of this rank's slice of the features, see FeatureExchange. Differentiable."""
    found: torch.Tensor = _Turn.apply(x, exchange, False)
    return found


def to_rows(y: torch.Tensor, exchange: FeatureExchange) -> torch.Tensor:
    """Returns all features of the own rows, see FeatureExchange. Differentiable."""
    found: torch.Tensor = _Turn.apply(y, exchange, True)
    return found


class _SharedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        ctx.group = group
        return sum_over_ranks(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return sum_over_ranks(grad, ctx.group), None


def shared_sum(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Adds the tensors of all ranks, for a result that all of them go on computing with.

    Its gradient is the sum of the gradients of all ranks.
    """
    found: torch.Tensor = _SharedSum.apply(x, group)
    return found


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
        return sum_over_ranks(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


def total_of(loss: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Adds the parts of a loss that each rank has. The gradient of a rank is that of its own part.

    Every rank calls `backward` of the result: together they compute the gradient of the one loss.
    """
    found: torch.Tensor = _Total.apply(loss, group)
    return found
