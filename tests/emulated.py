"""The CUDA sources of attention and SpMM, compiled as C++ and run on the CPU by native/emulator."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pybind11
import pytest

from gnnsparse import cuda_path
from gnnsparse.cuda_path import Device
from tests.gpu_paths import H200, RunningPath

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


def install(monkeypatch: pytest.MonkeyPatch, emulated: ModuleType, device: Device = H200) -> RunningPath:
    """Operands on the CPU take the path of a GPU from here on."""
    path = RunningPath(emulated, device)
    monkeypatch.setattr(cuda_path, "_path", path)
    return path
