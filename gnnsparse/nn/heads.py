"""What the graph layers with several heads share: initial values, joined heads, checks of options."""

from __future__ import annotations

import math
from typing import Any

import torch

from gnnsparse.errors import bad_value, check_flag
from gnnsparse.nn.edges import Edges, Fill

__all__ = ["check_edge_attr", "edge_features", "glorot_", "joined", "wants_weights"]


def glorot_(tensor: torch.Tensor) -> None:
    """Draws a tensor uniformly by the rule of Glorot and Bengio (2010), from its last two sizes, as PyG."""
    bound = math.sqrt(6 / (tensor.shape[-2] + tensor.shape[-1]))
    torch.nn.init.uniform_(tensor, -bound, bound)


def joined(out: torch.Tensor, concat: bool) -> torch.Tensor:
    """Returns the outputs of heads [nodes, heads, features] side by side, or their mean."""
    return out.flatten(1) if concat else out.mean(dim=1)


def wants_weights(return_attention_weights: Any) -> bool:
    """Returns whether a call returns the weights: False for None. Else raises unless it is a bool."""
    if return_attention_weights is None:
        return False
    return check_flag("return_attention_weights", return_attention_weights)


def check_edge_attr(edge_attr: Any, edge_dim: int | None) -> None:
    """Raises a ValueError if a layer without `edge_dim` is given features of edges."""
    if edge_attr is not None and edge_dim is None:
        bad_value("edge_attr", "goes with edge_dim, the number of an edge's features; accepted: None")


def edge_features(
    edges: Edges, edge_attr: Any, adj: Any, linear: torch.nn.Linear | None, fill: Fill = 0.0
) -> torch.Tensor | None:
    """Returns the features of the edges of a layer's call, or None if there are none.

    Args:
        edges: the edges.
        edge_attr: the argument of `forward`.
        adj: the operand or edge_index.
        linear: the linear layer that the features are made for.
        fill: the features of self-loops.
    """
    if edge_attr is None or linear is None:
        return None
    return edges.features(edge_attr, adj, linear.weight, fill)
