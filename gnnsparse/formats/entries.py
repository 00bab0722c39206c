"""Entries: the nonzeros of a K tile, each with its place (native/include/gnnsparse/packed_entries.h)."""

from __future__ import annotations

import torch

from gnnsparse import _native

__all__ = ["empty_entries", "entry_parts"]

#: Of values of 32 bits: a group of entries is its values and, behind them, its places of 16 bits.
_GROUP = _native.ENTRY_LAYOUTS["word_entries"]["group"]


def entry_parts(stored: torch.Tensor, value_bytes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Reads entries.

    Args:
        stored: the array `values` of the format, in the storage dtype.
        value_bytes: bytes of a value, 2 or 4.

    Returns:
        The values, in the storage dtype, and the byte of the K tile's operand that each belongs to, int64.
    """
    if value_bytes == 2:
        pairs = stored.reshape(-1, 2)
        values, places = pairs[:, 0], pairs[:, 1]
    else:
        groups = stored.reshape(-1, _GROUP + _GROUP // 2)
        values, places = groups[:, :_GROUP], groups[:, _GROUP:]
    return values.flatten(), places.contiguous().view(torch.int16).flatten().long() & 0xFFFF


def empty_entries(encoding: str, count: int, device: torch.device) -> torch.Tensor:
    """Makes entries that play no part: their value is 0 and their place behind the operand.

    Args:
        encoding: "entries" or "word_entries".
        count: number of entries, a multiple of their group.
        device: where to make them.

    Returns:
        The array of entries as int32, whatever their values are.
    """
    layout = _native.ENTRY_LAYOUTS[encoding]
    if layout["value_bytes"] == 2:
        return torch.full((count,), layout["no_place"] << 16, dtype=torch.int32, device=device)
    groups = torch.zeros(count // _GROUP, _GROUP + _GROUP // 2, dtype=torch.int32, device=device)
    groups[:, _GROUP:] = layout["no_place"] << 16 | layout["no_place"]
    return groups.flatten()
