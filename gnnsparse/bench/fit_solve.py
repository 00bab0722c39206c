"""Fits a record to measurements, so that the model makes the best choices.

Least squares of the times alone give a model that is nearer to the times and chooses worse. What is minimised
is therefore mainly the regret of the choices: for each case the logarithm of the ratio of the time of the
chosen plan to the time of the best plan. The choice is softened: plans are weighted by how near their
modelled times are to the least one. So the regret has a gradient, and of two plans with nearly equal modelled
times each counts as half chosen. Cases count by a power of the time that they take: a wrong choice costs more
on a large graph than on a small one, whose times are also less certain. The graphs that the benchmarks report
have a larger weight still.
It stands alone because it needs no GPU: it is tested on times that are made up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import minimize

from gnnsparse.bench.fit_measure import Case
from gnnsparse.data.generators import GENERATED_GRAPHS
from gnnsparse.plan import CsrPlan, PanelPlan, WindowPlan
from gnnsparse.plan.csr import CSR
from gnnsparse.plan.gpu_records.model import CsrLoad, csr_us, panel_us, panel_variant
from gnnsparse.plan.gpu_records.record import GpuRecord, PanelRow, PanelVariant
from gnnsparse.plan.panel import PANELS
from gnnsparse.runtime.serialization import from_plain, to_plain

__all__ = ["Table", "fit_record", "quality_of"]

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
    """How good a record's choices are, by ratios of their speed to the best plan's; lost: below 0.97.

    `error` is the mean relative error of modelled times.
    """

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
        self._groups = {
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

    @property
    def panel_variants(self) -> set[tuple[int, str]]:
        """The heights of panels, each with an arithmetic and storage, that were measured."""
        return {(group[1], group[2]) for group in self._groups if group[0] == "panel"}

    def model(self, record: Any) -> np.ndarray:
        """Compute the logarithms of the modelled microseconds of each plan by a record, float64 [plans]."""
        modelled = np.empty_like(self.log_times)
        for group, (at, load) in self._groups.items():
            modelled[at] = np.log(_modelled(record, group, load))
        return modelled

    def time_error(self, modelled: np.ndarray) -> float:
        """Return how far modelled times are off: a mean of squares, of absolute values where they are large.

        Plans far from the best of their case count less.
        """
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
        owners = {path: _owner(self._tree, path) for path in _paths(start)}
        self._owners = {path: (owner, name) for path, (owner, name) in owners.items() if owner[name] > 0}
        self._start = np.array([owner[name] for owner, name in self._owners.values()])
        self.size = self._start.size
        # Bounds of the logarithms. A nonzero near the diagonal costs at most what another one does.
        reach = np.full(self.size, np.log(_REACH))
        at_most = [1.0 if path == ("csr", "near") else np.inf for path in self._owners]
        self.least, self.most = -reach, np.minimum(reach, np.log(at_most / self._start))

    def quick(self, theta: np.ndarray) -> Any:
        """Return an object with the attributes of a vector's record, valid until the next call."""
        for (owner, name), value in zip(self._owners.values(), self._start * np.exp(theta), strict=True):
            owner[name] = float(value)
        return self._tree

    def record(self, theta: np.ndarray) -> GpuRecord:
        """Make the record of a vector."""
        made: GpuRecord = from_plain(GpuRecord, to_plain(self.quick(theta)), "fit")
        return made


class _Tree(dict[Any, Any]):
    """A dictionary whose entries can be read as attributes."""

    __getattr__ = dict.__getitem__


def _tree(value: Any) -> Any:
    if is_dataclass(value):
        return _Tree({field.name: _tree(getattr(value, field.name)) for field in fields(value)})
    if isinstance(value, Mapping):
        return _Tree({key: _tree(item) for key, item in value.items()})
    return value


def _owner(tree: Any, path: tuple[str, ...]) -> tuple[Any, str]:
    """Return the dictionary that holds the number at a path, and the number's key."""
    for key in path[:-1]:
        tree = tree[int(key) if key.isdecimal() else key]
    return tree, path[-1]


def _paths(start: GpuRecord) -> list[tuple[str, ...]]:
    csr = ("start_us", "batch_us", "row_us", "slice_us", "group_row_us", "nnz_us", "near", "sddmm")
    found: list[tuple[str, ...]] = [("csr", name) for name in csr]
    found += [("csr", of, name) for of in ("row_gather", "group_gather") for name in ("half", "tf32", "fp32")]
    found += [("panel", name) for name in ("power", "slice_in_use", "add_us", "add_part_us")]
    costs = [field.name for field in fields(PanelRow) if field.name != "variants"]
    for height, row in start.panel.heights.items():
        at = ("panel", "heights", str(height))
        found += [(*at, name) for name in costs]
        for variant in row.variants:
            names = [field.name for field in fields(PanelVariant)]
            # "busy" of "half" is not fitted: the others are in units of it.
            found += [
                (*at, "variants", variant, name) for name in names if (variant, name) != ("half", "busy")
            ]
    return found


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
    ratios: dict[str, list[float]] = {"spmm": [], "sddmm": []}
    for case in cases:
        of = case.problem
        windows = [ms for plan, ms in case.times.items() if isinstance(plan, WindowPlan)]
        csr = [ms for plan, ms in case.times.items() if isinstance(plan, CsrPlan) and not plan.narrow]
        if windows and csr:
            by_row = max(of.slots, 1) / max(of.nnz, 1) if of.op == "spmm" else 1.0
            ratios[of.op].append(windows[0] / csr[0] / by_row)
    found = {op: float(np.median(values)) for op, values in ratios.items() if values}
    return replace(record, window=replace(record.window, **found))


def _with_variants(record: GpuRecord, table: Table) -> GpuRecord:
    """Return the record with costs for each arithmetic and storage that was measured."""
    heights = dict(record.panel.heights)
    for height, name in sorted(table.panel_variants):
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
