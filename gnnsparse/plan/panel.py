"""The panel kernel: Tensor Cores over panels of rows that gather each distinct column once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from gnnsparse import _native
from gnnsparse.cuda_path import Device
from gnnsparse.gpus.model import PanelLoad, PanelWork, panel_us
from gnnsparse.gpus.record import PanelRow, PanelVariant
from gnnsparse.plan.base import CanRun, Kernel, Plan, takes_stored_operands
from gnnsparse.plan.problem import Problem
from gnnsparse.precision import Precision
from gnnsparse.tiles import PANEL_K_TILE, SLICE_BYTES

__all__ = ["HEIGHTS", "PANELS", "Height", "PanelPlan", "panel_tile_limit", "takes"]


@dataclass(frozen=True)
class Height:
    """What the kernels do with panels of one height.

    Attributes:
        ops: the operations that choose among panels of this height.
        stored: how values are stored, by their bytes: "dense", with the zeros of the panel, or "entries",
            the nonzeros alone; values of other sizes are not.
    """

    ops: tuple[str, ...]
    stored: Mapping[int, str] = field(default_factory=dict)


#: By the rows of a panel; native/include/gnnsparse/panel_heights.h has the kernels' side of the table.
HEIGHTS = {
    16: Height(("spmm", "sddmm", "attention"), {2: "dense", 4: "dense"}),
    32: Height(("spmm",), {2: "entries"}),
    64: Height(("attention",)),
}

#: SDDMM keeps Q in shared memory, which has room for this many slices.
_SDDMM_SLICES = 16


@dataclass(frozen=True)
class PanelPlan(Plan):
    """How the panel kernel runs.

    Attributes:
        height: rows of a panel.
        tile_limit: longer panels are cut into parts of at most this many K tiles of 32 column slots.
        slices: slices of 128 bytes of the rows of X that a warp takes one after the other.
        prescale: rank-1 weights: the rows of X are weighed once before the product; False: each column slot
            has its weight. Without stored values in tf32 X is rounded once as well, not by each warp.
        longest_first: the longest parts start first, so that none is started last; otherwise they start in
            the order of the rows, whose neighbours share rows of X.
        concurrent_panels: how many panels share a sweep over the rows of X, those that run at the same time;
            0: each starts with its first column.
    """

    kernel: ClassVar[str] = "panel"
    height: int = 32
    tile_limit: int = 24
    slices: int = 1
    prescale: bool = False
    longest_first: bool = False
    concurrent_panels: int = 0


def takes(device: Device, precision: Precision) -> CanRun:
    """Whether panels run on a device in a precision: they need asynchronous copies to shared memory.

    fp32 runs with each operand in two tf32 parts.
    """
    if device.type != "cuda" or device.capability < (8, 0):
        return CanRun(f"no asynchronous copies on sm_{device.capability[0]}{device.capability[1]}")
    return takes_stored_operands(precision)


def panel_tile_limit(mean_tiles: float, share: float, at_least: int) -> int:
    """K tiles of a panel's parts: few panels are cut, unless a warp's share of a small matrix is less."""
    return max(6, min(max(at_least, int(1.3 * mean_tiles)), int(4 * share)))


class PanelKernel(Kernel):
    """The panel kernel with panels of one height.

    Args:
        height: rows of a panel, a key of HEIGHTS.
    """

    plan_type = PanelPlan

    def __init__(self, height: int) -> None:
        self.name = f"panel{height}"
        self.height = height
        self._of = HEIGHTS[height]

    def can_run(self, problem: Problem) -> CanRun:
        """Where the matrix was counted in such panels, and its values and rows fit the kernel."""
        if problem.edge_values:
            return CanRun("panels hold no place for edge values")
        if not (answer := takes_stored_operands(problem.precision)):
            return answer
        counts = problem.panel(self.height)
        if counts is None or not counts.slots:
            return CanRun(f"the operand has no panels of {self.height} rows")
        bits = 8 * problem.precision.storage.itemsize
        if problem.stores_values and bits // 8 not in self._of.stored:
            return CanRun(f"panels of {self.height} rows store no values of {bits} bits")
        if problem.op == "sddmm" and problem.row_bytes < SLICE_BYTES:
            return CanRun(f"rows are shorter than a slice of {SLICE_BYTES} bytes")
        if problem.op == "sddmm" and problem.slices > _SDDMM_SLICES:
            return CanRun(f"rows are wider than {_SDDMM_SLICES} slices of {SLICE_BYTES} bytes")
        return CanRun()

    def default(self, problem: Problem) -> PanelPlan:
        """The best cut and number of slices by the model."""
        return min(self.options(problem), key=lambda option: self.time_us(problem, option))

    def options(self, problem: Problem) -> list[PanelPlan]:
        """The plans that the default is chosen among."""
        resident, work = problem.slice_is_resident, self._work(problem)
        mean = work.slots / PANEL_K_TILE / max(sum(count for _, count in work.panels), 1)
        # In a small matrix each warp takes less, so that all have work at the same time.
        warps = problem.record.panel.warps * problem.device.multiprocessors
        share = work.slots / PANEL_K_TILE * work.slices / warps
        limit = panel_tile_limit(mean, share, 20 if resident else 16)
        # Where a slice of X stays in L2 the order of the rows gains nothing.
        plan = PanelPlan(self.height, limit, longest_first=resident)
        if problem.op == "sddmm":  # takes all slices, and its parts need no second kernel
            return [plan]
        # Elsewhere weights cost the kernel less than a pass over X. In tf32 it rounds X as well.
        rounds = problem.precision is Precision.TF32 and not problem.stores_values
        # Where a slice does not stay in L2, warps share it as they sweep over X together.
        plan = replace(plan, concurrent_panels=0 if resident else work.concurrent_panels)
        return [
            replace(plan, slices=slices, tile_limit=plan.tile_limit * times, prescale=prescale)
            for prescale in ((False, True) if rounds else (False,))
            for slices in sorted({1, min(2, work.slices), work.slices})
            for times in (1, 2, 4)
        ]

    def variants(self, problem: Problem) -> list[Plan]:
        """Cut as by default and hardly at all, one slice a warp and all, with and without a pass over X."""
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
        """By the model of panels, with the pass over X where the plan has one."""
        assert isinstance(plan, PanelPlan)
        record = problem.record
        row, variant = self._costs(problem, plan)
        return float(panel_us(self.load(problem, plan), record.memory, record.panel, row, variant))

    def load(self, problem: Problem, plan: PanelPlan) -> PanelLoad:
        """What a plan makes of a problem."""
        slices = problem.slices if problem.op == "sddmm" else plan.slices
        prescale = problem.cols * problem.row_bytes if plan.prescale else 0.0
        return PanelLoad.of(self._work(problem), slices, plan.tile_limit, prescale)

    def variant(self, problem: Problem, plan: PanelPlan) -> str:
        """What a record calls the arithmetic and storage of a plan."""
        if plan.prescale and problem.arithmetic == "tf32":
            return "tf32_rounded"
        stored = problem.stores_values and problem.arithmetic == "half"
        return "half_stored" if stored else problem.arithmetic

    def _work(self, problem: Problem) -> PanelWork:
        counts = problem.panel(self.height)
        slots = 0 if counts is None else counts.slots
        panels = max(-(-problem.rows // self.height), 1)
        tiles = () if counts is None else counts.tiles
        blocks, blocks_fp32 = _native.SPMM_PANEL_BLOCKS[self.height]
        resident = blocks_fp32 if problem.precision is Precision.FP32 else blocks
        return PanelWork(
            self.height, slots, tiles or ((-(-slots // (PANEL_K_TILE * panels)), panels),), problem.slices,
            problem.row_bytes, self._value_bytes(problem, slots), problem.cols,
            resident * problem.device.multiprocessors,
        )  # fmt: skip

    def _value_bytes(self, problem: Problem, slots: int) -> float:
        """Bytes of stored values that a warp reads for a column slot."""
        if not problem.stores_values:
            return 0
        size = problem.precision.storage.itemsize
        if self._of.stored[size] == "entries":
            return _native.ENTRY_BYTES * problem.nnz / slots
        return size * self.height

    def _costs(self, problem: Problem, plan: PanelPlan) -> tuple[PanelRow, PanelVariant]:
        """What the record says of this height, or of the nearest it has, and of the arithmetic."""
        heights = problem.record.panel.heights
        row = heights[min(heights, key=lambda height: (abs(height - self.height), height))]
        return row, row.variants.get(self.variant(problem, plan), row.variants["half"])


#: The kernels that products choose from, by height.
PANELS = {height: PanelKernel(height) for height, kernels in HEIGHTS.items() if "spmm" in kernels.ops}
