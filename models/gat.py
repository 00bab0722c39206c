"""Graph attention networks: GAT of Velickovic et al., and GATv2 of Brody et al."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import check_flag, check_integer, check_share
from gnnsparse.nn import GATConv, GATv2Conv, dropout
from models.parts import (
    Adjacency,
    check_heads,
    check_layers,
    make_norm,
    nodes_of,
    of_layer,
    of_targets,
)
from models.registry import register_model

__all__ = ["GAT", "GATv2"]


# Prepared with values="gcn" for its self-loops: attention ignores the weights.
@register_model("gat", task="node", values="gcn", edge_weights=False)
class GAT(torch.nn.Module):
    """Layers of dropout, GATConv, normalisation and ELU. The last one is dropout and GATConv only.

    With two layers and without normalisation and residuals it is the network of Velickovic et al. (2018,
    section 3.3), with dropout of the input of each layer and of the attention weights.

    Args:
        in_channels: features of a node.
        hidden_channels: features between layers, those of all heads together.
        out_channels: number of classes or labels.
        num_layers: number of attention layers.
        heads: number of heads of the hidden layers, a divisor of hidden_channels.
        out_heads: number of heads of the last layer, whose outputs are averaged.
        dropout: probability with which training drops inputs of each layer, and attention weights, in [0, 1).
        norm: normalisation between attention and ELU: "none", "batch" or "layer".
        residual: whether the input of a layer is added to its output; not in the last layer, nor if the
            shapes differ.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """

    conv: type[GATConv | GATv2Conv] = GATConv

    #: Nothing here looks at several rows but batch norm and products with the operand.
    ignores_padding = True

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 2,
        heads: int = 8,
        out_heads: int = 1,
        dropout: float = 0.6,
        norm: str = "none",
        residual: bool = False,
    ) -> None:
        super().__init__()
        self.dropout = check_share("dropout", dropout)
        self.residual = check_flag("residual", residual)
        check_integer("hidden_channels", hidden_channels)
        width = hidden_channels // check_heads(heads, hidden_channels)
        check_integer("out_heads", out_heads)
        hidden = check_layers(num_layers) - 1
        inputs = [in_channels] + [hidden_channels] * hidden
        self.convs = torch.nn.ModuleList(
            self.conv(inputs[layer], width, heads, dropout=self.dropout) for layer in range(hidden)
        )
        self.convs.append(self.conv(inputs[-1], out_channels, out_heads, concat=False, dropout=self.dropout))
        self.norms = torch.nn.ModuleList(make_norm(norm, hidden_channels) for _ in range(hidden))

    @property
    def first_layer(self) -> torch.nn.Module:
        """The layer whose parameters have weight decay with `optimizer.decay="first"`."""
        return self.convs[0]

    @property
    def num_convolutions(self) -> int:
        """The number of sampled blocks that `forward` takes in place of one graph."""
        return len(self.convs)

    def forward(self, x: torch.Tensor, adj: Adjacency) -> torch.Tensor:
        """Computes the logits.

        Args:
            x: [nodes, in_channels], float32, or float16 or bfloat16 under autocast.
            adj: an operand with self-loops, prepared with values="gcn", an edge_index, or the
                operands of sampled blocks, one for each convolution.

        Returns:
            [nodes, out_channels], of the targets of the last block.
        """
        last = len(self.convs) - 1
        for index, conv in enumerate(self.convs):
            own = of_layer(adj, index)
            inputs = of_targets(x, own)
            x = conv(nodes_of(dropout(x, self.dropout, self.training), own), own)
            if index < last:
                x = F.elu(self.norms[index](x))
                if self.residual and x.shape == inputs.shape:
                    x = x + inputs
        return x


@register_model("gatv2", task="node", values="gcn", edge_weights=False)
class GATv2(GAT):
    """GAT with layers of Brody et al. (2022), GATv2Conv, in the place of GATConv; see GAT."""

    conv = GATv2Conv
