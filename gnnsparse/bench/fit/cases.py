"""What the kernels take on a number of matrices: the measurements that a record is fitted to."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

import gnnsparse
from gnnsparse.bench.matrices import MatrixSpec, parse_matrix
from gnnsparse.bench.workload import make_subject
from gnnsparse.environment import write_json
from gnnsparse.gpus import GpuRecord
from gnnsparse.kernel_cache import KernelCache, Product
from gnnsparse.ops.tuning import milliseconds, runner
from gnnsparse.plain import from_plain, to_plain
from gnnsparse.plan import KERNELS, Plan, Problem, plan_from_plain
from gnnsparse.plan.panel import PanelKernel
from gnnsparse.precision import Precision

__all__ = ["SUITE", "Case", "measure_cases", "read_cases", "write_cases"]

#: The matrices: graphs of different degree, structure and size, small ones among them, whose time is that of
#: their longest warp.
SUITE = (
    "dd_like", "dd_like:scale=0.02", "dd_like:scale=0.2", "arxiv_like", "arxiv_like:scale=0.02",
    "arxiv_like:scale=0.2", "amazon_like", "amazon_like:scale=0.05", "reddit_like:scale=0.02",
    "reddit_like:scale=0.15", "products_like:scale=0.1", "reddit_like", "products_like",
)  # fmt: skip
_PRECISIONS = (Precision.FP16, Precision.TF32, Precision.FP32)
_WIDTHS, _SCORE_WIDTHS, _STORED_WIDTHS = (32, 64, 128, 256), (64, 128), (128,)
_REPEATS = 7
#: Above this many nonzeros the variants of a plan are not all measured.
_LARGE = 2 * 10**7


@dataclass(frozen=True)
class Case:
    """A problem and what its plans take.

    Attributes:
        name: of the matrix.
        problem: the counts.
        times: milliseconds of each plan that could run.
    """

    name: str
    problem: Problem
    times: dict[Plan, float]


def _plans(problem: Problem) -> list[Plan]:
    """The plans that the choice is made among; of a large matrix only a few ways to cut its panels."""
    found: dict[Plan, None] = {}
    for kernel in KERNELS[problem.op]:
        if not kernel.can_run(problem):
            continue
        plans: list[Plan] = [kernel.default(problem)]
        if isinstance(kernel, PanelKernel):
            options = kernel.options(problem)
            least = min(option.tile_limit for option in options)
            plans += [
                option
                for option in options
                if problem.nnz < _LARGE or (option.slices <= 2 and option.tile_limit == least)
            ]
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
    """Measures the kernels on the suite and on other matrices.

    A matrix that can't be measured is told and left out.

    Args:
        device: a GPU.
        more: matrices beside those of the suite.
        tell: is given a line about each matrix.
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
    """A plan and what it takes, as a file has them."""

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
    """Writes measurements, so that a record can be fitted to them again where there is no GPU.

    Args:
        path: of the JSON file.
        start: the record that the fit starts from, with the memory rates that were measured.
        cases: what was measured.
        about: where and when: plain values.
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
    """What `write_cases` wrote: the record to start from, the cases, and where they come from.

    Raises:
        ValueError: the file can't be read or holds something else; the message names what is wrong.
    """
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    file: _File = from_plain(_File, content, str(path))
    cases = []
    for listed in file.cases:
        plans = {plan_from_plain(dict(measured.plan)): measured.milliseconds for measured in listed.times}
        if None in plans:
            raise ValueError(f"{path}: {listed.name}: has a plan that no kernel knows")
        cases.append(Case(listed.name, listed.problem, plans))  # type: ignore[arg-type]
    return file.start, cases, dict(file.about)
