"""What models share: options, normalisation layers by name, and what a layer gets of sampled blocks."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse import SparseOperand
from gnnsparse.errors import bad_value, check_choice, check_flag, check_integer, check_share

__all__ = [
    "NORMS", "Adjacency", "BlockModel", "GraphModel", "check_heads", "check_layers", "make_norm", "nodes_of",
    "of_layer", "of_targets",
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
    """Make the normalisation layer "none", "batch" or "layer" for `width` features."""
    return NORMS[check_choice("norm", norm, tuple(NORMS))](width)


def check_heads(heads: int, width: int) -> int:
    """Return `heads` if it divides the number of features `width`, else raises."""
    if width % check_integer("heads", heads):
        bad_value("heads", f"got {heads}; accepted: a divisor of hidden_channels, {width}")
    return heads


def check_layers(num_layers: int) -> int:
    """Return the number of layers if it is one from 1 to MAX_LAYERS, else raises."""
    if check_integer("num_layers", num_layers) > MAX_LAYERS:
        bad_value("num_layers", f"got {num_layers}; accepted: at most {MAX_LAYERS}")
    return num_layers


def of_layer(adj: Adjacency, layer: int) -> Any:
    """Return the graph of a layer: that of all layers, or its own sampled block."""
    return adj[layer] if isinstance(adj, list) else adj


def of_targets(x: torch.Tensor, adj: Any) -> torch.Tensor:
    """Return the features of the targets of a layer's graph, of a sampled block the first rows of `x`."""
    if isinstance(adj, SparseOperand) and adj.shape[0] < x.shape[0]:
        return x[: adj.shape[0]]
    return x


def nodes_of(x: torch.Tensor, adj: Any) -> Any:
    """Return `x`, for a sampled block with the features of its targets: what a convolution of both takes."""
    targets = of_targets(x, adj)
    return x if targets is x else (x, targets)


class GraphModel(torch.nn.Module):
    """A model of a graph: the options that all have, checked, and what training asks of a model.

    It has its convolutions as `convs`, and a linear layer before them as `lin1`.

    Args:
        hidden_channels: features of the layers.
        dropout: probability of dropout in training, in [0, 1).
        residual: whether the input of a layer is added to its output, if the shapes are equal.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """

    #: Nothing looks at several rows but batch norm, pooling and products with the operand.
    ignores_padding = True
    #: It takes gnnsparse.nn.sparse_features.SparseFeatures; dropout and a linear layer compute with nonzeros.
    takes_sparse_features = True

    def __init__(self, hidden_channels: int, dropout: float, residual: bool) -> None:
        super().__init__()
        self.dropout = check_share("dropout", dropout)
        self.residual = check_flag("residual", residual)
        check_integer("hidden_channels", hidden_channels)

    @property
    def first_layer(self) -> torch.nn.Module:
        """The layer whose parameters have weight decay with `optimizer.decay="first"`."""
        layer = self._modules.get("lin1")
        return self.convs[0] if layer is None else layer  # type: ignore[index, return-value]


class BlockModel(GraphModel):
    """A GraphModel that takes sampled blocks, one for each convolution, in place of one graph."""

    convs: torch.nn.ModuleList

    @property
    def num_convolutions(self) -> int:
        """The number of sampled blocks that `forward` takes in place of one graph."""
        return len(self.convs)
