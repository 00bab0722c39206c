"""Problem -> Plan: the one place that knows tile sizes and architectures.

A Problem holds counts, a Plan says which kernel runs and how. Both are plain, hashable data, so a
plan can be printed, compared, and replaced in a call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from gnnsparse import _native
from gnnsparse.costs import (
    SLICE_BYTES,
    STAGE,
    PanelCosts,
    PanelWork,
    StageCounts,
    gather_us,
    panel_us,
    pass_us,
)
from gnnsparse.precision import Precision

__all__ = ["Device", "Plan", "Problem", "candidates", "choose_plan", "describe_device", "has_panels"]

#: Bytes a lane loads at a time.
_VECTOR = _native.VECTOR_BYTES
#: A slice of X of this size stays in the L2 of an H200 (60 MB) beside what else passes through.
_RESIDENT_BYTES = 45 * 10**6
#: Lanes of a slice of 128 bytes a row: narrower slices waste too many instructions.
_SLICE_LANES = _native.ROW_SLICE_BYTES // _VECTOR


@dataclass(frozen=True)
class Device:
    """What a plan needs to know of a device: "cpu", or "cuda" with compute capability and bytes of memory."""

    type: str
    capability: tuple[int, int] = (0, 0)
    multiprocessors: int = 1
    memory: int = 0

    @property
    def has_window_kernel(self) -> dict[Precision, bool]:
        """Which precisions the device's Tensor Cores take: Turing has float16 alone."""
        ampere = self.type == "cuda" and self.capability >= (8, 0)
        turing = self.type == "cuda" and self.capability >= (7, 5)
        return {
            Precision.FP16: turing,
            Precision.BF16: ampere,
            Precision.TF32: ampere,
            Precision.FP32: False,
        }

    def has_panel_kernel(self, precision: Precision) -> bool:
        """Whether panels run here: they need asynchronous copies to shared memory.

        fp32 runs there as well, each operand in two tf32 parts.
        """
        return self.type == "cuda" and self.capability >= (8, 0)


@lru_cache(maxsize=64)
def describe_device(device: torch.device) -> Device:
    """The Device of a torch device."""
    if device.type != "cuda":
        return Device(device.type)
    facts = torch.cuda.get_device_properties(device)
    return Device("cuda", (facts.major, facts.minor), facts.multi_processor_count, facts.total_memory)


@dataclass(frozen=True)
class Problem:
    """The counts that decide how a product runs.

    Attributes:
        op: "spmm" or "sddmm".
        device: where it runs.
        precision: of the product.
        rows, cols, nnz: of A.
        width: columns of X, or the feature dimension of SDDMM.
        format: name of A's blocked format, "" if it has none.
        slots: column slots of that format.
        edge_values: whether values come with the call, in row order.
        weighted: whether the matrix stores a value for each nonzero.
        panel_slots: column slots of panels of 16 and of 32 rows; 0 where they were not counted.
        panel_stages: for both heights (stages, panels of that length); empty: all panels are as long.
    """

    op: str
    device: Device
    precision: Precision
    rows: int
    cols: int
    nnz: int
    width: int
    format: str = ""
    slots: int = 0
    edge_values: bool = False
    weighted: bool = False
    panel_slots: tuple[int, int] = (0, 0)
    panel_stages: tuple[StageCounts, StageCounts] = ((), ())


