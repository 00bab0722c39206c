"""The workloads of a benchmark, and what a result of them has to be.

Weights are computed here by their definition, not by the preparation of the package, so that results of the
package can be checked against them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import Csr
from gnnsparse.ops.quantization import fake_quantized
from gnnsparse.precision import Precision, round_operand
from gnnsparse.runtime.memo import cached_property
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.testing import measure_errors


class UnavailableError(Exception):
    """A candidate can't run a workload; the message says why, in one line."""


class UnsupportedError(UnavailableError):
    """A candidate can't run a workload in this precision; in fp32 it may."""


#: One of the variants of a candidate, such as one algorithm of a library: its name, and what prepares it and
#: returns the function to time with the milliseconds that this took, or raises UnavailableError.
Variant = tuple[str, Callable[[], tuple[Callable[[], torch.Tensor], float]]]


#: Products that are measured.
OPS = ("spmm", "sddmm")
#: Weights that a matrix is measured with.
VALUES = ("gcn", "none", "random")


@dataclass(frozen=True, eq=False)
class Subject:
    """A matrix with its weights, rows in the caller's order; `kind` is one of VALUES.

    `csr` includes the self-loops of "gcn", whose weights are scale[i] * scale[j], float64; else `scale` is
    None.
    """

    name: str
    kind: str
    graph: SparseGraph
    csr: Csr
    scale: torch.Tensor | None = None

    def weights(
        self, nnz_index: torch.Tensor | slice, rows: torch.Tensor, columns: torch.Tensor
    ) -> torch.Tensor | None:
        """Return the exact weights of some nonzeros, float64 [n]; None if all are 1."""
        if self.scale is not None:
            return self.scale[rows] * self.scale[columns]
        values = self.graph.values
        return None if values is None else values[nnz_index].double()

    @cached_property
    def explicit_values(self) -> torch.Tensor:
        """The weight of each nonzero, float32 [nnz], which peers are given; computed if there is no array."""
        if self.scale is not None:
            scale = self.scale.float()
            return scale[self.csr.row_index()] * scale[self.csr.indices.long()]
        if self.graph.values is not None:
            return self.graph.values
        return torch.ones(self.csr.nnz, device=self.csr.device)


def make_subject(name: str, graph: SparseGraph, kind: str) -> Subject:
    """Add weights to the structure of a graph, whose own values are ignored.

    "gcn": D^-1/2 (A + I) D^-1/2 of a square matrix; "none": all 1; "random": standard normal.
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
    """A product to measure. Dense operands are stored in the precision's dtype, and have `width` columns.

    They are drawn in float32 and then rounded, so that precisions have operands as equal as possible.
    """

    subject: Subject
    op: str
    precision: Precision
    width: int

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
        generator = torch.Generator(self.device).manual_seed(0)
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


# Checks of results: sampled rows are compared with float64, and elements that nothing wrote are found.

#: The error that a result may have, in units of the error of a plain run. For this package's kernels it is
#: the rule of gnnsparse.testing. Peers get more, since they may round partial sums to the storage dtype
#: (cuSPARSE has 2.6 to 8.4 times the error in fp16 on a graph of Reddit's size).
KERNEL_FACTOR, PEER_FACTOR = 2.0, 12.0
#: Numbers of rows that are checked: random ones, and the longest.
_RANDOM_ROWS, _LONGEST_ROWS = 500, 20
#: Most float64 elements that a check gathers at a time, which bounds its scratch memory to a few 0.1 GB.
_CHUNK = 2**24


@dataclass(frozen=True)
class Verdict:
    """The outcome of a check, with the checked rows' relative error (Frobenius), None if not finite."""

    ok: bool
    error: float | None
    allowed: float
    problem: str = ""


def verdict_of(
    result: torch.Tensor, checked: torch.Tensor, plain: torch.Tensor, exact: torch.Tensor, factor: float,
    floor: float,
) -> Verdict:  # fmt: skip
    """Compare the checked part of a result with a plain run's and the exact one; any NaN in it is wrong.

    `factor` is the error allowed in units of the plain run's, `floor` what is allowed in any case.
    """
    if checked.shape != exact.shape:
        return Verdict(False, None, 0.0, f"has shape {tuple(checked.shape)}, not {tuple(exact.shape)}")
    errors = measure_errors(checked, plain, exact, factor, floor)
    error, allowed = errors.actual[0], errors.allowed[0]
    if not all(map(math.isfinite, errors.allowed)):
        return Verdict(False, None, 0.0, "a plain run in its precision overflows")
    finite = error if math.isfinite(error) else None
    # Inputs are finite, so a NaN anywhere in the result is memory that nothing wrote.
    if missing := int(result.isnan().sum()):
        return Verdict(False, finite, allowed, f"{missing} elements are NaN or were not written")
    named = zip(("Frobenius", "largest"), errors.actual, errors.allowed, strict=True)
    wrong = [f"{norm} error {e:.1e}, accepted {limit:.1e}" for norm, e, limit in named if not e <= limit]
    return Verdict(errors.ok, finite, allowed, "; ".join(wrong))


