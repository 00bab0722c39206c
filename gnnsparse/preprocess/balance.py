"""Load balance: work lists in which long rows, windows and panels are cut into parts.

The parts of a row write float32 partial sums to a workspace and a second kernel adds them in a fixed order,
so results do not depend on scheduling (no atomics).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from gnnsparse import _native
from gnnsparse.csr import Csr, address
from gnnsparse.errors import bad_value
from gnnsparse.formats import BlockedMatrix
from gnnsparse.tiles import PANEL_K_TILE, WINDOW_K_TILE

__all__ = ["WorkList", "cut_panels", "cut_rows", "cut_windows", "group_rows", "window_tiles"]

#: K tiles of a matrix in panels, which work lists and kernels count in 32 bits; this leaves them room.
_MOST_TILES = 2**28


@dataclass(frozen=True, eq=False)
class WorkList:
    """The work list of a kernel.

    Attributes:
        items: int32 [items, 4]: a row or window, the first nonzero (of the row) or K tile of the part, how
            many it has, and the place of its partial sum or -1; of panels see `cut_panels`.
        cuts: int32 [cut rows, windows or panels, 4]: which one, the place of its first partial sum, how
            many it has, 0.
        partials: number of partial sums.
        row_offsets: int32 [items, rows of a window or panel]: nonzeros of each row before the part (plain
            bitmaps of windows, and panels for SDDMM and attention, only).
        prefetch_distance: how many items ahead a warp asks L2 for what that item's warp reads first.
    """

    items: torch.Tensor
    cuts: torch.Tensor
    partials: int
    row_offsets: torch.Tensor | None = None
    prefetch_distance: int = 0

    @property
    def count(self) -> int:
        """Number of items."""
        return self.items.shape[0]

    def to(self, device: torch.device) -> WorkList:
        """The list on `device`."""
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


def cut_rows(csr: Csr, limit: int) -> WorkList:
    """Parts of the rows with more than `limit` nonzeros. Shorter rows are not listed."""
    degrees = csr.degrees
    long = (degrees > limit).nonzero().flatten()
    items, cuts, partials = _cut(degrees[long], limit)
    items[:, 0] = long[items[:, 0].long()].to(torch.int32)
    cuts[:, 0] = long[cuts[:, 0].long()].to(torch.int32)
    return WorkList(items, cuts, partials)


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


def window_tiles(blocked: BlockedMatrix) -> torch.Tensor:
    """K tiles of each window, int64 [windows]."""
    per_panel = (blocked.panel_ptr.diff() + WINDOW_K_TILE - 1) // WINDOW_K_TILE
    return per_panel.repeat_interleave(blocked.spec.panel // blocked.spec.window)


def cut_windows(blocked: BlockedMatrix, csr: Csr, limit: int) -> WorkList:
    """Parts of every window, of at most `limit` K tiles each."""
    items, cuts, partials = _cut(window_tiles(blocked), limit)
    if blocked.spec.stores_values:
        return WorkList(items, cuts, partials)
    offsets = _row_offsets(blocked, csr, items, blocked.spec.window, WINDOW_K_TILE)
    return WorkList(items, cuts, partials, offsets)


def cut_panels(
    blocked: BlockedMatrix, limit: int, csr: Csr | None = None, longest_first: bool = False,
    concurrent_panels: int = 0, prefetch_distance: int = 0,
) -> WorkList:  # fmt: skip
    """Parts of every panel in lane order, of at most `limit` K tiles each; with `csr` row_offsets too.

    An item is what a warp starts with, in one load: the first row, the first K tile counted over all panels,
    the number of K tiles, and the place of the partial sum; where there is none, -1 less the K tile that the
    warp starts with, which is 0 unless `concurrent_panels` share a sweep over X (see _first_tiles). With
    `longest_first` the longest come first, so that none is started last.
    """
    if blocked.slots >= PANEL_K_TILE * _MOST_TILES:
        most = PANEL_K_TILE * _MOST_TILES
        bad_value("graph", f"has {blocked.slots} column slots in panels; accepted: below {most}")
    items, cuts, partials = _cut(blocked.panel_ptr.diff() // PANEL_K_TILE, limit)
    offsets = None
    if csr is not None:
        offsets = _row_offsets(blocked, csr, items, blocked.spec.panel, PANEL_K_TILE)
    panel = items[:, 0].long()
    items[:, 1] += (blocked.panel_ptr[panel] // PANEL_K_TILE).to(torch.int32)
    items[:, 0] *= blocked.spec.panel
    if concurrent_panels:
        whole = items[:, 3] < 0
        first = -1 - _first_tiles(items, panel.numel(), concurrent_panels)
        items[:, 3] = torch.where(whole, first, items[:, 3])
    if longest_first:
        order = items[:, 2].argsort(descending=True, stable=True)
        items, offsets = items[order], None if offsets is None else offsets[order]
    return WorkList(items, cuts, partials, offsets, prefetch_distance)


def _first_tiles(items: torch.Tensor, panels: int, concurrent_panels: int) -> torch.Tensor:
    """With which of its K tiles each item starts, so that warps running together read the same columns.

    A panel's columns are sorted, so a warp that takes them in order sweeps over X. Warps start one after the
    other, and left alone each is somewhere else in X. Here the sweep is one for all `concurrent_panels`: as
    many K tiles as run in the time of a mean panel are a turn, an item's middle is due when half of its own
    have run, and it starts before that by half a sweep; K tiles before its first come last. int32 [items].
    """
    tiles = items[:, 2].double()
    mean = (tiles.sum() / max(panels, 1)).clamp(min=1)
    due = items[:, 1].double() / (mean * concurrent_panels) + tiles / (2 * mean) - 0.5
    first = ((due - due.floor()) * tiles).to(torch.int32)
    return torch.minimum(first, (items[:, 2] - 1).clamp(min=0))


def _row_offsets(
    blocked: BlockedMatrix, csr: Csr, items: torch.Tensor, height: int, k_tile: int
) -> torch.Tensor:
    """How many nonzeros of each of an item's `height` rows come before the item, int32 [items, height]."""
    offsets = torch.zeros(items.shape[0], height, dtype=torch.int64, device=items.device)
    later = (items[:, 1] > 0).nonzero().flatten()
    if later.numel():
        first_slot = blocked.panel_ptr[items[later, 0].long()] + k_tile * items[later, 1].long()
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
