"""SpMM on the CPU by the native kernels over CSR rows."""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.kernel_cache import BoundCall, KernelCache, Product, SpmmCall
from gnnsparse.ops.dense import cpu_loader
from gnnsparse.ops.result_memory import empty_result
from gnnsparse.plan import Plan
from gnnsparse.precision import round_operand

__all__ = ["bind"]


def bind(
    kernels: KernelCache, width: int, dtype: torch.dtype, edge_values: bool, plan: Plan | None = None,
    mean: bool = False,
) -> SpmmCall:  # fmt: skip
    """Returns a function that runs SpMM for X of a width and a dtype: (x, edge values or None) -> y.

    All arguments that do not depend on the tensors are prepared here. `kernels` keeps the function, because
    preparing them takes most of a small call's time.

    Args:
        kernels: cache of the orientation that is multiplied.
        width: columns of X.
        dtype: dtype of X and y.
        edge_values: whether values are given in the call, in place of the operand's weights.
        plan: ignored: the CPU has one kernel.
        mean: whether a row's sum is divided by its number of nonzeros.
    """

    def make() -> SpmmCall:
        rows, view, row_ids = kernels.csr.rows, kernels.csr.view, kernels.row_ids
        precision, load = kernels.precision, cpu_loader(kernels.precision)
        scale = kernels.row_factors(not edge_values, mean)
        own = _native.StoredRows(None, row_ids)
        if not edge_values:
            own = _native.StoredRows(None, row_ids, scale, kernels.values32, kernels.col_scale)

        def run(x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
            y, stored = empty_result(x, rows, width), own
            if values is not None:
                weights = round_operand(values, precision).float().contiguous()
                stored = _native.StoredRows(None, row_ids, scale, weights)
            _native.cpu_spmm(view, stored, load(x), y, torch.get_num_threads())
            return y

        return run

    return kernels.kept.get(BoundCall(Product("spmm", width, edge_values), dtype, None, mean), make)
