"""Plans of attention: fused kernels over panels on a GPU, row kernels on a CPU, and unfused operations."""

from __future__ import annotations

import importlib
import logging
import sys
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

from gnnsparse import _native
from gnnsparse.errors import bad_value
from gnnsparse.formats import operations
from gnnsparse.formats.tiles import TILE
from gnnsparse.plan.base import AttentionProblem, CanRun, Kernel, PanelCounts, Plan, Problem
from gnnsparse.plan.csr import CSR
from gnnsparse.plan.panel import HEIGHTS, PANELS, panel_tile_limit, takes
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import (
    LINE_BYTES,
    PANEL_K_TILE,
    SCORE_ROWS,
    SLICE_BYTES,
    TALL_ROWS,
    VECTOR_BYTES,
    Device,
)

_log = logging.getLogger("gnnsparse.plan")
#: Most features that the fused kernels accept; the operands of a warp with more would not fit its registers.
MOST_FEATURES = {Precision(name): most for name, most in _native.ATTENTION_FEATURES.items()}
#: Most features that tall panels and the fused backward pass accept: a slice of 16-bit values.
_SLICE_FEATURES = SLICE_BYTES // 2


@dataclass(frozen=True)
class AttentionPlan(Plan):
    """Parameters of a pass of fused attention over panels of rows: the forward pass, or a backward pass.

    Attributes:
        height: rows of a panel: 16, or 64, of which four warps share the gathered rows.
        tile_limit: longer panels are cut into parts of at most this many K tiles of 32 column slots.
        longest_first: whether the longest parts start first; False: parts start in the order of the rows.
        backward: plan of the gradients; None: chosen when gradients are first computed.
    """

    kernel: ClassVar[str] = "attention"
    height: int = SCORE_ROWS
    tile_limit: int = 24
    longest_first: bool = False
    backward: AttentionGradPlan | None = None


@dataclass(frozen=True)
class AttentionGradPlan(Plan):
    """Parameters of the backward pass of fused attention.

    Attributes:
        rows: the pass over the rows of A, which computes the gradients of q and the bias.
        columns: the pass over the rows of the transpose, which computes the gradients of k and v.
        fused_heads: number of heads whose gradients the fused backward pass computes at a time. It is one
            pass over the rows of A, which writes the weights that dK and dV are summed from. 0: two passes.
        tiles: whether these sums are products of warpgroups over dense tiles, which take as long whatever the
            pattern (compute capability 9.0).
    """

    kernel: ClassVar[str] = "attention_grad"
    rows: AttentionPlan = field(default_factory=AttentionPlan)
    columns: AttentionPlan = field(default_factory=AttentionPlan)
    fused_heads: int = 0
    tiles: bool = False


@dataclass(frozen=True)
class CsrAttentionPlan(Plan):
    """Fused attention over CSR rows, in which a warp takes all heads of a row."""

    kernel: ClassVar[str] = "attention_csr"


@dataclass(frozen=True)
class BlockAttentionPlan(Plan):
    """Fused attention over the 128 x 128 tiles that have edges.

    Gradients are over tiles on GPUs of compute capability 9.0, and by the operand's own plan on others.
    """

    kernel: ClassVar[str] = "blocks"


@dataclass(frozen=True)
class FlashPlan(Plan):
    """Attention and its gradients by FlashAttention-4 (package flash-attn-4), over full tiles or a band."""

    kernel: ClassVar[str] = "fa4"


@dataclass(frozen=True)
class FlexPlan(Plan):
    """Attention and its gradients by torch's FlexAttention, over tiles."""

    kernel: ClassVar[str] = "flex"


@dataclass(frozen=True)
class UnfusedPlan(Plan):
    """Attention as three operations for each head: sddmm, edge_softmax, spmm."""

    kernel: ClassVar[str] = "unfused"


@dataclass(frozen=True)
class RowsPlan(Plan):
    """Attention by the CPU's kernels, which fuse the three operations row by row."""

    kernel: ClassVar[str] = "rows"


def _takes_slice(problem: AttentionProblem, where: str = "the pass in one") -> CanRun:
    """Return whether kernels of 16 bits and of a slice's features, which text calls `where`, can run."""
    if problem.precision.storage.itemsize != 2:
        return CanRun(f"no {problem.precision.value} in {where}")
    if max(problem.width, problem.value_width) > _SLICE_FEATURES:
        return CanRun(f"at most {_SLICE_FEATURES} features in {where}")
    return CanRun()


def _may_be_tall(problem: AttentionProblem) -> CanRun:
    where = f"panels of {TALL_ROWS} rows"
    if (answer := _takes_slice(problem, where)) and problem.has_score_terms:
        return CanRun(f"no bias, dropout or causal mask in {where}")
    return answer


