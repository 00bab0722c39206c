"""Builds other libraries' sparse products outside of this project, and measures them beside ours.

    python -m benchmarks.peers list  --folder RIVALS
    python -m benchmarks.peers build --folder RIVALS                        # needs git, nvcc and the network
    python -m benchmarks.peers run   --folder RIVALS --out benchmarks/results/peers.json

Each library is fetched at the commit that is named here to RIVALS/src/NAME, unless it is there, and compiled
with a file of benchmarks/rivals, which puts two C functions before it, to RIVALS/libNAME.so. No file of
theirs is part of this project. `run` measures A X, where most of them need A of ones, by the candidates of
`gnnsparse bench kernels`: ours, cuSPARSE, and the libraries in the folder, each compared with float64. Those
launch on the default stream, which no CUDA graph has: their times, by CUDA events, have a launch in them, and
the zeroing of y where a kernel adds to it. Conversion to a library's format is in `preprocess_ms` alone.

A library that ends the process, makes the GPU unusable or takes longer than --patience is written down, and a
new process goes on without it. The file is written after each product: the same command goes on where it was
cut off. It has the rows of `gnnsparse bench kernels`; "rivals" says how each library is had, and why it is
not there, and "attention", on demand, has what `attention_peers` writes.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch

from benchmarks import attention_peers
from gnnsparse.bench import candidates
from gnnsparse.bench.arguments import parse_matrix, unique_names
from gnnsparse.bench.candidates import Peer, check_memory, edge_index_of
from gnnsparse.bench.cusparse import cusparse_variants
from gnnsparse.bench.kernels import Bench, Settings
from gnnsparse.bench.kernels_command import add_ratios, as_json, go_on, print_report
from gnnsparse.bench.session import Row, progress
from gnnsparse.bench.workload import Reference, Subject, UnavailableError, Variant, Workload
from gnnsparse.data.generators import BLOCK_MODELS, GENERATED_GRAPHS
from gnnsparse.runtime.environment import write_json
from gnnsparse.runtime.profiler import wide_console

_T = TypeVar("_T")

GLUE = Path(__file__).parent / "rivals"
FP16, TF32, FP32 = "fp16", "tf32", "fp32"
#: Prints where the Python and the torch that a library is built for have their headers and libraries.
ABOUT_TORCH = """
import json, sysconfig, torch.utils.cpp_extension as c
print(json.dumps([c.include_paths("cuda") + [sysconfig.get_path("include")], c.library_paths()]))
"""
TORCH_LIBRARIES = ("-lc10", "-lc10_cuda", "-ltorch_cpu", "-ltorch_cuda", "-ltorch")


@dataclass(frozen=True)
class Kernel:
    """A kernel by its number in benchmarks/rivals; `adds`: to y, which is zeroed; `single`: y is float32."""

    variant: int
    precision: str
    adds: bool = False
    single: bool = False


@dataclass(frozen=True)
class Rival:
    """A library that multiplies: where it is had, how it is compiled, and what its kernels can do.

    Attributes:
        repository, commit: on GitHub.
        folders: to include, in the library; `sources`: its files to compile beside the one in GLUE.
        kernels: by name; the fastest that is right is the library's. `options`: of nvcc.
        widths: what columns of X are a multiple of, or their only number with `one_width`.
        torch: whether its files include torch's.
        weights: whether A may have weights; else it is of ones.
    """

    repository: str
    commit: str
    folders: tuple[str, ...]
    kernels: dict[str, Kernel]
    sources: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    widths: int = 64
    one_width: bool = False
    torch: bool = False
    weights: bool = False

    def problem(self, work: Workload) -> str | None:
        """Return why it can't run a product, or None."""
        csr = work.subject.csr
        if not self.weights and work.subject.kind != "none":
            return "needs a matrix of ones"
        if csr.rows != csr.cols:
            return f"needs a square matrix, this one is {csr.rows} x {csr.cols}"
        if work.width != self.widths if self.one_width else work.width % self.widths:
            return f"{work.width} columns; accepted: {self.widths}{'' if self.one_width else ' n'}"
        if csr.nnz >= 2**31 or csr.rows * work.width >= 2**31:
            return "has more elements than int32 counts"
        if all(k.precision != work.precision.value for k in self.kernels.values()):
            return f"has no {work.precision.value}"
        return None


