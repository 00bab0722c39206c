"""The rows of a matrix as the kernels of edge functions take them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from gnnsparse.sparse.kernel_cache import KernelCache


class Rows(NamedTuple):
    """One orientation of a matrix, whose nonzeros are edges.

    Attributes:
        kernels: the arrays; columns of a row may be repeated.
        edge_ids: int32 [nnz], the caller's number of the edge of each nonzero; None: they are equal.
        num_edges: how many numbers there are.
    """

    kernels: KernelCache
    edge_ids: torch.Tensor | None
    num_edges: int
