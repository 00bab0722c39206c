"""The memory that this process can still allocate on the CPU, and errors that say that there is none left."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["MemoryLimit", "available_memory", "is_out_of_memory"]

_CGROUPS = Path("/sys/fs/cgroup")
#: Limits above this stand for "none": the kernel writes 2^63 rounded down to pages.
_NO_LIMIT = 2**60
#: What torch, CUDA and its libraries say of memory in errors that are of no type of their own.
_OUT_OF_MEMORY = (
    "DefaultCPUAllocator: can't allocate memory", "[enforce fail at alloc_cpu.cpp", "not enough memory",
    "out of memory", "cudaErrorMemoryAllocation", "STATUS_ALLOC_FAILED", "Cannot allocate memory",
)  # fmt: skip


@dataclass(frozen=True)
class MemoryLimit:
    """A limit on the memory of this process.

    Attributes:
        free: bytes that can still be allocated.
        name: what sets the limit, as in "this machine".
    """

    free: int
    name: str


def available_memory() -> MemoryLimit:
    """Returns the tightest of the limits: the machine's memory, the process's own limits, its cgroup's.

    Files of the operating system are read, which takes about 0.1 ms.
    """
    return min((*_machine(), *_process(), *_cgroup()), key=lambda limit: limit.free)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory of the CPU or of a GPU could not be allocated."""
    import torch

    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def _machine() -> Iterator[MemoryLimit]:
    page = os.sysconf("SC_PAGE_SIZE")
    yield MemoryLimit(os.sysconf("SC_PHYS_PAGES") * page, "this machine")
    kilobytes = {}
    for line in _text(Path("/proc/meminfo")).splitlines():
        name, _, value = line.partition(":")
        kilobytes[name] = value.split()[:1]
    if available := kilobytes.get("MemAvailable"):
        swap = kilobytes.get("SwapFree") or ["0"]
        yield MemoryLimit(1024 * (int(available[0]) + int(swap[0])), "this machine")


def _process() -> Iterator[MemoryLimit]:
    counts = _text(Path("/proc/self/statm")).split()
    page = os.sysconf("SC_PAGE_SIZE")
    kinds = (
        (resource.RLIMIT_AS, 0, "the limit on this process's address space (RLIMIT_AS)"),
        (resource.RLIMIT_DATA, 5, "the limit on this process's data (RLIMIT_DATA)"),
    )
    for kind, column, name in kinds:
        limit = resource.getrlimit(kind)[0]
        if limit != resource.RLIM_INFINITY:
            used = int(counts[column]) * page if len(counts) > column else 0
            yield MemoryLimit(max(0, limit - used), name)


def _cgroup() -> Iterator[MemoryLimit]:
    """Yields the limits of the control group of this process and of those above it, of either version."""
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        base = _CGROUPS / "memory" if controllers else _CGROUPS
        names = (
            ("memory.limit_in_bytes", "memory.usage_in_bytes")
            if controllers
            else ("memory.max", "memory.current")
        )
        parts = [part for part in path.split("/") if part and part != ".."]
        # In a container the path may be that of the host, of which only the root is to be seen.
        for depth in range(len(parts), -1, -1):
            folder = base.joinpath(*parts[:depth])
            limit, used = (_number(folder / name) for name in names)
            if limit is not None and used is not None and limit < _NO_LIMIT:
                used -= min(used, _file_pages(folder))
                yield MemoryLimit(max(0, limit - used), "this process's control group (cgroup)")


def _file_pages(folder: Path) -> int:
    """Returns the bytes of files that a control group holds in memory, which the kernel drops when needed."""
    pages = 0
    for line in _text(folder / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name in ("active_file", "inactive_file") and value.strip().isdecimal():
            pages += int(value)
    return pages


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
