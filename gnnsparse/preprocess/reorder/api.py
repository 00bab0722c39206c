"""`reorder`: a row order of a graph, and what it is worth."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import torch

from gnnsparse.csr import Csr
from gnnsparse.errors import bad_value, check_choice
from gnnsparse.graph import SparseGraph
from gnnsparse.preprocess.reorder.locality import Locality, measure_locality
from gnnsparse.preprocess.reorder.registry import METHODS, REORDERINGS, Method, check_known

__all__ = ["Reordering", "reorder"]


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


def reorder(graph: SparseGraph, method: str = "none", **options: Any) -> Reordering:
    """A row order of the graph, with what it is worth.

    Args:
        graph: on any device; the methods run on the CPU.
        method: one of REORDERINGS: "none"; "degree", longest rows first; "rcm", reverse Cuthill-McKee;
            "metis", parts of about `part_size` (128) rows, which needs pymetis; "community", communities by
            local moving in at most `rounds` (10) sweeps a level at a `resolution` (1.0) of the modularity,
            for graphs of any size: never worse than as given by `columns_32`. The last three take square
            matrices and work on A + A^T. A method that is registered (register_reordering) is one more.
        options: of the method.

    Returns:
        The order, its time and its locality. It is the same for any number of threads.

    Raises:
        TypeError, ValueError: an argument or the matrix does not suit the method.
        ImportError: the package that the method needs is not installed.
        MemoryError: "community" needs more scratch than this machine has.
    """
    check_choice("reorder", method, REORDERINGS)
    csr = graph.csr.to(torch.device("cpu"))
    before = measure_locality(csr, None)
    if method == "none":
        check_known(method, options, {})
        return Reordering(method, None, 0.0, before, before)
    chosen = METHODS[method]
    options = chosen.check_options(options)
    chosen.check_shape(csr.rows, csr.cols)
    if csr.nnz == 0 and not chosen.empty:
        return Reordering(method, None, 0.0, before, before)
    chosen.check_package()
    start = time.perf_counter()
    order = _checked(chosen, chosen.order(csr, **options), csr)
    seconds = time.perf_counter() - start
    return Reordering(method, order, seconds, before, measure_locality(csr, order))


def _checked(method: Method, order: torch.Tensor, csr: Csr) -> torch.Tensor:
    """The order as int32 [rows]; native code reads memory by it, so that it has to be a permutation."""
    seen = torch.zeros(csr.rows, dtype=torch.bool)
    if order.shape == seen.shape and (csr.rows == 0 or 0 <= int(order.min()) <= int(order.max()) < csr.rows):
        seen[order.long()] = True
    if not bool(seen.all()):
        bad_value("reorder", f"{method.name!r} returned no permutation of the {csr.rows} rows")
    return order.to(torch.int32)
