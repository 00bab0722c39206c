"""The window kernel: Tensor Cores over windows of 8 or 16 rows, in the formats of the papers and our own."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from gnnsparse.cuda_path import Device
from gnnsparse.plan.base import CanRun, Kernel, Plan, takes_stored_operands
from gnnsparse.plan.csr import CSR, CsrPlan
from gnnsparse.plan.problem import Problem
from gnnsparse.precision import Precision
from gnnsparse.tiles import WINDOW_K_TILE

__all__ = ["WINDOW", "WindowPlan", "takes"]

#: Rows of a window by which the mean length is judged.
_ROWS = 8
#: K tiles that a part of a window has at most, unless the mean is near that.
_TILE_LIMIT = 24


@dataclass(frozen=True)
class WindowPlan(Plan):
    """How the window kernel runs.

    Attributes:
        tile_limit: longer windows are cut into parts of at most this many K tiles of 16 column slots.
        residual: how the csr kernel takes the rows that a format keeps out of its windows.
    """

    kernel: ClassVar[str] = "window"
    tile_limit: int = _TILE_LIMIT
    residual: CsrPlan = field(default_factory=CsrPlan)


def takes(device: Device, precision: Precision) -> CanRun:
    """Whether a device's Tensor Cores have the products: Turing has float16 alone, none has float32."""
    if not (answer := takes_stored_operands(precision)):
        return answer
    least = (7, 5) if precision is Precision.FP16 else (8, 0)
    if device.type != "cuda" or precision is Precision.FP32 or device.capability < least:
        name = f"sm_{device.capability[0]}{device.capability[1]}"
        return CanRun(f"no Tensor Core product of {precision.value} on {name}")
    return CanRun()


class WindowKernel(Kernel):
    """The window kernel, on operands in a format of windows."""

    name = "window"
    plan_type = WindowPlan
    # Panels gather less, and beside them this kernel's time was never modelled.
    yields_to = ("panel",)

    def can_run(self, problem: Problem) -> CanRun:
        """On Tensor Cores that have the precision; formats that store values have no place for others."""
        if not problem.format:
            return CanRun("the operand has no blocked format")
        if not (answer := takes(problem.device, problem.precision)):
            return answer
        if problem.format != "window" and (problem.op == "sddmm" or problem.edge_values):
            return CanRun(f"{problem.format} stores no bits to place edge values by")
        return CanRun()

    def is_asked_for(self, problem: Problem) -> str:
        """A published format is there to be run."""
        return "" if problem.format == "window" else f"format {problem.format} was asked for"

    def default(self, problem: Problem) -> WindowPlan:
        """Windows are cut where they are much longer than the mean."""
        windows = -(-problem.rows // _ROWS)
        mean = problem.slots / WINDOW_K_TILE / max(windows, 1)
        residual = replace(CSR.default(problem), reasons=())
        return WindowPlan(max(_TILE_LIMIT, int(1.3 * mean)), residual)

    def variants(self, problem: Problem) -> list[Plan]:
        """Windows cut as by default, and hardly any."""
        plan = self.default(problem)
        return [plan, replace(plan, tile_limit=4 * plan.tile_limit)]

    def time_us(self, problem: Problem, plan: Plan) -> float:
        """The csr kernel's time, by the rows of X that are gathered; of SDDMM a share of it."""
        csr = CSR.time_us(problem, CSR.default(problem))
        rates = problem.record.window
        if problem.op == "sddmm":
            return rates.sddmm * csr
        return rates.spmm * problem.slots / max(problem.nnz, 1) * csr


WINDOW = WindowKernel()
