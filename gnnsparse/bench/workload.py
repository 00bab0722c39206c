"""The workloads of a benchmark: a matrix with weights, and dense operands.

Weights are computed here by their definition, not by the package's own preparation, so that results of the
package can be checked against them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import Csr
from gnnsparse.precision import Precision
from gnnsparse.runtime.memo import cached_property
from gnnsparse.sparse.graph import SparseGraph

__all__ = ["OPS", "VALUES", "Subject", "Workload", "make_subject"]

#: Products that are measured.
OPS = ("spmm", "sddmm")
#: Weights that a matrix is measured with.
VALUES = ("gcn", "none", "random")


@dataclass(frozen=True, eq=False)
class Subject:
    """A matrix with its weights, rows in the caller's order.

    Attributes:
        name: name of the matrix.
        kind: its weights, one of VALUES.
        graph: the argument for `gnnsparse.prepare`.
        csr: the structure of the product, which for "gcn" includes self-loops.
        scale: for "gcn": float64 [rows], the weight of nonzero (i, j) is scale[i] * scale[j]; else None.
    """

    name: str
    kind: str
    graph: SparseGraph
    csr: Csr
    scale: torch.Tensor | None = None

    @property
    def values(self) -> torch.Tensor | None:
        """The weight of each nonzero, float32 [nnz]; None if all are 1 or products of `scale`."""
        return self.graph.values

    def weights(
        self, nnz_index: torch.Tensor | slice, rows: torch.Tensor, columns: torch.Tensor
    ) -> torch.Tensor | None:
        """Return the exact weights of some nonzeros, float64 [n]; None if all are 1.

        Args:
            nnz_index, rows, columns: index, row and column of each nonzero, int64 [n].
        """
        if self.scale is not None:
            return self.scale[rows] * self.scale[columns]
        return None if self.values is None else self.values[nnz_index].double()

    @cached_property
    def explicit_values(self) -> torch.Tensor:
        """The weight of each nonzero, float32 [nnz], which peers are given; computed if there is no array."""
        if self.scale is not None:
            scale = self.scale.float()
            return scale[self.csr.row_index()] * scale[self.csr.indices.long()]
        if self.values is not None:
            return self.values
        return torch.ones(self.csr.nnz, device=self.csr.device)


def make_subject(name: str, graph: SparseGraph, kind: str) -> Subject:
    """Add weights to the structure of a graph.

    Args:
        name: name of the matrix.
        graph: the graph, whose own values are ignored.
        kind: "gcn": D^-1/2 (A + I) D^-1/2 of the structure; "none": all 1; "random": standard normal.

    Raises:
        ValueError: `kind` is "gcn" and the matrix is not square.
    """
    csr = graph.csr
    if kind == "random":
        host = torch.Generator().manual_seed(0)
        values = torch.randn(csr.nnz, generator=host).to(csr.device)
        return Subject(name, kind, SparseGraph(csr, values), csr)
    if kind == "none":
        return Subject(name, kind, SparseGraph(csr), csr)
    if csr.rows != csr.cols:
        bad_value("values", f"'gcn' needs a square matrix, this one is {csr.rows} x {csr.cols}")
    looped, _ = csr.add_self_loops()
    return Subject(name, kind, SparseGraph(csr), looped, looped.degrees.double().rsqrt())


@dataclass(frozen=True, eq=False)
class Workload:
    """A product to measure.

    Attributes:
        subject: the matrix.
        op: one of OPS.
        precision: precision of the product; dense operands are stored in its dtype.
        width: columns of X, or features of Q and K.
        seed: seed of the dense operands. They are drawn from a standard normal distribution in float32 and
            then rounded, so that precisions have operands as equal as possible.
    """

    subject: Subject
    op: str
    precision: Precision
    width: int
    seed: int = 0

    @property
    def device(self) -> torch.device:
        """The device of the matrix and the dense operands."""
        return self.subject.csr.device

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a dense operand."""
        in_bytes = self.op == "spmm" and self.precision.quantizes
        return self.width * (1 if in_bytes else self.precision.storage.itemsize)

    @cached_property
    def dense(self) -> tuple[torch.Tensor, ...]:
        """For spmm (x,), x [cols, width]; for sddmm (q, k), q [rows, width], k [cols, width]."""
        csr = self.subject.csr
        # Drawn on the device, because a large operand would take the CPU's generator seconds.
        generator = torch.Generator(self.device).manual_seed(self.seed)
        sizes = (csr.cols,) if self.op == "spmm" else (csr.rows, csr.cols)
        return tuple(
            torch.randn(rows, self.width, generator=generator, device=self.device).to(self.precision.storage)
            for rows in sizes
        )

    @property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the result: [rows, width] for spmm, [nnz] for sddmm."""
        csr = self.subject.csr
        return (csr.rows, self.width) if self.op == "spmm" else (csr.nnz,)
