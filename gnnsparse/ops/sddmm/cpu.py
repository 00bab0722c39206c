"""SDDMM on the CPU by the native kernels over CSR rows."""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.csr import address
from gnnsparse.kernel_cache import BoundCall, KernelCache, Product, SddmmCall
from gnnsparse.ops.dense import cpu_loader, holding
from gnnsparse.plan import Plan
from gnnsparse.precision import DTYPE_CODES

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
        nnz, view, row_ids = kernels.csr.nnz, kernels.csr.view, address(kernels.row_ids)
        load, out_code = cpu_loader(kernels.precision), DTYPE_CODES[dtype]

        def run(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
            out = q.new_empty(nnz)
            loaded_q, q_view = load(q)
            loaded_k, k_view = load(k)
            _native.cpu_sddmm(
                view, row_ids, q_view, k_view, out.data_ptr(), out_code, width, torch.get_num_threads()
            )
            del loaded_q, loaded_k  # the views hold their addresses
            return out

        return holding(run, kernels.matrix)

    return kernels.kept.get(BoundCall(Product("sddmm", width), dtype, None), make)
