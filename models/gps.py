"""The recipe of a general, powerful, scalable graph Transformer (GPS) of Rampasek et al."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse import SparseOperand
from gnnsparse.errors import bad_value, check_choice, check_integer
from gnnsparse.nn import GCNConv, GINConv, SparseAttention, dropout
from gnnsparse.nn.adjacency import AdjacencyMemo
from gnnsparse.precision import Precision
from models.parts import GraphModel, check_heads, check_layers, make_norm
from models.patterns import ATTENTIONS, AllNodes, pattern_of
from models.registry import register_model

__all__ = ["CONVS", "GPS", "GlobalModel", "precision_of"]

#: The weights of the operand that each layer of message passing takes, by the layer's name.
CONVS: dict[str, str | None] = {"gcn": "gcn", "gin": None}


class GlobalModel(GraphModel):
    """What GPS and Exphormer share: blocks of message passing, each beside attention beyond the edges."""

    #: A pattern may be of all nodes, padding included.
    ignores_padding = False

    def __init__(
        self, in_channels: int, hidden_channels: int, heads: int, degree: int, seed: int, dropout: float,
        residual: bool,
    ) -> None:  # fmt: skip
        super().__init__(hidden_channels, dropout, residual)
        self.heads = check_heads(heads, hidden_channels)
        self.degree = check_integer("degree", degree)
        self.seed = check_integer("seed", seed, 0, "an integer, 0 or more")
        self._memo = AdjacencyMemo()
        self.lin1 = torch.nn.Linear(in_channels, hidden_channels)

    def _add_layers(
        self, num_layers: int, conv: str, norm: str, attention: Callable[[int, int, float], torch.nn.Module]
    ) -> None:
        layers, width, dropout = range(check_layers(num_layers)), self.lin1.out_features, self.dropout
        self.blocks = torch.nn.ModuleList(Block(width, conv, dropout, norm, self.residual) for _ in layers)
        self.attentions = torch.nn.ModuleList(attention(width, self.heads, dropout) for _ in layers)


@register_model("gps", task="node", values="gcn", values_by=("conv", CONVS))
class GPS(GlobalModel):
    """A linear layer, GPS layers, and another linear layer.

    A GPS layer adds message passing over the edges and attention to all nodes, each with a residual and a
    norm, and sends the sum through a feed-forward network (Rampasek et al. 2022, "Recipe for a General,
    Powerful, Scalable Graph Transformer", section 3.2, equations 3 to 6). There are no positional encodings:
    those that are wanted belong into the features.

    Attention over all pairs costs the square of the number of nodes. Larger graphs take a sparse pattern in
    its place; it is made once for a graph, and kept.

    Args:
        in_channels: features of a node.
        hidden_channels: features of the layers.
        out_channels: number of classes or labels.
        num_layers: number of GPS layers.
        heads: number of heads, a divisor of hidden_channels.
        conv: the message passing: "gcn", a GCNConv; "gin", a GINConv with a network of two linear layers.
        attention: what a node attends to: "full": all nodes; "expander": itself, and its neighbours in a
            random regular graph; "window": itself, and the next ones by number; "auto": "full" up to 1024
            nodes, and else "expander", with a warning.
        degree: neighbours of a node in an expander or window.
        seed: seed of the expander.
        dropout: probability of dropout in training, in [0, 1), for the model's input, the attention weights,
            the outputs of message passing and attention, and in feed-forward networks.
        norm: normalisation of each sum: "none", "batch" or "layer".
        residual: whether their inputs are added to the outputs of message passing, attention and feed-forward
            networks.

    The errors are those of GraphModel.
    """

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        num_layers: int = 2,
        heads: int = 4,
        conv: str = "gcn",
        attention: str = "auto",
        degree: int = 6,
        seed: int = 0,
        dropout: float = 0.5,
        norm: str = "layer",
        residual: bool = True,
    ) -> None:
        super().__init__(in_channels, hidden_channels, heads, degree, seed, dropout, residual)
        self.attention = check_choice("attention", attention, ATTENTIONS)
        self._add_layers(num_layers, conv, norm, SparseAttention)
        self.lin2 = torch.nn.Linear(hidden_channels, out_channels)

    def forward(self, x: torch.Tensor, adj: SparseOperand | torch.Tensor) -> torch.Tensor:
        """Compute the logits.

        Args:
            x: [nodes, in_channels], float32, or float16 or bfloat16 under autocast.
            adj: an operand prepared with values="gcn", or for conv="gin" with values=None; or an edge_index.

        Returns:
            [nodes, out_channels].
        """
        recipe = AllNodes(self.attention, self.degree, self.seed, precision_of(adj))
        x = self.lin1(dropout(x, self.dropout, self.training))
        pattern = pattern_of(self._memo, adj, x.shape[0], recipe).operand
        for block, attention in zip(self.blocks, self.attentions, strict=True):
            x = block(x, adj, attention(x, x, x, pattern))
        return self.lin2(x)


def precision_of(adj: SparseOperand | torch.Tensor) -> Precision:
    """Return the precision of a pattern that goes with a model's adjacency, which is of one process."""
    if isinstance(adj, SparseOperand) and adj.operations is not None:
        bad_value(
            "adj",
            "is of several devices, or an input of an exported program, and this model attends beyond the "
            "edges of the graph; accepted: an operand of one process, trainer.devices=1",
        )
    return adj.precision if isinstance(adj, SparseOperand) else Precision.FP32


class Block(torch.nn.Module):
    """A GPS layer without its attention, whose result [nodes, width] it is given."""

    def __init__(self, width: int, conv: str, dropout: float, norm: str, residual: bool) -> None:
        super().__init__()
        self.dropout, self.residual = dropout, residual
        self.conv = _make_conv(check_choice("conv", conv, tuple(CONVS)), width)
        self.norm1, self.norm2, self.norm3 = (make_norm(norm, width) for _ in range(3))
        self.linear1, self.linear2 = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(
        self, x: torch.Tensor, adj: SparseOperand | torch.Tensor, attended: torch.Tensor
    ) -> torch.Tensor:
        """Compute the layer's output [nodes, width] of x [nodes, width] over a graph."""
        local = self.norm1(self._joined(x, self.conv(x, adj)))
        x = local + self.norm2(self._joined(x, attended))
        hidden = dropout(F.relu(self.linear1(x)), self.dropout, self.training)
        return self.norm3(self._joined(x, self.linear2(hidden)))

    def _joined(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y = dropout(y, self.dropout, self.training)
        return x + y if self.residual else y


def _make_conv(name: str, width: int) -> torch.nn.Module:
    if name == "gcn":
        return GCNConv(width, width)
    linears = torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)
    return GINConv(torch.nn.Sequential(*linears))
