"""Batch normalisation of arrays of which the last rows are padding."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from gnnsparse.runtime.padding import Padding, current_padding, padded


@contextmanager
def ignoring_padding(model: torch.nn.Module, *paddings: Padding | None) -> Iterator[None]:
    """Make a model compute with padded arrays what it would compute without padding, in a `with` block.

    Each BatchNorm1d without an attribute `takes_padding` takes its statistics over the nodes, and
    `pool_graphs` leaves the padding out. Everything else in the model has to compute row by row, or along the
    edges of an operand. A padding is of arrays with its number of rows; None: all rows are nodes.
    """
    known = [padding for padding in paddings if padding is not None]
    if not known:
        yield
        return
    norms = [
        part
        for part in model.modules()
        if isinstance(part, torch.nn.BatchNorm1d) and not getattr(part, "takes_padding", False)
    ]
    own = [vars(norm).get("forward") for norm in norms]
    statistics: list[_Found] = []
    try:
        for norm in norms:
            vars(norm)["forward"] = functools.partial(_normalize, norm, norm.forward, statistics)
        with padded(*known):
            yield
        _move(statistics)
    finally:
        for norm, forward in zip(norms, own, strict=True):
            vars(norm).pop("forward", None)
            if forward is not None:
                vars(norm)["forward"] = forward


#: A layer, the mean and the variance of its input over the nodes, and the padding.
_Found = tuple[torch.nn.BatchNorm1d, torch.Tensor, torch.Tensor, Padding]


@torch.no_grad()
def _move(statistics: list[_Found]) -> None:
    """Move the running statistics of all layers towards those of a batch with few launches."""
    groups: dict[Any, list[Any]] = {}
    for norm, mean, variance, padding in statistics:
        groups.setdefault((padding, norm.momentum), []).append((norm, mean, variance))
    statistics.clear()
    for (padding, momentum), found in groups.items():
        norms, means, variances = zip(*found, strict=True)
        if counts := [norm.num_batches_tracked for norm in norms if norm.num_batches_tracked is not None]:
            torch._foreach_add_(counts, 1)
        unbiased = torch._foreach_mul(variances, padding.count / (padding.count - 1).clamp(min=1))
        old = [norm.running_mean for norm in norms] + [norm.running_var for norm in norms]
        if momentum is not None:
            torch._foreach_lerp_(old, [*means, *unbiased], momentum)
            continue
        weights = [1 / norm.num_batches_tracked.float() for norm in norms] * 2
        for statistic, now, weight in zip(old, [*means, *unbiased], weights, strict=True):
            statistic.lerp_(now, weight)


def _normalize(
    norm: torch.nn.BatchNorm1d, forward: Any, statistics: list[_Found], x: torch.Tensor
) -> torch.Tensor:
    """Compute a BatchNorm1d, by `forward` where it takes no statistics of x [rows, features]."""
    padding = current_padding(x.shape[0])
    if (not norm.training and norm.running_mean is not None) or padding is None:
        return forward(x)
    y: torch.Tensor
    y, mean, variance = _BatchNorm.apply(x, norm.weight, norm.bias, padding, norm.eps)
    if norm.training and norm.running_mean is not None:
        if any(norm is other for other, *_ in statistics):
            _move(statistics)  # a layer that is called once more moves them again
        statistics.append((norm, mean, variance, padding))
    return y


class _BatchNorm(torch.autograd.Function):
    """The normalisation with statistics over the nodes alone, and these; without second derivatives.

    There are as few launches as can be. The gradients of padding are 0, what it holds is finite.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        padding: Padding,
        eps: float,
    ) -> Any:
        wide = x.float()
        # Not products with a vector, which libraries divide among the few features alone.
        mean = (wide * padding.mean_weights).sum(0)
        centered = wide - mean
        variance = centered.square().mul_(padding.mean_weights).sum(0)
        inverse = (variance + eps).rsqrt_()
        factor = inverse if weight is None else inverse * weight
        y = centered * factor if bias is None else torch.addcmul(bias, centered, factor)
        ctx.save_for_backward(centered, inverse, factor)
        ctx.padding, ctx.dtype = padding, x.dtype
        ctx.mark_non_differentiable(mean, variance)
        return y.to(x.dtype), mean, variance

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, *_: Any) -> Any:
        centered, inverse, factor = ctx.saved_tensors
        needs, of_x, grad = ctx.needs_input_grad, None, grad.float()
        of_bias = grad.sum(0)
        of_weight = (grad * centered).sum(0).mul_(inverse)
        if needs[0]:
            least = factor / -ctx.padding.count
            shift = torch.addcmul(of_bias * least, centered, of_weight * inverse * least)
            of_x = torch.addcmul(shift.mul_(ctx.padding.mask), grad, factor).to(ctx.dtype)
        return of_x, of_weight if needs[1] else None, of_bias if needs[2] else None, None, None
