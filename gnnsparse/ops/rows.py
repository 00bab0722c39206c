"""Computations on the rows of an operand or of a dense tensor that operations and layers share."""

from __future__ import annotations

import torch

from gnnsparse.operand import SparseOperand
from gnnsparse.transforms import is_direct, outside

__all__ = ["inverse_lengths", "row_sums"]


def row_sums(operand: SparseOperand, values: torch.Tensor) -> torch.Tensor:
    """Sums the edge values of each row, in an order that is the same in every run. Differentiable.

    Args:
        operand: the operand.
        values: float32 [nnz, ...] in its order.

    Returns:
        float32 [rows, ...], rows in the caller's numbering.
    """
    kernels = operand.kernels
    with outside():  # they are kept
        lengths = kernels.csr.degrees
    if is_direct() and values.numel() > 0:
        # Sums each row in a fixed order; a scattered sum on a GPU may differ from run to run.
        sums = torch.segment_reduce(values, "sum", lengths=lengths, initial=0.0)
        if kernels.row_ids is None:
            return sums
        return torch.empty_like(sums).index_copy(0, kernels.row_ids.long(), sums)
    # segment_reduce has no rules for transforms, and refuses an empty tensor
    with outside():
        rows = operand.indices()[0]
    return values.new_zeros((*lengths.shape, *values.shape[1:])).index_add(0, rows, values)


def inverse_lengths(x: torch.Tensor) -> torch.Tensor:
    """Returns the reciprocal of each row's Euclidean length, [..., 1]; 0 for rows of zeros."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    some = length > 0
    # A length of 0 is replaced by 1 in the reciprocal, so that its gradient is not NaN.
    return torch.where(some, torch.where(some, length, 1.0).reciprocal(), 0.0)
