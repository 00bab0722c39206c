"""The command `gnnsparse doctor`: checks of the installation, each with what to do about what they find."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import json
import os
import platform
import re
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

import gnnsparse
from gnnsparse import _native
from gnnsparse.bench.arguments import devices_here, number_option
from gnnsparse.cli.cache import check_cached
from gnnsparse.cli.self_test import INSTRUCTION_SETS, self_test
from gnnsparse.plan.gpu_records import RecordError, record_for, records, user_folder
from gnnsparse.runtime.cache import CacheEntry, GraphCache
from gnnsparse.runtime.device import describe_device
from gnnsparse.runtime.environment import commit_of, device_name

DESCRIPTION = """\
Says what is installed, which GPU and driver there are and whether the kernels were built for them, by which
record plans are chosen, and what state the cache is in; then compares every kernel with a float64 reference.
The exit status is 1 if something is broken.
"""


_seconds = number_option("seconds from 0 to 3600", lambda value: 0 <= value <= 3600)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gnnsparse doctor`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object in place of text")
    parser.add_argument(
        "--seconds", type=_seconds, default=10.0, metavar="S",
        help="most seconds of the self-test; 0: no self-test; default: 10",
    )  # fmt: skip


# What the doctor finds: a list of statements, each with what to do about it.

#: Levels of a finding: all is well; something could be better; results or runs fail.
OK, NOTE, BROKEN = "ok", "note", "broken"


@dataclass(frozen=True)
class Finding:
    """A statement about the installation: OK, NOTE or BROKEN, and what to do about it, "" if nothing is."""

    level: str
    text: str
    advice: str = ""


@dataclass
class Section:
    """The findings about one subject, with the facts, for `--json`, that they were made from."""

    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def add(self, level: str, text: str, advice: str = "") -> None:
        """Add a statement, and what to do about it."""
        self.findings.append(Finding(level, text, advice))

    ok = functools.partialmethod(add, OK)
    note = functools.partialmethod(add, NOTE)
    broken = functools.partialmethod(add, BROKEN)


# Checks of the packages that are installed, and of the cache of prepared graphs.

#: Packages that some features need, what they are needed for, and how they are installed.
OPTIONAL_PACKAGES: dict[str, tuple[str, str]] = {
    "torch-geometric": ("PyG models and data sets", "pip install 'gnnsparse[train]'"),
    "lightning": ("gnnsparse.train and train.py", "pip install 'gnnsparse[train]'"),
    "hydra-core": ("train.py", "pip install 'gnnsparse[train]'"),
    "torchmetrics": ("gnnsparse.train and train.py", "pip install 'gnnsparse[train]'"),
    "tensorboard": ("trainer.logger=tensorboard", "pip install 'gnnsparse[train]'"),
    "ogb": ("the data sets of OGB", "pip install 'gnnsparse[train]'"),
    "scikit-learn": ("the data set digits", "pip install 'gnnsparse[train]'"),
    "pymetis": ("reorder='metis'", "pip install 'gnnsparse[metis]'"),
    "dgl": ("DGL models", "pip install --no-deps dgl (docs/howto/dgl-model.md)"),
    "transformers": ("gnnsparse.interop.transformers", "pip install 'gnnsparse[transformers]'"),
    "networkx": ("gnnsparse.interop.networkx and GraphML files", "pip install 'gnnsparse[data]'"),
    "pandas": ("tables of dataset=custom", "pip install 'gnnsparse[data]'"),
    "pyarrow": ("Parquet files of dataset=custom", "pip install 'gnnsparse[data]'"),
    "huggingface_hub": ("gnnsparse.inference.hub", "pip install 'gnnsparse[hub]'"),
    "matplotlib": ("plots of benchmarks", "pip install 'gnnsparse[bench]'"),
}
#: Packages without which nothing runs.
_REQUIRED = ("torch", "numpy", "scipy", "safetensors", "xxhash", "filelock", "platformdirs", "rich")
#: Bytes of cache files whose checksums are compared; `gnnsparse cache verify` compares all.
_VERIFIED = 2**29
#: Files that can't be used that are named; of all there may be hundreds after an update.
_SHOWN = 3


def version_of(package: str) -> str | None:
    """Return the version of an installed package; None: it is not installed, or its metadata are damaged."""
    try:
        return metadata.version(package)
    except (metadata.PackageNotFoundError, ValueError, TypeError, OSError):
        return None


def check_packages() -> Section:
    """List versions, and say what the optional packages that are missing are for."""
    section = Section("Packages")
    folder = Path(gnnsparse.__file__).parent
    commit = commit_of(folder.parent)
    required = {name: version_of(name) for name in _REQUIRED} | {"torch": torch.__version__}
    optional = {name: version_of(name) for name in OPTIONAL_PACKAGES}
    section.facts = {
        "gnnsparse": gnnsparse.__version__, "commit": commit, "folder": str(folder),
        "python": platform.python_version(), "required": required, "optional": optional,
    }  # fmt: skip
    where = f"gnnsparse {gnnsparse.__version__} in {folder}" + (f", commit {commit[:15]}" if commit else "")
    section.ok(f"{where}; Python {platform.python_version()}")
    section.ok(_listed(required))
    section.ok(_listed(optional) or "none of the optional packages is installed")
    for name, version in optional.items():
        if version is None:
            purpose, how = OPTIONAL_PACKAGES[name]
            section.note(f"{name} is not installed: {purpose} need it", how)
    return section


def _listed(versions: dict[str, str | None]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items() if version is not None)


def check_cache(folder: str | None = None) -> Section:
    """Check the folder of the cache, its size, whether it can be written, and its files."""
    section = Section("Cache")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        cache = GraphCache(folder)
        cache.check_folder()
    entries = cache.entries()
    used = sum(entry.nbytes for entry in entries)
    problem = _write_problem(cache.folder)
    damaged, unchecked = _damaged(cache, entries)
    section.facts = {
        "folder": str(cache.folder), "exists": cache.folder.is_dir(), "entries": len(entries), "bytes": used,
        "max_bytes": cache.max_bytes, "writable": problem is None, "damaged": damaged, "unchecked": unchecked,
    }  # fmt: skip
    size = f"{len(entries)} files of {used / 2**20:.1f} MiB, {cache.max_bytes / 2**30:.1f} GiB at most"
    section.ok(f"{cache.folder}: {size}")
    for warning in told:
        section.note(str(warning.message))
    if problem is not None:
        section.note(
            f"{cache.folder} can't be written ({problem}): each run prepares its graphs anew",
            "set GNNSPARSE_CACHE_DIR to a folder of your own",
        )
    if damaged:
        shown = [f"{name} ({reason})" for name, reason in list(damaged.items())[:_SHOWN]]
        more = f"; and {len(damaged) - _SHOWN} more" if len(damaged) > _SHOWN else ""
        section.note(
            f"{len(damaged)} of the files can't be used: {'; '.join(shown)}{more}",
            "nothing is lost: such graphs are prepared anew. gnnsparse cache clear removes the files, and "
            "gnnsparse cache verify names all",
        )
    if unchecked:
        section.note(
            f"the checksums of {unchecked} files were not compared", "gnnsparse cache verify compares all"
        )
    return section


def _write_problem(folder: Path) -> str | None:
    """Return why no file can be made in a folder, which need not exist; None: files can be made."""
    try:
        at = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not at.is_dir():
            return f"{at} is no folder"
        with tempfile.TemporaryFile(dir=at):
            return None
    except OSError as error:
        return error.strerror or str(error)


def _damaged(cache: GraphCache, entries: list[CacheEntry]) -> tuple[dict[str, str], int]:
    """Return the damaged files with what is wrong, and how many files were too many to be read."""
    damaged, unchecked, read = dict[str, str](), 0, 0
    for entry in entries:
        if entry.metadata is None:
            damaged[entry.path.name] = "its header is damaged, or of an earlier version"
        elif read + entry.nbytes > _VERIFIED:
            unchecked += 1
        else:
            read += entry.nbytes
            if (problem := cache.problem_of(entry, check_cached)) is not None:
                damaged[entry.path.name] = problem
    return damaged, unchecked


# Checks of the GPU, its driver, the CUDA kernels and the record that plans are chosen by, and of the CPU.

_DRIVER_FILE = Path("/proc/driver/nvidia/version")
_REBUILD = "build gnnsparse again on this machine with GNNSPARSE_CUDA=on, or install a wheel for this GPU"


def fit_of_architectures(architectures: str, capability: tuple[int, int]) -> str:
    """Return "built" if CUDA kernels for `architectures`, as "80,90a,120", have machine code for a GPU.

    "ptx": the driver compiles them when they are first used; "": they can't run. The newest architecture
    without a letter has PTX (native/cuda.cmake).
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
    """Return the version of the NVIDIA driver, and the newest CUDA that it runs, where known."""
    driver, newest, number = None, None, ctypes.c_int()
    with contextlib.suppress(OSError):
        if match := re.search(r"Kernel Module.*?(\d+\.\d+(?:\.\d+)?)", _DRIVER_FILE.read_text()):
            driver = match[1]
    with contextlib.suppress(OSError, AttributeError):
        if not ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)):
            newest = f"{number.value // 1000}.{number.value % 1000 // 10}"
    return driver, newest


