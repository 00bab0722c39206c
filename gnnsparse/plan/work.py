"""Load balance: work lists, in which long rows, windows and panels are cut into parts.

The parts of a row write float32 partial sums to a workspace, and a second kernel adds them in a fixed order.
No kernel uses atomics, so results do not depend on scheduling.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_value
from gnnsparse.formats import BlockedMatrix
from gnnsparse.formats.csr import Csr
from gnnsparse.runtime.device import PANEL_K_TILE, WINDOW_K_TILE
from gnnsparse.runtime.memo import cached_property

#: Bound on the K tiles of a matrix in panels, which work lists and kernels count in 32 bits.
_MOST_TILES = 2**28
#: Rows that are taken side by side by their lengths: neighbours, whose columns are likelier to be in L2. Rows
#: of _LONG_ROW nonzeros or more, and of as many times the mean, come first, or the last would be waited for.
_NEAR_ROWS, _LONG_ROW, _MEANS_OF_LONG = 512, 32, 3


@dataclass(frozen=True, eq=False)
class WorkList:
    """The work list of a kernel: parts of rows, windows or panels, of which each warp or block computes one.

    `items` int32 [items, 4]: the index of the row or window, the part's first nonzero (counted in the row) or
    K tile (in the window), their number, and the place of the part's partial sum, -1 if the row or window is
    not cut. For panels see `cut_panels`. `cuts` int32 [cut rows, windows or panels, 4]: its index, its first
    partial sum, their number, and 0. `row_offsets` int32 [items, rows of a window or panel]: nonzeros of each
    row before the part, for windows in plain bitmaps, and for panels in SDDMM and attention.
    """

    items: torch.Tensor
    cuts: torch.Tensor
    partials: int
    row_offsets: torch.Tensor | None = None
    prefetch_distance: int = 0  # a warp prefetches to L2 what the item this many further on reads first

    @cached_property
    def view(self) -> _native.WorkList:
        """The handle of the list for native functions."""
        return _native.WorkList(
            self.items, self.cuts, self.partials, self.row_offsets, self.prefetch_distance
        )


def _cut(
    work: torch.Tensor, parts: torch.Tensor, even: bool = False
) -> tuple[torch.Tensor, torch.Tensor, int]:
    """Cut rows, windows or panels of `work` nonzeros or K tiles, int64 [n], into `parts` parts each.

    Parts have the same length but for the last, from `limited_parts`; with `even` lengths differ by at most
    1. Returns `items`, `cuts` and `partials` of a WorkList.
    """
    device = work.device
    item = torch.repeat_interleave(torch.arange(work.numel(), device=device), parts)
    first_part = parts.cumsum(0) - parts
    part = torch.arange(item.numel(), device=device) - first_part[item]
    if even:
        begin = part * work[item] // parts[item]
        count = (part + 1) * work[item] // parts[item] - begin
    else:
        length = (work + parts - 1) // parts
        begin = part * length[item]
        count = torch.minimum(work[item] - begin, length[item]).clamp(min=0)
    is_cut = parts[item] > 1
    place = torch.where(is_cut, is_cut.cumsum(0) - 1, -1)
    items = torch.stack([item, begin, count, place], dim=1).to(torch.int32)
    cut = (parts > 1).nonzero().flatten()
    first_place = place[first_part[cut]]
    cuts = torch.stack([cut, first_place, parts[cut], torch.zeros_like(cut)], dim=1).to(torch.int32)
    return items.contiguous(), cuts.contiguous(), int(is_cut.sum())


def cut_rows(csr: Csr, limit: int) -> WorkList:
    """Make the work list of the rows with more than `limit` nonzeros; kernels find shorter ones by index."""
    degrees = csr.degrees
    long = (degrees > limit).nonzero().flatten()
    items, cuts, partials = _cut(degrees[long], limited_parts(degrees[long], limit))
    items[:, 0] = long[items[:, 0].long()].to(torch.int32)
    cuts[:, 0] = long[cuts[:, 0].long()].to(torch.int32)
    return WorkList(items, cuts, partials)


class RowEntries(NamedTuple):
    """Rows and parts of long ones in the order in which kernels of graph attention take them.

    `entries` int32 [entries, 4] are structs GraphEntry of native/include: the first nonzero in 64 bits, their
    number, and the row in the caller's numbering. The first `partials` are parts; `cuts` are a WorkList's,
    with the caller's rows.
    """

    entries: torch.Tensor
    cuts: torch.Tensor
    partials: int


def row_entries(csr: Csr, limit: int, row_ids: torch.Tensor | None) -> RowEntries:
    """Cut rows of more than `limit` nonzeros, and put the parts first, then long rows, then near ones."""
    work, degrees, begin = cut_rows(csr, limit), csr.degrees.long(), csr.indptr[:-1].long()
    item, first, count, _ = work.items.long().unbind(1)
    row = torch.arange(csr.rows, device=csr.device)
    long = max(_LONG_ROW, _MEANS_OF_LONG * csr.nnz // max(csr.rows, 1))
    window = torch.where(degrees < long, row // _NEAR_ROWS + 1, 0)
    order = torch.argsort((window + 1) * (limit + 1) - degrees.clamp(max=limit), stable=True)
    order = order[degrees[order] <= limit]
    ids = row if row_ids is None else row_ids.long()
    starts = torch.cat((begin[item] + first, begin[order]))
    counts, rows = torch.cat((count, degrees[order])), ids[torch.cat((item, order))]
    entries = torch.stack((starts, counts | rows << 32), 1).view(torch.int32)
    cut_ids = ids[work.cuts[:, :1].long()].int()
    return RowEntries(entries, torch.cat((cut_ids, work.cuts[:, 1:]), 1), work.partials)


def group_rows(csr: Csr, size: int, limit: int, *, at_once: bool = False) -> torch.Tensor:
    """Group neighbouring rows to about `size` nonzeros, two more for storing each row: int32 [groups + 1].

    The first row of each group, and the number of rows. Rows of more than `limit` nonzeros, which `cut_rows`
    cuts, are groups of their own. Without such rows groups may be made `at_once`, with equal numbers of rows,
    so that the host need not wait for a GPU to know how many there are.
    """
    if csr.rows == 0:
        return torch.zeros(1, dtype=torch.int32, device=csr.device)
    if at_once:
        step = max(1, round(size / (csr.nnz / csr.rows + 2)))
        starts = torch.arange(0, csr.rows + step, step, device=csr.device)
        return starts.clamp(max=csr.rows).to(torch.int32)
    work = csr.indptr[:-1] + 2 * torch.arange(csr.rows, device=csr.device)
    block, long = work // size, csr.degrees > limit
    starts = torch.ones(csr.rows, dtype=torch.bool, device=csr.device)
    starts[1:] = (block[1:] != block[:-1]) | long[1:] | long[:-1]
    end = torch.tensor([csr.rows], device=csr.device)
    return torch.cat([starts.nonzero().flatten(), end]).to(torch.int32)


def window_tiles(blocked: BlockedMatrix) -> torch.Tensor:
    """Return the number of K tiles of each window, or of each panel of packed blocks, int64 [windows]."""
    per_panel = (blocked.panel_ptr.diff() + WINDOW_K_TILE - 1) // WINDOW_K_TILE
    return per_panel.repeat_interleave(blocked.spec.panel // blocked.spec.item_rows)


def cut_windows(
    blocked: BlockedMatrix, csr: Csr, limit: int, for_scores: bool = False, *, balance: str = "auto",
    concurrent: int = 1,
) -> WorkList:  # fmt: skip
    """Make the work list of all windows in `csr`'s row order; `for_scores`: with row offsets always."""
    tiles = window_tiles(blocked)
    parts = {
        "auto": lambda: limited_parts(tiles, limit),
        "none": lambda: torch.ones_like(tiles),
        "wave": lambda: wave_parts(tiles, concurrent),
        "adaptive": lambda: adaptive_parts(tiles, concurrent),
    }[balance]()
    items, cuts, partials = _cut(tiles, parts, even=balance != "auto")
    if blocked.spec.stores_values and not for_scores:
        return WorkList(items, cuts, partials)
    offsets = _row_offsets(blocked, csr, items, blocked.spec.window, WINDOW_K_TILE)
    return WorkList(items, cuts, partials, offsets)


