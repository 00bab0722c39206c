"""Conversion of the leading dimensions of attention's arguments to two, batch and head, and back."""

from __future__ import annotations

import torch

__all__ = ["as_given", "empty_grads", "empty_heads", "four_dimensions", "to_edges", "to_heads"]


def to_heads(x: torch.Tensor, lead: tuple[int, ...]) -> torch.Tensor:
    """Broadcasts `x` [..., n, d] to the leading sizes `lead`, and folds these to [B, H, n, d].

    H is the last of the leading sizes, B the product of the others. The result is a view, unless more than
    two leading dimensions have strides that can't be folded.
    """
    if x.shape[:-2] != lead:
        x = x.expand(*lead, *x.shape[-2:])
    if len(lead) > 2:
        return x.flatten(0, -4)
    return x[(None,) * (2 - len(lead))] if len(lead) < 2 else x


def to_edges(values: torch.Tensor, lead: tuple[int, ...]) -> torch.Tensor:
    """Folds edge values [..., nnz] to [B or 1, H or 1, nnz], for the leading sizes `lead` of q.

    Sizes of 1 are not expanded, unless they are folded into one dimension with others.
    """
    own = (1,) * (len(lead) + 1 - values.dim()) + tuple(values.shape)
    values = values.view(own) if len(own) != values.dim() else values
    if len(lead) > 2:
        folded = own[: len(lead) - 1]
        if folded != lead[:-1] and any(size != 1 for size in folded):
            values = values.expand(*lead[:-1], *own[-2:])
        return values.flatten(0, -3)
    return values[(None,) * (2 - len(lead))] if len(lead) < 2 else values


def four_dimensions(x: torch.Tensor) -> torch.Tensor:
    """Returns [n, d], [H, n, d] or [B, H, n, d] as a view with four dimensions; those added have size 1."""
    return x if x.dim() == 4 else x[(None,) * (4 - x.dim())]


def as_given(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Undoes `four_dimensions` for a tensor that had `dim` dimensions."""
    return x if dim == 4 else x[(0,) * (4 - dim)]


def empty_heads(like: torch.Tensor, width: int, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Allocates [B, H, n, width] in the memory order of `like` [B, H, n, any], and in its dtype if None."""
    batches, heads, rows = like.shape[:3]
    if like.stride(1) < like.stride(2):
        return like.new_empty(batches, rows, heads, width, dtype=dtype).transpose(1, 2)
    return like.new_empty(batches, heads, rows, width, dtype=dtype)


def empty_grads(
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor], needs: tuple[bool, ...]
) -> list[torch.Tensor | None]:
    """Allocates the gradients of q, k and v that are needed; the others are None."""
    return [empty_heads(x, x.shape[3]) if need else None for x, need in zip(inputs, needs, strict=False)]