def check_gpu() -> Section:
    """Check driver, torch's CUDA, the GPUs, the kernels' architectures and the records of the plans."""
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
    if available:
        for index in range(torch.cuda.device_count()):
            _check_one(section, index)
    elif driver is None:
        section.ok("no NVIDIA GPU here: everything runs on the CPU")
    elif torch.version.cuda is None:
        section.note(
            "there is an NVIDIA GPU, but this torch was built without CUDA",
            "install a torch with CUDA: https://pytorch.org/get-started/locally",
        )
    else:
        reason = str(told[0].message) if told else "torch.cuda.is_available() is False"
        section.broken(
            f"there is an NVIDIA driver, but torch can't use a GPU: {reason.splitlines()[0][:200]}",
            "compare the driver's CUDA with torch's, and look at CUDA_VISIBLE_DEVICES and at nvidia-smi",
        )
    return section


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
        _damaged_record(section, error)
        return
    facts["record"] = record.name
    if record.name == found.name:
        section.ok(f"plans are chosen by the record of {record.name}")
    else:
        section.note(
            f"there is no record of {found.name}: plans are chosen by that of {record.name}, its nearest",
            "gnnsparse bench fit measures this GPU, in about six minutes",
        )


def _damaged_record(section: Section, error: RecordError) -> None:
    section.broken(
        f"a record of a GPU can't be read: {error}", f"correct or remove the file in {user_folder()}"
    )


