"""Plans: which kernel runs a problem, and with which parameters.

A `Problem` holds the counts that the choice depends on, a `Plan` the kernel and its parameters. Both are
plain, hashable data, so a plan can be printed, compared, stored, and given to a call. Each kernel has a
module here; `choose` picks the kernel with the least modelled time, or by rules if kernels have no model.
"""

from gnnsparse.plan.attention import (
    AttentionGradPlan,
    AttentionPlan,
    BlockAttentionPlan,
    CsrAttentionPlan,
    FlashPlan,
    FlexPlan,
    RowsPlan,
    UnfusedPlan,
)
from gnnsparse.plan.base import AttentionProblem, CanRun, Kernel, PanelCounts, Plan, Problem
from gnnsparse.plan.choose import KERNELS, candidates, choose_plan, forced_plan, kernel_of, plan_from_plain
from gnnsparse.plan.csr import CsrPlan
from gnnsparse.plan.panel import HEIGHTS, PanelPlan
from gnnsparse.plan.window import BlockedPlan, WindowPlan

__all__ = [
    "HEIGHTS", "KERNELS", "AttentionGradPlan", "AttentionPlan", "AttentionProblem", "BlockAttentionPlan",
    "BlockedPlan", "CanRun", "CsrAttentionPlan", "CsrPlan", "FlashPlan", "FlexPlan", "Kernel", "PanelCounts",
    "PanelPlan", "Plan", "Problem", "RowsPlan", "UnfusedPlan", "WindowPlan", "candidates", "choose_plan",
    "forced_plan", "kernel_of", "plan_from_plain",
]  # fmt: skip
