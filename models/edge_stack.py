"""What the models that take features of edges have in common: maps of nodes before and behind a stack."""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse import SparseOperand
from gnnsparse.errors import check_integer
from gnnsparse.nn import dropout
from models.parts import GraphModel, check_layers, make_norm

__all__ = ["EdgeStack"]


class EdgeStack(GraphModel):
    """A linear layer, layers of a convolution, normalisation, ReLU and dropout, and a linear layer.

    Attributes:
        least_edge_channels: the fewest features of an edge that the model can do with.
        norms_inside: whether normalisation, ReLU, dropout and residuals are those of the convolutions.
        edge_channels: the features of an edge.

    Args:
        in_channels: features of a node.
        hidden_channels: features of the layers.
        out_channels: number of classes, labels or numbers to predict.
        edge_channels: features of an edge; 0: there are none.
        num_layers: number of convolutions.
        dropout: probability with which training drops outputs of each layer, in [0, 1).
        norm: normalisation of what a convolution returns: "none", "batch" or "layer".
        residual: whether the input of a layer is added to its output.

    The errors are those of GraphModel.
    """

    takes_sparse_features = False
    least_edge_channels: ClassVar[int] = 0
    norms_inside: ClassVar[bool] = False

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, edge_channels: int = 0,
        num_layers: int = 4, dropout: float = 0.0, norm: str = "batch", residual: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(hidden_channels, dropout, residual)
        self.edge_channels = check_integer("edge_channels", edge_channels, self.least_edge_channels)
        self.lin1 = torch.nn.Linear(in_channels, hidden_channels)
        layers = range(check_layers(num_layers))
        self.convs = torch.nn.ModuleList(self.make_conv(hidden_channels, norm) for _ in layers)
        if not self.norms_inside:
            self.norms = torch.nn.ModuleList(make_norm(norm, hidden_channels) for _ in layers)
        self.lin = torch.nn.Linear(hidden_channels, out_channels)

    def make_conv(self, width: int, norm: str) -> torch.nn.Module:
        """Make a convolution of `width` features, with the normalisation of the model where it has some."""
        raise NotImplementedError

    @property
    def takes_edge_features(self) -> bool:
        """Whether `forward` gets features of edges."""
        return self.edge_channels > 0

    def forward(
        self, x: torch.Tensor, adj: SparseOperand | torch.Tensor, edge_attr: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute the outputs.

        Args:
            x: [nodes, in_channels], float32, or float16 or bfloat16 under autocast.
            adj: an operand prepared with values=None, or an edge_index.
            edge_attr: [edges, edge_channels], in the order of the edges given to `prepare`, or of the
                edge_index; None only if edge_channels is 0.

        Returns:
            [nodes, out_channels].
        """
        return self.lin(self.layers(self.lin1(x), adj, edge_attr))

    def layers(
        self, x: torch.Tensor, adj: SparseOperand | torch.Tensor, edge_attr: torch.Tensor | None
    ) -> torch.Tensor:
        """Return the features of nodes behind the layers, of those before them, [nodes, hidden_channels]."""
        for conv, norm in zip(self.convs, self.norms, strict=True):
            y = dropout(F.relu(norm(conv(x, adj, edge_attr))), self.dropout, self.training)
            x = x + y if self.residual else y
        return x
