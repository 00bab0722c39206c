"""The reordering "community": communities found by local moving, fast enough for large graphs."""

from __future__ import annotations

import torch

from gnnsparse.preprocess.reorder.registry import Option, register_reordering
from gnnsparse.sparse.csr import Csr

__all__ = ["order_by_communities"]


@register_reordering(
    "community",
    options={"rounds": Option(int, 10, least=1, most=1000), "resolution": Option(float, 1.0, above=0)},
    square=True,
    symmetric=True,
)
def order_by_communities(csr: Csr, rounds: int, resolution: float) -> torch.Tensor:
    """Orders rows by the hierarchy of communities of A + A^T (native code, in all threads).

    Communities are found by local moving in levels (Louvain: Blondel et al., "Fast unfolding of communities
    in large networks", 2008). Rows of a community are neighbours, and so are communities of one community of
    the next level (Arai et al., "Rabbit Order", IPDPS 2016).

    Args:
        csr: a square matrix.
        rounds: most sweeps of local moving at each level.
        resolution: resolution of the modularity; a larger one makes smaller communities.
    """
    return csr.community_order(rounds, resolution)
