"""Stand-ins for the way to a GPU (gnnsparse.runtime.device): operands on the CPU take the GPU's path."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.runtime.device import CudaPath, Device

#: What plans are made for.
H200 = Device("cuda", (9, 0), 132, 140 * 2**30, "NVIDIA H200", 60 * 2**20)


class StandInPath(CudaPath):
    """Takes CPU tensors for those of an H200."""

    def __init__(self, native: Any, stream: int = 0, device: Device = H200) -> None:
        super().__init__()
        self.waits = 0
        self.native, self._stream, self._device = native, stream, device

    def takes(self, device: torch.device) -> bool:
        return True

    def describe(self, device: torch.device) -> Device:
        return self._device

    def stream(self, device: torch.device) -> int:
        return self._stream

    def queue(self, device: torch.device) -> tuple[Callable[[], int], int, Callable[[], int]]:
        return lambda: 0, 0, lambda: self._stream

    def current(self, device: torch.device) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def is_capturing(self) -> bool:
        return False

    def finish(self, device: torch.device) -> None:
        self.waits += 1

    def finish_all(self, device: torch.device) -> None:
        self.waits += 1

    def read(self, numbers: torch.Tensor) -> list[int]:
        self.waits += 1
        return super().read(numbers)

    def free_memory(self, device: torch.device) -> int:
        return self._device.memory

    def pinned_memory(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.uint8)


class View:
    """A native dense view that can be looked into."""

    def __init__(self, tensor: torch.Tensor, rounded: bool = False) -> None:
        self.tensor, self.rounded = tensor, rounded

    @property
    def memory(self) -> tuple[int, int, torch.dtype]:
        """The address, the row stride and the dtype."""
        return self.tensor.data_ptr(), self.tensor.stride(0), self.tensor.dtype


class Handle:
    """A native handle that can be looked into."""

    def __init__(self, *fields: Any) -> None:
        self.fields = fields


class _RecordingNative:
    """The native module; functions named cuda_* note how they are called, and do nothing."""

    Dense, StoredRows, EdgeValues = View, Handle, Handle
    SpmmLaunch = None  # products go the way of Python, call by call

    def __init__(self, calls: list[tuple[str, tuple[Any, ...]]]) -> None:
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("cuda_"):
            return getattr(_native, name)
        return lambda *arguments: self._calls.append((name, arguments))


class RecordingPath(StandInPath):
    """Notes the native calls, and which devices are made the current one."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.current_index: int | None = None
        self.switched: list[Any] = []
        super().__init__(_RecordingNative(self.calls), stream=77)

    def current(self, device: torch.device) -> AbstractContextManager[None]:
        if self.current_index != device.index:
            self.switched.append(device)
        return contextlib.nullcontext()

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def addresses(self) -> list[int]:
        """The addresses of the tensors of the last call, and of its handles that can be looked into."""
        _, arguments = self.calls[-1]
        found = [x for a in arguments for x in (a.fields if isinstance(a, Handle) else (a,))]
        return [x.data_ptr() for x in found if isinstance(x, torch.Tensor)]

    def views(self) -> list[View]:
        return [a for _, arguments in self.calls for a in arguments if isinstance(a, View)]


class RunningPath(StandInPath):
    """Runs emulated kernels where there are some, and notes which were called."""

    def __init__(self, emulated: Any, device: Device = H200) -> None:
        super().__init__(self, device=device)
        self.emulated, self.called = emulated, set[str]()

    def __getattr__(self, name: str) -> Any:
        if not hasattr(self.emulated, name):
            return getattr(_native, name)
        self.called.add(name)
        return getattr(self.emulated, name)
