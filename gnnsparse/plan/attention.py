"""Attention: the fused kernels over panels, and the chain of products where they do not fit."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from gnnsparse import _native
from gnnsparse.errors import bad_value
from gnnsparse.plan.base import CanRun, Kernel, Plan
from gnnsparse.plan.panel import HEIGHTS, PANELS, panel_tile_limit, takes
from gnnsparse.plan.problem import AttentionProblem, PanelCounts, Problem
from gnnsparse.precision import Precision
from gnnsparse.tiles import PANEL_K_TILE, SCORE_ROWS, SLICE_BYTES, TALL_ROWS, VECTOR_BYTES

__all__ = [
    "MOST_FEATURES", "AttentionGradPlan", "AttentionPlan", "ChainPlan", "RowsPlan", "dkv_partial_bytes",
    "may_be_tall", "shares_rows",
]  # fmt: skip

#: Features that the fused kernels take; with more, what a warp holds would not fit its registers.
MOST_FEATURES = {Precision(name): most for name, most in _native.ATTENTION_FEATURES.items()}
#: Features that tall panels and the backward pass in one take at most: a slice in 16 bits.
_TALL_FEATURES = _FUSED_BACKWARD_FEATURES = SLICE_BYTES // 2
#: K tiles that a tall panel has at least before it is cut.
_TALL_TILES = 20


@dataclass(frozen=True)
class AttentionPlan(Plan):
    """How fused attention runs over the rows of A: the forward pass, and the backward pass over rows.

    Attributes:
        height: rows of a panel, 16, or 64 where four warps share the gathered rows.
        tile_limit: longer panels are cut into parts of at most this many K tiles of 32 column slots.
        longest_first: the longest parts start first; otherwise they start in the order of the rows.
        backward: how gradients are computed; None: that is chosen when they are first asked for.
    """

    kernel: ClassVar[str] = "attention"
    height: int = SCORE_ROWS
    tile_limit: int = 24
    longest_first: bool = False
    backward: AttentionGradPlan | None = None


@dataclass(frozen=True)
class AttentionGradPlan(Plan):
    """How the gradients of fused attention are computed.

    Attributes:
        rows: the pass over the rows of A, which gives the gradients of q and the bias.
        columns: the pass over the rows of the transpose, which gives those of k and v.
        fused_heads: heads whose gradients one pass over the rows of A computes at a time, with partial sums
            of dK and dV for each column slot; 0: `columns` is a pass of its own.
    """

    kernel: ClassVar[str] = "attention_grad"
    rows: AttentionPlan = field(default_factory=AttentionPlan)
    columns: AttentionPlan = field(default_factory=AttentionPlan)
    fused_heads: int = 0


@dataclass(frozen=True)
class ChainPlan(Plan):
    """Attention as a chain of products, head by head: sddmm, edge_softmax, spmm."""

    kernel: ClassVar[str] = "chain"


@dataclass(frozen=True)
class RowsPlan(Plan):
    """Attention by the CPU's kernels, which fuse it row by row."""

    kernel: ClassVar[str] = "rows"


def may_be_tall(problem: AttentionProblem) -> CanRun:
    """Whether panels of 64 rows have a kernel for a problem."""
    if problem.precision.storage.itemsize != 2:
        return CanRun(f"panels of {TALL_ROWS} rows have no {problem.precision.value}")
    if max(problem.width, problem.value_width) > _TALL_FEATURES:
        return CanRun(f"panels of {TALL_ROWS} rows take at most {_TALL_FEATURES} features")
    if problem.has_score_terms:
        return CanRun(f"panels of {TALL_ROWS} rows have no bias, dropout or causal mask")
    return CanRun()


