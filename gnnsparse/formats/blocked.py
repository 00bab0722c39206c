"""BlockedMatrix: the arrays of a matrix in the blocked format, and what must hold of them.

Arrays that come from a file are checked before native code reads memory by them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_value, naming
from gnnsparse.formats.csr import Csr, check_ascending, check_host_array, check_offsets, check_range
from gnnsparse.formats.packing import entry_parts
from gnnsparse.formats.spec import FormatSpec
from gnnsparse.runtime.memo import cached_property


@dataclass(frozen=True, eq=False)
class BlockedMatrix:
    """A sparse matrix in the blocked format. An array that the format does not have is None.

    Attributes:
        spec: the parameters.
        rows, cols, nnz: size of the matrix.
        panel_rows: int32 [panels], first row of each panel p; None: p * spec.panel.
        panel_ptr: int64 [panels + 1], first column slot of each panel.
        columns: int32 [slots], the column of each column slot; a padded slot repeats the last column of its
            panel, or is -1 in lane order.
        bitmap: uint8 [bricks * window * brick / 8], the bits of each brick row by row, or in lane order.
        brick_ptr: int64 [slots / brick + 1], first stored brick of each brick column.
        brick_rows: int32 [bricks], the window of its panel that a brick is in.
        value_ptr: int64 [slots / block + 1], first packed value, or first entry, of each block.
        values: dense, packed or entries, in the storage dtype of the precision. Zeros of the matrix are -0.0
            in dense formats, whose other elements are +0.0. An entry is a value of 16 or 32 bits and the
            16-bit byte offset of the value in its block's operand (native packed_entries.h).
        size_ptr: int64 [blocks + 1], the bytes in front of each block's record.
        packed_blocks: the records of all blocks, in the storage dtype; they take the place of bitmap,
            brick_ptr, brick_rows, value_ptr and values (native packed_record.h).
        zero_ptr, zero_cols: int64 [rows + 1] and int32: columns of the stored zeros of each row.
        residual_rows: int32 [residual rows], the rows kept out of the windows.
        residual_cols, residual_values: int32 and storage dtype [residual rows * width]: columns and values
            of these rows. Every row has room for the nonzeros of the longest one, so that no offsets are
            needed; the places behind a row's last nonzero are -1 and 0.
    """

    spec: FormatSpec
    rows: int
    cols: int
    nnz: int
    panel_ptr: torch.Tensor
    columns: torch.Tensor
    panel_rows: torch.Tensor | None = None
    bitmap: torch.Tensor | None = None
    brick_ptr: torch.Tensor | None = None
    brick_rows: torch.Tensor | None = None
    value_ptr: torch.Tensor | None = None
    values: torch.Tensor | None = None
    size_ptr: torch.Tensor | None = None
    packed_blocks: torch.Tensor | None = None
    zero_ptr: torch.Tensor | None = None
    zero_cols: torch.Tensor | None = None
    residual_rows: torch.Tensor | None = None
    residual_cols: torch.Tensor | None = None
    residual_values: torch.Tensor | None = None

    @property
    def panels(self) -> int:
        """Number of panels."""
        return self.panel_ptr.numel() - 1

    @property
    def slots(self) -> int:
        """Number of column slots of all panels, padding included."""
        return self.columns.numel()

    @cached_property
    def first_slots(self) -> torch.Tensor:
        """Whether a column slot is the first one of its panel with its column, bool [slots].

        A padded slot repeats the column before it.
        """
        first = torch.ones_like(self.columns, dtype=torch.bool)
        first[1:] = self.columns[1:] != self.columns[:-1]
        starts = self.panel_ptr[:-1]
        first[starts[starts < self.slots]] = True
        return first

    @property
    def vectors(self) -> int:
        """Number of column slots without padding: nonzero vectors, of as many rows as a panel has."""
        return int((self.first_slots & (self.columns >= 0)).sum())

    @cached_property
    def arrays(self) -> dict[str, torch.Tensor]:
        """The arrays that this format has, by name."""
        found = {name: getattr(self, name) for name in ARRAYS}
        return {name: array for name, array in found.items() if array is not None}

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        return sum(array.nbytes for array in self.arrays.values())

    @cached_property
    def residual(self) -> Csr | None:
        """The rows kept out of the windows, or None; its row i is row residual_rows[i] of the matrix."""
        if self.residual_rows is None or self.residual_cols is None:
            return None
        real = self.residual_cols >= 0
        rows = self.residual_rows.numel()
        lengths = real.reshape(rows, real.numel() // max(rows, 1)).sum(1)
        return Csr(torch.nn.functional.pad(lengths.cumsum(0), (1, 0)), self.residual_cols[real], self.cols)

    @cached_property
    def residual_csr_values(self) -> torch.Tensor | None:
        """The values of `residual`, or None."""
        if self.residual_cols is None or self.residual_values is None:
            return None
        return self.residual_values[self.residual_cols >= 0]

    def to(self, device: torch.device) -> BlockedMatrix:
        """Return the matrix on `device`."""
        moved = {name: array.to(device) for name, array in self.arrays.items()}
        return BlockedMatrix(self.spec, self.rows, self.cols, self.nnz, **moved)

    def view(self, slot_scale: torch.Tensor | None = None) -> _native.Blocked:
        """Return the handle of the matrix for native functions.

        `slot_scale` has the column weights of a bitmap without values, [slots] in the storage dtype; None:
        none.
        """
        spec = self.spec
        view = _native.Blocked(
            spec.window, spec.panel, spec.block, spec.brick, spec.lane_order,
            _native.ENCODING_CODES[spec.encoding], self.rows, self.cols, self.nnz,
        )  # fmt: skip
        view.attach(
            self.panel_rows, self.panel_ptr, self.columns, self.bitmap, self.brick_ptr, self.brick_rows,
            self.value_ptr, self.values, slot_scale,
        )  # fmt: skip
        if self.zero_ptr is not None and self.zero_cols is not None:
            view.attach_zero_index(self.zero_ptr, self.zero_cols)
        if self.size_ptr is not None and self.packed_blocks is not None:
            view.attach_records(self.size_ptr, self.packed_blocks)
        if self.residual_rows is not None and self.residual_cols is not None:
            view.attach_residual(self.residual_rows, self.residual_cols, self.residual_values)
        return view


#: Checks the content of an array: (name in errors, array, matrix, the matrix in CSR form). The array has its
#: dtype and length then, and arrays that stand before it in ARRAYS have been checked.
Content = Callable[[str, torch.Tensor, "BlockedMatrix", Csr], None]


@dataclass(frozen=True)
class ArrayRule:
    """What holds for an array of the blocked format.

    Attributes:
        dtype: its dtype; None: the storage dtype of the precision.
        present: returns whether a format has the array.
        count: returns its length in a matrix; None: any length, which `check` looks at.
        check: raises ValueError if the content can't be that of the matrix. None: any content is harmless;
            that it is right is known by the checksum alone.
    """

    dtype: torch.dtype | None
    present: Callable[[FormatSpec], bool]
    count: Callable[[BlockedMatrix], int] | None
    check: Content | None


def _panels(matrix: BlockedMatrix) -> int:
    return -(-matrix.rows // matrix.spec.panel) if matrix.panel_rows is None else matrix.panel_rows.numel()


def _bricks(matrix: BlockedMatrix) -> int:
    if matrix.brick_rows is not None:
        return matrix.brick_rows.numel()
    return matrix.slots // matrix.spec.brick * (matrix.spec.panel // matrix.spec.window)


def _lists_bricks(spec: FormatSpec) -> bool:
    return spec.active_bricks and spec.encoding != "dense" and not spec.records


def _last(offsets: torch.Tensor | None) -> int:
    return 0 if offsets is None or offsets.numel() == 0 else int(offsets[-1])


def _value_count(matrix: BlockedMatrix) -> int:
    if matrix.spec.encoding == "dense":
        return matrix.slots * matrix.spec.window
    count, layout = _last(matrix.value_ptr), matrix.spec.entry_layout
    return count if layout is None else count * layout["bytes"] // layout["value_bytes"]


def _check_panel_ptr(name: str, array: torch.Tensor, matrix: BlockedMatrix, csr: Csr) -> None:
    check_offsets(name, array, matrix.slots)
    if bool((array % matrix.spec.pad).any()):
        bad_value(name, f"has panels that are not padded to a multiple of {matrix.spec.pad} column slots")


def _check_structure(name: str, array: torch.Tensor, matrix: BlockedMatrix, csr: Csr) -> None:
    with naming(name.rpartition(".")[0]):  # the errors of the handle name an array alone
        at = _native.first_unlike(csr.view, replace(matrix, values=None).view(), torch.get_num_threads())
    if at >= 0:
        bad_value(name, f"panel {at} does not have the structure of its rows")


def _check_columns(name: str, array: torch.Tensor, matrix: BlockedMatrix, csr: Csr) -> None:
    if matrix.spec.lane_order:  # padded slots are -1
        check_range(name, (array + 1).clamp(min=-1), csr.cols + 1)
    else:
        check_range(name, array, csr.cols)
    if matrix.spec.encoding != "bitmap":
        _check_structure(name, array, matrix, csr)


def _check_value_ptr(name: str, array: torch.Tensor, matrix: BlockedMatrix, csr: Csr) -> None:
    check_offsets(name, array, _last(array))
    layout = matrix.spec.entry_layout
    if layout is not None and bool((array % layout["group"]).any()):
        bad_value(name, f"has lists that are not padded to a multiple of {layout['group']}")


def _check_values(name: str, array: torch.Tensor, matrix: BlockedMatrix, csr: Csr) -> None:
    layout = matrix.spec.entry_layout
    if layout is None:
        return
    size, end = layout["value_bytes"], layout["no_place"]
    if array.dtype.itemsize != size:
        bad_value(name, f"are {array.dtype}; accepted in entries: values of {8 * size} bits")
    byte = entry_parts(array, size)[1]
    real = byte != end
    if int(real.sum()) != csr.nnz or bool((real & ((byte > end) | (byte % size > 0))).any()):
        bad_value(name, f"are not {csr.nnz} entries with a place in their block each")


def _check_residual_cols(name: str, array: torch.Tensor, matrix: BlockedMatrix, csr: Csr) -> None:
    """Compare the rows kept out of the windows with those of the matrix."""
    kept_out, starts = matrix.residual_rows, matrix.panel_rows
    if kept_out is None or starts is None:
        return  # one of them is missing, which its own rule says
    rows, starts = kept_out.long(), starts.long()
    # How often a row is in a window, or kept out.
    times = torch.zeros(csr.rows + 1, dtype=torch.int64, device="cpu")
    times.index_add_(0, starts, torch.ones_like(starts))
    times.index_add_(0, (starts + matrix.spec.panel).clamp(max=csr.rows), torch.full_like(starts, -1))
    times = times.cumsum(0)[:-1]
    times[rows] += 1
    wrong = "are not those of the rows that are in no window"
    if bool((times > 1).any()) or bool(((times == 0) & (csr.degrees > 0)).any()):
        bad_value(name, wrong)
    lengths = csr.degrees[rows]
    width = int(lengths.max()) if rows.numel() else 0
    if array.numel() != rows.numel() * width:
        bad_value(name, f"has {array.numel()} places; accepted: {width} for each of {rows.numel()} rows")
    inside = (torch.arange(width, device="cpu") < lengths[:, None]).flatten()
    expected = torch.full_like(array, -1).masked_scatter(inside, csr.select_rows(rows)[0].indices)
    if not torch.equal(array, expected):
        bad_value(name, wrong)


def _nbytes(array: torch.Tensor | None) -> int:
    return 0 if array is None else array.nbytes


#: The arrays in the order in which they are checked.
ARRAYS: dict[str, ArrayRule] = {
    "panel_rows": ArrayRule(
        torch.int32, lambda s: s.split_short_rows, None,
        lambda name, array, m, csr: check_ascending(name, array, csr.rows, step=m.spec.window),
    ),
    "panel_ptr": ArrayRule(torch.int64, lambda s: True, lambda m: _panels(m) + 1, _check_panel_ptr),
    "columns": ArrayRule(torch.int32, lambda s: True, None, _check_columns),
    "brick_rows": ArrayRule(
        torch.int32, _lists_bricks, None,
        lambda name, array, m, csr: check_range(name, array, m.spec.panel // m.spec.window),
    ),
    "brick_ptr": ArrayRule(
        torch.int64, _lists_bricks, lambda m: m.slots // m.spec.brick + 1,
        lambda name, array, m, csr: check_offsets(name, array, _bricks(m)),
    ),
    "value_ptr": ArrayRule(
        torch.int64, lambda s: (s.packed and not s.records) or s.entry_layout is not None,
        lambda m: m.slots // m.spec.block + 1, _check_value_ptr,
    ),
    "bitmap": ArrayRule(
        torch.uint8, lambda s: s.encoding == "bitmap" and not s.records,
        lambda m: _bricks(m) * m.spec.window * m.spec.brick // 8, _check_structure,
    ),
    "values": ArrayRule(None, lambda s: s.stores_values and not s.records, _value_count, _check_values),
    "size_ptr": ArrayRule(
        torch.int64, lambda s: s.records, lambda m: m.slots // m.spec.block + 1,
        lambda name, array, m, csr: check_offsets(name, array, _nbytes(m.packed_blocks)),
    ),
    "packed_blocks": ArrayRule(None, lambda s: s.records, None, _check_structure),
    "zero_ptr": ArrayRule(
        torch.int64, lambda s: s.zero_index, lambda m: m.rows + 1,
        lambda name, array, m, csr: check_offsets(name, array, _nbytes(m.zero_cols) // 4),
    ),
    "zero_cols": ArrayRule(
        torch.int32, lambda s: s.zero_index, None,
        lambda name, array, m, csr: check_range(name, array, csr.cols),
    ),
    "residual_rows": ArrayRule(
        torch.int32, lambda s: s.split_short_rows, None,
        lambda name, array, m, csr: check_ascending(name, array, csr.rows),
    ),
    "residual_cols": ArrayRule(torch.int32, lambda s: s.split_short_rows, None, _check_residual_cols),
    "residual_values": ArrayRule(
        None, lambda s: s.split_short_rows and s.stores_values, lambda m: _nbytes(m.residual_cols) // 4, None
    ),
}  # fmt: skip


def check_blocked(name: str, matrix: BlockedMatrix, csr: Csr, storage: torch.dtype) -> None:
    """Raise ValueError unless arrays of a blocked matrix, on the CPU, can be those of a valid CSR matrix.

    Native code can then run on them without reading or writing elsewhere. Columns and bits are compared with
    the nonzeros one by one. Stored values, of dtype `storage`, are compared with nothing, nor is the list of
    stored zeros.
    """
    for part, rule in ARRAYS.items():
        array, where = getattr(matrix, part), f"{name}.{part}"
        if (array is not None) != rule.present(matrix.spec):
            problem = "is missing" if array is None else "is no array of the format"
            bad_value(where, f"{problem}, {matrix.spec.name}")
        if array is None:
            continue
        count = None if rule.count is None else rule.count(matrix)
        check_host_array(where, array, (rule.dtype or storage,), count)
        if rule.check is not None:
            rule.check(where, array, matrix, csr)
