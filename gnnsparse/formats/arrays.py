"""The arrays of the blocked format: for each its dtype, the formats that have it, its length and its content.

The names are the fields of BlockedMatrix that are arrays. Arrays that come from a file are checked against
these rules before native code reads memory by them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from gnnsparse import _native
from gnnsparse.errors import bad_value, naming
from gnnsparse.formats.entries import entry_parts
from gnnsparse.formats.spec import FormatSpec
from gnnsparse.sparse.checks import check_ascending, check_host_array, check_indices, check_offsets
from gnnsparse.sparse.csr import Csr

if TYPE_CHECKING:
    from gnnsparse.formats.matrix import BlockedMatrix

__all__ = ["ARRAYS", "ArrayRule", "check_blocked"]

#: Checks the content of an array: (name in errors, array, matrix, the matrix in CSR form). Arrays that stand
#: before it in ARRAYS have been checked.
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


def _check_panel_rows(name: str, array: torch.Tensor, matrix: BlockedMatrix, csr: Csr) -> None:
    check_ascending(name, array, csr.rows, step=matrix.spec.window)


def _check_panel_ptr(name: str, array: torch.Tensor, matrix: BlockedMatrix, csr: Csr) -> None:
    check_offsets(name, array, matrix.slots)
    if bool((array % matrix.spec.pad).any()):
        bad_value(name, f"has panels that are not padded to a multiple of {matrix.spec.pad} column slots")


def _check_structure(name: str, matrix: BlockedMatrix, csr: Csr) -> None:
    with naming(name.rpartition(".")[0]):  # the errors of the handle name an array alone
        at = _native.first_unlike(csr.view, replace(matrix, values=None).view(), torch.get_num_threads())
    if at >= 0:
        bad_value(name, f"panel {at} does not have the structure of its rows")


def _check_columns(name: str, array: torch.Tensor, matrix: BlockedMatrix, csr: Csr) -> None:
    if matrix.spec.lane_order:  # padded slots are -1
        check_indices(name, (array + 1).clamp(min=-1), csr.cols + 1)
    else:
        check_indices(name, array, csr.cols)
    if matrix.spec.encoding != "bitmap":
        _check_structure(name, matrix, csr)


def _check_brick_ptr(name: str, array: torch.Tensor, matrix: BlockedMatrix, csr: Csr) -> None:
    check_offsets(name, array, _bricks(matrix))


def _check_brick_rows(name: str, array: torch.Tensor, matrix: BlockedMatrix, csr: Csr) -> None:
    check_indices(name, array, matrix.spec.panel // matrix.spec.window)


def _check_value_ptr(name: str, array: torch.Tensor, matrix: BlockedMatrix, csr: Csr) -> None:
    check_offsets(name, array, _last(array))
    layout = matrix.spec.entry_layout
    if layout is not None and bool((array % layout["group"]).any()):
        bad_value(name, f"has lists that are not padded to a multiple of {layout['group']}")


def _check_bitmap(name: str, array: torch.Tensor, matrix: BlockedMatrix, csr: Csr) -> None:
    _check_structure(name, matrix, csr)


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


def _check_zero_ptr(name: str, array: torch.Tensor, matrix: BlockedMatrix, csr: Csr) -> None:
    check_offsets(name, array, 0 if matrix.zero_cols is None else matrix.zero_cols.numel())


def _check_zero_cols(name: str, array: torch.Tensor, matrix: BlockedMatrix, csr: Csr) -> None:
    check_indices(name, array, csr.cols)


def _check_residual_rows(name: str, array: torch.Tensor, matrix: BlockedMatrix, csr: Csr) -> None:
    check_ascending(name, array, csr.rows)


def _check_residual_cols(name: str, array: torch.Tensor, matrix: BlockedMatrix, csr: Csr) -> None:
    """Compares the rows kept out of the windows with those of the matrix."""
    kept_out, starts = matrix.residual_rows, matrix.panel_rows
    if kept_out is None or starts is None:
        return  # one of them is missing, which its own rule says
    rows, starts = kept_out.long(), starts.long()
    times = torch.zeros(
        csr.rows + 1, dtype=torch.int64, device="cpu"
    )  # how often a row is in a window, or kept out
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
    place = torch.arange(width, device="cpu").expand(rows.numel(), width)
    inside = place < lengths[:, None]
    expected = torch.full_like(place, -1, dtype=torch.int32)
    expected[inside] = csr.indices[(csr.indptr[:-1][rows][:, None] + place)[inside]]
    if not torch.equal(array, expected.flatten()):
        bad_value(name, wrong)


def _check_size_ptr(name: str, array: torch.Tensor, matrix: BlockedMatrix, csr: Csr) -> None:
    check_offsets(name, array, 0 if matrix.packed_blocks is None else matrix.packed_blocks.nbytes)


#: The arrays in the order in which they are checked.
ARRAYS: dict[str, ArrayRule] = {
    "panel_rows": ArrayRule(torch.int32, lambda s: s.split_short_rows, None, _check_panel_rows),
    "panel_ptr": ArrayRule(torch.int64, lambda s: True, lambda m: _panels(m) + 1, _check_panel_ptr),
    "columns": ArrayRule(torch.int32, lambda s: True, None, _check_columns),
    "brick_rows": ArrayRule(torch.int32, _lists_bricks, None, _check_brick_rows),
    "brick_ptr": ArrayRule(
        torch.int64,
        _lists_bricks,
        lambda m: m.slots // m.spec.brick + 1,
        _check_brick_ptr,
    ),
    "value_ptr": ArrayRule(
        torch.int64,
        lambda s: (s.packed and not s.records) or s.entry_layout is not None,
        lambda m: m.slots // m.spec.block + 1,
        _check_value_ptr,
    ),
    "bitmap": ArrayRule(
        torch.uint8,
        lambda s: s.encoding == "bitmap" and not s.records,
        lambda m: _bricks(m) * m.spec.window * m.spec.brick // 8,
        _check_bitmap,
    ),
    "values": ArrayRule(None, lambda s: s.stores_values and not s.records, _value_count, _check_values),
    "size_ptr": ArrayRule(
        torch.int64, lambda s: s.records, lambda m: m.slots // m.spec.block + 1, _check_size_ptr
    ),
    "packed_blocks": ArrayRule(None, lambda s: s.records, None, _check_bitmap),
    "zero_ptr": ArrayRule(torch.int64, lambda s: s.zero_index, lambda m: m.rows + 1, _check_zero_ptr),
    "zero_cols": ArrayRule(torch.int32, lambda s: s.zero_index, None, _check_zero_cols),
    "residual_rows": ArrayRule(torch.int32, lambda s: s.split_short_rows, None, _check_residual_rows),
    "residual_cols": ArrayRule(torch.int32, lambda s: s.split_short_rows, None, _check_residual_cols),
    "residual_values": ArrayRule(
        None,
        lambda s: s.split_short_rows and s.stores_values,
        lambda m: 0 if m.residual_cols is None else m.residual_cols.numel(),
        None,
    ),
}


def check_blocked(name: str, matrix: BlockedMatrix, csr: Csr, storage: torch.dtype) -> None:
    """Raises ValueError unless the arrays of a blocked matrix can be those of a CSR matrix.

    Native code can then run on them without reading or writing elsewhere. Columns and bits are compared with
    the nonzeros one by one. Stored values are compared with nothing, nor is the list of stored zeros.

    Args:
        name: the name of the matrix in errors.
        matrix: the blocked matrix, on the CPU, made of arrays of any content.
        csr: the matrix in canonical CSR form, checked before.
        storage: the dtype of stored values.
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
