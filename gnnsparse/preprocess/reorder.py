"""Row orders that bring rows with common columns together."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gnnsparse.csr import Csr
from gnnsparse.errors import bad_type, bad_value, check_choice
from gnnsparse.graph import SparseGraph

__all__ = ["REORDERINGS", "Locality", "Reordering", "reorder"]

#: Heights of the row groups whose distinct columns are counted.
_HEIGHTS = (8, 32)


@dataclass(frozen=True)
class Locality:
    """How many columns row groups share: what a kernel has to gather.

    Attributes:
        columns_8, columns_32: distinct columns summed over groups of 8 and of 32 rows.
        blocks: 8 x 16 blocks of the window format.
        density: nonzeros per element of the 8-row groups' columns.
    """

    columns_8: int
    columns_32: int
    blocks: int
    density: float


@dataclass(frozen=True, eq=False)
class Reordering:
    """The result of `reorder`.

    Attributes:
        method: its name.
        order: int32 [rows] on the CPU: row i of the reordered matrix is row order[i]. None: as given.
        seconds: wall time of the method.
        before, after: locality of both orders.
    """

    method: str
    order: torch.Tensor | None
    seconds: float
    before: Locality
    after: Locality

    def report(self) -> dict[str, Any]:
        """Everything but the order, as plain values."""
        return {
            "method": self.method,
            "seconds": self.seconds,
            "before": asdict(self.before),
            "after": asdict(self.after),
        }


def _locality(csr: Csr, order: torch.Tensor | None) -> Locality:
    of_height = {h: csr.count_columns(h, order) for h in _HEIGHTS}
    columns_8 = int(of_height[8].sum())
    return Locality(
        columns_8=columns_8,
        columns_32=int(of_height[32].sum()),
        blocks=int(((of_height[8] + 15) // 16).sum()),
        density=csr.nnz / max(8 * columns_8, 1),
    )


def _check_square(csr: Csr, method: str) -> None:
    if csr.rows != csr.cols:
        bad_value("reorder", f"{method!r} needs a square matrix, got {csr.rows} x {csr.cols}")


def _symmetrized(csr: Csr, method: str) -> Any:
    """The structure of A + A^T without its diagonal, as scipy CSR."""
    import scipy.sparse

    _check_square(csr, method)
    ones = torch.ones(csr.nnz, dtype=torch.int8).numpy()
    a = scipy.sparse.csr_array((ones, csr.indices.numpy(), csr.indptr.numpy()), shape=(csr.rows,) * 2)
    a = (a + a.T).tocsr()
    a.setdiag(0)
    a.eliminate_zeros()
    return a


def _degree(csr: Csr) -> torch.Tensor:
    """Longest rows first."""
    return torch.argsort(csr.degrees, descending=True, stable=True)


def _rcm(csr: Csr) -> torch.Tensor:
    """Reverse Cuthill-McKee on A + A^T (scipy)."""
    import numpy as np
    from scipy.sparse.csgraph import reverse_cuthill_mckee

    a = _symmetrized(csr, "rcm")
    a.indices, a.indptr = a.indices.astype(np.int32), a.indptr.astype(np.int32)
    return torch.from_numpy(reverse_cuthill_mckee(a, symmetric_mode=True).astype(np.int64))


def _metis(csr: Csr, part_size: int = 128) -> torch.Tensor:
    """Rows grouped by METIS's k-way parts of about `part_size` rows (pymetis)."""
    if isinstance(part_size, bool) or not isinstance(part_size, int):
        bad_type("part_size", part_size, "an integer")
    if part_size < 1:
        bad_value("part_size", f"got {part_size}; accepted: at least 1")
    try:
        import pymetis
    except ImportError as error:
        raise ImportError("reorder='metis' needs the package pymetis: pip install pymetis") from error
    parts = -(-csr.rows // part_size)
    if parts <= 1:
        return torch.arange(csr.rows)
    a = _symmetrized(csr, "metis")
    adjacency = pymetis.CSRAdjacency(adj_starts=a.indptr, adjacent=a.indices)
    _, membership = pymetis.part_graph(parts, adjacency)
    return torch.argsort(torch.as_tensor(membership), stable=True)


def _community(csr: Csr, rounds: int = 10, resolution: float = 1.0) -> torch.Tensor:
    """Rows grouped by communities of A + A^T, and these by their communities (native, all threads)."""
    if isinstance(rounds, bool) or not isinstance(rounds, int):
        bad_type("rounds", rounds, "an integer")
    if not 1 <= rounds <= 1000:
        bad_value("rounds", f"got {rounds}; accepted: 1 to 1000")
    if isinstance(resolution, bool) or not isinstance(resolution, (int, float)):
        bad_type("resolution", resolution, "a number")
    if not 0 < resolution < math.inf:
        bad_value("resolution", f"got {resolution:g}; accepted: a finite number above 0")
    _check_square(csr, "community")
    return csr.community_order(rounds, float(resolution))


_METHODS: dict[str, Callable[..., torch.Tensor]] = {
    "degree": _degree,
    "rcm": _rcm,
    "metis": _metis,
    "community": _community,
}
_OPTIONS = {"metis": {"part_size"}, "community": {"rounds", "resolution"}}

#: Names that `reorder` accepts.
REORDERINGS = ("none", *_METHODS)


def reorder(graph: SparseGraph, method: str = "none", **options: Any) -> Reordering:
    """A row order of the graph, with what it is worth.

    Args:
        graph: on any device; the methods run on the CPU.
        method: "none"; "degree", longest rows first; "rcm", reverse Cuthill-McKee; "metis", parts of
            about `part_size` (128) rows, which needs pymetis; "community", communities by local moving
            in at most `rounds` (10) sweeps a level at a `resolution` (1.0) of the modularity, for
            graphs of any size: never worse than as given by `columns_32`. The last three take square
            matrices and work on A + A^T.
        options: of the method.

    Returns:
        The order, its time and its locality. It is the same for any number of threads.

    Raises:
        TypeError, ValueError: an argument or the matrix does not suit the method.
        ImportError: pymetis is not installed.
        MemoryError: "community" needs more scratch than this machine has.

    Sources of "community": Blondel et al., "Fast unfolding of communities in large networks" (2008),
    for the local moving in levels (Louvain); Arai et al., "Rabbit Order" (IPDPS 2016), for an order
    that follows the hierarchy.
    """
    check_choice("reorder", method, REORDERINGS)
    if set(options) - _OPTIONS.get(method, set()):
        bad_value("reorder", f"unknown options for {method!r}: {', '.join(options)}")
    csr = graph.csr.to(torch.device("cpu"))
    before = _locality(csr, None)
    if method == "none" or csr.rows == 0 or csr.nnz == 0:
        return Reordering(method, None, 0.0, before, before)
    start = time.perf_counter()
    order = _METHODS[method](csr, **options).to(torch.int32)
    seconds = time.perf_counter() - start
    return Reordering(method, order, seconds, before, _locality(csr, order))
