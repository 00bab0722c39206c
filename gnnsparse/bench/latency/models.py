"""The models whose latency is measured, of this package's layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.nn import AGNNConv, GATConv, GCNConv, TransformerEncoder, TransformerEncoderLayer

__all__ = ["FEED_FORWARD", "GraphStack", "make_encoder", "make_stack"]

#: Features inside a feed-forward network, in units of the encoder's width.
FEED_FORWARD = 4
#: Activations between the layers of a stack, by model.
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {"gcn": F.relu, "gat": F.elu}


class GraphStack(torch.nn.Module):
    """Graph layers one after the other, with activations between them.

    Args:
        model: "gcn", "agnn" or "gat". An AGNN has a linear layer before and after its layers, and no
            activations between them (Thekumparampil et al. 2018).
        convs: the layers, each called with features and an adjacency.
        before, after: linear layers of an AGNN.
    """

    def __init__(
        self,
        model: str,
        convs: Sequence[torch.nn.Module],
        before: torch.nn.Linear | None = None,
        after: torch.nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.model = model
        self.convs = torch.nn.ModuleList(convs)
        self.before, self.after = before, after

    def forward(self, x: torch.Tensor, adj: Any) -> torch.Tensor:
        """Computes the scores of all nodes, [nodes, classes].

        Args:
            x: [nodes, features].
            adj: what the layers take.
        """
        if self.before is not None and self.after is not None:
            x = F.relu(self.before(x))
            for conv in self.convs:
                x = conv(x, adj)
            out: torch.Tensor = self.after(x)
            return out
        activation = _ACTIVATIONS[self.model]
        for number, conv in enumerate(self.convs):
            x = conv(x, adj) if number == 0 else conv(activation(x), adj)
        return x


def make_stack(model: str, features: int, hidden: int, classes: int, layers: int, heads: int) -> GraphStack:
    """Makes a stack of this package's layers with weights drawn from a fixed seed, in evaluation mode.

    Args:
        model: "gcn", "agnn" or "gat".
        features, hidden, classes: features of a node at first, between the layers, and of the result.
        layers: number of graph layers.
        heads: heads of a layer of the GAT, which share `hidden`; its last layer has one.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if model == "agnn":
            before, after = torch.nn.Linear(features, hidden), torch.nn.Linear(hidden, classes)
            return GraphStack(model, [AGNNConv() for _ in range(layers)], before, after).eval()
        widths = [features, *[hidden] * (layers - 1), classes]
        convs: list[torch.nn.Module] = []
        for number, (width, out) in enumerate(pairwise(widths)):
            if model == "gcn":
                convs.append(GCNConv(width, out))
            elif number == layers - 1:
                convs.append(GATConv(width, out))
            else:
                convs.append(GATConv(width, out // heads, heads=heads))
        return GraphStack(model, convs).eval()


def make_encoder(width: int, heads: int, layers: int) -> TransformerEncoder:
    """Makes an encoder with weights drawn from a fixed seed, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        hidden = FEED_FORWARD * width
        layer = TransformerEncoderLayer(width, heads, hidden, 0.0, activation="gelu", batch_first=True)
        encoder = TransformerEncoder(layer, layers)
        encoder.reset_parameters()
    return encoder.eval()
