"""The readable specification of SpMM, in plain torch: slow, differentiable by autograd, on any device."""

from __future__ import annotations

import torch

__all__ = ["spmm"]


def spmm(index: torch.Tensor, values: torch.Tensor | None, x: torch.Tensor, rows: int) -> torch.Tensor:
    """Computes y[i] = sum of value * x[j] over the nonzeros (i, j). Sums are in the dtype of the arguments.

    Args:
        index: (row, column) of each nonzero, int64 [2, nnz].
        values: [nnz]; None: 1 each.
        x: [cols, n].
        rows: rows of the sparse matrix and of the result.

    Returns:
        [rows, n] in the dtype of x.
    """
    gathered = x.index_select(0, index[1])
    if values is not None:
        gathered = gathered * values[:, None]
    return x.new_zeros(rows, x.shape[1]).index_add(0, index[0], gathered)
