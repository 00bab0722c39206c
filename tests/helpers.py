"""Dense float64 oracles, independent of the package's own arithmetic."""

from __future__ import annotations

from typing import Any

import torch

import gnnsparse
from gnnsparse import Precision, SparseGraph, SparseOperand
from gnnsparse.formats import FORMAT_NAMES
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


def make(graph: SparseGraph, device: str, **options: Any) -> SparseOperand:
    """The graph prepared without the cache, on a device."""
    return gnnsparse.prepare(graph.to(device), cache=False, **options)


def at_nonzeros(a: SparseOperand, dense: torch.Tensor) -> torch.Tensor:
    """The elements of a dense matrix at the operand's nonzeros, in its order."""
    row, col = a.indices().cpu()
    return dense[row, col]
