"""Exphormer of Shirzad et al.: attention over the edges of a graph, an expander and virtual nodes."""

from __future__ import annotations

import torch

from gnnsparse import SparseOperand
from gnnsparse.errors import check_integer
from gnnsparse.nn import dropout
from gnnsparse.ops import graph_attention
from models.gps import CONVS, GlobalModel, precision_of
from models.patterns import EDGE_TYPES, Interactions, Pattern, pattern_of
from models.registry import register_model

__all__ = ["Exphormer", "TypedAttention"]

#: Scores are clamped to [-CLAMP, CLAMP], as in the authors' code.
CLAMP = 5.0


@register_model("exphormer", task="node", values="gcn", values_by=("conv", CONVS))
class Exphormer(GlobalModel):
    """GPS layers whose attention follows a sparse graph: its cost grows with nodes and edges alone.

    "Exphormer: Sparse Transformers for Graphs" (Shirzad et al. 2023, sections 3 and 4). A node attends to
    itself, to its neighbours, to those in a random regular graph, which brings news from all nodes in a few
    layers, and to virtual nodes, which attend to all nodes. The features of virtual nodes are learned, and
    change from layer to layer by attention. The type of an edge (self-loop, graph, expander, from and to
    virtual nodes) has learned features, by which the keys are multiplied. An edge of the graph that the
    expander has too is one of the graph.

    The pattern is made once for a graph, and kept. There are no positional encodings: those that are wanted
    belong into the features.

    The other arguments are those of GPS, without attention.

    Args:
        degree: neighbours of a node in the expander; fewer if there are not as many others.
        virtual_nodes: number of virtual nodes, 0 or more.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 2,
        heads: int = 4,
        conv: str = "gcn",
        degree: int = 6,
        virtual_nodes: int = 4,
        seed: int = 0,
        dropout: float = 0.5,
        norm: str = "layer",
        residual: bool = True,
    ) -> None:
        super().__init__(in_channels, hidden_channels, heads, degree, seed, dropout, residual)
        self.virtual_nodes = check_integer("virtual_nodes", virtual_nodes, 0, "an integer, 0 or more")
        self.virtual = torch.nn.Parameter(torch.empty(virtual_nodes, hidden_channels))
        torch.nn.init.normal_(self.virtual)
        self._add_layers(num_layers, conv, norm, TypedAttention)
        self.lin2 = torch.nn.Linear(hidden_channels, out_channels)

    def forward(self, x: torch.Tensor, adj: SparseOperand | torch.Tensor) -> torch.Tensor:
        """Compute the logits; see GPS.forward."""
        recipe = Interactions(self.degree, self.virtual_nodes, self.seed, precision_of(adj))
        x = self.lin1(dropout(x, self.dropout, self.training))
        nodes, virtual = x.shape[0], self.virtual.to(x.dtype)
        pattern = pattern_of(self._memo, adj, nodes, recipe)
        for block, attention in zip(self.blocks, self.attentions, strict=True):
            of_nodes, of_virtual = attention(torch.cat([x, virtual]), pattern).tensor_split([nodes])
            x = block(x, adj, of_nodes)
            of_virtual = dropout(of_virtual, self.dropout, self.training)
            virtual = virtual + of_virtual if self.residual else of_virtual
        return self.lin2(x)


class TypedAttention(torch.nn.Module):
    """Attention in which features of an edge's type multiply the key (Shirzad et al. 2023, equation 1).

    The features are 1 at first, so that a new layer is attention without types.

    Args:
        width: features of a node.
        heads: number of heads, a divisor of `width`.
        dropout: probability with which training drops a weight.
    """

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.in_proj = torch.nn.Linear(width, 3 * width)
        self.of_types = torch.nn.Parameter(torch.ones(len(EDGE_TYPES), width))
        self.out_proj = torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor, pattern: Pattern) -> torch.Tensor:
        """Compute attention, [nodes, width], of x [nodes, width] over what Interactions makes."""
        assert pattern.types is not None
        q, k, v = self.in_proj(x).unflatten(1, (3, self.heads, -1)).unbind(1)
        # A product with 0 and 1, as the gradient of an index would be a sum in no fixed order on a GPU.
        gate = pattern.types.to(self.of_types.dtype) @ self.of_types
        out = graph_attention(
            pattern.operand, q, k, v,
            gate=gate.unflatten(1, (self.heads, -1)),
            clamp=CLAMP,
            dropout_p=self.dropout if self.training else 0.0,
            edge_order="operand",
        )  # fmt: skip
        return self.out_proj(out.flatten(1))
