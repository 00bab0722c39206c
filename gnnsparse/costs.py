"""Modelled times of gathers and of the panel kernel, from counts alone.

The constants were fitted to an H200's times of every kernel on published matrices and generated graphs
(docs/performance.md has the model's terms and how far it is off).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from gnnsparse import _native

__all__ = [
    "SLICE_BYTES", "STAGE", "PanelCosts", "PanelWork", "StageCounts", "gather_us", "panel_us", "pass_us",
]  # fmt: skip

#: Column slots of a K tile of the panel kernel, and bytes of a row of X in it.
STAGE = _native.PANEL_K_TILE
SLICE_BYTES = _native.ROW_SLICE_BYTES

#: Panels by their length: (stages, how many panels have so many), in rising order.
StageCounts = tuple[tuple[int, int], ...]

#: Rate at which random rows come out of L2, TB/s, by the bytes of X in use at a time; one H200.
_L2_RATES = (
    (0, 10.0), (45e6, 9.2), (60e6, 7.8), (90e6, 6.3), (120e6, 5.8), (240e6, 5.4), (640e6, 5.0),
)  # fmt: skip


def gather_us(size: float, in_use: float) -> float:
    """Microseconds to bring `size` bytes of rows of X out of L2, `in_use` bytes of X in use at a time."""
    rate = _L2_RATES[-1][1]
    for (small, fast), (large, slow) in pairwise(_L2_RATES):
        if in_use <= large:
            rate = fast + (slow - fast) * (in_use - small) / (large - small)
            break
    return size / rate / 1e6


def pass_us(size: float) -> float:
    """Microseconds of a pass over X that reads `size` bytes and writes as many."""
    return _PASS_US + 2 * size / _PASS_RATE / 1e6


@dataclass(frozen=True)
class PanelCosts:
    """What panels of one height cost, in microseconds.

    Attributes:
        gather: the gather's share in a stage, in that of the rate.
        warp, of_slice, of_stage: what the whole GPU is busy with a warp, each of its slices and each stage
            of these, beside the gather.
        wait, slice_wait, stage_wait: what one warp waits for at its start, for each of its slices and for
            each stage of these, alone on the GPU.
        again: part of the wait of a mean warp that each further round of warps adds.
    """

    gather: float
    warp: float
    of_slice: float
    of_stage: float
    wait: float
    slice_wait: float
    stage_wait: float
    again: float


@dataclass(frozen=True)
class PanelWork:
    """A product in panels.

    Attributes:
        height: rows of a panel.
        slots: column slots.
        panels: their lengths.
        slices: of 128 bytes that a row of X has.
        row_bytes: of a row of X.
        value_bytes: of stored values that are read for a column slot, each slice anew.
        x_rows: rows of X.
        at_once: panels that the GPU runs at a time.
    """

    height: int
    slots: int
    panels: StageCounts
    slices: int
    row_bytes: int
    value_bytes: float
    x_rows: int
    at_once: int


@dataclass(frozen=True)
class _Parts:
    """What becomes of panels that are cut."""

    count: int
    of_cut: int
    longest: int


def _cut(panels: StageCounts, limit: int) -> _Parts:
    count = of_cut = longest = 0
    for stages, times in panels:
        parts = max(1, -(-stages // limit))
        count += parts * times
        of_cut += parts * times if parts > 1 else 0
        longest = max(longest, -(-stages // parts))
    return _Parts(count, of_cut, longest)


def panel_us(work: PanelWork, costs: PanelCosts, slices: int, limit: int) -> float:
    """Microseconds of the panel kernel, whose warps take `slices` slices of at most `limit` stages each.

    Throughput, the longest warp and further rounds of warps are three bounds that a matrix is rarely near
    only one of, so they are added as powers. Sums of cut panels take a second kernel.
    """
    parts = _cut(work.panels, limit)
    warps = parts.count * -(-work.slices // slices)
    mean = work.slots / STAGE / max(parts.count, 1)
    in_use = work.x_rows * SLICE_BYTES * (1 + _MORE_IN_USE * (slices - 1))
    size = costs.gather * min(work.slices * SLICE_BYTES, work.row_bytes) + work.value_bytes * work.slices
    gather = gather_us(size * work.slots, in_use)
    busy = warps * (costs.warp + slices * (costs.of_slice + mean * costs.of_stage))
    throughput = max(gather, busy)

    def wait(stages: float) -> float:
        return costs.wait + slices * (costs.slice_wait + costs.stage_wait * stages)

    # Warps of one length end together, and a round that is not full takes as long as one that is.
    even = min(max(2 - parts.longest / max(mean, 1e-9), 0), 1)
    rounds = max(warps, 1) / work.at_once
    more = even * (math.ceil(rounds) - 1) + (1 - even) * max(rounds - 1, 0)
    total = _together(throughput, more * costs.again * wait(mean), wait(parts.longest))
    if parts.of_cut:
        total += _ADD_US + _ADD_PART_US * parts.of_cut * work.slices * work.height / 16
    return total


def _together(*times: float) -> float:
    return float(sum(time**_POWER for time in times) ** (1 / _POWER))


#: The kernel that adds up cut panels: its start, and each part of 16 rows and a slice.
_ADD_US, _ADD_PART_US = 1.62, 2.39e-3
#: How much more of X is in use for each further slice that a warp takes.
_MORE_IN_USE = 0.29
#: A pass over X: its start, and TB/s.
_PASS_US, _PASS_RATE = 1.5, 4.4
#: Power in which bounds are added.
_POWER = 1.389
