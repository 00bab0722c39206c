"""Problems, the counts that a plan is chosen by; plans; and how a kernel describes itself to the choice."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from gnnsparse.errors import bad_value
from gnnsparse.formats.tiles import Tiles
from gnnsparse.plan.gpu_records.model import TileCounts, pass_us
from gnnsparse.plan.gpu_records.record import GpuRecord, record_for
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import PANEL_K_TILE, SLICE_BYTES, Device
from gnnsparse.runtime.memo import cached_property

#: The distance from the diagonal up to which columns count as near: that many rows of X fit L1.
NEAR = 512
#: Bytes of a row of X at most for which rows of A are faster by themselves than in groups, and of a row of
#: results at most that leaves element by element if it is no whole vectors (notes/log.md).
SHORT_ROW = 32


@dataclass(frozen=True)
class PanelCounts:
    """Counts of a matrix in panels of one height.

    Attributes:
        height: rows of a panel.
        slots: number of column slots, padded to whole K tiles.
        tiles: pairs (K tiles, number of panels with that many K tiles), in rising order; empty: unknown, and
            all panels are taken to be of equal length.
    """

    height: int
    slots: int
    tiles: TileCounts = ()


@dataclass(frozen=True)
class Problem:
    """The counts by which the plan of SpMM or SDDMM is chosen.

    Attributes:
        op: "spmm" or "sddmm"; "attention" or "attention_grad" in an AttentionProblem.
        device: the device that runs it.
        precision: arithmetic of the product.
        rows, cols, nnz: size of A.
        width: columns of X, or the feature dimension of q and k in SDDMM and attention.
        format: name of the format that A was prepared in, "" for CSR alone.
        slots: number of column slots of that format.
        edge_values: whether values are given in the call, in the order of the nonzeros.
        weighted: whether the matrix has its own value for each nonzero, so that it is not rank-1.
        panels: counts of the matrix in panels, for each height that was counted.
        near: nonzeros whose columns are within NEAR of the diagonal, where neighbouring rows read rows of X
            that lie close together; 0 if rows were reordered or nothing was counted.
        slot_rows: rows that share the column slots of that format.
        groups: number of groups of rows that share column slots; 0: all rows, `slot_rows` at a time.
        balance: how windows are cut into parts that take about equally long, as `prepare` was asked for.
        quantization: the precision of 8 bits in which X is stored; None: that of `precision`.
        rows_of_x: "packed"; "padded", as are the result's (`ops.dense.padded_width`); or "converted": X has
            another dtype, so that every kernel reads a copy.
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
    panels: tuple[PanelCounts, ...] = ()
    near: int = 0
    slot_rows: int = 8
    groups: int = 0
    balance: str = field(default="auto", kw_only=True)
    quantization: Precision | None = field(default=None, kw_only=True)
    rows_of_x: str = field(default="packed", kw_only=True)

    @cached_property
    def record(self) -> GpuRecord:
        """The record of the GPU, or of the GPU that it resembles most."""
        return record_for(self.device)

    @property
    def arithmetic(self) -> str:
        """The name of the arithmetic in records: "half" for 16-bit operands, "tf32" or "fp32"."""
        return self.precision.value if self.precision.storage.itemsize == 4 else "half"

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of X."""
        return self.width * (self.precision.storage.itemsize if self.quantization is None else 1)

    @property
    def slices(self) -> int:
        """Number of slices of 128 bytes in a row of X, the last one counted as whole."""
        return -(-self.row_bytes // SLICE_BYTES)

    @property
    def slice_is_resident(self) -> bool:
        """Whether one slice, 128 bytes of every row of X or all of a shorter row, stays in L2."""
        return self.cols * min(SLICE_BYTES, self.row_bytes) <= self.record.memory.resident_bytes

    @property
    def stores_values(self) -> bool:
        """Whether panels store a value for each nonzero, not bits alone."""
        return self.weighted and self.op == "spmm"

    @property
    def is_short(self) -> bool:
        """Whether a row of X has so few bytes that plans are chosen by other rules (`plan/csr.py`)."""
        return self.row_bytes <= SHORT_ROW

    @property
    def pass_bytes(self) -> float:
        """The mean of the bytes of X and of the result: what a pass over both reads, and what it writes."""
        return (self.rows + self.cols) / 2 * self.row_bytes

    def odd_rows_us(self, unit: int) -> float:
        """Return the microseconds that the model adds to SpMM if rows are not multiples of `unit` bytes.

        The models are fitted to rows of whole sectors. At other widths a kernel copies X, reads parts of
        lines and shifts results, which takes about `odd_row_passes` of the record over the dense operands.
        """
        odd = self.row_bytes % unit != 0 and self.rows_of_x != "padded"
        if self.op != "spmm" or self.quantization or self.is_short or not odd:
            return 0.0
        memory = self.record.memory
        return memory.odd_row_passes * float(pass_us(memory, self.pass_bytes))

    def panel(self, height: int) -> PanelCounts | None:
        """Return the counts of panels of a height; None if that height was not counted."""
        return next((counts for counts in self.panels if counts.height == height), None)

    @property
    def longest_row(self) -> int:
        """An upper bound on the nonzeros of a row: the most column slots of a panel of 16 rows."""
        counts = self.panel(16)
        return PANEL_K_TILE * max(counts.tiles)[0] if counts is not None and counts.tiles else self.cols


@dataclass(frozen=True)
class AttentionProblem(Problem):
    """The counts by which the plan of attention is chosen.

    Attributes:
        value_width: features of v.
        heads: number of heads, those of all batch entries together.
        has_score_terms: whether there is a bias, dropout or a causal mask.
        panels_allowed: whether the operand may be converted to panels; False if the user asked for another
            format.
        transpose: counts of the transpose in panels; for op "attention_grad".
        tiles: counts of the 128 x 128 tiles; None: not counted, and no kernel over tiles is chosen.
        band: see `formats.tiles.band_of`; None: the pattern is no band, or tiles were not counted.
        is_reordered: whether the rows are stored in another order than the caller's.
        refused: pairs of the name of a kernel that must not run the call, and the reason.
        head_places: places in memory where the features of a node lie; 1: those of all heads side by side.
    """

    value_width: int = 0
    heads: int = 1
    has_score_terms: bool = False
    panels_allowed: bool = True
    transpose: tuple[PanelCounts, ...] = ()
    tiles: Tiles | None = None
    band: tuple[int, int] | None = None
    is_reordered: bool = False
    refused: tuple[tuple[str, str], ...] = ()
    head_places: int = 1


#: Classes of plans by the names of their kernels.
PLAN_TYPES: dict[str, type[Plan]] = {}


class _PlanType(type):
    """Make `Plan("panel", height=16)` a PanelPlan."""

    def __call__(cls, *arguments: Any, **values: Any) -> Any:
        if cls.__name__ != "Plan":
            return super().__call__(*arguments, **values)
        if not arguments or arguments[0] not in PLAN_TYPES:
            raise TypeError(f"Plan: got {arguments}; accepted: {', '.join(PLAN_TYPES)}, then fields by name")
        kind = PLAN_TYPES[arguments[0]]
        accepted = [f.name for f in fields(kind)]
        for name in values:
            if name not in accepted:
                raise TypeError(
                    f"{name}: no field of a plan of {arguments[0]}; accepted: {', '.join(accepted)}"
                )
        return kind(*arguments[1:], **values)


@dataclass(frozen=True)
class Plan(metaclass=_PlanType):
    """How an operation runs: a kernel and its parameters, which subclasses add as fields.

    `Plan("csr", lanes=8)` makes a CsrPlan.

    Attributes:
        kernel: name of the kernel.
        reasons: why the plan was chosen, in short statements.
    """

    kernel: ClassVar[str] = ""
    reasons: tuple[str, ...] = field(default=(), kw_only=True)

    def __init_subclass__(cls) -> None:
        if cls.kernel:
            PLAN_TYPES[cls.kernel] = cls

    def __str__(self) -> str:
        return f"{self.kernel}: " + "; ".join(self.reasons)

    @property
    def label(self) -> str:
        """The kernel's name, followed by the height of its panels if it has panels."""
        height = getattr(self, "height", None)
        return self.kernel if height is None else f"{self.kernel} {height}"


