"""SpMM on NVIDIA GPUs. Kernels are queued on the caller's current stream, without waiting for the GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.csr import Csr, address
from gnnsparse.cuda_path import path
from gnnsparse.errors import bad_value
from gnnsparse.kernel_cache import BoundCall, KernelCache, Product, SpmmCall
from gnnsparse.ops.dense import aligned_values, cuda_loader, holding, on_its_device, partial_sums
from gnnsparse.plan import CsrPlan, PanelPlan, Plan, WindowPlan
from gnnsparse.plan.choose import kernel_of
from gnnsparse.precision import DTYPE_CODES, Precision
from gnnsparse.preprocess.balance import WorkList

__all__ = ["bind"]


def bind(
    kernels: KernelCache, width: int, dtype: torch.dtype, edge_values: bool, plan: Plan | None = None
) -> SpmmCall:
    """Returns a function that runs SpMM for X of a width and a dtype: (x, edge values or None) -> y.

    All arguments that do not depend on the tensors are prepared here. `kernels` keeps the function, because
    preparing them takes most of a small call's time.

    Args:
        kernels: cache of the orientation that is multiplied.
        width: columns of X.
        dtype: dtype of X and y.
        edge_values: whether values are given in the call, in place of the operand's weights.
        plan: the plan to run by; None: the operand's own.

    Raises:
        ValueError: `plan` can't run for this operand.
    """
    product = Product("spmm", width, edge_values)

    def make() -> SpmmCall:
        if plan is not None:
            kernel_of("spmm", plan)
        if width == 0 or kernels.csr.nnz == 0:
            rows = kernels.csr.rows
            return lambda x, values: x.new_zeros(rows, width)
        chosen = plan or kernels.plan_of(product)
        run = _BINDERS[type(chosen)](kernels, chosen, product, dtype)
        return on_its_device(kernels.csr.device, run)

    return kernels.kept.get(BoundCall(product, dtype, plan), make)


def _csr_product(
    csr: Csr, row_ids: torch.Tensor | None, work: WorkList, groups: torch.Tensor | None, plan: CsrPlan,
    width: int, precision: Precision,
) -> Callable[[_native.Dense, _native.Dense, int, int, torch.device], None]:  # fmt: skip
    """Binds the csr kernel to a matrix; arguments left: x, y, addresses of values and row scales, device."""
    group_count = 0 if groups is None else groups.numel() - 1
    lanes = _native.CsrLanes(plan.lanes, plan.row_lanes, plan.row_limit, address(groups), group_count)
    view, ids, items, code, partials = csr.view, address(row_ids), work.view, precision.code, work.partials

    def run(x: _native.Dense, y: _native.Dense, values: int, row_scale: int, device: torch.device) -> None:
        partial, gpu = partial_sums(partials, 1, width, device), path()
        rows = gpu.native.StoredRows(0, ids, row_scale, values)
        gpu.native.cuda_spmm_csr(
            view, rows, items, lanes, x, y, width, address(partial), code, gpu.stream(device)
        )

    return holding(run, csr, row_ids, work, groups)


def _bind_csr(kernels: KernelCache, plan: CsrPlan, product: Product, dtype: torch.dtype) -> SpmmCall:
    precision, rows, width, out_code = kernels.precision, kernels.csr.rows, product.width, DTYPE_CODES[dtype]
    own: torch.Tensor | None = None
    col_scale = row_scale = None
    if not product.edge_values and kernels.col_scale is not None and not plan.prescale:
        own = kernels.explicit_values
    elif not product.edge_values:
        own, col_scale, row_scale = kernels.values, kernels.col_scale, kernels.row_scale
    load = cuda_loader(precision, width, col_scale)
    work = kernels.row_work(plan.row_limit)
    groups = kernels.row_groups(plan.group, plan.row_limit) if plan.group else None
    multiply = _csr_product(kernels.csr, kernels.row_ids, work, groups, plan, width, precision)
    own_address, scale_address = address(own), address(row_scale)

    def run(x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
        loaded, x_view = load(x)
        y = x.new_empty(rows, width)
        given = None if values is None else aligned_values(values, precision)
        weights = own_address if given is None else given.data_ptr()
        y_view = path().native.Dense(y.data_ptr(), width, out_code)
        multiply(x_view, y_view, weights, scale_address, y.device)
        del loaded  # the view holds its address
        return y

    return holding(run, own, row_scale)


def _bind_panel(kernels: KernelCache, plan: PanelPlan, product: Product, dtype: torch.dtype) -> SpmmCall:
    if product.edge_values:
        bad_value("plan", "panels hold no place for edge values; use window or csr")
    height, slices, width = plan.height, plan.slices, product.width
    work = kernels.panel_work(height, plan.tile_limit, plan.longest_first, plan.concurrent_panels)
    view, items, partials = kernels.panel_view(height, not plan.prescale), work.view, work.partials
    values = kernels.values
    scale = kernels.row_scale if values is None else None
    stored = path().native.StoredRows(0, address(kernels.row_ids), address(scale))
    rows, code, out_code = kernels.csr.rows, kernels.precision.code, DTYPE_CODES[dtype]
    # The loader rounds only for panels of bits: kernels of panels with values round X themselves.
    rounds = plan.prescale and kernels.precision is Precision.TF32 and values is None
    load = cuda_loader(kernels.precision, width, kernels.col_scale if plan.prescale else None, rounds=rounds)

    def run(x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
        loaded, x_view = load(x)
        y = x.new_empty(rows, width)
        partial, gpu = partial_sums(partials, height, width, y.device), path()
        gpu.native.cuda_spmm_panel(
            view, stored, items, x_view, gpu.native.Dense(y.data_ptr(), width, out_code), width, slices,
            address(partial), code, gpu.stream(y.device),
        )  # fmt: skip
        del loaded  # the view holds its address
        return y

    return holding(run, kernels.panel(height), kernels.matrix, work, scale)


def _bind_window(kernels: KernelCache, plan: WindowPlan, product: Product, dtype: torch.dtype) -> SpmmCall:
    blocked, precision, width = kernels.blocked, kernels.precision, product.width
    if blocked is None:
        bad_value("plan", "the window kernel needs an operand in a blocked format")
    stores_values, edge_values = blocked.spec.stores_values, product.edge_values
    if stores_values and edge_values:
        bad_value("plan", f"{blocked.spec.name} stores no bits to place edge values by; use csr")
    weighted = not (stores_values or edge_values)
    own, scale = (kernels.values, kernels.row_scale) if weighted else (None, None)
    own_address, row_scale = address(own), address(scale)
    work, view = kernels.window_work(plan.tile_limit), kernels.blocked_view(weighted=not edge_values)
    items, partials, window = work.view, work.partials, blocked.spec.window
    csr, rows, out_code = kernels.csr, kernels.csr.rows, DTYPE_CODES[dtype]
    indptr, row_ids = address(csr.indptr), address(kernels.row_ids)
    load, code = cuda_loader(precision, width), precision.code
    residual = _bind_residual(kernels, plan.residual, width)

    def run(x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
        loaded, x_view = load(x)
        # If the format keeps rows out of its windows, empty rows are in neither part: nothing writes them.
        y = x.new_empty(rows, width) if residual is None else x.new_zeros(rows, width)
        gpu = path()
        y_view = gpu.native.Dense(y.data_ptr(), width, out_code)
        given = None if values is None else aligned_values(values, precision)
        weights = own_address if given is None else given.data_ptr()
        partial = partial_sums(partials, window, width, y.device)
        stored = gpu.native.StoredRows(indptr, row_ids, row_scale, weights)
        gpu.native.cuda_spmm_window(
            view, stored, items, x_view, y_view, width, address(partial), code, gpu.stream(y.device)
        )
        if residual is not None:
            residual(x_view, y_view, y.device)
        del loaded  # the view holds its address
        return y

    return holding(run, kernels.matrix, work, own, scale)


def _bind_residual(
    kernels: KernelCache, plan: CsrPlan, width: int
) -> Callable[[_native.Dense, _native.Dense, torch.device], None] | None:
    """Binds the product of the rows that the format keeps out of its windows; None if there are none."""
    blocked = kernels.blocked
    if blocked is None or blocked.residual is None:
        return None
    work, ids = kernels.residual_work(plan.row_limit), kernels.residual_row_ids()
    multiply = _csr_product(blocked.residual, ids, work, None, plan, width, kernels.precision)
    values = address(blocked.residual_values)
    return lambda x, y, device: multiply(x, y, values, 0, device)


_BINDERS: dict[type[Plan], Callable[[KernelCache, Any, Product, torch.dtype], SpmmCall]] = {
    CsrPlan: _bind_csr, PanelPlan: _bind_panel, WindowPlan: _bind_window,
}  # fmt: skip
