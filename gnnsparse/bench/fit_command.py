"""The command `gnnsparse bench fit`: measures a GPU, and fits a record by which plans are chosen well.

A record is fitted to times of plans on a suite of matrices, and to the rates of the GPU's memory. Least
squares of the times alone give a model that is nearer to the times and chooses worse. What is minimised is
therefore mainly the regret of the choices: for each case the logarithm of the ratio of the time of the chosen
plan to the time of the best plan. The choice is softened: plans are weighted by how near their modelled times
are to the least one. So the regret has a gradient, and of two plans with nearly equal modelled times each
counts as half chosen. Cases count by a power of the time that they take: a wrong choice costs more on a large
graph than on a small one, whose times are also less certain. The graphs that the benchmarks report have a
larger weight still.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from scipy.optimize import minimize

from gnnsparse.bench.arguments import MatrixSpec, device_option, matrices_option, parse_matrix
from gnnsparse.bench.kernels import prepare_subject
from gnnsparse.bench.session import new_table, printer, progress
from gnnsparse.bench.tiles import NAMES, measure_tiles
from gnnsparse.bench.workload import make_subject
from gnnsparse.data.generators import GENERATED_GRAPHS
from gnnsparse.ops.dense import CudaLoader
from gnnsparse.ops.tuning import milliseconds, runner
from gnnsparse.plan import KERNELS, CsrPlan, PanelPlan, Plan, Problem, WindowPlan, plan_from_plain
from gnnsparse.plan.csr import CSR
from gnnsparse.plan.gpu_records import GpuRecord, record_for, save_record, user_folder, using
from gnnsparse.plan.gpu_records.model import CsrLoad, csr_us, panel_us, panel_variant
from gnnsparse.plan.gpu_records.record import MemoryRates
from gnnsparse.plan.panel import PANELS, PanelKernel
from gnnsparse.precision import Precision, dense_view
from gnnsparse.runtime.device import GATHER_FLOOR_WORDS, SLICE_BYTES, describe_device, path
from gnnsparse.runtime.environment import describe_environment, write_json
from gnnsparse.runtime.safe_io import read_json
from gnnsparse.runtime.serialization import from_plain, to_plain
from gnnsparse.runtime.timing import measure
from gnnsparse.sparse.kernel_cache import Product
from gnnsparse_cli import file_option

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
    plans: list[Plan] = []
    for kernel in KERNELS[problem.op]:
        if kernel.can_run(problem):
            plans.append(kernel.default(problem))
            plans += kernel.options(problem) if isinstance(kernel, PanelKernel) else []
    return list(dict.fromkeys(replace(plan, reasons=()) for plan in plans))


def _cases_of(spec: MatrixSpec, device: torch.device) -> Iterator[Case]:
    graph = spec.load(device)
    square = graph.num_rows == graph.num_cols
    for kind in ("gcn" if square else "none", "random"):
        subject, stored = make_subject(spec.name, graph, kind), kind == "random"
        products = [Product("spmm", width) for width in (_STORED_WIDTHS if stored else _WIDTHS)]
        products += [] if stored else [Product("sddmm", width) for width in _SCORE_WIDTHS]
        for precision in _PRECISIONS:
            kernels = prepare_subject(subject, precision, "none")[0].kernels
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
    """Measure the suite and `more`, and return the cases with several plans; `tell` gets what fails."""
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
    sizes, speeds = np.array(rates[::-1]).T
    return int(np.interp(_RESIDENT * speeds[-1], speeds, sizes))


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


# The fit: a model of times, how good its choices are, and the search for better numbers.

_Group = tuple[Any, ...]
#: Weights of the error of the times and of the squared distance from the start in the objective.
_ERROR, _DISTANCE = 0.5, 2e-4
#: Softness of the choice, as a relative difference of times, in the minimisations one after the other.
_SOFTNESS = (0.1, 0.03, 0.01)
#: The largest factor by which a number may differ from the one it starts from.
_REACH = 8.0
#: A choice is lost if its speed is below this fraction of the best plan's.
LOST = 0.97
#: The exponent of a case's time in its weight, and the factor for SpMM on the graphs of the benchmarks.
_WEIGHT, _BENCHMARK_WEIGHT = 0.15, 8.0
_STEPS, _TRIES = 60, 60000
#: The step of differences that gradients are made of.
_STEP = 1e-3
#: How much worse than the present vector a random change may be, at first, to be kept now and then.
_HEAT = 2e-3


@dataclass(frozen=True)
class Quality:
    """Speeds of a record's choices over the best plan's (lost: below 0.97), and mean `error` of times."""

    cases: int
    lost: int
    worst: float
    mean: float
    error: float


class Table:
    """Measured plans as arrays. Plans whose times the model computes in one call form a group."""

    def __init__(self, cases: list[Case]) -> None:
        rows: dict[_Group, list[tuple[int, Any]]] = defaultdict(list)
        log_times: list[float] = []
        of_case: list[int] = []
        for number, case in enumerate(cases):
            for plan, ms in case.times.items():
                if (found := _load(case, plan)) is None:
                    continue
                group, load = found
                rows[group].append((len(log_times), load))
                log_times.append(float(np.log(1e3 * ms)))
                of_case.append(number)
        self.log_times, self.case = np.array(log_times), np.array(of_case)
        self.cases = len(cases)
        self.groups = {
            group: (np.array([at for at, _ in found]), _stacked([load for _, load in found]))
            for group, found in rows.items()
        }
        best = np.full(self.cases, np.inf)
        np.minimum.at(best, self.case, self.log_times)
        self.regret = self.log_times - best[self.case]
        weight = np.exp(_WEIGHT * best)
        reported = [case.name in GENERATED_GRAPHS and case.problem.op == "spmm" for case in cases]
        weight[reported] *= _BENCHMARK_WEIGHT
        self.weight = weight / weight.mean()

    def model(self, record: Any) -> np.ndarray:
        """Compute the logarithms of the modelled microseconds of each plan by a record, float64 [plans]."""
        modelled = np.empty_like(self.log_times)
        for group, (at, load) in self.groups.items():
            modelled[at] = np.log(_modelled(record, group, load))
        return modelled

    def time_error(self, modelled: np.ndarray) -> float:
        """Return how far modelled times are off; plans far from the best of their case count less."""
        error = np.abs(modelled - self.log_times)
        huber = np.where(error < 0.3, error**2, 0.6 * error - 0.09)
        fraction = np.exp(-self.regret)
        return float((fraction * huber).sum() / fraction.sum())

    def soft_regret(self, modelled: np.ndarray, softness: float) -> np.ndarray:
        """Compute the regret of the softened choice of each case, float64 [cases].

        A relative difference of modelled times of `softness` lowers a plan's weight by a factor e.
        """
        least = np.full(self.cases, np.inf)
        np.minimum.at(least, self.case, modelled)
        fraction = np.exp(-(modelled - least[self.case]) / softness)
        total = np.bincount(self.case, fraction, self.cases)
        return np.bincount(self.case, fraction * self.regret, self.cases) / np.maximum(total, 1e-300)

    def chosen_regret(self, modelled: np.ndarray) -> np.ndarray:
        """Compute the regret of the choice of each case, float64 [cases], from the result of `model`."""
        order = np.lexsort((modelled, self.case))
        first = np.concatenate([[True], self.case[order][1:] != self.case[order][:-1]])
        return self.regret[order][first]


def _load(case: Case, plan: Any) -> tuple[_Group, Any] | None:
    """Return the group of a measured plan, and its load; None if the plan has no model of its own."""
    problem = case.problem
    if isinstance(plan, CsrPlan):
        if plan.narrow:
            return None
        return ("csr", problem.arithmetic, plan.group > 0, problem.op), CSR.load(problem, plan)
    if isinstance(plan, PanelPlan):
        kernel = PANELS[plan.height]
        return ("panel", plan.height, kernel.variant(problem, plan)), kernel.load(problem, plan)
    return None


def _stacked(loads: list[Any]) -> Any:
    kind = type(loads[0])
    return kind(*(np.array([getattr(load, field.name) for load in loads], float) for field in fields(kind)))


def _modelled(record: Any, group: _Group, load: Any) -> np.ndarray:
    if isinstance(load, CsrLoad):
        return np.asarray(csr_us(load, record.memory, record.csr, *group[1:]))
    _, height, variant = group
    row = record.panel.heights[height]
    return np.asarray(panel_us(load, record.memory, record.panel, row, panel_variant(row, variant)))


def quality_of(record: GpuRecord, table: Table) -> Quality:
    """Compute how good a record's choices are on measured cases."""
    modelled = table.model(record)
    regret = table.chosen_regret(modelled)
    return Quality(
        table.cases, int((regret > -np.log(LOST)).sum()), float(np.exp(-regret.max())),
        float(np.exp(-regret.mean())), float(np.abs(np.expm1(modelled - table.log_times)).mean()),
    )  # fmt: skip


