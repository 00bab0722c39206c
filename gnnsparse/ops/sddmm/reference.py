"""The readable specification of SDDMM, in plain torch: slow, differentiable by autograd, on any device."""

from __future__ import annotations

import torch

__all__ = ["sddmm"]


def sddmm(index: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Computes out[e] = dot(q[i], k[j]) for nonzero e = (i, j). Sums are in the dtype of the arguments.

    Args:
        index: (row, column) of each nonzero, int64 [2, nnz].
        q: [rows, d], or [rows, heads, d].
        k: [cols, d], or [cols, heads, d].

    Returns:
        [nnz], or [nnz, heads], in the dtype of q.
    """
    return (q.index_select(0, index[0]) * k.index_select(0, index[1])).sum(-1)
