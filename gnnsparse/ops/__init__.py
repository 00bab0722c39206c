"""Operations on prepared operands."""

from gnnsparse.ops import library as _library  # noqa: F401  (registers the operators)
from gnnsparse.ops import tuning as _tuning  # noqa: F401  (binds SparseOperand.tune)
from gnnsparse.ops.attention import attention
from gnnsparse.ops.products import edge_softmax, sddmm, spmm
from gnnsparse.ops.result_memory import release_memory

__all__ = ["attention", "edge_softmax", "release_memory", "sddmm", "spmm"]
