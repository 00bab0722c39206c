"""The graph isomorphism network of Xu et al., for nodes."""

from __future__ import annotations

import torch

from gnnsparse.nn import GINConv, dropout
from models.parts import Adjacency, BlockModel, check_layers, make_norm, nodes_of, of_layer, of_targets
from models.registry import register_model

__all__ = ["GIN", "gin_layers"]


@register_model("gin", task="node")
class GIN(BlockModel):
    """Layers of dropout and GINConv with networks of two linear layers, then dropout and a linear layer.

    The networks are those of Xu et al. (2019, section 7): linear, normalisation, ReLU, linear, and here
    normalisation and ReLU once more. Where they classify graphs by a sum over nodes, a linear layer
    classifies each node.

    The other arguments are those of UniformStack, without input_dropout.

    Args:
        norm: normalisation after each linear layer but the last: "none", "batch" or "layer".
        residual: whether the input of a GINConv is added to its output, if the shapes are equal.
        train_eps: whether the weight of a node's own features is learned.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 2,
        dropout: float = 0.5,
        norm: str = "batch",
        residual: bool = False,
        train_eps: bool = False,
    ) -> None:
        super().__init__(hidden_channels, dropout, residual)
        self.convs = gin_layers(in_channels, hidden_channels, num_layers, norm, train_eps)
        self.lin = torch.nn.Linear(hidden_channels, out_channels)

    def forward(self, x: torch.Tensor, adj: Adjacency) -> torch.Tensor:
        """Compute the logits; see ConvStack.forward, with operands prepared with values=None."""
        for index, conv in enumerate(self.convs):
            own = of_layer(adj, index)
            y = conv(nodes_of(dropout(x, self.dropout, self.training), own), own)
            x = of_targets(x, own)
            x = x + y if self.residual and x.shape == y.shape else y
        return self.lin(dropout(x, self.dropout, self.training))


def gin_layers(
    in_channels: int, hidden_channels: int, num_layers: int, norm: str, train_eps: bool
) -> torch.nn.ModuleList:
    """Make the GINConv layers of a network, each with a network of two linear layers of its own."""
    widths = [in_channels] + [hidden_channels] * (check_layers(num_layers) - 1)
    return torch.nn.ModuleList(
        GINConv(_network(width, hidden_channels, norm), train_eps=train_eps) for width in widths
    )


def _network(in_channels: int, hidden_channels: int, norm: str) -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Linear(in_channels, hidden_channels),
        make_norm(norm, hidden_channels),
        torch.nn.ReLU(),
        torch.nn.Linear(hidden_channels, hidden_channels),
        make_norm(norm, hidden_channels),
        torch.nn.ReLU(),
    )
