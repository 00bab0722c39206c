"""The graph isomorphism network with features of edges, of Hu et al."""

from __future__ import annotations

import torch

from gnnsparse.nn import GINEConv
from models.edge_stack import EdgeStack
from models.parts import make_norm
from models.registry import register_model

__all__ = ["GINE"]


@register_model("gine", task="node", edge_weights=False, edge_features="required")
class GINE(EdgeStack):
    """An EdgeStack of GINEConv layers with networks of two linear layers (Hu et al. 2020, section 5).

    Each layer maps the features of edges to those of nodes, adds both, and sums up what is positive. The
    networks are linear, normalisation, ReLU, linear. Other arguments are those of EdgeStack.

    Args:
        edge_channels: features of an edge, at least 1.
        train_eps: whether the weight of a node's own features is learned.
    """

    least_edge_channels = 1

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        edge_channels: int = 1,
        num_layers: int = 4,
        dropout: float = 0.0,
        norm: str = "batch",
        residual: bool = True,
        train_eps: bool = False,
    ) -> None:
        self._train_eps = train_eps
        super().__init__(
            in_channels, hidden_channels, out_channels, edge_channels, num_layers, dropout, norm, residual
        )

    def make_conv(self, width: int, norm: str) -> torch.nn.Module:
        """Make a GINEConv with a network of its own."""
        network = torch.nn.Sequential(
            torch.nn.Linear(width, width), make_norm(norm, width), torch.nn.ReLU(),
            torch.nn.Linear(width, width),
        )  # fmt: skip
        return GINEConv(network, train_eps=self._train_eps, edge_dim=self.edge_channels)
