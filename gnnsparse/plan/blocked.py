"""Plans of the blocked kernel, which multiplies on a CPU by the arrays of the format that was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gnnsparse.formats import exclusive_preset
from gnnsparse.plan.base import CanRun, Kernel, Plan
from gnnsparse.plan.problem import Problem

__all__ = ["BLOCKED", "BlockedPlan"]


@dataclass(frozen=True)
class BlockedPlan(Plan):
    """The product over the arrays of a published format on a CPU. It has no parameters."""

    kernel: ClassVar[str] = "blocked"


class BlockedKernel(Kernel):
    """The blocked kernel: it reads each panel from the format's arrays and multiplies its rows."""

    name = "blocked"
    plan_type = BlockedPlan
    devices = ("cpu",)
    for_formats = True

    def can_run(self, problem: Problem) -> CanRun:
        """Returns whether the operand was prepared in a format that has the operation."""
        preset = exclusive_preset(problem.format)
        if preset is None:
            return CanRun("the operand was prepared in no published format")
        if (problem.op == "sddmm" or problem.edge_values) and "sddmm" not in preset.ops:
            what = "sddmm" if problem.op == "sddmm" else "edge values"
            return CanRun(f"{preset.source} has no {what}")
        return CanRun()

    def default(self, problem: Problem) -> BlockedPlan:
        """Returns the only plan."""
        return BlockedPlan(reasons=(f"format {problem.format} was asked for",))


BLOCKED = BlockedKernel()
