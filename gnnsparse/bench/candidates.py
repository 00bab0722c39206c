"""What is measured: our kernels, each by its plan, and (gnnsparse.bench.peers) other libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

import gnnsparse
from gnnsparse.bench.workload import Workload
from gnnsparse.operand import SparseOperand
from gnnsparse.plan import KERNELS as OPERATIONS
from gnnsparse.plan import PanelPlan, Plan, Problem, WindowPlan, choose_plan, forced_plan
from gnnsparse.tiles import PANEL_K_TILE

__all__ = ["KERNELS", "Candidate", "UnavailableError", "our_kernel", "same_run", "swept"]


class UnavailableError(Exception):
    """A candidate can't take part; the message says why, in one line."""


@dataclass(frozen=True, eq=False)
class Candidate:
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


#: Name -> the plan that forces this kernel, None where it can't run. "auto" is what users get.
KERNELS: dict[str, Callable[[Problem], Plan | None]] = {
    "auto": choose_plan,
    **{kernel.name: partial(forced_plan, name=kernel.name) for kernel in OPERATIONS["spmm"]},
}


def our_kernel(name: str, plan: Plan | None, a: SparseOperand, work: Workload) -> Candidate:
    """A kernel on an operand, by the plan that KERNELS[name] gave.

    Raises:
        UnavailableError: it has no plan for this product.
    """
    kernels = a.kernels
    if plan is None:
        form = kernels.blocked.spec.name if kernels.blocked else "csr"
        raise UnavailableError(f"no plan for it on {work.device.type} with format {form}")
    function = gnnsparse.spmm if work.op == "spmm" else gnnsparse.sddmm
    call = partial(function, a, *work.dense, plan=plan)
    columns, blocked = kernels.csr.indices, kernels.blocked
    if isinstance(plan, WindowPlan) and blocked is not None:
        columns = blocked.columns
    elif isinstance(plan, PanelPlan):
        columns = kernels.panel(plan.height).columns
        if plan.concurrent_panels:
            together = plan.concurrent_panels
            listed = kernels.panel_work(plan.height, plan.tile_limit, plan.longest_first, together)
            columns = swept(columns, listed.items, together)
    if work.op == "sddmm":
        return Candidate(name, True, call, columns.numel(), plan, a.to_coo_order, columns)
    return Candidate(name, True, call, columns.numel(), plan, columns=columns)


def swept(columns: torch.Tensor, items: torch.Tensor, concurrent_panels: int) -> torch.Tensor:
    """Column slots of panels in the order in which warps that run together come to them, int32 [slots].

    Args:
        columns: int32 [slots], -1 where a slot has none.
        items: the panels' work list, in the order of the slots (gnnsparse.preprocess.balance.cut_panels).
        concurrent_panels: how many run at a time.
    """
    begin, tiles = items[:, 1].long(), items[:, 2].long()
    item = torch.repeat_interleave(torch.arange(items.shape[0], device=items.device), tiles)
    place = torch.arange(item.numel(), device=items.device) - begin[item]
    first = (-1 - items[:, 3].long()).clamp(min=0)
    waited = (place - first[item]) % tiles[item]
    due = begin[item].double() / concurrent_panels + waited
    return columns.view(-1, PANEL_K_TILE)[due.argsort(stable=True)].flatten()


def same_run(a: Plan, b: Plan, device: torch.device) -> bool:
    """Whether two plans run the same code: measuring both would only compare noise."""
    if device.type == "cpu":  # whose one kernel does not look at the rest
        return a.kernel == b.kernel
    return replace(a, reasons=()) == replace(b, reasons=())