@dataclass(frozen=True, eq=False)
class Sample:
    """The nonzeros of sampled rows of a matrix: for each its index in it, and its row's place in `chosen`."""

    subject: Subject
    chosen: torch.Tensor
    local: torch.Tensor
    nnz_index: torch.Tensor

    @classmethod
    def of(cls, subject: Subject) -> Sample:
        """Sample 500 random rows and the 20 longest, or all rows of a matrix with no more than that."""
        csr = subject.csr
        chosen = torch.arange(csr.rows, device=csr.device)
        if csr.rows > _RANDOM_ROWS + _LONGEST_ROWS:
            drawn = torch.randperm(csr.rows, generator=torch.Generator().manual_seed(0))[:_RANDOM_ROWS]
            longest = csr.degrees.topk(_LONGEST_ROWS).indices
            chosen = torch.cat([longest, drawn.to(csr.device)]).unique()
        counts = csr.degrees[chosen]
        local = torch.repeat_interleave(torch.arange(chosen.numel(), device=csr.device), counts)
        start = csr.indptr[chosen] - (counts.cumsum(0) - counts)
        return cls(subject, chosen, local, torch.arange(local.numel(), device=csr.device) + start[local])

    def parts(self, width: int) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield (local, nnz_index, rows, columns) of as many nonzeros as `width` features are gathered of."""
        size = max(1, _CHUNK // max(width, 1))
        for local, nnz_index in zip(self.local.split(size), self.nnz_index.split(size), strict=True):
            yield local, nnz_index, self.chosen[local], self.subject.csr.indices[nnz_index].long()


@dataclass(frozen=True, eq=False)
class Reference:
    """The exact result of a workload at sampled rows, and the result of a plain run."""

    work: Workload
    sample: Sample

    @cached_property
    def results(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The pair (exact, plain): in float64 from the operands; with rounded operands and float32 sums."""
        make = _spmm_rows if self.work.op == "spmm" else _sddmm_nonzeros
        return make(self.work, self.sample)

    def judge(self, result: torch.Tensor, factor: float) -> Verdict:
        """Compare a result in the caller's order, of any dtype, with the exact one."""
        exact, plain = self.results
        if tuple(result.shape) != self.work.output_shape:
            problem = f"has shape {tuple(result.shape)}, not {self.work.output_shape}"
            return Verdict(False, None, 0.0, problem)
        checked = result[self.sample.chosen if self.work.op == "spmm" else self.sample.nnz_index]
        # A plain run of a small matrix can be exact by luck, so an error of two roundings is always allowed.
        return verdict_of(result, checked, plain, exact, factor, max(torch.finfo(plain.dtype).eps, 1e-6))


def _spmm_rows(work: Workload, sample: Sample) -> tuple[torch.Tensor, torch.Tensor]:
    (x,) = work.dense
    exact = torch.zeros(sample.chosen.numel(), work.width, dtype=torch.float64, device=x.device)
    plain = exact.float()
    quantized, scale = None, sample.subject.scale
    if work.precision.quantizes:
        # Features have a scale for the whole X, which has the column weights. A row with a large weight
        # decides the step of its features for all rows: where those have smaller weights by far, the error of
        # single elements is a multiple of that of an X which is rounded by itself.
        weighted = x.float() if scale is None else x.float() * scale.float()[:, None]
        quantized = fake_quantized(weighted, work.precision)
    for local, nnz_index, rows, columns in sample.parts(work.width):
        weights, gathered = sample.subject.weights(nnz_index, rows, columns), x[columns]
        rounded = round_operand(gathered, work.precision).float() if quantized is None else quantized[columns]
        gathered = gathered.double()
        if weights is not None:
            gathered = gathered * weights[:, None]
            if quantized is None or scale is None:
                factors = round_operand(weights.float(), work.precision).float()
            else:
                factors = scale[rows].float()  # those of columns are in X already
            rounded = rounded * factors[:, None]
        exact.index_add_(0, local, gathered)
        plain.index_add_(0, local, rounded)
    return exact, plain.to(x.dtype)


def _sddmm_nonzeros(work: Workload, sample: Sample) -> tuple[torch.Tensor, torch.Tensor]:
    q, k = work.dense
    exact, plain = [q.new_empty(0, dtype=torch.float64)], [q.new_empty(0)]
    for _, _, rows, columns in sample.parts(2 * work.width):
        left, right = q[rows], k[columns]
        exact.append((left.double() * right.double()).sum(1))
        rounded = [round_operand(t, work.precision).float() for t in (left, right)]
        plain.append((rounded[0] * rounded[1]).sum(1).to(q.dtype))
    return torch.cat(exact), torch.cat(plain)


def poisoned_call(call: Callable[[], torch.Tensor], work: Workload, fill_all: bool) -> torch.Tensor:
    """Call a function with new memory full of NaN, so that elements which it does not write are found.

    `fill_all`: torch fills all new memory, in its deterministic mode, in which it may choose other kernels of
    its own. For peers on a GPU, whose timed kernels have to be the ones that are checked, some blocks of the
    output's size are filled and freed before, which the caching allocator then hands out.
    """
    if not fill_all and work.device.type == "cuda":
        shape, dtype = work.output_shape, work.dense[0].dtype
        # Several blocks, because a call may allocate memory of the output's size before the output.
        blocks = [torch.full(shape, float("nan"), dtype=dtype, device=work.device) for _ in range(3)]
        del blocks
        return call()
    utils: Any = torch.utils.deterministic  # torch's type stubs lack fill_uninitialized_memory
    mode, fill = torch.get_deterministic_debug_mode(), utils.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("warn")
    utils.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of operations without a deterministic form
            return call()
    finally:
        utils.fill_uninitialized_memory = fill
        torch.set_deterministic_debug_mode(mode)
