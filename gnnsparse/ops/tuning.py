"""Plans by measuring: each candidate runs on the operand itself, with random dense operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from gnnsparse.environment import device_name
from gnnsparse.operand import bind_tuner
from gnnsparse.ops.backend import backend_of, require_kernels
from gnnsparse.plan import Plan, candidates
from gnnsparse.preprocess.plans import PlanStore
from gnnsparse.side import Side
from gnnsparse.timing import measure

__all__ = ["tune"]

#: Repeats of the first round; those within _NEAR of its best run in a second one.
_FIRST, _SECOND, _NEAR = 7, 21, 1.1
#: The model's plan stays where no other is faster by more than this: noise of a card's clock.
_MARGIN = 0.98
#: Seconds that the repeats of one candidate may take.
_SECONDS = 0.5


def tune(side: Side, op: str, width: int, edge_values: bool, store: PlanStore, direction: str) -> Plan:
    """The fastest candidate for a product of a side, measured unless the store knows it.

    Args:
        op: "spmm" or "sddmm".
        width: columns of X, or features.
        edge_values: whether values come with the call.
        direction: of the side: "A", or "T" for its transpose.

    Raises:
        RuntimeError: the native module has no kernels for the side's device.
    """
    require_kernels(side.csr.device.type)
    problem = side.problem(op, width, edge_values)
    plans = candidates(problem)
    device = side.csr.device
    name = device_name(device)
    if len(plans) == 1:
        reason = f"autotune: nothing to measure, there is one candidate on {name}"
        return replace(plans[0], reasons=(*plans[0].reasons, reason))
    key = store.key(problem, direction, device)
    if (plan := store.find(key, plans)) is None:
        with torch.no_grad():
            plan = _fastest(side, op, width, edge_values, plans, name)
        store.keep(key, problem, plan)
    return plan


def _fastest(side: Side, op: str, width: int, edge_values: bool, plans: tuple[Plan, ...], name: str) -> Plan:
    # The panels and lists of candidates that lose go with it.
    product = _product(side.scratch(), op, width, edge_values)
    times = {plan: _milliseconds(product, plan, side.csr.device, _FIRST) for plan in plans}
    best = min(times.values())
    if best == math.inf:  # of none: memory for random operands, say
        return replace(plans[0], reasons=(*plans[0].reasons, f"autotune: no candidate could run on {name}"))
    for plan in [p for p in plans if p is plans[0] or times[p] <= _NEAR * best]:
        times[plan] = _milliseconds(product, plan, side.csr.device, _SECOND)
    chosen = min(plans, key=lambda plan: times[plan])
    if times[chosen] > _MARGIN * times[plans[0]]:
        chosen = plans[0]
    return replace(chosen, reasons=(_report(times, chosen, name), *chosen.reasons))


def _report(times: dict[Plan, float], chosen: Plan, name: str) -> str:
    """ "autotuned on NVIDIA H200: panel 16 0.101 ms, csr 0.130 ms": the chosen plan, then the best of each
    other kernel."""
    others: dict[str, float] = {}
    for plan, ms in times.items():
        if plan.label != chosen.label and ms < math.inf:
            others[plan.label] = min(ms, others.get(plan.label, math.inf))
    ranked = [(chosen.label, times[chosen]), *sorted(others.items(), key=lambda pair: pair[1])]
    return f"autotuned on {name}: " + ", ".join(f"{label} {ms:.3f} ms" for label, ms in ranked)


def _milliseconds(product: Callable[[Plan], object], plan: Plan, device: torch.device, repeats: int) -> float:
    """Median time, infinite where the plan can't run."""
    try:
        product(plan)  # what it needs is made in the first call
        timing = measure(
            lambda: product(plan), device, repeats=repeats, seconds=_SECONDS, graph=device.type == "cuda"
        )
    except (RuntimeError, ValueError):  # no memory for its format, for one
        return math.inf
    return timing.median


def _product(side: Side, op: str, width: int, edge_values: bool) -> Callable[[Plan], object]:
    """The product of a side with random operands, by a plan."""
    csr, dtype, backend = side.csr, side.precision.storage, backend_of(side.csr.device)
    generator = torch.Generator(csr.device).manual_seed(0)  # the user's own stays as it is

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=csr.device).to(dtype)

    if op == "sddmm":
        q, k = random(csr.rows, width), random(csr.cols, width)
        return lambda plan: backend.sddmm(side, q, k, plan)
    x, values = random(csr.cols, width), random(csr.nnz) if edge_values else None
    return lambda plan: backend.spmm(side, x, values, plan)


bind_tuner(tune)
