"""Bytes of a matrix in the published formats, by the formulas of their papers.

They are computed from counts of the CSR structure alone, with offsets and indices of 4 bytes and nothing that
a paper does not store, and so are a check on the formats' own arrays. Bytes of values are separate where
papers compare what stands beside the values (metadata).
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from gnnsparse.errors import check_choice, check_integer
from papers.analysis.partition import default_limits, partition_rows
from papers.analysis.structure import Matrix, count_vectors, structure_of, vector_slots

__all__ = ["FOOTPRINTS", "footprint"]

_INDEX = 4


def _csr(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
    csr = structure_of(matrix)
    return _INDEX * (csr.rows + 1) + (_INDEX + value) * csr.nnz


def _coo(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
    return (2 * _INDEX + value) * structure_of(matrix).nnz


def _me_bcrs(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
    """Counts a pointer for each window, and for each nonzero vector a column and 8 values (section 3.5)."""
    vectors = count_vectors(matrix, 8, order)
    return _INDEX * vectors.numel() + (_INDEX + 8 * value) * int(vectors.sum())


def _sr_bcrs(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
    """Counts two pointers for each window, and windows padded to whole blocks (FlashSparse, section 3.5)."""
    vectors = count_vectors(matrix, 8, order)
    block = 8 if value <= 2 else 4
    return 2 * _INDEX * vectors.numel() + (_INDEX + 8 * value) * vector_slots(vectors, block)


def _cvse(height: int) -> Callable[[Matrix, int, torch.Tensor | None], int]:
    def count(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
        """Counts an offset for each window, and a column and V values for each vector (algorithm 1)."""
        vectors = count_vectors(matrix, height, order)
        return _INDEX * (vectors.numel() + 1) + (_INDEX + height * value) * int(vectors.sum())

    return count


def _tiled_csr(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
    """Counts tiles of 8 x 16 with their columns, and the Zero Index: the columns of a row's zeros in them.

    A row has a zero in each nonzero vector of its window that it has no nonzero in; rows behind the last one
    of the matrix have none, and neither do padded columns.
    """
    csr = structure_of(matrix)
    vectors = count_vectors(csr, 8, order)
    slots = vector_slots(vectors, 16)
    stored = 8 * int(vectors.sum())
    if csr.rows % 8:
        stored -= int(vectors[-1]) * (8 - csr.rows % 8)
    zeros = stored - csr.nnz
    offsets = vectors.numel() + 1 + csr.rows + 1
    return _INDEX * (offsets + slots + zeros) + 8 * value * slots


def _hrpb(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
    """Counts cuTeSpMM's structures (figures 4 and 5) with TM = 16, TK = 16 and bricks of 16 x 4.

    A block holds the bits (8 bytes) and the row (4 bytes) of each active brick, 5 offsets of brick columns,
    and its nonzeros; beside it lie 16 columns and an offset in `sizePtr`.
    """
    vectors = count_vectors(matrix, 16, order)
    blocks = int((-(-vectors // 16)).sum())
    bricks = int((-(-vectors // 4)).sum())
    packed = (8 + _INDEX) * bricks + 5 * _INDEX * blocks + value * structure_of(matrix).nnz
    return packed + _INDEX * (vectors.numel() + 1) + 16 * _INDEX * blocks + _INDEX * (blocks + 1)


def _rs_tile(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
    """Counts RS-Tile (RSH-SpMM, section 3.2), with the windows of its algorithm 1 at the default limits.

    Windows have a first row and an offset, blocks 8 columns and 64 bits, nonzeros a value. A residual row
    has its number, and each of its nonzeros a column and a value; there are no row pointers.
    """
    csr = structure_of(matrix)
    if order is not None:
        csr = csr.permute_rows(order)[0]
    parts = partition_rows(csr, *default_limits(csr))
    windows, blocks = parts.window_rows.numel(), parts.blocks
    residual = _INDEX * (parts.residual_rows.numel() + parts.residual_nnz)
    return _INDEX * (2 * windows + 1) + (8 + 8 * _INDEX) * blocks + residual + value * csr.nnz


def _me_tcf(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
    """Counts DTC-SpMM's format: windows of 16 rows, blocks of 8 columns, one byte of place a nonzero."""
    vectors = count_vectors(matrix, 16, order)
    blocks = int((-(-vectors // 8)).sum())
    offsets = vectors.numel() + 1 + blocks + 1
    return _INDEX * (offsets + 8 * blocks) + (1 + value) * structure_of(matrix).nnz


def _bit_tcf(matrix: Matrix, value: int, order: torch.Tensor | None) -> int:
    """Counts Acc-SpMM's format: windows of 8 rows, blocks of 8 columns, 64 bits a block."""
    vectors = count_vectors(matrix, 8, order)
    blocks = int((-(-vectors // 8)).sum())
    offsets = vectors.numel() + 1 + blocks + 1
    return _INDEX * (offsets + 8 * blocks) + 8 * blocks + value * structure_of(matrix).nnz


#: The formats whose bytes `footprint` computes: functions of (matrix, bytes of a value, row order).
FOOTPRINTS: dict[str, Callable[[Matrix, int, torch.Tensor | None], int]] = {
    "csr": _csr,
    "coo": _coo,
    "me-bcrs": _me_bcrs,
    "sr-bcrs": _sr_bcrs,
    "cvse-8": _cvse(8),
    "cvse-16": _cvse(16),
    "tiled-csr": _tiled_csr,
    "hrpb": _hrpb,
    "rs-tile": _rs_tile,
    "me-tcf": _me_tcf,
    "bit-tcf": _bit_tcf,
}


def footprint(matrix: Matrix, format: str, value: int = 2, order: torch.Tensor | None = None) -> int:
    """Computes the bytes that a format takes by its paper's formula, with offsets and indices of 4 bytes.

    Args:
        matrix: the matrix.
        format: one of FOOTPRINTS: "csr", "coo"; "me-bcrs" and "sr-bcrs" (FlashSparse); "cvse-8" and "cvse-16"
            (SSpMM, by the rows of a vector); "tiled-csr"; "hrpb" (cuTeSpMM); "rs-tile" (RSH-SpMM); "me-tcf"
            (DTC-SpMM) and "bit-tcf" (Acc-SpMM), which RSH-SpMM compares with.
        value: bytes of a stored value; 0 leaves what stands beside the values.
        order: int [rows], a row order; None: the stored order.

    Raises:
        TypeError: an argument is of another type.
        ValueError: there is no such format, or `value` is negative.
    """
    check_choice("format", format, tuple(FOOTPRINTS))
    check_integer("value", value, 0, "the bytes of a value, from 0 on")
    return FOOTPRINTS[format](matrix, value, order)
