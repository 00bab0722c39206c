"""Problems: the counts that plans are chosen by."""

from __future__ import annotations

from dataclasses import dataclass, field

from gnnsparse.plan.gpu_records.model import TileCounts, pass_us
from gnnsparse.plan.gpu_records.record import GpuRecord, record_for
from gnnsparse.precision import Precision
from gnnsparse.runtime.constants import PANEL_K_TILE, SLICE_BYTES
from gnnsparse.runtime.device import Device
from gnnsparse.runtime.locks import cached_property

__all__ = ["NEAR", "SHORT_ROW", "AttentionProblem", "PanelCounts", "Problem"]

#: The distance from the diagonal up to which columns count as near: that many rows of X fit L1.
NEAR = 512
#: Bytes of a row of X at most for which rows of A are faster by themselves than in groups, and of a row of
#: results at most that leaves element by element if it is no whole vectors (notes/log.md).
SHORT_ROW = 32
#: Passes over the dense operands that `Problem.odd_rows_us` stands for: fitted to an H100's times of twelve
#: widths on three graphs (notes/log.md).
_ODD_ROW_PASSES = 2.0


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
        """Returns how many microseconds the model adds to SpMM if rows are not multiples of `unit` bytes.

        The models of the kernels are fitted to widths whose rows are whole sectors of 32 bytes. At other
        widths a kernel copies X, reads parts of lines and shifts results. Together this takes about as long
        as two passes over the dense operands. Each kernel says which rows it can read and write as they are.
        """
        if self.op != "spmm" or self.quantization or self.is_short or self.row_bytes % unit == 0:
            return 0.0
        return _ODD_ROW_PASSES * float(pass_us(self.record.memory, self.pass_bytes))

    def panel(self, height: int) -> PanelCounts | None:
        """Returns the counts of panels of a height; None if that height was not counted."""
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
    """

    value_width: int = 0
    heads: int = 1
    has_score_terms: bool = False
    panels_allowed: bool = True
    transpose: tuple[PanelCounts, ...] = ()
