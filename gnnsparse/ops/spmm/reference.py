"""The readable specification of SpMM, in plain torch: slow, differentiable by autograd, on any device."""

from __future__ import annotations

import torch

__all__ = ["spmm"]


def spmm(index: torch.Tensor, values: torch.Tensor | None, x: torch.Tensor, rows: int) -> torch.Tensor:
    """y[i] = sum over nonzeros (i, j): value * x[j]. Sums are in the dtype of the arguments.

    Args:
        index: (row, column) of each nonzero, int64 [2, nnz].
        values: [nnz], or None for ones.
        x: [cols, n].
        rows: of the result.

    Returns:
        [rows, n] in the dtype of x.
    """
    gathered = x.index_select(0, index[1])
    if values is not None:
        gathered = gathered * values[:, None]
    return x.new_zeros(rows, x.shape[1]).index_add(0, index[0], gathered)
