"""The operations on NVIDIA GPUs. Work is queued on the caller's current stream; nothing waits."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gnnsparse import _native
from gnnsparse.csr import Csr, address, on_device, stream_of
from gnnsparse.plan import Plan
from gnnsparse.precision import DTYPE_CODES, dense_view, round_operand
from gnnsparse.preprocess.balance import Segments
from gnnsparse.side import Side

__all__ = ["edge_softmax", "edge_softmax_grad", "sddmm", "spmm"]

_VECTOR = 16  # bytes a lane loads at a time
_SOFTMAX_ROW_LIMIT = 1024


def _vectorized(x: torch.Tensor, side: Side, scale: torch.Tensor | None = None) -> torch.Tensor:
    """`x`, its rows times `scale`, in the storage dtype with every row in whole 16-byte vectors.

    It is `x` itself where nothing has to be done. tf32 is rounded inside the kernels.
    """
    dtype = side.precision.storage
    per_vector = _VECTOR // dtype.itemsize
    width = -(-x.shape[1] // per_vector) * per_vector
    ready = (
        scale is None
        and x.dtype == dtype
        and x.stride(1) == 1
        and x.stride(0) % per_vector == 0
        and x.stride(0) >= width
        and x.data_ptr() % _VECTOR == 0
    )
    if ready:
        return x
    packed = torch.empty(x.shape[0], width, dtype=dtype, device=x.device)
    _native.cuda_pack(
        address(x), DTYPE_CODES[x.dtype], x.stride(0), x.stride(1), address(scale), x.shape[0], x.shape[1],
        dense_view(packed), stream_of(x.device),
    )  # fmt: skip
    return packed[:, : x.shape[1]]


def _aligned(values: torch.Tensor, side: Side) -> torch.Tensor:
    """Edge values in the storage dtype, contiguous from an address that is a multiple of 16."""
    values = round_operand(values, side.precision).contiguous()
    return values if values.data_ptr() % _VECTOR == 0 else values.clone()


def _partials(count: int, rows: int, width: int, device: torch.device) -> torch.Tensor | None:
    """Workspace for `count` sums of `rows` cut rows; the kernels round its width up to 64."""
    if count == 0:
        return None
    return torch.empty(count * rows * (-(-width // 64) * 64), dtype=torch.float32, device=device)


def _csr_spmm(
    side: Side, csr: Csr, row_ids: torch.Tensor | None, segments: Segments, plan: Plan,
    x: torch.Tensor, y: torch.Tensor, values: torch.Tensor | None, row_scale: torch.Tensor | None,
    groups: torch.Tensor | None = None,
) -> None:  # fmt: skip
    partial = _partials(segments.partials, 1, y.shape[1], y.device)
    _native.cuda_spmm_csr(
        csr.view, address(row_ids), address(values), address(row_scale), segments.view,
        address(segments.cuts), segments.cuts.shape[0], plan.row_limit, address(groups),
        0 if groups is None else groups.numel() - 1, plan.lanes, plan.row_lanes, dense_view(x),
        dense_view(y), y.shape[1], address(partial), side.precision.code, stream_of(y.device),
    )  # fmt: skip


def spmm(side: Side, x: torch.Tensor, values: torch.Tensor | None, plan: Plan | None) -> torch.Tensor:
    """See gnnsparse.spmm. Every argument has been checked."""
    n = x.shape[1]
    if n == 0 or side.csr.nnz == 0:
        return x.new_zeros(side.csr.rows, n)
    own = values is None
    plan = plan or side.plan("spmm", n, not own)
    weights = side.values if values is None else _aligned(values, side)
    with on_device(x.device):
        if plan.kernel == "window":
            return _window_spmm(side, _vectorized(x, side), weights, plan, x.dtype, own)
        if plan.kernel == "panel":
            if not own:
                raise ValueError("plan: panels hold no place for edge values; use window or csr")
            return _panel_spmm(side, x, plan)
        col_scale = row_scale = None
        if own and side.col_scale is not None and not plan.prescale:
            weights = side.explicit_values
        elif own:
            col_scale, row_scale = side.col_scale, side.row_scale
        rows = _vectorized(x, side, col_scale)
        y = torch.empty(side.csr.rows, n, dtype=x.dtype, device=x.device)
        segments = side.row_segments(plan.row_limit)
        groups = side.row_groups(plan.group, plan.row_limit) if plan.group else None
        _csr_spmm(side, side.csr, side.row_ids, segments, plan, rows, y, weights, row_scale, groups)
        return y


class _PanelWork(NamedTuple):
    """What every product of a side in panels hands to the kernel; the side keeps the arrays."""

    view: _native.Blocked
    items: _native.Segments
    cuts: int
    cut_count: int
    partials: int
    row_ids: int
    row_scale: int


def _panel_work(side: Side, plan: Plan) -> _PanelWork:
    def make() -> _PanelWork:
        segments = side.panel_segments(plan.height, plan.step_limit, plan.longest_first)
        row_scale = side.row_scale if side.values is None else None
        return _PanelWork(
            side.panel_view(plan.height, not plan.prescale), segments.view, address(segments.cuts),
            segments.cuts.shape[0], segments.partials, address(side.row_ids), address(row_scale),
        )  # fmt: skip

    return side.remember(
        ("panel work", plan.height, plan.step_limit, plan.longest_first, plan.prescale), make
    )


def _panel_spmm(side: Side, x: torch.Tensor, plan: Plan) -> torch.Tensor:
    n, work = x.shape[1], _panel_work(side, plan)
    rows = _vectorized(x, side, side.col_scale if plan.prescale else None)
    y = torch.empty(side.csr.rows, n, dtype=x.dtype, device=x.device)
    partial = _partials(work.partials, plan.height, n, x.device)
    _native.cuda_spmm_panel(
        work.view, work.items, work.cuts, work.cut_count, work.row_ids, work.row_scale, dense_view(rows),
        dense_view(y), n, plan.slices, address(partial), side.precision.code, stream_of(x.device),
    )  # fmt: skip
    return y


def _window_spmm(
    side: Side, x: torch.Tensor, values: torch.Tensor | None, plan: Plan, dtype: torch.dtype, own: bool
) -> torch.Tensor:
    blocked, n = side.blocked, x.shape[1]
    if blocked is None:
        raise ValueError("plan: the window kernel needs an operand in a blocked format")
    stores_values = blocked.spec.stores_values
    if stores_values and not own:
        raise ValueError(f"plan: {blocked.spec.name} stores no bits to place edge values by; use csr")
    # Rows in no window and not kept out either are empty.
    new = torch.empty if blocked.residual is None else torch.zeros
    y = new(side.csr.rows, n, dtype=dtype, device=x.device)
    segments = side.window_segments(plan.step_limit)
    partial = _partials(segments.partials, blocked.spec.window, n, x.device)
    row_scale = side.row_scale if own and not stores_values else None
    _native.cuda_spmm_window(
        side.blocked_view(weighted=own), segments.view, address(segments.cuts), segments.cuts.shape[0],
        address(side.csr.indptr), address(None if stores_values else values), address(side.row_ids),
        address(row_scale), dense_view(x), dense_view(y), n, address(partial), side.precision.code,
        stream_of(x.device),
    )  # fmt: skip
    if blocked.residual is not None:
        kept_out, ids = side.residual_segments(plan.row_limit), side.residual_row_ids()
        _csr_spmm(side, blocked.residual, ids, kept_out, plan, x, y, blocked.residual_values, None)
    return y


def sddmm(side: Side, q: torch.Tensor, k: torch.Tensor, plan: Plan | None) -> torch.Tensor:
    """See gnnsparse.sddmm. Every argument has been checked."""
    d = q.shape[1]
    if d == 0 or side.csr.nnz == 0:
        return q.new_zeros(side.csr.nnz)
    plan = plan or side.plan("sddmm", d, False)
    out = torch.empty(side.csr.nnz, dtype=q.dtype, device=q.device)
    with on_device(q.device):
        q_rows, k_rows = _vectorized(q, side), _vectorized(k, side)
        if plan.kernel == "csr":
            segments = side.row_segments(plan.row_limit)
            _native.cuda_sddmm_csr(
                side.csr.view, address(side.row_ids), segments.view, plan.row_limit, plan.lanes,
                plan.row_lanes, dense_view(q_rows), dense_view(k_rows), address(out),
                DTYPE_CODES[out.dtype], d, side.precision.code, stream_of(q.device),
            )  # fmt: skip
        elif plan.kernel == "panel":
            view, items = side.score_panels(plan.step_limit, plan.longest_first)
            _native.cuda_sddmm_panel(
                view, items.view, address(side.csr.indptr), address(side.row_ids), dense_view(q_rows),
                dense_view(k_rows), address(out), DTYPE_CODES[out.dtype], d, side.precision.code,
                stream_of(q.device),
            )  # fmt: skip
        else:
            segments = side.window_segments(plan.step_limit)
            _native.cuda_sddmm_window(
                side.blocked_view(weighted=False), segments.view, address(side.csr.indptr),
                address(side.row_ids), dense_view(q_rows), dense_view(k_rows), address(out),
                DTYPE_CODES[out.dtype], d, side.precision.code, stream_of(q.device),
            )  # fmt: skip
    return out


def edge_softmax(side: Side, scores: torch.Tensor) -> torch.Tensor:
    """See gnnsparse.edge_softmax. Every argument has been checked."""
    scores32 = scores.float().contiguous()
    out = torch.empty_like(scores32)
    segments = side.row_segments(_SOFTMAX_ROW_LIMIT)
    with on_device(scores.device):
        _native.cuda_softmax(
            side.csr.view, address(segments.cuts), segments.cuts.shape[0], _SOFTMAX_ROW_LIMIT,
            address(scores32), address(out), stream_of(scores.device),
        )  # fmt: skip
    return out.to(scores.dtype)


def edge_softmax_grad(side: Side, weights: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Gradient of the scores from the softmax and its gradient."""
    weights32, grad32 = weights.float().contiguous(), grad.float().contiguous()
    out = torch.empty_like(grad32)
    segments = side.row_segments(_SOFTMAX_ROW_LIMIT)
    with on_device(grad.device):
        _native.cuda_softmax_grad(
            side.csr.view, address(segments.cuts), segments.cuts.shape[0], _SOFTMAX_ROW_LIMIT,
            address(weights32), address(grad32), address(out), stream_of(grad.device),
        )  # fmt: skip
    return out.to(weights.dtype)