class _Numbers:
    """The fitted numbers of a record as a vector of logarithms, relative to the numbers of the start."""

    def __init__(self, start: GpuRecord) -> None:
        # A stand-in for a record, because checking a record for each vector would take most of the time.
        self._tree = _tree(start)
        self._owners = [(owner, name) for owner, name in _fitted(self._tree) if owner[name] > 0]
        self._start = np.array([owner[name] for owner, name in self._owners])
        self.size = self._start.size
        # Bounds of the logarithms. A nonzero near the diagonal costs at most what another one does.
        reach = np.full(self.size, np.log(_REACH))
        at_most = [1.0 if name == "near" else np.inf for _, name in self._owners]
        self.least, self.most = -reach, np.minimum(reach, np.log(at_most / self._start))

    def quick(self, theta: np.ndarray) -> Any:
        """Return an object with the attributes of a vector's record, valid until the next call."""
        for (owner, name), value in zip(self._owners, self._start * np.exp(theta), strict=True):
            owner[name] = float(value)
        return self._tree

    def record(self, theta: np.ndarray) -> GpuRecord:
        """Make the record of a vector."""
        return from_plain(GpuRecord, to_plain(self.quick(theta)), "fit")


class _Tree(dict[Any, Any]):
    """A dictionary whose entries can be read as attributes."""

    __getattr__ = dict.__getitem__


