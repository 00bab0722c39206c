"""MeshGraphNet of Pfaff et al., an encoder, a processor of nodes and edges, and a decoder."""

from __future__ import annotations

import torch

from gnnsparse import SparseOperand
from gnnsparse.nn import InteractionBlock, dropout
from models.edge_stack import EdgeStack
from models.parts import make_norm
from models.registry import register_model

__all__ = ["MeshGraphNet"]


@register_model("meshgraphnet", task="node", edge_weights=False, edge_features="required")
class MeshGraphNet(EdgeStack):
    """Networks of two linear layers around InteractionBlocks, which make new features of nodes and of edges.

    "Learning Mesh-Based Simulation with Graph Networks" (Pfaff et al. 2021, section 3), whose processor is
    that of GraphCast (Lam et al. 2023) too. Encoders map nodes and edges to `hidden_channels`, each block
    adds to both, and a decoder maps nodes to outputs. Edges should have what tells where their ends are: a
    relative position and a length. `lin1` is the first layer of the nodes' encoder, and `lin` the last one of
    the decoder. The other arguments are those of EdgeStack.

    Args:
        edge_channels: features of an edge, at least 1.
        num_layers: number of blocks.
        dropout: probability with which training drops hidden features of the decoder, in [0, 1).
        norm: "layer": encoders and the networks of blocks end in layer norms, as the authors have it;
            "batch": encoders end in batch norms, and one of nodes follows each block, too; or "none".
    """

    least_edge_channels = 1
    norms_inside = True

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        edge_channels: int = 1,
        num_layers: int = 4,
        dropout: float = 0.0,
        norm: str = "layer",
    ) -> None:
        super().__init__(
            in_channels, hidden_channels, out_channels, edge_channels, num_layers, dropout, norm, True
        )

        def behind() -> list[torch.nn.Module]:
            last = torch.nn.Linear(hidden_channels, hidden_channels)
            return [torch.nn.SiLU(), last, make_norm(norm, hidden_channels)]

        outside = norm if norm == "batch" else "none"
        self.norms = torch.nn.ModuleList(make_norm(outside, hidden_channels) for _ in self.convs)
        self.encode = torch.nn.Sequential(*behind())
        first = torch.nn.Linear(edge_channels, hidden_channels)
        self.encode_edges = torch.nn.Sequential(first, *behind())
        hidden = torch.nn.Linear(hidden_channels, hidden_channels)
        self.decode = torch.nn.Sequential(hidden, torch.nn.SiLU())

    def make_conv(self, width: int, norm: str) -> torch.nn.Module:
        """Make an InteractionBlock."""
        return InteractionBlock(width, width, norm=norm != "none")

    def layers(
        self, x: torch.Tensor, adj: SparseOperand | torch.Tensor, edge_attr: torch.Tensor | None
    ) -> torch.Tensor:
        """Return hidden features of the decoder, of those of the encoder, [nodes, hidden_channels]."""
        x, edges = self.encode(x), self.encode_edges(edge_attr)
        for block, norm in zip(self.convs, self.norms, strict=True):
            x, edges = block(x, adj, edges)
            x = norm(x)
        return dropout(self.decode(x), self.dropout, self.training)
