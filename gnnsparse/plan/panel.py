"""Plans of the panel kernel: Tensor Cores over panels of rows, which gather each distinct column one time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from gnnsparse import _native
from gnnsparse.plan.base import CanRun, Kernel, Plan, Problem, takes_stored_operands
from gnnsparse.plan.gpu_records.model import PanelLoad, PanelWork, panel_us, panel_variant
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import PANEL_K_TILE, SECTOR_BYTES, SLICE_BYTES, Device


@dataclass(frozen=True)
class Height:
    """The operations that have a kernel for panels of one height, and how values are stored by their bytes.

    They are "dense" (all elements of the panel), or "entries" or "word_entries" (nonzeros with their places).
    """

    ops: tuple[str, ...]
    stored: Mapping[int, str] = field(default_factory=dict)


#: The heights of panels that kernels support, by the rows of a panel. The table of the kernels themselves is
#: native/include/gnnsparse/panel_heights.h.
HEIGHTS = {
    16: Height(("spmm", "sddmm", "attention"), {2: "dense", 4: "dense"}),
    32: Height(("spmm",), {2: "entries", 4: "word_entries"}),
    64: Height(("attention",)),
}

#: SDDMM keeps rows of Q in shared memory, which has room for this many slices of them.
_SDDMM_SLICES = 16
#: Bytes that a GPU reads from memory at once.
_MEMORY_PART = 64


@dataclass(frozen=True)
class PanelPlan(Plan):
    """Parameters of the panel kernel.

    Attributes:
        height: rows of a panel.
        tile_limit: longer panels are cut into parts of at most this many K tiles of 32 column slots.
        slices: number of slices, 128 bytes of the rows of X, that a warp computes one after the other.
        prescale: with rank-1 weights: whether a pass before the product multiplies the rows of X by the
            column weights; False: the kernel multiplies by the weight of each column slot. In tf32 without
            stored values that pass also rounds X, which otherwise each warp does.
        longest_first: whether the longest parts start first, so that the GPU does not wait for one that
            started late; False: parts start in the order of the rows, whose neighbours share rows of X.
        concurrent_panels: number of panels that run at the same time and start at columns near each other,
            so that they read the rows of X together; 0: each panel starts with its first column.
    """

    kernel: ClassVar[str] = "panel"
    height: int = 32
    tile_limit: int = 24
    slices: int = 1
    prescale: bool = False
    longest_first: bool = False
    concurrent_panels: int = 0


def takes(device: Device, precision: Precision) -> CanRun:
    """Return whether panel kernels run on a device, which needs asynchronous copies to shared memory."""
    if device.type != "cuda" or device.capability < (8, 0):
        return CanRun(f"no asynchronous copies on sm_{device.capability[0]}{device.capability[1]}")
    return takes_stored_operands(precision)


def eight_bit_heights(precision: Precision, stores_values: bool) -> tuple[int, ...]:
    """Return the heights of panels that can multiply an X of 8 bits, with stored values or bits alone."""
    integers = _sums_integers(precision, stores_values)
    return _native.INTEGER_SUM_ROWS if integers else _native.EIGHT_BIT_ROWS


def _sums_integers(precision: Precision | None, stores_values: bool) -> bool:
    return precision is Precision.INT8 and not stores_values


def reads_lines(problem: Problem, reads: float) -> bool:
    """Return whether panels that read each row of X `reads` times need rows that begin at lines of memory."""
    return reads >= problem.record.panel.line_reads and not problem.slice_is_resident


def panel_tile_limit(mean_tiles: float, share: float, at_least: int) -> int:
    """Return the most K tiles of a panel's parts, such that few panels are cut unless the matrix is small.

    They are from the mean panel's K tiles up to four times the equal `share` of each warp, and `at_least`
    many in a large matrix.
    """
    return max(6, min(max(at_least, int(1.3 * mean_tiles)), int(4 * share)))


class PanelKernel(Kernel):
    """The panel kernel with panels of one height, a key of HEIGHTS."""

    plan_type = PanelPlan

    def __init__(self, height: int) -> None:
        self.name = f"panel{height}"
        self.height = height
        self._of = HEIGHTS[height]

    def can_run(self, problem: Problem) -> CanRun:
        """Return whether panels of the height were counted, and the kernel has the values."""
        if problem.edge_values:
            return CanRun("panels hold no place for edge values")
        if not (answer := takes_stored_operands(problem.precision)):
            return answer
        counts = problem.panel(self.height)
        if counts is None or not counts.slots:
            return CanRun(f"the operand has no panels of {self.height} rows")
        kind, stores = problem.quantization, problem.stores_values
        if kind and self.height not in (heights := eight_bit_heights(kind, stores)):
            return CanRun(f"an X of 8 bits needs panels of {' or '.join(map(str, heights))} rows")
        size = problem.precision.storage.itemsize
        if problem.stores_values and size not in self._of.stored:
            return CanRun(f"panels of {self.height} rows store no values of {8 * size} bits")
        if problem.op == "sddmm" and problem.row_bytes < SLICE_BYTES:
            return CanRun(f"rows are shorter than a slice of {SLICE_BYTES} bytes")
        if problem.op == "sddmm" and problem.slices > _SDDMM_SLICES:
            return CanRun(f"rows are wider than {_SDDMM_SLICES} slices of {SLICE_BYTES} bytes")
        return CanRun()

    def is_asked_for(self, problem: Problem) -> str:
        """Return a reason where X has 8 bits, which the other kernels convert to float16 first."""
        return "X has 8 bits" if problem.quantization and problem.device.capability >= (8, 0) else ""

    def default(self, problem: Problem) -> PanelPlan:
        """Return the plan with the least modelled time among `options`."""
        return min(self.options(problem), key=lambda option: self.time_us(problem, option))

    def options(self, problem: Problem) -> list[PanelPlan]:
        """Return the plans that the default is chosen among."""
        resident, work = problem.slice_is_resident, self._work(problem)
        mean = work.slots / PANEL_K_TILE / max(sum(count for _, count in work.panels), 1)
        # In a small matrix each warp gets less work, so that there are enough warps to fill the GPU.
        warps = problem.record.panel.warps * problem.device.multiprocessors
        share = work.slots / PANEL_K_TILE * work.slices / warps
        limit = panel_tile_limit(mean, share, 20 if resident else 16)
        # If a slice of X stays in L2, starting parts in the order of the rows gains nothing.
        plan = PanelPlan(self.height, limit, longest_first=resident)
        if problem.op == "sddmm":  # a warp computes all slices, and cut panels need no second kernel
            return [plan]
        # A pass over X that only multiplies by weights costs more than it saves. In tf32 it also rounds X.
        rounds = problem.precision is Precision.TF32 and not problem.stores_values
        # If a slice does not stay in L2, panels that run at the same time should read the same part of X.
        plan = replace(plan, concurrent_panels=0 if resident else work.concurrent_panels)
        return [
            replace(plan, slices=slices, tile_limit=plan.tile_limit * times, prescale=prescale)
            for prescale in ((False, True) if rounds else (False,))
            for slices in sorted({1, min(2, work.slices), work.slices})
            for times in (1, 2, 4)
        ]

    def variants(self, problem: Problem) -> list[Plan]:
        """Return plans with two tile limits, with one or all slices, with and without prescaling."""
        plan = self.default(problem)
        if problem.op == "sddmm":
            return [replace(plan, tile_limit=plan.tile_limit * times) for times in (1, 3)]
        weigh = (True,) if problem.weighted else (True, False)
        return [
            replace(plan, tile_limit=plan.tile_limit * times, slices=slices, prescale=prescale)
            for times in (1, 3)
            for slices in sorted({1, problem.slices})
            for prescale in weigh
        ]

    def time_us(self, problem: Problem, plan: Plan) -> float:
        """Return the time by the model `gnnsparse.plan.gpu_records.model.panel_us`, in microseconds."""
        assert isinstance(plan, PanelPlan)
        memory, rates = problem.record.memory, problem.record.panel
        # The costs of the height, or of the nearest one that the record has.
        nearest = min(rates.heights, key=lambda height: (abs(height - self.height), height))
        row = rates.heights[nearest]
        variant = panel_variant(row, self.variant(problem, plan))
        us = float(panel_us(self.load(problem, plan), memory, rates, row, variant))
        # Two warps share a panel, and one has no features, or results can't be written by fours.
        integers = _sums_integers(problem.quantization, problem.stores_values)
        shared = integers and self.height > min(_native.INTEGER_SUM_ROWS)
        if shared and (problem.row_bytes <= SLICE_BYTES // 2 or problem.width % 4 != 0):
            us *= rates.hindered_pair
        return us + problem.odd_rows_us(SECTOR_BYTES)

    def load(self, problem: Problem, plan: PanelPlan) -> PanelLoad:
        """Return the quantities that the model computes the time of a plan from."""
        slices = problem.slices if problem.op == "sddmm" else plan.slices
        prescale = problem.cols * problem.row_bytes if plan.prescale else 0.0
        return PanelLoad.of(self._work(problem), slices, plan.tile_limit, prescale)

    def variant(self, problem: Problem, plan: PanelPlan) -> str:
        """Return the key of PanelRow.variants for the arithmetic and storage of a plan."""
        if plan.prescale and problem.arithmetic == "tf32":
            return "tf32_rounded"
        if _sums_integers(problem.quantization, problem.stores_values):
            return "int8"
        return f"{problem.arithmetic}_stored" if problem.stores_values else problem.arithmetic

    def _work(self, problem: Problem) -> PanelWork:
        counts = problem.panel(self.height)
        slots = 0 if counts is None else counts.slots
        panels = max(-(-problem.rows // self.height), 1)
        tiles = () if counts is None else counts.tiles
        blocks, blocks_fp32 = _native.SPMM_PANEL_BLOCKS[self.height]
        resident = blocks_fp32 if problem.precision is Precision.FP32 else blocks
        in_parts = not problem.stores_values and reads_lines(problem, slots / max(problem.cols, 1))
        part = _MEMORY_PART if in_parts else 1
        return PanelWork(
            self.height, slots, tiles or ((-(-slots // (PANEL_K_TILE * panels)), panels),), problem.slices,
            -(-problem.row_bytes // part) * part, self._value_bytes(problem, slots), problem.cols,
            resident * problem.device.multiprocessors,
        )  # fmt: skip

    def _value_bytes(self, problem: Problem, slots: int) -> float:
        """Return the bytes of stored values that a warp reads for a column slot."""
        if not problem.stores_values:
            return 0
        size = problem.precision.storage.itemsize
        layout = _native.ENTRY_LAYOUTS.get(self._of.stored[size])
        return size * self.height if layout is None else layout["bytes"] * problem.nnz / slots


#: The panel kernels of SpMM and SDDMM by height.
PANELS = {height: PanelKernel(height) for height, kernels in HEIGHTS.items() if "spmm" in kernels.ops}
