"""Sizes that the kernels are compiled with, which the native module exports."""

from __future__ import annotations

from gnnsparse import _native

__all__ = [
    "GATHER_FLOOR_WORDS", "HALF_VECTOR_BYTES", "NARROW_WIDTH", "PANEL_K_TILE", "SCORE_ROWS", "SECTOR_BYTES",
    "SLICE_BYTES", "TALL_ROWS", "VECTOR_BYTES", "WINDOW_K_TILE", "partial_width",
]  # fmt: skip

#: Column slots in a K tile of the panel kernels, and in one of the window kernels.
PANEL_K_TILE, WINDOW_K_TILE = _native.PANEL_K_TILE, _native.WINDOW_K_TILE
#: Bytes of a row of X that a warp of the panel kernels multiplies at a time (a slice).
SLICE_BYTES = _native.ROW_SLICE_BYTES
#: Bytes that a lane loads with one instruction; rows of dense operands are padded to a multiple of it.
VECTOR_BYTES = _native.VECTOR_BYTES
#: Bytes of the half of that, by which panels copy rows of X that are no whole vectors.
HALF_VECTOR_BYTES = VECTOR_BYTES // 2
#: Bytes that a GPU's memory and caches read and write at a time.
SECTOR_BYTES = 32
#: Rows of the panels of SDDMM and attention, and of attention's tall panels, which four warps share.
SCORE_ROWS, TALL_ROWS = _native.SCORE_PANEL_ROWS, _native.TALL_PANEL_ROWS
#: Columns of X at most where a warp of the csr kernel takes nonzeros side by side.
NARROW_WIDTH = _native.NARROW_WIDTH
#: 32-bit words in a row of the output of the native function gather_floor.
GATHER_FLOOR_WORDS = _native.GATHER_FLOOR_WORDS


def partial_width(width: int) -> int:
    """Returns the floats in a row of partial sums of `width` columns, with the kernels' padding."""
    return -(-width // _native.PARTIAL_COLUMNS) * _native.PARTIAL_COLUMNS
