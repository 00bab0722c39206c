"""Operations on prepared operands.

Each has a folder: its api, its schema (operator, fake, gradient), and its cpu, cuda and reference versions.
"""

from gnnsparse.operand import SparseOperand
from gnnsparse.ops import tuning as _tuning  # noqa: F401  (binds SparseOperand.tune)
from gnnsparse.ops.attention.api import attention
from gnnsparse.ops.library import Products, bind_eager
from gnnsparse.ops.result_memory import release_memory
from gnnsparse.ops.sddmm.api import sddmm
from gnnsparse.ops.softmax.api import edge_softmax
from gnnsparse.ops.spmm.api import spmm

__all__ = ["attention", "edge_softmax", "release_memory", "sddmm", "spmm"]

bind_eager(Products(spmm, sddmm, SparseOperand.transpose_values))