def check_cpu() -> Section:
    """Check the instruction set of the kernels, the threads, and the records of GPUs."""
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
        _damaged_record(section, error)
    return section


_MARKS = {OK: ("ok", "green"), NOTE: ("note", "yellow"), BROKEN: ("BROKEN", "bold red")}


def check_kernels(seconds: float) -> Section:
    """Run the self-test."""
    section = Section("Self-test")
    if seconds == 0:
        section.note("no kernel was tested", "give --seconds more than 0")
        return section
    begin = time.perf_counter()
    results, left_out = self_test(seconds)
    took = time.perf_counter() - begin
    wrong = [result for result in results if not result.ok]
    section.facts = {
        "cases": len(results), "left_out": left_out, "seconds": round(took, 2),
        "devices": list(devices_here()), "results": [asdict(result) for result in results],
    }  # fmt: skip
    for result in wrong:
        section.broken(
            f"{result}: {result.problem}",
            "do not trust its results; report it with `gnnsparse doctor --json`",
        )
    for device in devices_here():
        right = [(r.isa, r.op, r.kernel) for r in results if r.device == device and r.ok]
        section.ok(f"{device}: {len(right)} cases of {len(set(right))} kernels are right")
    if left_out:
        section.note(f"{left_out} cases were left out: the time was over", "give more, as in --seconds 60")
    section.ok(f"{took:.1f} s")
    return section


def examine(seconds: float = 10.0) -> list[Section]:
    """Make all checks; one that fails itself is a finding, and the others go on."""
    checks: dict[str, Callable[[], Section]] = {
        "Packages": check_packages, "GPU": check_gpu, "CPU": check_cpu, "Cache": check_cache,
        "Self-test": lambda: check_kernels(seconds),
    }  # fmt: skip
    sections = []
    for name, check in checks.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # they are findings where they matter
                sections.append(check())
        except Exception as error:  # whatever is wrong with the machine
            failed = Section(name)
            failed.broken(f"the check itself failed: {type(error).__name__}: {error}")
            sections.append(failed)
    return sections


def run(options: argparse.Namespace) -> int:
    """Make all checks, print what they found, and return the exit status: 1 if something is broken."""
    sections = examine(options.seconds)
    findings = [finding for section in sections for finding in section.findings]
    broken = sum(finding.level == BROKEN for finding in findings)
    console = Console(soft_wrap=True, highlight=False)
    if options.json:
        described = {
            section.name: {"facts": section.facts, "findings": [asdict(f) for f in section.findings]}
            for section in sections
        }
        console.print(json.dumps({"broken": broken, "sections": described}, indent=2), markup=False)
        return 1 if broken else 0
    for section in sections:
        console.print(Text(section.name, style="bold"))
        for finding in section.findings:
            mark, style = _MARKS[finding.level]
            console.print(Text.assemble("  ", (f"{mark:7}", style), " ", finding.text))
            if finding.advice:
                advice = f"          -> {finding.advice}"
                console.print(Text(advice, style="dim" if finding.level == NOTE else ""))
    notes = sum(finding.level == NOTE for finding in findings)
    console.print(f"{broken} broken, {notes} notes")
    return 1 if broken else 0
