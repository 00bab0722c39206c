"""Python's only access to GPUs: which devices are GPUs, their properties, streams and native kernels.

All code that uses a GPU calls `path()`. Tests replace the object it returns (`use`): by one that records
what would be launched, or by one that runs the kernels' sources on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from gnnsparse import _native

try:
    from torch._C._dynamo import guards as _guards
except ImportError:  # a torch without them
    _guards = None  # type: ignore[assignment]

#: Column slots in a K tile of the panel kernels, and in one of the window kernels.
PANEL_K_TILE, WINDOW_K_TILE = _native.PANEL_K_TILE, _native.WINDOW_K_TILE
#: Bytes of a row of X that a warp of the panel kernels multiplies at a time (a slice).
SLICE_BYTES = _native.ROW_SLICE_BYTES
#: Bytes that a lane loads with one instruction; rows of dense operands are padded to a multiple of it.
VECTOR_BYTES = _native.VECTOR_BYTES
#: Bytes of the half of that, by which panels copy rows of X that are no whole vectors.
HALF_VECTOR_BYTES = VECTOR_BYTES // 2
#: Bytes that a GPU's memory and caches read and write at a time, and those of a line, which are asked for.
SECTOR_BYTES, LINE_BYTES = 32, 128
#: Rows of the panels of SDDMM and attention, and of attention's tall panels, which four warps share.
SCORE_ROWS, TALL_ROWS = _native.SCORE_PANEL_ROWS, _native.TALL_PANEL_ROWS
#: Columns of X at most where a warp of the csr kernel takes nonzeros side by side.
NARROW_WIDTH = _native.NARROW_WIDTH
#: 32-bit words in a row of the output of the native function gather_floor.
GATHER_FLOOR_WORDS = _native.GATHER_FLOOR_WORDS


def partial_width(width: int) -> int:
    """Return the floats in a row of partial sums of `width` columns, with the kernels' padding."""
    return -(-width // _native.PARTIAL_COLUMNS) * _native.PARTIAL_COLUMNS


def tensor_maker(
    device: torch.device, forms: Sequence[tuple[tuple[int, ...], torch.dtype]]
) -> Callable[[], list[torch.Tensor]]:
    """Return what makes tensors of shapes and dtypes on a device, contiguous, whose numbers are not set."""
    usual = [partial(torch.empty, shape, dtype=dtype, device=device) for shape, dtype in forms]
    # It takes a third of the time, if this torch has it.
    quick: Any = getattr(_guards, f"_empty_strided_{device.type}", None)
    strides = [make(device="meta").stride() for make in usual]
    arguments = [(shape, stride, dtype) for (shape, dtype), stride in zip(forms, strides, strict=True)]
    index = device.index if device.type == "cuda" else None

    def make() -> list[torch.Tensor]:
        # Where algorithms are deterministic, the dispatcher fills new memory.
        is_usual = quick is None or torch._C._get_deterministic_algorithms()
        if is_usual or (index is not None and torch._C._cuda_getDevice() != index):
            return [make() for make in usual]
        return [quick(*of) for of in arguments]

    return make


@dataclass(frozen=True)
class Device:
    """The properties of a device that plans depend on, memory and L2 in bytes; unknown ones are "" and 0."""

    type: str
    capability: tuple[int, int] = (0, 0)
    multiprocessors: int = 1
    memory: int = 0
    name: str = ""
    l2: int = 0


@lru_cache(maxsize=64)
def _cuda_device(device: torch.device) -> Device:
    properties = torch.cuda.get_device_properties(device)
    return Device(
        "cuda",
        (properties.major, properties.minor),
        properties.multi_processor_count,
        properties.total_memory,
        properties.name,
        properties.L2_cache_size,
    )


#: Entered where the GPU is the current one already. It keeps nothing, so that all calls can share it.
_HERE = nullcontext()


class CudaPath:
    """Access to NVIDIA GPUs by torch and the native module, whose functions named cuda_* launch kernels."""

    def __init__(self) -> None:
        self.native: Any = _native

    def takes(self, device: torch.device) -> bool:
        """Return whether operations on tensors of `device` run as GPU kernels."""
        return device.type == "cuda"

    def describe(self, device: torch.device) -> Device:
        """Return the properties of a torch device that plans depend on."""
        return Device(device.type) if device.type != "cuda" else _cuda_device(device)

    def stream(self, device: torch.device) -> int:
        """Return the handle of the current stream on a GPU."""
        return torch._C._cuda_getCurrentRawStream(device.index)  # a Stream object takes ten times as long

    def current(self, device: torch.device) -> AbstractContextManager[None]:
        """Return a context manager inside which a GPU is the current device."""
        # torch.cuda.current_device also checks that CUDA was initialised, and takes several times as long.
        if torch._C._cuda_getDevice() == device.index:
            return _HERE
        return torch.cuda.device(device)

    def queue(self, device: torch.device) -> tuple[Callable[[], int], int, Callable[[], int]]:
        """Return what native code asks in each launch: the current GPU, this GPU, and its current stream."""
        index = device.index
        return torch._C._cuda_getDevice, index, partial(torch._C._cuda_getCurrentRawStream, index)

    def is_capturing(self) -> bool:
        """Return whether a CUDA graph is being captured on the current stream."""
        return torch.cuda.is_current_stream_capturing()

    def finish(self, device: torch.device) -> None:
        """Wait for all work on the current stream of a GPU."""
        torch.cuda.current_stream(device).synchronize()

    def read(self, numbers: torch.Tensor) -> list[int]:
        """Return the integers of a tensor, for which the host waits for the current stream of a GPU."""
        return numbers.tolist()

    def finish_all(self, device: torch.device) -> None:
        """Wait for all work on a GPU, on every stream."""
        torch.cuda.synchronize(device)

    def free_memory(self, device: torch.device) -> int:
        """Return the bytes of a GPU's memory that are free, those included that torch keeps for tensors."""
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept

    def pinned_memory(self, count: int) -> torch.Tensor:
        """Return so many bytes of the host that GPUs can read, uint8 [count]. torch takes a power of two."""
        return torch.empty(count, dtype=torch.uint8, device="cpu", pin_memory=True)

    def record_use(self, tensors: Iterable[torch.Tensor], stream: int) -> None:
        """Make the memory of tensors on a GPU wait, once it is freed, for the work on a stream so far."""
        on_gpu = {id(tensor): tensor for tensor in tensors if tensor.is_cuda}.values()
        if not on_gpu:
            return
        # A finalizer may call this while torch.compile traces, whose mode takes no real tensors. Streams and
        # modes are made once for all tensors: they take longer than the rest.
        with _disable_current_modes():
            device = next(iter(on_gpu)).device
            # torch takes the handle 0 of the default stream for none, and makes another stream.
            used = torch.cuda.ExternalStream(stream, device) if stream else torch.cuda.default_stream(device)
            for tensor in on_gpu:
                tensor.record_stream(used)


_path = CudaPath()


def path() -> CudaPath:
    """Return the access to GPUs in use."""
    return _path


def describe_device(device: torch.device) -> Device:
    """Return the properties of a torch device that plans depend on."""
    return _path.describe(device)


@contextmanager
def use(other: CudaPath) -> Iterator[None]:
    """Replace what `path()` returns in a `with` block, for tests; operands of it must not leave it."""
    global _path
    before, _path = _path, other
    try:
        yield
    finally:
        _path = before