def cut_panels(
    blocked: BlockedMatrix, limit: int, csr: Csr | None = None, longest_first: bool = False,
    concurrent_panels: int = 0, prefetch_distance: int = 0,
) -> WorkList:  # fmt: skip
    """Make the work list of all panels of a format in lane order.

    An item holds what a warp needs at its start: the first row, the first K tile counted over all panels, the
    number of K tiles, and the place of the partial sum. If there is no partial sum, the last number is -1
    minus the K tile with which the warp starts, which is 0 unless `concurrent_panels` is given, the number of
    panels that run at a time. With `csr` the list has row offsets. `longest_first` sorts items by length.
    """
    if blocked.slots >= PANEL_K_TILE * _MOST_TILES:
        most = PANEL_K_TILE * _MOST_TILES
        bad_value("graph", f"has {blocked.slots} column slots in panels; accepted: below {most}")
    tiles = blocked.panel_ptr.diff() // PANEL_K_TILE
    items, cuts, partials = _cut(tiles, limited_parts(tiles, limit))
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
    """Choose the K tile with which each item starts, so that concurrent warps read the same part of X.

    A panel's columns are sorted, so that warps which began at their first K tiles at different times would be
    in different parts of X. Instead one imagined sweep over X repeats with a period of `concurrent_panels`
    mean panels of K tiles: halfway through its run an item reads what the sweep is at, and after its last K
    tile it goes on with its first.
    """
    tiles = items[:, 2].double()
    mean = (tiles.sum() / max(panels, 1)).clamp(min=1)
    due = items[:, 1].double() / (mean * concurrent_panels) + tiles / (2 * mean) - 0.5
    first = ((due - due.floor()) * tiles).to(torch.int32)
    return torch.minimum(first, (items[:, 2] - 1).clamp(min=0))


