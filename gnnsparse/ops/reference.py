"""The readable specification of every operation, in plain torch: slow, differentiable by autograd,
on any device. The oracle of the tests. Sums are in the dtype of the arguments.

`index` is the (row, column) of each nonzero, int64 [2, nnz].
"""

from __future__ import annotations

import torch

__all__ = ["edge_softmax", "sddmm", "spmm"]


def spmm(index: torch.Tensor, values: torch.Tensor | None, x: torch.Tensor, rows: int) -> torch.Tensor:
    """y[i] = sum over nonzeros (i, j): value * x[j].

    Args:
        values: [nnz], or None for ones.
        x: [cols, n].

    Returns:
        [rows, n] in the dtype of x.
    """
    gathered = x.index_select(0, index[1])
    if values is not None:
        gathered = gathered * values[:, None]
    return x.new_zeros(rows, x.shape[1]).index_add(0, index[0], gathered)


def sddmm(index: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """out[e] = dot(q[i], k[j]) for nonzero e = (i, j).

    Args:
        q: [rows, d].
        k: [cols, d].

    Returns:
        [nnz] in the dtype of q.
    """
    return (q.index_select(0, index[0]) * k.index_select(0, index[1])).sum(1)


def edge_softmax(index: torch.Tensor, scores: torch.Tensor, rows: int) -> torch.Tensor:
    """Softmax over the nonzeros of each row. A row of only -inf gives zeros.

    Args:
        scores: [nnz].

    Returns:
        [nnz] in the dtype of scores.
    """
    top = scores.new_full((rows,), float("-inf"))
    top = top.scatter_reduce(0, index[0], scores.detach(), "amax")
    top = torch.where(top == float("-inf"), torch.zeros_like(top), top)
    weights = (scores - top[index[0]]).exp()
    total = scores.new_zeros(rows).index_add(0, index[0], weights)
    total = torch.where(total == 0, torch.ones_like(total), total)
    return weights / total[index[0]]