def dkv_partial_bytes(width: int, value_width: int) -> int:
    """Bytes of one column slot's partial sums of dK and dV, in 16 bits, padded to whole vectors."""
    return sum(-(-2 * features // VECTOR_BYTES) * VECTOR_BYTES for features in (width, value_width))


def _slots(panels: tuple[PanelCounts, ...], height: int) -> int:
    return next((counts.slots for counts in panels if counts.height == height), 0)


def shares_rows(problem: AttentionProblem) -> bool:
    """Whether panels of 64 rows gather little more than one of 16: windows and blocks do, graphs don't."""
    slots, tall = _slots(problem.panels, SCORE_ROWS), _slots(problem.panels, TALL_ROWS)
    rates = problem.record.attention
    full = problem.nnz >= rates.tall_nnz * slots
    return full and 0 < TALL_ROWS // SCORE_ROWS * tall <= rates.tall_slots * slots


def _tall_limit(problem: AttentionProblem) -> int:
    """K tiles of a tall panel's parts: as few as keep every multiprocessor busy."""
    tiles = _slots(problem.panels, TALL_ROWS) // PANEL_K_TILE
    mean = tiles * TALL_ROWS // max(problem.rows, 1)
    concurrent = problem.record.attention.tall_blocks * problem.device.multiprocessors
    share = tiles * problem.heads * problem.width // _TALL_FEATURES // concurrent
    return panel_tile_limit(mean, share, _TALL_TILES)


class AttentionKernel(Kernel):
    """The forward pass."""

    name = "attention"
    plan_type = AttentionPlan

    def can_run(self, problem: Problem) -> CanRun:
        """On GPUs with asynchronous copies, for as many features as fit the registers."""
        assert isinstance(problem, AttentionProblem)
        device, precision = problem.device, problem.precision
        if not (answer := takes(device, precision)):
            return answer
        if not problem.panels_allowed:
            return CanRun(f"the operand was prepared in the format {problem.format or 'csr'}")
        widest, most = max(problem.width, problem.value_width), MOST_FEATURES[precision]
        if widest > most:
            return CanRun(f"{widest} features; fused kernels of {precision.value} take at most {most}")
        if min(problem.width, problem.value_width, problem.heads, problem.nnz) == 0:
            return CanRun("there is nothing to compute")
        return CanRun()

    def default(self, problem: Problem) -> AttentionPlan:
        """Tall panels where they share rows, cut so that every multiprocessor has work."""
        assert isinstance(problem, AttentionProblem)
        answer = may_be_tall(problem)
        if not answer:
            return self._short(problem, answer.problem)
        if not shares_rows(problem):
            return self._short(problem, f"panels of {TALL_ROWS} rows would gather more, or were not counted")
        reason = f"panels of {TALL_ROWS} rows gather hardly more than panels of {SCORE_ROWS}"
        return AttentionPlan(TALL_ROWS, _tall_limit(problem), True, reasons=(reason,))

    def variants(self, problem: Problem) -> list[Plan]:
        """Both heights, where both have a kernel."""
        assert isinstance(problem, AttentionProblem)
        plans: list[Plan] = [self.default(problem), self._short(problem)]
        if may_be_tall(problem):
            plans.append(AttentionPlan(TALL_ROWS, _tall_limit(problem), True))
        return plans

    def check(self, problem: Problem, plan: Plan) -> None:
        """Raises ValueError where the problem or the height has no fused kernel."""
        super().check(problem, plan)
        assert isinstance(problem, AttentionProblem)
        assert isinstance(plan, AttentionPlan)
        if plan.backward is not None:
            FUSED_GRAD.check(problem, plan.backward)
        heights = [height for height, kernels in HEIGHTS.items() if "attention" in kernels.ops]
        if plan.height not in heights:
            bad_value("plan", f"got height {plan.height}; accepted: {', '.join(map(str, heights))}")
        if plan.height == TALL_ROWS and not (answer := may_be_tall(problem)):
            bad_value("plan", f"{plan.label} can't run here: {answer.problem}")

    def _short(self, problem: AttentionProblem, why: str = "") -> AttentionPlan:
        """Panels of 16 rows, cut as those of an SDDMM whose rows are as wide as all heads together."""
        product = Problem(
            "sddmm", problem.device, problem.precision, problem.rows, problem.cols, problem.nnz,
            problem.heads * problem.width, panels=problem.panels,
        )  # fmt: skip
        plan = PANELS[SCORE_ROWS].default(product)
        return AttentionPlan(SCORE_ROWS, plan.tile_limit, plan.longest_first, reasons=(why,) if why else ())


class AttentionGradKernel(AttentionKernel):
    """The backward pass."""

    name = "attention_grad"
    plan_type = AttentionGradPlan  # type: ignore[assignment]

    def default(self, problem: Problem) -> AttentionGradPlan:  # type: ignore[override]
        """Two passes, or one where the transpose shares nothing among its rows."""
        assert isinstance(problem, AttentionProblem)
        rows = super().default(problem)
        transposed = _transposed(problem)
        columns = super().default(transposed)
        heads, why = self._fused_heads(problem, rows)
        return AttentionGradPlan(rows, columns, heads, reasons=(why,))

    def variants(self, problem: Problem) -> list[Plan]:
        """The default."""
        return [self.default(problem)]

    def check(self, problem: Problem, plan: Plan) -> None:
        """Raises ValueError where a pass has no kernel."""
        assert isinstance(problem, AttentionProblem)
        assert isinstance(plan, AttentionGradPlan)
        super().check(problem, plan.rows)
        super().check(_transposed(problem), plan.columns)
        if not plan.fused_heads:
            return
        if plan.rows.height != SCORE_ROWS:
            bad_value("plan", f"fused_heads: go with rows of height {SCORE_ROWS}, not {plan.rows.height}")
        if not (answer := _may_fuse(problem)):
            bad_value("plan", f"fused_heads: {answer.problem}")

    def _fused_heads(self, problem: AttentionProblem, rows: AttentionPlan) -> tuple[int, str]:
        """How many heads the backward pass in one takes at a time, 0: two passes; and why."""
        if not (answer := _may_fuse(problem)):
            return 0, f"two passes: {answer.problem}"
        if rows.height != SCORE_ROWS:
            return 0, f"two passes: panels of {rows.height} rows have no pass in one"
        rates = problem.record.attention
        slots, back = _slots(problem.panels, SCORE_ROWS), _slots(problem.transpose, SCORE_ROWS)
        ratio = f"the transpose has {back / max(slots, 1):.1f} times the column slots"
        if back < rates.fused_backward_slots * slots:
            return 0, f"two passes: {ratio}"
        budget = int(problem.device.memory * rates.partials_memory)
        heads = min(problem.heads, budget // (slots * dkv_partial_bytes(problem.width, problem.value_width)))
        why = f"one pass, {heads} heads at a time: {ratio}"
        return heads, why if heads else "two passes: no memory for partial sums of a head"


def _may_fuse(problem: AttentionProblem) -> CanRun:
    if problem.precision.storage.itemsize != 2:
        return CanRun(f"the pass in one has no {problem.precision.value}")
    if max(problem.width, problem.value_width) > _FUSED_BACKWARD_FEATURES:
        return CanRun(f"the pass in one takes at most {_FUSED_BACKWARD_FEATURES} features")
    return CanRun()


def _transposed(problem: AttentionProblem) -> AttentionProblem:
    """The problem of the pass over columns."""
    return AttentionProblem(
        problem.op, problem.device, problem.precision, problem.cols, problem.rows, problem.nnz,
        problem.width, problem.format, panels=problem.transpose, value_width=problem.value_width,
        heads=problem.heads, has_score_terms=problem.has_score_terms, panels_allowed=problem.panels_allowed,
    )  # fmt: skip


class ChainKernel(Kernel):
    """The chain of products, which runs every attention."""

    name = "chain"
    plan_type = ChainPlan
    devices = ("cpu", "cuda")

    def can_run(self, problem: Problem) -> CanRun:
        """Always: the products run everywhere."""
        return CanRun()

    def default(self, problem: Problem) -> ChainPlan:
        """It has no choice."""
        return ChainPlan()


class RowsKernel(Kernel):
    """The CPU's fused kernels."""

    name = "rows"
    plan_type = RowsPlan
    devices = ("cpu",)

    def can_run(self, problem: Problem) -> CanRun:
        """Always, on a CPU."""
        return CanRun()

    def default(self, problem: Problem) -> RowsPlan:
        """It has no choice."""
        return RowsPlan(reasons=("the CPU kernels work row by row",))


FUSED, FUSED_GRAD, CHAIN, ROWS = AttentionKernel(), AttentionGradKernel(), ChainKernel(), RowsKernel()