RIVALS = {
    "FlashSparse": Rival(
        "ParCIS/FlashSparse", "168764612c1a2ad5b8661be22cfb6a8ae044bada", ("FlashSparse",),
        {
            "fp16": Kernel(0, FP16), "fp16, balanced": Kernel(1, FP16, adds=True, single=True),
            "tf32": Kernel(2, TF32), "tf32, balanced": Kernel(3, TF32, adds=True),
        },
        ("FlashSparse/Block_gpu/block_kernel.cu",), torch=True,
    ),
    "RoDe": Rival(
        "CRAFT-THU/RoDe", "f446e29802015df3d2fd9cc904f4cbe0cce97f3a", (".", "utils", "RoDe_SpMM"),
        {"": Kernel(0, FP32, adds=True)}, ("RoDe_SpMM/RoDeSpmm.cu",), ("--use_fast_math",), weights=True,
    ),
    "DTC-SpMM": Rival(
        "HPMLL/DTC-SpMM_ASPLOS24", "66eca266bde1f3faf5f8ef7a054db2391b50e27d", ("DTC-SpMM",),
        {"float4, split": Kernel(0, TF32), "float4, split, balanced": Kernel(1, TF32, adds=True)},
        widths=128, torch=True,
    ),
    "Acc-SpMM": Rival(
        "RokumeikanLu/AccSpMM", "85d92d20927455322ebcaa537bda6f4a62d730df", ("include",),
        {"": Kernel(0, TF32, adds=True)}, widths=128, weights=True,
    ),
    "CoTC-SpMM": Rival(
        "seery-cmd/CoTC-SpMM", "5a307f28adc8fa14c94703fa055b8b0b1e9efc7f", (".",),
        {"": Kernel(0, FP16, adds=True)}, widths=256, one_width=True, weights=True,
    ),
}  # fmt: skip

#: Those that nothing is compiled for here, and those that `attention_peers` imports.
OTHERS = {
    "cusparse-new": "pip download --no-deps nvidia-cusparse, of which libcusparse.so is taken",
    "torch.compile": "torch",
    "pyg": "pip install torch-geometric (pyg_lib has no sum over edges by itself)",
    "FA4, FlexAttention FLASH": "pip install flash-attn-4 nvidia-cutlass-dsl[cu13] quack-kernels",
    "Fused3S": "github.com/HPCForge/Fused3S 3480ef4c, src/: setup.py; with CUDA 13 F3S.cpp by nvcc -x cu",
    "turbo-gnn": "github.com/Abusagit/Turbo-GNN 5a883d2: pip install --no-build-isolation .",
    "anemoi": "github.com/ecmwf/anemoi-core models-0.18.0: models/src/anemoi/models/triton/gt.py",
    "DF-GNN": "github.com/zli96/DF-GNN f4d1b92: pip install --no-build-isolation .",
}


def library_of(name: str, folder: Path) -> Path:
    return folder / f"lib{name.lower().replace('-', '_')}.so"


def build_rival(name: str, rival: Rival, options: argparse.Namespace) -> str | None:
    """Fetch and compile a library; returns why it can't be, or None."""
    out, source = library_of(name, options.folder), options.folder / "src" / name
    try:
        if not source.exists():
            url = f"https://github.com/{rival.repository}"
            run_quietly(["git", "clone", "-q", "--filter=blob:limit=1m", "--no-checkout", url, str(source)])
            run_quietly(["git", "-C", str(source), "checkout", "-q", rival.commit])
        run_quietly(compiler_of(name, rival, source, out, options))
    except subprocess.CalledProcessError as error:
        status = f"{error.cmd[0]} ended with status {error.returncode}"
        lines = [line for line in error.stderr.splitlines() if re.search("error|fatal", line)] or [status]
        return f"can't be built: {lines[0][:200]}"
    return None


