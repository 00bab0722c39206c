"""Modelled times of the kernels of SpMM and SDDMM, computed from counts and a GPU's record.

A load holds the quantities of a problem and a plan that do not depend on the GPU. Its fields are numbers, or
arrays with one element for each of many plans; every function accepts both. notes/log.md explains the
model's terms and how far it is off; notes/gpu-records.md says how the numbers of a record are found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gnnsparse.plan.gpu_records.record import CsrRates, MemoryRates, PanelRates, PanelRow, PanelVariant
from gnnsparse.runtime.device import PANEL_K_TILE, SECTOR_BYTES, SLICE_BYTES

#: Lengths of panels: pairs (K tiles, number of panels with that many K tiles), in rising order.
TileCounts = tuple[tuple[int, int], ...]

#: Nonzeros whose rows of X a lane of the csr kernel loads before it uses them.
BATCH = 8


def gather_us(memory: MemoryRates, size: Any, in_use: Any) -> Any:
    """Return the microseconds of reading `size` bytes of random rows of X from `in_use` bytes of it."""
    sizes, rates = zip(*memory.l2, strict=True)
    return size / np.interp(in_use, sizes, rates) / 1e6


def pass_us(memory: MemoryRates, size: Any) -> Any:
    """Return the microseconds of a pass over X that reads `size` bytes and writes as many."""
    return memory.pass_start_us + 2 * size / memory.pass_tbs / 1e6


@dataclass(frozen=True)
class CsrLoad:
    """The load of the csr kernel.

    `shifted` is what shifting results to whole vectors of memory costs: 0 where their rows begin there; else
    1 of float32, 2 of 16 bits, or 0.5 where rows are so short that they leave element by element.
    """

    rows: Any
    nnz: Any
    near: Any  # nonzeros near the diagonal, whose rows of X neighbouring rows of A read, too
    slices: Any  # bytes of a row of X, divided by the 128 bytes of a slice; need not be whole
    in_use: Any  # bytes of the part of X that running warps read from
    pass_bytes: Any  # mean of the bytes of X and of the result
    longest: Any  # nonzeros that a lane of the longest warp computes
    shifted: Any = 0


def csr_us(
    load: CsrLoad, memory: MemoryRates, rates: CsrRates, arithmetic: str, grouped: bool, op: str
) -> Any:
    """Return the csr kernel's microseconds: the largest of throughput, dense reads and longest warp."""
    gather_factor = (rates.group_gather if grouped else rates.row_gather)[arithmetic]
    row = (rates.group_row_us if grouped else rates.row_us) + load.slices * rates.slice_us
    # Shifting takes as long as the row's slices and one more again (notes/log.md).
    row = row + load.shifted * (load.slices + 1) * rates.slice_us
    gathered = SLICE_BYTES * load.slices * (load.nnz - (1 - rates.near) * load.near)
    total = gather_factor * gather_us(memory, gathered, load.in_use)
    total = total + load.rows * row + load.nnz * rates.nnz_us
    total = total * (rates.sddmm if op == "sddmm" else 1.0)
    wait = rates.start_us + load.longest / BATCH * rates.batch_us
    return np.maximum(np.maximum(total, pass_us(memory, load.pass_bytes)), wait)


def narrow_us(load: CsrLoad, memory: MemoryRates, rates: CsrRates, width: int) -> Any:
    """Return the microseconds of a `narrow` plan for an X of `width` columns."""
    gathered = SECTOR_BYTES * (1 + width) / 2 * load.nnz
    return rates.start_us + gather_us(memory, gathered, load.in_use)


def panel_variant(row: PanelRow, name: str) -> PanelVariant:
    """Return the costs of an arithmetic and storage; where the row lacks them, as PanelRow says."""
    arithmetic = name.removesuffix("_stored")
    found = row.variants[next(n for n in (name, arithmetic, "half") if n in row.variants)]
    if name in row.variants or name == arithmetic or "half_stored" not in row.variants:
        return found
    # Bytes of values are part of the load. The rest of what storing them adds is taken from 16 bits.
    ratio = row.variants["half_stored"].busy / row.variants["half"].busy
    return PanelVariant(found.gather, found.busy * max(ratio, 1.0))


