"""What a record is fitted to: times of plans on a suite of matrices, and the rates of the GPU's memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

import gnnsparse
from gnnsparse.bench.matrices import MatrixSpec, parse_matrix
from gnnsparse.bench.workload import make_subject
from gnnsparse.ops.dense import CudaLoader
from gnnsparse.ops.tuning import milliseconds, runner
from gnnsparse.plan import KERNELS, Plan, Problem, plan_from_plain
from gnnsparse.plan.gpu_records import GpuRecord
from gnnsparse.plan.gpu_records.record import MemoryRates
from gnnsparse.plan.panel import PanelKernel
from gnnsparse.precision import Precision, dense_view
from gnnsparse.runtime.device import GATHER_FLOOR_WORDS, SLICE_BYTES, describe_device, path
from gnnsparse.runtime.environment import write_json
from gnnsparse.runtime.safe_io import read_json
from gnnsparse.runtime.serialization import from_plain, to_plain
from gnnsparse.runtime.timing import measure
from gnnsparse.sparse.kernel_cache import Product

__all__ = ["Case", "measure_cases", "measure_memory", "read_cases", "write_cases"]

#: The matrices: graphs of different degree, structure and size. The time of small ones is bound by their
#: longest warp.
SUITE = (
    "dd_like", "dd_like:scale=0.02", "dd_like:scale=0.2", "arxiv_like", "arxiv_like:scale=0.02",
    "arxiv_like:scale=0.2", "amazon_like", "amazon_like:scale=0.05", "reddit_like:scale=0.02",
    "reddit_like:scale=0.15", "products_like:scale=0.1", "reddit_like", "products_like",
)  # fmt: skip
_PRECISIONS = (Precision.FP16, Precision.TF32, Precision.FP32)
_WIDTHS, _SCORE_WIDTHS, _STORED_WIDTHS = (32, 64, 128, 256), (64, 128), (128,)
_REPEATS = 7


@dataclass(frozen=True)
class Case:
    """A problem of a matrix, and the milliseconds of each plan that could run."""

    name: str
    problem: Problem
    times: dict[Plan, float]


def _plans(problem: Problem) -> list[Plan]:
    """Return the plans that the choice is made among."""
    found: dict[Plan, None] = {}
    for kernel in KERNELS[problem.op]:
        if not kernel.can_run(problem):
            continue
        plans: list[Plan] = [kernel.default(problem)]
        if isinstance(kernel, PanelKernel):
            plans += kernel.options(problem)
        found.update((replace(plan, reasons=()), None) for plan in plans)
    return list(found)


def _cases_of(spec: MatrixSpec, device: torch.device) -> Iterator[Case]:
    graph = spec.load(device)
    square = graph.num_rows == graph.num_cols
    for kind in ("gcn" if square else "none", "random"):
        subject, stored = make_subject(spec.name, graph, kind), kind == "random"
        products = [Product("spmm", width) for width in (_STORED_WIDTHS if stored else _WIDTHS)]
        products += [] if stored else [Product("sddmm", width) for width in _SCORE_WIDTHS]
        for precision in _PRECISIONS:
            values = "gcn" if kind == "gcn" else None
            kernels = gnnsparse.prepare(
                subject.graph, values=values, precision=precision, cache=False
            ).kernels
            for product in products:
                problem, run = kernels.problem(product), runner(kernels.scratch(), product)
                times = {plan: milliseconds(run, plan, device, _REPEATS) for plan in _plans(problem)}
                yield Case(spec.name, problem, {plan: ms for plan, ms in times.items() if ms < math.inf})
            del kernels, run
        del subject
        torch.cuda.empty_cache()


def measure_cases(
    device: torch.device, more: tuple[MatrixSpec, ...], tell: Callable[[str], None]
) -> list[Case]:
    """Measure the kernels on the suite and on `more`, and return the cases that have times of several plans.

    Matrices that can't be measured are reported by `tell` and left out.
    """
    specs = [*(spec for text in SUITE for spec in parse_matrix(text)), *more]
    cases: list[Case] = []
    for spec in specs:
        before = len(cases)
        try:
            with torch.no_grad():
                cases += _cases_of(spec, device)
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            tell(f"{spec.name}: left out: {str(error).splitlines()[0][:120]}")
            continue
        tell(f"{spec.name}: {len(cases) - before} cases")
    return [case for case in cases if len(case.times) > 1]


@dataclass(frozen=True)
class _FileCase:
    """A case in a file of measurements, with plans as plain values."""

    name: str
    problem: Problem
    times: tuple[tuple[Mapping[str, Any], float], ...]


@dataclass(frozen=True)
class _File:
    start: GpuRecord
    about: Mapping[str, Any]
    cases: tuple[_FileCase, ...]


def write_cases(path: Path, start: GpuRecord, cases: list[Case], about: dict[str, Any]) -> None:
    """Write measurements to a file, so that a record can be fitted to them on a machine without a GPU."""
    listed = []
    for case in cases:
        times = tuple(({"kernel": p.kernel, **to_plain(p)}, ms) for p, ms in case.times.items())
        listed.append(_FileCase(case.name, case.problem, times))
    write_json(path, to_plain(_File(start, about, tuple(listed))))


def read_cases(path: Path) -> tuple[GpuRecord, list[Case], dict[str, Any]]:
    """Read (record to start from, cases, environment) of `write_cases`; ValueError names a wrong entry."""
    try:
        file: _File = from_plain(_File, read_json(path), str(path))
    except OSError as error:
        raise ValueError(f"{path}: {error}") from error
    cases = []
    for listed in file.cases:
        plans = {plan_from_plain(dict(plan)): ms for plan, ms in listed.times}
        if None in plans:
            raise ValueError(f"{path}: {listed.name}: has a plan that no kernel knows")
        cases.append(Case(listed.name, listed.problem, plans))  # type: ignore[arg-type]
    return file.start, cases, dict(file.about)


# Measures the rates of a GPU's memory: copies, passes over X, and random rows read through L2.

#: Sizes in bytes of an X whose random rows are read.
_SIZES = (4e6, 15e6, 30e6, 45e6, 60e6, 90e6, 120e6, 240e6, 640e6)
#: Number of rows that are read, bytes of the large copy, and bytes of X in the two passes.
_GATHERED, _COPY, _PASSES = 2**24, 2**30, (2**20, 2**28)
#: A slice of X counts as resident in L2 if its rows are read at this fraction of the rate of a small one.
_RESIDENT = 0.92
#: Features of a slice of 16-bit rows.
_FEATURES = SLICE_BYTES // 2
_COPIES = 10


def _seconds(call: Callable[[], object], device: torch.device, graph: bool = True) -> float:
    return measure(call, device, repeats=_COPIES, graph=graph).median / 1e3


def _copy_rate(device: torch.device) -> float:
    """Measure TB/s of a large copy, counting bytes read and written."""
    # Not in a CUDA graph: a copy that is a node of one ran at 0.6 of the rate on an H200.
    source = torch.randint(2**31 - 1, (_COPY // 4,), dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    return 2 * _COPY / _seconds(lambda: target.copy_(source), device, graph=False) / 1e12


def _gather_rate(size: float, device: torch.device) -> float:
    """Measure TB/s of random rows read from an X of `size` bytes."""
    x = torch.randn(int(size) // (2 * _FEATURES), _FEATURES, device=device).half()
    columns = torch.randint(x.shape[0], (_GATHERED,), dtype=torch.int32, device=device)
    processors = describe_device(device).multiprocessors
    out = torch.empty(processors, GATHER_FLOOR_WORDS, dtype=torch.int32, device=device)
    gpu, view = path(), dense_view(x)

    def call() -> None:
        gpu.native.cuda_gather_floor(columns, view, _FEATURES, out, gpu.stream(device))

    return 2 * _FEATURES * _GATHERED / _seconds(call, device) / 1e12


def _pass_costs(device: torch.device) -> tuple[float, float]:
    """Measure a pass that reads X, scales its rows and writes them: microseconds of its start, and TB/s."""
    times = []
    for size in _PASSES:
        x = torch.randn(size // SLICE_BYTES, _FEATURES, device=device).half()
        load = CudaLoader(Precision.FP16, _FEATURES, torch.ones(x.shape[0], device=device))
        times.append(_seconds(lambda load=load, x=x: load(x), device))  # type: ignore[misc]
    rate = 2 * (_PASSES[1] - _PASSES[0]) / (times[1] - times[0]) / 1e12
    start = max(times[0] - 2 * _PASSES[0] / rate / 1e12, 0.0)
    return 1e6 * start, rate


def _resident_bytes(rates: list[tuple[float, float]]) -> int:
    """Interpolate the bytes of the largest X whose rows are read nearly as fast as those of a small one."""
    least = _RESIDENT * rates[0][1]
    for (small, fast), (large, slow) in pairwise(rates):
        if slow < least:
            return int(small + (large - small) * (fast - least) / max(fast - slow, 1e-9))
    return int(rates[-1][0])


def measure_memory(start: MemoryRates, device: torch.device) -> MemoryRates:
    """Measure the rates of a GPU's memory in a few seconds and 3 GB of it; the rest is that of `start`."""
    rates = [(size, _gather_rate(size, device)) for size in _SIZES]
    first, rate = _pass_costs(device)
    # Rates can't rise with the size of X: where they seem to, it is noise.
    falling = [(size, min(r for _, r in rates[: i + 1])) for i, (size, r) in enumerate(rates)]
    return replace(
        start,
        l2=((0.0, falling[0][1]), *falling[1:]),
        resident_bytes=_resident_bytes(falling),
        pass_start_us=first,
        pass_tbs=rate,
        dram_tbs=_copy_rate(device),
    )
