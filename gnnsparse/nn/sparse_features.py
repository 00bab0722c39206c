"""Features of which few are not zero, which linear layers multiply as a sparse matrix."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils._pytree import tree_map_only

from gnnsparse.ops import spmm
from gnnsparse.precision import Precision
from gnnsparse.preprocess.api import prepare
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.operand import SparseOperand


class SparseFeatures(torch.Tensor):
    """A float32 tensor [nodes, features] that stores its nonzeros, and never needs a gradient.

    A linear layer multiplies it as a sparse matrix, and dropout draws for the nonzeros alone. Every other
    operation takes the dense tensor, which is made for it once.
    """

    _operand: SparseOperand
    _weights: torch.Tensor | None
    _dense: torch.Tensor | None

    @staticmethod
    def __new__(
        cls, operand: SparseOperand, values: torch.Tensor | None = None, dense: torch.Tensor | None = None
    ) -> SparseFeatures:
        """Make the features that an operand holds, with `values` [nnz] in place of its own if given."""
        make: Any = torch.Tensor._make_wrapper_subclass
        made: SparseFeatures = make(cls, operand.shape, dtype=torch.float32, device=operand.device)
        made._operand, made._weights, made._dense = operand, values, dense
        return made

    @classmethod
    def of(cls, x: torch.Tensor, precision: Precision = Precision.FP32) -> SparseFeatures:
        """Store the nonzeros of x [nodes, features], float32; `precision` is that of its products."""
        rows, columns = x.nonzero().unbind(1)
        sizes = x.shape[1], x.shape[0]
        graph = SparseGraph.from_edge_index(torch.stack([columns, rows]), sizes, x[rows, columns])
        return cls(prepare(graph, precision=precision, cache=False), dense=x)

    def _numbers(self) -> torch.Tensor:
        return self._operand.kernels.explicit_values if self._weights is None else self._weights

    def _as_dense(self) -> torch.Tensor:
        if self._dense is None:
            zeros = torch.zeros(self.shape, dtype=self.dtype, device=self.device)
            self._dense = zeros.index_put_((*self._operand.indices(),), self._numbers().float())
        return self._dense

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compute a linear layer or dropout from the nonzeros, and anything else as torch does."""
        kwargs = kwargs or {}
        if func in _SPARSE and args and type(args[0]) is cls:
            return _SPARSE[func](*args, **kwargs)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Compute an operation from the dense tensor."""
        args, kwargs = tree_map_only(cls, cls._as_dense, (args, kwargs or {}))
        return func(*args, **kwargs)


def _linear(x: SparseFeatures, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    y = spmm(x._operand, weight.t(), x._weights)
    return y if bias is None else y + bias


def _dropout(x: SparseFeatures, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    dropped = F.dropout(x._numbers(), p, training)
    return SparseFeatures(x._operand, dropped) if training and p > 0 else x


_SPARSE: dict[Any, Any] = {F.linear: _linear, F.dropout: _dropout}