def run_quietly(command: list[str]) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def compiler_of(name: str, rival: Rival, source: Path, out: Path, options: argparse.Namespace) -> list[str]:
    """Return the command that compiles a library."""
    includes, libraries = [GLUE, *(source / folder for folder in rival.folders)], list[str]()
    if options.cuda:
        includes.append(options.cuda / "include")
    if rival.torch:
        # One of them includes Sputnik, which it calls in a function that is not used here.
        (options.folder / "empty/sputnik/spmm").mkdir(parents=True, exist_ok=True)
        empty = "namespace sputnik { template <typename... T> int CudaSpmm(T...) { return 0; } }\n"
        (options.folder / "empty/sputnik/sputnik.h").write_text(empty)
        (options.folder / "empty/sputnik/spmm/cuda_spmm.h").write_text("")
        more, paths = json.loads(run_quietly([options.python, "-c", ABOUT_TORCH]).splitlines()[-1])
        includes += [options.folder / "empty", *map(Path, more)]
        libraries = [*(f"-L{path}" for path in paths), *TORCH_LIBRARIES]
        there = sorted(options.cuda.glob("lib/libcusparse.so*")) if options.cuda else []
        libraries += [f"-L{there[0].parent}", f"-l:{there[0].name}"] if there else ["-lcusparse"]
    arch = options.arch
    return [
        "nvcc", "-w", "-shared", "-O3", "-std=c++17", "--expt-relaxed-constexpr", "-Xcompiler", "-fPIC",
        "-Xlinker", "--unresolved-symbols=ignore-in-shared-libs", *rival.options,
        "-gencode", f"arch=compute_{arch},code=sm_{arch}", *(f"-I{path}" for path in includes),
        str(GLUE / f"{name.split('-')[0].lower()}.cu"), *(str(source / file) for file in rival.sources),
        *libraries, "-o", str(out),
    ]  # fmt: skip


def build_cusparse(options: argparse.Namespace) -> str | None:
    """Take the newest libcusparse from the package index; returns why it can't be, or None."""
    wheels = options.folder / "wheels"
    pip = [options.python, "-m", "pip", "download", "-q", "--no-deps", "-d", str(wheels)]
    try:
        run_quietly([*pip, "nvidia-cusparse"])
    except subprocess.CalledProcessError as error:
        return f"can't be had: {error.stderr.strip().splitlines()[-1][:200]}"
    with zipfile.ZipFile(max(wheels.glob("nvidia_cusparse*.whl"), key=os.path.getmtime)) as wheel:
        (member,) = (name for name in wheel.namelist() if "/libcusparse.so" in name)
        library_of("cusparse-new", options.folder).write_bytes(wheel.read(member))
    return None


def build(options: argparse.Namespace) -> int:
    failed = False
    for name in [*RIVALS, "cusparse-new"]:
        if name in options.rivals:
            begin, rival = time.perf_counter(), RIVALS.get(name)
            problem = build_rival(name, rival, options) if rival else build_cusparse(options)
            print(f"{name}: {problem or 'built'}, {time.perf_counter() - begin:.0f} s", flush=True)
            library_of(name, options.folder).with_suffix(".problem").write_text(problem or "")
            failed |= problem is not None
    return int(failed)


def problem_of(name: str, folder: Path) -> str | None:
    """Return why a library of the folder can't be measured."""
    library = library_of(name, folder)
    told = library.with_suffix(".problem")
    return None if library.exists() else told.read_text() if told.exists() else "is not built"


def version_of(cusparse: ctypes.CDLL) -> str:
    parts = (ctypes.c_int * 3)()
    for number in range(3):  # MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL
        cusparse.cusparseGetProperty(number, ctypes.byref(parts, 4 * number))
    return ".".join(map(str, parts))


