"""CPU tensors on the path of a GPU, whose kernels native/emulator runs."""

from __future__ import annotations

import contextlib
import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from gnnsparse import Precision, _native
from gnnsparse.ops import attention_work, cuda, cuda_attention
from gnnsparse.plan import Device, Plan
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


def install_products(monkeypatch: pytest.MonkeyPatch, emulated: ModuleType) -> Native:
    """spmm, sddmm and edge_softmax on CPU tensors take the path of a GPU from here on."""
    native = Native(emulated)
    monkeypatch.setattr(cuda, "_native", native)
    monkeypatch.setattr(cuda, "on_device", lambda device: contextlib.nullcontext())
    send_to_cuda(monkeypatch, stream=0)
    return native


def install_attention(monkeypatch: pytest.MonkeyPatch, emulated: ModuleType) -> Native:
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


def force_attention_work(monkeypatch: pytest.MonkeyPatch, tall: bool, limit: int) -> None:
    """Attention takes panels of 64 rows or never does, and cuts those of more than `limit` stages."""
    plan = Plan("panel", height=16, step_limit=limit, longest_first=limit % 2 == 0)
    monkeypatch.setattr(attention_work, "shares_rows", lambda side: tall)
    monkeypatch.setattr(attention_work, "panel_plan", lambda problem, height: plan)
    monkeypatch.setattr(attention_work, "_tall_limit", lambda side, features: limit)


def padded(x: torch.Tensor, precision: str) -> torch.Tensor:
    """`x` in the storage dtype as the kernels take it: NaN fills its rows to whole 16 bytes."""
    dtype = Precision.parse(precision).storage
    per_vector = 16 // dtype.itemsize
    wide = torch.full((x.shape[0], -(-x.shape[1] // per_vector) * per_vector), float("nan"), dtype=dtype)
    wide[:, : x.shape[1]] = x
    return wide[:, : x.shape[1]]
