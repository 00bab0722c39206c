"""The readable specification of attention over edges, in plain torch: slow, differentiable by autograd."""

from __future__ import annotations

import torch

__all__ = ["attention"]


def attention(
    index: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    scale: float,
    bias: torch.Tensor | None = None,
    factors: torch.Tensor | None = None,
    is_causal: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes softmax(scale * q k^T + bias, at the edges) v for one head, in the dtype of the arguments.

    Args:
        index: (row, column) of each edge, int64 [2, edges].
        q: [L, D].
        k: [S, D].
        v: [S, Dv].
        scale: factor of the dot products.
        bias: [edges], added to the scaled scores; -inf masks an edge. None: no bias.
        factors: [edges], by which dropout multiplies the weights: 0 or 1 / (1 - p). None: no dropout.
        is_causal: whether edges with column > row are masked.

    Returns:
        The output [L, Dv], and the weights after dropout [edges]. A row without unmasked edges gives zeros.
    """
    row, column = index
    scores = (q.index_select(0, row) * k.index_select(0, column)).sum(1) * scale
    if bias is not None:
        scores = scores + bias
    if is_causal:
        scores = scores.masked_fill(column > row, float("-inf"))
    top = scores.new_full((q.shape[0],), float("-inf")).scatter_reduce(0, row, scores.detach(), "amax")
    shifted = scores - torch.where(top == float("-inf"), 0.0, top)[row]
    total = scores.new_zeros(q.shape[0]).index_add(0, row, shifted.exp())
    weights = shifted.exp() / torch.where(total == 0, 1.0, total)[row]
    weights = weights if factors is None else weights * factors
    gathered = v.index_select(0, column) * weights[:, None]
    return v.new_zeros(q.shape[0], v.shape[1]).index_add(0, row, gathered), weights
