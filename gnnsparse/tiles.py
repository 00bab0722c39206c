"""Sizes that the kernels are compiled with, as the native module exports them."""

from __future__ import annotations

from gnnsparse import _native

__all__ = [
    "GATHER_FLOOR_WORDS", "PANEL_K_TILE", "SCORE_ROWS", "SLICE_BYTES", "TALL_ROWS", "VECTOR_BYTES",
    "WINDOW_K_TILE", "partial_width",
]  # fmt: skip

#: Column slots of a K tile of the panel kernels, and of the window kernels.
PANEL_K_TILE, WINDOW_K_TILE = _native.PANEL_K_TILE, _native.WINDOW_K_TILE
#: Bytes of a row of X that a warp of the panel kernels takes at a time.
SLICE_BYTES = _native.ROW_SLICE_BYTES
#: Bytes that a lane loads at a time; rows of dense operands are padded to whole vectors.
VECTOR_BYTES = _native.VECTOR_BYTES
#: Rows of the panels of SDDMM and attention, and of the tall ones, which four warps of attention share.
SCORE_ROWS, TALL_ROWS = _native.SCORE_PANEL_ROWS, _native.TALL_PANEL_ROWS
#: 32-bit words of a row of what the native gather_floor writes.
GATHER_FLOOR_WORDS = _native.GATHER_FLOOR_WORDS


def partial_width(width: int) -> int:
    """Floats of a row of partial sums of `width` columns, which the kernels pad."""
    return -(-width // _native.PARTIAL_COLUMNS) * _native.PARTIAL_COLUMNS
