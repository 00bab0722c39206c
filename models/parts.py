"""Parts that models share: normalisation layers by name, and a check of the number of heads."""

from __future__ import annotations

import torch

from gnnsparse.errors import bad_value, check_choice, check_integer

__all__ = ["NORMS", "check_heads", "check_layers", "make_norm"]

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
