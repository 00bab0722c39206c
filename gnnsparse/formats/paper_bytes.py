"""Bytes of a matrix by the formulas of the papers: offsets and indices of 32 bits, and nothing extra.

What is stored (`BlockedMatrix.nbytes`) is more: offsets have 64 bits, and some formats pad panels to whole
K tiles of the kernels. Each function takes a matrix in its preset's format.
"""

from __future__ import annotations

import torch

from gnnsparse.formats.matrix import BlockedMatrix
from gnnsparse.formats.records import paper_bytes

__all__ = ["csr_bytes", "cvse_bytes", "hrpb_bytes", "me_bcrs_bytes", "rs_tile_bytes", "tiled_csr_bytes"]

#: Bytes of an offset or an index.
_INDEX = 4


def csr_bytes(rows: int, nnz: int, value: int) -> int:
    """Computes the bytes of CSR, with which the papers compare.

    Args:
        rows: rows of the matrix.
        nnz: nonzeros.
        value: bytes of a value.
    """
    return _INDEX * (rows + 1) + (_INDEX + value) * nnz


def _value_bytes(values: torch.Tensor | None) -> int:
    return 0 if values is None else values.itemsize


def me_bcrs_bytes(matrix: BlockedMatrix) -> int:
    """Computes the bytes of ME-BCRS (FlashSparse, section 3.5).

    RowPointers has one element for each window; ColumnIndices has one, and Values has as many as a window has
    rows, for each nonzero vector.
    """
    vector = _INDEX + matrix.spec.window * _value_bytes(matrix.values)
    return _INDEX * matrix.panels + vector * matrix.vectors


def cvse_bytes(matrix: BlockedMatrix) -> int:
    """Computes the bytes of CVSE (SSpMM, algorithm 1): vecPtr[windows + 1], colInd[NNZV], LHS[NNZV * V]."""
    vector = _INDEX + matrix.spec.window * _value_bytes(matrix.values)
    return _INDEX * (matrix.panels + 1) + vector * matrix.vectors


def tiled_csr_bytes(matrix: BlockedMatrix) -> int:
    """Computes the bytes of Tiled-CSR (section III-A): offsets, whole tiles of 8 x 16 and the Zero Index.

    A tile has its values and the columns of its 16 column slots. The Zero Index has an offset for each row,
    and the column of every zero that is stored in a column with a nonzero.
    """
    spec = matrix.spec
    zeros = 0 if matrix.zero_cols is None else matrix.zero_cols.numel()
    offsets = matrix.panels + 1 + matrix.rows + 1
    slot = _INDEX + spec.window * _value_bytes(matrix.values)
    return _INDEX * (offsets + zeros) + slot * matrix.slots


def hrpb_bytes(matrix: BlockedMatrix) -> int:
    """Computes the bytes of HRPB (cuTeSpMM, section 3.2, figures 4 and 5).

    A block has a pattern of 64 bits and a row for each active brick, an offset for each brick column and one
    more, and the values of its nonzeros; beside the blocks lie blockedRowPtr, activeCols and sizePtr.
    """
    if matrix.size_ptr is None or matrix.packed_blocks is None:
        return 0
    blocks = matrix.slots // matrix.spec.block
    packed = paper_bytes(matrix.size_ptr, matrix.packed_blocks, matrix.nnz)
    return packed + _INDEX * (matrix.panels + 1 + matrix.slots + blocks + 1)


def rs_tile_bytes(matrix: BlockedMatrix) -> int:
    """Computes the bytes of RS-Tile (RSH-SpMM, section 3.2).

    A window has its first row and an offset, a block of 8 columns its columns and 64 bits, a nonzero its
    value. A row that is kept out has its number, and for each of its nonzeros a column; row pointers are
    omitted.
    """
    spec = matrix.spec
    blocks = matrix.slots // spec.block
    residual = matrix.residual
    kept_out = 0 if residual is None else residual.rows + residual.nnz
    values = _value_bytes(matrix.values) * matrix.nnz
    return _INDEX * (2 * matrix.panels + 1 + kept_out) + (8 + _INDEX * spec.block) * blocks + values
