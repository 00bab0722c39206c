"""The CUDA sources of attention and SpMM, compiled as C++ and run on the CPU by native/emulator."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import pybind11
import pytest

from gnnsparse import _native
from gnnsparse.ops import attention_work, cuda, cuda_attention
from gnnsparse.plan import Device
from tests.fake_cuda import send_to_cuda

NATIVE = Path(__file__).resolve().parents[1] / "native"
PRECISIONS = ("fp16", "bf16", "tf32", "fp32")
SOURCES = [
    "cuda/kernels/panel_attention.cu",
    *(f"cuda/kernels/panel_attention{part}_{name}.cu" for part in ("", "_grad") for name in PRECISIONS),
    *(f"cuda/kernels/{name}.cu" for name in ("pack", "csr_spmm", "reduce", "panel_spmm", "window_spmm")),
    *(f"cuda/kernels/panel_spmm_{name}.cu" for name in PRECISIONS),
    *(f"cuda/kernels/window_spmm_{name}.cu" for name in PRECISIONS if name != "fp32"),
    "emulator/block.cpp", "emulator/module.cpp", "bindings/cuda_attention.cpp", "bindings/cuda_spmm.cpp",
]  # fmt: skip
#: The emulator's headers come before those of cuda/ that they stand in for.
INCLUDES = ("emulator", "include", "cuda", "bindings")


def build(folder: Path) -> ModuleType:
    """Compiles the module into `folder` and loads it."""
    compiler = os.environ.get("CXX") or shutil.which("c++")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C++ compiler on Linux")
    paths = [
        *(str(NATIVE / name) for name in INCLUDES),
        pybind11.get_include(),
        sysconfig.get_path("include"),
    ]
    flags = ["-std=c++17", "-O1", "-fPIC", "-fvisibility=hidden", *(f"-I{path}" for path in paths)]

    def compile_one(source: str) -> str:
        target = str(folder / f"{Path(source).stem}.o")
        command = [compiler, *flags, "-x", "c++", "-c", str(NATIVE / source), "-o", target]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, SOURCES))
    library = folder / f"_emulated{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run([compiler, "-shared", *objects, "-o", str(library)], check=True)
    spec = importlib.util.spec_from_file_location("_emulated", library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
