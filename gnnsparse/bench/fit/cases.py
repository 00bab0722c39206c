"""The measurements that a record is fitted to: times of plans on a suite of matrices."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import gnnsparse
from gnnsparse.bench.matrices import MatrixSpec, parse_matrix
from gnnsparse.bench.workload import make_subject
from gnnsparse.ops.tuning import milliseconds, runner
from gnnsparse.plan import KERNELS, Plan, Problem, plan_from_plain
from gnnsparse.plan.gpu_records import GpuRecord
from gnnsparse.plan.panel import PanelKernel
from gnnsparse.precision import Precision
from gnnsparse.runtime.environment import write_json
from gnnsparse.runtime.safe_io import read_json
from gnnsparse.runtime.serialization import from_plain, to_plain
from gnnsparse.sparse.kernel_cache import KernelCache
from gnnsparse.sparse.kernel_keys import Product

__all__ = ["SUITE", "Case", "measure_cases", "read_cases", "write_cases"]

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
    """A problem and the measured times of its plans.

    Attributes:
        name: name of the matrix.
        problem: the problem.
        times: milliseconds of each plan that could run.
    """

    name: str
    problem: Problem
    times: dict[Plan, float]


def _plans(problem: Problem) -> list[Plan]:
    """Returns the plans that the choice is made among."""
    found: dict[Plan, None] = {}
    for kernel in KERNELS[problem.op]:
        if not kernel.can_run(problem):
            continue
        plans: list[Plan] = [kernel.default(problem)]
        if isinstance(kernel, PanelKernel):
            plans += kernel.options(problem)
        found.update((replace(plan, reasons=()), None) for plan in plans)
    return list(found)


def _measured(name: str, kernels: KernelCache, product: Product) -> Case:
    problem = kernels.problem(product)
    run = runner(kernels.scratch(), product)
    times = {plan: milliseconds(run, plan, kernels.csr.device, _REPEATS) for plan in _plans(problem)}
    return Case(name, problem, {plan: ms for plan, ms in times.items() if ms < math.inf})


def _cases_of(spec: MatrixSpec, device: torch.device) -> Iterator[Case]:
    graph = spec.load(device)
    square = graph.num_rows == graph.num_cols
    for kind in ("gcn" if square else "none", "random"):
        subject = make_subject(spec.name, graph, kind)
        for precision in _PRECISIONS:
            values = "gcn" if kind == "gcn" else None
            a = gnnsparse.prepare(subject.graph, values=values, precision=precision, cache=False)
            stored = kind == "random"
            products = [Product("spmm", width) for width in (_STORED_WIDTHS if stored else _WIDTHS)]
            products += [] if stored else [Product("sddmm", width) for width in _SCORE_WIDTHS]
            for product in products:
                yield _measured(spec.name, a.kernels, product)
            del a
        del subject
        torch.cuda.empty_cache()


def measure_cases(
    device: torch.device, more: tuple[MatrixSpec, ...], tell: Callable[[str], None]
) -> list[Case]:
    """Measures the kernels on the suite and on further matrices.

    Matrices that can't be measured are reported by `tell` and left out.

    Args:
        device: a GPU.
        more: further matrices.
        tell: called with a line of text about each matrix.

    Returns:
        The cases that have times of two or more plans.
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
class _Measured:
    """A plan, as plain values, and its time in a file of measurements."""

    plan: Mapping[str, Any]
    milliseconds: float


@dataclass(frozen=True)
class _FileCase:
    name: str
    problem: Problem
    times: tuple[_Measured, ...]


@dataclass(frozen=True)
class _File:
    start: GpuRecord
    about: Mapping[str, Any]
    cases: tuple[_FileCase, ...]


def write_cases(path: Path, start: GpuRecord, cases: list[Case], about: dict[str, Any]) -> None:
    """Writes measurements to a file, so that a record can be fitted to them on a machine without a GPU.

    Args:
        path: the JSON file.
        start: the record that the fit starts from, with the measured memory rates.
        cases: the measurements.
        about: the environment that they were measured in, as plain values.
    """
    listed = tuple(
        _FileCase(
            case.name, case.problem,
            tuple(_Measured({"kernel": p.kernel, **to_plain(p)}, ms) for p, ms in case.times.items()),
        )
        for case in cases
    )  # fmt: skip
    write_json(path, to_plain(_File(start, about, listed)))


def read_cases(path: Path) -> tuple[GpuRecord, list[Case], dict[str, Any]]:
    """Reads a file that `write_cases` wrote.

    Returns:
        The record to start from, the cases, and the environment that they were measured in.

    Raises:
        ValueError: the file can't be read, or an entry is wrong, which the message names.
    """
    try:
        content = read_json(path)
    except OSError as error:
        raise ValueError(f"{path}: {error}") from error
    file: _File = from_plain(_File, content, str(path))
    cases = []
    for listed in file.cases:
        plans = {plan_from_plain(dict(measured.plan)): measured.milliseconds for measured in listed.times}
        if None in plans:
            raise ValueError(f"{path}: {listed.name}: has a plan that no kernel knows")
        cases.append(Case(listed.name, listed.problem, plans))  # type: ignore[arg-type]
    return file.start, cases, dict(file.about)
