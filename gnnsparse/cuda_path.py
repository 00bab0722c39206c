"""The one way from Python to a GPU: which devices take it, what they are, their streams and their kernels.

Everything that runs on a GPU asks `path()`. Tests put another object in its place (`use`): one that
records what would be launched, or one that runs the kernels' sources on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from gnnsparse import _native

__all__ = ["CudaPath", "Device", "describe_device", "path", "use"]


@dataclass(frozen=True)
class Device:
    """What a plan needs to know about a device.

    Attributes:
        type: "cpu" or "cuda".
        capability: compute capability (major, minor) of a GPU.
        multiprocessors: how many a GPU has.
        memory: bytes of a GPU's memory.
        name: of the GPU, as the driver gives it; "" where it plays no part.
        l2: bytes of a GPU's L2 cache; 0: unknown.
    """

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


class CudaPath:
    """How operations reach NVIDIA GPUs.

    Attributes:
        native: the module whose functions named cuda_* launch kernels.
    """

    def __init__(self) -> None:
        self.native: Any = _native

    def takes(self, device: torch.device) -> bool:
        """Whether tensors on `device` are worked on by a GPU's kernels."""
        return device.type == "cuda"

    def describe(self, device: torch.device) -> Device:
        """The properties of a torch device that plans depend on."""
        return Device(device.type) if device.type != "cuda" else _cuda_device(device)

    def stream(self, device: torch.device) -> int:
        """The handle of the caller's current stream on a GPU."""
        return torch._C._cuda_getCurrentRawStream(device.index)  # a Stream object takes ten times as long

    def current(self, device: torch.device) -> AbstractContextManager[None]:
        """Makes a GPU the current one."""
        if torch.cuda.current_device() == device.index:
            return nullcontext()
        return torch.cuda.device(device)

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being captured on the current stream."""
        return torch.cuda.is_current_stream_capturing()

    def finish(self, device: torch.device) -> None:
        """Waits for what the current stream of a GPU was given."""
        torch.cuda.current_stream(device).synchronize()


_path = CudaPath()


def path() -> CudaPath:
    """The way in use."""
    return _path


def describe_device(device: torch.device) -> Device:
    """The properties of a torch device that plans depend on."""
    return _path.describe(device)


@contextmanager
def use(other: CudaPath) -> Iterator[None]:
    """Puts another object in the place of the way to a GPU, for tests.

    Operands and plans that were made before must not be used inside, nor those made inside after.
    """
    global _path
    before, _path = _path, other
    try:
        yield
    finally:
        _path = before
