"""The residual gated graph network of Bresson and Laurent, with a stream of features of edges."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse import SparseOperand
from gnnsparse.errors import check_choice
from gnnsparse.nn import GatedGCNConv
from models.edge_stack import EdgeStack
from models.registry import register_model

__all__ = ["GatedGCN"]


@register_model("gatedgcn", task="node", edge_weights=False, edge_features="optional")
class GatedGCN(EdgeStack):
    """An EdgeStack of GatedGCNConv layers, each of which makes new features of nodes and of edges.

    It is the GatedGCN of "Benchmarking Graph Neural Networks" (Dwivedi et al. 2023): a linear layer maps the
    features of edges to `hidden_channels`. Without features the first layer makes some of the nodes alone.
    The other arguments are those of EdgeStack.

    Args:
        edge_channels: features of an edge; 0: there are none.
        norm: normalisation of new features of nodes and edges: "none" or "batch".
    """

    norms_inside = True

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        edge_channels: int = 0,
        num_layers: int = 4,
        dropout: float = 0.0,
        norm: str = "batch",
        residual: bool = True,
    ) -> None:
        check_choice("norm", norm, ("none", "batch"))
        super().__init__(
            in_channels, hidden_channels, out_channels, edge_channels, num_layers, dropout, norm, residual
        )
        if edge_channels:
            self.lin_edge = torch.nn.Linear(edge_channels, hidden_channels)
        else:
            self.convs[0] = self.make_conv(hidden_channels, norm, edge_dim=None)
        last: Any = self.convs[-1]
        last.bn_node_e = None  # nothing reads the features of edges behind it

    def make_conv(self, width: int, norm: str, edge_dim: int | None = -1) -> torch.nn.Module:
        """Make a GatedGCNConv, of as many features of edges unless there are others."""
        edge_dim = width if edge_dim == -1 else edge_dim
        return GatedGCNConv(width, width, edge_dim, norm == "batch", self.residual, self.dropout)

    def layers(
        self, x: torch.Tensor, adj: SparseOperand | torch.Tensor, edge_attr: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the features of nodes behind the layers, of those before them, [nodes, hidden_channels]."""
        edges = self.lin_edge(edge_attr) if self.edge_channels else None
        for conv in self.convs:
            x, edges = conv(x, adj, edges)
        return x
