"""Modelled times of the kernels of products, from counts and a GPU's record.

A load holds what a plan makes of a problem, apart from any GPU: one plan's numbers, or arrays of many plans',
which the functions take alike. docs/performance.md has the model's terms and how far it is off;
docs/gpu-records.md says how the numbers of a record are found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnsparse.gpus.record import CsrRates, MemoryRates, PanelRates, PanelRow, PanelVariant
from gnnsparse.tiles import PANEL_K_TILE, SLICE_BYTES

__all__ = ["CsrLoad", "PanelLoad", "PanelWork", "TileCounts", "csr_us", "gather_us", "panel_us", "pass_us"]

#: Panels by their length: (K tiles, how many panels have so many), in rising order.
TileCounts = tuple[tuple[int, int], ...]

#: Nonzeros that the csr kernel has in flight.
_BATCH = 8


def gather_us(memory: MemoryRates, size: Any, in_use: Any) -> Any:
    """Microseconds to bring `size` bytes of rows of X out of L2, `in_use` bytes of X in use at a time."""
    sizes, rates = zip(*memory.l2, strict=True)
    return size / np.interp(in_use, sizes, rates) / 1e6


def pass_us(memory: MemoryRates, size: Any) -> Any:
    """Microseconds of a pass over X that reads `size` bytes and writes as many."""
    return memory.pass_start_us + 2 * size / memory.pass_tbs / 1e6


@dataclass(frozen=True)
class CsrLoad:
    """A product by the csr kernel.

    Attributes:
        rows: of the matrix.
        slices: slices of 128 bytes of a row of X.
        gathered: bytes of rows of X that are read, once for each nonzero.
        in_use: bytes of X that are in use at a time.
        once: bytes of a pass that reads X and writes the result.
        longest: nonzeros that a lane of the longest warp takes.
    """

    rows: Any
    slices: Any
    gathered: Any
    in_use: Any
    once: Any
    longest: Any


def csr_us(
    load: CsrLoad, memory: MemoryRates, rates: CsrRates, arithmetic: str, grouped: bool, op: str
) -> Any:
    """Microseconds of the csr kernel: the most of throughput, a pass over the operands, and the longest warp.

    Args:
        load: what the plan makes of the problem.
        memory, rates: of the GPU's record.
        arithmetic: "half", "tf32" or "fp32".
        grouped: whether rows go in groups.
        op: "spmm" or "sddmm".
    """
    of_rate = (rates.group_gather if grouped else rates.row_gather)[arithmetic]
    row = rates.group_row_us if grouped else rates.row_us + load.slices * rates.slice_us
    total = of_rate * gather_us(memory, load.gathered, load.in_use) + load.rows * row
    total = total * (rates.sddmm if op == "sddmm" else 1.0)
    wait = rates.start_us + load.longest / _BATCH * rates.batch_us
    return np.maximum(np.maximum(total, pass_us(memory, load.once)), wait)


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
class PanelLoad:
    """A product by the panel kernel.

    Attributes:
        height: rows of a panel.
        slots: column slots.
        slices: slices of a row of X; `taken`: those that a warp takes one after the other.
        gathered: bytes of a row of X that are read for a column slot; `value_bytes`: of stored values
            beside it.
        x_rows: rows of X.
        warps: warps in all.
        mean, longest: K tiles of the mean and of the longest part of a panel.
        of_cut: parts of panels that are cut.
        rounds: how often the GPU is filled with warps.
        prescale: bytes of the pass over X before the product; 0: there is none.
    """

    height: Any
    slots: Any
    slices: Any
    taken: Any
    gathered: Any
    value_bytes: Any
    x_rows: Any
    warps: Any
    mean: Any
    longest: Any
    of_cut: Any
    rounds: Any
    prescale: Any

    @classmethod
    def of(cls, work: PanelWork, slices: int, tile_limit: int, prescale: float = 0.0) -> PanelLoad:
        """The load of a plan.

        Args:
            work: the product.
            slices: slices of X that a warp takes one after the other.
            tile_limit: K tiles that a part of a panel has at most.
            prescale: bytes of X where it is weighed or rounded first, else 0.
        """
        count = of_cut = longest = 0
        for tiles, times in work.panels:
            parts = max(1, -(-tiles // tile_limit))
            count += parts * times
            of_cut += parts * times if parts > 1 else 0
            longest = max(longest, -(-tiles // parts))
        warps = count * -(-work.slices // slices)
        return cls(
            work.height, work.slots, work.slices, slices, min(work.slices * SLICE_BYTES, work.row_bytes),
            work.value_bytes * work.slices, work.x_rows, warps, work.slots / PANEL_K_TILE / max(count, 1),
            longest, of_cut, max(warps, 1) / work.concurrent_panels, prescale,
        )  # fmt: skip


def panel_us(
    load: PanelLoad, memory: MemoryRates, rates: PanelRates, row: PanelRow, variant: PanelVariant
) -> Any:
    """Microseconds of the panel kernel.

    Throughput, the longest warp and further rounds of warps are three bounds that a matrix is rarely near
    only one of, so they are added as powers. Sums of cut panels take a second kernel.

    Args:
        load: what the plan makes of the problem.
        memory, rates, row, variant: of the GPU's record; `row` of the height, `variant` of the arithmetic.
    """
    in_use = load.x_rows * SLICE_BYTES * (1 + rates.slice_in_use * (load.taken - 1))
    size = variant.gather * load.gathered + load.value_bytes
    gather = gather_us(memory, size * load.slots, in_use)
    tiles = row.slice_us + load.mean * row.tile_us
    busy = load.warps * variant.busy * (row.warp_us + load.taken * tiles)
    mean_wait, longest_wait = (
        row.wait_us + load.taken * (row.slice_wait_us + row.tile_wait_us * of)
        for of in (load.mean, load.longest)
    )
    # Warps of one length end together, and a round that is not full takes as long as one that is.
    even = np.clip(2 - load.longest / np.maximum(load.mean, 1e-9), 0, 1)
    more = even * (np.ceil(load.rounds) - 1) + (1 - even) * np.maximum(load.rounds - 1, 0)
    bounds = (np.maximum(gather, busy), more * row.round * mean_wait, longest_wait)
    total = sum(bound**rates.power for bound in bounds) ** (1 / rates.power)
    add = rates.add_us + rates.add_part_us * load.of_cut * load.slices * load.height / 16
    before = pass_us(memory, load.prescale)
    return total + np.where(load.of_cut > 0, add, 0.0) + np.where(load.prescale > 0, before, 0.0)
