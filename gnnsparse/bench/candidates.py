"""The candidates of a benchmark: this package's kernels, each forced by its plan. Peers are in `peers`."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

import gnnsparse
from gnnsparse.bench.workload import Workload
from gnnsparse.plan import KERNELS as OPERATIONS
from gnnsparse.plan import PanelPlan, Plan, Problem, WindowPlan, choose_plan, forced_plan
from gnnsparse.runtime.device import PANEL_K_TILE
from gnnsparse.sparse.operand import SparseOperand

__all__ = [
    "KERNELS", "KERNEL_DEVICES", "X_ROUNDED", "X_STORED", "Candidate", "UnavailableError", "UnsupportedError",
    "Variant", "first_line", "our_kernel", "our_variants", "release", "same_run", "swept",
]  # fmt: skip

#: Variants of this package's SpMM in 8 bits: X is stored before, as 16-bit kernels are given X in 16 bits, or
#: each product rounds it.
X_STORED, X_ROUNDED = "x stored before", "x rounded in the product"


class UnavailableError(Exception):
    """A candidate can't run a workload; the message says why, in one line."""


class UnsupportedError(UnavailableError):
    """A candidate can't run a workload in this precision; in fp32 it may."""


#: One of the variants of a candidate, such as one algorithm of a library: its name, and what prepares it and
#: returns the function to time with the milliseconds that this took, or raises UnavailableError.
Variant = tuple[str, Callable[[], tuple[Callable[[], torch.Tensor], float]]]


@dataclass(frozen=True, eq=False)
class Candidate:
    """A function that queues a workload on the current stream and is timed; `plan` is None for peers.

    `columns`, int32 [gathered], are the rows of a dense operand that it reads, in about the order of reading.
    `in_caller_order` converts what `call` returns to rows or nonzeros in the caller's order.
    `preprocess_ms` is what the preparation of the matrix took before the first call.
    """

    name: str
    ours: bool
    call: Callable[[], torch.Tensor]
    columns: torch.Tensor
    plan: Plan | None = None
    in_caller_order: Callable[[torch.Tensor], torch.Tensor] = lambda result: result
    variant: str = ""
    preprocess_ms: float | None = None


#: The kernels that can be forced: those for operands whose format was asked for are measured by --format.
_FORCED = tuple(kernel for kernel in OPERATIONS["spmm"] if not kernel.for_formats)
#: For each name a function that returns the plan which forces the kernel, or None if it can't run a problem.
#: "auto" is the plan that users get.
KERNELS: dict[str, Callable[[Problem], Plan | None]] = {
    "auto": choose_plan,
    **{kernel.name: partial(forced_plan, name=kernel.name) for kernel in _FORCED},
}
#: The types of devices that each of them runs on.
KERNEL_DEVICES: dict[str, tuple[str, ...]] = {
    "auto": ("cpu", "cuda"),
    **{kernel.name: kernel.devices for kernel in _FORCED},
}


def our_variants(work: Workload) -> tuple[str, ...]:
    """Return the variants in which each kernel of this package is measured; ("",) if there is one."""
    return (X_STORED, X_ROUNDED) if work.op == "spmm" and work.precision.quantizes else ("",)


def our_kernel(
    name: str, plan: Plan | None, a: SparseOperand, work: Workload, variant: str = ""
) -> Candidate:
    """Make the candidate of a kernel of this package, in one of `our_variants`; "": X is a tensor.

    Raises UnavailableError if `plan`, which KERNELS[name] returned for the workload, is None.
    """
    kernels = a.kernels
    if plan is None:
        form = kernels.blocked.spec.name if kernels.blocked else "csr"
        raise UnavailableError(f"no plan for it on {work.device.type} with format {form}")
    function = gnnsparse.spmm if work.op == "spmm" else gnnsparse.sddmm
    operands: tuple[Any, ...] = work.dense
    if variant == X_STORED:
        operands = (gnnsparse.store_features(a, *work.dense),)
    call = partial(function, a, *operands, plan=plan)
    columns, blocked = kernels.csr.indices, kernels.blocked
    if isinstance(plan, WindowPlan) and blocked is not None:
        columns = blocked.columns
    elif isinstance(plan, PanelPlan):
        columns = kernels.panel(plan.height).columns
        if plan.concurrent_panels:
            together = plan.concurrent_panels
            listed = kernels.panel_work(plan.height, plan.tile_limit, plan.longest_first, together)
            columns = swept(columns, listed.items, together)
    in_order = {"in_caller_order": a.to_coo_order} if work.op == "sddmm" else {}
    return Candidate(name, True, call, columns, plan, variant=variant, **in_order)


def swept(columns: torch.Tensor, items: torch.Tensor, concurrent_panels: int) -> torch.Tensor:
    """Sort column slots of panels by the time at which panels that run concurrently read them.

    `columns` has -1 for padded slots, and `items` are those of `gnnsparse.plan.work.cut_panels`, in the order
    of the column slots.
    """
    begin, tiles = items[:, 1].long(), items[:, 2].long()
    item = torch.repeat_interleave(torch.arange(items.shape[0], device=items.device), tiles)
    place = torch.arange(item.numel(), device=items.device) - begin[item]
    first = (-1 - items[:, 3].long()).clamp(min=0)
    waited = (place - first[item]) % tiles[item]
    due = begin[item].double() / concurrent_panels + waited
    return columns.view(-1, PANEL_K_TILE)[due.argsort(stable=True)].flatten()


def same_run(a: Plan, b: Plan, device: torch.device) -> bool:
    """Return whether two plans launch identical code, so that measuring both would only compare noise."""
    if device.type == "cpu":  # its one kernel ignores all parameters
        return a.kernel == b.kernel
    return replace(a, reasons=()) == replace(b, reasons=())


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, 200 characters at most."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]


def release() -> None:
    """Free a GPU's cached memory, so that what one candidate copied does not leave the next without."""
    if torch.cuda.is_initialized():
        gc.collect()
        torch.cuda.empty_cache()
