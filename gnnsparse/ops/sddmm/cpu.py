"""SDDMM on the CPU by the native kernels over CSR rows."""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.kernel_cache import BoundCall, KernelCache, Product, SddmmCall
from gnnsparse.ops.dense import cpu_loader
from gnnsparse.plan import Plan

__all__ = ["bind"]


def bind(kernels: KernelCache, width: int, dtype: torch.dtype, plan: Plan | None = None) -> SddmmCall:
    """Returns a function that runs SDDMM for Q and K of a width: (q, k) -> scores. `kernels` keeps it.

    Args:
        kernels: cache of the operand.
        width: features of Q and K.
        dtype: dtype of Q and of the scores.
        plan: ignored: the CPU has one kernel.
    """

    def make() -> SddmmCall:
        nnz, view, row_ids = kernels.csr.nnz, kernels.csr.view, kernels.row_ids
        load = cpu_loader(kernels.precision)

        def run(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            out = q.new_empty(nnz)
            _native.cpu_sddmm(view, row_ids, load(q), load(k), out, torch.get_num_threads())
            return out

        return run

    return kernels.kept.get(BoundCall(Product("sddmm", width), dtype, None), make)
