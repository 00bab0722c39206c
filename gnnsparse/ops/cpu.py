"""The operations on the CPU, through the native row kernels."""

from __future__ import annotations

from collections.abc import Callable

import torch

from gnnsparse import _native
from gnnsparse.csr import address
from gnnsparse.ops.result_memory import empty_result
from gnnsparse.plan import Plan
from gnnsparse.precision import DTYPE_CODES, Precision, round_operand
from gnnsparse.side import SddmmCall, Side, SpmmCall

__all__ = ["bind_sddmm", "bind_spmm", "edge_softmax", "edge_softmax_grad", "sddmm", "spmm"]


#: Gives a dense operand as the kernels read it, and its native view. Hold the tensor while the view is used.
_Loader = Callable[[torch.Tensor], tuple[torch.Tensor, _native.Dense]]


def _loader(precision: Precision) -> _Loader:
    """Gives a matrix rounded to the precision, each row contiguous, and its native view."""
    code = DTYPE_CODES[precision.storage]
    dtype, rounds = precision.storage, precision is Precision.TF32

    def load(x: torch.Tensor) -> tuple[torch.Tensor, _native.Dense]:
        if rounds or x.dtype is not dtype:
            x = round_operand(x, precision)
        row_stride, column_stride = x.stride()
        if column_stride != 1 or row_stride < x.shape[1]:
            x = x.contiguous()
            row_stride = x.shape[1]
        return x, _native.Dense(x.data_ptr(), row_stride, code)

    return load


def bind_spmm(
    side: Side, width: int, dtype: torch.dtype, edge_values: bool, plan: Plan | None = None
) -> SpmmCall:
    """How `spmm` runs for X of a width and a dtype: all that does not depend on where X is.

    The side keeps it, and must be alive where it is called: it holds addresses.
    """

    def make() -> SpmmCall:
        rows, view, row_ids = side.csr.rows, side.csr.view, address(side.row_ids)
        scales = (0, 0) if edge_values else (address(side.col_scale), address(side.row_scale))
        own, precision = 0 if edge_values else address(side.values32), side.precision
        out_code = DTYPE_CODES[dtype]
        load = _loader(precision)

        def run(x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
            y = empty_result(x, rows, width)
            kept, x_view = load(x)
            given = None if values is None else round_operand(values, precision).float().contiguous()
            weights = own if given is None else given.data_ptr()
            y_view = _native.Dense(y.data_ptr(), width, out_code)
            _native.cpu_spmm(view, row_ids, weights, *scales, x_view, y_view, width, torch.get_num_threads())
            del kept
            return y

        return run

    return side.remember(("spmm call", width, dtype, edge_values), make)


def spmm(side: Side, x: torch.Tensor, values: torch.Tensor | None, plan: Plan | None) -> torch.Tensor:
    """See gnnsparse.spmm. Every argument has been checked."""
    return bind_spmm(side, x.shape[1], x.dtype, values is not None)(x, values)


def bind_sddmm(side: Side, width: int, dtype: torch.dtype, plan: Plan | None = None) -> SddmmCall:
    """How `sddmm` runs for Q of a width and a dtype, likewise."""

    def make() -> SddmmCall:
        nnz, view, row_ids = side.csr.nnz, side.csr.view, address(side.row_ids)
        load, out_code = _loader(side.precision), DTYPE_CODES[dtype]

        def run(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            out = q.new_empty(nnz)
            kept_q, q_view = load(q)
            kept_k, k_view = load(k)
            _native.cpu_sddmm(
                view, row_ids, q_view, k_view, out.data_ptr(), out_code, width, torch.get_num_threads()
            )
            del kept_q, kept_k
            return out

        return run

    return side.remember(("sddmm call", width, dtype), make)


def sddmm(side: Side, q: torch.Tensor, k: torch.Tensor, plan: Plan | None) -> torch.Tensor:
    """See gnnsparse.sddmm. Every argument has been checked."""
    return bind_sddmm(side, q.shape[1], q.dtype)(q, k)


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