def how_had(folder: Path) -> dict[str, dict[str, Any]]:
    """Return for each library how it is had, and why it can't be measured."""
    found: dict[str, dict[str, Any]] = {
        name: {"how": f"github.com/{rival.repository} {rival.commit}", "problem": problem_of(name, folder)}
        for name, rival in RIVALS.items()
    }
    for name, how in OTHERS.items():
        peer = attention_peers.PEERS.get(name.split(",")[0])
        found[name] = {"how": how, "problem": peer.problem() if peer else None}
    new = found["cusparse-new"]
    new["problem"] = problem_of("cusparse-new", folder)
    if new["problem"] is None:
        new["version"] = version_of(ctypes.CDLL(str(library_of("cusparse-new", folder))))
    return found


def show(options: argparse.Namespace) -> int:
    for name, about in how_had(options.folder).items():
        print(f"{name}: {about['problem'] or 'there'}\n    {about['how']}")
    return 0


class Trials:
    """What is being tried, in a file, so that it is known if the process ends; and what ended one before."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.file, self.patience = options.out.with_suffix(".trying"), options.patience
        self.wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
        self.ended: dict[str, str] = json.loads(options.about)["ended"]
        self.keys: list[str] = []

    def run(self, key: str, work: Callable[[], _T]) -> _T:
        """Return what work returns, with its limit of time; RuntimeError: it ended a process before.

        What is tried within has a limit of its own, after which that of the outer work begins anew.
        """
        if key in self.ended:
            raise RuntimeError(self.ended[key])
        self.keys.append(key)
        try:
            self._watch()
            found = work()
            self.wait()
        except torch.AcceleratorError as error:
            # The GPU can't be used by this process any more.
            self.file.write_text(json.dumps([key, f"crashed: {candidates.first_line(error)}"]))
            os._exit(3)
        finally:
            self.keys.pop()
            self._watch()
        return found

    def _watch(self) -> None:
        # Without a handler the signal ends the process, in the middle of a call of C as well.
        signal.alarm(self.patience if self.keys else 0)
        if self.keys:
            self.file.write_text(json.dumps([self.keys[-1], "ended the process"]))
        else:
            self.file.unlink()


class Saved(Bench):
    """A run with a limit of time for each product, after which its file is written."""

    def __init__(self, settings: Settings, options: argparse.Namespace, trials: Trials) -> None:
        super().__init__(settings, progress())
        self.out, self.about, self.trials = options.out, json.loads(options.about), trials

    def measure_all(self) -> int:
        """Measure what the file does not have, and return the exit status."""
        done = go_on(self, self.out)
        if self.rows:  # the last matrix may have been cut off: what it has is kept, its skipped cases recur
            last = self.rows[-1]["graph"]
            done.discard(last)
            self.skipped = [case for case in self.skipped if case["graph"] != last]
        for spec in self.settings.matrices:
            if spec.name not in done:
                self.run_matrix(spec)
                self.save()
        print_report(self, wide_console(160))
        return self.status

    def save(self) -> None:
        add_ratios(self.rows, self.settings.device)
        write_json(self.out, {**as_json(self), **self.about})

    def _add(self, name: str, reference: Reference, ours: bool, measured: Callable[[], Row]) -> Row | None:
        work, begin = reference.work, time.perf_counter()
        product = work.subject.name, work.precision.value, work.width
        for row in self.rows:
            if (row["graph"], row["precision"], row["width"], row["kernel"]) == (*product, name):
                return row
        key = "{}: {}, {}, {} columns".format(name, *product)
        found = super()._add(name, reference, ours, lambda: self.trials.run(key, measured))
        took = "skipped" if found is None else f"{found['ms']:.4g} ms"
        self.tell(f"{key}: {took} ({time.perf_counter() - begin:.1f} s)")
        self.save()
        return found


class Library:
    """A library that was built, and the matrices that it has converted."""

    def __init__(self, name: str, rival: Rival, path: Path, trials: Trials) -> None:
        self.name, self.rival, self.trials = name, rival, trials
        self.functions = ctypes.CDLL(str(path))
        self.functions.prepare.restype = ctypes.c_void_p
        self.converted = WeakKeyDictionary[Subject, dict[int, tuple[int, float]]]()

    def variants(self, work: Workload) -> Iterator[Variant]:
        """Yield the library's kernels for a product; UnavailableError if it has none."""
        if problem := self.rival.problem(work):
            raise UnavailableError(problem)
        for name, kernel in self.rival.kernels.items():
            if kernel.precision == work.precision.value:
                yield name, partial(self.bind, name, kernel, work)

    def bind(self, name: str, kernel: Kernel, work: Workload) -> tuple[Callable[[], torch.Tensor], float]:
        """Return the call of a kernel, which has run once, and the milliseconds of the conversion."""
        csr, (x,) = work.subject.csr, work.dense
        dtype = torch.float32 if kernel.single else x.dtype
        out = torch.zeros(-(-csr.rows // 16) * 16, work.width, dtype=dtype, device=x.device)

        def call() -> torch.Tensor:
            if x.is_cuda and torch.cuda.current_stream() != torch.cuda.default_stream():
                raise RuntimeError("its kernels run on the default stream, which no CUDA graph has")
            if kernel.adds:
                out.zero_()
            pointers = (ctypes.c_void_p(p) for p in (matrix, x.data_ptr(), out.data_ptr()))
            if status := self.functions.multiply(*pointers, work.width):
                raise RuntimeError(f"cudaError_t {status} at the launch")
            return out[: csr.rows]

        key = f"{self.name} {name}: {work.subject.name}, "
        convert = partial(self.convert, kernel.variant, work.subject)
        matrix, milliseconds = self.trials.run(f"{key}conversion", convert)
        self.trials.run(f"{key}{work.precision.value}, {work.width} columns", call)
        return call, milliseconds

    def convert(self, variant: int, subject: Subject) -> tuple[int, float]:
        """Return the library's matrix, which is converted once for all widths, and its milliseconds."""
        made = self.converted.setdefault(subject, {})
        if variant not in made:
            csr, values = subject.csr, subject.explicit_values
            arrays = csr.indptr.int(), csr.indices.int(), values.float()
            self.trials.wait()
            begin = time.perf_counter()
            pointers = (ctypes.c_void_p(array.data_ptr()) for array in arrays)
            matrix = self.functions.prepare(csr.rows, csr.cols, csr.nnz, *pointers, variant)
            self.trials.wait()
            made[variant] = matrix, 1e3 * (time.perf_counter() - begin)
        return made[variant]


def gather_and_sum(x: torch.Tensor, source: torch.Tensor, target: torch.Tensor, rows: int) -> torch.Tensor:
    return x.new_zeros(rows, x.shape[1]).index_add_(0, target, x[source])


def compiled(work: Workload) -> Callable[[], torch.Tensor]:
    """Bind a gather and a sum over edges, without weights, compiled once for a dtype."""
    csr, (x,) = work.subject.csr, work.dense
    check_memory(csr, work.row_bytes)
    return partial(torch.compile(gather_and_sum, dynamic=True), x, *edge_index_of(csr), csr.rows)


def register(options: argparse.Namespace, trials: Trials) -> list[str]:
    """Add the libraries of the folder to the peers of `gnnsparse bench kernels`, and return all names."""
    found = dict[str, Peer]()
    if options.device == "cuda":
        found |= {name: candidates.PEERS[name] for name in ("cusparse-best", "cusparse")}
        # These add in the dtype of X, edge by edge: wrong in fp16, where torch.compile takes seconds as well.
        found["pyg"] = replace(candidates.PEERS["pyg"], precisions=(FP32,))
        found["torch.compile"] = Peer(("spmm",), ("cuda",), compiled, (FP32,))
        if (new := library_of("cusparse-new", options.folder)).exists():
            newest = partial(cusparse_variants, library=ctypes.CDLL(str(new)))
            found["cusparse-new"] = Peer(("spmm",), ("cuda",), newest)
    for name, rival in RIVALS.items():
        if (path := library_of(name, options.folder)).exists():
            library, kernels = Library(name, rival, path, trials), rival.kernels.values()
            precisions = tuple({kernel.precision for kernel in kernels})
            found[name] = Peer(("spmm",), (options.device,), library.variants, precisions)
    candidates.PEERS.update(found)
    return [name for name in found if name in ("cusparse-best", "cusparse", *options.rivals)]


def measure(options: argparse.Namespace) -> int:
    """Measure in this process, which a library may end."""
    trials = Trials(options)
    settings = Settings(
        matrices=tuple(unique_names(spec for text in options.matrix for spec in parse_matrix(text))),
        device=options.device, precisions=tuple(options.precision), widths=tuple(options.width),
        values=("none",), kernels=("auto",), peers=tuple(register(options, trials)), repeats=options.repeats,
        timing="graph" if options.device == "cuda" else "events",
    )  # fmt: skip
    return Saved(settings, options, trials).measure_all()


def run(options: argparse.Namespace) -> int:
    """Measure in processes that are begun anew where one has ended."""
    ended: dict[str, str] = {}
    about = {"rivals": how_had(options.folder), "ended": ended}
    trying = options.out.with_suffix(".trying")
    given = [sys.executable, "-m", "benchmarks.peers", "measure", *sys.argv[2:]]
    while True:
        trying.unlink(missing_ok=True)
        status = subprocess.run([*given, "--about", json.dumps(about)]).returncode
        if not trying.exists():
            break
        key, ended[key] = json.loads(trying.read_text())
        if status == -signal.SIGALRM:
            ended[key] = f"took more than {options.patience} s"
        elif status < 0:
            ended[key] = f"crashed: {signal.Signals(-status).name}"
        print(f"{key}: {ended[key]}; going on without it", flush=True)
    if options.attention and options.out.exists():
        rows = options.out.with_suffix(".attention")
        attention_peers.main(["--out", str(rows), "--repeats", str(options.repeats)])
        write_json(
            options.out, {**json.loads(options.out.read_text()), "attention": json.loads(rows.read_text())}
        )
        rows.unlink()
    return status


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("command", choices=("list", "build", "run", "measure"))
    parser.add_argument("--folder", type=Path, required=True, help="of the libraries, outside of the project")
    names = [*RIVALS, *OTHERS]
    parser.add_argument("--rivals", nargs="+", default=names, choices=names, metavar="NAME")
    parser.add_argument("--arch", default="90a", help="build: compute capability")
    parser.add_argument("--python", default=sys.executable, help="build: the Python whose torch will run")
    parser.add_argument("--cuda", type=Path, help="build: folder of pip's CUDA libraries, include and lib")
    parser.add_argument("--out", type=Path, default=Path("peers.json"), help="run: JSON file to write")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    graphs = sorted(GENERATED_GRAPHS, key=lambda name: BLOCK_MODELS[name].nnz)  # a cut run has the small ones
    parser.add_argument("--matrix", nargs="+", default=graphs, help="as of bench kernels")
    parser.add_argument("--precision", nargs="+", default=[FP16, TF32, FP32])
    parser.add_argument("--width", nargs="+", type=int, default=[128, 256])
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument(
        "--patience", type=int, default=30, help="seconds of a conversion, a first call, or what follows"
    )
    parser.add_argument("--attention", action="store_true", help="run: attention_peers as well")
    parser.add_argument("--about", help="measure: what the file says of libraries, as JSON")
    options = parser.parse_args(arguments)
    if options.command == "build" and options.folder.resolve().is_relative_to(GLUE.parents[1]):
        parser.error(f"--folder: {options.folder} is in the project; accepted: folders outside of it")
    return options


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    return {"list": show, "build": build, "run": run, "measure": measure}[options.command](options)


if __name__ == "__main__":
    sys.exit(main())
