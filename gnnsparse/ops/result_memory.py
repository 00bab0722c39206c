"""A cache of memory for large results on the CPU.

The system hands over the memory of a new array page by page and clears it, which for tens of megabytes takes
as long as the product that fills them (notes/log.md). The memory of a result that nothing refers to
any more is therefore kept and used for later results, as torch's caching allocator does on a GPU.
"""

from __future__ import annotations

import collections
import mmap
import os
import threading
import weakref

import torch

__all__ = ["KEPT_BYTES", "empty_result", "release_memory"]

#: Bytes of unused memory that are kept.
KEPT_BYTES = 256 << 20
#: Results of fewer bytes come from the C allocator, which reuses their memory by itself.
_LARGE = 8 << 20
_PAGE = 2 << 20

#: Unused memory, in the order in which it was given back. `_lock` guards it.
_free: list[mmap.mmap] = []
#: Memory that was given back and is not in `_free` yet.
_returned: collections.deque[mmap.mmap] = collections.deque()


def empty_result(like: torch.Tensor, rows: int, width: int) -> torch.Tensor:
    """Returns an uninitialised matrix [rows, width] of the dtype of `like`, a tensor on the CPU.

    Raises:
        MemoryError: the system does not give the memory.
    """
    count = rows * width
    size = count * like.element_size()
    if size < _LARGE or not hasattr(mmap, "MAP_ANONYMOUS"):
        return like.new_empty(rows, width)
    try:
        block = _take(-(-size // _PAGE) * _PAGE)
    except (OSError, OverflowError):
        raise MemoryError(
            f"the result of {rows} rows and {width} columns needs {size / 1e9:.1f} GB, which the system does "
            "not give"
        ) from None
    # Every tensor that shares the memory refers to the view, so the view is freed after the last of them.
    view = memoryview(block)
    weakref.finalize(view, _give_back, block).atexit = False
    result = torch.frombuffer(view, dtype=like.dtype, count=count).view(rows, width)
    if _is_poisoned():
        result.fill_(torch.nan)
    return result


def release_memory() -> None:
    """Gives the memory that is kept for later results on the CPU, up to 256 MiB, back to the system."""
    with _lock:
        _returned.clear()
        _free.clear()


def _is_poisoned() -> bool:
    """Returns whether torch is set to fill new memory with NaN, which shows elements that nothing writes."""
    fills: bool = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    return torch.are_deterministic_algorithms_enabled() and fills


def _take(size: int) -> mmap.mmap:
    if _lock.acquire(timeout=1):  # a destructor that multiplies may be run by a thread that holds the lock
        try:
            _sort_in()
            for at in reversed(range(len(_free))):
                if size <= len(_free[at]) <= size + size // 4:
                    return _free.pop(at)
        finally:
            _lock.release()
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def _sort_in() -> None:
    """Moves the memory that was given back to the unused one, and drops the oldest of more than is kept."""
    while _returned:
        _free.append(_returned.popleft())
    while sum(map(len, _free)) > KEPT_BYTES:
        del _free[0]


def _give_back(block: mmap.mmap) -> None:
    # A garbage collection may call this anywhere, also in a thread that holds the lock and is looking through
    # `_free`. The holder then finds the block when it is done.
    _returned.append(block)
    while _returned and _lock.acquire(blocking=False):
        try:
            _sort_in()
        finally:
            _lock.release()


def _new_lock() -> None:
    global _lock
    _lock = threading.Lock()


# Made anew in a forked child, where a lock held by another thread of the parent would never be released.
_lock = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)
