"""The choice among the kernels of an operation by their modelled times."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gnnsparse.errors import bad_type, bad_value
from gnnsparse.formats import exclusive_preset
from gnnsparse.plan.attention import CSR_ATTENTION, FUSED, FUSED_GRAD, ROWS, TILE_KERNELS, UNFUSED
from gnnsparse.plan.base import PLAN_TYPES, Kernel, Plan, Problem
from gnnsparse.plan.csr import CSR
from gnnsparse.plan.panel import HEIGHTS, PANELS
from gnnsparse.plan.window import BLOCKED, WINDOW
from gnnsparse.runtime.serialization import from_plain


def _product_kernels(op: str) -> tuple[Kernel, ...]:
    return (CSR, BLOCKED, WINDOW, *(kernel for kernel in PANELS.values() if op in HEIGHTS[kernel.height].ops))


#: The kernels of each operation. Among kernels without a model the first one that can run is chosen.
KERNELS: dict[str, tuple[Kernel, ...]] = {
    "spmm": _product_kernels("spmm"),
    "sddmm": _product_kernels("sddmm"),
    "attention": (FUSED, CSR_ATTENTION, ROWS, UNFUSED, *TILE_KERNELS),
    "attention_grad": (FUSED_GRAD, CSR_ATTENTION, ROWS, UNFUSED, *TILE_KERNELS),
}


def kernel_of(op: str, plan: Any) -> Kernel:
    """Return the kernel of an operation that a plan belongs to.

    Raises:
        TypeError: `plan` is no plan.
        ValueError: the operation has no such kernel.
    """
    if not isinstance(plan, Plan):
        bad_type("plan", plan, "a gnnsparse.Plan or None")
    kernels = [kernel for kernel in KERNELS[op] if isinstance(plan, kernel.plan_type)]
    height = getattr(plan, "height", None)
    of_height = [kernel for kernel in kernels if getattr(kernel, "height", height) == height]
    if not of_height:
        accepted = ", ".join(kernel.name for kernel in KERNELS[op])
        bad_value("plan", f"got {plan.label} for {op}; accepted: {accepted}")
    return of_height[0]


def forced_plan(problem: Problem, name: str) -> Plan | None:
    """Return the default plan of the kernel called `name`; None if it can't run the problem."""
    named = [kernel for kernel in KERNELS[problem.op] if kernel.name == name and kernel.can_run(problem)]
    return named[0].default(problem) if named else None


def choose_plan(problem: Problem) -> Plan:
    """Return the plan with the least modelled time.

    The time of SpMM and SDDMM is bound by the rows of X that are read from L2: the csr kernel reads one for
    each nonzero, the other kernels one for each distinct column of a window or panel (notes/log.md has
    the measurements behind the model).

    Raises:
        ValueError: the operand was prepared in a format in which the device can't run the operation.
    """
    asked = exclusive_preset(problem.format) is not None
    # Without a rate a kernel over tiles is not looked at: its library is not imported.
    tile_rates = problem.record.attention.tiles if getattr(problem, "tiles", None) is not None else ()
    kernels = [
        kernel
        for kernel in KERNELS[problem.op]
        if problem.device.type in kernel.devices
        and (asked or not kernel.for_formats)
        and (kernel not in TILE_KERNELS or kernel.name in tile_rates)
    ]
    answers = {kernel: kernel.can_run(problem) for kernel in kernels}
    able = [kernel for kernel in kernels if answers[kernel]]
    refused = tuple(
        f"no {kernel.name}: {answers[kernel].problem}" for kernel in kernels if not answers[kernel]
    )
    if not able:
        what = f"{problem.op}{' with edge values' if problem.edge_values else ''}"
        major, minor = problem.device.capability
        place = "a CPU" if problem.device.type == "cpu" else f"a GPU of sm_{major}{minor}"
        bad_value("format", f"{problem.format} can't run {what} on {place} ({'; '.join(refused)})")
    asked_for = {kernel: why for kernel in able if (why := kernel.is_asked_for(problem))}
    # The kernels whose modelled times decide: the first that is asked for, in all its heights.
    families = {kernel.plan_type.kernel for kernel in able}
    rivals = [kernel for kernel in asked_for if kernel.plan_type is next(iter(asked_for)).plan_type]
    rivals = rivals or [kernel for kernel in able if not families & set(kernel.yields_to)]
    plans = {kernel: kernel.default(problem) for kernel in rivals}
    times = {plan: kernel.time_us(problem, plan) for kernel, plan in plans.items()} if len(rivals) > 1 else {}
    modelled = {plan: us for plan, us in times.items() if us is not None}
    if modelled:
        chosen = min(modelled, key=lambda plan: modelled[plan])
        by_time = ", ".join(f"{plan.label} {us:.0f} us" for plan, us in modelled.items())
        reasons: tuple[str, ...] = (_counts(problem), f"by the model: {by_time}")
    else:
        chosen = plans[rivals[0]]
        reasons = () if asked_for else chosen.reasons
    reasons = (asked_for[rivals[0]], *reasons) if asked_for else (*reasons, *refused)
    name, record = problem.device.name, problem.record.name
    if problem.device.type == "cuda" and name and record != name:
        reasons = (*reasons, f"no record of {name}: by that of {record}, which it resembles most")
    return replace(chosen, reasons=reasons)


def _counts(problem: Problem) -> str:
    """Return the counts as text, such as "1000 nonzeros, 700 columns of 16-row panels"."""
    found = [f"{problem.nnz} nonzeros"]
    if problem.panels:
        found += [f"{counts.slots} columns of {counts.height}-row panels" for counts in problem.panels]
    elif problem.slots:
        found.append(f"{problem.slots} columns of {problem.slot_rows}-row windows")
    return ", ".join(found)


def candidates(problem: Problem) -> tuple[Plan, ...]:
    """Return the plans that autotuning measures, each of which can run; the model's choice comes first."""
    plans = [choose_plan(problem)]
    if problem.device.type != "cpu":
        for kernel in KERNELS[problem.op]:
            if "cuda" in kernel.devices and kernel.can_run(problem):
                plans += kernel.variants(problem)
    found: dict[Plan, Plan] = {}
    for plan in plans:
        found.setdefault(replace(plan, reasons=()), plan)
    return tuple(found.values())


def plan_from_plain(content: Any) -> Plan | None:
    """Make a plan of plain values, as of `runtime.serialization.to_plain`; None if they don't fit."""
    try:
        values = dict(content)
        plan: Plan = from_plain(PLAN_TYPES[values.pop("kernel")], values, "plan")
    except (KeyError, TypeError, ValueError):
        return None
    return plan
