"""Plans of the csr kernel, which works row by row: on CUDA cores without Tensor Cores, or on the CPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from gnnsparse import _native
from gnnsparse.formats import exclusive_preset
from gnnsparse.plan.base import SHORT_ROW, CanRun, Kernel, Plan, Problem
from gnnsparse.plan.gpu_records.model import BATCH, CsrLoad, csr_us, narrow_us
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import SLICE_BYTES, VECTOR_BYTES

#: Lanes that load a slice, 128 bytes of a row of X; with fewer lanes too many instructions are wasted.
_SLICE_LANES = SLICE_BYTES // VECTOR_BYTES


@dataclass(frozen=True)
class CsrPlan(Plan):
    """Parameters of the csr kernel on a GPU. On a CPU they are ignored.

    Attributes:
        lanes: lanes along the features of X; each loads 16 bytes of a row.
        row_lanes: lanes that compute one row of the result, `row_lanes / lanes` nonzeros at a time.
        row_limit: longer rows are cut into parts of at most this many nonzeros.
        group: neighbouring rows with about this many nonzeros in total form a group, which `lanes` lanes
            compute row after row; 0: `row_lanes` lanes compute each row by itself.
        narrow: SpMM of at most NARROW_WIDTH columns by another kernel: a warp computes a group, as many
            nonzeros side by side as its lanes have room for, each of which loads one element of X; `lanes`
            and `row_lanes` are ignored.
    """

    kernel: ClassVar[str] = "csr"
    lanes: int = 32
    row_lanes: int = 32
    row_limit: int = 256
    group: int = 0
    prescale: bool = True
    narrow: bool = False

    def row_unit(self, row_bytes: int) -> int:
        """Return the alignment in bytes that rows of X need to be read without a copy."""
        if not self.group or row_bytes % VECTOR_BYTES == 0 or row_bytes <= _native.SHORT_UNIT_ROW:
            return VECTOR_BYTES
        return next(unit for unit in (8, 4, 2) if row_bytes % unit == 0)


def _lane_slices(row_bytes: int, unit: int) -> float:
    """Return how many slices, read by vectors, take as long as a row that is read by units of so many bytes.

    A unit of 2 bytes takes as long as one of 4. The numbers of short rows are fitted to an H200.
    """
    if unit == VECTOR_BYTES:
        return row_bytes / SLICE_BYTES
    slices = row_bytes // unit * max(unit, 4) / SLICE_BYTES
    return slices if slices > 4 else 5 if slices > 2 else 2.5


def _power_of_two_at_least(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


class _CsrKernel(Kernel):
    """The csr kernel, which runs every product of operands that were prepared in no published format."""

    name = "csr"
    plan_type = CsrPlan
    devices = ("cpu", "cuda")

    def can_run(self, problem: Problem) -> CanRun:
        asked = exclusive_preset(problem.format) is not None
        return CanRun(f"the format {problem.format} was asked for" if asked else "")

    def is_asked_for(self, problem: Problem) -> str:
        """Return a reason where few columns make this kernel faster than panels; the models begin at 32."""
        if self._is_narrow(problem):
            return f"X has at most {problem.record.csr.narrow_columns} columns"
        vectors, panels = -(-problem.row_bytes // VECTOR_BYTES), problem.panel(16)
        resident = problem.cols * vectors * VECTOR_BYTES <= problem.record.memory.resident_bytes
        light = vectors > 1 and not problem.stores_values and problem.precision is not Precision.FP32
        shared = panels is not None and problem.nnz >= problem.record.csr.shared_by[light] * panels.slots
        if not self._is_short(problem) or not resident or shared:
            return ""
        return f"rows of X have at most {SHORT_ROW} bytes, and stay in L2"

    def default(self, problem: Problem) -> CsrPlan:
        if not self._is_narrow(problem):
            return self.by_vectors(problem)
        # A warp takes nonzeros side by side, of groups that fill the GPU.
        rates = problem.record.csr
        least, most = rates.narrow_groups
        share = problem.nnz // (rates.narrow_warps * problem.device.multiprocessors)
        group = min(most, max(least, _power_of_two_at_least(share)))
        row_limit = max(rates.row_limits[1], group, int(2 * problem.nnz / max(problem.rows, 1)))
        # Scaling X in a pass of its own makes its rows whole vectors: twice its bytes or more.
        return CsrPlan(row_limit=row_limit, group=group, prescale=False, narrow=True)

    def _is_short(self, problem: Problem) -> bool:
        on_gpu = problem.device.type == "cuda" and problem.op == "spmm"
        return on_gpu and not problem.quantization and problem.is_short

    def _is_narrow(self, problem: Problem) -> bool:
        rates = problem.record.csr
        most = rates.narrow_columns if problem.nnz < rates.narrow_degree * problem.rows else 1
        return self._is_short(problem) and problem.width <= most and problem.nnz <= _native.MOST_NARROW_NNZ

    def by_vectors(self, problem: Problem) -> CsrPlan:
        """Return a plan whose lanes load vectors of X's rows, by the width, the mean row and the size."""
        if problem.device.type == "cpu":
            return CsrPlan(reasons=("the CPU kernels work row by row",))
        rates = problem.record.csr
        vectors = -(-problem.row_bytes // VECTOR_BYTES)
        lanes = min(32, _power_of_two_at_least(vectors))
        mean = problem.nnz / max(problem.rows, 1)
        # If X does not stay in L2 but a slice of it does, rows with many nonzeros are faster slice by slice.
        whole = problem.cols * min(lanes, vectors) * VECTOR_BYTES <= problem.record.memory.resident_bytes
        dense = problem.op == "spmm" and mean >= rates.slice_degree
        if dense and problem.slice_is_resident and not whole:
            lanes = min(lanes, _SLICE_LANES)
        # Computing several nonzeros of a row at a time pays if each lane still has a dozen batches.
        row_lanes, is_short = lanes, self._is_short(problem)
        while row_lanes < 32 and mean >= rates.parallel_degree * (row_lanes // lanes):
            row_lanes *= 2
        if is_short:
            row_lanes = max(row_lanes, 2)
        # In a small matrix each warp gets less work, so that there are enough warps to fill the GPU.
        side_by_side = rates.warps * problem.device.multiprocessors * (32 // lanes)
        share = problem.nnz * -(-vectors // lanes) // side_by_side
        grouped = problem.op == "spmm" and mean < rates.group_degree and not is_short
        group = min(rates.group_nnz, max(rates.least_group, _power_of_two_at_least(share))) if grouped else 0
        least, most = rates.row_limits
        most = rates.short_row_limit if is_short else most
        row_limit = max(min(most, max(least, BATCH * share)), int(2 * mean))
        # A pass makes short rows whole vectors anyway.
        prescale = is_short or mean >= rates.prescale_degree
        return CsrPlan(lanes, row_lanes, row_limit, group, prescale)

    def variants(self, problem: Problem) -> list[Plan]:
        plan = self.default(problem)
        if problem.device.type == "cpu":
            return [plan]
        if plan.narrow:
            return [plan, replace(plan, group=plan.group // 2), self.by_vectors(problem)]
        weigh = (True, False) if problem.op == "spmm" and not problem.weighted else (True,)
        plans: list[Plan] = [replace(plan, prescale=prescale) for prescale in weigh]
        if plan.group:
            plans += [replace(plan, group=0), replace(plan, group=plan.group // 2)]
        return plans

    def time_us(self, problem: Problem, plan: Plan) -> float:
        assert isinstance(plan, CsrPlan)
        record, load = problem.record, self.load(problem, plan)
        if plan.narrow:
            return float(narrow_us(load, record.memory, record.csr, problem.width))
        us = float(csr_us(load, record.memory, record.csr, problem.arithmetic, plan.group > 0, problem.op))
        return us + problem.odd_rows_us(self._unit(problem, plan))

    def _unit(self, problem: Problem, plan: CsrPlan) -> int:
        return VECTOR_BYTES if problem.rows_of_x == "converted" else plan.row_unit(problem.row_bytes)

    def load(self, problem: Problem, plan: CsrPlan) -> CsrLoad:
        """Return the quantities that the model computes the time of a plan from."""
        unit = self._unit(problem, plan)
        part = max(plan.group, min(plan.row_limit, problem.longest_row))
        shifted = 0.5 if problem.is_short else 4 / problem.precision.storage.itemsize
        return CsrLoad(
            rows=problem.rows,
            nnz=problem.nnz,
            near=problem.near,
            slices=_lane_slices(problem.row_bytes, unit),
            in_use=problem.cols * min(SLICE_BYTES, problem.row_bytes),
            pass_bytes=problem.pass_bytes,
            longest=part * plan.lanes / plan.row_lanes,
            shifted=shifted if problem.row_bytes % unit else 0,
        )


CSR = _CsrKernel()
