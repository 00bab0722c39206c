"""What GCN and GraphSAGE have in common: a stack of layers that differ in the convolution alone."""

from __future__ import annotations

import itertools
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import check_flag, check_integer, check_share
from gnnsparse.nn import dropout
from models.parts import Adjacency, check_layers, make_norm, nodes_of, of_layer, of_targets

__all__ = ["ConvStack"]


class ConvStack(torch.nn.Module):
    """Layers of dropout, a convolution, normalisation and ReLU. The last one is dropout and convolution only.

    Attributes:
        conv: the class of the convolutions, called with the numbers of features of an input and an output.
        takes_targets: whether a convolution takes the features of a sampled block's targets, too.

    Args:
        in_channels: features of a node.
        hidden_channels: features between layers.
        out_channels: number of classes or labels.
        num_layers: number of convolutions.
        dropout: probability with which training drops inputs of each layer, in [0, 1).
        norm: normalisation between convolution and ReLU: "none", "batch" or "layer".
        residual: whether the input of a layer is added to its output; not in the last layer, nor if the
            shapes differ.
        input_dropout: whether dropout drops inputs of the first layer as well.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """

    conv: ClassVar[type[torch.nn.Module]]
    takes_targets: ClassVar[bool] = True

    #: Nothing here looks at several rows but batch norm and products with the operand.
    ignores_padding = True

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 2,
        dropout: float = 0.5,
        norm: str = "none",
        residual: bool = False,
        input_dropout: bool = True,
    ) -> None:
        super().__init__()
        self.dropout = check_share("dropout", dropout)
        self.residual = check_flag("residual", residual)
        self.input_dropout = check_flag("input_dropout", input_dropout)
        hidden = [check_integer("hidden_channels", hidden_channels)] * (check_layers(num_layers) - 1)
        widths = [in_channels, *hidden, out_channels]
        self.convs = torch.nn.ModuleList(self.conv(a, b) for a, b in itertools.pairwise(widths))
        self.norms = torch.nn.ModuleList(make_norm(norm, width) for width in hidden)

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
            adj: an operand with the weights that the convolution needs, an edge_index, or the operands of
                sampled blocks, one for each convolution.

        Returns:
            [nodes, out_channels], of the targets of the last block.
        """
        norms = [*self.norms, None]  # a ModuleList takes longer to find one by its number
        for index, (conv, norm) in enumerate(zip(self.convs, norms, strict=True)):
            own = of_layer(adj, index)
            inputs = of_targets(x, own) if self.residual else None
            if index > 0 or self.input_dropout:
                x = dropout(x, self.dropout, self.training)
            x = conv(nodes_of(x, own) if self.takes_targets else x, own)
            if norm is not None:
                x = F.relu(norm(x))
                if inputs is not None and x.shape == inputs.shape:
                    x = x + inputs
        return x
