"""The operations on the CPU, through the native row kernels."""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.csr import address
from gnnsparse.plan import Plan
from gnnsparse.precision import DTYPE_CODES, round_operand
from gnnsparse.side import Side

__all__ = ["edge_softmax", "edge_softmax_grad", "sddmm", "spmm"]


def _dense(x: torch.Tensor) -> _native.Dense:
    return _native.Dense(address(x), x.stride(0) if x.shape[0] > 1 else x.shape[1], DTYPE_CODES[x.dtype])


def _rows(x: torch.Tensor, side: Side) -> torch.Tensor:
    """`x` rounded to the precision, each row contiguous."""
    x = round_operand(x, side.precision)
    return x if x.stride(1) == 1 and x.stride(0) >= x.shape[1] else x.contiguous()


def spmm(side: Side, x: torch.Tensor, values: torch.Tensor | None, plan: Plan | None) -> torch.Tensor:
    """See gnnsparse.spmm. Every argument has been checked."""
    y = torch.empty(side.csr.rows, x.shape[1], dtype=x.dtype)
    rows = _rows(x, side)
    weights, col_scale, row_scale = side.values32, side.col_scale, side.row_scale
    if values is not None:
        weights, col_scale, row_scale = round_operand(values, side.precision).float(), None, None
    _native.cpu_spmm(
        side.csr.view, address(side.row_ids), address(weights), address(col_scale), address(row_scale),
        _dense(rows), _dense(y), x.shape[1], torch.get_num_threads(),
    )  # fmt: skip
    return y


def sddmm(side: Side, q: torch.Tensor, k: torch.Tensor, plan: Plan | None) -> torch.Tensor:
    """See gnnsparse.sddmm. Every argument has been checked."""
    out = torch.empty(side.csr.nnz, dtype=q.dtype)
    q_rows, k_rows = _rows(q, side), _rows(k, side)
    _native.cpu_sddmm(
        side.csr.view, address(side.row_ids), _dense(q_rows), _dense(k_rows), address(out),
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
