"""What a training step on several ranks adds to that of one: the sum of the gradients of all ranks."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from gnnsparse.distributed.exchange import sum_over_ranks

__all__ = ["sum_gradients"]


def sum_gradients(parameters: Iterable[torch.Tensor], group: dist.ProcessGroup | None) -> None:
    """Replaces the gradients of replicated parameters by their sums over all ranks, in the order of ranks.

    All gradients of a dtype travel at once.

    Args:
        parameters: the parameters, in one order on all ranks, which all have gradients of the same ones.
        group: the ranks.
    """
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            by_dtype.setdefault(parameter.grad.dtype, []).append(parameter.grad)
    for gradients in by_dtype.values():
        total = sum_over_ranks(torch.cat([gradient.flatten() for gradient in gradients]), group)
        for gradient, part in zip(gradients, total.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.reshape(gradient.shape))
