"""What GCN, GraphSAGE and GAT have in common: a stack of layers that differ in the convolution alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import check_flag
from gnnsparse.nn import dropout
from models.parts import Adjacency, BlockModel, check_layers, make_norm, nodes_of, of_layer, of_targets

__all__ = ["ConvStack", "UniformStack"]


class ConvStack(BlockModel):
    """Layers of dropout, a convolution, normalisation and an activation; the last is dropout and convolution.

    Attributes:
        takes_targets: whether a convolution takes the features of a sampled block's targets, too.
        activation: what follows normalisation.
    """

    takes_targets: ClassVar[bool] = True
    activation: ClassVar[Callable[..., torch.Tensor]] = staticmethod(F.relu)
    input_dropout = True

    def _add_layers(self, convs: Iterable[torch.nn.Module], norm: str, hidden_channels: int) -> None:
        self.convs = torch.nn.ModuleList(convs)
        self.norms = torch.nn.ModuleList(make_norm(norm, hidden_channels) for _ in self.convs[:-1])

    def forward(self, x: torch.Tensor, adj: Adjacency) -> torch.Tensor:
        """Compute the logits.

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
                x = self.activation(norm(x))
                if inputs is not None and x.shape == inputs.shape:
                    x = x + inputs
        return x


class UniformStack(ConvStack):
    """A ConvStack of one class of convolutions, which takes the numbers of features of input and output.

    Attributes:
        conv: the class of the convolutions.

    Args:
        in_channels: features of a node.
        hidden_channels: features between layers.
        out_channels: number of classes or labels.
        num_layers: number of convolutions.
        dropout: probability with which training drops inputs of each layer, in [0, 1).
        norm: normalisation between convolution and activation: "none", "batch" or "layer".
        residual: whether the input of a layer is added to its output; not in the last layer, nor if the
            shapes differ.
        input_dropout: whether dropout drops inputs of the first layer as well.

    The errors are those of GraphModel.
    """

    conv: ClassVar[type[torch.nn.Module]]

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
        super().__init__(hidden_channels, dropout, residual)
        self.input_dropout = check_flag("input_dropout", input_dropout)
        widths = [in_channels, *[hidden_channels] * (check_layers(num_layers) - 1), out_channels]
        convs = (self.conv(a, b) for a, b in itertools.pairwise(widths))
        self._add_layers(convs, norm, hidden_channels)
