"""The nonzeros of a matrix in a blocked format, read back from its arrays: what the formats' layouts mean.

Nothing in the package reads a blocked matrix so. Analyses count what it stores, and tests compare it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.errors import bad_type
from gnnsparse.formats.blocked import BlockedMatrix
from gnnsparse.formats.packing import COL_PTR, entry_parts, header_words, ordinals

__all__ = ["Bricks", "decode", "read_records"]


def decode(matrix: BlockedMatrix) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """Read every nonzero that a matrix stores back from its arrays, on the CPU.

    This is the readable specification of the layout, and slow. In dense formats a zero of the matrix is
    stored as -0.0, and +0.0 stands for an element that is no nonzero.

    Returns:
        Rows and columns, int64, and values in the storage dtype, or None if the format stores none.
    """
    host, spec = matrix.to(torch.device("cpu")), matrix.spec
    decoders = {"dense": _dense_elements, "bitmap": _set_bits}
    read = _records if spec.records else decoders.get(spec.encoding, _entries)
    slot, inside, values = read(host)
    panel = torch.searchsorted(host.panel_ptr, slot, right=True) - 1
    first = panel * spec.panel if host.panel_rows is None else host.panel_rows.long()[panel]
    row, col = first + inside, host.columns.long()[slot]
    if host.residual is not None and host.residual_rows is not None:
        row = torch.cat([row, host.residual_rows.long()[host.residual.row_index()]])
        col = torch.cat([col, host.residual.indices.long()])
        if values is not None and host.residual_csr_values is not None:
            values = torch.cat([values, host.residual_csr_values])
    return row, col, values


# Each of these returns the column slots of the elements, their rows in the panel, and the values.


def _lane_places(matrix: BlockedMatrix) -> torch.Tensor:
    """Return the index of each element (row, column) of a brick in lane order, int64 [window * 32]."""
    height = matrix.spec.window
    row, col = torch.meshgrid(
        torch.arange(height, device="cpu"), torch.arange(32, device="cpu"), indexing="ij"
    )
    lane, group, j = 4 * (row % 8) + col // 8, row // 8, col % 8
    if matrix.spec.encoding == "bitmap":
        return (lane * height + 4 * group + j // 2 + j % 2 * (height // 2)).flatten()
    return ((group * 32 + lane) * 8 + j).flatten()


def _dense_elements(matrix: BlockedMatrix) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if matrix.values is None:
        bad_type("values", None, "a dense format with values")
    spec = matrix.spec
    if spec.lane_order:
        values = matrix.values.reshape(-1, spec.window * 32)[:, _lane_places(matrix)]
        values = values.reshape(-1, spec.window, 32)
        brick, r, c = _bits(values).nonzero(as_tuple=True)
        return brick * 32 + c, r, values[brick, r, c]
    counts = matrix.panel_ptr.diff()
    panel = torch.repeat_interleave(counts)
    position = torch.arange(matrix.slots, device="cpu") - matrix.panel_ptr[panel]
    begin = position // spec.block * spec.block
    width = (counts[panel] - begin).clamp(max=spec.block)
    at = (matrix.panel_ptr[panel] + begin) * spec.window + (position - begin)
    values = matrix.values[at[:, None] + torch.arange(spec.window, device="cpu") * width[:, None]]
    slot, r = _bits(values).nonzero(as_tuple=True)
    return slot, r, values[slot, r]


def _entries(matrix: BlockedMatrix) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    layout = matrix.spec.entry_layout
    if matrix.values is None or matrix.value_ptr is None or layout is None:
        bad_type("values", None, "a format of entries with values")
    size = layout["value_bytes"]
    values, byte = entry_parts(matrix.values, size)
    block = torch.repeat_interleave(matrix.value_ptr.diff())
    real = byte < layout["no_place"]
    values, place, block = values[real], byte[real] // size, block[real]
    # A chunk is what a lane reads for one mma of a tile of 16 rows; there are `size` mmas. Of its
    # registers, those with odd numbers are of the lower eight rows.
    chunk, inside = place // (16 // size), place % (16 // size)
    mma, lane = chunk // 32, chunk % 32
    if size == 2:  # a register has two neighbouring slots
        register, odd = inside // 2, inside % 2
        in_lane = 4 * (mma % 2) + 2 * (register // 2) + odd
    else:
        register, in_lane = inside, 2 * (mma % 4) + inside // 2
    r = 16 * (mma // size) + 8 * (register % 2) + lane // 4
    return 32 * block + 8 * (lane % 4) + in_lane, r, values


def _set_bits(matrix: BlockedMatrix) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    spec, windows = matrix.spec, matrix.spec.panel // matrix.spec.window
    if matrix.bitmap is None:
        bad_type("bitmap", None, "a bitmap format")
    bits = (matrix.bitmap[:, None] >> torch.arange(8, dtype=torch.uint8, device="cpu")) & 1
    if spec.lane_order:
        bits = bits.reshape(-1, spec.window * 32)[:, _lane_places(matrix)]
    # Packed values lie in this order of their nonzeros: brick, row, column.
    brick, r, c = bits.reshape(-1, spec.window, spec.brick).nonzero(as_tuple=True)
    if matrix.brick_ptr is None or matrix.brick_rows is None:
        column, window = brick // windows, brick % windows
    else:
        column = torch.searchsorted(matrix.brick_ptr, brick, right=True) - 1
        window = matrix.brick_rows.long()[brick]
    return column * spec.brick + c, window * spec.window + r, matrix.values if spec.packed else None


def _records(matrix: BlockedMatrix) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if matrix.size_ptr is None or matrix.packed_blocks is None:
        bad_type("packed_blocks", None, "a format of packed blocks")
    spec, bricks = matrix.spec, read_records(matrix.size_ptr, matrix.packed_blocks)
    bits = (bricks.bitmap[:, :, None] >> torch.arange(8, dtype=torch.uint8, device="cpu")) & 1
    brick, r, c = bits.reshape(-1, spec.window, spec.brick).nonzero(as_tuple=True)
    slot = bricks.block[brick] * spec.block + bricks.column[brick] * spec.brick + c
    return slot, bricks.row[brick] * spec.window + r, bricks.values


def _bits(values: torch.Tensor) -> torch.Tensor:
    """Return the bits of floating-point values as integers, by which -0.0 and 0.0 differ."""
    return values.view(torch.int16 if values.itemsize == 2 else torch.int32)


@dataclass(frozen=True, eq=False)
class Bricks:
    """The bricks of all records, in their order: their block, brick column in it and rows, int64 [bricks].

    Row r of a brick is row 16 * row + r of the panel. `bitmap` has its bits row by row, the least significant
    first, uint8 [bricks, 8]; `values` those of the nonzeros, brick after brick and row by row.
    """

    block: torch.Tensor
    column: torch.Tensor
    row: torch.Tensor
    bitmap: torch.Tensor
    values: torch.Tensor


def read_records(size_ptr: torch.Tensor, packed: torch.Tensor) -> Bricks:
    """Read the bricks of all records: the inverse of `pack_records`."""
    words, start = packed.view(torch.int32), size_ptr[:-1] // 4
    col_ptr = words[start[:, None] + torch.arange(COL_PTR, device=packed.device)].long()
    bricks = col_ptr[:, -1]
    block, ordinal = ordinals(bricks)
    column = (col_ptr[block, 1:-1] <= ordinal[:, None]).sum(1)
    row = words[start[block] + COL_PTR + ordinal].long()
    first_pattern = start + header_words(bricks)
    pattern = first_pattern[block] + 2 * ordinal
    maps = words[pattern[:, None] + torch.arange(2, device=packed.device)].contiguous()
    bitmap = maps.view(torch.uint8).reshape(-1, 8)
    bits = (bitmap[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1
    nnz = torch.zeros_like(bricks).index_add_(0, block, bits.sum((1, 2)))
    of_block, in_block = ordinals(nnz)
    first_value = (4 * first_pattern + 8 * bricks) // packed.itemsize
    return Bricks(block, column, row, bitmap, packed[first_value[of_block] + in_block])
