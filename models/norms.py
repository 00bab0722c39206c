"""Normalisation layers by name."""

from __future__ import annotations

import torch

from gnnsparse.errors import check_choice

__all__ = ["make_norm"]

_NORMS: dict[str, type[torch.nn.Module]] = {
    "none": torch.nn.Identity,
    "batch": torch.nn.BatchNorm1d,
    "layer": torch.nn.LayerNorm,
}


def make_norm(norm: str, width: int) -> torch.nn.Module:
    """The layer "none", "batch" or "layer" of so many features."""
    return _NORMS[check_choice("norm", norm, tuple(_NORMS))](width)
