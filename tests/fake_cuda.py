"""The CUDA path on CPU tensors: its native functions are recorded in place of being run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from gnnsparse import _native
from gnnsparse.ops import backend, cuda, products, tuning
from gnnsparse.plan import Device

KERNELS = ("cuda_pack", "cuda_spmm_csr", "cuda_spmm_panel", "cuda_spmm_window", "cuda_sddmm_csr",
           "cuda_sddmm_panel", "cuda_sddmm_window")  # fmt: skip


class View:
    """A native dense view that can be looked into."""

    def __init__(self, data: int, stride: int, dtype: int, rounded: bool = False) -> None:
        self.data, self.stride, self.dtype, self.rounded = data, stride, dtype, rounded


class Handle:
    """A native handle of addresses and sizes that can be looked into."""

    def __init__(self, *given: int, **named: int) -> None:
        self.given = (*given, *named.values())


class Recorded:
    """The native calls, and the device that is current."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.current: int | None = None
        self.switched: list[Any] = []

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def handed_over(self) -> list[Any]:
        """The arguments of the last call, those in handles too."""
        parts = [a.given if isinstance(a, Handle) else (a,) for a in self.calls[-1][1]]
        return [value for part in parts for value in part]

    def views(self) -> list[View]:
        return [a for _, arguments in self.calls for a in arguments if isinstance(a, View)]


def send_to_cuda(monkeypatch: pytest.MonkeyPatch, stream: int) -> None:
    """Products of CPU tensors take the path of an H200 from here on."""
    hopper = Device("cuda", (9, 0), 132)
    for module in ("side", "operand"):
        monkeypatch.setattr(f"gnnsparse.{module}.describe_device", lambda device: hopper)
    for module in (products, tuning, backend):
        monkeypatch.setattr(module, "backend_of", lambda device: cuda)
    monkeypatch.setattr(cuda, "stream_of", lambda device: stream)


def install(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """Puts a recording in the place of an H200."""
    record = Recorded()

    def keep(name: str) -> Any:
        return lambda *arguments: record.calls.append((name, arguments))

    @contextlib.contextmanager
    def switch(device: Any) -> Iterator[None]:
        record.switched.append(device)
        yield

    for name in KERNELS:
        monkeypatch.setattr(_native, name, keep(name), raising=False)
    monkeypatch.setattr(_native, "Dense", View)
    for name in ("StoredRows", "EdgeValues"):
        monkeypatch.setattr(_native, name, Handle)
    send_to_cuda(monkeypatch, stream=77)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: record.current)
    monkeypatch.setattr(torch.cuda, "device", switch)
    return record
