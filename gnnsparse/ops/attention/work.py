"""Work lists and workspaces of fused attention on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from gnnsparse import _native
from gnnsparse.formats import BlockedMatrix
from gnnsparse.plan import AttentionPlan
from gnnsparse.plan.work import WorkList
from gnnsparse.runtime.device import SCORE_ROWS, partial_width
from gnnsparse.runtime.memo import Key
from gnnsparse.sparse.kernel_cache import KernelCache

__all__ = ["DkvPlaces", "PanelPass", "dkv_places", "panel_pass", "workspace"]


class PanelPass(NamedTuple):
    """The arguments from the operand for the kernels of a pass over panels.

    Attributes:
        panel, work: the panels of bits and their work list.
        head: native handles of panels, stored rows and work list, the arguments before the workspace.
    """

    panel: BlockedMatrix
    work: WorkList
    head: tuple[Any, ...]


@dataclass(frozen=True)
class _PassKey(Key[PanelPass]):
    plan: AttentionPlan


def panel_pass(kernels: KernelCache, plan: AttentionPlan) -> PanelPass:
    """Returns the arguments of a pass over the rows of an orientation by a plan; `kernels` keeps them."""

    def make() -> PanelPass:
        panel, view, work = kernels.score_panels(
            plan.tile_limit, plan.longest_first, plan.height, "attention"
        )
        rows = _native.StoredRows(kernels.csr.indptr, kernels.row_ids)
        return PanelPass(panel, work, (view, rows, work.view))

    return kernels.kept.get(_PassKey(plan), make)


def workspace(
    of: PanelPass, heads: int, widths: tuple[int, ...], device: torch.device
) -> torch.Tensor | None:
    """Allocates the workspace for partial results of panels that are divided among items of a work list.

    Args:
        of: the pass.
        heads: heads of all batch entries.
        widths: widths of the results.
        device: a GPU.

    Returns:
        Uninitialised float32 memory: for each row of a partial result its sums of each width, padded, and
        two floats of the softmax (shift and sum). None if no panel is divided.
    """
    if of.work.partials == 0:
        return None
    floats = sum(map(partial_width, widths)) + _native.PARTIAL_ROW_STATS
    floats *= heads * of.work.partials * of.panel.spec.panel
    return torch.empty(floats, dtype=torch.float32, device=device)


class DkvPlaces(NamedTuple):
    """Places of the partial sums of dK and dV: those of a column are neighbours, in the order of the panels.

    Attributes:
        places: int32 [K tiles, 8, 4]: at [n, j] the place of column slot 8 (n // 2) + 2 j + n % 2 of the
            K tile; -1 for padded slots.
        starts: int32 [columns + 1], the first place of each column.
    """

    places: torch.Tensor
    starts: torch.Tensor

    @property
    def size(self) -> int:
        """Number of partial sums of one head, with room for padded slots, whose sums are not written."""
        return self.places.numel()


@dataclass(frozen=True)
class _DkvKey(Key[DkvPlaces]):
    pass


def dkv_places(kernels: KernelCache) -> DkvPlaces:
    """Returns the places at which the fused backward pass writes partial sums of dK and dV; they are kept."""

    def make() -> DkvPlaces:
        slots = kernels.panel(SCORE_ROWS, bits=True).columns
        real = torch.nonzero(slots >= 0).squeeze(1)
        by_column = real[torch.argsort(slots[real], stable=True)]
        places = torch.full_like(slots, -1)
        places[by_column] = torch.arange(by_column.numel(), dtype=places.dtype, device=places.device)
        counts = torch.bincount(slots[real], minlength=kernels.csr.cols)
        starts = torch.zeros(kernels.csr.cols + 1, dtype=torch.int32, device=slots.device)
        torch.cumsum(counts, 0, out=starts[1:])
        # Lane j of a group of four writes the sums of slots 8 (n // 2) + 2 j + n % 2, n = 0 .. 7.
        lanes = places.view(-1, 4, 4, 2).transpose(2, 3).reshape(-1, 8, 4)
        return DkvPlaces(lanes, starts)

    return kernels.kept.get(_DkvKey(), make)
