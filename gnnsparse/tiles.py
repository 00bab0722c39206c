"""Tile sizes that the kernels are compiled with."""

from __future__ import annotations

__all__ = ["GATHER_FLOOR_WORDS", "PANEL_K_TILE", "SLICE_BYTES", "VECTOR_BYTES", "WINDOW_K_TILE"]

#: Column slots in a K tile of the panel kernels, and in one of the window kernels.
PANEL_K_TILE, WINDOW_K_TILE = 32, 16
#: Bytes of a row of X that a warp of the panel kernels multiplies at a time (a slice).
SLICE_BYTES = 128
#: Bytes that a lane loads with one instruction; rows of dense operands are padded to a multiple of it.
VECTOR_BYTES = 16
#: 32-bit words in a row of the output of the native function gather_floor.
GATHER_FLOOR_WORDS = 1024
