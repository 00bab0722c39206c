"""The projections of multi-head attention to queries, keys and values, with torch's names and layouts.

The parameters are `in_proj_weight`, or `q_proj_weight`, `k_proj_weight` and `v_proj_weight` where keys or
values have other features than queries, and `in_proj_bias`. Rows are those of queries, keys and values, one
head after another. Keys and values may have fewer heads than queries (grouped-query attention, Ainslie et al.
2023).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

__all__ = ["draw_projections", "make_projections", "project", "query_weight"]

_APART = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


def make_projections(
    layer: torch.nn.Module, features: tuple[int, int, int], heads: tuple[int, int], bias: bool, options: Any
) -> None:
    """Registers the parameters in a layer, uninitialised.

    Args:
        layer: the layer.
        features: features of a token of the queries, the keys and the values.
        heads: features of all heads of the queries, and of all heads of the keys.
        bias: whether there is a bias.
        options: dtype and device of the parameters.
    """
    rows = (heads[0], heads[1], heads[1])
    together = len(set(features)) == 1
    if together:
        layer.in_proj_weight = torch.nn.Parameter(torch.empty(sum(rows), features[0], **options))
    else:
        layer.register_parameter("in_proj_weight", None)
    for name, count, width in zip(_APART, rows, features, strict=True):
        apart = None if together else torch.nn.Parameter(torch.empty(count, width, **options))
        layer.register_parameter(name, apart)
    values = torch.nn.Parameter(torch.empty(sum(rows), **options)) if bias else None
    layer.register_parameter("in_proj_bias", values)


def query_weight(layer: Any) -> torch.Tensor:
    """Returns the parameter with the weights for queries, which may be one with those for keys and values."""
    together: torch.Tensor | None = layer.in_proj_weight
    return layer.q_proj_weight if together is None else together


def _weights(layer: Any) -> tuple[torch.Tensor, ...]:
    """Returns the weights for queries, keys and values, views where they are one parameter."""
    if layer.in_proj_weight is None:
        return layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight
    return layer.in_proj_weight.split_with_sizes(_rows(layer))


def _rows(layer: Any) -> list[int]:
    keys = layer.num_kv_heads * layer.head_dim
    return [layer.embed_dim, keys, keys]


def draw_projections(layer: Any) -> None:
    """Draws the weights and sets the bias to 0, in the way of torch.nn.MultiheadAttention."""
    weights = [layer.in_proj_weight]
    if layer.in_proj_weight is None:
        weights = [layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight]
    for weight in weights:
        torch.nn.init.xavier_uniform_(weight)
    if layer.in_proj_bias is not None:
        torch.nn.init.zeros_(layer.in_proj_bias)


def project(layer: Any, inputs: list[torch.Tensor], itself: bool) -> list[torch.Tensor]:
    """Computes queries, keys and values: of one input tensor in one product.

    Args:
        layer: the layer.
        inputs: the tokens of queries, keys and values, [..., tokens, features].
        itself: whether these are one tensor.

    Returns:
        Views [..., heads, tokens, head_dim], for keys and values with the heads that these have.
    """
    bias, rows, width = layer.in_proj_bias, _rows(layer), layer.head_dim
    if itself and (weight := layer.in_proj_weight) is not None:
        # Not `split`, a function in Python that takes twice as long.
        parts = F.linear(inputs[0], weight, bias).split_with_sizes(rows, -1)
    else:
        biases = (None, None, None) if bias is None else bias.split_with_sizes(rows)
        parts = tuple(F.linear(x, w, b) for x, w, b in zip(inputs, _weights(layer), biases, strict=True))
    return [x.unflatten(-1, (-1, width)).transpose(-3, -2) for x in parts]
