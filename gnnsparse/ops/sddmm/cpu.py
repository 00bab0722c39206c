"""SDDMM on the CPU by the native kernels, over CSR rows or over the format that was asked for."""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.ops.dense import cpu_loader
from gnnsparse.plan import Plan
from gnnsparse.sparse.kernel_cache import BoundCall, KernelCache, Product, SddmmCall

__all__ = ["bind"]


def bind(kernels: KernelCache, width: int, dtype: torch.dtype, plan: Plan | None = None) -> SddmmCall:
    """Returns a function that runs SDDMM for Q and K of a width: (q, k) -> scores. `kernels` keeps it.

    Args:
        kernels: cache of the operand.
        width: features of Q and K.
        dtype: dtype of Q and of the scores.
        plan: ignored: the operand's format says which kernel runs.
    """

    def make() -> SddmmCall:
        if kernels.runs_format_alone:
            return _blocked(kernels)
        nnz, view, row_ids = kernels.csr.nnz, kernels.csr.view, kernels.row_ids
        load = cpu_loader(kernels.precision)

        def run(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            out = q.new_empty(nnz)
            _native.cpu_sddmm(view, row_ids, load(q), load(k), out, torch.get_num_threads())
            return out

        return run

    return kernels.memo.get(BoundCall(Product("sddmm", width), dtype, None), make)


def _blocked(kernels: KernelCache) -> SddmmCall:
    """Binds the product over the arrays of the prepared format.

    Scores are written where the format has its values, in the blocks that SpMM reads (FlashSparse, algorithm
    1), and then brought in the order of the nonzeros.
    """
    view, places, row_ids = kernels.require_blocked().view(), kernels.value_places, kernels.row_ids
    values, load = kernels.require_blocked().values, cpu_loader(kernels.precision)
    count = 0 if values is None else values.numel()

    def run(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        blocks = q.new_zeros(count)
        _native.cpu_sddmm_blocked(view, row_ids, load(q), load(k), blocks, torch.get_num_threads())
        return blocks.index_select(0, places)

    return run
