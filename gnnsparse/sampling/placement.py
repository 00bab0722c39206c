"""Where features are kept: the policy by which FeatureStore chooses, and its reasons."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.errors import available_memory
from gnnsparse.runtime.device import path

__all__ = ["PLACEMENTS", "Choice", "Room", "cached_rows", "choose", "room_on", "size"]

#: Values of the argument `placement`.
PLACEMENTS = ("auto", "device", "pinned", "host")

#: Of a GPU's free memory, what features may take, so that a step has room; and the copies of the most used
#: rows, where the others are in pinned memory.
_DEVICE_SHARE, _CACHE_SHARE = 0.5, 0.25
#: Of the host's free memory, what features may take that the system can't move to disk.
_HOST_SHARE = 0.5


@dataclass(frozen=True)
class Room:
    """The memory that is free.

    Attributes:
        device: bytes on the GPU; None: there is none, the device is the CPU.
        host: bytes of the host.
    """

    device: int | None
    host: int


@dataclass(frozen=True)
class Choice:
    """A placement, and why it was chosen."""

    placement: str
    reason: str


def room_on(device: torch.device) -> Room:
    """Returns the memory that is free for features of steps on a device."""
    on_gpu = path().takes(device)
    return Room(path().free_memory(device) if on_gpu else None, available_memory().free)


def size(count: int) -> str:
    """Returns a number of bytes as text."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} bytes"


def choose(rows: int, row_bytes: int, room: Room, *, in_file: bool) -> Choice:
    """Chooses a placement: the fastest one that leaves room for the rest.

    Args:
        rows: number of rows.
        row_bytes: bytes of each as they are stored.
        room: the memory that is free.
        in_file: whether the features are in a file, so that the host's memory does not hold them yet.
    """
    needed = rows * row_bytes
    what = f"{rows} rows of {row_bytes} bytes, {size(needed)},"
    if room.device is None:
        if not in_file:
            return Choice("device", f"{what} are in the memory of the device, the CPU, already")
        fits = needed <= _HOST_SHARE * room.host
        verb, placement = ("are", "device") if fits else ("are not", "host")
        limit = f"{_HOST_SHARE:.0%} of the {size(room.host)} that are free"
        return Choice(placement, f"{what} {verb} at most {limit} in memory; their file can stay on disk")
    limit = f"{_DEVICE_SHARE:.0%} of the {size(room.device)} that are free on the GPU"
    if needed <= _DEVICE_SHARE * room.device:
        return Choice("device", f"{what} are at most {limit}")
    taken = 1 << max(needed - 1, 0).bit_length()  # torch pins a power of two
    of_host = f"{_HOST_SHARE:.0%} of the {size(room.host)} that are free on the host"
    if taken <= _HOST_SHARE * room.host:
        return Choice("pinned", f"{what} are more than {limit}, and at most {of_host} when they are pinned")
    where = "their file is" if in_file else "they are"
    reason = (
        f"{what} are more than {limit}, and more than {of_host} when they are pinned; {where} on the host"
    )
    return Choice("host", reason)


def cached_rows(rows: int, row_bytes: int, share: float, room: Room) -> int:
    """Returns of how many rows the GPU keeps copies: a share of them, if they fit into its free memory.

    Args:
        rows: number of rows.
        row_bytes: bytes of each.
        share: of the rows, at most.
        room: the memory that is free.
    """
    fits = int(_CACHE_SHARE * (room.device or 0)) // max(row_bytes, 1)
    return min(int(share * rows), fits)
