"""Checks of the GPU, its driver, the CUDA kernels and the record that plans are chosen by, and of the CPU."""

from __future__ import annotations

import ctypes
import os
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.cli.doctor.findings import Section
from gnnsparse.plan.gpu_records import RecordError, record_for, records, user_folder
from gnnsparse.runtime.device import describe_device
from gnnsparse.runtime.environment import device_name

__all__ = ["INSTRUCTION_SETS", "check_cpu", "check_gpu", "fit_of_architectures"]

#: Instruction sets of the CPU's kernels, the fastest last.
INSTRUCTION_SETS = ("portable", "avx2", "avx512")
_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_REBUILD = "build gnnsparse again on this machine with GNNSPARSE_CUDA=on, or install a wheel for this GPU"


def fit_of_architectures(architectures: str, capability: tuple[int, int]) -> str:
    """Returns how CUDA kernels run on a GPU.

    Args:
        architectures: those that the kernels were built for, as in "80,90a,120". The newest one without a
            letter has PTX (native/cuda.cmake).
        capability: the GPU's compute capability.

    Returns:
        "built" if there is machine code for the GPU, "ptx" if the driver compiles the kernels when they are
        first used, "" if they can't run.
    """
    major, minor = capability
    plain = []
    for name in architectures.split(","):
        if name == "native":  # the architectures of the machine that built the kernels
            return "built"
        if (match := re.fullmatch(r"(\d+)(\d)([af]?)", name.strip())) is None:
            continue
        of = int(match[1]), int(match[2])
        if of == capability or (of[0] == major and of[1] <= minor and match[3] != "a"):
            return "built"
        if not match[3]:
            plain.append(of)
    return "ptx" if plain and max(plain) <= (major, minor) else ""


def driver_versions() -> tuple[str | None, str | None]:
    """Returns the version of the NVIDIA driver, and the newest CUDA that it runs, where known."""
    driver = None
    try:
        if match := re.search(r"Kernel Module.*?(\d+\.\d+(?:\.\d+)?)", _DRIVER_FILE.read_text()):
            driver = match[1]
    except OSError:
        pass
    try:
        number = ctypes.c_int()
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)):
            return driver, None
    except (OSError, AttributeError):
        return driver, None
    return driver, f"{number.value // 1000}.{number.value % 1000 // 10}"


def check_gpu() -> Section:
    """Checks driver, torch's CUDA, the GPUs, the kernels' architectures and the records of the plans."""
    section = Section("GPU")
    driver, newest = driver_versions()
    section.facts = {
        "driver": driver, "driver_cuda": newest, "torch_cuda": torch.version.cuda,
        "kernels": _native.has_cuda, "architectures": _native.cuda_architectures, "gpus": [],
    }  # fmt: skip
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if driver is not None:
        section.ok(f"driver {driver}" + (f", which runs CUDA up to {newest}" if newest else ""))
    built = _native.cuda_architectures or "none"
    kernels = f"CUDA kernels for the architectures {built}" if _native.has_cuda else "no CUDA kernels"
    section.ok(f"gnnsparse was built with {kernels}; torch with CUDA {torch.version.cuda or 'none'}")
    if not available:
        _without_gpu(section, driver, [str(warning.message) for warning in told])
        return section
    for index in range(torch.cuda.device_count()):
        _check_one(section, index)
    return section


def _without_gpu(section: Section, driver: str | None, told: list[str]) -> None:
    if driver is None:
        section.ok("no NVIDIA GPU here: everything runs on the CPU")
    elif torch.version.cuda is None:
        section.note(
            "there is an NVIDIA GPU, but this torch was built without CUDA",
            "install a torch with CUDA: https://pytorch.org/get-started/locally",
        )
    else:
        reason = told[0].splitlines()[0][:200] if told else "torch.cuda.is_available() is False"
        section.broken(
            f"there is an NVIDIA driver, but torch can't use a GPU: {reason}",
            "compare the driver's CUDA with torch's, and look at CUDA_VISIBLE_DEVICES and at nvidia-smi",
        )


def _check_one(section: Section, index: int) -> None:
    device = torch.device("cuda", index)
    found = describe_device(device)
    facts: dict[str, Any] = {
        "name": found.name, "capability": ".".join(map(str, found.capability)), "memory_bytes": found.memory,
        "multiprocessors": found.multiprocessors,
    }  # fmt: skip
    section.facts["gpus"].append(facts)
    what = f"{found.name}, compute capability {facts['capability']}, {found.memory / 2**30:.0f} GiB"
    section.ok(f"cuda:{index}: {what}")
    if not _native.has_cuda:
        section.broken("gnnsparse was built without CUDA kernels, so that it can't use this GPU", _REBUILD)
    else:
        facts["fit"] = fit_of_architectures(_native.cuda_architectures, found.capability)
        if not facts["fit"]:
            section.broken(
                f"the CUDA kernels ({_native.cuda_architectures}) can't run on compute capability "
                f"{facts['capability']}",
                _REBUILD,
            )
        elif facts["fit"] == "ptx":
            section.note(
                "the driver compiles the CUDA kernels for this GPU at their first use, which takes a while",
                f"GNNSPARSE_CUDA_ARCHITECTURES={facts['capability'].replace('.', '')} builds them for it",
            )
    try:
        record = record_for(found)
    except RecordError as error:
        facts["record"] = None
        section.broken(
            f"a record of a GPU can't be read: {error}", f"correct or remove the file in {user_folder()}"
        )
        return
    facts["record"] = record.name
    if record.name == found.name:
        section.ok(f"plans are chosen by the record of {record.name}")
    else:
        section.note(
            f"there is no record of {found.name}: plans are chosen by that of {record.name}, its nearest",
            "gnnsparse bench fit measures this GPU, in about six minutes",
        )


def check_cpu() -> Section:
    """Checks the instruction set of the kernels, the threads, and the records of GPUs."""
    section = Section("CPU")
    in_use = _native.cpu_isa()
    try:
        usable = [name for name in INSTRUCTION_SETS if _native.set_cpu_isa(name)]
    finally:
        _native.set_cpu_isa("auto")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = torch.get_num_threads()
    name = device_name("cpu")
    section.facts = {
        "name": name, "instruction_set": in_use, "instruction_sets": usable, "cores": cores,
        "threads": threads, "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
    }  # fmt: skip
    section.ok(f"{name}: kernels for {in_use} (this machine runs {', '.join(usable)})")
    if threads > cores:
        section.note(
            f"torch uses {threads} threads on {cores} cores, which makes them wait for one another",
            f"set OMP_NUM_THREADS={cores}",
        )
    elif threads < cores:
        section.note(
            f"torch uses {threads} of {cores} cores", f"set OMP_NUM_THREADS={cores} unless others need them"
        )
    else:
        section.ok(f"{threads} threads on {cores} cores")
    try:
        section.facts["records"] = [record.name for record in records()]
    except RecordError as error:
        section.broken(
            f"a record of a GPU can't be read: {error}", f"correct or remove the file in {user_folder()}"
        )
    return section
