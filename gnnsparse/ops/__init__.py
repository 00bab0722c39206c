"""Operations on prepared operands: SpMM, SDDMM, softmax over edges and attention.

Each operation has a folder: `api` checks arguments and dispatches, `schema` registers the operator with its
fake and its gradient, and `cpu`, `cuda` and `reference` are its implementations.
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
