"""Load balance: long rows and windows are cut into segments whose sums are added in order.

A cut row's segments write float32 partial sums to a workspace and a second kernel adds them in a
fixed order, so results do not depend on scheduling (no atomics).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from gnnsparse import _native
from gnnsparse.costs import STAGE
from gnnsparse.csr import Csr, address
from gnnsparse.errors import bad_value
from gnnsparse.formats import BlockedMatrix

__all__ = [
    "ATTENTION_PREFETCH",
    "SPMM_PREFETCH",
    "STEP",
    "Segments",
    "cut_panels",
    "cut_rows",
    "cut_windows",
    "group_rows",
    "window_steps",
]

#: Column slots that a warp of the window kernels consumes at a time .
STEP = _native.WINDOW_K_TILE
#: How many places ahead a block of the panel kernels prefetches (native WorkList::prefetch_distance): half of
#: the blocks that run at a time on an H200, 12 and 8 a multiprocessor.
SPMM_PREFETCH, ATTENTION_PREFETCH = 132 * 12, 132 * 8
#: Stages of a matrix in panels, which work lists and kernels count in 32 bits; this leaves them room.
_MOST_STAGES = 2**28


@dataclass(frozen=True, eq=False)
class Segments:
    """The work list of a kernel.

    Attributes:
        items: int32 [segments, 4]: row or window, first nonzero (of the row) or step, number of
            them, place of the partial sum or -1.
        cuts: int32 [cut rows or windows, 4]: row or window, place of its first partial sum, number
            of them, 0.
        partials: number of partial sums.
        row_offsets: int32 [segments, window or panel]: nonzeros of each row before the segment
            (windows of plain bitmaps, and panels for SDDMM and attention, only).
        prefetch_distance: a block asks L2 for what the block so many places after it reads first.
    """

    items: torch.Tensor
    cuts: torch.Tensor
    partials: int
    row_offsets: torch.Tensor | None = None
    prefetch_distance: int = 0

    @property
    def count(self) -> int:
        """Number of segments."""
        return self.items.shape[0]

    def to(self, device: torch.device) -> Segments:
        """The same list on `device`."""
        offsets = None if self.row_offsets is None else self.row_offsets.to(device)
        return replace(self, items=self.items.to(device), cuts=self.cuts.to(device), row_offsets=offsets)

    @cached_property
    def view(self) -> _native.WorkList:
        """The native handle."""
        return _native.WorkList(
            address(self.items), self.count, address(self.row_offsets), address(self.cuts),
            self.cuts.shape[0], self.partials, self.prefetch_distance,
        )  # fmt: skip


def _cut(work: torch.Tensor, limit: int) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Cuts each item's `work` into equal parts of at most `limit`; items without work keep one."""
    device = work.device
    parts = ((work + limit - 1) // limit).clamp(min=1)
    length = (work + parts - 1) // parts
    item = torch.repeat_interleave(torch.arange(work.numel(), device=device), parts)
    first_part = parts.cumsum(0) - parts
    begin = (torch.arange(item.numel(), device=device) - first_part[item]) * length[item]
    count = torch.minimum(work[item] - begin, length[item]).clamp(min=0)
    is_cut = parts[item] > 1
    place = torch.where(is_cut, is_cut.cumsum(0) - 1, -1)
    items = torch.stack([item, begin, count, place], dim=1).to(torch.int32)
    cut = (parts > 1).nonzero().flatten()
    first_place = place[first_part[cut]]
    cuts = torch.stack([cut, first_place, parts[cut], torch.zeros_like(cut)], dim=1).to(torch.int32)
    return items.contiguous(), cuts.contiguous(), int(is_cut.sum())


def cut_rows(csr: Csr, limit: int) -> Segments:
    """Segments of the rows with more than `limit` nonzeros. Shorter rows are not listed."""
    degrees = csr.degrees
    long = (degrees > limit).nonzero().flatten()
    items, cuts, partials = _cut(degrees[long], limit)
    items[:, 0] = long[items[:, 0].long()].to(torch.int32)
    cuts[:, 0] = long[cuts[:, 0].long()].to(torch.int32)
    return Segments(items, cuts, partials)


def group_rows(csr: Csr, size: int, limit: int) -> torch.Tensor:
    """First rows of groups of neighbouring rows with about `size` nonzeros, int32 [groups + 1].

    A row counts as two nonzeros more, for what it costs to store. Rows with more than `limit`
    nonzeros, which cut_rows cuts, are groups of their own.
    """
    if csr.rows == 0:
        return torch.zeros(1, dtype=torch.int32, device=csr.device)
    work = csr.indptr[:-1] + 2 * torch.arange(csr.rows, device=csr.device)
    block, long = work // size, csr.degrees > limit
    starts = torch.ones(csr.rows, dtype=torch.bool, device=csr.device)
    starts[1:] = (block[1:] != block[:-1]) | long[1:] | long[:-1]
    end = torch.tensor([csr.rows], device=csr.device)
    return torch.cat([starts.nonzero().flatten(), end]).to(torch.int32)


def window_steps(blocked: BlockedMatrix) -> torch.Tensor:
    """Steps of each window, int64 [windows]."""
    per_panel = (blocked.panel_ptr.diff() + STEP - 1) // STEP
    return per_panel.repeat_interleave(blocked.spec.panel // blocked.spec.window)


def cut_windows(blocked: BlockedMatrix, csr: Csr, limit: int) -> Segments:
    """Segments of every window, of at most `limit` steps each."""
    items, cuts, partials = _cut(window_steps(blocked), limit)
    segments = Segments(items, cuts, partials)
    if blocked.spec.stores_values:
        return segments
    return replace(segments, row_offsets=_row_offsets(blocked, csr, items, blocked.spec.window, STEP))


def cut_panels(
    blocked: BlockedMatrix, limit: int, csr: Csr | None = None, longest_first: bool = False, at_once: int = 0,
    prefetch_distance: int = 0,
) -> Segments:  # fmt: skip
    """Segments of every panel in lane order, of at most `limit` stages each; with `csr` row_offsets too.

    With `longest_first` the longest come first, so that none is started last. Its items are what a
    warp starts with, in one load: first row, first stage counted over all panels, number of stages,
    place of the partial sum; where there is none, -1 less the stage that the warp starts with, which
    is 0 unless panels run `at_once` (see _first_stages).
    """
    if blocked.slots >= STAGE * _MOST_STAGES:
        bad_value(
            "graph", f"has {blocked.slots} column slots in panels; accepted: below {STAGE * _MOST_STAGES}"
        )
    items, cuts, partials = _cut(blocked.panel_ptr.diff() // STAGE, limit)
    offsets = None if csr is None else _row_offsets(blocked, csr, items, blocked.spec.panel, STAGE)
    panel = items[:, 0].long()
    items[:, 1] += (blocked.panel_ptr[panel] // STAGE).to(torch.int32)
    items[:, 0] *= blocked.spec.panel
    if at_once:
        whole = items[:, 3] < 0
        items[:, 3] = torch.where(whole, -1 - _first_stages(items, panel.numel(), at_once), items[:, 3])
    if longest_first:
        order = items[:, 2].argsort(descending=True, stable=True)
        items, offsets = items[order], None if offsets is None else offsets[order]
    return Segments(items, cuts, partials, offsets, prefetch_distance)


def _first_stages(items: torch.Tensor, panels: int, at_once: int) -> torch.Tensor:
    """With which of its stages each item starts, so that `at_once` of them read the same columns, int32.

    A panel's columns are sorted, so a warp that takes them in order sweeps over X. Warps start one after the
    other, and left alone each is somewhere else in X. Here the sweep is one for all: as many stages as
    run in the time of a mean panel are a turn, an item's middle is due when half of its own have run,
    and it starts before that by half a sweep; stages before its first come last.
    """
    stages = items[:, 2].double()
    mean = (stages.sum() / max(panels, 1)).clamp(min=1)
    due = items[:, 1].double() / (mean * at_once) + stages / (2 * mean) - 0.5
    first = ((due - due.floor()) * stages).to(torch.int32)
    return torch.minimum(first, (items[:, 2] - 1).clamp(min=0))


def _row_offsets(
    blocked: BlockedMatrix, csr: Csr, items: torch.Tensor, height: int, step: int
) -> torch.Tensor:
    """How many nonzeros of each of a segment's `height` rows come before the segment."""
    offsets = torch.zeros(items.shape[0], height, dtype=torch.int64, device=items.device)
    later = (items[:, 1] > 0).nonzero().flatten()
    if later.numel():
        first_slot = blocked.panel_ptr[items[later, 0].long()] + step * items[later, 1].long()
        column = blocked.columns[first_slot][:, None]
        rows = items[later, 0].long()[:, None] * height + torch.arange(height, device=items.device)
        begin = csr.indptr[rows.clamp(max=csr.rows)]
        end = csr.indptr[(rows + 1).clamp(max=csr.rows)]
        offsets[later] = _lower_bound(csr.indices, begin, end, column) - begin
    return offsets.to(torch.int32)


def _lower_bound(
    values: torch.Tensor, begin: torch.Tensor, end: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    """First position in each sorted range [begin, end) of `values` that is not below `target`."""
    low, high = begin.clone(), end.clone()
    while bool((low < high).any()):
        middle = (low + high) // 2
        below = (values[middle.clamp(max=values.numel() - 1)] < target) & (low < high)
        low = torch.where(below, middle + 1, low)
        high = torch.where(below, high, torch.minimum(middle, high))
    return low
