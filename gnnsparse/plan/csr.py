"""The csr kernel: row by row on CUDA cores, or on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from gnnsparse.gpus.model import CsrLoad, csr_us
from gnnsparse.plan.base import CanRun, Kernel, Plan
from gnnsparse.plan.problem import Problem
from gnnsparse.tiles import SLICE_BYTES, VECTOR_BYTES

__all__ = ["CSR", "CsrPlan"]

#: Lanes of a slice of 128 bytes a row: narrower slices waste too many instructions.
_SLICE_LANES = SLICE_BYTES // VECTOR_BYTES
#: Nonzeros of a batch, which a lane has in flight.
_BATCH = 8
#: Bounds on the nonzeros of a row that is not cut; the upper one holds unless the mean is above half of it.
_LEAST_LIMIT, _MOST_LIMIT = 64, 256
#: Nonzeros that a group of rows has at least.
_LEAST_GROUP = 16


@dataclass(frozen=True)
class CsrPlan(Plan):
    """How the csr kernel runs. On a CPU the fields play no part.

    Attributes:
        lanes: lanes along the features; each loads 16 bytes of a row.
        row_lanes: lanes of one row; row_lanes / lanes nonzeros run side by side.
        row_limit: longer rows are cut into parts of at most this many nonzeros.
        group: neighbouring rows of about this many nonzeros in all are taken one after the other by `lanes`
            lanes; 0: each row by itself, by `row_lanes`.
        prescale: rank-1 weights: the rows of X are weighed once before the product; False: the value of each
            nonzero is made once and kept.
    """

    kernel: ClassVar[str] = "csr"
    lanes: int = 32
    row_lanes: int = 32
    row_limit: int = 256
    group: int = 0
    prescale: bool = True


def _power_of_two_at_least(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


class CsrKernel(Kernel):
    """The csr kernel, which runs every product."""

    name = "csr"
    plan_type = CsrPlan
    devices = ("cpu", "cuda")

    def can_run(self, problem: Problem) -> CanRun:
        """Always: it takes CSR as it is."""
        return CanRun()

    def default(self, problem: Problem) -> CsrPlan:
        """Lanes by the width and the mean row, limits by what each warp should take."""
        if problem.device.type == "cpu":
            return CsrPlan(reasons=("the CPU kernels work row by row",))
        rates = problem.record.csr
        vectors = -(-problem.row_bytes // VECTOR_BYTES)
        lanes = min(32, _power_of_two_at_least(vectors))
        mean = problem.nnz / max(problem.rows, 1)
        # Where X does not stay in L2 as a whole but a slice of it does, a dense matrix takes slices.
        whole = problem.cols * min(lanes, vectors) * VECTOR_BYTES <= problem.record.memory.resident_bytes
        dense = problem.op == "spmm" and mean >= rates.slice_degree
        if dense and problem.slice_is_resident and not whole:
            lanes = min(lanes, _SLICE_LANES)
        # Several nonzeros of a row side by side pay once each lane still has a dozen batches.
        row_lanes = lanes
        while row_lanes < 32 and mean >= rates.parallel_degree * (row_lanes // lanes):
            row_lanes *= 2
        # In a small matrix each warp takes less, so that all have work at the same time.
        side_by_side = rates.warps * problem.device.multiprocessors * (32 // lanes)
        share = problem.nnz * -(-vectors // lanes) // side_by_side
        short = problem.op == "spmm" and mean < rates.group_degree
        group = min(rates.group_nnz, max(_LEAST_GROUP, _power_of_two_at_least(share))) if short else 0
        row_limit = max(min(_MOST_LIMIT, max(_LEAST_LIMIT, _BATCH * share)), int(2 * mean))
        return CsrPlan(lanes, row_lanes, row_limit, group, mean >= rates.prescale_degree)

    def variants(self, problem: Problem) -> list[Plan]:
        """With and without a pass that weighs X, rows in groups of two sizes and by themselves."""
        plan = self.default(problem)
        if problem.device.type == "cpu":
            return [plan]
        weigh = (True, False) if problem.op == "spmm" and not problem.weighted else (True,)
        plans: list[Plan] = [replace(plan, prescale=prescale) for prescale in weigh]
        if plan.group:
            plans += [replace(plan, group=0), replace(plan, group=plan.group // 2)]
        return plans

    def time_us(self, problem: Problem, plan: Plan) -> float:
        """By the model of the csr kernel."""
        assert isinstance(plan, CsrPlan)
        record = problem.record
        grouped = plan.group > 0
        load = self.load(problem, plan)
        return float(csr_us(load, record.memory, record.csr, problem.arithmetic, grouped, problem.op))

    def load(self, problem: Problem, plan: CsrPlan) -> CsrLoad:
        """What a plan makes of a problem."""
        part = max(plan.group, min(plan.row_limit, problem.longest_row))
        return CsrLoad(
            problem.rows, problem.slices, problem.slices * SLICE_BYTES * problem.nnz,
            problem.cols * SLICE_BYTES, (problem.rows + problem.cols) / 2 * problem.row_bytes,
            part * plan.lanes / plan.row_lanes,
        )  # fmt: skip


CSR = CsrKernel()
