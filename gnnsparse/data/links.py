"""LinkDataset: a graph, and pairs of nodes of which some are joined by edges that the graph does not show."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.data.checks import check_square
from gnnsparse.errors import bad_value, check_integer, check_tensor
from gnnsparse.sparse.graph import SparseGraph, check_range

__all__ = ["LinkDataset", "edge_keys", "has_edges"]

_PAIRS = ("train_edges", "val_edges", "val_negatives", "test_edges", "test_negatives")


@dataclass(frozen=True, eq=False)
class LinkDataset:
    """Prediction of the links of an undirected graph with N nodes, which have no features.

    Attributes:
        name: name of the data set.
        graph: A, N x N, with the edges to train on in both directions.
        train_edges: int64 [k, 2], pairs of nodes, each edge to train on once.
        val_edges, test_edges: int64 [k, 2], edges that the graph lacks, to choose the best epoch by and to
            score it on.
        val_negatives, test_negatives: int64 [k, 2], pairs without an edge, which all edges of the part are
            ranked with.
        hits_at: K of hits@K.

    Raises:
        TypeError: an attribute is of another type or dtype.
        ValueError: a shape or a node is out of range, a part is empty, an edge to train on is not in the
            graph, or `hits_at` is below 1.
    """

    name: str
    graph: SparseGraph
    train_edges: torch.Tensor
    val_edges: torch.Tensor
    val_negatives: torch.Tensor
    test_edges: torch.Tensor
    test_negatives: torch.Tensor
    hits_at: int = 20

    def __post_init__(self) -> None:
        nodes = check_square(self.graph)
        check_integer("hits_at", self.hits_at)
        for name in _PAIRS:
            pairs = check_tensor(name, getattr(self, name), dtypes=(torch.int64,), shape=(None, 2))
            check_range(name, pairs.reshape(-1).contiguous(), nodes, "the number of nodes")
            if pairs.shape[0] == 0:
                bad_value(name, "is empty; accepted: a pair or more")
        keys = edge_keys(self.graph)
        for pairs in (self.train_edges, self.train_edges.flip(1)):
            if not bool(has_edges(keys, pairs, nodes).all()):
                bad_value(
                    "train_edges", "has an edge that the graph lacks; accepted: edges in both directions"
                )

    @property
    def num_nodes(self) -> int:
        """N, the number of nodes."""
        return self.graph.num_rows


def edge_keys(graph: SparseGraph) -> torch.Tensor:
    """Returns row * columns + column of each edge, int64 [nnz] in ascending order, on the CPU."""
    csr = graph.csr.to(torch.device("cpu"))
    return csr.row_index() * csr.cols + csr.indices.long()


def has_edges(keys: torch.Tensor, pairs: torch.Tensor, columns: int) -> torch.Tensor:
    """Returns for each pair of a row and a column, int64 [k, 2], whether there is such an edge, bool [k].

    Args:
        keys: what `edge_keys` returned.
        pairs: the pairs, on the CPU.
        columns: the number of columns of the graph.
    """
    wanted = pairs[:, 0] * columns + pairs[:, 1]
    if keys.numel() == 0:
        return torch.zeros_like(wanted, dtype=torch.bool)
    at = torch.searchsorted(keys, wanted).clamp(max=keys.numel() - 1)
    return keys[at] == wanted
