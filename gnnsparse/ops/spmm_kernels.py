"""The kernels of SpMM: which of them runs a call, and those of the CPU."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch

from gnnsparse import _native
from gnnsparse.formats.convert import place_values
from gnnsparse.ops import heads, spmm_cuda, spmm_quantized
from gnnsparse.ops.dense import cpu_loader, new_result
from gnnsparse.plan import Plan
from gnnsparse.precision import round_operand
from gnnsparse.runtime.device import path
from gnnsparse.runtime.memo import Launchable
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.kernel_cache import BoundCall, KernelCache, Product, SpmmCall
from gnnsparse.sparse.operand import SparseOperand


def bind_spmm(
    kernels: KernelCache, x: torch.Tensor, values: torch.Tensor | None, plan: Plan | None = None,
    mean: bool = False, seed: int | None = None,
) -> SpmmCall:  # fmt: skip
    """Return a function that runs SpMM for arguments of the form of `x` and `values`: (x, values) -> y.

    All arguments that do not depend on the tensors are prepared here, which takes most of a small call's
    time: without heads `kernels` keeps the function. Plans are for GPUs; on a CPU the format decides. A
    `seed` rounds an X of 8 bits stochastically.
    """
    on_gpu = path().takes(x.device)
    if kernels.quantization is not None:
        return spmm_quantized.bind(kernels, x, values, plan, mean, seed)
    if values is not None:
        kernels.require("values", "edge values", "sddmm")
    if x.dim() == 3:
        if kernels.runs_format_alone:
            return lambda x, values: _by_head(kernels, x, values, plan, mean)
        return partial(heads.spmm, kernels, mean=mean, plan=plan)
    product = Product("spmm", x.shape[1], values is not None)
    if on_gpu:
        return spmm_cuda.bind(kernels, product, x.dtype, plan, mean)
    bind = _blocked if kernels.runs_format_alone else _rows
    return kernels.memo.get(BoundCall(product, x.dtype, None, mean), lambda: bind(kernels, product, mean))


def _by_head(
    kernels: KernelCache, x: torch.Tensor, values: torch.Tensor | None, plan: Plan | None, mean: bool
) -> torch.Tensor:
    """Compute a product for each head, in formats that hold the values of one."""
    assert values is not None
    y = x.new_zeros(kernels.csr.rows, *x.shape[1:])
    for h in range(x.shape[1]):
        one, own = x[:, h], values[:, h]
        y[:, h] = bind_spmm(kernels, one, own, plan, mean)(one, own)
    return y


@ranged("spmm")
def spmm_into(a: SparseOperand, x: torch.Tensor, out: torch.Tensor, *, add: bool = False) -> None:
    """Compute A x into memory [m, n] of the caller, rounded to its dtype, without gradients.

    Its rows may lie apart, but not the elements of a row. With `add` the rounded product is added to what is
    there, with the same bits whether the kernel adds or not.
    """
    run = bind_spmm(a.kernels, x, None)
    if add and isinstance(run, Launchable) and run.adds:
        run(x, None, out, True)
        return
    to = torch.empty_like(out) if add else out
    if a.kernels.quantization is not None:
        to.copy_(run(x, None))
    else:
        run(x, None, to)
    if add:
        out.add_(to)


# The CPU.


def _rows(kernels: KernelCache, product: Product, mean: bool) -> SpmmCall:
    """Bind the product over CSR rows: (x, edge values or None[, y]) -> y."""
    rows, view, row_ids = kernels.csr.rows, kernels.csr.view, kernels.row_ids
    precision, load = kernels.precision, cpu_loader(kernels.precision)
    scale = kernels.row_factors(not product.edge_values, mean)
    own = _native.StoredRows(None, row_ids)
    if not product.edge_values:
        own = _native.StoredRows(None, row_ids, scale, kernels.values32, kernels.col_scale)

    def run(x: torch.Tensor, values: torch.Tensor | None, out: torch.Tensor | None = None) -> torch.Tensor:
        y, stored = new_result(x, rows) if out is None else out, own
        if values is not None:
            weights = round_operand(values, precision).float().contiguous()
            stored = _native.StoredRows(None, row_ids, scale, weights)
        _native.cpu_spmm(view, stored, load(x), y, torch.get_num_threads())
        return y

    return run


def _blocked(kernels: KernelCache, product: Product, mean: bool) -> SpmmCall:
    """Bind the product over the arrays of the prepared format."""
    blocked, precision, rows = kernels.require_blocked(), kernels.precision, kernels.csr.rows
    row_ids, load = kernels.row_ids, cpu_loader(kernels.precision)
    edge_values = product.edge_values
    outside = not (blocked.spec.stores_values or edge_values)  # bits alone: weights lie outside the format
    scale = kernels.row_factors(outside, mean)
    own = _native.StoredRows(None, row_ids, scale)
    if outside:
        own = _native.StoredRows(kernels.csr.indptr, row_ids, scale, kernels.values32, kernels.col_scale)
    view, places = blocked.view(), kernels.value_places if edge_values else None
    residual = _residual(kernels, mean)

    def run(x: torch.Tensor, values: torch.Tensor | None, out: torch.Tensor | None = None) -> torch.Tensor:
        y = new_result(x, rows) if out is None else out
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
    """The rows that the format keeps out of its windows, and their weights, or None."""
    blocked = kernels.require_blocked()
    if blocked.residual is None or blocked.residual.rows == 0:
        return None
    values, counts = blocked.residual_csr_values, kernels.residual_counts() if mean else None
    own = None if values is None else values.float()
    return blocked.residual.view, _native.StoredRows(None, kernels.residual_row_ids(), counts, own)
