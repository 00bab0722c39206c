"""The reordering "rcm": reverse Cuthill-McKee, which reduces the bandwidth of a matrix."""

from __future__ import annotations

import torch

from gnnsparse.preprocess.reorder.registry import register_reordering
from gnnsparse.sparse.csr import Csr

__all__ = ["reverse_cuthill_mckee"]


@register_reordering(
    "rcm",
    square=True,
    symmetric=True,
    undirected=True,
    most_nnz=2**31 - 1,  # SciPy's implementation has indices of 32 bits
)
def reverse_cuthill_mckee(csr: Csr) -> torch.Tensor:
    """Orders rows by reverse Cuthill-McKee on A + A^T (scipy's implementation)."""
    import numpy as np
    import scipy.sparse
    from scipy.sparse import csgraph

    ones = np.ones(csr.nnz, dtype=np.int8)
    indptr = csr.indptr.numpy().astype(np.int32)
    a = scipy.sparse.csr_array((ones, csr.indices.numpy(), indptr), shape=(csr.rows, csr.cols))
    return torch.from_numpy(csgraph.reverse_cuthill_mckee(a, symmetric_mode=True).astype(np.int64))