def _takes_features(problem: AttentionProblem, most: int, whose: str) -> CanRun:
    widest = max(problem.width, problem.value_width)
    if widest > most:
        return CanRun(f"{widest} features; {whose}")
    if min(problem.width, problem.value_width, problem.heads, problem.nnz) == 0:
        return CanRun("there is nothing to compute")
    return CanRun()


#: Bytes of shared memory that a block may have, by the major version of the compute capability, from 8.0 on.
_BLOCK_BYTES = {8: 99 << 10, 9: 227 << 10, 10: 227 << 10}
#: What a step of the sums of dK and dV costs beside its column slots, in column slots.
_STEP_SLOTS = 8
#: The fused backward pass is for panels with at least so many column slots in a range of columns.
_LEAST_STEP = 4
#: GPUs with products of warpgroups, and the column slots of a panel in a tile's columns from which these sum
#: dK and dV faster. On an H200, vector-wise patterns with 36, 19 and 8 take 1.8, 1.7 and 1.6 ms over tiles,
#: and 4.1, 2.4 and 1.4 in steps.
_WARPGROUPS, _LEAST_TILE = (9, 0), 11


def dkv_range(device: Device, shape: tuple[int, int], slots: int, heads: int) -> int:
    """Return how many columns' dK and dV a block of the fused backward pass sums, of `heads` heads at a time.

    Their sums fit in its shared memory. Smaller ranges fill all multiprocessors, but have more steps.
    """
    rows, cols = shape
    fixed, each = _native.DKV_SHARED_BYTES
    most = (_BLOCK_BYTES.get(device.capability[0], 99 << 10) - fixed) // each
    least, panels = -(-cols // most), -(-rows // SCORE_ROWS)

    def cost(ranges: int) -> float:
        return -(-ranges * heads // device.multiprocessors) * (slots / ranges + _STEP_SLOTS * panels)

    return -(-cols // min(range(least, 2 * least + 1), key=cost))


def _slots(panels: tuple[PanelCounts, ...], height: int) -> int:
    return next((counts.slots for counts in panels if counts.height == height), 0)


def shares_rows(problem: AttentionProblem) -> bool:
    """Return whether a panel of 64 rows has few more columns than one of 16: true of windows and blocks."""
    slots, tall = _slots(problem.panels, SCORE_ROWS), _slots(problem.panels, TALL_ROWS)
    rates = problem.record.attention
    full = problem.nnz >= rates.tall_nnz * slots
    return full and 0 < TALL_ROWS // SCORE_ROWS * tall <= rates.tall_slots * slots


def _tall_limit(problem: AttentionProblem) -> int:
    """Return the most K tiles of a tall panel's parts; smaller parts give every multiprocessor work."""
    tiles = _slots(problem.panels, TALL_ROWS) // PANEL_K_TILE
    rates = problem.record.attention
    mean = tiles * TALL_ROWS // max(problem.rows, 1)
    concurrent = rates.tall_blocks * problem.device.multiprocessors
    share = tiles * problem.heads * problem.width // _SLICE_FEATURES // concurrent
    return panel_tile_limit(mean, share, rates.tall_tiles)


class _AttentionKernel(Kernel):
    """The fused kernels of attention, for the forward pass."""

    name = "attention"
    plan_type = AttentionPlan

    def can_run(self, problem: AttentionProblem) -> CanRun:  # type: ignore[override]
        precision = problem.precision
        if not (answer := takes(problem.device, precision)):
            return answer
        if not problem.panels_allowed:
            return CanRun(f"the operand was prepared in the format {problem.format or 'csr'}")
        most = MOST_FEATURES[precision]
        return _takes_features(problem, most, f"fused kernels of {precision.value} take at most {most}")

    def default(self, problem: AttentionProblem) -> AttentionPlan:  # type: ignore[override]
        if not (answer := _may_be_tall(problem)):
            return self._short(problem, answer.problem)
        if not shares_rows(problem):
            return self._short(problem, f"panels of {TALL_ROWS} rows would gather more, or were not counted")
        reason = f"panels of {TALL_ROWS} rows gather hardly more than panels of {SCORE_ROWS}"
        return AttentionPlan(TALL_ROWS, _tall_limit(problem), True, reasons=(reason,))

    def check(self, problem: AttentionProblem, plan: Plan) -> None:  # type: ignore[override]
        super().check(problem, plan)
        assert isinstance(plan, AttentionPlan)
        if plan.backward is not None:
            FUSED_GRAD.check(problem, plan.backward)
        heights = [height for height, kernels in HEIGHTS.items() if "attention" in kernels.ops]
        if plan.height not in heights:
            bad_value("plan", f"got height {plan.height}; accepted: {', '.join(map(str, heights))}")
        if plan.height == TALL_ROWS and not (answer := _may_be_tall(problem)):
            bad_value("plan", f"{plan.label} can't run here: {answer.problem}")

    def _short(self, problem: AttentionProblem, why: str) -> AttentionPlan:
        """Return a plan of 16-row panels, cut like the panels of an SDDMM as wide as all heads together."""
        product = Problem(
            "sddmm", problem.device, problem.precision, problem.rows, problem.cols, problem.nnz,
            problem.heads * problem.width, panels=problem.panels,
        )  # fmt: skip
        plan = PANELS[SCORE_ROWS].default(product)
        return AttentionPlan(SCORE_ROWS, plan.tile_limit, plan.longest_first, reasons=(why,))


class _AttentionGradKernel(_AttentionKernel):
    """The fused kernels of attention, for the backward pass."""

    name = "attention_grad"
    plan_type = AttentionGradPlan  # type: ignore[assignment]

    def default(self, problem: AttentionProblem) -> AttentionGradPlan:  # type: ignore[override]
        rows = super().default(problem)
        columns = super().default(_transposed(problem))
        heads, why = self._fused_heads(problem, rows)
        tiles = heads > 0 and self._sums_tiles(problem)
        if tiles:
            why += "; dK and dV over dense tiles"
        return AttentionGradPlan(rows, columns, heads, tiles, reasons=(why,))

    def check(self, problem: AttentionProblem, plan: Plan) -> None:  # type: ignore[override]
        assert isinstance(plan, AttentionGradPlan)
        super().check(problem, plan.rows)
        super().check(_transposed(problem), plan.columns)
        if not plan.fused_heads:
            if plan.tiles:
                bad_value("plan", "tiles: go with fused_heads, which is 0")
            return
        if plan.rows.height != SCORE_ROWS:
            bad_value("plan", f"fused_heads: go with rows of height {SCORE_ROWS}, not {plan.rows.height}")
        if not (answer := _takes_slice(problem)):
            bad_value("plan", f"fused_heads: {answer.problem}")
        if plan.tiles and problem.device.capability != _WARPGROUPS:
            bad_value("plan", "tiles: are for GPUs of compute capability 9.0")

    def _sums_tiles(self, problem: AttentionProblem) -> bool:
        ranges = -(-problem.cols // _native.DKV_TILE[1])
        least = _LEAST_TILE * ranges * -(-problem.rows // SCORE_ROWS)
        return problem.device.capability == _WARPGROUPS and _slots(problem.panels, SCORE_ROWS) >= least

    def _fused_heads(self, problem: AttentionProblem, rows: AttentionPlan) -> tuple[int, str]:
        """Return how many heads the fused backward takes at a time, 0 for two passes; and the reason."""
        if not (answer := _takes_slice(problem)):
            return 0, f"two passes: {answer.problem}"
        if rows.height != SCORE_ROWS:
            return 0, f"two passes: panels of {rows.height} rows have no pass in one"
        rates = problem.record.attention
        slots, back = _slots(problem.panels, SCORE_ROWS), _slots(problem.transpose, SCORE_ROWS)
        ratio = f"the transpose has {back / max(slots, 1):.1f} times the column slots"
        if back < rates.fused_backward_slots * slots:
            return 0, f"two passes: {ratio}"
        budget = int(problem.device.memory * rates.partials_memory)
        heads = min(problem.heads, budget // (slots * _native.DKV_SLOT_BYTES))
        if not heads:
            return 0, "two passes: no memory for the weights of a head"
        size = dkv_range(problem.device, (problem.rows, problem.cols), slots, heads)
        steps = -(-problem.rows // SCORE_ROWS) * -(-problem.cols // size)
        if slots < _LEAST_STEP * steps:
            return 0, f"two passes: {slots / steps:.1f} column slots of a panel are in a range of columns"
        return heads, f"one pass, {heads} heads at a time: {ratio}"


def _transposed(problem: AttentionProblem) -> AttentionProblem:
    """Return the problem of the pass over columns, which are the rows of the transpose."""
    return replace(
        problem, rows=problem.cols, cols=problem.rows, panels=problem.transpose, transpose=problem.panels
    )


class _UnfusedKernel(Kernel):
    """The unfused operations, which run every attention on every device."""

    name = "unfused"
    plan_type = UnfusedPlan
    devices = ("cpu", "cuda")

    def can_run(self, problem: Problem) -> CanRun:
        has_it = "sddmm" in operations(problem.format)
        return CanRun("" if has_it else f"the format {problem.format} has no sddmm")

    def default(self, problem: Problem) -> UnfusedPlan:
        why = CSR.can_run(problem).problem
        return UnfusedPlan(reasons=(why,) if why else ())


class _RowsKernel(Kernel):
    """The CPU's fused kernels of attention."""

    name = "rows"
    plan_type = RowsPlan
    devices = ("cpu",)

    def can_run(self, problem: Problem) -> CanRun:
        return CSR.can_run(problem)

    def default(self, problem: Problem) -> RowsPlan:
        return RowsPlan(reasons=("the CPU kernels work row by row",))


class _CsrAttentionKernel(Kernel):
    """Fused attention over CSR rows on a GPU, the forward and the backward pass."""

    name = "attention_csr"
    plan_type = CsrAttentionPlan

    def can_run(self, problem: AttentionProblem) -> CanRun:  # type: ignore[override]
        if not (answer := CSR.can_run(problem)):
            return answer
        most = _native.GRAPH_ATTENTION_CHUNKS * VECTOR_BYTES // problem.precision.storage.itemsize
        return _takes_features(problem, most, f"a warp holds at most {most} of a head")

    def default(self, problem: Problem) -> CsrAttentionPlan:
        return CsrAttentionPlan()

    def is_asked_for(self, problem: AttentionProblem) -> str:  # type: ignore[override]
        slots = _slots(problem.panels, SCORE_ROWS)
        if not slots or not FUSED.can_run(problem) or any(of.is_asked_for(problem) for of in TILE_KERNELS):
            return ""
        panels, rows = _panels_us(problem, slots), _rows_us(problem)
        if rows >= panels:
            return ""
        return f"forward by the model: panels {panels:.0f} us, rows {rows:.0f} us"


class _TileKernel(Kernel):
    """Fused attention over dense 128 x 128 tiles, which runs where a record has it as the fastest."""

    least_capability = (8, 0)
    most_features = 128
    #: The GPUs that have its gradients; None: all that run it.
    gradients_on: tuple[int, int] | None = None

    def can_run(self, problem: AttentionProblem) -> CanRun:  # type: ignore[override]
        if not (answer := takes(problem.device, problem.precision)):
            return answer
        name, refused, least = problem.precision.value, dict(problem.refused), self.least_capability
        key = self.name, problem.width, problem.value_width, problem.precision, problem.band is not None
        if why := refused.get(self.name) or TILE_FAULTS.get(key, ""):
            return CanRun(why)
        if problem.op == "attention_grad" and self.gradients_on not in (None, problem.device.capability):
            return CanRun("its gradients need Hopper's products of four warps")
        if problem.precision.storage.itemsize != 2:
            return CanRun(f"no {name} over tiles")
        if problem.device.capability < least:
            return CanRun(f"it needs a GPU of sm_{least[0]}{least[1]} or later")
        if not problem.panels_allowed:
            return CanRun(f"the operand was prepared in the format {problem.format or 'csr'}")
        if problem.has_score_terms:
            return CanRun("no bias, dropout or causal mask over tiles")
        if problem.value_width % 8 != 0:
            return CanRun("tiles take values whose features are a multiple of 8")
        return _takes_features(problem, self.most_features, f"tiles take at most {self.most_features}")

    def default(self, problem: Problem) -> Plan:
        return self.plan_type()

    def variants(self, problem: Problem) -> list[Plan]:
        """Return no plans: of a pattern without dense tiles the lists would be larger than its edges."""
        return []

    def is_asked_for(self, problem: AttentionProblem) -> str:  # type: ignore[override]
        times = tile_times(problem)
        if min(times, key=lambda name: times[name], default="") != self.name:
            return ""
        refused = [
            f"no {kernel.name}: {kernel.can_run(problem).problem}"
            for kernel in TILE_KERNELS
            if kernel.name in problem.record.attention.tiles and kernel.name not in times
        ]
        modelled = ", ".join(f"{name} {us:.0f} us" for name, us in times.items())
        return "; ".join((f"by the record: {modelled}", *refused))


class _BlockAttentionKernel(_TileKernel):
    """The package's own kernel over tiles."""

    name = "blocks"
    plan_type = BlockAttentionPlan
    gradients_on = (9, 0)


class _LibraryKernel(_TileKernel):
    """A kernel in a module of another library, whose results are compared with exact ones at first use."""

    module: str

    def can_run(self, problem: AttentionProblem) -> CanRun:  # type: ignore[override]
        if not (answer := super().can_run(problem)):
            return answer
        if problem.tiles is None:
            return CanRun("tiles were not counted, or K and V are stored in 8 bits")
        if problem.is_reordered:
            return CanRun("the operand's rows were reordered")
        if problem.width % 8 != 0:
            return CanRun("it takes queries whose features are a multiple of 8")
        if not (answer := self.takes_pattern(problem)):
            return answer
        return CanRun(import_problem(self.module))

    def takes_pattern(self, problem: AttentionProblem) -> CanRun:
        """Return whether the kernel takes the pattern, whose tiles were counted."""
        return CanRun()


class _FlashKernel(_LibraryKernel):
    """FlashAttention-4. Its gradients need Hopper or later; it has no mask for a single tile here."""

    name, module = "fa4", "flash_attn.cute.interface"
    plan_type = FlashPlan
    least_capability = (9, 0)

    def takes_pattern(self, problem: AttentionProblem) -> CanRun:
        assert problem.tiles is not None
        if problem.band is not None:
            return CanRun()
        if problem.tiles.partial:
            return CanRun(f"{problem.tiles.partial} tiles are partial, and the pattern is no band")
        whole = problem.rows % TILE == 0 and problem.cols % TILE == 0
        return CanRun("" if whole else f"it takes sizes that are a multiple of {TILE}")


class _FlexKernel(_LibraryKernel):
    """torch's FlexAttention; a backward pass computes the results again."""

    name, module = "flex", "torch.nn.attention.flex_attention"
    plan_type = FlexPlan


#: What is wrong with a kernel ("": nothing) from its comparison with exact results at first use on, by its
#: name, features of q and of v, precision, and whether the pattern is a band.
TILE_FAULTS: dict[tuple[str, int, int, Precision, bool], str] = {}


@lru_cache
def import_problem(module: str) -> str:
    """Import a module; return why it can't be imported, or ""."""
    if module not in sys.modules and not module.startswith("torch."):
        _log.warning("attention over tiles: importing %s", module)
    try:
        importlib.import_module(module)
    except Exception as error:  # other packages raise whatever they like
        return f"{module} can't be imported ({type(error).__name__}: {error})"
    return ""


def tile_times(problem: AttentionProblem) -> dict[str, float]:
    """Return the modelled times of the kernels that have rates in the record, by their names.

    "panels" stands for the kernel that would run without those over tiles; there are no times without it.
    """
    rates, backward = problem.record.attention.tiles, problem.op == "attention_grad"
    if problem.tiles is None or "panels" not in rates:
        return {}
    able = {kernel.name for kernel in TILE_KERNELS if kernel.name in rates and kernel.can_run(problem)}
    heads = problem.heads * (problem.width + problem.value_width) / TILE
    costs = {name: of.backward if backward else of.forward for name, of in rates.items()}
    return {
        name: heads * (full * problem.tiles.full + partial * problem.tiles.partial)
        for name, (full, partial) in costs.items()
        if name in ("panels", *able)
    }


def _row_bytes(problem: AttentionProblem) -> int:
    return max(problem.width, problem.value_width) * problem.precision.storage.itemsize


def _panels_us(problem: AttentionProblem, slots: int) -> float:
    """Return the modelled time of a forward pass over 16-row panels, which gathers rows head by head."""
    short, long, split = problem.record.attention.slot
    if problem.precision.storage.itemsize == 4:
        return problem.heads * slots * split
    return problem.heads * slots * (short if _row_bytes(problem) <= SLICE_BYTES // 2 else long)


def _rows_us(problem: AttentionProblem) -> float:
    """Return the modelled time of a forward pass over CSR rows, which gathers all heads of a row at once."""
    row, nonzero, lane = problem.record.attention.csr
    chunks = -(-_row_bytes(problem) // VECTOR_BYTES)
    lanes = max(4, 2 ** (chunks - 1).bit_length() * 2 ** (problem.heads - 1).bit_length())
    together = problem.heads * _row_bytes(problem) // problem.head_places
    lines = problem.head_places * -(-together // LINE_BYTES)
    return lines * (row * problem.rows + nonzero * problem.nnz) + lane * lanes * problem.nnz


CSR_ATTENTION = _CsrAttentionKernel()
FUSED, FUSED_GRAD = _AttentionKernel(), _AttentionGradKernel()
UNFUSED, ROWS = _UnfusedKernel(), _RowsKernel()
BLOCKS = _BlockAttentionKernel()
#: The kernels over tiles; where one is asked for it runs, whatever the others' times.
TILE_KERNELS = (BLOCKS, _FlashKernel(), _FlexKernel())
