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
from models.gat import GAT, GATv2
from models.gatedgcn import GatedGCN
from models.gcn import GCN
from models.gine import GINE
from models.graphsage import GraphSAGE
from models.meshgraphnet import MeshGraphNet
from models.pna import PNA
from models.registry import options_like, register_variant

__all__ = [
    "Pooled",
    "PooledGAT",
    "PooledGATv2",
    "PooledGCN",
    "PooledGINE",
    "PooledGatedGCN",
    "PooledGraphSAGE",
    "PooledMeshGraphNet",
    "PooledPNA",
]


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

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
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


@register_variant("gcn", task="graph", like=options_like(GCN, "pool", "mean"))
class PooledGCN(Pooled):
    """Pooled with a GCN."""

    encoder_class = GCN


@register_variant("graphsage", task="graph", like=options_like(GraphSAGE, "pool", "mean"))
class PooledGraphSAGE(Pooled):
    """Pooled with a GraphSAGE."""

    encoder_class = GraphSAGE


@register_variant("gat", task="graph", like=options_like(GAT, "pool", "mean"))
class PooledGAT(Pooled):
    """Pooled with a GAT."""

    encoder_class = GAT


@register_variant("gatv2", task="graph", like=options_like(GATv2, "pool", "mean"))
class PooledGATv2(Pooled):
    """Pooled with a GATv2."""

    encoder_class = GATv2


@register_variant("gine", task="graph", like=options_like(GINE, "pool", "mean"))
class PooledGINE(Pooled):
    """Pooled with a GINE."""

    encoder_class = GINE


@register_variant("gatedgcn", task="graph", like=options_like(GatedGCN, "pool", "mean"))
class PooledGatedGCN(Pooled):
    """Pooled with a GatedGCN."""

    encoder_class = GatedGCN


@register_variant("pna", task="graph", like=options_like(PNA, "pool", "mean"))
class PooledPNA(Pooled):
    """Pooled with a PNA."""

    encoder_class = PNA


@register_variant("meshgraphnet", task="graph", like=options_like(MeshGraphNet, "pool", "mean"))
class PooledMeshGraphNet(Pooled):
    """Pooled with a MeshGraphNet."""

    encoder_class = MeshGraphNet
