"""Parts that models share: normalisation layers by name, checks, and what a layer gets of sampled blocks."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse import SparseOperand
from gnnsparse.errors import bad_value, check_choice, check_integer

__all__ = [
    "NORMS", "Adjacency", "check_heads", "check_layers", "make_norm", "nodes_of", "of_layer", "of_targets",
]  # fmt: skip

#: The graph that a model gets: an operand, an edge_index, or the operands of sampled blocks, one a layer.
Adjacency = SparseOperand | torch.Tensor | list[SparseOperand]

#: The most layers that a model may have. Making many more takes minutes before anything is computed.
MAX_LAYERS = 10_000

#: The layers that a model's `norm` names.
NORMS: dict[str, type[torch.nn.Module]] = {
    "none": torch.nn.Identity,
    "batch": torch.nn.BatchNorm1d,
    "layer": torch.nn.LayerNorm,
}


def make_norm(norm: str, width: int) -> torch.nn.Module:
    """Makes the normalisation layer "none", "batch" or "layer" for `width` features."""
    return NORMS[check_choice("norm", norm, tuple(NORMS))](width)


def check_heads(heads: int, width: int) -> int:
    """Returns `heads` if it divides the number of features `width`, else raises."""
    if width % check_integer("heads", heads):
        bad_value("heads", f"got {heads}; accepted: a divisor of hidden_channels, {width}")
    return heads


def check_layers(num_layers: int) -> int:
    """Returns the number of layers if it is one from 1 to MAX_LAYERS, else raises."""
    if check_integer("num_layers", num_layers) > MAX_LAYERS:
        bad_value("num_layers", f"got {num_layers}; accepted: at most {MAX_LAYERS}")
    return num_layers


def of_layer(adj: Adjacency, layer: int) -> Any:
    """Returns the graph of a layer: that of all layers, or its own sampled block."""
    return adj[layer] if isinstance(adj, list) else adj


def of_targets(x: torch.Tensor, adj: Any) -> torch.Tensor:
    """Returns the features of the targets of a layer's graph, of a sampled block the first rows of `x`."""
    if isinstance(adj, SparseOperand) and adj.shape[0] < x.shape[0]:
        return x[: adj.shape[0]]
    return x


def nodes_of(x: torch.Tensor, adj: Any) -> Any:
    """Returns `x`, for a sampled block with the features of its targets: what a convolution of both takes."""
    targets = of_targets(x, adj)
    return x if targets is x else (x, targets)
