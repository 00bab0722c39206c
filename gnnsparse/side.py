"""Side: one direction of an operand, A or its transpose, as the kernels take it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gnnsparse.costs import STAGE, StageCounts
from gnnsparse.csr import Csr
from gnnsparse.formats import BlockedMatrix, format_spec
from gnnsparse.plan import Plan, Problem, choose_plan, describe_device
from gnnsparse.precision import Precision
from gnnsparse.preprocess.balance import (
    ATTENTION_PREFETCH,
    SPMM_PREFETCH,
    Segments,
    cut_panels,
    cut_rows,
    cut_windows,
    group_rows,
)
from gnnsparse.preprocess.convert import convert, count_slots
from gnnsparse.preprocess.normalize import explicit_values

__all__ = ["SddmmCall", "Side", "SpmmCall"]

#: A product that is ready to run: (x, edge values or None) -> y, and (q, k) -> scores.
SpmmCall = Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
SddmmCall = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(eq=False)
class Side:
    """A, or its transpose, with its weights, as the kernels take it.

    Attributes:
        csr, row_ids: structure, rows in stored order.
        blocked: in a blocked format, or None.
        make_values: gives the values, [nnz] in the storage dtype, or None.
        row_scale: float32 [rows] in stored order, or None.
        col_scale: float32 [cols], rounded to the precision, or None.
        panels: whether a plan may convert to panels: not where another format was asked for.
        tuner: measures plans for a side, an op, a width and whether edge values come with the call; None:
            plans are those of the model.
        checked: dtypes, shapes and devices of arguments that a product has accepted, and what ran it.
    """

    csr: Csr
    row_ids: torch.Tensor | None
    blocked: BlockedMatrix | None
    precision: Precision
    make_values: Callable[[], torch.Tensor | None]
    row_scale: torch.Tensor | None = None
    col_scale: torch.Tensor | None = None
    panels: bool = False
    tuner: Callable[[Side, str, int, bool], Plan] | None = None
    checked: dict[Any, Any] = field(default_factory=dict)
    _memo: dict[Any, Any] = field(default_factory=dict)

    def remember(self, key: Any, make: Callable[[], Any]) -> Any:
        """What `make` gave when `key` was first asked for."""
        if key not in self._memo:
            if self.csr.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                raise RuntimeError(
                    "the plan of this product is not made yet: run it once before capturing a CUDA graph"
                )
            self._memo[key] = make()
        return self._memo[key]

    @property
    def values(self) -> torch.Tensor | None:
        """The matrix's own values, [nnz] in the storage dtype; None where it is rank-1."""
        return self.remember("values", self.make_values)

    @property
    def explicit_values(self) -> torch.Tensor:
        """The value of every nonzero in the storage dtype, also where the matrix is rank-1."""
        if self.values is not None:
            return self.values
        scales = (self.row_scale, self.col_scale)
        return self.remember(
            "explicit", lambda: explicit_values(self.csr, None, None, scales, self.precision)
        )

    @property
    def values32(self) -> torch.Tensor | None:
        """The values as float32, for the CPU kernels."""
        if self.values is None:
            return None
        values = self.values
        return self.remember("values32", lambda: values.float())

    def row_segments(self, limit: int) -> Segments:
        """The rows with more than `limit` nonzeros, cut."""
        return self.remember(("rows", limit), lambda: cut_rows(self.csr, limit))

    def row_groups(self, size: int, limit: int) -> torch.Tensor:
        """Groups of neighbouring short rows of about `size` nonzeros."""
        return self.remember(("groups", size, limit), lambda: group_rows(self.csr, size, limit))

    def residual_segments(self, limit: int) -> Segments:
        """The same of the rows that the format keeps out of its windows."""
        residual = self.blocked.residual if self.blocked is not None else None
        if residual is None:
            raise RuntimeError("the format keeps no rows out")
        return self.remember(("residual", limit), lambda: cut_rows(residual, limit))

    def window_segments(self, limit: int) -> Segments:
        """Every window, cut into at most `limit` steps."""
        blocked = self.blocked
        if blocked is None:
            raise RuntimeError("the operand has no blocked format")
        return self.remember(("windows", limit), lambda: cut_windows(blocked, self.csr, limit))

    def panel(self, height: int, bits: bool = False) -> BlockedMatrix:
        """In panels of 16 or 32 rows for the panel kernels; converted when it is first asked for.

        With the matrix's values, if it has any (of 32 rows in 16 bits packed), or with `bits` as bits alone.
        """
        values = None if bits else self.values
        name = "panel" if values is None else "panel-values"
        spec = format_spec(name, self.precision, panel=height)
        return self.remember((name, height), lambda: convert(self.csr, spec, values))

    def score_panels(self, limit: int, longest_first: bool, height: int = 16) -> tuple[Any, Segments]:
        """Native handle of the bits of panels for SDDMM (16 rows) or attention, and their work list."""
        panel = self.panel(height, bits=True)
        view = self.remember(("score view", height), panel.view)
        key = ("score panels", height, limit, longest_first)
        return view, self.remember(
            key,
            lambda: cut_panels(panel, limit, self.csr, longest_first, prefetch_distance=ATTENTION_PREFETCH),
        )

    @property
    def panel_bytes(self) -> int:
        """Bytes of the panels made so far."""
        return sum(made.nbytes for made in self._memo.values() if isinstance(made, BlockedMatrix))

    def panel_slots(self, height: int) -> int:
        """Column slots of these panels, without converting."""
        return self._panel_counts(height)[0]

    def panel_stages(self, height: int) -> StageCounts:
        """Their lengths: (stages, panels of so many), long ones rounded up by at most a sixteenth."""
        return self._panel_counts(height)[1]

    def _panel_counts(self, height: int) -> tuple[int, StageCounts]:
        def count() -> tuple[int, StageCounts]:
            slots = count_slots(self.csr, format_spec("panel", self.precision, panel=height))
            stages = slots // STAGE
            step = 2 ** (stages.clamp(min=1).double().log2().floor().long() - 4).clamp(min=0)
            lengths, panels = torch.unique((stages + step - 1) // step * step, return_counts=True)
            return int(slots.sum()), tuple(zip(lengths.tolist(), panels.tolist(), strict=True))

        return self.remember(("panel counts", height), count)

    def panel_segments(self, height: int, limit: int, longest_first: bool, at_once: int) -> Segments:
        """Every panel, cut into at most `limit` stages."""
        panel = self.panel(height)
        key = ("panels", height, limit, longest_first, at_once)
        return self.remember(
            key,
            lambda: cut_panels(
                panel, limit, longest_first=longest_first, at_once=at_once, prefetch_distance=SPMM_PREFETCH
            ),
        )

    def panel_view(self, height: int, weighted: bool) -> Any:
        """Native handle of the panels, with or without their column weights."""
        panel = self.panel(height)
        scale = self._slot_scale(panel) if weighted else None
        return self.remember(("panel view", height, weighted), lambda: panel.view(scale))

    def _slot_scale(self, blocked: BlockedMatrix) -> torch.Tensor | None:
        """Weight of each column slot in the storage dtype, where weights are rank-1."""
        scale = self.col_scale
        if scale is None or blocked.spec.stores_values:
            return None
        key = ("slot scale", blocked.spec.name, blocked.spec.panel)
        # Padded slots may be -1; their weight plays no part.
        return self.remember(
            key, lambda: scale[blocked.columns.clamp(min=0).long()].to(self.precision.storage)
        )

    def blocked_view(self, weighted: bool = True) -> Any:
        """Native handle of the blocked format, with or without its column weights."""
        blocked = self.blocked
        if blocked is None:
            raise RuntimeError("the operand has no blocked format")
        scale = self._slot_scale(blocked) if weighted else None
        return self.remember(("view", weighted), lambda: blocked.view(scale))

    def residual_row_ids(self) -> torch.Tensor:
        """Output row of each row that the format keeps out of its windows."""
        rows = self.blocked.residual_rows if self.blocked is not None else None
        if rows is None:
            raise RuntimeError("the format keeps no rows out")
        ids = self.row_ids
        return rows if ids is None else self.remember("residual_ids", lambda: ids[rows.long()])

    def plan(self, op: str, width: int, edge_values: bool) -> Plan:
        """The plan of a product of this side."""

        def make() -> Plan:
            if self.tuner is not None:
                return self.tuner(self, op, width, edge_values)
            return choose_plan(self.problem(op, width, edge_values))

        return self.remember((op, width, edge_values), make)

    def use_plan(self, op: str, width: int, edge_values: bool, plan: Plan) -> None:
        """Makes a plan the one of a product, in place of what was used before."""
        self._memo[op, width, edge_values] = plan
        for key in [key for key in self._memo if key[:2] == (f"{op} call", width)]:
            self._memo.pop(key, None)
        self.checked = {}

    def scratch(self) -> Side:
        """The same side; what is made for it goes when it does."""
        return replace(self, tuner=None, checked={}, _memo=dict(self._memo))

    def problem(self, op: str, width: int, edge_values: bool) -> Problem:
        """The counts that the plan is made from."""
        csr, blocked = self.csr, self.blocked
        device = describe_device(csr.device)
        slots: tuple[int, int] = (0, 0)
        stages: tuple[StageCounts, StageCounts] = ((), ())
        if self.panels and not edge_values and device.has_panel_kernel(self.precision):
            slots = (self.panel_slots(16), self.panel_slots(32) if op == "spmm" else 0)
            stages = (self.panel_stages(16), self.panel_stages(32) if op == "spmm" else ())
        return Problem(
            op, device, self.precision, csr.rows, csr.cols, csr.nnz, width,
            blocked.spec.name if blocked else "", blocked.slots if blocked else 0, edge_values,
            self.values is not None, slots, stages,
        )  # fmt: skip
