"""The check of a layer's input against its parameters, which all layers share."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value

__all__ = ["MOST_FEATURES", "check_features"]

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
    """Returns `x` if a layer can take it, a dense floating-point tensor; else raises.

    Args:
        name: the argument.
        x: the input [..., features].
        features: its last size; None: any.
        parameter: what it is multiplied by, whose device and dtype it must have. Under autocast the dtypes
            may differ. None: any.
        dim: its number of dimensions; None: at least one.
        device: where it must be, if there is no parameter; None: anywhere.

    Raises:
        TypeError: `x` is of another type, layout or dtype.
        ValueError: it has another shape or device.
    """
    last = "features" if features is None else features
    accepted = f"a floating-point tensor {'[nodes' if dim == 2 else '[...'}, {last}]"
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided or not x.is_floating_point():
        bad_type(name, x, accepted)
    if x.dim() == 0 or dim not in (None, x.dim()) or features not in (None, x.shape[-1]):
        bad_value(name, f"has shape {tuple(x.shape)}; accepted: {accepted}")
    device = device if parameter is None else parameter.device
    if device not in (None, x.device):
        bad_value(name, f"is on {x.device}; accepted: {device}, as the layer")
    if parameter is None or x.dtype == parameter.dtype or torch.is_autocast_enabled(x.device.type):
        return x
    own = str(parameter.dtype).removeprefix("torch.")
    bad_type(name, x, f"a tensor of dtype {own}, as the layer's parameters, or any under autocast")
