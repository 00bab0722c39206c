"""Latencies of single calls: warm-up until stable, percentiles, throughput, and the GPU's part."""

from __future__ import annotations

import contextlib
import math
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import torch

from gnnsparse.bench.candidates import UnavailableError, first_line, release
from gnnsparse.bench.latency_backends import Backend, backend, variants_of
from gnnsparse.bench.latency_reference import Answers, answers_of, judge
from gnnsparse.bench.latency_tasks import LatencySettings, Task, tiny_task
from gnnsparse.bench.noise import spread_of
from gnnsparse.bench.workload import Verdict
from gnnsparse.precision import Precision
from gnnsparse.runtime.timing import CaptureError, cache_flusher, capture

__all__ = [
    "COMPILED", "LEAST_CALLS", "Latency", "Measured", "collect", "gpu_time", "matmul_precision",
    "measure_backend", "percentile", "throughput", "wait_for", "warm_up",
]  # fmt: skip

#: The fewest calls of a measurement, however slow they are.
LEAST_CALLS = 5
#: Calls of a window of the warm-up, and the fraction by which the medians of two may differ at its end.
_WINDOW, _STABLE = 10, 0.02
#: Most windows of the warm-up.
_WINDOWS = 20
#: Seconds of queued calls by which the throughput is measured, and the most calls.
_OFFLINE_SECONDS, _OFFLINE_CALLS = 0.3, 500
#: Calls whose time on the GPU is measured, and how long the GPU is held back for the CPU to get ahead.
_GPU_CALLS, _HEAD_START = 20, 2.0
#: Most milliseconds that the GPU is held back.
_MOST_HELD_MS = 20.0


def percentile(samples: list[float], fraction: float) -> float:
    """Return the smallest sample that at least `fraction` of the samples do not exceed (the nearest rank).

    Args:
        samples: one or more numbers.
        fraction: in (0, 1].
    """
    return sorted(samples)[max(math.ceil(fraction * len(samples)), 1) - 1]


@dataclass(frozen=True)
class Latency:
    """Milliseconds of single calls, each of which begins after the one before has ended.

    Attributes:
        p50, p90, p99, max, min, mean: percentiles by the nearest rank, the extremes and the mean.
        calls: number of timed calls.
        spread: how far the quartiles lie apart, as a fraction of the median.
    """

    p50: float
    p90: float
    p99: float
    max: float
    min: float
    mean: float
    calls: int
    spread: float

    @classmethod
    def of(cls, samples: list[float]) -> Latency:
        """Compute the statistics of one or more samples, in milliseconds."""
        p25, p50, p75, p90, p99 = (percentile(samples, fraction) for fraction in (0.25, 0.5, 0.75, 0.9, 0.99))
        mean = statistics.fmean(samples)
        spread = spread_of(p25, p50, p75)
        return cls(p50, p90, p99, max(samples), min(samples), mean, len(samples), spread)


def wait_for(device: torch.device) -> Callable[[], object]:
    """Return a function that waits for all work on the device's current stream."""
    if device.type != "cuda":
        return lambda: None
    # Not torch.cuda.synchronize, which takes some microseconds of Python that no result waits for.
    wait: Callable[[], object] = torch.cuda.current_stream(device).synchronize
    return wait


