"""Plans of the window kernel: Tensor Cores over windows of 8 or 16 rows, in any format of windows."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

from gnnsparse.errors import check_choice, check_integer
from gnnsparse.formats import PRESETS, FormatSpec, WindowPolicy, exclusive_preset, operations
from gnnsparse.formats.policy import packed_kernel, why_not_packed
from gnnsparse.plan.base import CanRun, Kernel, Plan, Problem, takes_stored_operands
from gnnsparse.plan.csr import CSR, CsrPlan
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import WINDOW_K_TILE, Device

#: How windows are cut into parts (gnnsparse.plan.work.cut_windows).
BALANCES = ("auto", "none", "wave", "adaptive")

#: The least limit on the K tiles of a window's parts; the limit is larger if the mean window is long.
_TILE_LIMIT = 24

#: When rows that rs-tile keeps out of its windows are computed.
RESIDUAL_MODES = ("same-launch", "after")


@dataclass(frozen=True)
class WindowPlan(Plan):
    """Parameters of the window kernel.

    Attributes:
        tile_limit: longer windows are cut into parts of at most this many K tiles of 16 column slots, if
            `balance` is "auto".
        residual: plan of the csr kernel for the rows that a format keeps out of its windows. Of rs-tile the
            kernel of its windows computes these rows, too.
        policy: how a window is multiplied.
        balance: "auto": windows are cut by `tile_limit`; "none": no window is cut; "wave": they are cut by
            the number of waves in which they run (cuTeSpMM, section 5); "adaptive": super-long windows are
            cut (RSH-SpMM, section 3.3.3).
        concurrent_windows: number of windows that run at a time, for "wave" and "adaptive"; 0: as many as
            the multiprocessors hold warps by the GPU's record.
        residual_mode: when the kernel of rs-tile computes the rows that are kept out: "same-launch" (blocks
            of threads beside those of the windows) or "after" (a launch of their own).

    Raises:
        TypeError: `balance`, `residual_mode` or `concurrent_windows` is of another type.
        ValueError: `balance` or `residual_mode` is unknown, or `concurrent_windows` is negative.
    """

    kernel: ClassVar[str] = "window"
    tile_limit: int = _TILE_LIMIT
    residual: CsrPlan = field(default_factory=CsrPlan)
    policy: WindowPolicy = field(default_factory=WindowPolicy)
    balance: str = "auto"
    concurrent_windows: int = 0
    residual_mode: str = "same-launch"

    def __post_init__(self) -> None:
        check_choice("balance", self.balance, BALANCES)
        check_integer(
            "concurrent_windows", self.concurrent_windows, least=0, accepted="0 or a positive integer"
        )
        check_choice("residual_mode", self.residual_mode, RESIDUAL_MODES)


def takes(device: Device, precision: Precision) -> CanRun:
    """Return whether a device's Tensor Cores have a precision: Turing's only fp16, and none have fp32."""
    if not (answer := takes_stored_operands(precision)):
        return answer
    least = (7, 5) if precision is Precision.FP16 else (8, 0)
    if device.type != "cuda" or precision is Precision.FP32 or device.capability < least:
        name = f"sm_{device.capability[0]}{device.capability[1]}"
        return CanRun(f"no Tensor Core product of {precision.value} on {name}")
    return CanRun()


def _packed_spec(problem: Problem) -> FormatSpec | None:
    """Return the parameters of the problem's format if it has a kernel of its own (formats.packed)."""
    preset = PRESETS.get(problem.format)
    return preset.spec if preset is not None and packed_kernel(preset.spec) else None


def _has_edge_values(problem: Problem) -> CanRun:
    what = "sddmm" if problem.op == "sddmm" else "edge values" if problem.edge_values else ""
    lacks = what and "sddmm" not in operations(problem.format)
    return CanRun(f"{PRESETS[problem.format].source} has no {what}" if lacks else "")


