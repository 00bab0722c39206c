"""The measurement of `gnnsparse bench latency`: single calls, backends on tasks, and all combinations.

It stands alone because a process of its own runs it for compiled peers, without options and reports.
"""

from __future__ import annotations

import contextlib
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch

from gnnsparse.bench.candidates import first_line, release
from gnnsparse.bench.latency_reference import Answers, answers_of, judge
from gnnsparse.bench.latency_tasks import (
    GRAPH_MODELS,
    Backend,
    LatencySettings,
    Task,
    graph_task,
    load_graph,
    sequence_task,
    tiny_task,
    variants_of,
)
from gnnsparse.bench.session import Row, Session, spread_of
from gnnsparse.bench.workload import UnavailableError, Verdict
from gnnsparse.precision import Precision
from gnnsparse.runtime.timing import CaptureError, cache_flusher, capture

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


def statistics_of(samples: list[float]) -> Row:
    """Return the statistics of single calls by the keys of rows, in milliseconds.

    Percentiles are by the nearest rank: the smallest sample that so many of the samples do not exceed.
    """
    ranks = np.quantile(samples, (0.25, 0.5, 0.75, 0.9, 0.99), method="inverted_cdf")
    p25, p50, p75, p90, p99 = ranks.tolist()
    return {
        "p50_ms": p50, "p90_ms": p90, "p99_ms": p99, "max_ms": max(samples), "min_ms": min(samples),
        "mean_ms": statistics.fmean(samples), "calls": len(samples), "spread": spread_of(p25, p50, p75),
    }  # fmt: skip


def wait_for(device: torch.device) -> Callable[[], object]:
    """Return a function that waits for all work on the device's current stream."""
    if device.type != "cuda":
        return lambda: None
    # Not torch.cuda.synchronize, which takes some microseconds of Python that no result waits for.
    return torch.cuda.current_stream(device).synchronize


def _timed(call: Callable[[], object], wait: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    wait()
    return 1e3 * (time.perf_counter() - begin)


def warm_up(call: Callable[[], object], device: torch.device, seconds: float) -> tuple[int, bool]:
    """Call until medians of 10 calls agree within 2 %, `seconds` at most; return calls, and if stable."""
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
    call: Callable[[], object], device: torch.device, *, calls: int, seconds: float,
    before: Callable[[], object] = lambda: None,
) -> Row:  # fmt: skip
    """Time single calls by the clock, from the call to the end of its work ("single stream" of MLPerf).

    After `seconds` no further call begins, except for the first LEAST_CALLS. `before` is called before each
    one and not timed.
    """
    wait, samples, begin = wait_for(device), list[float](), time.perf_counter()
    while len(samples) < calls:
        if len(samples) >= LEAST_CALLS and time.perf_counter() - begin > seconds:
            break
        before()
        wait()
        samples.append(_timed(call, wait))
    return statistics_of(samples)


def throughput(call: Callable[[], object], device: torch.device, p50: float) -> float:
    """Return how many calls end in a second when none waits for the one before ("offline" of MLPerf)."""
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


@dataclass
class Measured:
    """The rows of a backend, one for each mode and state of the cache, and why a mode was not measured."""

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
    name: str, task: Task, settings: LatencySettings, answers: dict[bool, Answers]
) -> Measured:
    """Measure a backend, with the fastest of its variants whose result is right.

    Before anything is measured, it runs a small task, so that the time to the first result is that of this
    graph or pattern and not that of loading libraries. `answers` are right results by `Backend.dense`;
    missing ones are computed and added.
    """
    makes = variants_of(name, task)
    with matmul_precision(task.precision):
        if name != COMPILED:
            with contextlib.suppress(UnavailableError):
                _initialise(name, task)
        make, tried = makes[0], list[Row]()
        if len(makes) > 1:
            make, tried = _fastest(makes, task, answers)
        else:
            _answers(answers, False, task)  # before peaks of memory are measured
        return _measure_variant(make, task, settings, answers, tried)


