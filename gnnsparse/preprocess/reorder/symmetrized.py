"""The undirected structure A + A^T, on which some reorderings work."""

from __future__ import annotations

from typing import Any

import numpy as np

from gnnsparse.csr import Csr

__all__ = ["symmetrized"]


def symmetrized(csr: Csr) -> Any:
    """Returns the structure of A + A^T without its diagonal, for a square A, as a scipy CSR array."""
    import scipy.sparse

    ones = np.ones(csr.nnz, dtype=np.int8)
    a = scipy.sparse.csr_array((ones, csr.indices.numpy(), csr.indptr.numpy()), shape=(csr.rows,) * 2)
    a = (a + a.T).tocsr()
    a.setdiag(0)
    a.eliminate_zeros()
    return a
