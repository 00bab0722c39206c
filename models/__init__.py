"""The models that train.py knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from models.agnn import AGNN
from models.gcn import GCN
from models.graph_transformer import GraphTransformer
from models.transformer import Transformer

__all__ = ["AGNN", "GCN", "MODELS", "GraphTransformer", "Model", "Transformer"]


@dataclass(frozen=True)
class Model:
    """A model for the classification of nodes or of sequences.

    Attributes:
        build: called with in_channels, out_channels and the options of configs/model/NAME.yaml. For
            nodes, the module it returns maps x [nodes, in_channels] and an operand to logits; for
            sequences tokens [batch, length] below in_channels, the operand of a pattern and a padding
            mask.
        values: the weights of the operand it wants, as in `gnnsparse.prepare`.
        sequences: whether it classifies sequences.
    """

    build: Callable[..., torch.nn.Module]
    values: str | None
    sequences: bool = False


#: By the name in configs/model. Of "gcn" weights attention takes the self-loops alone.
MODELS = {
    "gcn": Model(GCN, values="gcn"),
    "agnn": Model(AGNN, values="gcn"),
    "graph_transformer": Model(GraphTransformer, values="gcn"),
    "transformer": Model(Transformer, values=None, sequences=True),
}