def _tree(value: Any) -> Any:
    if is_dataclass(value):
        return _Tree({field.name: _tree(getattr(value, field.name)) for field in fields(value)})
    if isinstance(value, Mapping):
        return _Tree({key: _tree(item) for key, item in value.items()})
    return value


def _fitted(tree: Any) -> Iterator[tuple[Any, str]]:
    """Yield the fitted numbers of a record, each as the dictionary that holds it and its key."""
    csr = ("start_us", "batch_us", "row_us", "slice_us", "group_row_us", "nnz_us", "near", "sddmm")
    yield from ((tree.csr, name) for name in csr)
    for gather in (tree.csr.row_gather, tree.csr.group_gather):
        yield from ((gather, name) for name in ("half", "tf32", "fp32"))
    yield from ((tree.panel, name) for name in ("power", "slice_in_use", "add_us", "add_part_us"))
    for row in tree.panel.heights.values():
        yield from ((row, name) for name in row if name != "variants")
        for variant, costs in row.variants.items():
            # "busy" of "half" is not fitted: the others are in units of it.
            yield from ((costs, name) for name in costs if (variant, name) != ("half", "busy"))


def _objective(table: Table, numbers: _Numbers, softness: float | None) -> Callable[[np.ndarray], float]:
    """Return what is minimised: the error of the times, and with a softness mainly the regret."""

    def cost(theta: np.ndarray) -> float:
        modelled = table.model(numbers.quick(theta))
        error, distance = table.time_error(modelled), float(_DISTANCE * (theta**2).mean())
        if softness is None:
            return error + distance
        regret = table.soft_regret(modelled, softness)
        lost = np.maximum(regret + np.log(LOST) + 0.01, 0.0)  # from a regret of 2 % on
        return float((table.weight * (regret + 10 * lost)).mean()) + _ERROR * error + distance

    return cost


def _minimised(
    cost: Callable[[np.ndarray], float], theta: np.ndarray, numbers: _Numbers, steps: int
) -> np.ndarray:
    def gradient(theta: np.ndarray) -> np.ndarray:  # scipy's own takes more than twice the time
        here, moves = cost(theta), _STEP * np.eye(theta.size)
        return np.array([cost(theta + move) - here for move in moves]) / _STEP

    found = minimize(
        cost, theta, jac=gradient, method="L-BFGS-B",
        bounds=list(zip(numbers.least, numbers.most, strict=True)), options={"maxiter": steps},
    )  # fmt: skip
    return np.asarray(found.x)


