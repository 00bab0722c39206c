"""Work lists of attention over panels: how a pattern is shared out to the kernels."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gnnsparse import _native
from gnnsparse.costs import STAGE
from gnnsparse.csr import address
from gnnsparse.operand import SparseOperand
from gnnsparse.plan import describe_device, panel_plan, panel_step_limit
from gnnsparse.preprocess.balance import Segments
from gnnsparse.side import Side

__all__ = [
    "VECTOR",
    "Addends",
    "Work",
    "addend_bytes",
    "addends_of",
    "heads_at_once",
    "may_be_tall",
    "shares_rows",
    "work_of",
    "workspace",
]

VECTOR = _native.VECTOR_BYTES  # that rows are padded to
#: Rows of a panel: of one warp, or of four that share the gathered rows.
_ROWS, _TALL_ROWS = _native.SCORE_PANEL_ROWS, _native.TALL_PANEL_ROWS
_TALL_FEATURES = _native.ROW_SLICE_BYTES // 2  # a slice in 16 bits
#: Tall panels may have this many times the column slots of four of 16 rows: the four warps look at every one,
#: but it is gathered once. Where panels of 16 rows hold less than _FULL of them, tall ones are not counted.
_TALL_SLOTS, _FULL = 1.4, 8
_TALL_BLOCKS = 4  # at a time on a multiprocessor
#: The backward pass in one writes and reads what every column slot adds to dK and dV. It pays where the
#: transpose has this many times the column slots, and may take this share of a GPU's memory.
_ADDENDS_PAY, _ADDENDS_SHARE = 3.5, 1 / 64
_ADDEND_FEATURES = _TALL_FEATURES


class Work(NamedTuple):
    """The work list of a side for a number of heads, and what the kernels read of the side."""

    view: _native.Blocked
    segments: Segments
    rows: int  # of a panel
    head: tuple[_native.Blocked, _native.StoredRows, _native.WorkList]  # before the workspace

    @property
    def partials(self) -> int:
        """Partial sums of cut panels, of one head."""
        return self.segments.partials


def shares_rows(side: Side) -> bool:
    """Whether panels of 64 rows gather little more than one of 16: windows and blocks do, graphs don't."""

    def count() -> bool:
        slots = side.panel_slots(_ROWS)
        return side.csr.nnz >= _FULL * slots and 4 * side.panel_slots(_TALL_ROWS) <= _TALL_SLOTS * slots

    return side.remember("attention shares rows", count)


def may_be_tall(
    q: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, seed: torch.Tensor | None, is_causal: bool
) -> bool:
    """Whether a problem may take panels of 64 rows; q in the storage dtype."""
    narrow = max(q.shape[3], v.shape[3]) <= _TALL_FEATURES and q.dtype.itemsize == 2
    return narrow and bias is None and seed is None and not is_causal


def _tall_limit(side: Side, features: int) -> int:
    """Stages of a tall panel's parts: as few as keep every multiprocessor busy."""
    stages = side.panel_slots(_TALL_ROWS) // STAGE
    mean = stages * _TALL_ROWS // max(side.csr.rows, 1)
    at_once = _TALL_BLOCKS * describe_device(side.csr.device).multiprocessors
    share = stages * features // _TALL_FEATURES // at_once
    return panel_step_limit(mean, share, 20)


def work_of(side: Side, features: int, tall: bool) -> Work:
    """For `features` in all heads together: the more there are, the less long panels have to be cut.

    `tall`: from `may_be_tall`.
    """
    tall = tall and shares_rows(side)

    def make() -> Work:
        if tall:
            rows, limit, longest_first = _TALL_ROWS, _tall_limit(side, features), True
        else:
            plan = panel_plan(side.problem("sddmm", features, False), _ROWS)
            rows, limit, longest_first = _ROWS, plan.step_limit, plan.longest_first
        view, segments = side.score_panels(limit, longest_first, rows)
        stored = _native.StoredRows(address(side.csr.indptr), address(side.row_ids))
        head = (view, stored, segments.view)
        return Work(view, segments, rows, head)

    return side.remember(("attention", features, tall), make)


def workspace(work: Work, heads: int, widths: tuple[int, ...], device: torch.device) -> torch.Tensor | None:
    """Partial sums of cut panels: rows of every width, rounded up, and statistics of each row."""
    if work.partials == 0:
        return None
    unit = _native.PARTIAL_COLUMNS
    floats = sum(-(-width // unit) * unit for width in widths) + _native.PARTIAL_ROW_STATS
    return torch.empty(heads * work.partials * work.rows * floats, dtype=torch.float32, device=device)


class Addends(NamedTuple):
    """Where the addends of dK and dV lie: those of a column one after another, in the order of the panels."""

    places: torch.Tensor  # int32 [stages, 8, 4]: of column slot 8 (n // 2) + 2 j + n % 2 at [n, j]; -1: none
    starts: torch.Tensor  # int32 [columns + 1]

    @property
    def slots(self) -> int:
        """Addends of one head; those of padded slots are not written."""
        return self.places.numel()


def addends_of(side: Side) -> Addends:
    """Where the backward pass in one writes what the column slots of `side` add to dK and dV."""

    def make() -> Addends:
        slots = side.panel(_ROWS, bits=True).columns
        real = torch.nonzero(slots >= 0).squeeze(1)
        by_column = real[torch.argsort(slots[real], stable=True)]
        places = torch.full_like(slots, -1)
        places[by_column] = torch.arange(by_column.numel(), dtype=places.dtype, device=places.device)
        counts = torch.bincount(slots[real], minlength=side.csr.cols)
        starts = torch.zeros(side.csr.cols + 1, dtype=torch.int32, device=slots.device)
        torch.cumsum(counts, 0, out=starts[1:])
        # A lane writes those of slots 8 (n // 2) + n % 2 + 2 j.
        lanes = places.view(-1, 4, 4, 2).transpose(2, 3).reshape(-1, 8, 4)
        return Addends(lanes, starts)

    return side.remember("attention addends", make)


def addend_bytes(d: int, dv: int) -> int:
    """Bytes of what a column slot adds to dK and dV, in 16 bits."""
    return sum(-(-2 * width // VECTOR) * VECTOR for width in (d, dv))


def heads_at_once(operand: SparseOperand, heads: int, d: int, dv: int, tall: bool) -> int:
    """How many heads the backward pass in one takes at a time; 0: two passes are faster, or it can't run.

    `tall` as in `work_of`: such panels have no pass in one.
    """
    fits = max(d, dv) <= _ADDEND_FEATURES and operand.precision.storage.itemsize == 2
    if not fits or (tall and shares_rows(operand.side)):
        return 0

    def pays() -> bool:
        slots = operand.side.panel_slots(_ROWS)
        return operand.T.side.panel_slots(_ROWS) >= _ADDENDS_PAY * slots

    side = operand.side
    if not side.remember("attention addends pay", pays):
        return 0
    budget = int(describe_device(operand.device).memory * _ADDENDS_SHARE)
    return min(heads, budget // (side.panel_slots(_ROWS) * addend_bytes(d, dv)))
