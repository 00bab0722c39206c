"""Whether a product is right: rows of it beside float64, and elements that nobody wrote."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from gnnsparse.bench.workload import Subject, Workload
from gnnsparse.csr import Csr
from gnnsparse.precision import round_operand
from gnnsparse.testing import measure_errors

__all__ = ["KERNEL_FACTOR", "PEER_FACTOR", "Reference", "Sample", "Verdict", "poisoned_call"]

#: How many times the error of a plain run a result may have: the rule of gnnsparse.testing for our
#: kernels; peers may round partial sums to the storage dtype (cuSPARSE: 2.6 to
#: 8.4 times, fp16, Reddit-sized).
KERNEL_FACTOR, PEER_FACTOR = 2.0, 12.0
#: Rows that are checked: at random, and the longest.
_RANDOM_ROWS, _LONGEST_ROWS = 500, 20
#: Elements of a gathered part, float64: bounds the scratch memory of a check to a few 0.1 GB.
_CHUNK = 2**24


@dataclass(frozen=True)
class Verdict:
    """How a result compares with the exact one.

    Attributes:
        ok: whether it is right.
        error: relative error of the checked rows in the Frobenius norm; None where it is not finite.
        allowed: what `error` may be at most.
        problem: what is wrong, "" if nothing is.
    """

    ok: bool
    error: float | None
    allowed: float
    problem: str = ""


@dataclass(frozen=True, eq=False)
class Sample:
    """Nonzeros of some rows of a matrix.

    Attributes:
        chosen: the rows, int64 [samples].
        local: for each nonzero the number of its row in `chosen`, int64 [n].
        slots: where the nonzeros are in the matrix's arrays, int64 [n].
    """

    subject: Subject
    chosen: torch.Tensor
    local: torch.Tensor
    slots: torch.Tensor

    @classmethod
    def of(cls, subject: Subject) -> Sample:
        """500 rows at random and the 20 longest; all of them in a matrix of fewer rows."""
        csr = subject.csr
        chosen = _choose_rows(csr)
        counts = csr.degrees[chosen]
        local = torch.repeat_interleave(torch.arange(chosen.numel(), device=csr.device), counts)
        start = csr.indptr[chosen] - (counts.cumsum(0) - counts)
        return cls(subject, chosen, local, torch.arange(local.numel(), device=csr.device) + start[local])

    def parts(self, width: int) -> Iterator[tuple[torch.Tensor, ...]]:
        """(local, slots, rows, columns) of a part of the nonzeros at a time."""
        size = max(1, _CHUNK // max(width, 1))
        for local, slots in zip(self.local.split(size), self.slots.split(size), strict=True):
            yield local, slots, self.chosen[local], self.subject.csr.indices[slots].long()


def _choose_rows(csr: Csr) -> torch.Tensor:
    if csr.rows <= _RANDOM_ROWS + _LONGEST_ROWS:
        return torch.arange(csr.rows, device=csr.device)
    drawn = torch.randperm(csr.rows, generator=torch.Generator().manual_seed(0))[:_RANDOM_ROWS]
    return torch.cat([csr.degrees.topk(_LONGEST_ROWS).indices, drawn.to(csr.device)]).unique()


@dataclass(frozen=True, eq=False)
class Reference:
    """The exact result of a workload at the sampled rows, and that of a plain run."""

    work: Workload
    sample: Sample

    @cached_property
    def results(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(exact, plain): float64 of the operands as given; rounded operands and float32 sums."""
        make = _spmm_rows if self.work.op == "spmm" else _sddmm_slots
        return make(self.work, self.sample)

    def judge(self, result: torch.Tensor, factor: float) -> Verdict:
        """The verdict on a result.

        Args:
            result: of the shape of `Workload.output_shape`, in any dtype, rows or nonzeros in the
                caller's order.
            factor: how many times the error of the plain run is allowed.
        """
        exact, plain = self.results
        if tuple(result.shape) != self.work.output_shape:
            problem = f"has shape {tuple(result.shape)}, not {self.work.output_shape}"
            return Verdict(False, None, 0.0, problem)
        checked = result[self.sample.chosen if self.work.op == "spmm" else self.sample.slots]
        # Two roundings, for a plain run of a small matrix can be exact by luck.
        floor = max(torch.finfo(plain.dtype).eps, 1e-6)
        errors = measure_errors(checked, plain, exact, factor, floor)
        error, allowed = errors.actual[0], errors.allowed[0]
        finite = error if error == error and error != float("inf") else None
        # All of the result, not the sample alone: inputs are finite, so NaN is memory nobody wrote.
        if missing := int(result.isnan().sum()):
            return Verdict(False, finite, allowed, f"{missing} elements are NaN or were not written")
        if errors.ok:
            return Verdict(True, finite, allowed)
        worst, limit = (max(pair) for pair in (errors.actual, errors.allowed))
        return Verdict(False, finite, allowed, f"relative error {worst:.1e}, accepted {limit:.1e}")


def _spmm_rows(work: Workload, sample: Sample) -> tuple[torch.Tensor, torch.Tensor]:
    (x,) = work.dense
    exact = torch.zeros(sample.chosen.numel(), work.width, dtype=torch.float64, device=x.device)
    plain = exact.float()
    for local, slots, rows, columns in sample.parts(work.width):
        weights, gathered = sample.subject.weights(slots, rows, columns), x[columns]
        rounded = round_operand(gathered, work.precision).float()
        gathered = gathered.double()
        if weights is not None:
            gathered = gathered * weights[:, None]
            rounded = rounded * round_operand(weights.float(), work.precision).float()[:, None]
        exact.index_add_(0, local, gathered)
        plain.index_add_(0, local, rounded)
    return exact, plain.to(x.dtype)


def _sddmm_slots(work: Workload, sample: Sample) -> tuple[torch.Tensor, torch.Tensor]:
    q, k = work.dense
    exact, plain = [q.new_empty(0, dtype=torch.float64)], [q.new_empty(0)]
    for _, _, rows, columns in sample.parts(2 * work.width):
        left, right = q[rows], k[columns]
        exact.append((left.double() * right.double()).sum(1))
        rounded = [round_operand(t, work.precision).float() for t in (left, right)]
        plain.append((rounded[0] * rounded[1]).sum(1).to(q.dtype))
    return torch.cat(exact), torch.cat(plain)


def poisoned_call(call: Callable[[], torch.Tensor], work: Workload, fill_all: bool) -> torch.Tensor:
    """The result of a call that gets memory full of NaN.

    Args:
        fill_all: torch fills all new memory; it is in its deterministic mode meanwhile, where it may
            choose other kernels of its own: not for peers on a GPU, whose check must be of what is
            timed. There the caching allocator hands out blocks that were filled and freed before.
    """
    if not fill_all and work.device.type == "cuda":
        shape, dtype = work.output_shape, work.dense[0].dtype
        # Several, for a call may take memory of the output's size before it takes the output.
        blocks = [torch.full(shape, float("nan"), dtype=dtype, device=work.device) for _ in range(3)]
        del blocks
        return call()
    with _filled_memory():
        return call()


@contextlib.contextmanager
def _filled_memory() -> Iterator[None]:
    utils: Any = torch.utils.deterministic  # its stubs do not know the flag
    mode, warn = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    fill = utils.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True, warn_only=True)
    utils.fill_uninitialized_memory = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # an operation has no deterministic form
            yield
    finally:
        utils.fill_uninitialized_memory = fill
        torch.use_deterministic_algorithms(mode, warn_only=warn)
