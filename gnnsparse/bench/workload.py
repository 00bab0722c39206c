"""A product to measure: the matrix with its weights, by definition and apart from the package's own
preparation, and the dense operands."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch

from gnnsparse.csr import Csr
from gnnsparse.errors import bad_value
from gnnsparse.graph import SparseGraph
from gnnsparse.precision import Precision

__all__ = ["OPS", "VALUES", "Subject", "Workload", "make_subject"]

#: Products that are measured.
OPS = ("spmm", "sddmm")
#: Weights that a matrix is measured with.
VALUES = ("gcn", "none", "random")


@dataclass(frozen=True, eq=False)
class Subject:
    """A matrix with its weights, rows in the caller's order.

    Attributes:
        name: of the matrix.
        kind: one of VALUES.
        graph: what `gnnsparse.prepare` gets.
        csr: the structure of the product: with "gcn", self-loops included.
        scale: float64 [rows], the weights of "gcn" are scale[i] * scale[j]; None: no such.
    """

    name: str
    kind: str
    graph: SparseGraph
    csr: Csr
    scale: torch.Tensor | None = None

    @property
    def values(self) -> torch.Tensor | None:
        """The weight of each nonzero, float32 [nnz]; None where all are 1 or `scale` gives them."""
        return self.graph.values

    def weights(
        self, slots: torch.Tensor | slice, rows: torch.Tensor, columns: torch.Tensor
    ) -> torch.Tensor | None:
        """Exact weights, float64, of the nonzeros in `slots`, which are at `rows` and `columns`."""
        if self.scale is not None:
            return self.scale[rows] * self.scale[columns]
        return None if self.values is None else self.values[slots].double()

    @cached_property
    def explicit_values(self) -> torch.Tensor:
        """The weight of each nonzero as float32 [nnz], ones included: what peers are given."""
        if self.scale is not None:
            scale = self.scale.float()
            return scale[self.csr.row_index()] * scale[self.csr.indices.long()]
        if self.values is not None:
            return self.values
        return torch.ones(self.csr.nnz, device=self.csr.device)


def make_subject(name: str, graph: SparseGraph, kind: str) -> Subject:
    """A structure with weights.

    Args:
        graph: its values, if any, are not used.
        kind: "gcn": D^-1/2 (A + I) D^-1/2 of the structure; "none": all 1; "random": standard normal.

    Raises:
        ValueError: "gcn" of a matrix that is not square.
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
    """One product: op, matrix, width and precision.

    Attributes:
        op: one of OPS.
        precision: of the product; dense operands are stored in its dtype.
        width: columns of X, or features of Q and K.
        seed: of the dense operands, which are standard normal and then rounded to the precision's
            storage: alike in every precision.
    """

    subject: Subject
    op: str
    precision: Precision
    width: int
    seed: int = 0

    @property
    def device(self) -> torch.device:
        """Where everything is."""
        return self.subject.csr.device

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a dense operand."""
        return self.width * self.precision.storage.itemsize

    @cached_property
    def dense(self) -> tuple[torch.Tensor, ...]:
        """(x,) of spmm, x [cols, width]; (q, k) of sddmm, q [rows, width], k [cols, width]."""
        csr = self.subject.csr
        # The generator of the device: a large operand from the host's would take seconds.
        generator = torch.Generator(self.device).manual_seed(self.seed)
        sizes = (csr.cols,) if self.op == "spmm" else (csr.rows, csr.cols)
        return tuple(
            torch.randn(rows, self.width, generator=generator, device=self.device).to(self.precision.storage)
            for rows in sizes
        )

    @property
    def output_shape(self) -> tuple[int, ...]:
        """[rows, width] of spmm, [nnz] of sddmm."""
        csr = self.subject.csr
        return (csr.rows, self.width) if self.op == "spmm" else (csr.nnz,)
