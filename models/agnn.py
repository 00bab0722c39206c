"""The attention-based graph neural network of Thekumparampil et al."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.nn import AGNNConv, dropout
from models.parts import Adjacency, BlockModel, check_layers, make_norm, of_layer, of_targets
from models.registry import register_model

__all__ = ["AGNN"]


# Prepared with values="gcn" for its self-loops: attention ignores the weights.
@register_model("agnn", task="node", values="gcn", edge_weights=False)
class AGNN(BlockModel):
    """A linear layer, AGNNConv layers, and another linear layer.

    Without normalisation and residuals it is the network of Thekumparampil et al. (2018) in the form of PyG's
    example: beta of the first AGNNConv stays 1, and those of the others are learned.

    The other arguments are those of UniformStack, without input_dropout.

    Args:
        norm: normalisation after each AGNNConv: "none", "batch" or "layer".
        residual: whether the input of each AGNNConv is added to its output.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 2,
        dropout: float = 0.5,
        norm: str = "none",
        residual: bool = False,
    ) -> None:
        super().__init__(hidden_channels, dropout, residual)
        layers = range(check_layers(num_layers))
        self.lin1 = torch.nn.Linear(in_channels, hidden_channels)
        self.convs = torch.nn.ModuleList(AGNNConv(requires_grad=layer > 0) for layer in layers)
        self.norms = torch.nn.ModuleList(make_norm(norm, hidden_channels) for _ in layers)
        self.lin2 = torch.nn.Linear(hidden_channels, out_channels)

    def forward(self, x: torch.Tensor, adj: Adjacency) -> torch.Tensor:
        """Compute the logits; see ConvStack.forward, with operands that have self-loops (values="gcn")."""
        x = F.relu(self.lin1(dropout(x, self.dropout, self.training)))
        for index, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            own = of_layer(adj, index)
            y = norm(conv(x, own))
            x = of_targets(x, own) + y if self.residual else y
        return self.lin2(dropout(x, self.dropout, self.training))
