"""Problems: the counts that decide how an operation runs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gnnsparse.cuda_path import Device
from gnnsparse.gpus.model import TileCounts
from gnnsparse.gpus.record import GpuRecord, record_for
from gnnsparse.precision import Precision
from gnnsparse.tiles import PANEL_K_TILE, SLICE_BYTES

__all__ = ["AttentionProblem", "PanelCounts", "Problem"]


@dataclass(frozen=True)
class PanelCounts:
    """A matrix in panels of one height.

    Attributes:
        height: rows of a panel.
        slots: column slots, padded to whole K tiles.
        tiles: pairs (K tiles, panels that have so many), in rising order; empty: all panels have as many.
    """

    height: int
    slots: int
    tiles: TileCounts = ()


@dataclass(frozen=True)
class Problem:
    """The counts that decide how a product runs.

    Attributes:
        op: "spmm" or "sddmm"; of an AttentionProblem "attention" or "attention_grad".
        device: where it runs.
        precision: of the product.
        rows, cols, nnz: of A.
        width: columns of X, or the feature dimension of SDDMM and of attention's q and k.
        format: name of A's blocked format, "" if it has none.
        slots: column slots of that format.
        edge_values: whether values come with the call, in row order.
        weighted: whether the matrix stores a value for each nonzero.
        panels: counts of the matrix in panels, for each height that was counted.
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

    @cached_property
    def record(self) -> GpuRecord:
        """Rates and costs of the GPU, or of the one it resembles most."""
        return record_for(self.device)

    @property
    def arithmetic(self) -> str:
        """What records call the arithmetic: "half" for 16-bit operands, "tf32" or "fp32"."""
        return self.precision.value if self.precision.storage.itemsize == 4 else "half"

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of X."""
        return self.width * self.precision.storage.itemsize

    @property
    def slices(self) -> int:
        """Slices of 128 bytes of a row of X."""
        return -(-self.row_bytes // SLICE_BYTES)

    @property
    def slice_is_resident(self) -> bool:
        """Whether 128 bytes of every row of X stay in L2."""
        return self.cols * SLICE_BYTES <= self.record.memory.resident_bytes

    @property
    def stores_values(self) -> bool:
        """Whether panels hold a value for each nonzero."""
        return self.weighted and self.op == "spmm"

    def panel(self, height: int) -> PanelCounts | None:
        """The counts of panels of a height, None where they were not made."""
        return next((counts for counts in self.panels if counts.height == height), None)

    @property
    def longest_row(self) -> int:
        """Nonzeros that no row exceeds: a panel has at least as many columns as each of its rows."""
        counts = self.panel(16)
        return PANEL_K_TILE * max(counts.tiles)[0] if counts is not None and counts.tiles else self.cols


@dataclass(frozen=True)
class AttentionProblem(Problem):
    """The counts that decide how attention runs.

    Attributes:
        value_width: features of v.
        heads: of all batches together.
        has_score_terms: whether a bias, dropout or a causal mask takes part.
        panels_allowed: whether the operand may be converted to panels: not where another format was asked
            for.
        transpose: counts of the transpose in panels; for op "attention_grad".
    """

    value_width: int = 0
    heads: int = 1
    has_score_terms: bool = False
    panels_allowed: bool = True
    transpose: tuple[PanelCounts, ...] = ()
