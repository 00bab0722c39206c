"""What is measured: our kernels, each by its plan, and (gnnsparse.bench.peers) other libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

import gnnsparse
from gnnsparse.bench.workload import Workload
from gnnsparse.costs import STAGE
from gnnsparse.operand import SparseOperand
from gnnsparse.plan import Plan, Problem, choose_plan, csr_plan, has_panels, panel_plan, window_plan

__all__ = ["KERNELS", "Contestant", "UnavailableError", "our_kernel", "same_run", "swept"]


class UnavailableError(Exception):
    """A contestant can't take part; the message says why, in one line."""


@dataclass(frozen=True, eq=False)
class Contestant:
    """One way to compute a product.

    Attributes:
        name: of a kernel in KERNELS, or of a peer.
        ours: whether it is a kernel of this package.
        call: queues the product on the current stream; what is timed.
        gathered: rows of a dense operand it reads, once for each nonzero or column slot.
        plan: of our kernels.
        in_caller_order: from what `call` returns to rows or nonzeros in the caller's order.
        columns: int32 [gathered], which rows these are, where they are known, in about the order in which
            they are read.
    """

    name: str
    ours: bool
    call: Callable[[], torch.Tensor]
    gathered: int
    plan: Plan | None = None
    in_caller_order: Callable[[torch.Tensor], torch.Tensor] = lambda result: result
    columns: torch.Tensor | None = None


def _window(problem: Problem) -> Plan | None:
    runs = problem.device.has_window_kernel[problem.precision] and problem.format == "window"
    return window_plan(problem) if runs else None


def _panel(height: int, problem: Problem) -> Plan | None:
    return panel_plan(problem, height) if has_panels(problem, height) else None


#: Name -> the plan that forces this kernel, None where it can't run. "auto" is what users get.
KERNELS: dict[str, Callable[[Problem], Plan | None]] = {
    "auto": choose_plan,
    "csr": csr_plan,
    "window": _window,
    "panel16": partial(_panel, 16),
    "panel32": partial(_panel, 32),
}


def our_kernel(name: str, plan: Plan | None, a: SparseOperand, work: Workload) -> Contestant:
    """A kernel on an operand, by the plan that KERNELS[name] gave.

    Raises:
        UnavailableError: it has no plan for this product.
    """
    side = a.side
    if plan is None:
        form = side.blocked.spec.name if side.blocked else "csr"
        raise UnavailableError(f"no plan for it on {work.device.type} with format {form}")
    function = gnnsparse.spmm if work.op == "spmm" else gnnsparse.sddmm
    call = partial(function, a, *work.dense, plan=plan)
    columns, blocked = side.csr.indices, side.blocked
    if plan.kernel == "window" and blocked is not None:
        columns = blocked.columns
    elif plan.kernel == "panel":
        columns = side.panel(plan.height).columns
        if plan.at_once:
            segments = side.panel_segments(plan.height, plan.step_limit, plan.longest_first, plan.at_once)
            columns = swept(columns, segments.items, plan.at_once)
    if work.op == "sddmm":
        return Contestant(name, True, call, columns.numel(), plan, a.to_coo_order, columns)
    return Contestant(name, True, call, columns.numel(), plan, columns=columns)


def swept(columns: torch.Tensor, items: torch.Tensor, at_once: int) -> torch.Tensor:
    """Column slots of panels in the order in which warps that run `at_once` come to them.

    Args:
        columns: int32 [slots], -1 where a slot has none.
        items: the panels' work list, in the order of the slots (gnnsparse.preprocess.balance.cut_panels).
    """
    begin, stages = items[:, 1].long(), items[:, 2].long()
    item = torch.repeat_interleave(torch.arange(items.shape[0], device=items.device), stages)
    place = torch.arange(item.numel(), device=items.device) - begin[item]
    first = (-1 - items[:, 3].long()).clamp(min=0)
    waited = (place - first[item]) % stages[item]
    due = begin[item].double() / at_once + waited
    return columns.view(-1, STAGE)[due.argsort(stable=True)].flatten()


def same_run(a: Plan, b: Plan, device: torch.device) -> bool:
    """Whether two plans run the same code: measuring both would only compare noise."""
    if device.type == "cpu":  # whose one kernel does not look at the rest
        return a.kernel == b.kernel
    return replace(a, reasons=()) == replace(b, reasons=())
