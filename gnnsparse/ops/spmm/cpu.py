"""SpMM on the CPU by the native kernels, over CSR rows or over the format that was asked for."""

from __future__ import annotations

from dataclasses import replace

import torch

from gnnsparse import _native
from gnnsparse.formats.convert import place_values
from gnnsparse.ops.dense import cpu_loader
from gnnsparse.ops.result_memory import empty_result
from gnnsparse.plan import Plan
from gnnsparse.precision import round_operand
from gnnsparse.sparse.kernel_cache import BoundCall, KernelCache, Product, SpmmCall

__all__ = ["bind"]


def bind(
    kernels: KernelCache, width: int, dtype: torch.dtype, edge_values: bool, plan: Plan | None = None,
    mean: bool = False,
) -> SpmmCall:  # fmt: skip
    """Returns a function that runs SpMM for X of a width and a dtype: (x, edge values or None[, y]) -> y.

    All arguments that do not depend on the tensors are prepared here. `kernels` keeps the function, because
    preparing them takes most of a small call's time.

    Args:
        kernels: cache of the orientation that is multiplied.
        width: columns of X.
        dtype: dtype of X and y.
        edge_values: whether values are given in the call, in place of the operand's weights.
        plan: ignored: the operand's format says which kernel runs.
        mean: whether a row's sum is divided by its number of nonzeros.
    """

    def make() -> SpmmCall:
        if kernels.runs_format_alone:
            return _blocked(kernels, width, edge_values, mean)
        rows, view, row_ids = kernels.csr.rows, kernels.csr.view, kernels.row_ids
        precision, load = kernels.precision, cpu_loader(kernels.precision)
        scale = kernels.row_factors(not edge_values, mean)
        own = _native.StoredRows(None, row_ids)
        if not edge_values:
            own = _native.StoredRows(None, row_ids, scale, kernels.values32, kernels.col_scale)

        def run(
            x: torch.Tensor, values: torch.Tensor | None, out: torch.Tensor | None = None
        ) -> torch.Tensor:
            y, stored = empty_result(x, rows, width) if out is None else out, own
            if values is not None:
                weights = round_operand(values, precision).float().contiguous()
                stored = _native.StoredRows(None, row_ids, scale, weights)
            _native.cpu_spmm(view, stored, load(x), y, torch.get_num_threads())
            return y

        return run

    return kernels.memo.get(BoundCall(Product("spmm", width, edge_values), dtype, None, mean), make)


def _blocked(kernels: KernelCache, width: int, edge_values: bool, mean: bool) -> SpmmCall:
    """Binds the product over the arrays of the prepared format."""
    blocked, precision, rows = kernels.require_blocked(), kernels.precision, kernels.csr.rows
    row_ids, load = kernels.row_ids, cpu_loader(kernels.precision)
    outside = not (blocked.spec.stores_values or edge_values)  # bits alone: weights lie outside the format
    scale = kernels.row_factors(outside, mean)
    own = _native.StoredRows(None, row_ids, scale)
    if outside:
        own = _native.StoredRows(kernels.csr.indptr, row_ids, scale, kernels.values32, kernels.col_scale)
    view, places = blocked.view(), kernels.value_places if edge_values else None
    residual = _residual(kernels, mean)

    def run(x: torch.Tensor, values: torch.Tensor | None, out: torch.Tensor | None = None) -> torch.Tensor:
        y = empty_result(x, rows, width) if out is None else out
        if blocked.panel_rows is not None:
            y.zero_()  # rows without nonzeros are in no panel
        used, threads, loaded = view, torch.get_num_threads(), load(x)
        if values is not None and places is not None:
            used = replace(
                blocked, values=place_values(blocked, places, round_operand(values, precision))
            ).view()
        _native.cpu_spmm_blocked(used, own, loaded, y, threads)
        if residual is not None:
            _native.cpu_spmm(residual[0], residual[1], loaded, y, threads)
        return y

    return run


def _residual(kernels: KernelCache, mean: bool) -> tuple[_native.Csr, _native.StoredRows] | None:
    """Returns the rows that the format keeps out of its windows, and their weights, or None."""
    blocked = kernels.require_blocked()
    if blocked.residual is None or blocked.residual.rows == 0:
        return None
    values, counts = blocked.residual_csr_values, kernels.residual_counts() if mean else None
    own = None if values is None else values.float()
    return blocked.residual.view, _native.StoredRows(None, kernels.residual_row_ids(), counts, own)
