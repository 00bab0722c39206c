"""The check of a layer's input against its parameters, which all layers share."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value

__all__ = ["MOST_FEATURES", "check_features"]

#: The most features that a layer takes, and heads: the sizes of its parameters then fit into 64 bits.
MOST_FEATURES = 2**30


def check_features(
    name: str, x: Any, features: int | None, parameter: torch.Tensor | None = None, dim: int | None = 2
) -> torch.Tensor:
    """Returns `x` if a layer can take it, a dense floating-point tensor; else raises.

    Args:
        name: the argument.
        x: the input [..., features].
        features: its last size; None: any.
        parameter: what it is multiplied by, whose device and dtype it must have. Under autocast the dtypes
            may differ. None: any.
        dim: its number of dimensions; None: at least one.
    """
    last = "features" if features is None else features
    accepted = f"a floating-point tensor {'[nodes' if dim == 2 else '[...'}, {last}]"
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided or not x.is_floating_point():
        bad_type(name, x, accepted)
    if x.dim() == 0 or dim not in (None, x.dim()) or features not in (None, x.shape[-1]):
        bad_value(name, f"has shape {tuple(x.shape)}; accepted: {accepted}")
    if parameter is None:
        return x
    if x.device != parameter.device:
        bad_value(name, f"is on {x.device}; accepted: {parameter.device}, as the layer")
    if x.dtype != parameter.dtype and not torch.is_autocast_enabled(x.device.type):
        own = str(parameter.dtype).removeprefix("torch.")
        bad_type(name, x, f"a tensor of dtype {own}, as the layer's parameters, or any under autocast")
    return x
