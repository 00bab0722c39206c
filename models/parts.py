"""What the models share: normalisation layers by name, a check of heads."""

from __future__ import annotations

import torch

from gnnsparse.errors import bad_value, check_choice, check_integer

__all__ = ["NORMS", "check_heads", "make_norm"]

#: What a model's `norm` accepts.
NORMS: dict[str, type[torch.nn.Module]] = {
    "none": torch.nn.Identity,
    "batch": torch.nn.BatchNorm1d,
    "layer": torch.nn.LayerNorm,
}


def make_norm(norm: str, width: int) -> torch.nn.Module:
    """The layer "none", "batch" or "layer" of so many features."""
    return NORMS[check_choice("norm", norm, tuple(NORMS))](width)


def check_heads(heads: int, width: int) -> int:
    """Return `heads` if the features can be shared out among so many heads, else raise."""
    if width % check_integer("heads", heads):
        bad_value("heads", f"got {heads}; accepted: a divisor of hidden_channels, {width}")
    return heads