def _initialise(name: str, task: Task) -> None:
    small = tiny_task(task)
    first = variants_of(name, small)[0]()
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
) -> tuple[Callable[[], Backend], list[Row]]:
    """Return the function that makes the fastest right variant, and what was found of each variant."""
    tried: list[Row] = []
    ranks: dict[tuple[bool, float], Callable[[], Backend]] = {}
    for make in makes:
        who = make()
        adjacency = who.prepare()
        found: Row = {"name": who.variant, "p50_ms": None, "ok": None}
        try:
            with torch.inference_mode(), who.context():
                result = who.module(task.x, adjacency)
                verdict = judge(result, task, _answers(known, who.dense, task), who.name)
                del result
                call = partial(who.module, task.x, adjacency)
                p50 = collect(call, task.device, calls=_TRIALS, seconds=1.0)["p50_ms"]
            tried.append({**found, "p50_ms": p50, "ok": verdict.ok, "problem": verdict.problem})
            ranks.setdefault((not verdict.ok, p50), make)
        except RuntimeError as error:  # a kernel of attention that does not take these inputs
            tried.append({**found, "problem": first_line(error)})
        finally:
            release()
    if not ranks:
        raise UnavailableError("; ".join(dict.fromkeys(str(t["problem"]) for t in tried)))
    return ranks[min(ranks)], tried


def _measure_variant(
    make: Callable[[], Backend], task: Task, settings: LatencySettings, known: dict[bool, Answers],
    tried: list[Row],
) -> Measured:  # fmt: skip
    found, device, wait = Measured(), task.device, wait_for(task.device)
    cuda = device.type == "cuda"
    release()
    before = torch.cuda.memory_allocated(device) if cuda else 0
    if cuda:
        torch.cuda.reset_peak_memory_stats(device)
    who = make()
    about = {
        "model": task.model, "dataset": task.dataset, "nodes": task.csr.rows, "edges": task.csr.nnz,
        "precision": task.precision.value, "batch": task.batch, "layers": settings.layers_of(task.model),
        "hidden": settings.hidden_of(task.model), "backend": who.name, "ours": who.name == "gnnsparse",
        "variant": who.variant, "variants": tried,
    }  # fmt: skip

    def add_rows(mode: str, call: Callable[[], object], costs: Row, verdict: Verdict) -> None:
        """Measure calls in one mode and add a row for each state of the cache."""
        preprocess_ms = costs["prepare_ms"] + costs["capture_ms"]
        for cache in settings.caches:
            warm = cache == "warm"
            flush = (lambda: None) if warm else cache_flusher(device)
            warmup, stable = warm_up(call, device, settings.seconds)
            time_of = collect(call, device, calls=settings.calls, seconds=settings.seconds, before=flush)
            del flush
            p50 = time_of["p50_ms"]
            if cache == settings.caches[0]:
                preprocess_ms += max(costs["first_call_ms"] - p50, 0.0)
            found.rows.append({
                **about, "mode": mode, "cache": cache, **time_of, "warmup_calls": warmup, "stable": stable,
                "samples_per_s": throughput(call, device, p50) * task.batch if warm else None,
                "gpu_ms": gpu_time(call, device, p50) if warm else None,
                **costs, "first_result_ms": sum(costs.values()), "preprocess_ms": preprocess_ms,
                "peak_bytes": torch.cuda.max_memory_allocated(device) - before if cuda and warm else None,
                **asdict(verdict),
            })  # fmt: skip

    wait()
    begin = time.perf_counter()
    adjacency = who.prepare()
    wait()
    prepare_ms = 1e3 * (time.perf_counter() - begin)
    # CUDA graphs of torch.compile keep their results, which inference tensors would forbid to change.
    with torch.no_grad() if who.name == COMPILED else torch.inference_mode(), who.context():

        def call() -> torch.Tensor:
            return who.module(task.x, adjacency)

        begin = time.perf_counter()
        result = call()
        wait()
        first_ms = 1e3 * (time.perf_counter() - begin)
        costs = {"prepare_ms": prepare_ms, "first_call_ms": first_ms, "capture_ms": 0.0}
        verdict = judge(result, task, known[who.dense], who.name)
        del result  # CUDA graphs of torch.compile could not use its memory again
        compiled = who.name == COMPILED and cuda
        if compiled or "eager" in settings.modes or not cuda:
            add_rows("captured" if compiled else "eager", call, costs, verdict)
        if compiled or not cuda or "captured" not in settings.modes:
            return found
        replayed: list[torch.Tensor] = []

        def keep() -> None:
            replayed[:] = [call()]

        wait()
        begin = time.perf_counter()
        try:
            replay = capture(keep, 1)
        except CaptureError as error:
            found.problems.append(f"can't be captured in a CUDA graph: {error}")
            return found
        wait()
        costs["capture_ms"] = 1e3 * (time.perf_counter() - begin)
        replayed[0].fill_(float("nan"))  # so that a replay that writes nothing shows
        replay()
        wait()
        add_rows("captured", replay, costs, judge(replayed[0], task, known[who.dense], who.name))
    return found