def _timed(call: Callable[[], object], wait: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    wait()
    return 1e3 * (time.perf_counter() - begin)


def warm_up(call: Callable[[], object], device: torch.device, seconds: float) -> tuple[int, bool]:
    """Call a function until its time is stable: the medians of two windows of 10 calls agree within 2 %.

    Args:
        call: queues its work on the current stream.
        device: where the work runs.
        seconds: time after which the warm-up ends in any case.

    Returns:
        The number of calls, and whether the time became stable.
    """
    wait, begin, calls, before = wait_for(device), time.perf_counter(), 0, math.inf
    for _ in range(_WINDOWS):
        window: list[float] = []
        while len(window) < _WINDOW:
            window.append(_timed(call, wait))
            calls += 1
            if time.perf_counter() - begin > seconds:
                return calls, False
        median = statistics.median(window)
        if abs(median - before) <= _STABLE * median:
            return calls, True
        before = median
    return calls, False


def collect(
    call: Callable[[], object],
    device: torch.device,
    *,
    calls: int,
    seconds: float,
    before: Callable[[], object] = lambda: None,
) -> Latency:
    """Time single calls by the clock, from the call to the end of its work ("single stream" of MLPerf).

    Args:
        call: queues its work on the current stream.
        device: where the work runs.
        calls: number of calls.
        seconds: time after which no further call begins, except for the first LEAST_CALLS.
        before: called before each call and not timed, such as `cache_flusher(device)`.
    """
    wait, samples, begin = wait_for(device), list[float](), time.perf_counter()
    while len(samples) < calls:
        if len(samples) >= LEAST_CALLS and time.perf_counter() - begin > seconds:
            break
        before()
        wait()
        samples.append(_timed(call, wait))
    return Latency.of(samples)


def throughput(call: Callable[[], object], device: torch.device, p50: float) -> float:
    """Return how many calls end in a second when none waits for the one before ("offline" of MLPerf).

    Args:
        call: queues its work on the current stream.
        device: where the work runs.
        p50: median of its latency in milliseconds, from which the number of calls is chosen.
    """
    count = max(3, min(_OFFLINE_CALLS, round(1e3 * _OFFLINE_SECONDS / max(p50, 1e-3))))
    wait = wait_for(device)
    wait()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    wait()
    return count / (time.perf_counter() - begin)


def gpu_time(call: Callable[[], object], device: torch.device, p50: float) -> float | None:
    """Return the milliseconds that the GPU takes for a call, without waiting for the CPU; None on a CPU.

    The GPU is held back while the CPU queues the call, so that the events around it enclose the work alone. A
    call that waits for the GPU itself, as those of layers that index by a mask do, is timed with its gaps.

    Args:
        call: queues its work on the current stream.
        device: where the work runs.
        p50: median of its latency in milliseconds.
    """
    if device.type != "cuda":
        return None
    held = min(_HEAD_START * p50 + 0.1, _MOST_HELD_MS)
    clock_khz = 1e6 * 2  # of no GPU is the clock much above 2 GHz, so that it is held at least that long
    samples = []
    for _ in range(_GPU_CALLS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(held * clock_khz))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize(device)
        samples.append(begin.elapsed_time(end))
    return statistics.median(samples)


# Measures one backend on one task: every mode, warm and cold, with a check of each result.

#: The backend that compiles, and makes CUDA graphs itself.
COMPILED = "pyg-compile"
#: Calls of each variant of a backend, by which the fastest right one is found.
_TRIALS = 5

Row = dict[str, Any]


@dataclass
class Measured:
    """What came of measuring a backend.

    Attributes:
        rows: one for each mode and state of the cache, as they are written to the JSON file.
        problems: why a mode was not measured.
    """

    rows: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@contextlib.contextmanager
def matmul_precision(precision: Precision) -> Iterator[None]:
    """Let torch's float32 matrix products use tf32 where that is the precision, and only there."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision is Precision.TF32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def measure_backend(
    name: str, task: Task, settings: LatencySettings, answers: dict[bool, Answers] | None = None
) -> Measured:
    """Measure a backend.

    Before anything is measured, it runs a small task, so that the time to the first result is that of this
    graph or pattern and not that of loading libraries. A backend with several variants is measured with the
    fastest one whose result is right.

    Args:
        name: one of BACKENDS.
        task: the task.
        settings: what to measure.
        answers: right results by `Backend.dense`; those that are missing are computed and added.

    Raises:
        UnavailableError: the backend can't run the task.
    """
    known = {} if answers is None else answers
    makes = variants_of(name, task)
    with matmul_precision(task.precision):
        if name != COMPILED:
            with contextlib.suppress(UnavailableError):
                _initialise(name, task)
        tried: list[Row] = []
        if len(makes) > 1:
            makes, tried = _fastest(makes, task, known)
        else:
            _answers(known, False, task)  # before peaks of memory are measured
        return _Run(task, settings, known, tried).measure(makes[0])


def _initialise(name: str, task: Task) -> None:
    small = tiny_task(task)
    first = backend(name, small) if name != "dense" else variants_of(name, small)[0]()
    adjacency = first.prepare()
    with torch.inference_mode():
        first.module(small.x, adjacency)
        first.module(small.x, adjacency)
    wait_for(task.device)()


def _answers(known: dict[bool, Answers], dense: bool, task: Task) -> Answers:
    if dense not in known:
        known[dense] = answers_of(task, dense)
    return known[dense]


def _fastest(
    makes: list[Callable[[], Backend]], task: Task, known: dict[bool, Answers]
) -> tuple[list[Callable[[], Backend]], list[Row]]:
    """Return the function that makes the fastest right variant, and what was found of each variant."""
    tried: list[Row] = []
    best: tuple[tuple[bool, float], Callable[[], Backend]] | None = None
    for make in makes:
        who = make()
        adjacency = who.prepare()
        try:
            with torch.inference_mode(), who.context():
                result = who.module(task.x, adjacency)
                verdict = judge(result, task, _answers(known, who.dense, task), who.ours)
                del result
                call = partial(who.module, task.x, adjacency)
                time_of = collect(call, task.device, calls=_TRIALS, seconds=1.0)
        except RuntimeError as error:  # a kernel of attention that does not take these inputs
            tried.append({"name": who.variant, "p50_ms": None, "ok": None, "problem": first_line(error)})
            continue
        finally:
            release()
        tried.append(
            {"name": who.variant, "p50_ms": time_of.p50, "ok": verdict.ok, "problem": verdict.problem}
        )
        rank = (not verdict.ok, time_of.p50)
        if best is None or rank < best[0]:
            best = rank, make
    if best is None:
        raise UnavailableError("; ".join(dict.fromkeys(str(t["problem"]) for t in tried)))
    return [best[1]], tried


class _Run:
    """The measurement of a variant of a backend."""

    def __init__(
        self, task: Task, settings: LatencySettings, known: dict[bool, Answers], tried: list[Row]
    ) -> None:
        self.task, self.settings, self.known, self.tried = task, settings, known, tried
        self.device, self.wait = task.device, wait_for(task.device)
        self.cuda = task.device.type == "cuda"
        self.found = Measured()

    def measure(self, make: Callable[[], Backend]) -> Measured:
        task = self.task
        release()
        before = self._allocated()
        if self.cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
        who = make()
        # CUDA graphs of torch.compile keep their results, which inference tensors would forbid to change.
        mode = torch.no_grad() if who.name == COMPILED else torch.inference_mode()
        self.wait()
        begin = time.perf_counter()
        adjacency = who.prepare()
        self.wait()
        prepared = time.perf_counter()
        with mode, who.context():

            def call() -> torch.Tensor:
                out: torch.Tensor = who.module(task.x, adjacency)
                return out

            start = time.perf_counter()
            result = call()
            self.wait()
            first_ms = 1e3 * (time.perf_counter() - start)
            answers = self.known[who.dense]
            verdict = judge(result, task, answers, who.ours)
            del result  # CUDA graphs of torch.compile could not use its memory again
            costs = {"prepare_ms": 1e3 * (prepared - begin), "first_call_ms": first_ms, "capture_ms": 0.0}
            compiled = who.name == COMPILED and self.cuda
            if compiled or "eager" in self.settings.modes or not self.cuda:
                self._mode("captured" if compiled else "eager", who, call, costs, before, verdict)
            if self.cuda and "captured" in self.settings.modes and not compiled:
                self._captured(who, call, costs, before, answers)
        return self.found

    def _captured(
        self, who: Backend, call: Callable[[], torch.Tensor], costs: Row, before: int, answers: Answers
    ) -> None:
        kept: list[torch.Tensor] = []

        def keep() -> None:
            kept[:] = [call()]

        self.wait()
        begin = time.perf_counter()
        try:
            replay = capture(keep, 1)
        except CaptureError as error:
            self.found.problems.append(f"can't be captured in a CUDA graph: {error}")
            return
        self.wait()
        costs = {**costs, "capture_ms": 1e3 * (time.perf_counter() - begin)}
        kept[0].fill_(float("nan"))  # so that a replay that writes nothing shows
        replay()
        self.wait()
        self._mode("captured", who, replay, costs, before, judge(kept[0], self.task, answers, who.ours))

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated(self.device) if self.cuda else 0

    def _mode(
        self,
        mode: str,
        who: Backend,
        call: Callable[[], object],
        costs: Row,
        before: int,
        verdict: Verdict,
    ) -> None:
        """Measure calls in one mode and add a row for each state of the cache."""
        settings, extra = self.settings, costs["capture_ms"]
        for cache in settings.caches:
            flush = cache_flusher(self.device) if cache == "cold" else lambda: None
            warmup, stable = warm_up(call, self.device, settings.seconds)
            time_of = collect(call, self.device, calls=settings.calls, seconds=settings.seconds, before=flush)
            warm = cache == "warm"
            times = {
                f"{key}_ms": value for key, value in asdict(time_of).items() if key not in ("calls", "spread")
            }
            rate = throughput(call, self.device, time_of.p50) * self.task.batch if warm else None
            del flush
            if cache == settings.caches[0]:
                extra += max(costs["first_call_ms"] - time_of.p50, 0.0)
            self.found.rows.append({
                **self._about(who), "mode": mode, "cache": cache, **times, "calls": time_of.calls,
                "spread": time_of.spread, "warmup_calls": warmup, "stable": stable,
                "samples_per_s": rate, "gpu_ms": gpu_time(call, self.device, time_of.p50) if warm else None,
                **costs, "first_result_ms": sum(costs.values()), "preprocess_ms": costs["prepare_ms"] + extra,
                "peak_bytes": self._peak(before) if warm else None, **asdict(verdict),
            })  # fmt: skip

    def _peak(self, before: int) -> int | None:
        return torch.cuda.max_memory_allocated(self.device) - before if self.cuda else None

    def _about(self, who: Backend) -> Row:
        task, settings = self.task, self.settings
        return {
            "model": task.model, "dataset": task.dataset, "nodes": task.csr.rows, "edges": task.csr.nnz,
            "precision": task.precision.value, "batch": task.batch, "layers": settings.layers_of(task.model),
            "hidden": settings.hidden_of(task.model), "backend": who.name, "ours": who.ours,
            "variant": who.variant, "variants": self.tried,
        }  # fmt: skip
