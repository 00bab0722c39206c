"""Memory of large results on the CPU, kept for the next ones.

A fresh array of tens of megabytes comes from the system page by page, cleared, which takes as long as
the product that fills it (docs/performance.md); so memory of a result that nothing refers to any more
is used again, as torch does on a GPU.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref

import torch

__all__ = ["KEPT_BYTES", "empty_result", "release_memory"]

#: Bytes of unused memory that are kept.
KEPT_BYTES = 256 << 20
#: Smaller results are left to the allocator, which keeps them itself.
_LARGE = 8 << 20
_PAGE = 2 << 20

_free: list[mmap.mmap] = []  # the one given back last at the end


def empty_result(like: torch.Tensor, rows: int, width: int) -> torch.Tensor:
    """An uninitialised matrix [rows, width] of the dtype of `like`, a tensor on the CPU."""
    count = rows * width
    size = count * like.element_size()
    if size < _LARGE or not hasattr(mmap, "MAP_ANONYMOUS"):
        return like.new_empty(rows, width)
    block = _take(-(-size // _PAGE) * _PAGE)
    # The tensor refers to the view, so that the view's end is that of all that shares its memory.
    view = memoryview(block)
    weakref.finalize(view, _give_back, block).atexit = False
    result = torch.frombuffer(view, dtype=like.dtype, count=count).view(rows, width)
    if _is_poisoned():
        result.fill_(torch.nan)
    return result


def release_memory() -> None:
    """Gives the memory of earlier results on the CPU, of which up to 256 MiB are kept for the next ones,
    back to the system."""
    with _lock:
        _free.clear()


def _is_poisoned() -> bool:
    """Whether torch fills new memory, which is to show what nobody writes."""
    fills: bool = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    return torch.are_deterministic_algorithms_enabled() and fills


def _take(size: int) -> mmap.mmap:
    with _lock:
        for at in reversed(range(len(_free))):
            if size <= len(_free[at]) <= size + size // 4:
                return _free.pop(at)
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _give_back(block: mmap.mmap) -> None:
    with _lock:
        _free.append(block)
        while sum(map(len, _free)) > KEPT_BYTES:
            del _free[0]


def _new_lock() -> None:
    global _lock
    _lock = threading.RLock()


# A garbage collection may give a block back while its thread takes one. A lock that another thread
# holds when the process forks would never be free in the child.
_lock = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)
