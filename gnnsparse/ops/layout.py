"""Leading dimensions of attention's arguments, as the two that kernels know: batch and head."""

from __future__ import annotations

import torch

__all__ = ["empty_grads", "empty_heads", "to_heads", "to_slots"]


def to_heads(x: torch.Tensor, lead: tuple[int, ...]) -> torch.Tensor:
    """[.., n, d] as [B, H, n, d], H the last of the leading sizes `lead` that it is broadcast to.

    A view, except where more than two leading dimensions can't be folded into one.
    """
    if x.shape[:-2] != lead:
        x = x.expand(*lead, *x.shape[-2:])
    if len(lead) > 2:
        return x.flatten(0, -4)
    return x[(None,) * (2 - len(lead))] if len(lead) < 2 else x


def to_slots(values: torch.Tensor, lead: tuple[int, ...]) -> torch.Tensor:
    """[.., nnz] as [B or 1, H or 1, nnz]: sizes of 1 stay, as far as folding allows it."""
    own = (1,) * (len(lead) + 1 - values.dim()) + tuple(values.shape)
    values = values.view(own) if len(own) != values.dim() else values
    if len(lead) > 2:
        folded = own[: len(lead) - 1]
        if folded != lead[:-1] and any(size != 1 for size in folded):
            values = values.expand(*lead[:-1], *own[-2:])
        return values.flatten(0, -3)
    return values[(None,) * (2 - len(lead))] if len(lead) < 2 else values


def empty_heads(like: torch.Tensor, width: int) -> torch.Tensor:
    """New memory for [B, H, n, width] in the dtype and the memory order of `like` [B, H, n, any]."""
    batches, heads, rows = like.shape[:3]
    if like.stride(1) < like.stride(2):
        return like.new_empty(batches, rows, heads, width).transpose(1, 2)
    return like.new_empty(batches, heads, rows, width)


def empty_grads(
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], needs: tuple[bool, ...]
) -> list[torch.Tensor | None]:
    """New memory for the gradients of q, k and v that are needed, None for the others."""
    return [empty_heads(x, x.shape[3]) if need else None for x, need in zip(inputs, needs, strict=False)]
