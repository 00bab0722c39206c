"""Modelled times of gathers and of the panel kernel, from counts and a GPU's record.

docs/performance.md has the model's terms and how far it is off; docs/gpu-records.md says how the numbers
of a record are found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from gnnsparse.gpus.record import MemoryRates, PanelRates, PanelRow, PanelVariant
from gnnsparse.tiles import PANEL_K_TILE, SLICE_BYTES

__all__ = ["PanelWork", "TileCounts", "gather_us", "panel_us", "pass_us"]

#: Panels by their length: (K tiles, how many panels have so many), in rising order.
TileCounts = tuple[tuple[int, int], ...]


def gather_us(memory: MemoryRates, size: float, in_use: float) -> float:
    """Microseconds to bring `size` bytes of rows of X out of L2, `in_use` bytes of X in use at a time."""
    rate = memory.l2[-1][1]
    for (small, fast), (large, slow) in pairwise(memory.l2):
        if in_use <= large:
            rate = fast + (slow - fast) * (in_use - small) / (large - small)
            break
    return size / rate / 1e6


def pass_us(memory: MemoryRates, size: float) -> float:
    """Microseconds of a pass over X that reads `size` bytes and writes as many."""
    return memory.pass_start_us + 2 * size / memory.pass_tbs / 1e6


@dataclass(frozen=True)
class PanelWork:
    """A product in panels.

    Attributes:
        height: rows of a panel.
        slots: column slots.
        panels: their lengths.
        slices: slices of 128 bytes that a row of X has.
        row_bytes: bytes of a row of X.
        value_bytes: bytes of stored values that are read for a column slot, again for each slice.
        x_rows: rows of X.
        concurrent_panels: panels that the GPU runs at a time.
    """

    height: int
    slots: int
    panels: TileCounts
    slices: int
    row_bytes: int
    value_bytes: float
    x_rows: int
    concurrent_panels: int


@dataclass(frozen=True)
class _Parts:
    """What becomes of panels that are cut: parts in all, parts of cut panels, K tiles of the longest part."""

    count: int
    of_cut: int
    longest: int


def _cut(panels: TileCounts, limit: int) -> _Parts:
    count = of_cut = longest = 0
    for tiles, times in panels:
        parts = max(1, -(-tiles // limit))
        count += parts * times
        of_cut += parts * times if parts > 1 else 0
        longest = max(longest, -(-tiles // parts))
    return _Parts(count, of_cut, longest)


def panel_us(
    work: PanelWork, memory: MemoryRates, rates: PanelRates, row: PanelRow, variant: PanelVariant,
    slices: int, tile_limit: int,
) -> float:  # fmt: skip
    """Microseconds of the panel kernel.

    Throughput, the longest warp and further rounds of warps are three bounds that a matrix is rarely near
    only one of, so they are added as powers. Sums of cut panels take a second kernel.

    Args:
        work: the product.
        memory, rates, row, variant: of the GPU's record; `row` of the height, `variant` of the arithmetic.
        slices: slices of X that a warp takes one after the other.
        tile_limit: K tiles that a part of a panel has at most.
    """
    parts = _cut(work.panels, tile_limit)
    warps = parts.count * -(-work.slices // slices)
    mean = work.slots / PANEL_K_TILE / max(parts.count, 1)
    in_use = work.x_rows * SLICE_BYTES * (1 + rates.slice_in_use * (slices - 1))
    size = variant.gather * min(work.slices * SLICE_BYTES, work.row_bytes) + work.value_bytes * work.slices
    gather = gather_us(memory, size * work.slots, in_use)
    busy = warps * variant.busy * (row.warp_us + slices * (row.slice_us + mean * row.tile_us))
    throughput = max(gather, busy)

    def wait(tiles: float) -> float:
        return row.wait_us + slices * (row.slice_wait_us + row.tile_wait_us * tiles)

    # Warps of one length end together, and a round that is not full takes as long as one that is.
    even = min(max(2 - parts.longest / max(mean, 1e-9), 0), 1)
    rounds = max(warps, 1) / work.concurrent_panels
    more = even * (math.ceil(rounds) - 1) + (1 - even) * max(rounds - 1, 0)
    bounds = (throughput, more * row.round * wait(mean), wait(parts.longest))
    total = float(sum(bound**rates.power for bound in bounds) ** (1 / rates.power))
    if parts.of_cut:
        total += rates.add_us + rates.add_part_us * parts.of_cut * work.slices * work.height / 16
    return total