@dataclass(frozen=True)
class PanelWork:
    """A problem in panels of one height; `slots`, `slices`, `panels` (their lengths) as in a Problem."""

    height: int
    slots: int
    panels: TileCounts
    slices: int
    row_bytes: int  # that reading a row of X moves
    value_bytes: float  # of stored values, which are read for a column slot, again for each slice
    x_rows: int
    concurrent_panels: int  # that the GPU runs at a time


@dataclass(frozen=True)
class PanelLoad:
    """The load of the panel kernel; fields without a comment are those of the work."""

    height: Any
    slots: Any
    slices: Any
    taken: Any  # slices that a warp computes one after the other
    gathered: Any  # bytes of a row of X, which are read for each column slot
    value_bytes: Any  # of stored values that are read for each column slot, for all slices
    x_rows: Any
    warps: Any
    mean: Any  # K tiles of the mean part of a panel, and of the longest
    longest: Any
    cut_parts: Any  # number of parts of the panels that are cut
    rounds: Any  # number of warps over the number that the GPU runs at a time
    prescale: Any  # bytes that a pass over X before the product reads; 0: there is no such pass

    @classmethod
    def of(cls, work: PanelWork, slices: int, tile_limit: int, prescale: float = 0.0) -> PanelLoad:
        """Compute the load of warps that take `slices` slices of parts of at most `tile_limit` K tiles."""
        count = cut_parts = longest = 0
        for tiles, times in work.panels:
            parts = max(1, -(-tiles // tile_limit))
            count += parts * times
            cut_parts += parts * times if parts > 1 else 0
            longest = max(longest, -(-tiles // parts))
        warps = count * -(-work.slices // slices)
        return cls(
            work.height, work.slots, work.slices, slices, min(work.slices * SLICE_BYTES, work.row_bytes),
            work.value_bytes * work.slices, work.x_rows, warps, work.slots / PANEL_K_TILE / max(count, 1),
            longest, cut_parts, max(warps, 1) / work.concurrent_panels, prescale,
        )  # fmt: skip


def panel_us(
    load: PanelLoad, memory: MemoryRates, rates: PanelRates, row: PanelRow, variant: PanelVariant
) -> Any:
    """Return the microseconds of the panel kernel, by the costs of its height and arithmetic."""
    in_use = load.x_rows * SLICE_BYTES * (1 + rates.slice_in_use * (load.taken - 1))
    size = variant.gather * load.gathered + load.value_bytes
    gather = gather_us(memory, size * load.slots, in_use)
    tiles = row.slice_us + load.mean * row.tile_us
    busy = load.warps * variant.busy * (row.warp_us + load.taken * tiles)
    mean_wait, longest_wait = (
        row.wait_us + load.taken * (row.slice_wait_us + row.tile_wait_us * of)
        for of in (load.mean, load.longest)
    )
    # If all warps are of one length they end together, and a round that is not full takes as long as a full
    # one. If lengths differ, warps of the next round start earlier.
    even = np.clip(2 - load.longest / np.maximum(load.mean, 1e-9), 0, 1)
    more = even * (np.ceil(load.rounds) - 1) + (1 - even) * np.maximum(load.rounds - 1, 0)
    bounds = (np.maximum(gather, busy), more * row.round * mean_wait, longest_wait)
    total = sum(bound**rates.power for bound in bounds) ** (1 / rates.power)
    add = rates.add_us + rates.add_part_us * load.cut_parts * load.slices * load.height / 16
    before = pass_us(memory, load.prescale)
    return total + np.where(load.cut_parts > 0, add, 0.0) + np.where(load.prescale > 0, before, 0.0)
