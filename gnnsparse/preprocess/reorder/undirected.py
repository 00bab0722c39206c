"""The undirected structure A + A^T, on which some reorderings work."""

from __future__ import annotations

import torch

from gnnsparse.sparse.csr import Csr, coo_to_csr

__all__ = ["undirected"]


def undirected(csr: Csr) -> Csr:
    """Returns the structure of A + A^T without its diagonal, for a square A on the CPU.

    The result is symmetric, its columns ascend in each row, and no row has a column twice: libraries that
    partition graphs take that for granted.

    Raises:
        ValueError: A has 2^31 or more nonzeros.
        MemoryError: the result does not fit into this machine's memory.
    """
    row, col = csr.row_index().to(torch.int32), csr.indices
    off_diagonal = row != col
    row, col = row[off_diagonal], col[off_diagonal]
    return coo_to_csr(torch.cat([row, col]), torch.cat([col, row]), csr.rows, csr.cols)[0]