@dataclass(frozen=True)
class CanRun:
    """Whether a kernel can run a problem; true in a condition if it can.

    Attributes:
        problem: why it can't; "" if it can.
    """

    problem: str = ""

    def __bool__(self) -> bool:
        return not self.problem


def takes_stored_operands(precision: Precision) -> CanRun:
    """Return whether Tensor Core kernels run a precision: they multiply stored elements as these are."""
    if precision.operands_are_stored:
        return CanRun()
    stored = str(precision.storage).removeprefix("torch.")
    return CanRun(f"Tensor Core kernels do not convert {stored}, which {precision.value} stores")


class Kernel(ABC):
    """A kernel's description of itself: which problems it can run, with which plans, and how fast.

    Attributes:
        name: the kernel's name, with the height of its panels: "csr", "window", "panel16", ...
        plan_type: the class of its plans.
        devices: types of devices that it runs on.
        yields_to: names (`Plan.kernel`) of other kernels. If one of them can run a problem, this kernel is
            not chosen, because its model does not compare with theirs.
        for_formats: whether it runs operands alone whose format was asked for; the plans of others do not
            speak of it.
    """

    name: str
    plan_type: type[Plan]
    devices: tuple[str, ...] = ("cuda",)
    yields_to: tuple[str, ...] = ()
    for_formats: bool = False

    @abstractmethod
    def can_run(self, problem: Problem) -> CanRun:
        """Return whether the kernel can run a problem, or why not."""

    @abstractmethod
    def default(self, problem: Problem) -> Plan:
        """Return the kernel's plan for a problem that it can run."""

    def variants(self, problem: Problem) -> list[Plan]:
        """Return the plans that autotuning measures."""
        return [self.default(problem)]

    def time_us(self, problem: Problem, plan: Plan) -> float | None:
        """Return the modelled microseconds of a plan; None if the kernel has no model.

        Among kernels without a model the first in KERNELS that can run is chosen.
        """
        return None

    def is_asked_for(self, problem: Problem) -> str:
        """Return why the problem must be run by this kernel, whatever its time; "" if it need not be."""
        return ""

    def check(self, problem: Problem, plan: Plan) -> None:
        """Raise ValueError if the kernel can't run a problem by a plan that the caller gave."""
        if problem.device.type not in self.devices:
            bad_value("plan", f"{plan.label} can't run on {problem.device.type}")
        if not (answer := self.can_run(problem)):
            bad_value("plan", f"{plan.label} can't run here: {answer.problem}")
