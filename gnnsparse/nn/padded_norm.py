"""Batch normalisation of arrays of which the last rows are padding."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from gnnsparse.padding import Padding, padded

__all__ = ["ignoring_padding"]


@contextmanager
def ignoring_padding(model: torch.nn.Module, padding: Padding | None) -> Iterator[None]:
    """Makes a model compute with padded arrays what it would compute without padding, in a `with` block.

    Each BatchNorm1d takes its statistics over the nodes, and `pool_graphs` leaves the padding out. Everything
    else in the model has to compute row by row, or along the edges of an operand.

    Args:
        model: the model.
        padding: which rows are nodes; None: all are.
    """
    if padding is None:
        yield
        return
    norms = [part for part in model.modules() if isinstance(part, torch.nn.BatchNorm1d)]
    own = [norm.__dict__.get("forward") for norm in norms]
    try:
        for norm in norms:
            vars(norm)["forward"] = functools.partial(_normalize, norm, norm.forward, padding)
        with padded(padding):
            yield
    finally:
        for norm, forward in zip(norms, own, strict=True):
            vars(norm).pop("forward", None)
            if forward is not None:
                vars(norm)["forward"] = forward


def _normalize(norm: torch.nn.BatchNorm1d, forward: Any, padding: Padding, x: torch.Tensor) -> torch.Tensor:
    """Computes a BatchNorm1d, by `forward` where it takes no statistics of x [rows, features]."""
    keeps = norm.running_mean is not None
    if not (norm.training or not keeps) or x.shape[0] != padding.rows:
        result: torch.Tensor = forward(x)
        return result
    y: torch.Tensor
    y, mean, variance = _BatchNorm.apply(x, norm.weight, norm.bias, padding, norm.eps)
    if norm.training and norm.running_mean is not None and norm.running_var is not None:
        _keep(norm, mean, variance * (padding.count / (padding.count - 1).clamp(min=1)))
    return y


@torch.no_grad()
def _keep(norm: torch.nn.BatchNorm1d, mean: torch.Tensor, variance: torch.Tensor) -> None:
    """Moves the running statistics towards those of a batch, as torch does."""
    share: Any = norm.momentum
    if norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        if share is None:
            share = 1 / norm.num_batches_tracked.float()
    for kept, new in ((norm.running_mean, mean), (norm.running_var, variance)):
        assert kept is not None
        kept.lerp_(new.to(kept.dtype), share)


class _BatchNorm(torch.autograd.Function):
    """The normalisation with statistics over the nodes alone, and these; padding gets the bias."""

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        padding: Padding,
        eps: float,
    ) -> Any:
        wide, real = x.float(), padding.real
        mean = torch.where(real, wide, 0.0).sum(0) / padding.count
        centered = torch.where(real, wide - mean, 0.0)
        variance = centered.square().sum(0) / padding.count
        inverse = (variance + eps).rsqrt()
        factor = inverse if weight is None else inverse * weight
        y = centered * factor if bias is None else torch.addcmul(bias, centered, factor)
        ctx.save_for_backward(centered, inverse, factor)
        ctx.padding, ctx.dtype = padding, x.dtype
        ctx.mark_non_differentiable(mean, variance)
        return y.to(x.dtype), mean, variance

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> Any:
        centered, inverse, factor = ctx.saved_tensors
        padding, needs = ctx.padding, ctx.needs_input_grad
        grad = torch.where(padding.real, grad.float(), 0.0)
        of_bias = grad.sum(0)
        of_weight = (grad * centered).sum(0) * inverse
        of_x = None
        if needs[0]:
            slope = of_weight * inverse / padding.count
            of_x = grad - torch.addcmul(of_bias / padding.count, centered, slope)
            of_x = torch.where(padding.real, of_x * factor, 0.0).to(ctx.dtype)
        return of_x, of_weight if needs[1] else None, of_bias if needs[2] else None, None, None
