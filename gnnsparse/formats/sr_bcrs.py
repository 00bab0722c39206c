"""SR-BCRS (Magicube), the baseline of FlashSparse's table 7: ME-BCRS with windows padded to whole blocks.

This file is all that a format takes: its parameters, what it can compute, and its paper's formula of bytes.
"""

from __future__ import annotations

from dataclasses import replace

from gnnsparse.formats.blocked import BlockedMatrix
from gnnsparse.formats.registry import register_preset
from gnnsparse.formats.spec import FormatSpec
from gnnsparse.precision import Precision


def _blocks_of_32_bits(spec: FormatSpec, precision: Precision, density: float) -> FormatSpec:
    """Blocks as wide as those of ME-BCRS: 8 columns at 16 bits and 4 at 32 (FlashSparse, section 3.3)."""
    return replace(spec, block=4, brick=4, pad=4) if precision.storage.itemsize == 4 else spec


def _bytes(matrix: BlockedMatrix) -> int:
    """Compute the bytes: two pointers for each window (FlashSparse, section 3.5), and padded vectors."""
    value = 0 if matrix.values is None else matrix.values.itemsize
    return 2 * 4 * matrix.panels + (4 + matrix.spec.window * value) * matrix.slots


register_preset(
    FormatSpec("sr-bcrs", window=8, panel=8, block=8, brick=8, encoding="dense", pad=8),
    source="FlashSparse, table 7",
    adapt=_blocks_of_32_bits,
    added=(Precision.BF16,),
    paper_bytes=_bytes,
)
