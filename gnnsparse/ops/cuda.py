"""The operations on NVIDIA GPUs. Work is queued on the caller's current stream; nothing waits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.csr import Csr, address, on_device, stream_of
from gnnsparse.plan import Plan
from gnnsparse.precision import DTYPE_CODES, Precision, round_operand
from gnnsparse.preprocess.balance import Segments
from gnnsparse.side import SddmmCall, Side, SpmmCall

__all__ = ["bind_sddmm", "bind_spmm", "edge_softmax", "edge_softmax_grad", "sddmm", "spmm"]

_VECTOR = _native.VECTOR_BYTES
_SOFTMAX_ROW_LIMIT = 1024

#: Gives a dense operand as the kernels read it, and its native view. Hold the tensor while the view is used.
_Loader = Callable[[torch.Tensor], tuple[torch.Tensor, _native.Dense]]


def _loader(
    precision: Precision, width: int, scale: torch.Tensor | None = None, *, rounds: bool = False
) -> _Loader:
    """Brings X [rows, width], its rows times `scale`, into the storage dtype, every row in whole 16-byte
    vectors. It is X itself where nothing has to be done. tf32 is rounded here where it `rounds`, otherwise
    inside the kernels.
    """
    dtype, code = precision.storage, DTYPE_CODES[precision.storage]
    per_vector = _VECTOR // dtype.itemsize
    padded = -(-width // per_vector) * per_vector

    def load(x: torch.Tensor) -> tuple[torch.Tensor, _native.Dense]:
        (row_stride, column_stride), data = x.stride(), x.data_ptr()
        ready = (
            scale is None
            and not rounds
            and x.dtype == dtype
            and column_stride == 1
            and row_stride % per_vector == 0
            and row_stride >= padded
            and data % _VECTOR == 0
        )
        if ready:
            return x, _native.Dense(data, row_stride, code)
        rows, columns = x.shape
        packed = torch.empty(rows, padded, dtype=dtype, device=x.device)
        view = _native.Dense(packed.data_ptr(), padded, code, rounds)
        _native.cuda_pack(
            data, DTYPE_CODES[x.dtype], row_stride, column_stride, address(scale), rows, columns, view,
            stream_of(x.device),
        )  # fmt: skip
        return packed, view

    return load


def _aligned(values: torch.Tensor, precision: Precision) -> torch.Tensor:
    """Edge values in the storage dtype, contiguous from an address that is a multiple of 16."""
    values = round_operand(values, precision).contiguous()
    return values if values.data_ptr() % _VECTOR == 0 else values.clone()


def _partials(count: int, rows: int, width: int, device: torch.device) -> torch.Tensor | None:
    """Workspace for `count` sums of `rows` cut rows, whose width the kernels round up."""
    if count == 0:
        return None
    columns = -(-width // _native.PARTIAL_COLUMNS) * _native.PARTIAL_COLUMNS
    return torch.empty(count * rows * columns, dtype=torch.float32, device=device)


def _on_its_device(side: Side, run: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`run` with the side's device as the current one."""
    device = side.csr.device

    def call(*tensors: torch.Tensor | None) -> torch.Tensor:
        with on_device(device):
            return run(*tensors)

    return call


def bind_spmm(
    side: Side, width: int, dtype: torch.dtype, edge_values: bool, plan: Plan | None = None
) -> SpmmCall:
    """How `spmm` runs for X of a width and a dtype: all that does not depend on where X is.

    The side keeps it, and must be alive where it is called: it holds addresses.
    """

    def make() -> SpmmCall:
        if width == 0 or side.csr.nnz == 0:
            rows = side.csr.rows
            return lambda x, values: x.new_zeros(rows, width)
        chosen = plan or side.plan("spmm", width, edge_values)
        bind = _SPMM.get(chosen.kernel, _bind_csr)
        return _on_its_device(side, bind(side, chosen, width, dtype, edge_values))

    return side.remember(("spmm call", width, dtype, edge_values, plan), make)


def spmm(side: Side, x: torch.Tensor, values: torch.Tensor | None, plan: Plan | None) -> torch.Tensor:
    """See gnnsparse.spmm. Every argument has been checked."""
    return bind_spmm(side, x.shape[1], x.dtype, values is not None, plan)(x, values)


