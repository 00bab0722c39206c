"""The reordering "metis": rows grouped by the parts of a METIS partition."""

from __future__ import annotations

import torch

from gnnsparse.csr import Csr
from gnnsparse.preprocess.reorder.registry import Option, register_reordering
from gnnsparse.preprocess.reorder.symmetrized import symmetrized

__all__ = ["order_by_parts"]


@register_reordering(
    "metis",
    options={"part_size": Option(int, 128, least=1)},
    square=True,
    symmetric=True,
    package="pymetis",
)
def order_by_parts(csr: Csr, part_size: int) -> torch.Tensor:
    """Groups rows by METIS's k-way partition of A + A^T into parts of about `part_size` rows (pymetis)."""
    import pymetis

    parts = -(-csr.rows // part_size)
    if parts <= 1:
        return torch.arange(csr.rows, device="cpu")
    a = symmetrized(csr)
    adjacency = pymetis.CSRAdjacency(adj_starts=a.indptr, adjacent=a.indices)
    _, membership = pymetis.part_graph(parts, adjacency)
    return torch.argsort(torch.as_tensor(membership, device="cpu"), stable=True)
