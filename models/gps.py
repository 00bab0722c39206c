"""The recipe of a general, powerful, scalable graph Transformer (GPS) of Rampasek et al."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse import SparseOperand
from gnnsparse.errors import bad_value, check_choice, check_flag, check_integer, check_share
from gnnsparse.nn import GCNConv, GINConv, SparseAttention, dropout
from gnnsparse.nn.adjacency import AdjacencyMemo
from gnnsparse.precision import Precision
from models.parts import check_heads, check_layers, make_norm
from models.patterns import ATTENTIONS, AllNodes, Pattern, pattern_of
from models.registry import register_model

__all__ = ["CONVS", "GPS", "Block", "precision_of"]

#: The weights of the operand that each layer of message passing takes, by the layer's name.
CONVS: dict[str, str | None] = {"gcn": "gcn", "gin": None}


@register_model("gps", task="node", values="gcn", values_by=("conv", CONVS))
class GPS(torch.nn.Module):
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
        heads: int = 4,
        conv: str = "gcn",
        attention: str = "auto",
        degree: int = 6,
        seed: int = 0,
        dropout: float = 0.5,
        norm: str = "layer",
        residual: bool = True,
    ) -> None:
        super().__init__()
        self.dropout = check_share("dropout", dropout)
        check_integer("hidden_channels", hidden_channels)
        check_heads(heads, hidden_channels)
        self.attention = check_choice("attention", attention, ATTENTIONS)
        self.degree = check_integer("degree", degree)
        self.seed = check_integer("seed", seed, 0, "an integer, 0 or more")
        self._memo: AdjacencyMemo[Pattern] = AdjacencyMemo()
        layers = range(check_layers(num_layers))
        self.lin1 = torch.nn.Linear(in_channels, hidden_channels)
        self.blocks = torch.nn.ModuleList(
            Block(hidden_channels, conv, dropout, norm, residual) for _ in layers
        )
        self.attentions = torch.nn.ModuleList(
            SparseAttention(hidden_channels, heads, dropout) for _ in layers
        )
        self.lin2 = torch.nn.Linear(hidden_channels, out_channels)

    @property
    def first_layer(self) -> torch.nn.Module:
        """The layer whose parameters have weight decay with `optimizer.decay="first"`."""
        return self.lin1

    def forward(self, x: torch.Tensor, adj: SparseOperand | torch.Tensor) -> torch.Tensor:
        """Computes the logits.

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
    """Returns the precision of a pattern that goes with a model's adjacency.

    Raises:
        ValueError: several processes share the adjacency; the pattern would need the nodes of all of them.
    """
    if isinstance(adj, SparseOperand) and adj.operations is not None:
        bad_value(
            "adj",
            "is of several devices, and this model attends beyond the edges of the graph; accepted: an "
            "operand of one process, trainer.devices=1",
        )
    return adj.precision if isinstance(adj, SparseOperand) else Precision.FP32


class Block(torch.nn.Module):
    """A GPS layer without its attention, whose result it is given.

    Args:
        width: features of a node.
        conv: name of the message passing, a key of CONVS.
        dropout: probability of dropout in training.
        norm: normalisation of each sum.
        residual: whether inputs are added to outputs.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """

    def __init__(self, width: int, conv: str, dropout: float, norm: str, residual: bool) -> None:
        super().__init__()
        self.dropout, self.residual = dropout, check_flag("residual", residual)
        self.conv = _make_conv(check_choice("conv", conv, tuple(CONVS)), width)
        self.norm1, self.norm2, self.norm3 = (make_norm(norm, width) for _ in range(3))
        self.linear1, self.linear2 = torch.nn.Linear(width, 2 * width), torch.nn.Linear(2 * width, width)

    def forward(
        self, x: torch.Tensor, adj: SparseOperand | torch.Tensor, attended: torch.Tensor
    ) -> torch.Tensor:
        """Computes the layer's output.

        Args:
            x: [nodes, width].
            adj: the graph, which the message passing takes.
            attended: [nodes, width], the output of attention.

        Returns:
            [nodes, width].
        """
        local = self.norm1(self._joined(x, self.conv(x, adj)))
        x = local + self.norm2(self._joined(x, attended))
        hidden = dropout(F.relu(self.linear1(x)), self.dropout, self.training)
        y: torch.Tensor = self.norm3(self._joined(x, self.linear2(hidden)))
        return y

    def _joined(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y = dropout(y, self.dropout, self.training)
        return x + y if self.residual else y


def _make_conv(name: str, width: int) -> torch.nn.Module:
    if name == "gcn":
        return GCNConv(width, width)
    linears = torch.nn.Linear(width, width), torch.nn.ReLU(), torch.nn.Linear(width, width)
    return GINConv(torch.nn.Sequential(*linears))
