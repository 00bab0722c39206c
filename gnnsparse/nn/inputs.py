"""Checks of a layer's sizes, and of its input against its parameters, which all layers share."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.module import (
    _global_backward_hooks,
    _global_backward_pre_hooks,
    _global_forward_hooks,
    _global_forward_pre_hooks,
)

from gnnsparse.errors import bad_type, bad_value, check_integer
from gnnsparse.sparse.operand import SparseOperand

#: Features of sources and of targets; None: there are none of targets.
Nodes = tuple[torch.Tensor, torch.Tensor | None]

#: The most features that a layer takes, and heads: the sizes of its parameters then fit into 64 bits.
MOST_FEATURES = 2**30


def check_features(
    name: str,
    x: Any,
    features: int | None,
    parameter: torch.Tensor | None = None,
    *,
    dim: int | None = 2,
    device: torch.device | None = None,
) -> torch.Tensor:
    """Return `x` [..., features] if a layer can take it, a dense floating-point tensor; else raise.

    `dim` None accepts one dimension or more. The device, and without autocast the dtype, are those of the
    `parameter` that multiplies x.
    """
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided or not x.is_floating_point():
        bad_type(name, x, _accepted(features, dim))
    # torch.compile compares sizes that it keeps symbolic by != and not by `in`.
    wrong_dim = x.dim() == 0 or (dim is not None and x.dim() != dim)
    if wrong_dim or (features is not None and x.shape[-1] != features):
        bad_value(name, f"has shape {tuple(x.shape)}; accepted: {_accepted(features, dim)}")
    device = device if parameter is None else parameter.device
    if device not in (None, x.device):
        bad_value(name, f"is on {x.device}; accepted: {device}, as the layer")
    if parameter is None or x.dtype == parameter.dtype or torch.is_autocast_enabled(x.device.type):
        return x
    own = str(parameter.dtype).removeprefix("torch.")
    bad_type(name, x, f"a tensor of dtype {own}, as the layer's parameters, or any under autocast")


def _accepted(features: int | None, dim: int | None) -> str:
    last = "features" if features is None else features
    return f"a floating-point tensor {'[nodes' if dim == 2 else '[...'}, {last}]"


def check_channels(in_channels: Any) -> tuple[int, int]:
    """Return the features of sources and of targets that `in_channels` says, an integer or a pair of them."""
    pair = in_channels if isinstance(in_channels, (tuple, list)) else (in_channels, in_channels)
    if len(pair) != 2:
        bad_value("in_channels", f"has {len(pair)} numbers; accepted: a positive integer, or two")
    sources, targets = (check_integer("in_channels", width, most=MOST_FEATURES) for width in pair)
    return sources, targets


def check_edge_dim(edge_dim: Any) -> int | None:
    """Return the number of an edge's features, None: there are none; else raise."""
    return None if edge_dim is None else check_integer("edge_dim", edge_dim, most=MOST_FEATURES)


def check_heads(heads: Any, out_channels: Any) -> None:
    """Raise unless `heads` and `out_channels` are positive integers, whose product is not too large."""
    check_integer("out_channels", out_channels, most=MOST_FEATURES)
    check_integer("heads", heads, most=MOST_FEATURES)
    if heads * out_channels > MOST_FEATURES:
        bad_value(
            "heads", f"got {heads} of {out_channels} features; accepted: at most {MOST_FEATURES} in all"
        )


def check_nodes(
    x: Any,
    channels: tuple[int | None, int | None],
    parameter: torch.Tensor | None = None,
    *,
    device: torch.device | None = None,
) -> Nodes:
    """Return features of sources and of targets (maybe None), given as one tensor or a pair."""
    if not isinstance(x, (tuple, list)):
        x = check_features("x", x, channels[0], parameter, device=device)
        return x, check_features("x", x, channels[1])
    if len(x) != 2:
        bad_value("x", f"has {len(x)} elements; accepted: a tensor, or those of sources and of targets")
    sources = check_features("x[0]", x[0], channels[0], parameter, device=device)
    if x[1] is None:
        return sources, None
    return sources, check_features("x[1]", x[1], channels[1], parameter, device=device)


def graph_size(nodes: Nodes, size: Any, adj: Any) -> tuple[int, int]:
    """Return (sources, targets): `size` if given, else by the features, or by the operand's rows."""
    sources, targets = nodes[0].shape[0], None if nodes[1] is None else nodes[1].shape[0]
    if size is not None:
        if not isinstance(size, (tuple, list)) or len(size) != 2:
            bad_type("size", size, "the numbers of sources and of targets, or None")
        given = tuple(check_integer("size", count, least=0, accepted="two integers") for count in size)
        if given != (sources, given[1] if targets is None else targets):
            has = _counts(sources, targets)
            bad_value("size", f"got {given}, x has {has}; accepted: their numbers, or None")
        targets = given[1]
    if isinstance(adj, SparseOperand):
        rows, cols = adj.shape
        if (cols, rows) != (sources, rows if targets is None else targets):
            has = _counts(sources, targets)
            bad_value("x", f"has {has}, the operand {cols} and {rows}; accepted: as many as the operand has")
        return cols, rows
    return sources, sources if targets is None else targets


def _counts(sources: int, targets: int | None) -> str:
    return f"{sources} sources" + ("" if targets is None else f" and {targets} targets")


def is_watched(module: torch.nn.Module) -> bool:
    """Return whether hooks, its own or of all modules, see a module's calls, or a `forward` was set in it."""
    return bool(
        _global_forward_hooks
        or _global_forward_pre_hooks
        or _global_backward_hooks
        or _global_backward_pre_hooks
        or "forward" in module.__dict__
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
    )


def is_plain_linear(module: torch.nn.Module, kind: type[torch.nn.Module] = torch.nn.Linear) -> bool:
    """Return whether nothing watches a layer of the class `kind`, whose `forward` is a product."""
    return type(module) is kind and not is_watched(module)
