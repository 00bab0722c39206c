"""One orientation of a matrix, A or its transpose: its arrays, and all that kernels derive from these."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gnnsparse.errors import bad_value
from gnnsparse.formats import BlockedMatrix, FormatSpec, exclusive_preset, format_spec, require_operation
from gnnsparse.formats.convert import convert, count_slots, value_places
from gnnsparse.formats.csr import Csr
from gnnsparse.formats.tiles import Tiles, band_of, count_tiles
from gnnsparse.plan import AttentionProblem, PanelCounts, Plan, Problem, choose_plan
from gnnsparse.plan.base import NEAR
from gnnsparse.plan.gpu_records.record import GpuRecord, record_for
from gnnsparse.plan.panel import HEIGHTS, takes
from gnnsparse.plan.work import (
    RowEntries,
    WorkList,
    cut_panels,
    cut_rows,
    cut_windows,
    group_rows,
    row_entries,
)
from gnnsparse.precision import Precision, round_operand
from gnnsparse.runtime.device import PANEL_K_TILE, describe_device
from gnnsparse.runtime.memo import DispatchCache, ForkLock, Memo, Streams, made_once

#: Kernels over tiles are considered where so much of their positions are edges: a window of +-128 has .67,
#: and rates of partial tiles, which are measured on it, say nothing of strips with few columns in a tile.
_LEAST_FILL = 0.5


@dataclass(frozen=True)
class Product:
    """What an operation, "spmm", "sddmm", "attention" or "attention_grad", is asked to compute.

    `width` is the columns of X or the features of q and k; `rows_of_x` is a field of Problem, and the three
    before it and the last one are fields of an AttentionProblem.
    """

    op: str
    width: int
    edge_values: bool = False
    value_width: int = 0
    heads: int = 1
    has_score_terms: bool = False
    rows_of_x: str = "packed"
    head_places: int = 1


@dataclass(frozen=True)
class BoundCall:
    """Key of a product with all arguments but the dense operands bound.

    `plan` is the caller's, or None; `mean` divides a row's sum by its number of nonzeros; `quantization` is
    the precision of 8 bits in which X is stored; `stored`: X is given in it, and `dtype` is the result's.
    """

    product: Product
    dtype: torch.dtype
    plan: Plan | None
    mean: bool = False
    quantization: Precision | None = None
    stored: bool = False


#: Products with all arguments but the dense operands bound: (x, edge values or None) -> y, of some kernels
#: with a third argument, the memory of y; (q, k) -> scores.
SpmmCall = Callable[..., torch.Tensor]
SddmmCall = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def explicit_values(
    csr: Csr,
    row_ids: torch.Tensor | None,
    values: torch.Tensor | None,
    scales: tuple[torch.Tensor | None, torch.Tensor | None],
    precision: Precision,
) -> torch.Tensor:
    """Compute the value of each nonzero, [nnz], rounded to a precision; factors that are None are 1.

    `row_ids` is the index of each stored row in the row weights `scales[0]`; None: they are equal.
    """
    if values is None:
        values = torch.ones(csr.nnz, dtype=torch.float32, device=csr.device)
    row_scale, col_scale = scales
    if row_scale is not None:
        by_row = row_scale if row_ids is None else row_scale[row_ids.long()]
        values = values * by_row[csr.row_index()]
    if col_scale is not None:
        values = values * col_scale.index_select(0, csr.indices)
    return round_operand(values, precision)


@dataclass(eq=False)
class KernelCache:
    """One orientation of a matrix, and what kernels derive from it at a precision; each part is made once.

    The value of nonzero (i, j) is given_values[value_index] * given_row_scale[i] * given_col_scale[j];
    factors that are None are 1. Values exclude the other two, which a transpose would leave out. It may be
    used from several threads and CUDA streams at a time.

    Attributes:
        row_ids: int32 [rows], the matrix row of each stored row; None: they are equal.
        given_values: float32 [nnz], in the nonzero order of A.
        value_index: int32 or int64 [nnz], the place there of each nonzero's value, maybe on another device;
            None: they are equal.
        given_row_scale, given_col_scale: float32 by matrix row, and by matrix column.
        allows_panels: whether a plan may convert to panels; False if the user asked for another format.
        tuner: measures plans; None: plans are chosen by the model.
        longest_row: number of nonzeros that no row exceeds; None: unknown.
        keeps_rows_whole: whether rows are never cut, since where to cut would depend on arrays that are
            overwritten; `longest_row` is known then.
        quantization: the precision of 8 bits in which SpMM stores X, and attention K and V.
        dispatch_cache: for each form of arguments that has passed all checks, the call that ran it.
    """

    csr: Csr
    row_ids: torch.Tensor | None = None
    blocked: BlockedMatrix | None = None
    given_values: torch.Tensor | None = None
    value_index: torch.Tensor | None = None
    given_row_scale: torch.Tensor | None = None
    given_col_scale: torch.Tensor | None = None
    precision: Precision = Precision.FP32
    allows_panels: bool = True
    memo: Memo = None  # type: ignore[assignment]
    streams: Streams = None  # type: ignore[assignment]
    tuner: Callable[[KernelCache, Product], Plan] | None = None
    balance: str = "auto"
    longest_row: int | None = None
    keeps_rows_whole: bool = False
    quantization: Precision | None = None
    dispatch_cache: DispatchCache = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.given_values is not None and not (self.given_row_scale is None is self.given_col_scale):
            bad_value("given_values", "go with factors of rows or columns; accepted: values or factors")
        if self.memo is None:
            self.memo = Memo(ForkLock(), self.csr.device)
        if self.streams is None:
            self.streams = Streams(self.csr.device)
        self.dispatch_cache = DispatchCache(self.memo)

    def with_blocked(self, blocked: BlockedMatrix | None) -> KernelCache:
        """Return this orientation with another blocked form, or with none, and no parts made yet."""
        return replace(self, blocked=blocked, memo=Memo(ForkLock(), self.csr.device))

    def in_format(self, precision: Precision, spec: FormatSpec | None) -> KernelCache:
        """Return this orientation in a blocked format, with values of a precision if it stores them."""
        if spec is None:
            return self
        stored = None
        if spec.stores_values:
            scales = self.given_row_scale, self.given_col_scale
            stored = explicit_values(self.csr, self.row_ids, self.own_values(), scales, precision)
        return self.with_blocked(convert(self.csr, spec, stored))

    def to(self, device: torch.device) -> KernelCache:
        """Return this orientation on a device; `value_index` is moved when a call first needs it."""
        ids, values, row, col = (
            None if t is None else t.to(device)
            for t in (self.row_ids, self.given_values, self.given_row_scale, self.given_col_scale)
        )
        blocked = None if self.blocked is None else self.blocked.to(device)
        return KernelCache(self.csr.to(device), ids, blocked, values, self.value_index, row, col)

    def transposed(self, csr: Csr, row_ids: torch.Tensor | None, index: torch.Tensor) -> KernelCache:
        """Return the transpose, without a blocked form; `index` has each of its nonzeros' index here."""
        value_index = None if self.given_values is None else index
        scales = self.given_col_scale, self.given_row_scale
        return KernelCache(csr, row_ids, None, self.given_values, value_index, *scales)

    def own_values(self) -> torch.Tensor | None:
        """Return `given_values` in this orientation's order, gathered anew for a transpose, or None."""
        values, index = self.given_values, self.value_index
        return values if values is None or index is None else values.index_select(0, index.to(values.device))

    # Weights, rounded to the precision.

    @property
    @made_once
    def values(self) -> torch.Tensor | None:
        """The matrix's own values, [nnz] in the storage dtype; None if the matrix is rank-1."""
        values = self.own_values()
        return None if values is None else round_operand(values, self.precision)

    @property
    @made_once
    def values32(self) -> torch.Tensor | None:
        """The values as float32, for the CPU kernels."""
        return None if self.values is None else self.values.float()

    @property
    @made_once
    def row_scale(self) -> torch.Tensor | None:
        """Row weights of a rank-1 matrix by stored row, float32 [rows], or None."""
        scale, ids = self.given_row_scale, self.row_ids
        return scale if scale is None or ids is None else scale[ids.long()]

    @property
    @made_once
    def col_scale(self) -> torch.Tensor | None:
        """Column weights of a rank-1 matrix, float32 [cols], rounded to the precision, or None."""
        scale = self.given_col_scale
        return None if scale is None else round_operand(scale, self.precision).float()

    @property
    @made_once
    def explicit_values(self) -> torch.Tensor:
        """The value of every nonzero, [nnz] in the storage dtype, computed if the matrix is rank-1."""
        if (values := self.values) is not None:
            return values
        return explicit_values(self.csr, None, None, (self.row_scale, self.col_scale), self.precision)

    @property
    def own_weights(self) -> torch.Tensor | None:
        """The value of every nonzero, [nnz] in the storage dtype; None if all are 1."""
        unweighted = self.values is None and self.row_scale is None and self.col_scale is None
        return None if unweighted else self.explicit_values

    @property
    @made_once
    def inverse_counts(self) -> torch.Tensor:
        """1 / the number of nonzeros of each row, by stored row, float32 [rows]; 1 for empty rows."""
        return 1 / self.csr.degrees.clamp(min=1).float()

    @property
    @made_once
    def inverse_counts_by_row(self) -> torch.Tensor:
        """`inverse_counts` by matrix row."""
        counts, ids = self.inverse_counts, self.row_ids
        return counts if ids is None else torch.empty_like(counts).index_copy(0, ids.long(), counts)

    @made_once
    def row_factors(self, weighted: bool, mean: bool) -> torch.Tensor | None:
        """Return the factors of stored rows, float32 [rows]: rank-1 weights and 1 / nonzeros."""
        scale = self.row_scale if weighted else None
        if not mean:
            return scale
        return self.inverse_counts if scale is None else scale * self.inverse_counts

    # Work of the csr kernel.

    def row_limit(self, limit: int) -> int:
        """Return the limit above which rows are cut: `limit`, unless rows have to be kept whole."""
        return max(limit, self.longest_row or 0) if self.keeps_rows_whole else limit

    @made_once
    def row_work(self, limit: int) -> WorkList:
        """Return the parts into which rows of more than `limit` nonzeros are cut."""
        if not self._none_above(limit):
            return cut_rows(self.csr, limit)
        nothing = torch.empty(0, 4, dtype=torch.int32, device=self.csr.device)  # without counting
        return WorkList(nothing, nothing, 0)

    @made_once
    def row_entries(self, limit: int) -> RowEntries | None:
        """Return the rows as kernels of graph attention take them, the longest first; None: as they are.

        A matrix whose longest row is known is that of a sample, used too seldom for an order of its rows.
        """
        if self.keeps_rows_whole or self._none_above(limit):
            return None
        return row_entries(self.csr, limit, self.row_ids)

    @made_once
    def row_groups(self, size: int, limit: int) -> torch.Tensor:
        """Return groups of neighbouring short rows, of about `size` nonzeros each."""
        return group_rows(self.csr, size, limit, at_once=self._none_above(limit))

    def _none_above(self, limit: int) -> bool:
        return self.longest_row is not None and self.longest_row <= limit

    # The format that the operand was prepared in.

    def require_blocked(self) -> BlockedMatrix:
        """Return the format that the operand was prepared in; raises RuntimeError if there is none."""
        if self.blocked is None:
            raise RuntimeError("the operand has no blocked format")
        return self.blocked

    @property
    def format_name(self) -> str:
        """The name of the format that the operand was prepared in, or ""."""
        return "" if self.blocked is None else self.blocked.spec.name

    @property
    def runs_format_alone(self) -> bool:
        """Whether products run in the format that the operand was prepared in, or raise."""
        return self.blocked is not None and exclusive_preset(self.blocked.spec.name) is not None

    def require(self, argument: str, what: str, op: str | None) -> None:
        """Raise a ValueError if the operand's format does not have an operation (`require_operation`)."""
        require_operation(argument, self.format_name, what, op)

    @property
    @made_once
    def value_places(self) -> torch.Tensor:
        """The index of each nonzero's value in the `values` of the prepared format, int64 [nnz]."""
        return value_places(self.csr, self.require_blocked())

    def window_work(
        self, limit: int, for_scores: bool = False, *, balance: str = "auto", concurrent: int = 0
    ) -> WorkList:
        """Return all windows, long ones cut by the plan; `for_scores`: with row offsets always."""
        for_scores = for_scores and self.require_blocked().spec.stores_values
        if balance in ("auto", "none"):
            return self._window_work(limit if balance == "auto" else 0, for_scores, balance, 0)
        warps = self._record.csr.warps * describe_device(self.csr.device).multiprocessors
        return self._window_work(0, for_scores, balance, concurrent or warps)

    @made_once
    def _window_work(self, limit: int, for_scores: bool, balance: str, concurrent: int) -> WorkList:
        blocked = self.require_blocked()
        return cut_windows(blocked, self.csr, limit, for_scores, balance=balance, concurrent=concurrent)

    def _residual(self) -> tuple[Csr, torch.Tensor]:
        """Return the rows that the format keeps out of its windows, and their numbers."""
        blocked = self.require_blocked()
        assert blocked.residual is not None
        assert blocked.residual_rows is not None
        return blocked.residual, blocked.residual_rows

    @made_once
    def residual_work(self, limit: int) -> WorkList:
        """Return the parts of the long ones among the rows that the format keeps out of its windows."""
        return cut_rows(self._residual()[0], limit)

    @made_once
    def residual_row_ids(self) -> torch.Tensor:
        """Return the output row of each row that the format keeps out of its windows, int32."""
        rows, ids = self._residual()[1], self.row_ids
        return rows if ids is None else ids[rows.long()]

    @made_once
    def residual_counts(self) -> torch.Tensor:
        """Return 1 / the number of nonzeros of each row that the format keeps out of its windows."""
        return self.inverse_counts[self._residual()[1].long()]

    # Panels.

    def panel(self, height: int, bits: bool = False) -> BlockedMatrix:
        """Return the matrix in panels of `height` rows, converted once; with `bits` its structure alone."""
        return self._panel("panel" if bits or self.values is None else "panel-values", height)

    @made_once
    def _panel(self, preset: str, height: int) -> BlockedMatrix:
        spec = format_spec(preset, self.precision, panel=height)
        return convert(self.csr, spec, None if preset == "panel" else self.values)

    @property
    def panel_bytes(self) -> int:
        """Bytes of the panels made so far."""
        return sum(made.nbytes for made in self.memo.values_of(BlockedMatrix))

    @made_once
    def panel_counts(self, height: int) -> PanelCounts:
        """Count the column slots and K tiles of panels, tiles from 32 on as up to a sixteenth more."""
        slots = count_slots(self.csr, format_spec("panel", self.precision, panel=height))
        tiles = slots // PANEL_K_TILE
        grain = 2 ** (tiles.clamp(min=1).double().log2().floor().long() - 4).clamp(min=0)
        lengths, panels = torch.unique((tiles + grain - 1) // grain * grain, return_counts=True)
        pairs = tuple(zip(lengths.tolist(), panels.tolist(), strict=True))
        return PanelCounts(height, int(slots.sum()), pairs)

    @property
    @made_once
    def tiles(self) -> Tiles:
        """The counts of the 128 x 128 tiles; counting takes time and memory of the order of the edges."""
        return count_tiles(self.csr)

    @property
    @made_once
    def band(self) -> tuple[int, int] | None:
        """The distances from the diagonal between which all edges are, if there are no others (`band_of`)."""
        return band_of(self.csr)

    @made_once
    def panel_work(self, height: int, limit: int, longest_first: bool, concurrent_panels: int) -> WorkList:
        """Return every panel, cut into parts of at most `limit` K tiles."""
        ahead = self._prefetch("panel")
        return cut_panels(self.panel(height), limit, None, longest_first, concurrent_panels, ahead)

    @made_once
    def score_panels(
        self, limit: int, longest_first: bool, height: int, kernel: str
    ) -> tuple[BlockedMatrix, Any, WorkList]:
        """Return panels of bits, their native handle, and work with row offsets for a kernel."""
        panel = self.panel(height, bits=True)
        work = cut_panels(panel, limit, self.csr, longest_first, 0, self._prefetch(kernel))
        return panel, panel.view(), work

    @property
    def _record(self) -> GpuRecord:
        return record_for(describe_device(self.csr.device))

    def _prefetch(self, kernel: str) -> int:
        """Return how many panels further on in the work list a warp's prefetch to L2 lies, on this GPU."""
        rates = self._record.attention if kernel == "attention" else self._record.panel
        return rates.prefetch * describe_device(self.csr.device).multiprocessors

    def _form(self, height: int) -> BlockedMatrix:
        """Return panels of a height, or the prepared format for the height 0."""
        return self.panel(height) if height else self.require_blocked()

    @made_once
    def view(self, height: int, weighted: bool) -> Any:
        """Return the native handle of `_form(height)`, with or without its column weights."""
        return self._form(height).view(self._slot_scale(height) if weighted else None)

    @made_once
    def _slot_scale(self, height: int) -> torch.Tensor | None:
        """Return the weight of each column slot in the storage dtype, or None if weights are not rank-1."""
        scale, form = self.col_scale, self._form(height)
        if scale is None or form.spec.stores_values:
            return None
        # Padded column slots may be -1; no nonzero uses their weight.
        return scale[form.columns.clamp(min=0).long()].to(self.precision.storage)

    # Plans.

    def plan(self, op: str, width: int, edge_values: bool = False) -> Plan:
        """Return the plan of a product."""
        return self.plan_of(Product(op, width, edge_values))

    def plan_of(
        self, product: Product, transpose: KernelCache | None = None,
        refused: tuple[tuple[str, str], ...] = (),
    ) -> Plan:  # fmt: skip
        """Return the plan of an operation; "attention_grad" needs the transpose's cache as `transpose`.

        `refused`: kernels of attention that must not run it, each with the reason.
        """

        def make() -> Plan:
            if self.tuner is not None and product.op in ("spmm", "sddmm"):
                packed = replace(product, rows_of_x="packed")
                return self.tuner(self, product) if product == packed else self.plan_of(packed)
            problem = self.problem(product, transpose)
            if refused and isinstance(problem, AttentionProblem):
                problem = replace(problem, refused=refused)
            return choose_plan(problem)

        return self.memo.get(("plan", product, self.quantization, *refused), make)

    def use_plan(self, product: Product, plan: Plan) -> None:
        """Replace the plan of an operation, and drop the calls that were bound to the former plan."""
        with self.memo.lock:
            for rows in ("packed", "padded", "converted"):
                self.memo.put(("plan", replace(product, rows_of_x=rows), self.quantization), plan)
            self.memo.drop(lambda key: isinstance(key, BoundCall) and key.product == product)
            self.dispatch_cache.clear()

    def scratch(self) -> KernelCache:
        """Return a copy for measuring: what the copy makes is freed with it."""
        return replace(self, tuner=None, memo=self.memo.copy())

    def problem(
        self, product: Product, transpose: KernelCache | None = None, *, counts_tiles: bool | None = None
    ) -> Problem:
        """Count what the plan depends on; "attention_grad" needs the transpose's cache as `transpose`.

        `counts_tiles`: whether tiles are counted for attention; None: where a record has rates of them.
        """
        op, device = product.op, describe_device(self.csr.device)
        panels: tuple[PanelCounts, ...] = ()
        if self.allows_panels and not product.edge_values and takes(device, self.precision):
            panels = self._panels_of(op)
        csr, blocked = self.csr, self.blocked
        name, slots, slot_rows, groups = "", 0, 8, 0
        if blocked is not None:
            name, slots = blocked.spec.name, blocked.slots
            slot_rows, groups = blocked.spec.panel, blocked.panels
        common = (op, device, self.precision, csr.rows, csr.cols, csr.nnz, product.width, name, slots)
        weighted = self.given_values is not None
        if op in ("spmm", "sddmm"):
            near = self._near() if panels else 0
            bytewise = op == "spmm" and not product.edge_values
            return Problem(
                *common, product.edge_values, weighted, panels, near, slot_rows, groups, balance=self.balance,
                quantization=self.quantization if bytewise else None, rows_of_x=product.rows_of_x,
            )  # fmt: skip
        back = transpose._panels_of(op) if transpose is not None and panels else ()
        return AttentionProblem(
            *common, False, weighted, panels, 0, slot_rows, groups, product.value_width, product.heads,
            product.has_score_terms, self.allows_panels, back, *self._tiles_of(panels, counts_tiles),
            self.row_ids is not None, head_places=product.head_places,
        )  # fmt: skip

    def _tiles_of(
        self, panels: tuple[PanelCounts, ...], counts: bool | None
    ) -> tuple[Tiles | None, tuple[int, int] | None]:
        """Return tiles and band; None where not counted, or by default where tiles would be half empty."""
        if counts is None and panels and self.precision.storage.itemsize == 2:
            rates = self._record.attention
            counts = bool(rates.tiles) and 0 < rates.tall_nnz * panels[0].slots <= self.csr.nnz
            counts = counts and self.tiles.fill >= _LEAST_FILL
        return (self.tiles, self.band) if counts and self.quantization is None else (None, None)

    @made_once
    def _near(self) -> int:
        """Count the nonzeros near the diagonal, unless rows have other places than their numbers."""
        return 0 if self.row_ids is not None else self.csr.count_near(NEAR)

    def _panels_of(self, op: str) -> tuple[PanelCounts, ...]:
        """Count panels of the heights that an operation has; tall ones only where they may pay."""
        kind = "attention" if op.startswith("attention") else op
        heights = [height for height, kernels in HEIGHTS.items() if kind in kernels.ops]
        if kind == "attention":  # taller ones need enough nonzeros in each column slot of 16-row panels
            least = self._record.attention.tall_nnz
            heights = [h for h in heights if h == 16 or self.csr.nnz >= least * self.panel_counts(16).slots]
        return tuple(self.panel_counts(height) for height in heights)
