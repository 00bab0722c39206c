"""The reordering "metis": rows grouped by the parts of a METIS partition."""

from __future__ import annotations

import torch

from gnnsparse.preprocess.reorder.registry import Option, register_reordering
from gnnsparse.sparse.csr import Csr

__all__ = ["order_by_parts"]


@register_reordering(
    "metis",
    options={"part_size": Option(int, 128, least=1)},
    square=True,
    symmetric=True,
    undirected=True,
    most_nnz=2**31 - 1,  # METIS may be built with indices of 32 bits
    package="pymetis",
)
def order_by_parts(csr: Csr, part_size: int) -> torch.Tensor:
    """Groups rows by METIS's k-way partition of A + A^T into parts of about `part_size` rows (pymetis)."""
    import pymetis

    parts = -(-csr.rows // part_size)
    if parts <= 1 or csr.nnz == 0:
        return torch.arange(csr.rows, device="cpu")
    adjacency = pymetis.CSRAdjacency(adj_starts=csr.indptr.numpy(), adjacent=csr.indices.numpy())
    _, membership = pymetis.part_graph(parts, adjacency)
    return torch.argsort(torch.as_tensor(membership, device="cpu"), stable=True)
