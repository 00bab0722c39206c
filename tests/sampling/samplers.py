"""Samplers of all strategies to draw neighbours."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse import SparseGraph
from gnnsparse.sampling import NeighborSampler, Sample

#: Options of all strategies to draw.
STRATEGIES: dict[str, dict[str, Any]] = {
    "uniform": {},
    "uniform replaced": {"replace": True},
    "weighted": {"method": "weighted"},
    "weighted replaced": {"method": "weighted", "replace": True},
    "labor": {"method": "labor"},
}


def sampler(graph: Any, fanouts: list[int], *, strategy: str = "uniform", **options: Any) -> NeighborSampler:
    """A sampler that draws in one of STRATEGIES; where weights count, every third edge has none."""
    count = graph.num_edges if isinstance(graph, SparseGraph) else graph.shape[1]
    weights = None
    if STRATEGIES[strategy].get("method") == "weighted":
        weights = torch.rand(count, generator=torch.Generator().manual_seed(7))
        weights[::3] = 0
    return NeighborSampler(graph, fanouts, weights=weights, **STRATEGIES[strategy], **options)


def assert_same(mine: Sample, theirs: Sample) -> None:
    """The same nodes, edges and weights in both orientations, on whatever device."""
    for one, two in zip(mine.blocks, theirs.blocks, strict=True):
        assert torch.equal(one.sources.cpu(), two.sources.cpu())
        assert torch.equal(one.edge_ids.cpu(), two.edge_ids.cpu())  # type: ignore[union-attr]
        for side in ("forward", "backward"):
            a, b = (getattr(block.adj.prepared, side) for block in (one, two))
            assert torch.equal(a.csr.indptr.cpu(), b.csr.indptr.cpu())
            assert torch.equal(a.csr.indices.cpu(), b.csr.indices.cpu())
            values, others = a.own_values(), b.own_values()
            assert (values is None and others is None) or torch.equal(values.cpu(), others.cpu())
