"""Sizes that the kernels are compiled with."""

from __future__ import annotations

__all__ = ["GATHER_FLOOR_WORDS", "PANEL_K_TILE", "SLICE_BYTES", "VECTOR_BYTES", "WINDOW_K_TILE"]

#: Column slots of a K tile of the panel kernels, and of the window kernels.
PANEL_K_TILE, WINDOW_K_TILE = 32, 16
#: Bytes of a row of X that a warp of the panel kernels takes at a time.
SLICE_BYTES = 128
#: Bytes that a lane loads at a time; rows of dense operands are padded to whole vectors.
VECTOR_BYTES = 16
#: 32-bit words of a row of what the native gather_floor writes.
GATHER_FLOOR_WORDS = 1024
