"""Parts that models share: normalisation layers by name, and a check of the number of heads."""

from __future__ import annotations

import torch

from gnnsparse.errors import bad_value, check_choice, check_integer

__all__ = ["NORMS", "check_heads", "make_norm"]

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
