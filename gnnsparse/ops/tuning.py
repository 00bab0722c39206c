"""Autotuning: each candidate plan is timed on the operand itself with random dense operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from gnnsparse.ops.arguments import require_kernels
from gnnsparse.ops.sddmm_kernels import bind_sddmm
from gnnsparse.ops.spmm_kernels import bind_spmm
from gnnsparse.plan import Plan, candidates
from gnnsparse.plan.store import PlanStore
from gnnsparse.runtime.device import path
from gnnsparse.runtime.environment import device_name
from gnnsparse.runtime.timing import measure
from gnnsparse.sparse.kernel_cache import KernelCache, Product
from gnnsparse.sparse.prepared import bind_tuner

#: Repeats of the first and the second round. Only plans within a factor _NEAR of the first round's best time
#: are measured in the second.
_FIRST, _SECOND, _NEAR = 7, 21, 1.1
#: Another plan replaces the model's only if its time is below this share: less is noise of the GPU's clock.
_MARGIN = 0.98
#: Seconds that the repeats of one candidate may take.
_SECONDS = 0.5


def tune(kernels: KernelCache, product: Product, store: PlanStore, direction: str) -> Plan:
    """Return the fastest candidate plan, from the store or measured, with the times as its reasons."""
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
    # Formats and work lists of slower candidates are freed with the scratch cache.
    run = runner(kernels.scratch(), product)
    times = {plan: milliseconds(run, plan, kernels.csr.device, _FIRST) for plan in plans}
    best = min(times.values())
    if best == math.inf:  # no candidate ran: for example, the random operands do not fit into memory
        return replace(plans[0], reasons=(*plans[0].reasons, f"autotune: no candidate could run on {name}"))
    for plan in [p for p in plans if p is plans[0] or times[p] <= _NEAR * best]:
        times[plan] = milliseconds(run, plan, kernels.csr.device, _SECOND)
    chosen = min(plans, key=lambda plan: times[plan])
    if times[chosen] > _MARGIN * times[plans[0]]:
        chosen = plans[0]
    return replace(chosen, reasons=(_report(times, chosen, name), *chosen.reasons))


def _report(times: dict[Plan, float], chosen: Plan, name: str) -> str:
    """Return a reason such as "autotuned on NVIDIA H200: panel 16 0.101 ms, csr 0.130 ms"."""
    best = {chosen.label: times[chosen]}
    for plan, ms in sorted(times.items(), key=lambda pair: pair[1]):
        if ms < math.inf:
            best.setdefault(plan.label, ms)
    return f"autotuned on {name}: " + ", ".join(f"{label} {ms:.3f} ms" for label, ms in best.items())


def milliseconds(run: Callable[[Plan], object], plan: Plan, device: torch.device, repeats: int) -> float:
    """Return the median time of a plan in milliseconds, or infinity if it can't run."""
    try:
        run(plan)  # the first call also makes the formats and work lists of the plan
        graph = path().takes(device)
        timing = measure(lambda: run(plan), device, repeats=repeats, seconds=_SECONDS, graph=graph)
    except (RuntimeError, ValueError):  # for example, its format does not fit into memory
        return math.inf
    return timing.median


def runner(kernels: KernelCache, product: Product) -> Callable[[Plan], object]:
    """Make random dense operands for a product, and returns a function that runs it by a given plan."""
    csr, width, dtype = kernels.csr, product.width, kernels.precision.storage
    generator = torch.Generator(csr.device).manual_seed(0)  # torch's default generator is not touched

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float32, device=csr.device).to(dtype)

    if product.op == "sddmm":
        q, k = random(csr.rows, width), random(csr.cols, width)
        return lambda plan: bind_sddmm(kernels, q, plan)(q, k)
    x, values = random(csr.cols, width), random(csr.nnz) if product.edge_values else None
    return lambda plan: bind_spmm(kernels, x, values, plan)(x, values)


bind_tuner(tune)
