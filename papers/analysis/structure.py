"""The structure that analyses count in: the CSR form of a graph, of a CSR matrix or of a blocked matrix."""

from __future__ import annotations

from typing import TypeAlias

import torch

from gnnsparse.errors import bad_type, bad_value, check_integer
from gnnsparse.formats import BlockedMatrix
from gnnsparse.formats.csr import Csr, coo_to_csr
from gnnsparse.sparse.graph import SparseGraph

__all__ = ["HEIGHTS", "Matrix", "check_height", "count_vectors", "structure_of", "vector_slots"]

#: What analyses accept. Values play no part, and a stored zero counts as a nonzero.
Matrix: TypeAlias = SparseGraph | Csr | BlockedMatrix

#: Rows of a nonzero vector that Tensor Core instructions can take: 8 swapped, 16 not.
HEIGHTS = (8, 16)


def structure_of(matrix: Matrix) -> Csr:
    """Returns the structure of a matrix in CSR form, on the CPU.

    Args:
        matrix: a graph, a CSR matrix, or a blocked matrix, whose arrays are decoded.

    Raises:
        TypeError: `matrix` is none of these.
    """
    if isinstance(matrix, SparseGraph):
        matrix = matrix.csr
    if isinstance(matrix, BlockedMatrix):
        row, col, _ = matrix.decode()
        return coo_to_csr(row.contiguous(), col.contiguous(), matrix.rows, matrix.cols)[0]
    if not isinstance(matrix, Csr):
        bad_type("matrix", matrix, "a SparseGraph, a Csr or a BlockedMatrix")
    return matrix.to(torch.device("cpu"))


def check_height(name: str, height: int) -> int:
    """Returns `height` if a nonzero vector can have as many rows, else raises."""
    if check_integer(name, height) not in HEIGHTS:
        bad_value(name, f"got {height}; accepted: {' or '.join(map(str, HEIGHTS))}")
    return height


def count_vectors(matrix: Matrix, height: int, order: torch.Tensor | None = None) -> torch.Tensor:
    """Counts the nonzero vectors of each window: its columns with at least one nonzero.

    FlashSparse, section 2.2, calls `height` consecutive rows a window, and a column of it that is not empty a
    nonzero vector.

    Args:
        matrix: the matrix.
        height: rows of a window.
        order: int [rows], a row order to count in; None: the stored order.

    Returns:
        int64 [ceil(rows / height)].

    Raises:
        TypeError: an argument is of another type.
        ValueError: `height` is below 1.
    """
    return structure_of(matrix).count_columns(check_integer("height", height), order)


def vector_slots(vectors: torch.Tensor, multiple: int) -> int:
    """Returns the vectors of all windows when each window is padded to a multiple of `multiple` vectors."""
    return int((-(-vectors // multiple) * multiple).sum())
