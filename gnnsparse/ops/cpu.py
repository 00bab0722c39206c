"""The operations on the CPU, through the native row kernels."""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.csr import address
from gnnsparse.plan import Plan
from gnnsparse.precision import DTYPE_CODES, dense_view, round_operand
from gnnsparse.side import Side

__all__ = ["edge_softmax", "edge_softmax_grad", "sddmm", "spmm"]


def _rows(x: torch.Tensor, side: Side) -> torch.Tensor:
    """`x` rounded to the precision, each row contiguous."""
    x = round_operand(x, side.precision)
    return x if x.stride(1) == 1 and x.stride(0) >= x.shape[1] else x.contiguous()


def _own_weights(side: Side) -> tuple[int, int, int]:
    """Addresses of a side's values, column and row scales, which it keeps."""
    return address(side.values32), address(side.col_scale), address(side.row_scale)


def spmm(side: Side, x: torch.Tensor, values: torch.Tensor | None, plan: Plan | None) -> torch.Tensor:
    """See gnnsparse.spmm. Every argument has been checked."""
    n = x.shape[1]
    y = torch.empty(side.csr.rows, n, dtype=x.dtype)
    rows = _rows(x, side)
    if values is None:
        weights, by_col, by_row = side.remember("own weights", lambda: _own_weights(side))
    else:
        values = round_operand(values, side.precision).float()
        weights, by_col, by_row = address(values), 0, 0
    _native.cpu_spmm(
        side.csr.view, address(side.row_ids), weights, by_col, by_row, dense_view(rows), dense_view(y), n,
        torch.get_num_threads(),
    )  # fmt: skip
    return y


def sddmm(side: Side, q: torch.Tensor, k: torch.Tensor, plan: Plan | None) -> torch.Tensor:
    """See gnnsparse.sddmm. Every argument has been checked."""
    out = torch.empty(side.csr.nnz, dtype=q.dtype)
    q_rows, k_rows = _rows(q, side), _rows(k, side)
    _native.cpu_sddmm(
        side.csr.view, address(side.row_ids), dense_view(q_rows), dense_view(k_rows), address(out),
        DTYPE_CODES[out.dtype], q.shape[1], torch.get_num_threads(),
    )  # fmt: skip
    return out


def edge_softmax(side: Side, scores: torch.Tensor) -> torch.Tensor:
    """See gnnsparse.edge_softmax. Every argument has been checked."""
    scores32 = scores.float().contiguous()
    out = torch.empty_like(scores32)
    _native.cpu_softmax(side.csr.view, address(scores32), address(out), torch.get_num_threads())
    return out.to(scores.dtype)


def edge_softmax_grad(side: Side, weights: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Gradient of the scores from the softmax and its gradient."""
    weights32, grad32 = weights.float().contiguous(), grad.float().contiguous()
    out = torch.empty_like(grad32)
    _native.cpu_softmax_grad(
        side.csr.view, address(weights32), address(grad32), address(out), torch.get_num_threads()
    )
    return out.to(weights.dtype)
