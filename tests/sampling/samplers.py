"""Samplers of all ways to draw neighbours."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse import SparseGraph
from gnnsparse.sampling import NeighborSampler

#: Options of all ways to draw.
WAYS: dict[str, dict[str, Any]] = {
    "uniform": {},
    "uniform replaced": {"replace": True},
    "weighted": {"method": "weighted"},
    "weighted replaced": {"method": "weighted", "replace": True},
    "labor": {"method": "labor"},
}


def sampler(graph: Any, fanouts: list[int], *, way: str = "uniform", **options: Any) -> NeighborSampler:
    """A sampler that draws in one of WAYS; where weights count, every third edge has none."""
    count = graph.num_edges if isinstance(graph, SparseGraph) else graph.shape[1]
    weights = None
    if WAYS[way].get("method") == "weighted":
        weights = torch.rand(count, generator=torch.Generator().manual_seed(7))
        weights[::3] = 0
    return NeighborSampler(graph, fanouts, weights=weights, **WAYS[way], **options)
