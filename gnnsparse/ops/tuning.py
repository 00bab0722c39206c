"""Plans by measuring: each candidate runs on the operand itself, with random dense operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from gnnsparse.cuda_path import path
from gnnsparse.environment import device_name
from gnnsparse.kernel_cache import KernelCache, Product
from gnnsparse.operand_core import bind_tuner
from gnnsparse.ops.common import require_kernels
from gnnsparse.ops.sddmm.schema import backend as sddmm_backend
from gnnsparse.ops.spmm.schema import backend as spmm_backend
from gnnsparse.plan import Plan, candidates
from gnnsparse.preprocess.plans import PlanStore
from gnnsparse.timing import measure

__all__ = ["milliseconds", "runner", "tune"]

#: Repeats of the first round; those within _NEAR of its best run in a second one.
_FIRST, _SECOND, _NEAR = 7, 21, 1.1
#: The model's plan stays where no other is faster by more than this: noise of a card's clock.
_MARGIN = 0.98
#: Seconds that the repeats of one candidate may take.
_SECONDS = 0.5


def tune(kernels: KernelCache, product: Product, store: PlanStore, direction: str) -> Plan:
    """The fastest candidate for a product, measured unless the store knows it.

    Args:
        kernels: of the orientation that is multiplied.
        product: "spmm" or "sddmm", and its width.
        store: where plans are kept.
        direction: which orientation it is: "A", or "T" for its transpose.

    Raises:
        RuntimeError: the native module has no kernels for the operand's device.
    """
    device = kernels.csr.device
    require_kernels(device.type)
    problem = kernels.problem(product)
    plans = candidates(problem)
    name = device_name(device)
    if len(plans) == 1:
        reason = f"autotune: nothing to measure, there is one candidate on {name}"
        return replace(plans[0], reasons=(*plans[0].reasons, reason))
    key = store.key(problem, direction, device)
    if (plan := store.find(key, plans)) is None:
        with torch.no_grad():
            plan = _fastest(kernels, product, plans, name)
        store.keep(key, problem, plan)
    return plan


def _fastest(kernels: KernelCache, product: Product, plans: tuple[Plan, ...], name: str) -> Plan:
    # The panels and lists of candidates that lose go with the scratch cache.
    run = runner(kernels.scratch(), product)
    times = {plan: milliseconds(run, plan, kernels.csr.device, _FIRST) for plan in plans}
    best = min(times.values())
    if best == math.inf:  # no candidate at all: there is no memory for random operands, say
        return replace(plans[0], reasons=(*plans[0].reasons, f"autotune: no candidate could run on {name}"))
    for plan in [p for p in plans if p is plans[0] or times[p] <= _NEAR * best]:
        times[plan] = milliseconds(run, plan, kernels.csr.device, _SECOND)
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


def milliseconds(run: Callable[[Plan], object], plan: Plan, device: torch.device, repeats: int) -> float:
    """Median time, infinite where the plan can't run."""
    try:
        run(plan)  # what it needs is made in the first call
        graph = path().takes(device)
        timing = measure(lambda: run(plan), device, repeats=repeats, seconds=_SECONDS, graph=graph)
    except (RuntimeError, ValueError):  # no memory for its format, for one
        return math.inf
    return timing.median


def runner(kernels: KernelCache, product: Product) -> Callable[[Plan], object]:
    """Runs a product with random operands by a plan."""
    csr, width, dtype = kernels.csr, product.width, kernels.precision.storage
    generator = torch.Generator(csr.device).manual_seed(0)  # the user's own stays as it is

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=csr.device).to(dtype)

    if product.op == "sddmm":
        q, k = random(csr.rows, width), random(csr.cols, width)
        return lambda plan: sddmm_backend(csr.device).bind(kernels, width, dtype, plan)(q, k)
    x, values = random(csr.cols, width), random(csr.nnz) if product.edge_values else None
    weighted = product.edge_values
    return lambda plan: spmm_backend(csr.device).bind(kernels, width, dtype, weighted, plan)(x, values)


bind_tuner(tune)
