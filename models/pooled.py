"""Graph-level networks of the stacks of convolutions: their outputs, pooled, and a linear layer."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse import SparseOperand
from gnnsparse.errors import check_choice
from gnnsparse.nn import dropout as drop
from gnnsparse.nn import pool_graphs
from gnnsparse.nn.functional import POOLS
from models.registry import register_around

__all__ = ["Pooled"]


class Pooled(torch.nn.Module):
    """A model of nodes with `hidden_channels` outputs, ReLU, pooling, dropout and a linear layer.

    Attributes:
        encoder_class: the class of the model of nodes.

    Args:
        in_channels: features of a node.
        hidden_channels: features of the layers, and of a pooled graph.
        out_channels: number of classes, labels or numbers to predict.
        pool: how the nodes of a graph are pooled: "sum", "mean" or "max".
        options: the other options of the model of nodes, of which `dropout` is that of the pooled features
            as well.

    The errors are those of GraphModel.
    """

    encoder_class: type[torch.nn.Module]

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, pool: str = "mean", **options: Any
    ) -> None:
        super().__init__()
        self.pool = check_choice("pool", pool, POOLS)
        self.encoder = self.encoder_class(in_channels, hidden_channels, hidden_channels, **options)
        self.lin = torch.nn.Linear(hidden_channels, out_channels)

    @property
    def first_layer(self) -> torch.nn.Module:
        """The layer whose parameters have weight decay with `optimizer.decay="first"`."""
        return self.encoder.first_layer  # type: ignore[return-value]

    @property
    def ignores_padding(self) -> bool:
        """Whether rows of padding change nothing, as pooling does not see them."""
        return bool(self.encoder.ignores_padding)

    def measure_degrees(self, degrees: torch.Tensor) -> None:
        """Tell the encoder the degrees of the nodes to train on, int64 [nodes], if it asks for them."""
        if hasattr(self.encoder, "measure_degrees"):
            self.encoder.measure_degrees(degrees)  # type: ignore[operator]

    @property
    def takes_edge_features(self) -> bool:
        """Whether `forward` gets features of edges."""
        return bool(getattr(self.encoder, "takes_edge_features", False))

    def forward(
        self,
        x: torch.Tensor,
        adj: SparseOperand,
        graph_ptr: torch.Tensor,
        edge_attr: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the scores.

        Args:
            x: [nodes, in_channels], float32, or float16 or bfloat16 under autocast.
            adj: a block-diagonal operand with the weights that the model of nodes needs.
            graph_ptr: int64 [graphs + 1], the first node of each graph, and the number of nodes.
            edge_attr: [edges, edge_channels], for an encoder that takes features of edges.

        Returns:
            [graphs, out_channels].
        """
        more = () if edge_attr is None else (edge_attr,)
        pooled = pool_graphs(F.relu(self.encoder(x, adj, *more)), graph_ptr, self.pool)
        share: Any = self.encoder.dropout
        return self.lin(drop(pooled, share, self.training))


register_around(
    Pooled, "graph",
    ("gcn", "graphsage", "gat", "gatv2", "gine", "gatedgcn", "pna", "meshgraphnet"), pool="mean",
)  # fmt: skip
