"""The readable specification of graph attention for the rows that edges lead to, in plain torch."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

__all__ = ["scores", "softmax", "sums"]


def scores(
    score: str, queries: torch.Tensor, keys: torch.Tensor, att: torch.Tensor | None, negative_slope: float
) -> torch.Tensor:
    """Computes the score of each edge and head, without a scale.

    Args:
        score: "dot", "additive" or "gatv2".
        queries, keys: of each edge [edges, H, D]; of additive scores [edges, H].
        att: [H, D], of "gatv2" alone.
        negative_slope: slope of leaky_relu below 0.

    Returns:
        [edges, H].
    """
    if score == "dot":
        return (queries * keys).sum(-1)
    x = F.leaky_relu(queries + keys, negative_slope)
    return x if att is None else (x * att).sum(-1)


def sums(row: torch.Tensor, rows: int, x: torch.Tensor) -> torch.Tensor:
    """Adds up edge values [edges, ...] over the edges of each row: [rows, ...]."""
    return x.new_zeros(rows, *x.shape[1:]).index_add(0, row, x)


def softmax(row: torch.Tensor, rows: int, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes the softmax over the edges of each row; scores of -inf get no weight.

    Returns:
        The weights [edges, H]; and for each row [rows, H, 2] the largest score, and one over the sum of
        exp(score - largest score), both 0 for rows without an edge that counts.
    """
    none = float("-inf")
    top = scores.new_full((rows, scores.shape[1]), none)
    top = top.scatter_reduce(0, row[:, None].expand_as(scores), scores.detach(), "amax")
    top = torch.where(top == none, 0.0, top)
    exponentials = (scores - top[row]).exp()
    total = sums(row, rows, exponentials)
    weights = exponentials / torch.where(total == 0, 1.0, total)[row]
    return weights, torch.stack([top, torch.where(total == 0, 0.0, 1 / total)], -1).detach()