def _annealed(
    cost: Callable[[np.ndarray], float], theta: np.ndarray, numbers: _Numbers, tries: int
) -> np.ndarray:
    """Improve a vector by random changes of a few numbers at a time.

    A change that helps is kept. One that does not is kept with a probability that falls with what it costs
    and with the number of tries, so that the search leaves minima that are not the lowest.
    """
    generator = np.random.default_rng(0)
    best = here = theta
    least = cost_here = cost(theta)
    for attempt in range(tries):
        left = 1 - attempt / tries
        chosen = generator.random(theta.size) < 2.5 / theta.size
        change = (0.3 * left + 0.01) * chosen * generator.standard_normal(theta.size)
        trial = np.clip(here + change, numbers.least, numbers.most)
        value = cost(trial)
        if value < cost_here or generator.random() < np.exp((cost_here - value) / (_HEAT * left**2 + 1e-9)):
            here, cost_here = trial, value
        if value < least:
            best, least = trial, value
    return best


@dataclass(frozen=True)
class Fit:
    """A fitted record, and how good the choices are of the one that the fit started from, and of this one."""

    record: GpuRecord
    before: Quality
    after: Quality


def _with_window(record: GpuRecord, cases: list[Case]) -> GpuRecord:
    """Return the record with the window kernel's measured costs, medians of its ratios to the csr kernel."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for case in cases:
        of = case.problem
        windows = [ms for plan, ms in case.times.items() if isinstance(plan, WindowPlan)]
        csr = [ms for plan, ms in case.times.items() if isinstance(plan, CsrPlan) and not plan.narrow]
        if windows and csr:
            by_row = max(of.slots, 1) / max(of.nnz, 1) if of.op == "spmm" else 1.0
            ratios[of.op].append(windows[0] / csr[0] / by_row)
    found = {op: float(np.median(values)) for op, values in ratios.items()}
    return replace(record, window=replace(record.window, **found))


def _with_variants(record: GpuRecord, table: Table) -> GpuRecord:
    """Return the record with costs for each arithmetic and storage that was measured."""
    heights = dict(record.panel.heights)
    for height, name in sorted(group[1:] for group in table.groups if group[0] == "panel"):
        row = heights[height]
        heights[height] = replace(row, variants={**row.variants, name: panel_variant(row, name)})
    return replace(record, panel=replace(record.panel, heights=heights))


def fit_record(start: GpuRecord, cases: list[Case], *, steps: int = _STEPS, tries: int = _TRIES) -> Fit:
    """Fit the costs of the csr, window and panel kernels.

    `start` has the memory rates of this GPU. The result is the record with the least cost of all that were
    reached, `start` included.
    """
    table = Table(cases)
    start = _with_variants(start, table)
    numbers = _Numbers(start)
    zero = np.zeros(numbers.size)
    theta = _minimised(_objective(table, numbers, None), zero, numbers, 3 * steps)
    tried = [zero, theta]
    for softness in _SOFTNESS:
        theta = _minimised(_objective(table, numbers, softness), theta, numbers, steps)
        tried.append(theta)
    final = _objective(table, numbers, _SOFTNESS[-1])
    tried += [_annealed(final, of, numbers, tries) for of in (zero, min(tried, key=final))]
    best = numbers.record(_minimised(final, min(tried, key=final), numbers, steps))
    before = quality_of(start, table)
    return Fit(_with_window(best, cases), before, quality_of(best, table))


DESCRIPTION = """\
Measures this GPU's memory and our kernels on it, fits the costs that plans are chosen by, and writes them as
a record (docs/gpu-records.md). Takes about six minutes and much of the GPU's memory.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `gnnsparse bench fit`."""
    parser.add_argument(
        "--matrix", nargs="+", action="extend", type=matrices_option, metavar="MATRIX",
        help="matrices to measure beside the built-in suite, as in `gnnsparse bench kernels`",
    )  # fmt: skip
    parser.add_argument(
        "--out", type=file_option, metavar="FILE.json",
        help="the record; default: a file in $GNNSPARSE_GPU_RECORDS or the user's data folder, which plans "
        "on this GPU are chosen by from then on",
    )  # fmt: skip
    parser.add_argument("--keep", type=file_option, metavar="FILE.json", help="write what was measured, too")
    parser.add_argument(
        "--tiles", nargs="*", choices=NAMES, metavar="KERNEL",
        help=f"measure kernels of attention over dense tiles alone ({', '.join(NAMES)}; default: all), in a "
        "minute; the record keeps the rest",
    )  # fmt: skip
    parser.add_argument(
        "--measured", type=Path, metavar="FILE.json",
        help="fit to what --keep wrote, in place of measuring; needs no GPU",
    )  # fmt: skip


