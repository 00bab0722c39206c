"""Computations on the rows of an operand or of a dense tensor that operations and layers share."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.ops.dispatch import direct, is_plain
from gnnsparse.runtime.functorch import is_eager, outside
from gnnsparse.sparse.operand import SparseOperand


def row_sums(operand: SparseOperand, values: torch.Tensor) -> torch.Tensor:
    """Sum float32 edge values [nnz, ...] of each row, in the caller's numbering, in a fixed order."""
    kernels = operand.kernels
    with outside():  # they are kept
        lengths = kernels.csr.degrees
    if is_eager() and values.numel() > 0:
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
    """Return the reciprocal of each row's Euclidean length, [..., 1]; 0 for rows of zeros."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    some = length > 0
    # A length of 0 is replaced by 1 in the reciprocal, so that its gradient is not NaN.
    return torch.where(some, torch.where(some, length, 1.0).reciprocal(), 0.0)


def segment_sums(x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Sum rows starts[i] to starts[i + 1] of x [rows, features] in a fixed order. Differentiable."""
    if x.device.type == "cpu" and x.dtype == torch.float32 and is_eager() and is_plain(x, starts):
        return _segment_sums(x, starts)
    return torch.segment_reduce(x, "sum", offsets=starts, initial=0.0, unsafe=True)


class _SegmentSums(torch.autograd.Function):
    """The sums on the CPU by SpMM, whose rows are vectors there; torch adds number by number."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        ctx.rows = rows = x.shape[0]
        ctx.save_for_backward(starts)
        columns = torch.arange(rows, dtype=torch.int32, device="cpu")
        sums = torch.empty(starts.numel() - 1, x.shape[1], dtype=torch.float32, device="cpu")
        matrix = _native.Csr(starts.contiguous(), columns, rows)
        stored = _native.StoredRows(None, None)
        _native.cpu_spmm(matrix, stored, x.contiguous(), sums, torch.get_num_threads())
        return sums

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (starts,) = ctx.saved_tensors
        return torch.repeat_interleave(grad, starts.diff(), dim=0, output_size=ctx.rows), None


_segment_sums = direct(_SegmentSums)
