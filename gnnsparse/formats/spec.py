"""The parameters of the blocked format, which notes/format.md describes with drawings."""

from __future__ import annotations

from dataclasses import dataclass

from gnnsparse import _native
from gnnsparse.errors import bad_type, bad_value, check_flag, check_integer

#: How the nonzeros of a block can be stored.
ENCODINGS = tuple(_native.ENCODING_CODES)
#: The most rows or columns of a panel, a block or a brick. Products of two of them fit into 32 bits.
_LARGEST = 2**15


@dataclass(frozen=True)
class FormatSpec:
    """Parameters of the blocked format.

    Attributes:
        name: name of the preset.
        window: rows of a brick.
        panel: rows that share a list of distinct columns, a multiple of `window`.
        block: columns of a block.
        brick: columns of a brick, a divisor of `block`.
        encoding: "dense" (the values of all elements of a block), "bitmap" (one bit for each element) or
            "entries" and "word_entries" (values of the nonzeros alone, each with its place in its block; of
            16 and of 32 bits).
        packed: bitmap only: whether the format stores the values of the nonzeros, in the order of the
            bricks. False: values, if any, stay in row order outside the format.
        pad: the number of column slots of a panel is rounded up to a multiple of this; 1: no padding.
        active_bricks: bitmap only: whether bricks without a nonzero are left out.
        zero_index: dense only: whether the columns of the stored zeros of each row are listed.
        split_short_rows: whether rows that would make a window sparse are kept in a small CSR matrix.
        records: whether each block's brick offsets, brick rows, bits and values lie together in one record
            (native/include/gnnsparse/packed_record.h) in place of four arrays; packed formats whose active
            bricks have 16 rows x 4 columns, in blocks of 16 columns.
        threshold: the most nonzeros of a row that is kept out of the windows; None: chosen by the size and
            the density of the matrix (`gnnsparse.formats.convert.short_row_limits`).
        new_columns: how few columns such a row must add to its window: fewer than these; None: chosen by
            the threshold.
        lane_order: whether the elements of a brick of 16 or 32 rows x 32 columns lie in the order of the
            lanes that use them (native/include/gnnsparse/panel_tile.h), and padded column slots are -1.

    Raises:
        TypeError: an attribute is of another type.
        ValueError: an attribute is out of range, or does not go with another one.
    """

    name: str
    window: int
    panel: int
    block: int
    brick: int
    encoding: str
    packed: bool = False
    pad: int = 1
    active_bricks: bool = False
    zero_index: bool = False
    split_short_rows: bool = False
    records: bool = False
    threshold: int | None = None
    new_columns: int | None = None
    lane_order: bool = False

    def __post_init__(self) -> None:
        # Each attribute by itself first: a file may hold anything, and the others are divided by sizes.
        if not isinstance(self.name, str):
            bad_type("format.name", self.name, "a text")
        for name in ("window", "panel", "block", "brick", "pad"):
            check_integer(f"format.{name}", getattr(self, name), most=_LARGEST)
        for name in ("packed", "active_bricks", "zero_index", "split_short_rows", "records", "lane_order"):
            check_flag(f"format.{name}", getattr(self, name))
        for name in ("threshold", "new_columns"):
            if (count := getattr(self, name)) is not None:
                accepted = "an integer from 0 on, or None"
                check_integer(f"format.{name}", count, least=0, accepted=accepted, most=2**31 - 1)
        if self.panel % self.window or self.block % self.brick:
            bad_value("format", "panel must be a multiple of window, block a multiple of brick")
        if self.encoding not in ENCODINGS:
            bad_value("format", f"encoding is {self.encoding!r}; accepted: {', '.join(ENCODINGS)}")
        if self.encoding == "bitmap" and self.pad % self.block:
            bad_value("format", "bitmaps need panels padded to whole blocks")
        if self.encoding == "dense" and self.panel != self.window:
            bad_value("format", "dense values need panel = window")
        if self.entry_layout and not (self.lane_order and self.panel == self.window == 32):
            bad_value("format", "entries need panels of 32 rows in lane order")
        if self.packed and self.window * self.brick != 64:
            bad_value("format", "packed values need bricks of 64 elements")
        if self.encoding == "bitmap" and not (self.packed or self.lane_order or self.panel == self.window):
            bad_value("format", "bits without packed values need panel = window, or lane order")
        if self.active_bricks and not self.packed:
            bad_value("format", "active bricks need packed values")
        if self.zero_index and (self.encoding != "dense" or self.pad % self.block or self.split_short_rows):
            bad_value("format", "a zero index needs dense values in panels of whole blocks, with all rows")
        if self.split_short_rows and not self.stores_values:
            bad_value("format", "rows are kept out of formats that store values")
        if self.records and not (self.packed and self.active_bricks and self._has_record_shape):
            bad_value("format", "records need packed values in active bricks of 16 x 4, 16 columns a block")
        if not self.split_short_rows and (self.threshold is not None or self.new_columns is not None):
            bad_value("format", "a threshold goes with rows that are kept out of the windows")
        if self.split_short_rows and self.panel != self.window:
            bad_value("format", "rows are kept out of windows that are panels")

    @property
    def _has_record_shape(self) -> bool:
        return (self.window, self.brick, self.block) == (16, 4, 16) and self.panel in (16, 32)

    @property
    def item_rows(self) -> int:
        """Rows that one item of a work list takes: those of a window, or of a panel of packed blocks."""
        return self.panel if self.records else self.window

    @property
    def entry_layout(self) -> _native._EntryLayout | None:
        """How the nonzeros are stored if they are entries (native packed_entries.h); None: they are not."""
        return _native.ENTRY_LAYOUTS.get(self.encoding)

    @property
    def stores_values(self) -> bool:
        """Whether the format's own arrays hold the value of each nonzero."""
        return self.encoding != "bitmap" or self.packed