def _csr_product(
    csr: Csr, row_ids: torch.Tensor | None, segments: Segments, groups: torch.Tensor | None, plan: Plan,
    width: int, precision: Precision,
) -> Callable[[_native.Dense, _native.Dense, int, int, torch.device], None]:  # fmt: skip
    """The csr kernel: (x, y, address of values, of row scales, device)."""
    group_count = 0 if groups is None else groups.numel() - 1
    lanes = _native.CsrLanes(plan.lanes, plan.row_lanes, plan.row_limit, address(groups), group_count)
    view, ids, work, code = csr.view, address(row_ids), segments.view, precision.code
    partials = segments.partials

    def run(x: _native.Dense, y: _native.Dense, values: int, row_scale: int, device: torch.device) -> None:
        partial = _partials(partials, 1, width, device)
        rows = _native.StoredRows(0, ids, row_scale, values)
        _native.cuda_spmm_csr(view, rows, work, lanes, x, y, width, address(partial), code, stream_of(device))

    return run


def _bind_csr(side: Side, plan: Plan, width: int, dtype: torch.dtype, edge_values: bool) -> SpmmCall:
    precision, rows, out_code = side.precision, side.csr.rows, DTYPE_CODES[dtype]
    own, col_scale, row_scale = 0, None, 0
    if not edge_values and side.col_scale is not None and not plan.prescale:
        own = address(side.explicit_values)
    elif not edge_values:
        own, col_scale, row_scale = address(side.values), side.col_scale, address(side.row_scale)
    load = _loader(precision, width, col_scale)
    segments = side.row_segments(plan.row_limit)
    groups = side.row_groups(plan.group, plan.row_limit) if plan.group else None
    product = _csr_product(side.csr, side.row_ids, segments, groups, plan, width, precision)

    def run(x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
        kept, x_view = load(x)
        y = x.new_empty(rows, width)
        given = None if values is None else _aligned(values, precision)
        weights = own if given is None else given.data_ptr()
        product(x_view, _native.Dense(y.data_ptr(), width, out_code), weights, row_scale, y.device)
        del kept
        return y

    return run


def _bind_panel(side: Side, plan: Plan, width: int, dtype: torch.dtype, edge_values: bool) -> SpmmCall:
    if edge_values:
        raise ValueError("plan: panels hold no place for edge values; use window or csr")
    height, slices = plan.height, plan.slices
    segments = side.panel_segments(height, plan.step_limit, plan.longest_first, plan.at_once)
    view, work, partials = side.panel_view(height, not plan.prescale), segments.view, segments.partials
    row_scale = address(side.row_scale if side.values is None else None)
    stored = _native.StoredRows(0, address(side.row_ids), row_scale)
    rows, code, out_code = side.csr.rows, side.precision.code, DTYPE_CODES[dtype]
    # Stored values are rounded when they are stored, and their kernels round X.
    rounds = plan.prescale and side.precision is Precision.TF32 and side.values is None
    load = _loader(side.precision, width, side.col_scale if plan.prescale else None, rounds=rounds)

    def run(x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
        kept, x_view = load(x)
        y = x.new_empty(rows, width)
        partial = _partials(partials, height, width, y.device)
        _native.cuda_spmm_panel(
            view, stored, work, x_view, _native.Dense(y.data_ptr(), width, out_code), width, slices,
            address(partial), code, stream_of(y.device),
        )  # fmt: skip
        del kept
        return y

    return run


def _bind_window(side: Side, plan: Plan, width: int, dtype: torch.dtype, edge_values: bool) -> SpmmCall:
    blocked, precision, out_code = side.blocked, side.precision, DTYPE_CODES[dtype]
    if blocked is None:
        raise ValueError("plan: the window kernel needs an operand in a blocked format")
    stores_values = blocked.spec.stores_values
    if stores_values and edge_values:
        raise ValueError(f"plan: {blocked.spec.name} stores no bits to place edge values by; use csr")
    own = address(None if stores_values or edge_values else side.values)
    row_scale = address(None if stores_values or edge_values else side.row_scale)
    segments, view = side.window_segments(plan.step_limit), side.blocked_view(weighted=not edge_values)
    work, partials, window = segments.view, segments.partials, blocked.spec.window
    indptr, row_ids, rows = address(side.csr.indptr), address(side.row_ids), side.csr.rows
    load, code, kept_out = _loader(precision, width), precision.code, _bind_kept_out(side, plan, width)

    def run(x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
        kept, x_view = load(x)
        # Rows in no window and not kept out either are empty.
        y = x.new_empty(rows, width) if kept_out is None else x.new_zeros(rows, width)
        y_view = _native.Dense(y.data_ptr(), width, out_code)
        given = None if values is None else _aligned(values, precision)
        weights = own if given is None else given.data_ptr()
        partial = _partials(partials, window, width, y.device)
        stored = _native.StoredRows(indptr, row_ids, row_scale, weights)
        _native.cuda_spmm_window(
            view, stored, work, x_view, y_view, width, address(partial), code, stream_of(y.device)
        )
        if kept_out is not None:
            kept_out(x_view, y_view, y.device)
        del kept
        return y

    return run


def _bind_kept_out(
    side: Side, plan: Plan, width: int
) -> Callable[[_native.Dense, _native.Dense, torch.device], None] | None:
    """The product of the rows that the format keeps out of its windows, None where there are none."""
    residual = side.blocked.residual if side.blocked is not None else None
    if side.blocked is None or residual is None:
        return None
    segments, ids = side.residual_segments(plan.row_limit), side.residual_row_ids()
    product = _csr_product(residual, ids, segments, None, plan, width, side.precision)
    values = address(side.blocked.residual_values)
    return lambda x, y, device: product(x, y, values, 0, device)


_SPMM: dict[str, Callable[[Side, Plan, int, torch.dtype, bool], SpmmCall]] = {
    "csr": _bind_csr, "panel": _bind_panel, "window": _bind_window,
}  # fmt: skip


def bind_sddmm(side: Side, width: int, dtype: torch.dtype, plan: Plan | None = None) -> SddmmCall:
    """How `sddmm` runs for Q of a width and a dtype, likewise."""

    def make() -> SddmmCall:
        nnz = side.csr.nnz
        if width == 0 or nnz == 0:
            return lambda q, k: q.new_zeros(nnz)
        chosen = plan or side.plan("sddmm", width, False)
        kernel, head = _sddmm_kernel(side, chosen)
        load, code, out_code = _loader(side.precision, width), side.precision.code, DTYPE_CODES[dtype]

        def run(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            out = q.new_empty(nnz)
            kept_q, q_view = load(q)
            kept_k, k_view = load(k)
            scores = _native.EdgeValues(out.data_ptr(), 0, 0, out_code)
            kernel(*head, q_view, k_view, scores, width, code, stream_of(out.device))
            del kept_q, kept_k
            return out

        return _on_its_device(side, run)

    return side.remember(("sddmm call", width, dtype, plan), make)


def _sddmm_kernel(side: Side, plan: Plan) -> tuple[Callable[..., None], tuple[Any, ...]]:
    """A kernel, and its arguments before Q, K and the result."""
    stored = _native.StoredRows(address(side.csr.indptr), address(side.row_ids))
    if plan.kernel == "csr":
        work = side.row_segments(plan.row_limit).view
        lanes = _native.CsrLanes(plan.lanes, plan.row_lanes, plan.row_limit)
        return _native.cuda_sddmm_csr, (side.csr.view, stored, work, lanes)
    if plan.kernel == "panel":
        view, segments = side.score_panels(plan.step_limit, plan.longest_first)
        return _native.cuda_sddmm_panel, (view, stored, segments.view)
    work, view = side.window_segments(plan.step_limit).view, side.blocked_view(weighted=False)
    return _native.cuda_sddmm_window, (view, stored, work)


def sddmm(side: Side, q: torch.Tensor, k: torch.Tensor, plan: Plan | None) -> torch.Tensor:
    """See gnnsparse.sddmm. Every argument has been checked."""
    return bind_sddmm(side, q.shape[1], q.dtype, plan)(q, k)


def edge_softmax(side: Side, scores: torch.Tensor) -> torch.Tensor:
    """See gnnsparse.edge_softmax. Every argument has been checked."""
    scores32 = scores.float().contiguous()
    out = torch.empty_like(scores32)
    segments = side.row_segments(_SOFTMAX_ROW_LIMIT)
    with on_device(scores.device):
        _native.cuda_softmax(
            side.csr.view, segments.view, _SOFTMAX_ROW_LIMIT, address(scores32), address(out),
            stream_of(scores.device),
        )  # fmt: skip
    return out.to(scores.dtype)


def edge_softmax_grad(side: Side, weights: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """Gradient of the scores from the softmax and its gradient."""
    weights32, grad32 = weights.float().contiguous(), grad.float().contiguous()
    out = torch.empty_like(grad32)
    segments = side.row_segments(_SOFTMAX_ROW_LIMIT)
    with on_device(grad.device):
        _native.cuda_softmax_grad(
            side.csr.view, segments.view, _SOFTMAX_ROW_LIMIT, address(weights32), address(grad32),
            address(out), stream_of(grad.device),
        )  # fmt: skip
    return out.to(weights.dtype)
