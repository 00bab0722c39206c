"""Row orders of the literature on graphs and sparse matrices: "degree", "rcm", "metis" and "community".

It stands alone, as every file of reorderings does: registering is all that ties it to the others.
"""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.formats.csr import Csr
from gnnsparse.preprocess.reorder.registry import register_reordering
from gnnsparse.registry import Option


@register_reordering("degree")
def order_by_degree(csr: Csr) -> torch.Tensor:
    """Order rows by their number of nonzeros, longest first; rows of equal length keep their order."""
    return torch.argsort(csr.degrees, descending=True, stable=True)


@register_reordering(
    "rcm",
    square=True,
    symmetric=True,
    undirected=True,
    most_nnz=2**31 - 1,  # SciPy's implementation has indices of 32 bits
)
def reverse_cuthill_mckee(csr: Csr) -> torch.Tensor:
    """Order rows by reverse Cuthill-McKee on A + A^T (scipy's implementation)."""
    import numpy as np
    import scipy.sparse
    from scipy.sparse import csgraph

    ones = np.ones(csr.nnz, dtype=np.int8)
    indptr = csr.indptr.numpy().astype(np.int32)
    a = scipy.sparse.csr_array((ones, csr.indices.numpy(), indptr), shape=(csr.rows, csr.cols))
    return torch.from_numpy(csgraph.reverse_cuthill_mckee(a, symmetric_mode=True).astype(np.int64))


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
    """Group rows by METIS's k-way partition of A + A^T into parts of about `part_size` rows (pymetis)."""
    import pymetis

    parts = -(-csr.rows // part_size)
    if parts <= 1 or csr.nnz == 0:
        return torch.arange(csr.rows, device="cpu")
    adjacency = pymetis.CSRAdjacency(adj_starts=csr.indptr.numpy(), adjacent=csr.indices.numpy())
    _, membership = pymetis.part_graph(parts, adjacency)
    return torch.argsort(torch.as_tensor(membership, device="cpu"), stable=True)


@register_reordering(
    "community",
    options={"rounds": Option(int, 10, least=1, most=1000), "resolution": Option(float, 1.0, above=0)},
    square=True,
    symmetric=True,
)
def order_by_communities(csr: Csr, rounds: int, resolution: float) -> torch.Tensor:
    """Order rows by the hierarchy of communities of A + A^T (native code, in all threads).

    Communities are found by local moving in levels (Louvain: Blondel et al., "Fast unfolding of communities
    in large networks", 2008). Rows of a community are neighbours, and so are communities of one community of
    the next level (Arai et al., "Rabbit Order", IPDPS 2016).

    Args:
        csr: a square matrix.
        rounds: most sweeps of local moving at each level.
        resolution: resolution of the modularity; a larger one makes smaller communities.
    """
    threads = torch.get_num_threads()
    csr.check_scratch(bytes_per_column=128 + 4 * threads)
    order = torch.empty(csr.rows, dtype=torch.int32, device="cpu")
    _native.community_order(csr.view, rounds, resolution, order, threads)
    return order
