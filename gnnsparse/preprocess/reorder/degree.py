"""The reordering "degree": rows by their number of nonzeros."""

from __future__ import annotations

import torch

from gnnsparse.preprocess.reorder.registry import register_reordering
from gnnsparse.sparse.csr import Csr

__all__ = ["order_by_degree"]


@register_reordering("degree")
def order_by_degree(csr: Csr) -> torch.Tensor:
    """Orders rows by their number of nonzeros, longest first; rows of equal length keep their order."""
    return torch.argsort(csr.degrees, descending=True, stable=True)
