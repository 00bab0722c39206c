"""What an edge is said to be: a network on the embeddings of its two ends, and on its own features."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_value
from gnnsparse.nn.functional import dropout as drop


class EdgeHead(torch.nn.Module):
    """Two linear layers on the concatenation of the ends' embeddings and the features of an edge.

    The first one is computed for the nodes, and its parts are added up for the edges: edges (u, v) and (v, u)
    differ, and no array holds both embeddings of each edge.

    Args:
        channels: features of an embedding, and of the hidden layer.
        out_channels: number of classes, labels or numbers to predict.
        edge_channels: features of an edge.
        dropout: probability with which training drops hidden features.
    """

    def __init__(
        self, channels: int, out_channels: int, edge_channels: int = 0, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.source = torch.nn.Linear(channels, channels)
        self.target = torch.nn.Linear(channels, channels, bias=False)
        self.of_edge = torch.nn.Linear(edge_channels, channels, bias=False) if edge_channels else None
        self.out = torch.nn.Linear(channels, out_channels)
        self.dropout = dropout

    def forward(
        self, features: torch.Tensor, edges: torch.Tensor, edge_attr: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the scores of edges, [k, out_channels].

        Args:
            features: the embeddings of the nodes, [nodes, channels].
            edges: int64 [2, k], sources over targets.
            edge_attr: [k, edge_channels]; None: edges have no features.

        Raises:
            ValueError: edges have features and should have none, or the other way round.
        """
        if (edge_attr is None) != (self.of_edge is None):
            wanted = 0 if self.of_edge is None else self.of_edge.in_features
            got = 0 if edge_attr is None else edge_attr.shape[1]
            bad_value("edge_attr", f"has {got} columns; accepted: {wanted}, as in training")
        x = F.relu(features)
        hidden = self.source(x).index_select(0, edges[0]) + self.target(x).index_select(0, edges[1])
        if self.of_edge is not None:
            hidden = hidden + self.of_edge(edge_attr)
        return self.out(drop(F.relu(hidden), self.dropout, self.training))


class EdgeScorer(torch.nn.Module):
    """A model of nodes whose outputs are embeddings, and an EdgeHead on them."""

    def __init__(self, encoder: torch.nn.Module, head: EdgeHead) -> None:
        super().__init__()
        self.encoder, self.head = encoder, head

    @property
    def first_layer(self) -> Any:
        """The layer whose parameters have weight decay with `optimizer.decay="first"`."""
        return self.encoder.first_layer

    @property
    def takes_sparse_features(self) -> bool:
        """Whether features of nodes can be a sparse matrix."""
        return getattr(self.encoder, "takes_sparse_features", False)

    def forward(
        self, x: Any, adj: Any, edges: torch.Tensor, edge_attr: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the scores of edges, [k, out_channels].

        Args:
            x: features of the nodes, [nodes, in_channels].
            adj: the graph, as the model of nodes takes it.
            edges, edge_attr: those of an EdgeHead.
        """
        return self.head(self.encoder(x, adj), edges, edge_attr)