@dataclass(frozen=True)
class Plan:
    """How a product runs.

    Attributes:
        kernel: "csr" (CUDA cores, or the CPU's rows), "window" or "panel" (Tensor Cores).
        lanes: csr on CUDA: lanes along the features; each loads 16 bytes of a row.
        row_lanes: csr on CUDA: lanes of one row; row_lanes / lanes nonzeros run side by side.
        row_limit: csr on CUDA: longer rows are cut into parts of at most this many nonzeros.
        group: csr on CUDA: neighbouring rows of about this many nonzeros in all are taken one after the
            other by `lanes` lanes; 0: each row by itself, by `row_lanes`.
        prescale: csr and panel on CUDA, rank-1 weights: the rows of X are weighed once before the
            product; False: each nonzero's value is made once and kept, or each column slot's. Panels
            without stored values in tf32: X is rounded once as well, not by each warp.
        step_limit: window, panel: longer windows are cut into parts of at most this many steps of 16
            column slots, panels into as many stages of 32.
        longest_first: panel: the longest parts start first, so that none is started last; otherwise they
            start in the order of the rows, whose neighbours share rows of X.
        at_once: panel: how many panels share a sweep over the rows of X, those that run at the same time;
            0: each starts with its first column.
        height: panel: rows of a panel, 16 or 32.
        slices: panel: slices of 128 bytes of the rows of X that a warp takes one after the other.
        reasons: why, one line each.
    """

    kernel: str
    lanes: int = 32
    row_lanes: int = 32
    row_limit: int = 256
    group: int = 0
    prescale: bool = True
    step_limit: int = 24
    longest_first: bool = False
    at_once: int = 0
    height: int = 32
    slices: int = 1
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kernel}: " + "; ".join(self.reasons)

    @property
    def label(self) -> str:
        """The kernel, of panels with their height."""
        return f"panel {self.height}" if self.kernel == "panel" else self.kernel


