"""The values that a block stores packed: entries, each with its place, and the records of hrpb."""

from __future__ import annotations

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
COL_PTR = 5
_ALIGNMENT = 16


def ordinals(counts: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return for each of sum(counts) things the group that it is in, and its number there."""
    group = torch.repeat_interleave(counts)
    first = counts.cumsum(0) - counts
    return group, torch.arange(group.numel(), device=counts.device) - first[group]


def header_words(bricks: torch.Tensor) -> torch.Tensor:
    """Return the 32-bit words in front of the patterns: column offsets, brick rows, filled up to 8 bytes."""
    return (COL_PTR + 1 + bricks) // 2 * 2


def pack_records(
    bitmap: torch.Tensor, brick_ptr: torch.Tensor, brick_rows: torch.Tensor, value_ptr: torch.Tensor,
    values: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Put what each block of 4 brick columns stores together; also the bytes before each, [blocks + 1]."""
    device, size = values.device, values.itemsize
    begin, end = brick_ptr[:-1].reshape(-1, COL_PTR - 1), brick_ptr[COL_PTR - 1 :: COL_PTR - 1]
    col_ptr = torch.cat([begin, end[:, None]], dim=1) - begin[:, :1]
    bricks, nnz = col_ptr[:, -1], value_ptr.diff()
    header = header_words(bricks)
    sizes = (4 * header + 8 * bricks + size * nnz + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
    size_ptr = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
    words = torch.zeros(int(size_ptr[-1]) // 4, dtype=torch.int32, device=device)
    start = size_ptr[:-1] // 4
    words[start[:, None] + torch.arange(COL_PTR, device=device)] = col_ptr.to(torch.int32)
    block, ordinal = ordinals(bricks)
    words[start[block] + COL_PTR + ordinal] = brick_rows
    pattern = (start + header)[block] + 2 * ordinal
    words[pattern[:, None] + torch.arange(2, device=device)] = bitmap.view(torch.int32).reshape(-1, 2)
    packed = words.view(values.dtype)
    place = torch.repeat_interleave((4 * (start + header) + 8 * bricks) // size - value_ptr[:-1], nnz)
    packed[place + torch.arange(place.numel(), device=device)] = values
    return size_ptr, packed


def paper_bytes(size_ptr: torch.Tensor, packed: torch.Tensor, nnz: int) -> int:
    """Return the bytes of the records by cuTeSpMM, figure 4, which has no alignment."""
    bricks = int(packed.view(torch.int32)[size_ptr[:-1] // 4 + COL_PTR - 1].long().sum())
    blocks = size_ptr.numel() - 1
    return 4 * COL_PTR * blocks + (4 + 8) * bricks + packed.itemsize * nnz
