"""Work lists and workspaces of fused attention on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from gnnsparse import _native
from gnnsparse.csr import address
from gnnsparse.formats import BlockedMatrix
from gnnsparse.kept import Key
from gnnsparse.kernel_cache import KernelCache
from gnnsparse.plan import AttentionPlan
from gnnsparse.preprocess.balance import WorkList
from gnnsparse.tiles import SCORE_ROWS, partial_width

__all__ = ["DkvPlaces", "PanelPass", "dkv_places", "panel_pass", "workspace"]


class PanelPass(NamedTuple):
    """A pass over panels: what its kernels read of the operand.

    Attributes:
        panel, work: the panels of bits and their work list.
        head: native arguments before the workspace.
    """

    panel: BlockedMatrix
    work: WorkList
    head: tuple[Any, ...]


@dataclass(frozen=True)
class _PassKey(Key[PanelPass]):
    plan: AttentionPlan


def panel_pass(kernels: KernelCache, plan: AttentionPlan) -> PanelPass:
    """A pass over the rows of an orientation by a plan."""

    def make() -> PanelPass:
        panel, view, work = kernels.score_panels(
            plan.tile_limit, plan.longest_first, plan.height, "attention"
        )
        rows = _native.StoredRows(address(kernels.csr.indptr), address(kernels.row_ids))
        return PanelPass(panel, work, (view, rows, work.view))

    return kernels.kept.get(_PassKey(plan), make)


def workspace(
    of: PanelPass, heads: int, widths: tuple[int, ...], device: torch.device
) -> torch.Tensor | None:
    """Partial sums of cut panels: rows of every width, padded, and statistics of each row."""
    if of.work.partials == 0:
        return None
    floats = sum(map(partial_width, widths)) + _native.PARTIAL_ROW_STATS
    floats *= heads * of.work.partials * of.panel.spec.panel
    return torch.empty(floats, dtype=torch.float32, device=device)


class DkvPlaces(NamedTuple):
    """Where partial sums of dK and dV lie: those of a column one after another, in the order of the panels.

    Attributes:
        places: int32 [K tiles, 8, 4]: the place of column slot 8 (n // 2) + 2 j + n % 2 at [n, j]; -1: none.
        starts: int32 [columns + 1], the first place of each column.
    """

    places: torch.Tensor
    starts: torch.Tensor

    @property
    def size(self) -> int:
        """Partial sums of one head; those of padded slots are not written."""
        return self.places.numel()


@dataclass(frozen=True)
class _DkvKey(Key[DkvPlaces]):
    pass


def dkv_places(kernels: KernelCache) -> DkvPlaces:
    """Where the fused backward pass writes what the column slots of an orientation add to dK and dV."""

    def make() -> DkvPlaces:
        slots = kernels.panel(SCORE_ROWS, bits=True).columns
        real = torch.nonzero(slots >= 0).squeeze(1)
        by_column = real[torch.argsort(slots[real], stable=True)]
        places = torch.full_like(slots, -1)
        places[by_column] = torch.arange(by_column.numel(), dtype=places.dtype, device=places.device)
        counts = torch.bincount(slots[real], minlength=kernels.csr.cols)
        starts = torch.zeros(kernels.csr.cols + 1, dtype=torch.int32, device=slots.device)
        torch.cumsum(counts, 0, out=starts[1:])
        # A lane writes those of slots 8 (n // 2) + n % 2 + 2 j.
        lanes = places.view(-1, 4, 4, 2).transpose(2, 3).reshape(-1, 8, 4)
        return DkvPlaces(lanes, starts)

    return kernels.kept.get(_DkvKey(), make)
