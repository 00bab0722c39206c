"""One orientation of a sparse matrix, A or its transpose: its structure in stored row order, and weights."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from gnnsparse.formats import BlockedMatrix
from gnnsparse.formats.csr import Csr

__all__ = ["Oriented"]


@dataclass(frozen=True, eq=False)
class Oriented:
    """One orientation of a sparse matrix: A or its transpose. The two share arrays where they can.

    The value of nonzero (i, j) is values[value_index] * row_scale[i] * col_scale[j]; factors that are None
    are 1.

    Attributes:
        csr: the structure, rows in stored order.
        row_ids: int32 [rows], the matrix row of each stored row; None: stored row i is matrix row i.
        blocked: the structure in a blocked format, or None.
        values: float32 [nnz], values in the nonzero order of A, or None.
        value_index: int32 or int64 [nnz], the index in `values` of each nonzero's value; None: nonzero e has
            values[e]. It may be on another device.
        row_scale: float32 [rows] by matrix row, or None.
        col_scale: float32 [cols] by matrix column, or None.
    """

    csr: Csr
    row_ids: torch.Tensor | None = None
    blocked: BlockedMatrix | None = None
    values: torch.Tensor | None = None
    value_index: torch.Tensor | None = None
    row_scale: torch.Tensor | None = None
    col_scale: torch.Tensor | None = None

    def own_values(self) -> torch.Tensor | None:
        """Returns `values` in the order of this orientation's nonzeros, float32 [nnz], or None.

        Values of a transpose are gathered anew in each call.
        """
        if self.values is None or self.value_index is None:
            return self.values
        return self.values.index_select(0, self.value_index.to(self.values.device))

    def stored_row_scale(self) -> torch.Tensor | None:
        """Returns `row_scale` in the order of the stored rows, float32 [rows], or None."""
        if self.row_scale is None or self.row_ids is None:
            return self.row_scale
        return self.row_scale[self.row_ids.long()]

    def with_blocked(self, blocked: BlockedMatrix | None) -> Oriented:
        """Returns a copy of this orientation with another blocked form, or with none."""
        return replace(self, blocked=blocked)

    def shares_structure(self, other: Oriented) -> bool:
        """Returns whether both orientations hold the very arrays of the structure in common."""
        return self.csr is other.csr and self.blocked is other.blocked