# Measures a backend in a process of its own, so that its failure does not take a run down.
#
# A peer that is compiled may end the process: compilers crash, and a CUDA graph that can't be captured can
# leave the device unusable. `measure_isolated` writes the task to a folder and starts this module with it.

_GIVEN, _FOUND = "given.pt", "found.json"


def measure_isolated(
    name: str, task: Task, settings: LatencySettings, answers: dict[bool, Answers]
) -> Measured:
    """Measure a backend in another process; whatever becomes of it is told under `problems`."""
    with tempfile.TemporaryDirectory(prefix="gnnsparse-latency-") as folder:
        torch.save((name, task, settings, answers), Path(folder) / _GIVEN)
        command = [sys.executable, "-m", "gnnsparse.bench.latency_measure", folder]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=settings.timeout, errors="replace"
            )
        except subprocess.TimeoutExpired:
            return Measured(problems=[f"took more than {settings.timeout:g} s"])
        found = Path(folder) / _FOUND
        if not found.is_file():
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            last = lines[-1][:200] if lines else ""
            return Measured(problems=[f"its process ended with status {done.returncode}: {last}"])
        return Measured(**json.loads(found.read_text()))


# Every combination of what was asked for.


class LatencyBench(Session):
    """A run of the benchmark; `rows` and `skipped` grow with each task."""

    who = "backend"

    def run(self) -> Iterator[None]:
        """Measure everything; yields after each task, and at the end."""
        for task in self._tasks():
            batch = f", batch {task.batch}" if task.model == "transformer" else ""
            self.tell(f"{task.model}, {task.dataset}, {task.precision.value}{batch}")
            self.run_task(task)
            self.noise.read()
            yield
        yield

    def _tasks(self) -> Iterator[Task]:
        settings = self.settings
        precisions = [Precision(p) for p in settings.precisions]
        models = [model for model in settings.models if model in GRAPH_MODELS]
        for name in settings.datasets if models else ():
            try:
                graph = load_graph(name, settings)
            except (ValueError, OSError, RuntimeError, ImportError, MemoryError) as error:
                reason = first_line(error).replace(str(settings.root), "ROOT")  # results are published
                case = {"model": "", "dataset": name, "precision": "", "backend": "", "batch": 0}
                self.skipped.append({**case, "ours": False, "reason": reason, "failed": True})
                continue
            for model in models:
                for precision in precisions:
                    yield graph_task(model, graph, precision, settings)
            del graph
            release()
        if "transformer" in settings.models:
            for batch in settings.batches:
                for precision in precisions:
                    yield sequence_task(batch, precision, settings)

    def run_task(self, task: Task) -> None:
        """Measure a task with every backend."""

        def skip(backend: str, reason: str, failed: bool = False) -> None:
            self.skipped.append({
                "model": task.model, "dataset": task.dataset, "precision": task.precision.value,
                "backend": backend, "batch": task.batch, "ours": backend == "gnnsparse", "reason": reason,
                "failed": failed,
            })  # fmt: skip

        try:
            answers = {False: answers_of(task)}
        except (RuntimeError, MemoryError) as error:
            # Without the right result nothing could be compared, so nothing is measured.
            skip("", f"the right result could not be computed: {first_line(error)}", failed=True)
            return
        finally:
            release()
        for name in self.settings.backends:
            try:
                found = self._measure(name, task, answers)
            except UnavailableError as error:
                skip(name, first_line(error))
            except Exception as error:  # other libraries raise errors of any type; the run goes on
                skip(name, f"{type(error).__name__}: {first_line(error)}", failed=True)
            else:
                self.rows += found.rows
                for problem in found.problems:
                    skip(name, problem, failed=not found.rows)
            finally:
                release()

    def _measure(self, name: str, task: Task, answers: dict[bool, Answers]) -> Measured:
        if name != COMPILED:
            with warnings.catch_warnings():  # of other libraries, of what is new in them
                warnings.simplefilter("ignore")
                return measure_backend(name, task, self.settings, answers)
        if task.model not in GRAPH_MODELS:
            raise UnavailableError(f"PyG has no {task.model}")
        release()  # for the memory that the other process needs
        return measure_isolated(name, task, self.settings, answers)


if __name__ == "__main__":
    # The file is this package's own, written by the process that started this one.
    folder = Path(sys.argv[1])
    measured = measure_backend(*torch.load(folder / _GIVEN, weights_only=False))
    (folder / _FOUND).write_text(json.dumps(asdict(measured)))
