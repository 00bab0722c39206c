"""CPU tensors on the path of a GPU, whose kernels native/emulator runs."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType
from typing import Any

import pytest

from gnnsparse import _native
from gnnsparse.ops import attention_work, cuda, cuda_attention
from gnnsparse.plan import Device
from tests.fake_cuda import send_to_cuda

class Native:
    """`_native` with the emulated kernels in it; notes which of them were called."""

    def __init__(self, emulated: ModuleType) -> None:
        self.emulated = emulated
        self.called: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        if not hasattr(self.emulated, name):
            return getattr(_native, name)
        self.called.add(name)
        return getattr(self.emulated, name)


def install_spmm(monkeypatch: pytest.MonkeyPatch, emulated: ModuleType) -> Native:
    """SpMM on CPU tensors takes the path of a GPU from here on."""
    native = Native(emulated)
    monkeypatch.setattr(cuda, "_native", native)
    monkeypatch.setattr(cuda, "on_device", lambda device: contextlib.nullcontext())
    send_to_cuda(monkeypatch, stream=0)
    return native


def install(monkeypatch: pytest.MonkeyPatch, emulated: ModuleType) -> Native:
    """Attention on CPU tensors takes the path of a GPU from here on."""
    native = Native(emulated)
    attention = sys.modules["gnnsparse.ops.attention"]
    hopper = Device("cuda", (9, 0), 132, 1 << 30)
    monkeypatch.setattr(cuda_attention, "_native", native)
    monkeypatch.setattr(cuda_attention, "_is_fused", lambda *_: True)
    monkeypatch.setattr(cuda_attention, "on_device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(cuda_attention, "stream_of", lambda device: 0)
    monkeypatch.setattr(attention_work, "describe_device", lambda device: hopper)
    monkeypatch.setattr(attention, "attention_backend", lambda device: cuda_attention)
    return native