class _WindowKernel(Kernel):
    """The window kernel, for operands prepared in a format of windows."""

    name = "window"
    plan_type = WindowPlan
    # Panels gather fewer rows of X, and this kernel's model was fitted against the csr kernel only.
    yields_to = ("panel",)

    def can_run(self, problem: Problem) -> CanRun:
        if not problem.format:
            return CanRun("the operand has no blocked format")
        if not (answer := takes(problem.device, problem.precision)):
            return answer
        packed = _packed_spec(problem)
        if packed is not None:
            policy = PRESETS[problem.format].policy_for(problem.precision)
            if why := why_not_packed(policy, problem.precision, packed):
                return CanRun(why)
            if problem.device.capability < (8, 0):
                return CanRun(f"{problem.format} copies asynchronously, from sm_80 on")
        if problem.format == "window" or not (problem.op == "sddmm" or problem.edge_values):
            return CanRun()
        if not (answer := _has_edge_values(problem)):
            return answer
        spec = PRESETS[problem.format].spec
        if spec.encoding != "dense":
            return CanRun(f"{problem.format} stores no bits to place edge values by")
        if problem.op == "sddmm" and problem.slot_rows != 8:
            return CanRun(f"SDDMM takes windows of 8 rows, {problem.format} has {problem.slot_rows} here")
        return CanRun()

    def is_asked_for(self, problem: Problem) -> str:
        return "" if problem.format == "window" else f"format {problem.format} was asked for"

    def default(self, problem: Problem) -> WindowPlan:
        groups = problem.groups or -(-problem.rows // problem.slot_rows)
        mean = problem.slots / WINDOW_K_TILE / max(groups, 1)
        residual = replace(CSR.by_vectors(problem), reasons=())
        policy = PRESETS[problem.format].policy_for(problem.precision)
        copies = policy.stage_a != "none" and _packed_spec(problem) is None
        if copies and problem.device.capability < (8, 0):  # no asynchronous copies
            policy = WindowPolicy()
        plan = WindowPlan(max(_TILE_LIMIT, int(1.3 * mean)), residual, policy, problem.balance)
        if problem.balance in ("auto", "none"):
            return plan
        # A warp takes a window and a slice of X, so that the slices of a window count as several.
        warps = problem.record.csr.warps * problem.device.multiprocessors
        return replace(plan, concurrent_windows=max(1, warps // max(problem.slices, 1)))

    def variants(self, problem: Problem) -> list[Plan]:
        plan = self.default(problem)
        hardly_cut = [replace(plan, tile_limit=4 * plan.tile_limit)] if problem.balance == "auto" else []
        return [plan, *hardly_cut]

    def time_us(self, problem: Problem, plan: Plan) -> float:
        """Return the csr kernel's modelled time, times a factor and in SpMM slots for each nonzero."""
        csr = CSR.time_us(problem, CSR.by_vectors(problem))
        rates = problem.record.window
        scores = problem.op == "sddmm"
        return (rates.sddmm if scores else rates.spmm * problem.slots / max(problem.nnz, 1)) * csr


WINDOW = _WindowKernel()


@dataclass(frozen=True)
class BlockedPlan(Plan):
    """The product over the arrays of a published format on a CPU. It has no parameters."""

    kernel: ClassVar[str] = "blocked"


class _BlockedKernel(Kernel):
    """The blocked kernel: it reads each panel from the format's arrays and multiplies its rows."""

    name = "blocked"
    plan_type = BlockedPlan
    devices = ("cpu",)
    for_formats = True

    def can_run(self, problem: Problem) -> CanRun:
        if exclusive_preset(problem.format) is None:
            return CanRun("the operand was prepared in no published format")
        return _has_edge_values(problem)

    def default(self, problem: Problem) -> BlockedPlan:
        return BlockedPlan(reasons=(f"format {problem.format} was asked for",))


BLOCKED = _BlockedKernel()