def _measured(
    more: tuple[MatrixSpec, ...], tell: Callable[[str], None]
) -> tuple[GpuRecord, list[Case], dict[str, Any]]:
    """Measure the current GPU; returns the record to start from, the cases, and the environment."""
    device = torch.device("cuda", torch.cuda.current_device())
    described = describe_device(device)
    nearest = record_for(described)
    tell(f"{described.name}: memory")
    # The record that the fit starts from, with the name, properties and memory rates of this GPU.
    start = replace(
        nearest, name=described.name, capability=described.capability,
        multiprocessors=described.multiprocessors, memory_bytes=described.memory, l2_bytes=described.l2,
        memory=measure_memory(nearest.memory, device),
    )  # fmt: skip
    with using(start):
        cases = measure_cases(device, more, tell)
    return start, cases, {"from": nearest.name, **describe_environment(device)}


def _save(options: argparse.Namespace, record: GpuRecord) -> Path:
    name = "".join(c if c.isalnum() else "-" for c in record.name.lower())
    file: Path = options.out or user_folder() / f"{name}.json"
    save_record(record, file)
    return file


def _run_tiles(options: argparse.Namespace, tell: Callable[[str], None], console: Console) -> int:
    """Measure kernels over tiles, and write the record in use with their rates; 1 if none could run."""
    device = torch.device("cuda", torch.cuda.current_device())
    described = describe_device(device)
    record, rates = record_for(described), measure_tiles(device, tell, options.tiles or NAMES)
    if not rates:
        return 1
    tiles = {**record.attention.tiles, **rates} if options.tiles else rates
    record = replace(record, attention=replace(record.attention, tiles=tiles))
    if record.name != described.name:
        tell(f"the rest is that of {record.name}: `gnnsparse bench fit` measures it here")
        record = replace(record, name=described.name)
    table = new_table("microseconds of a tile of a head of 64 features", ("",), ("full", "partial"))
    for name, of in rates.items():
        for op, costs in (("forward", of.forward), ("backward", of.backward)):
            table.add_row(f"{name} {op}", *(f"{cost:.4f}" for cost in costs))
    console.print(table)
    printer(console)(str(_save(options, record)))
    return 0


def run(options: argparse.Namespace) -> int:
    """Measure, fit, print how good the choices are, and write the record; 1 if nothing could be measured."""
    if options.measured is None:
        try:
            device_option("cuda")
        except argparse.ArgumentTypeError as error:
            options.fail(f"{error}; accepted without one: --measured FILE.json")
    elif options.matrix or options.keep:
        options.fail("argument --measured: --matrix and --keep go with measuring")
    elif options.tiles is not None:
        options.fail("argument --tiles: it measures, and does not go with --measured")
    elif not options.measured.is_file():
        options.fail(f"argument --measured: there is no file {options.measured}")
    if options.tiles is not None and (options.matrix or options.keep):
        options.fail("argument --tiles: --matrix and --keep go with measuring everything")
    more = tuple(spec for group in options.matrix or () for spec in group)
    tell, console = progress(), Console()
    if options.tiles is not None:
        return _run_tiles(options, tell, console)
    start, cases, about = read_cases(options.measured) if options.measured else _measured(more, tell)
    if not cases:
        tell("nothing could be measured")
        return 1
    if options.keep is not None:
        write_cases(options.keep, start, cases, about)
    tell(f"fitting {sum(len(case.times) for case in cases)} times of {len(cases)} cases")
    fit = fit_record(start, cases)
    found = {**about, "matrices": len({case.name for case in cases}), "quality": asdict(fit.after)}
    file = _save(options, replace(fit.record, fitted=found))
    title = f"{fit.record.name}, from the numbers of {about.get('from')}"
    numbers = ("cases", "choices below 0.97", "worst", "mean", "error of times")
    table = new_table(title, ("",), numbers, title_justify="left")
    for name, quality in (("before", fit.before), ("fitted", fit.after)):
        table.add_row(
            name, str(quality.cases), str(quality.lost), f"{quality.worst:.3f}", f"{quality.mean:.4f}",
            f"{100 * quality.error:.0f} %",
        )  # fmt: skip
    console.print(table)
    printer(console)(str(file))
    return 0