def _power_of_two_at_least(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def _slice_is_resident(problem: Problem) -> bool:
    """Whether 128 bytes of every row of X stay in L2."""
    return problem.cols * SLICE_BYTES <= _RESIDENT_BYTES


def has_panels(problem: Problem, height: int) -> bool:
    """Whether panels of `height` rows, 16 or 32, can run: stored values of 32 bits take 16 alone."""
    dense = _stores_values(problem) and not _packs_values(problem, height)
    return problem.panel_slots[height // 32] > 0 and not (dense and height == 32)


def _stores_values(problem: Problem) -> bool:
    """Whether panels hold a value for each nonzero."""
    return problem.weighted and problem.op == "spmm"


def _packs_values(problem: Problem, height: int) -> bool:
    """Whether they hold no zeros: panels of 32 rows in 16 bits."""
    return _stores_values(problem) and height == 32 and problem.precision.storage.itemsize == 2


def csr_plan(problem: Problem, reasons: tuple[str, ...] = ()) -> Plan:
    """A plan for the csr kernel."""
    vectors = -(-_row_bytes(problem) // _VECTOR)
    lanes = min(32, _power_of_two_at_least(vectors))
    mean = problem.nnz / max(problem.rows, 1)
    whole = problem.cols * min(lanes, vectors) * _VECTOR <= _RESIDENT_BYTES
    if problem.op == "spmm" and mean >= 64 and _slice_is_resident(problem) and not whole:
        lanes = min(lanes, _SLICE_LANES)
    # Several nonzeros of a row side by side pay once each lane still has a dozen batches of 8.
    row_lanes = lanes
    while row_lanes < 32 and mean >= 96 * (row_lanes // lanes):
        row_lanes *= 2
    # Of a small matrix each warp takes less, so that all have work at the same time.
    side_by_side = _CSR_WARPS * problem.device.multiprocessors * (32 // lanes)
    share = problem.nnz * -(-vectors // lanes) // side_by_side
    short = problem.op == "spmm" and mean < _SHORT_ROWS
    group = min(_GROUP, max(16, _power_of_two_at_least(share))) if short else 0
    row_limit = max(min(256, max(64, 8 * share)), int(2 * mean))
    return Plan("csr", lanes, row_lanes, row_limit, group, prescale=mean >= 32, reasons=reasons)


def window_plan(problem: Problem, reasons: tuple[str, ...] = ()) -> Plan:
    """A plan for the window kernel."""
    windows = -(-problem.rows // 8)
    mean_steps = problem.slots / _WINDOW_STEP / max(windows, 1)
    limit = max(24, int(1.3 * mean_steps))
    # The csr kernel takes the rows that a format keeps out of its windows.
    return replace(csr_plan(problem), kernel="window", step_limit=limit, reasons=reasons)


def panel_step_limit(mean_stages: float, share: float, at_least: int) -> int:
    """Stages of a panel's parts: hardly any panel is cut, unless a warp's share of a small matrix is less."""
    return max(6, min(max(at_least, int(1.3 * mean_stages)), int(4 * share)))


def panel_plan(problem: Problem, height: int, reasons: tuple[str, ...] = ()) -> Plan:
    """A plan for the panel kernel with panels of `height` rows, 16 or 32."""
    resident, work = _slice_is_resident(problem), _panel_work(problem, height)
    mean = work.slots / STAGE / max(sum(count for _, count in work.panels), 1)
    # Of a small matrix each warp takes less, so that all have work at the same time.
    share = work.slots / STAGE * work.slices / (_PANEL_WARPS * problem.device.multiprocessors)
    plan = replace(
        csr_plan(problem),
        kernel="panel",
        height=height,
        step_limit=panel_step_limit(mean, share, 20 if resident else 16),
        # Where a slice of X stays in L2 the order of the rows gains nothing.
        longest_first=resident,
        prescale=False,
        reasons=reasons,
    )
    if problem.op == "sddmm":  # takes all slices, and its parts need no second kernel
        return plan
    # Elsewhere weights cost the kernel less than a pass over X. In tf32 it rounds X as well.
    rounds = problem.precision is Precision.TF32 and not _stores_values(problem)
    options = [
        replace(plan, slices=slices, step_limit=plan.step_limit * times, prescale=prescale)
        for prescale in ((False, True) if rounds else (False,))
        for slices in sorted({1, min(2, work.slices), work.slices})
        for times in (1, 2, 4)
    ]
    best = min(options, key=lambda option: _panel_us(problem, option))
    # Where a slice does not stay in L2, warps share it as they sweep over X together.
    return replace(best, at_once=0 if resident else work.at_once)


def _panel_us(problem: Problem, plan: Plan) -> float:
    """The panel kernel by the model."""
    slices = _slices(problem) if problem.op == "sddmm" else plan.slices
    work = _panel_work(problem, plan.height)
    before = pass_us(problem.cols * work.row_bytes) if plan.prescale else 0.0
    return before + panel_us(work, _panel_costs(problem, plan), slices, plan.step_limit)


def _panel_work(problem: Problem, height: int) -> PanelWork:
    slots = problem.panel_slots[height // 32]
    panels = max(-(-problem.rows // height), 1)
    stages = problem.panel_stages[height // 32] or ((-(-slots // (STAGE * panels)), panels),)
    return PanelWork(
        height, slots, stages, _slices(problem), _row_bytes(problem),
        _value_bytes(problem, height, slots), problem.cols,
        _resident_panels(problem, height) * problem.device.multiprocessors,
    )  # fmt: skip


def _panel_costs(problem: Problem, plan: Plan) -> PanelCosts:
    height = plan.height
    if plan.prescale:
        return _ROUNDED_COSTS[height]
    if _stores_values(problem) and problem.precision.storage.itemsize == 2:
        return _PACKED_COSTS if _packs_values(problem, height) else _DENSE_COSTS
    return _PANEL_COSTS.get((height, problem.precision), _PANEL_COSTS[height, None])


def _resident_panels(problem: Problem, height: int) -> int:
    """Panels that run on a multiprocessor at a time (native panel_blocks)."""
    if problem.precision is Precision.FP32:
        return 16 if height == 16 else 8
    return 24 if height == 16 else 16


def _row_bytes(problem: Problem) -> int:
    """Bytes of a row of X."""
    return problem.width * problem.precision.storage.itemsize


def _slices(problem: Problem) -> int:
    """Slices of 128 bytes of the rows of X."""
    return -(-_row_bytes(problem) // SLICE_BYTES)


def _suits_panels(problem: Problem) -> bool:
    """Whether SDDMM has rows of at least a slice, and few enough slices to keep Q in shared memory."""
    return _row_bytes(problem) >= SLICE_BYTES and _slices(problem) <= _SDDMM_SLICES


def _csr_us(problem: Problem, plan: Plan) -> float:
    """The csr kernel by the model."""
    slices = _slices(problem)
    gather = gather_us(slices * SLICE_BYTES * problem.nnz, problem.cols * SLICE_BYTES)
    grouped = plan.group > 0
    busy = _CSR_BUSY.get((grouped, problem.precision), _CSR_BUSY[grouped, None])
    row = _GROUP_ROW_US if grouped else _CSR_ROW_US[0] + slices * _CSR_ROW_US[1]
    total = busy * gather + problem.rows * row
    if problem.op == "sddmm":
        total *= _SDDMM_CSR
    longest = max(plan.group, min(plan.row_limit, _longest_row(problem))) * plan.lanes / plan.row_lanes
    # X is read and the result written at least once.
    once = pass_us((problem.rows + problem.cols) / 2 * _row_bytes(problem))
    return max(total, once, _START_US + longest / 8 * _BATCH_US)


def _longest_row(problem: Problem) -> int:
    """Nonzeros that no row has more of: a panel has at least as many columns as each of its rows."""
    stages = problem.panel_stages[0]
    return STAGE * max(stages)[0] if stages else problem.cols


def _value_bytes(problem: Problem, height: int, slots: int) -> float:
    """Bytes of stored values that a warp reads for a column slot."""
    if _packs_values(problem, height):
        return _ENTRY_BYTES * problem.nnz / slots
    return problem.precision.storage.itemsize * height if _stores_values(problem) else 0


def _cheapest(problem: Problem) -> Plan:
    csr = csr_plan(problem)
    model = {csr: _csr_us(problem, csr)}
    for height in (16, 32):
        if has_panels(problem, height):
            plan = panel_plan(problem, height)
            model[plan] = _panel_us(problem, plan)
    counts = f"{problem.nnz} nonzeros, {problem.panel_slots[0]} and {problem.panel_slots[1]} columns of "
    times = ", ".join(f"{plan.label} {us:.0f} us" for plan, us in model.items())
    reasons = (counts + "16- and 32-row panels", f"by the model: {times}")
    return replace(min(model, key=lambda plan: model[plan]), reasons=reasons)


def choose_plan(problem: Problem) -> Plan:
    """The plan with the least modelled time.

    All kernels are bound by the rows of X that they bring from L2 to the multiprocessors: the csr
    kernel one for each nonzero, the others one for each distinct column of 8, 16 or 32 rows
    (docs/performance.md has the measurements behind the model).
    """
    device, precision = problem.device, problem.precision
    if device.type == "cpu":
        return Plan("csr", reasons=("the CPU kernels work row by row",))
    if problem.panel_slots[0] and (problem.op == "spmm" or _suits_panels(problem)):
        return _cheapest(problem)
    if not problem.format:
        return csr_plan(problem, ("the operand has no blocked format",))
    if not device.has_window_kernel[precision]:
        name = f"sm_{device.capability[0]}{device.capability[1]}"
        return csr_plan(problem, (f"no Tensor Core product of {precision.value} on {name}",))
    plain = problem.format == "window"
    if not plain and (problem.op == "sddmm" or problem.edge_values):
        return csr_plan(problem, (f"{problem.format} stores no bits to place edge values by",))
    if not plain:
        return window_plan(problem, (f"format {problem.format} was asked for",))
    if problem.op == "sddmm":
        return window_plan(problem, ("dot products on Tensor Cores, of rows that are short or very wide",))
    gathered = f"{problem.nnz} nonzeros, {problem.slots} columns of 8-row windows"
    if problem.slots <= _WINDOW_GAIN * problem.nnz:
        return window_plan(problem, (gathered, "windows gather less"))
    return csr_plan(problem, (gathered, "windows save too little"))


def candidates(problem: Problem) -> tuple[Plan, ...]:
    """Plans to measure, each of which can run; the model's choice comes first."""
    plans = [choose_plan(problem)]
    if problem.device.type != "cpu":
        weigh = (True, False) if problem.op == "spmm" and not problem.weighted else (True,)
        csr = csr_plan(problem)
        plans += [replace(csr, prescale=p) for p in weigh]
        if csr.group:
            plans += [replace(csr, group=0), replace(csr, group=csr.group // 2)]
        plans += _window_candidates(problem) + _panel_candidates(problem, weigh)
    found: dict[Plan, Plan] = {}
    for plan in plans:
        found.setdefault(replace(plan, reasons=()), plan)
    return tuple(found.values())


def _window_candidates(problem: Problem) -> list[Plan]:
    plain = problem.format == "window"
    stored = bool(problem.format) and problem.op == "spmm" and not problem.edge_values
    if not problem.device.has_window_kernel[problem.precision] or not (plain or stored):
        return []
    plan = window_plan(problem)
    return [plan, replace(plan, step_limit=4 * plan.step_limit)]


def _panel_candidates(problem: Problem, weigh: tuple[bool, ...]) -> list[Plan]:
    if problem.op == "sddmm" and not _suits_panels(problem):
        return []
    taken = sorted({1, _slices(problem)}) if problem.op == "spmm" else [1]
    found = []
    for height in (16, 32):
        if not has_panels(problem, height):
            continue
        plan = panel_plan(problem, height)
        found += [
            replace(plan, step_limit=plan.step_limit * times, slices=slices, prescale=prescale)
            for times in (1, 3)
            for slices in taken
            for prescale in (weigh if problem.op == "spmm" else (plan.prescale,))
        ]
    return found


#: Column slots of a step of the window kernel, which pays once it gathers at most this fraction of the
#: csr kernel's rows.
_WINDOW_STEP, _WINDOW_GAIN = _native.WINDOW_K_TILE, 0.9
#: Below this mean length rows go to the csr kernel in groups of so many nonzeros.
_SHORT_ROWS = 32
_GROUP = 128
#: How much longer SDDMM takes in the csr kernel than its gather, and how wide rows may be for panels:
#: those of Q stay in shared memory.
_SDDMM_CSR = 2.5
_SDDMM_SLICES = 16
#: Microseconds that a row costs the csr kernel beside its nonzeros, and each slice of it.
_CSR_ROW_US = (0.09e-3, 0.23e-3)
#: What the gather takes, in its time by the rate: of rows by themselves and in groups, by precision (None:
#: of 16 bits, whose conversions bind groups).
_CSR_BUSY = {
    (False, None): 1.0, (False, Precision.TF32): 0.83, (False, Precision.FP32): 0.846,
    (True, None): 2.0, (True, Precision.TF32): 1.47, (True, Precision.FP32): 1.26,
}  # fmt: skip
#: Microseconds a row in groups.
_GROUP_ROW_US = 0.1e-3
#: Warps on a multiprocessor; microseconds that one of the csr kernel waits for: its start, a batch of 8 rows.
_CSR_WARPS, _PANEL_WARPS = 24, 20
_START_US, _BATCH_US = 4.0, 0.5
#: By height and precision (None: of 16 bits).
_PANEL_COSTS = {
    (16, None): PanelCosts(1, 0.489e-3, 0.574e-3, 0.289e-3, 0.776, 0.961, 0.231, 0.00864),
    (32, None): PanelCosts(0.927, 0.766e-3, 0.894e-3, 0.204e-3, 1.01, 1.52, 0.327, 1.39),
    (16, Precision.TF32): PanelCosts(1.06, 0.518e-3, 0.608e-3, 0.306e-3, 0.776, 0.961, 0.231, 0.00864),
    (32, Precision.TF32): PanelCosts(0.916, 1.74e-3, 2.03e-3, 0.462e-3, 1.01, 1.52, 0.327, 1.39),
    (16, Precision.FP32): PanelCosts(1.34, 0.727e-3, 0.854e-3, 0.43e-3, 0.776, 0.961, 0.231, 0.00864),
    (32, Precision.FP32): PanelCosts(1.65, 1.41e-3, 1.64e-3, 0.375e-3, 1.01, 1.52, 0.327, 1.39),
}
#: In tf32, of X that is rounded already.
_ROUNDED_COSTS = {
    16: PanelCosts(1.09, 0.479e-3, 0.563e-3, 0.283e-3, 0.776, 0.961, 0.231, 0.00864),
    32: PanelCosts(0.888, 0.639e-3, 0.746e-3, 0.17e-3, 1.01, 1.52, 0.327, 1.39),
}
#: Stored values: dense in 16 bits with 16 rows, entries with 32, whose first take one more trip to memory.
_DENSE_COSTS = PanelCosts(1.11, 0.617e-3, 0.724e-3, 0.365e-3, 0.776, 0.961, 0.231, 0.00864)
_PACKED_COSTS = PanelCosts(1, 0.897e-3, 1.05e-3, 0.239e-3, 1.01, 1.52, 0.327, 1.39)
#: Bytes of an entry.
_ENTRY_BYTES = _native.ENTRY_BYTES