def _row_offsets(
    blocked: BlockedMatrix, csr: Csr, items: torch.Tensor, height: int, k_tile: int
) -> torch.Tensor:
    """Count the nonzeros of each of an item's `height` rows before the item, int32 [items, height]."""
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
    """Find in each sorted range [begin, end) of `values` the first position that is not below `target`."""
    low, high = begin.clone(), end.clone()
    while bool((low < high).any()):
        middle = (low + high) // 2
        below = (values[middle.clamp(max=values.numel() - 1)] < target) & (low < high)
        low = torch.where(below, middle + 1, low)
        high = torch.where(below, high, torch.minimum(middle, high))
    return low


#: RSH-SpMM calls rows of more than 2 and of more than 4 times the mean long (figure 2). Windows above the
#: second number are cut, into parts of about the first.
_SUPER_LONG, _SHORTENED = 4, 2


def limited_parts(work: torch.Tensor, limit: int) -> torch.Tensor:
    """Return the least numbers of parts of which none has more than `limit` nonzeros or K tiles."""
    return ((work + limit - 1) // limit).clamp(min=1)


def wave_parts(tiles: torch.Tensor, concurrent: int) -> torch.Tensor:
    """Cut windows as cuTeSpMM does (section 5, equations 6 and 7), with `concurrent` windows at a time.

    A window of b tiles has num_loads = b / AVG, AVG being the mean over all windows, and is cut into
    partition_ratio = num_loads / num_waves parts. As in the paper's example, num_waves is the number of
    windows over that of windows that run at a time, rounded up. A ratio that is no integer is rounded upwards
    here, so that no part is longer than what one place on the GPU computes on average in all waves.
    """
    windows, total = tiles.numel(), int(tiles.sum())
    waves = -(-windows // concurrent)
    if total == 0:
        return torch.ones_like(tiles)
    parts = (tiles * windows + total * waves - 1) // (total * waves)
    return torch.minimum(parts, tiles).clamp(min=1)  # no part without a tile


def adaptive_parts(tiles: torch.Tensor, concurrent: int) -> torch.Tensor:
    """Cut super-long windows alone, as RSH-SpMM does (section 3.3.3), whose paper gives no rule.

    Here a window is super-long if its tiles are more than four times the mean of the windows that have any,
    and more than one place on the GPU computes on average: in a large matrix even a long window ends before
    the others do. Its parts have at most the larger one of twice the mean and that average.
    """
    total, filled = int(tiles.sum()), int((tiles > 0).sum())
    if total == 0:
        return torch.ones_like(tiles)
    super_long = (tiles * filled > _SUPER_LONG * total) & (tiles * concurrent > total)
    limit = max(-(-_SHORTENED * total // filled), -(-total // concurrent))
    return torch.where(super_long, limited_parts(tiles, limit), 1)
