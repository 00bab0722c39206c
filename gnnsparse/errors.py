"""Checks of arguments and of free memory. Each error names the argument, what it got and what is accepted."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

#: Bytes below which no limit of memory is looked up, so that small calls stay fast.
_SMALL = 2**26
_LARGEST = 2**63 - 1
_LARGEST_FLOAT = torch.finfo(torch.float32).max


def bad_value(name: str, problem: str) -> NoReturn:
    """Raise a ValueError about the argument `name`."""
    raise ValueError(f"{name}: {problem}")


def bad_type(name: str, got: Any, accepted: str) -> NoReturn:
    """Raise a TypeError about the argument `name`."""
    raise TypeError(f"{name}: got {_kind_of(got)}; accepted: {accepted}")


def _kind_of(got: Any) -> str:
    if not isinstance(got, torch.Tensor):
        return type(got).__name__
    if got.is_nested:
        return f"a nested tensor of dtype {got.dtype}"
    layout = "" if got.layout == torch.strided else f" and layout {got.layout}"
    return f"a tensor of dtype {got.dtype}{layout}"


def shown(number: Any) -> str:
    """Return a number as text for a message, short even where it has thousands of digits."""
    if isinstance(number, int) and abs(number) >= 10**30:
        return f"{'-' if number < 0 else ''}about 10^{round(math.log10(2) * abs(number).bit_length())}"
    return str(number)


def check_integer(
    name: str, value: Any, least: int = 1, accepted: str = "a positive integer", most: int = _LARGEST
) -> int:
    """Return `value` if it is an integer from `least` to `most`, else raise."""
    if isinstance(value, bool) or not isinstance(value, int):
        bad_type(name, value, accepted)
    if not least <= value <= most:
        bound = "" if value < least else f", at most {'2^63 - 1' if most == _LARGEST else most}"
        bad_value(name, f"got {shown(value)}; accepted: {accepted}{bound}")
    return value


def check_share(name: str, value: Any) -> float:
    """Return `value` if it is a number in [0, 1), else raise."""
    accepted = "a number in [0, 1)"
    if not 0 <= check_number(name, value, accepted) < 1:
        bad_value(name, f"got {shown(value)}; accepted: {accepted}")
    return float(value)


def check_number(name: str, value: Any, accepted: str = "a finite number in the range of float32") -> float:
    """Return `value` as a float if it is a finite number in the range of float32, else raise."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        bad_type(name, value, accepted)
    # NaN is refused too, and integers that no float can hold can be compared.
    if not -_LARGEST_FLOAT <= value <= _LARGEST_FLOAT:
        bad_value(name, f"got {shown(value)}; accepted: {accepted}")
    return float(value)


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`, else raise."""
    if not isinstance(value, str):
        bad_type(name, value, "one of " + ", ".join(choices))
    if value not in choices:
        bad_value(name, f"got {value!r}; accepted: {', '.join(choices)}")
    return value


def check_flag(name: str, value: Any) -> bool:
    """Return `value` if it is a bool, else raise."""
    if not isinstance(value, bool):
        bad_type(name, value, "True or False")
    return value


def path_of(name: str, value: Any, accepted: str) -> Path:
    """Return the path that `value` is, else raise TypeError."""
    if not isinstance(value, (str, os.PathLike)):
        bad_type(name, value, accepted)
    return Path(os.fsdecode(value))


def check_array(name: str, value: Any, accepted: str) -> np.ndarray[Any, Any]:
    """Return a list, tuple or array as a contiguous array of a dtype that torch has too, else raise.

    It has the byte order of this machine, and memory that can be written: a copy if the given one lacks them.
    """
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError, OverflowError, NotImplementedError):
        # Rows of several lengths, and tensors that NumPy can't read.
        raise TypeError(
            f"{name}: got a {type(value).__name__} that is no array; accepted: {accepted}"
        ) from None
    try:
        # torch warns of memory that can't be written. `ascontiguousarray` would add a dimension to a number.
        array = np.require(array, array.dtype.newbyteorder("="), ["C", "W"])
        torch.from_numpy(array)
    except TypeError:  # texts, dates and other objects
        raise TypeError(f"{name}: got dtype {array.dtype}; accepted: {accepted}") from None
    return array


def device_of(name: str, value: Any) -> torch.device:
    """Return the device that `value` is or names, with its index: "cuda" is the current GPU. Else raise."""
    accepted = "cpu, cuda or cuda:<number>"
    if not isinstance(value, (str, torch.device)):
        bad_type(name, value, accepted)
    try:
        empty = torch.empty(0, dtype=torch.uint8, device=value)
    except (RuntimeError, AssertionError) as error:  # no such device, or a torch without CUDA
        problem = str(error).splitlines()[0]
        raise ValueError(
            f"{name}: got {str(value)!r}; accepted: {accepted}; torch says: {problem}"
        ) from error
    return check_device(name, empty).device


def check_device(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` if it has memory on the CPU or an NVIDIA GPU, else raise."""
    if tensor.device.type not in ("cpu", "cuda"):
        bad_value(name, f"is on {tensor.device}; accepted: cpu, cuda")
    return tensor


def check_memory(name: str, nbytes: int, what: str) -> None:
    """Raise MemoryError if an allocation on the CPU needs more memory than this process can still get.

    Without it the operating system would end the process. `name` is the argument that the size comes from,
    `what` says in words what needs the `nbytes` bytes.
    """
    if nbytes < _SMALL:
        return
    limit = available_memory()
    if nbytes > limit.free:
        raise MemoryError(
            f"{name}: {what} needs {nbytes / 1e9:.1f} GB, and {limit.name} leaves {limit.free / 1e9:.1f} GB"
        )


def check_tensor(
    name: str,
    value: Any,
    *,
    dtypes: tuple[torch.dtype, ...],
    device: torch.device | None = None,
    shape: tuple[int | None, ...] | None = None,
) -> torch.Tensor:
    """Return a dense tensor of an accepted dtype, device and shape (None: any size), else raise."""
    is_dense = isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_nested
    if not is_dense or value.dtype not in dtypes:
        names = ", ".join(str(d).removeprefix("torch.") for d in dtypes)
        bad_type(name, value, f"a dense tensor of dtype {names}")
    if shape is not None and (
        value.dim() != len(shape)
        or any(want is not None and want != got for want, got in zip(shape, value.shape, strict=True))
    ):
        wanted = ", ".join("any" if s is None else str(s) for s in shape)
        bad_value(name, f"has shape {tuple(value.shape)}; accepted: ({wanted})")
    if device is not None and value.device != device:
        bad_value(name, f"is on {value.device}; accepted: {device}, where the operand is")
    return value


@contextlib.contextmanager
def naming(group: str) -> Iterator[None]:
    """Prefixes errors about an argument `name` with `group.`, the name of the option in a configuration."""
    try:
        yield
    except (ValueError, TypeError) as error:
        dot = "." if re.match(r"\w+: ", str(error)) else ": "
        raise type(error)(f"{group}{dot}{error}") from error


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
    """A limit on the memory of this process: bytes that can still be allocated, and what sets it."""

    free: int
    name: str


def available_memory() -> MemoryLimit:
    """Return the tightest of the limits of the machine, the process and its cgroup; it takes about 0.1 ms."""
    return min((*_machine(), *_process(), *_cgroup()), key=lambda limit: limit.free)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory of the CPU or of a GPU could not be allocated."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT_OF_MEMORY)


def _machine() -> Iterator[MemoryLimit]:
    page = os.sysconf("SC_PAGE_SIZE")
    yield MemoryLimit(os.sysconf("SC_PHYS_PAGES") * page, "this machine")
    kilobytes = _counts(Path("/proc/meminfo"))
    if "MemAvailable" in kilobytes:
        free = kilobytes["MemAvailable"] + kilobytes.get("SwapFree", 0)
        yield MemoryLimit(1024 * free, "this machine")


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
    """Yield the limits of the control group of this process and of those above it, of either version."""
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        base, names = _CGROUPS, ("memory.max", "memory.current")
        if controllers:
            base, names = _CGROUPS / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes")
        parts = [part for part in path.split("/") if part and part != ".."]
        # In a container the path may be that of the host, of which only the root is to be seen.
        for depth in range(len(parts), -1, -1):
            folder = base.joinpath(*parts[:depth])
            limit, used = (_number(folder / name) for name in names)
            if limit is not None and used is not None and limit < _NO_LIMIT:
                held = _counts(folder / "memory.stat")
                # Files that are held in memory are dropped when needed.
                used -= min(used, held.get("active_file", 0) + held.get("inactive_file", 0))
                yield MemoryLimit(max(0, limit - used), "this process's control group (cgroup)")


def _counts(path: Path) -> dict[str, int]:
    """Return the numbers of a file by name, each on a line behind its name."""
    lines = (line.replace(":", " ").split() for line in _text(path).splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
