"""Problem -> Plan: the one place that knows tile sizes and architectures.

A Problem holds counts, a Plan says which kernel runs and how. Both are plain, hashable data, so a
plan can be printed, compared, and replaced in a call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import torch

from gnnsparse.precision import Precision

__all__ = ["Device", "Plan", "Problem", "choose_plan", "describe_device"]

#: Bytes a lane loads at a time.
_VECTOR = 16
#: A slice of X of this size stays in the L2 of an H200 (60 MB) beside what else passes through.
_RESIDENT_BYTES = 45 * 10**6
#: Lanes of a slice of 128 bytes a row: narrower slices waste too many instructions.
_SLICE_LANES = 8


@dataclass(frozen=True)
class Device:
    """What a plan needs to know of a device: "cpu", or "cuda" with its compute capability."""

    type: str
    capability: tuple[int, int] = (0, 0)
    multiprocessors: int = 1

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
        """Whether panels run here: they need asynchronous copies to shared memory."""
        return self.capability >= (8, 0) and self.has_window_kernel[precision]


@lru_cache(maxsize=64)
def describe_device(device: torch.device) -> Device:
    """The Device of a torch device."""
    if device.type != "cuda":
        return Device(device.type)
    facts = torch.cuda.get_device_properties(device)
    return Device("cuda", (facts.major, facts.minor), facts.multi_processor_count)


@dataclass(frozen=True)
class Problem:
    """The counts that decide how a product runs.

    Attributes:
        op: "spmm" or "sddmm".
        device: where it runs.
        precision: of the product.
        rows, cols, nnz: of A.
        width: columns of X, or the feature dimension of SDDMM.
        longest_row: nonzeros of the longest row.
        format: name of A's blocked format, "" if it has none.
        slots: column slots of that format.
        longest_window: most slots of a window.
        edge_values: whether values come with the call, in row order.
        weighted: whether the matrix stores a value for each nonzero.
        panel_slots: column slots of panels of 16 and of 32 rows; 0 where they were not counted.
    """

    op: str
    device: Device
    precision: Precision
    rows: int
    cols: int
    nnz: int
    width: int
    longest_row: int
    format: str = ""
    slots: int = 0
    longest_window: int = 0
    edge_values: bool = False
    weighted: bool = False
    panel_slots: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Plan:
    """How a product runs.

    Attributes:
        kernel: "csr" (CUDA cores, or the CPU's rows), "window" or "panel" (Tensor Cores).
        lanes: csr on CUDA: lanes along the features; each loads 16 bytes of a row.
        row_lanes: csr on CUDA: lanes of one row; row_lanes / lanes nonzeros run side by side.
        row_limit: csr on CUDA: longer rows are cut into parts of at most this many nonzeros.
        prescale: csr and panel on CUDA, rank-1 weights: the rows of X are weighed once before the
            product; False: each nonzero's value is made once and kept, or each column slot's.
        step_limit: window, panel: longer windows are cut into parts of at most this many steps of 16
            column slots, panels into as many stages of 32.
        height: panel: rows of a panel, 16 or 32.
        slices: panel: slices of 128 bytes of the rows of X that a warp takes one after the other.
        reasons: why, one line each.
    """

    kernel: str
    lanes: int = 32
    row_lanes: int = 32
    row_limit: int = 256
    prescale: bool = True
    step_limit: int = 24
    height: int = 32
    slices: int = 1
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.kernel}: " + "; ".join(self.reasons)


def _power_of_two_at_least(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def csr_plan(problem: Problem, reasons: tuple[str, ...] = ()) -> Plan:
    """A plan for the csr kernel."""
    itemsize = problem.precision.storage.itemsize
    vectors = -(-problem.width * itemsize // _VECTOR)
    lanes = min(32, _power_of_two_at_least(vectors))
    mean = problem.nnz / max(problem.rows, 1)
    resident = problem.cols * _SLICE_LANES * _VECTOR <= _RESIDENT_BYTES
    whole = problem.cols * min(lanes, vectors) * _VECTOR <= _RESIDENT_BYTES
    if problem.op == "spmm" and mean >= 64 and resident and not whole:
        lanes = min(lanes, _SLICE_LANES)
    # Several nonzeros of a row side by side pay once each lane still has a dozen batches of 8.
    row_lanes = lanes
    while row_lanes < 32 and mean >= 96 * (row_lanes // lanes):
        row_lanes *= 2
    return Plan("csr", lanes, row_lanes, max(256, int(2 * mean)), prescale=mean >= 32, reasons=reasons)


def window_plan(problem: Problem, reasons: tuple[str, ...] = ()) -> Plan:
    """A plan for the window kernel."""
    windows = -(-problem.rows // 8)
    mean_steps = problem.slots / 16 / max(windows, 1)
    limit = max(24, int(1.3 * mean_steps))
    # The csr kernel takes the rows that a format keeps out of its windows.
    return replace(csr_plan(problem), kernel="window", step_limit=limit, reasons=reasons)


def panel_plan(problem: Problem, height: int, reasons: tuple[str, ...] = ()) -> Plan:
    """A plan for the panel kernel with panels of `height` rows, 16 or 32."""
    panels = -(-problem.rows // height)
    mean_stages = problem.panel_slots[height // 32] / 32 / max(panels, 1)
    limit = max(12, int(1.3 * mean_stages))
    return replace(csr_plan(problem), kernel="panel", height=height, step_limit=limit, reasons=reasons)


def choose_plan(problem: Problem) -> Plan:
    """The plan with the least modelled traffic between L2 and the multiprocessors.

    The csr kernel gathers a row of X for each nonzero, the window kernel one for each distinct
    column of 8 rows (docs/performance.md has the measurements behind this).
    """
    device, precision = problem.device, problem.precision
    if device.type == "cpu":
        return Plan("csr", reasons=("the CPU kernels work row by row",))
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
    gathered = f"{problem.nnz} nonzeros, {problem.slots} columns of 8-row windows"
    if problem.slots <= _WINDOW_GAIN * problem.nnz:
        return window_plan(problem, (gathered, "windows gather less"))
    return csr_plan(problem, (gathered, "windows save too little"))


#: The window kernel pays once it gathers at most this fraction of the csr kernel's rows.
_WINDOW_GAIN = 0.9
