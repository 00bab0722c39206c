"""Rows by their number of nonzeros."""

from __future__ import annotations

import torch

from gnnsparse.csr import Csr
from gnnsparse.preprocess.reorder.registry import register_reordering

__all__ = ["order_by_degree"]


@register_reordering("degree")
def order_by_degree(csr: Csr) -> torch.Tensor:
    """Longest rows first."""
    return torch.argsort(csr.degrees, descending=True, stable=True)
