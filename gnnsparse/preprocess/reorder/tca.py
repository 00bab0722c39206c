"""The reordering "tca": clusters of similar rows, and groups of similar clusters, as DTC-SpMM makes them."""

from __future__ import annotations

import torch

from gnnsparse.preprocess.reorder.registry import Option, register_reordering
from gnnsparse.sparse.csr import Csr

__all__ = ["order_by_clusters"]

#: Rows of a cluster for a matrix that is not prepared in a format.
_HEIGHT = 8


@register_reordering(
    "tca",
    options={
        "group": Option(int, 128, least=1, most=2**20),
        "neighbors": Option(int, 8, least=1, most=64),
        "height": Option(int, 0, least=0, most=2**20),
    },
)
def order_by_clusters(csr: Csr, group: int, neighbors: int, height: int) -> torch.Tensor:
    """Puts similar rows into one window, and similar windows near each other.

    An order like the TCU-cache-aware reordering of DTC-SpMM (Fan et al., ASPLOS 2024), with which RSH-SpMM
    compares its own. The most similar pairs of rows are joined first, to clusters of at most `height` rows;
    the clusters, as rows of a smaller matrix, are joined to groups in the same way. DTC-SpMM finds similar
    rows by MinHash; here they are those of "jaccard" with equal weights. Full clusters come first, so that
    each is a window.

    Args:
        csr: a matrix of any shape.
        group: clusters of a group at most: windows that run at about the same time and share a cache.
        neighbors: most similar rows that are looked at for a row, and clusters for a cluster.
        height: rows of a cluster at most; 0: the rows of a panel of the format, 8 without one.

    Raises:
        MemoryError: the scratch memory does not fit.
    """
    return csr.clusters_order(height or _HEIGHT, group, neighbors)
