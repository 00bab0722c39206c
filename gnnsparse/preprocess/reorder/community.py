"""Communities found by local moving, for graphs of any size."""

from __future__ import annotations

import torch

from gnnsparse.csr import Csr
from gnnsparse.preprocess.reorder.registry import Option, register_reordering

__all__ = ["order_by_communities"]


@register_reordering(
    "community",
    options={"rounds": Option(int, 10, least=1, most=1000), "resolution": Option(float, 1.0, above=0)},
    square=True,
    symmetric=True,
)
def order_by_communities(csr: Csr, rounds: int, resolution: float) -> torch.Tensor:
    """Rows grouped by communities of A + A^T, and these by their communities (native, all threads).

    Blondel et al., "Fast unfolding of communities in large networks" (2008), for the local moving in levels
    (Louvain); Arai et al., "Rabbit Order" (IPDPS 2016), for an order that follows the hierarchy.

    Args:
        csr: a square matrix.
        rounds: sweeps of local moving at each level, at most.
        resolution: of the modularity; larger: smaller communities.
    """
    return csr.community_order(rounds, resolution)
