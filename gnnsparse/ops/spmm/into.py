"""SpMM into memory that the caller has, such as some columns of a matrix. Without gradients."""

from __future__ import annotations

import torch

from gnnsparse.operand import SparseOperand
from gnnsparse.ops.spmm.schema import bind
from gnnsparse.ranges import ranged

__all__ = ["spmm_into"]


@ranged("spmm")
def spmm_into(a: SparseOperand, x: torch.Tensor, out: torch.Tensor) -> None:
    """Computes A x, rounded to the dtype of `out`, which need not be that of x.

    The caller has checked the arguments.

    Args:
        a: an operand of one process, of shape [m, k].
        x: [k, n], float32, float16 or bfloat16, on the operand's device.
        out: [m, n], float32, float16 or bfloat16; its rows may lie apart, but not the elements of a row.
    """
    run = bind(a.kernels, x, None)
    if a.kernels.quantization is not None:
        out.copy_(run(x, None))
    else:
        run(x, None, out)
