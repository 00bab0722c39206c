"""The function `reorder`, which computes a row order of a graph and measures its locality."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from gnnsparse.errors import check_choice
from gnnsparse.preprocess.reorder.locality import Locality, measure_locality
from gnnsparse.preprocess.reorder.registry import METHODS, REORDERINGS, check_known
from gnnsparse.sparse.graph import SparseGraph

__all__ = ["Reordering", "reorder"]


@dataclass(frozen=True, eq=False)
class Reordering:
    """The result of `reorder`.

    Attributes:
        method: name of the reordering.
        order: int32 [rows] on the CPU: row i of the reordered matrix is row order[i] of the graph. None: the
            order is unchanged.
        seconds: wall time of the reordering.
        before, after: locality of the graph's own order and of `order`.
        details: what the reordering itself reports, as plain values: the row shuffle's tiles, the objective
            after each stage of "jaccard", the orders that "auto" tried; empty for the others.
    """

    method: str
    order: torch.Tensor | None
    seconds: float
    before: Locality
    after: Locality
    details: dict[str, Any] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """Returns everything but the order as plain values."""
        return {
            "method": self.method,
            "seconds": self.seconds,
            "before": asdict(self.before),
            "after": asdict(self.after),
            "details": self.details,
        }


def reorder(graph: SparseGraph, method: str = "none", **options: Any) -> Reordering:
    """Computes a row order of a graph, and measures its locality.

    Args:
        graph: the graph, on any device; reorderings run on the CPU.
        method: one of REORDERINGS: "none"; "degree": longest rows first; "rcm": reverse Cuthill-McKee;
            "metis": parts of about `part_size` (128) rows, which needs the package pymetis; "community":
            communities found by local moving, in at most `rounds` (10) sweeps at each level, at a
            `resolution` (1.0) of the modularity. "community" is fast enough for large graphs, and its
            `columns_32` is never above that of the graph's own order. The last three accept square matrices
            only and work on A + A^T.
            "row-shuffle" (Tiled-CSR), "jaccard" (RSH-SpMM), "tca" (like DTC-SpMM's) and "auto", the best of
            several by counts, take any matrix; their functions in `gnnsparse.preprocess.reorder` document
            their options. `register_reordering` adds further ones.
        options: options of the reordering, those in parentheses.

    Returns:
        The order, its time and its locality. The order does not depend on the number of threads.

    Raises:
        TypeError: `method` or an option is of another type, or a registered function returned no integers.
        ValueError: there is no such reordering or option, a value is out of range, or the reordering needs
            a square matrix, fewer nonzeros, or returned no permutation.
        ImportError: the package that the reordering needs is not installed.
        MemoryError: the reordering needs more scratch memory than this machine has.
    """
    check_choice("reorder", method, REORDERINGS)
    csr = graph.csr.to(torch.device("cpu"))
    if method == "none":
        check_known(method, options, {})
        before = measure_locality(csr, None)
        return Reordering(method, None, 0.0, before, before)
    start = time.perf_counter()
    found = METHODS[method].find(csr, **options)
    seconds = time.perf_counter() - start
    before = measure_locality(csr, None)
    if csr.nnz == 0 and not METHODS[method].empty:
        return Reordering(method, None, 0.0, before, before)
    after = measure_locality(csr, found.order)
    return Reordering(method, found.order, seconds, before, after, found.details)
