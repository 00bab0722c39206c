"""The reordering "rcm": reverse Cuthill-McKee, which reduces the bandwidth of a matrix."""

from __future__ import annotations

import torch

from gnnsparse.csr import Csr
from gnnsparse.preprocess.reorder.registry import register_reordering
from gnnsparse.preprocess.reorder.symmetrized import symmetrized

__all__ = ["reverse_cuthill_mckee"]


@register_reordering("rcm", square=True, symmetric=True)
def reverse_cuthill_mckee(csr: Csr) -> torch.Tensor:
    """Orders rows by reverse Cuthill-McKee on A + A^T (scipy's implementation)."""
    import numpy as np
    from scipy.sparse import csgraph

    a = symmetrized(csr)
    a.indices, a.indptr = a.indices.astype(np.int32), a.indptr.astype(np.int32)
    return torch.from_numpy(csgraph.reverse_cuthill_mckee(a, symmetric_mode=True).astype(np.int64))
