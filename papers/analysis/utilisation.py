"""The share of Tensor Core work that is spent on nonzeros, by format."""

from __future__ import annotations

import torch

from gnnsparse.errors import check_integer
from papers.analysis.structure import Matrix, count_vectors, structure_of, vector_slots

__all__ = ["row_utilisation", "tile_utilisation", "vector_density"]


def tile_utilisation(
    matrix: Matrix, height: int = 8, width: int = 16, order: torch.Tensor | None = None
) -> float:
    """Computes the nonzeros per element of the tiles of Tiled-CSR (figure 8); 0 without a nonzero.

    Args:
        matrix: the matrix.
        height: rows of a tile.
        width: columns of a tile.
        order: int [rows], a row order, such as that of the row shuffle; None: the stored order.
    """
    csr = structure_of(matrix)
    slots = vector_slots(count_vectors(csr, height, order), check_integer("width", width))
    return csr.nnz / max(height * slots, 1)


def row_utilisation(matrix: Matrix, height: int = 8, width: int = 16) -> float:
    """Computes the utilisation of SR-BCRS on unstructured matrices, whose vectors have one row.

    A tile of `height` rows then holds one row of the matrix, padded to a multiple of `width` nonzeros, so
    that at most 1 / `height` of it is used (Tiled-CSR, section V-B).
    """
    csr = structure_of(matrix)
    return csr.nnz / max(height * vector_slots(csr.degrees, check_integer("width", width)), 1)


def vector_density(matrix: Matrix, height: int = 8, order: torch.Tensor | None = None) -> float:
    """Computes the nonzeros per element of the nonzero vectors (SSpMM, section VI-E); 0 without a nonzero.

    One minus it is the paper's new sparsity, and it over the density of the matrix its equation 1.
    """
    csr = structure_of(matrix)
    return csr.nnz / max(height * int(count_vectors(csr, height, order).sum()), 1)
