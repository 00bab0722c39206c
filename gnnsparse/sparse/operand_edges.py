"""The orders of an operand's edges: its own, that of its transpose, and that in which edges were given."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value
from gnnsparse.sparse.kernel_cache import KernelCache
from gnnsparse.sparse.operand_core import OperandCore

__all__ = ["EdgeOrders"]


class EdgeOrders:
    """The part of a SparseOperand that knows its edges, and converts values of them between orders."""

    _core: OperandCore
    _which: int
    _kernels: KernelCache

    @property
    def nnz(self) -> int:
        """Number of nonzeros, self-loops that were added included."""
        return self._kernels.csr.nnz

    @property
    def num_edges(self) -> int:
        """Number of edges given to `prepare`, repeats included."""
        return int(self._core.prepared.report["edges"])

    def indices(self) -> torch.Tensor:
        """Returns (row, column) of each nonzero in the operand's order, int64 [2, nnz]."""
        rows = self._kernels.csr.row_index()
        if self._kernels.row_ids is not None:
            rows = self._kernels.row_ids.long()[rows]
        return torch.stack([rows, self._kernels.csr.indices.long()])

    @property
    def transpose_map(self) -> torch.Tensor:
        """For each nonzero of the transpose its index in this operand, int32 or int64 [nnz]."""
        return self._core.transpose_map(self._which)

    def transpose_values(self, values: torch.Tensor) -> torch.Tensor:
        """Reorders edge values from this operand's order to that of `A.T`. Differentiable.

        Args:
            values: [nnz, ...] in this operand's order.

        Returns:
            [nnz, ...] in the order of `A.T`.

        Raises:
            TypeError: `values` is no tensor with at least one dimension.
            ValueError: its first size is not nnz, or it is on another device.
        """
        self._check_edges("values", values, self.nnz)
        return values.index_select(0, self.transpose_map)

    def to_coo_order(self, values: torch.Tensor) -> torch.Tensor:
        """Reorders edge values to the order of the edges given to `prepare`. Differentiable.

        Args:
            values: [nnz, ...] in the operand's order.

        Returns:
            [edges, ...]; repeats of an edge all get the value of the nonzero they were merged into; values
            of self-loops that were added are left out.

        Raises:
            TypeError: `values` is no tensor with at least one dimension.
            ValueError: its first size is not nnz, or it is on another device.
        """
        self._check_edges("values", values, self.nnz)
        edges = self._core.edge_map(self._which)
        return values.clone() if edges is None else values.index_select(0, edges)

    def from_coo_order(self, values: torch.Tensor) -> torch.Tensor:
        """Reorders values of the edges given to `prepare` to the operand's order. Differentiable.

        Args:
            values: [edges, ...] in the order of the edges given to `prepare`.

        Returns:
            [nnz, ...]; values of repeats are summed, self-loops that were added get 0.

        Raises:
            TypeError: `values` is no tensor with at least one dimension.
            ValueError: its first size is not the number of edges, or it is on another device.
        """
        self._check_edges("values", values, self.num_edges)
        edges = self._core.edge_map(self._which)
        if edges is None:
            return values.clone()
        return values.new_zeros((self.nnz, *values.shape[1:])).index_add(0, edges, values)

    def _check_edges(self, name: str, values: Any, count: int) -> None:
        if not isinstance(values, torch.Tensor) or values.layout != torch.strided or values.dim() < 1:
            bad_type(name, values, f"a tensor [{count}, ...]")
        if values.shape[0] != count:
            bad_value(name, f"has {values.shape[0]} elements; accepted: {count}, one for each edge")
        if values.device != self._core.device:
            bad_value(name, f"is on {values.device}; accepted: {self._core.device}, where the operand is")
