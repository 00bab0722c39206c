"""SpMM into memory that the caller has, such as some columns of a matrix. Without gradients."""

from __future__ import annotations

import torch

from gnnsparse.ops.spmm.schema import bind
from gnnsparse.runtime.memo import Launchable
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["spmm_into"]


@ranged("spmm")
def spmm_into(a: SparseOperand, x: torch.Tensor, out: torch.Tensor, *, add: bool = False) -> None:
    """Computes A x, rounded to the dtype of `out`, which need not be that of x.

    The caller has checked the arguments.

    Args:
        a: an operand of one process, of shape [m, k].
        x: [k, n], float32, float16 or bfloat16, on the operand's device.
        out: [m, n], float32, float16 or bfloat16; its rows may lie apart, but not the elements of a row.
        add: whether the rounded product is added to what `out` has. Kernels that can't do it write it
            elsewhere, and another one adds it; the bits are the same.
    """
    run = bind(a.kernels, x, None)
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
