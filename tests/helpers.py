"""Dense float64 oracles, independent of the package's own arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import gnnsparse
from gnnsparse import Precision, SparseGraph, SparseOperand
from gnnsparse.formats import FORMAT_NAMES
from gnnsparse.gpus.model import TileCounts
from gnnsparse.plan import CsrPlan, PanelCounts, Plan, WindowPlan
from gnnsparse.precision import round_operand

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
FORMATS = tuple(name for name in FORMAT_NAMES if name != "auto")


def dense_matrix(graph: SparseGraph, weights: str | None) -> torch.Tensor:
    """The float64 matrix that prepare(graph, values=weights) stands for."""
    a = torch.from_numpy(graph.to_scipy().toarray()).double()
    if weights == "mean":
        return a / a.sum(1, keepdim=True).where(a.sum(1, keepdim=True) != 0, torch.tensor(1.0))
    if weights == "gcn":
        a = a + torch.diag((a.diagonal() == 0).double())
        scale = a.sum(1).clamp(min=0).rsqrt()
        return scale[:, None] * a * torch.where(torch.isfinite(scale), scale, 0.0)
    return a


def plain_product(matrix: torch.Tensor, x: torch.Tensor, precision: str) -> torch.Tensor:
    """matrix @ x in the given precision by plain operations: rounded operands, float32 sums."""
    rounded = [round_operand(t.float(), Precision.parse(precision)).float() for t in (matrix, x)]
    return (rounded[0] @ rounded[1]).to(x.dtype)


def panel_counts(*slots: int, tiles: tuple[TileCounts, ...] = ()) -> tuple[PanelCounts, ...]:
    """Counts of panels of 16 rows, and of 32, as plans take them."""
    lengths = tiles or ((),) * len(slots)
    return tuple(PanelCounts(*of) for of in zip((16, 32), slots, lengths, strict=False) if of[1])


def cut_at(plan: Plan, tile_limit: int, row_limit: int) -> Plan:
    """A plan whose rows, windows or panels are cut at other lengths."""
    if isinstance(plan, CsrPlan):
        return replace(plan, row_limit=row_limit)
    if isinstance(plan, WindowPlan):
        return replace(plan, tile_limit=tile_limit, residual=replace(plan.residual, row_limit=row_limit))
    return replace(plan, tile_limit=tile_limit)  # type: ignore[call-arg]


def make(graph: SparseGraph, device: str, **options: Any) -> SparseOperand:
    """The graph prepared without the cache, on a device."""
    return gnnsparse.prepare(graph.to(device), cache=False, **options)


def at_nonzeros(a: SparseOperand, dense: torch.Tensor) -> torch.Tensor:
    """The elements of a dense matrix at the operand's nonzeros, in its order."""
    row, col = a.indices().cpu()
    return dense[row, col]
