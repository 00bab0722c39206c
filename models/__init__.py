"""The models that train.py knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from models.gcn import GCN

__all__ = ["GCN", "MODELS", "Model"]


@dataclass(frozen=True)
class Model:
    """A model for node classification.

    Attributes:
        build: called with in_channels, out_channels and the options of configs/model/NAME.yaml; the
            module it returns maps x [nodes, in_channels] and an operand to logits.
        values: the weights of the operand it wants, as in `gnnsparse.prepare`.
    """

    build: Callable[..., torch.nn.Module]
    values: str | None


#: By the name in configs/model.
MODELS = {"gcn": Model(GCN, values="gcn")}
