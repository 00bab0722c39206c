"""Leading dimensions of attention's arguments, as the two that kernels know: batch and head."""

from __future__ import annotations

import torch

__all__ = ["as_given", "empty_grads", "empty_heads", "four_dimensions", "to_edges", "to_heads"]


def to_heads(x: torch.Tensor, lead: tuple[int, ...]) -> torch.Tensor:
    """[.., n, d] as [B, H, n, d], H the last of the leading sizes `lead` that it is broadcast to.

    A view, except where more than two leading dimensions can't be folded into one.
    """
    if x.shape[:-2] != lead:
        x = x.expand(*lead, *x.shape[-2:])
    if len(lead) > 2:
        return x.flatten(0, -4)
    return x[(None,) * (2 - len(lead))] if len(lead) < 2 else x


def to_edges(values: torch.Tensor, lead: tuple[int, ...]) -> torch.Tensor:
    """[.., nnz] as [B or 1, H or 1, nnz]: sizes of 1 stay, as far as folding allows it."""
    own = (1,) * (len(lead) + 1 - values.dim()) + tuple(values.shape)
    values = values.view(own) if len(own) != values.dim() else values
    if len(lead) > 2:
        folded = own[: len(lead) - 1]
        if folded != lead[:-1] and any(size != 1 for size in folded):
            values = values.expand(*lead[:-1], *own[-2:])
        return values.flatten(0, -3)
    return values[(None,) * (2 - len(lead))] if len(lead) < 2 else values


def four_dimensions(x: torch.Tensor) -> torch.Tensor:
    """[n, d] or [H, n, d] as [1, H or 1, n, d]."""
    return x if x.dim() == 4 else x[(None,) * (4 - x.dim())]


def as_given(x: torch.Tensor, dim: int) -> torch.Tensor:
    """What `four_dimensions` made of a tensor of `dim` dimensions, with these dimensions again."""
    return x if dim == 4 else x[(0,) * (4 - dim)]


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
