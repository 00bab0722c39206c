"""Networks that say what edges are: a model of nodes, whose outputs are embeddings, and an EdgeHead."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse.nn.edge_head import EdgeHead, EdgeScorer
from models.registry import register_around

__all__ = ["Labelled"]


class Labelled(EdgeScorer):
    """A model of nodes with `hidden_channels` outputs, and an EdgeHead on them.

    Attributes:
        encoder_class: the class of the model of nodes.

    Args:
        in_channels: features of a node.
        hidden_channels: features of the layers, and of an embedding.
        out_channels: number of classes, labels or numbers to predict.
        edge_channels: features of an edge, as the data set has them.
        options: the other options of the model of nodes, of which `dropout` is that of the head as well.

    The errors are those of GraphModel.
    """

    encoder_class: type[torch.nn.Module]

    def __init__(
        self,
        in_channels: int,
        hidden_channels: int,
        out_channels: int,
        edge_channels: int = 0,
        **options: Any,
    ) -> None:
        encoder: Any = self.encoder_class(in_channels, hidden_channels, hidden_channels, **options)
        super().__init__(encoder, EdgeHead(hidden_channels, out_channels, edge_channels, encoder.dropout))


register_around(
    Labelled, "edge",
    ("gcn", "agnn", "graph_transformer", "gat", "gatv2", "graphsage", "gin", "gps"), edge_channels=0,
)  # fmt: skip
