"""Graph attention networks: GAT of Velickovic et al., and GATv2 of Brody et al."""

from __future__ import annotations

from typing import Any, ClassVar

import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import check_integer
from gnnsparse.nn import GATConv, GATv2Conv
from models.conv_stack import ConvStack
from models.parts import check_heads, check_layers
from models.registry import register_model

__all__ = ["GAT", "GATv2"]


# Prepared with values="gcn" for its self-loops: attention ignores the weights.
@register_model("gat", task="node", values="gcn", edge_weights=False)
class GAT(ConvStack):
    """Layers of dropout, GATConv, normalisation and ELU. The last one is dropout and GATConv only.

    With two layers and without normalisation and residuals it is the network of Velickovic et al. (2018,
    section 3.3), with dropout of the input of each layer and of the attention weights.

    The other arguments are those of UniformStack, without input_dropout.

    Args:
        hidden_channels: features between layers, those of all heads together.
        heads: number of heads of the hidden layers, a divisor of hidden_channels.
        out_heads: number of heads of the last layer, whose outputs are averaged.
        dropout: probability with which training drops inputs of each layer, and attention weights, in [0, 1).
    """

    conv: ClassVar[Any] = GATConv
    activation = staticmethod(F.elu)

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
        super().__init__(hidden_channels, dropout, residual)
        width = hidden_channels // check_heads(heads, hidden_channels)
        check_integer("out_heads", out_heads)
        inputs = [in_channels] + [hidden_channels] * (check_layers(num_layers) - 1)
        convs = [self.conv(features, width, heads, dropout=dropout) for features in inputs[:-1]]
        convs.append(self.conv(inputs[-1], out_channels, out_heads, concat=False, dropout=dropout))
        self._add_layers(convs, norm, hidden_channels)


@register_model("gatv2", task="node", values="gcn", edge_weights=False)
class GATv2(GAT):
    """GAT with layers of Brody et al. (2022), GATv2Conv, in the place of GATConv; see GAT."""

    conv = GATv2Conv
