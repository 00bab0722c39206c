"""The graph isomorphism network of Xu et al., for graphs."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse import SparseOperand
from gnnsparse.errors import check_choice
from gnnsparse.nn import pool_graphs
from gnnsparse.nn.functional import POOLS
from models.gin import gin_layers
from models.parts import GraphModel
from models.registry import register_variant

__all__ = ["GraphGIN"]


@register_variant("gin", task="graph")
class GraphGIN(GraphModel):
    """The network of Xu et al. (2019, section 4.2 and equation 4.2), which scores graphs.

    Each layer is a GINConv with a network of two linear layers. The features of the nodes and the output of
    each layer are pooled, and each pooled array has a linear layer of its own. The score of a graph is the
    sum of theirs, after dropout ("jumping knowledge"). With `train_eps=False` it is GIN-0.

    Args:
        in_channels: features of a node.
        hidden_channels: features of the layers.
        out_channels: number of classes, labels or numbers to predict.
        num_layers: number of GINConv layers; the paper's "5 layers, including the input layer" are 4.
        dropout: probability with which training drops the scores of a layer, in [0, 1).
        norm: normalisation after each linear layer: "none", "batch" or "layer".
        residual: whether the input of a GINConv is added to its output, if the shapes are equal.
        train_eps: whether the weight of a node's own features is learned.
        pool: how the nodes of a graph are pooled: "sum", "mean" or "max".

    The errors are those of GraphModel.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 4,
        dropout: float = 0.5,
        norm: str = "batch",
        residual: bool = False,
        train_eps: bool = False,
        pool: str = "sum",
    ) -> None:
        super().__init__(hidden_channels, dropout, residual)
        self.pool = check_choice("pool", pool, POOLS)
        self.convs = gin_layers(in_channels, hidden_channels, num_layers, norm, train_eps)
        self.readouts = torch.nn.ModuleList(
            torch.nn.Linear(width, out_channels) for width in (in_channels, *[hidden_channels] * num_layers)
        )

    def forward(self, x: torch.Tensor, adj: SparseOperand, graph_ptr: torch.Tensor) -> torch.Tensor:
        """Compute the scores.

        Args:
            x: [nodes, in_channels], float32, or float16 or bfloat16 under autocast.
            adj: a block-diagonal operand prepared with values=None.
            graph_ptr: int64 [graphs + 1], the first node of each graph, and the number of nodes.

        Returns:
            [graphs, out_channels].
        """
        score = self._read(0, x, graph_ptr)
        for layer, conv in enumerate(self.convs, start=1):
            y = conv(x, adj)
            x = x + y if self.residual and x.shape == y.shape else y
            score = score + self._read(layer, x, graph_ptr)
        return score

    def _read(self, layer: int, x: torch.Tensor, graph_ptr: torch.Tensor) -> torch.Tensor:
        score = self.readouts[layer](pool_graphs(x, graph_ptr, self.pool))
        return F.dropout(score, self.dropout, self.training)
