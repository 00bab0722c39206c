"""The values that a block stores packed: entries, each with its place, and the records of hrpb."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse import _native

#: Of values of 32 bits: a group of entries is its values and, behind them, its places of 16 bits.
_GROUP = _native.ENTRY_LAYOUTS["word_entries"]["group"]


def entry_parts(stored: torch.Tensor, value_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Read entries: the values, and the byte of the K tile's operand that each belongs to, int64."""
    if value_bytes == 2:
        pairs = stored.reshape(-1, 2)
        values, places = pairs[:, 0], pairs[:, 1]
    else:
        groups = stored.reshape(-1, _GROUP + _GROUP // 2)
        values, places = groups[:, :_GROUP], groups[:, _GROUP:]
    return values.flatten(), places.contiguous().view(torch.int16).flatten().long() & 0xFFFF


def empty_entries(encoding: str, count: int, device: torch.device) -> torch.Tensor:
    """Make `count` entries, whole groups, that play no part, as int32: value 0, place behind the operand."""
    layout = _native.ENTRY_LAYOUTS[encoding]
    if layout["value_bytes"] == 2:
        return torch.full((count,), layout["no_place"] << 16, dtype=torch.int32, device=device)
    groups = torch.zeros(count // _GROUP, _GROUP + _GROUP // 2, dtype=torch.int32, device=device)
    groups[:, _GROUP:] = layout["no_place"] << 16 | layout["no_place"]
    return groups.flatten()


#: Column offsets of a record: those of its 4 brick columns, and the number of its bricks.
_COL_PTR = 5
_ALIGNMENT = 16


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


def _ordinals(counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for each of sum(counts) things the group that it is in, and its number there."""
    group = torch.repeat_interleave(counts)
    first = counts.cumsum(0) - counts
    return group, torch.arange(group.numel(), device=counts.device) - first[group]


def _header_words(bricks: torch.Tensor) -> torch.Tensor:
    """Return the 32-bit words in front of the patterns: column offsets, brick rows, filled up to 8 bytes."""
    return (_COL_PTR + 1 + bricks) // 2 * 2


def pack_records(
    bitmap: torch.Tensor, brick_ptr: torch.Tensor, brick_rows: torch.Tensor, value_ptr: torch.Tensor,
    values: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Put what a block of 4 brick columns stores together, in the dtype of `values`.

    The first result has the bytes in front of each record, int64 [blocks + 1].
    """
    device, size = values.device, values.itemsize
    begin, end = brick_ptr[:-1].reshape(-1, _COL_PTR - 1), brick_ptr[_COL_PTR - 1 :: _COL_PTR - 1]
    col_ptr = torch.cat([begin, end[:, None]], dim=1) - begin[:, :1]
    bricks, nnz = col_ptr[:, -1], value_ptr.diff()
    header = _header_words(bricks)
    sizes = (4 * header + 8 * bricks + size * nnz + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
    size_ptr = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    words = torch.zeros(int(size_ptr[-1]) // 4, dtype=torch.int32, device=device)
    start = size_ptr[:-1] // 4
    words[start[:, None] + torch.arange(_COL_PTR, device=device)] = col_ptr.to(torch.int32)
    block, ordinal = _ordinals(bricks)
    words[start[block] + _COL_PTR + ordinal] = brick_rows
    pattern = (start + header)[block] + 2 * ordinal
    words[pattern[:, None] + torch.arange(2, device=device)] = bitmap.view(torch.int32).reshape(-1, 2)
    packed = words.view(values.dtype)
    place = torch.repeat_interleave((4 * (start + header) + 8 * bricks) // size - value_ptr[:-1], nnz)
    packed[place + torch.arange(place.numel(), device=device)] = values
    return size_ptr, packed


def read_records(size_ptr: torch.Tensor, packed: torch.Tensor) -> Bricks:
    """Read the bricks of all records: the inverse of `pack_records`."""
    words, start = packed.view(torch.int32), size_ptr[:-1] // 4
    col_ptr = words[start[:, None] + torch.arange(_COL_PTR, device=packed.device)].long()
    bricks = col_ptr[:, -1]
    block, ordinal = _ordinals(bricks)
    column = (col_ptr[block, 1:-1] <= ordinal[:, None]).sum(1)
    row = words[start[block] + _COL_PTR + ordinal].long()
    first_pattern = start + _header_words(bricks)
    pattern = first_pattern[block] + 2 * ordinal
    maps = words[pattern[:, None] + torch.arange(2, device=packed.device)].contiguous()
    bitmap = maps.view(torch.uint8).reshape(-1, 8)
    bits = (bitmap[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)) & 1
    nnz = torch.zeros_like(bricks).index_add_(0, block, bits.sum((1, 2)))
    of_block, in_block = _ordinals(nnz)
    first_value = (4 * first_pattern + 8 * bricks) // packed.itemsize
    return Bricks(block, column, row, bitmap, packed[first_value[of_block] + in_block])


def paper_bytes(size_ptr: torch.Tensor, packed: torch.Tensor, nnz: int) -> int:
    """Return the bytes of the records by cuTeSpMM, figure 4, which has no alignment."""
    bricks = int(packed.view(torch.int32)[size_ptr[:-1] // 4 + _COL_PTR - 1].long().sum())
    blocks = size_ptr.numel() - 1
    return 4 * _COL_PTR * blocks + (4 + 8) * bricks + packed.itemsize * nnz
