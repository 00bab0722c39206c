"""How alike neighbouring rows are, by the measure that RSH-SpMM's reordering minimises."""

from __future__ import annotations

import torch

from gnnsparse.errors import check_number
from papers.analysis.structure import Matrix, structure_of

__all__ = ["adjacent_dissimilarity"]


def adjacent_dissimilarity(matrix: Matrix, order: torch.Tensor | None = None, exponent: float = 1.0) -> float:
    """Computes the sum over neighbouring rows of 1 - weighted Jaccard similarity (RSH-SpMM, section 3.4).

    Column j has the weight d_j^-exponent, with d_j its nonzeros. Two empty rows are alike.

    Args:
        matrix: the matrix.
        order: int [rows], a row order; None: the stored order.
        exponent: alpha of the paper, which names no value.

    Raises:
        TypeError: an argument is of another type.
        ValueError: `exponent` is not finite.
    """
    check_number("exponent", exponent)
    csr = structure_of(matrix)
    if order is not None:
        csr = csr.permute_rows(order)[0]
    if csr.rows < 2:
        return 0.0
    counts = torch.bincount(csr.indices, minlength=csr.cols).clamp(min=1).double()
    weight = counts[csr.indices.long()] ** -exponent
    row = csr.row_index()
    of_row = torch.zeros(csr.rows, dtype=torch.float64, device="cpu").index_add_(0, row, weight)
    # A nonzero of row r + 1 whose column row r has too: consecutive in column order.
    by_column = torch.argsort(csr.indices, stable=True)
    column, rows = csr.indices[by_column], row[by_column]
    shared = ((column[1:] == column[:-1]) & (rows[1:] == rows[:-1] + 1)).nonzero().flatten()
    common = torch.zeros(csr.rows, dtype=torch.float64, device="cpu")
    common.index_add_(0, rows[shared], weight[by_column[shared]])
    union = of_row[:-1] + of_row[1:] - common[:-1]
    similarity = torch.where(union > 0, common[:-1] / union, torch.ones_like(union))
    return float((1 - similarity).sum())
