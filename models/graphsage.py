"""GraphSAGE of Hamilton et al., on the whole graph."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse import SparseOperand
from gnnsparse.errors import check_flag, check_integer, check_share
from gnnsparse.nn import SAGEConv, dropout
from models.parts import check_layers, make_norm
from models.registry import register_model

__all__ = ["GraphSAGE"]


@register_model("graphsage", task="node", values="mean")
class GraphSAGE(torch.nn.Module):
    """Layers of dropout, SAGEConv, normalisation and ReLU. The last one is dropout and SAGEConv only.

    The layers take the mean over all neighbours, where Hamilton et al. (2017) sample some of them for each
    batch.

    Args:
        in_channels: features of a node.
        hidden_channels: features between layers.
        out_channels: number of classes or labels.
        num_layers: number of SAGEConv layers.
        dropout: probability with which training drops inputs of each layer, in [0, 1).
        norm: normalisation between SAGEConv and ReLU: "none", "batch" or "layer".
        residual: whether the input of a layer is added to its output; not in the last layer, nor if the
            shapes differ.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
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
        super().__init__()
        self.dropout = check_share("dropout", dropout)
        self.residual = check_flag("residual", residual)
        hidden = [check_integer("hidden_channels", hidden_channels)] * (check_layers(num_layers) - 1)
        widths = [in_channels, *hidden, out_channels]
        self.convs = torch.nn.ModuleList(SAGEConv(a, b) for a, b in itertools.pairwise(widths))
        self.norms = torch.nn.ModuleList(make_norm(norm, width) for width in hidden)

    @property
    def first_layer(self) -> torch.nn.Module:
        """The layer whose parameters have weight decay with `optimizer.decay="first"`."""
        return self.convs[0]

    def forward(self, x: torch.Tensor, adj: SparseOperand | torch.Tensor) -> torch.Tensor:
        """Computes the logits.

        Args:
            x: [nodes, in_channels], float32, or float16 or bfloat16 under autocast.
            adj: an operand prepared with values="mean", or an edge_index.

        Returns:
            [nodes, out_channels].
        """
        last = len(self.convs) - 1
        for index, conv in enumerate(self.convs):
            inputs = x
            x = conv(dropout(x, self.dropout, self.training), adj)
            if index < last:
                x = F.relu(self.norms[index](x))
                if self.residual and x.shape == inputs.shape:
                    x = x + inputs
        return x
