"""The readable specification of the softmax over edges, in plain torch: slow and differentiable."""

from __future__ import annotations

import torch

__all__ = ["edge_softmax"]


def edge_softmax(index: torch.Tensor, scores: torch.Tensor, rows: int) -> torch.Tensor:
    """Computes the softmax over the nonzeros of each row, in the dtype of the scores.

    A row whose scores are all -inf gives zeros.

    Args:
        index: (row, column) of each nonzero, int64 [2, nnz].
        scores: [nnz], or [nnz, heads].
        rows: rows of the matrix.

    Returns:
        [nnz], or [nnz, heads], in the dtype of scores.
    """
    shape = (rows, *scores.shape[1:])
    row = index[0].reshape(-1, *[1] * (scores.dim() - 1)).expand(scores.shape)
    top = scores.new_full(shape, float("-inf"))
    top = top.scatter_reduce(0, row, scores.detach(), "amax")
    top = torch.where(top == float("-inf"), torch.zeros_like(top), top)
    weights = (scores - top[index[0]]).exp()
    total = scores.new_zeros(shape).index_add(0, index[0], weights)
    total = torch.where(total == 0, torch.ones_like(total), total)
    return weights / total[index[0]]
