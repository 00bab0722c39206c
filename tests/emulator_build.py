"""Builds native/emulator with the CUDA sources as C++, once for every state of them.

A build lies in build/emulator/<hash>, where the hash covers all that goes into it. Processes that need the
same one wait for the first to make it.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import ModuleType

import pybind11
import pytest
from filelock import FileLock

from tests.ops.edge_passes import emulated_units
from tests.scripts import import_file

ROOT = Path(__file__).resolve().parents[1]
NATIVE = ROOT / "native"
BUILDS = ROOT / "build" / "emulator"
CUDA = NATIVE / "cuda"


def generated_units() -> dict[str, str]:
    """The units that CMake generates for each kernel family and precision: their names and texts."""
    template = (CUDA / "instantiate.cu.in").read_text()
    made = {}
    for line in (CUDA / "units.txt").read_text().splitlines():
        header, family, *precisions = line.split() if not line.startswith("#") else ("", "")
        for precision in precisions:
            text = template.replace("@UNIT_HEADER@", header).replace("@UNIT_FAMILY@", family)
            name = f"{Path(header).name}_{precision}.cu"
            made[name] = text.replace("@UNIT_PRECISION@", f"k{precision.capitalize()}")
    return made


#: With the messages of functions over edges.
GENERATED = generated_units() | emulated_units()
#: All that is compiled, in units of files; those that take longest come first. What includes pybind11 is one
#: unit: its headers take longer than anything else.
UNITS: list[tuple[str, ...]] = [
    ("emulator/module.cpp",
     "bindings/memory.cpp", "bindings/attention_args.cpp", "bindings/graph_attention_args.cpp",
     "bindings/sampling_args.cpp", "bindings/spmm_launch.cpp",
     *(f"bindings/cuda_{name}.cpp"
       for name in (
           "attention", "edges", "network", "graph_attention", "quantized", "sampling", "spmm", "sddmm",
           "softmax", "heads"))),
    *((name,) for name in GENERATED),
    *((f"cuda/kernels/{name}.cu",) for name in (
        "spmm/csr_spmm", "spmm/narrow_spmm", "spmm/heads_spmm", "spmm/extreme_spmm", "sddmm/heads_sddmm",
        "sddmm/window_sddmm", "sddmm/csr_sddmm", "attention/panel_attention", "attention/quantized_attention",
        "attention/block_attention", "attention/block_attention_grad",
        "graph_attention/graph_attention", "edges/edge_network",
        "spmm/panel_spmm", "sddmm/panel_sddmm", "spmm/window_spmm", "papers/policy_spmm",
        "papers/packed_spmm",
        "spmm/quantized_spmm", "common/quantize", "sampling/gather_rows",
        "papers/block_sddmm", "sampling/neighbors", "softmax", "common/pack", "common/reduce")),
    *((f"emulator/{name}.cpp",) for name in ("mma", "block", "faults", "fiber", "edge_kernels")),
]  # fmt: skip
#: The emulator's headers come before those of cuda/ that they stand in for.
INCLUDES = ("emulator", "include", "cuda", "bindings")
FLAGS = ("-std=c++17", "-fPIC", "-fvisibility=hidden", "-fno-strict-aliasing", "-DGNNSPARSE_EMULATED")
#: What scripts/sanitize.sh asks for; the tests' process has the runtime loaded then.
SANITIZED = (
    ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer", "-g1")
    if os.environ.get("GNNSPARSE_EMULATOR_SANITIZED")
    else ()
)
#: What every kernel calls all the time. The kernels themselves compile for longer than they run: with -O2 the
#: tests take 3 s less and the build 15 s more, with -O0 30 s more and 15 s less.
OPTIMISED = ("emulator/mma.cpp", "emulator/block.cpp", "emulator/fiber.cpp")
_KEPT = 4  # builds: those of a few branches


@cache
def _compiler() -> str:
    found = os.environ.get("CXX") or shutil.which("c++")
    if found is None or sys.platform != "linux":
        pytest.skip("needs a C++ compiler on Linux")
    return found


def library_name() -> str:
    return f"_emulated{sysconfig.get_config_var('EXT_SUFFIX')}"


def fingerprint() -> str:
    """A hash of the sources and headers, the compiler, its flags, pybind11 and the Python ABI."""
    version = subprocess.run([_compiler(), "--version"], capture_output=True, text=True, check=True).stdout
    found = hashlib.sha256(
        repr((version, FLAGS, SANITIZED, UNITS, OPTIMISED, pybind11.__version__, library_name())).encode()
    )
    headers = {
        path.relative_to(NATIVE).as_posix() for folder in INCLUDES for path in (NATIVE / folder).rglob("*.*h")
    }
    for name in (*itertools.chain(*UNITS), *sorted(headers)):
        content = GENERATED[name].encode() if name in GENERATED else (NATIVE / name).read_bytes()
        found.update(f"{name} {len(content)} ".encode() + content)
    return found.hexdigest()[:16]


def compile_into(folder: Path) -> None:
    includes = [*(NATIVE / name for name in INCLUDES), pybind11.get_include(), sysconfig.get_path("include")]
    command = [_compiler(), *FLAGS, *SANITIZED, *(f"-I{path}" for path in includes), "-x", "c++", "-c", "-"]

    def compile_one(unit: tuple[str, ...]) -> str:
        target = str(folder / unit[0].replace("/", "_")) + ".o"
        how = [*command, "-O3" if unit[0] in OPTIMISED else "-O1", "-o", target]
        text = GENERATED.get(unit[0]) or "".join(f'#include "{NATIVE / name}"\n' for name in unit)
        done = subprocess.run(how, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return target

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        objects = list(pool.map(compile_one, UNITS))
    subprocess.run(
        [_compiler(), "-shared", *SANITIZED, *objects, "-o", str(folder / library_name())], check=True
    )
    for name in objects:
        os.unlink(name)


def _prune(keep: Path) -> None:
    """Removes builds that were interrupted, and all but the newest finished ones."""
    for partial in BUILDS.glob("*.partial"):
        shutil.rmtree(partial, ignore_errors=True)
    finished = [path for path in BUILDS.iterdir() if path.is_dir() and path != keep]
    finished.sort(key=lambda path: path.stat().st_mtime, reverse=True)
    for stale in finished[_KEPT - 1 :]:
        shutil.rmtree(stale, ignore_errors=True)


def library() -> Path:
    """The module's file, built if this state of the sources has not been."""
    folder = BUILDS / fingerprint()
    BUILDS.mkdir(parents=True, exist_ok=True)
    with FileLock(BUILDS / "lock"):
        if folder.is_dir():
            os.utime(folder)
        else:
            _prune(folder)
            partial = Path(tempfile.mkdtemp(suffix=".partial", dir=BUILDS))
            compile_into(partial)
            partial.rename(folder)  # all of it is there, or nothing
    return folder / library_name()


def load() -> ModuleType:
    """The module, which has the CUDA kernels under the names that `_native` has them under."""
    return import_file("_emulated", library())
