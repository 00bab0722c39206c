"""The benchmark of `gnnsparse bench latency`: every combination of what was asked for."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from gnnsparse.bench.candidates import UnavailableError
from gnnsparse.bench.latency.measure import COMPILED, Measured, matmul_precision, measure_backend, release
from gnnsparse.bench.latency.reference import Answers, answers_of
from gnnsparse.bench.latency.settings import GRAPH_MODELS, LatencySettings
from gnnsparse.bench.latency.tasks import Task, graph_task, load_graph, sequence_task
from gnnsparse.bench.latency.worker import measure_isolated
from gnnsparse.bench.noise import NoiseMeter
from gnnsparse.precision import Precision

__all__ = ["LatencyBench", "SkippedLatency"]


@dataclass(frozen=True)
class SkippedLatency:
    """A combination that was asked for and not measured.

    Attributes:
        model, dataset, precision, backend: the combination; "" stands for all.
        batch: number of sequences; 0 stands for all.
        reason: why it was not measured.
        failed: True: an error occurred; False: a known limit was met.
    """

    model: str
    dataset: str
    precision: str
    backend: str
    batch: int
    reason: str
    failed: bool = False


@dataclass
class LatencyBench:
    """A run of the benchmark; `rows` and `skipped` grow with each task.

    Attributes:
        settings: what to measure.
        tell: called with a line of text when a task begins.
        save: called after each task.
        rows: the measurements, as they are written to the JSON file (notes/benchmarks.md lists the keys).
        skipped: what was not measured.
        noise: what is known of the noise; it is read when the run begins and after each task.
    """

    settings: LatencySettings
    tell: Callable[[str], None] = lambda line: None
    save: Callable[[LatencyBench], None] = lambda bench: None
    rows: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[SkippedLatency] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.noise = NoiseMeter(self.settings.device)

    def run(self) -> None:
        """Measures everything."""
        self.noise.read()
        for task in self._tasks():
            batch = f", batch {task.batch}" if task.model == "transformer" else ""
            self.tell(f"{task.model}, {task.dataset}, {task.precision.value}{batch}")
            with matmul_precision(task.precision):
                self.run_task(task)
            self.noise.read()
            self.save(self)

    def _tasks(self) -> Iterator[Task]:
        settings = self.settings
        precisions = [Precision(p) for p in settings.precisions]
        models = [model for model in settings.models if model in GRAPH_MODELS]
        for name in settings.datasets if models else ():
            try:
                graph = load_graph(name, settings)
            except (ValueError, OSError, RuntimeError, ImportError, MemoryError) as error:
                reason = _line(error).replace(str(settings.root), "ROOT")  # results are published
                self.skipped.append(SkippedLatency("", name, "", "", 0, reason, failed=True))
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
        """Measures a task with every backend."""
        answers: dict[bool, Answers] = {}
        try:
            answers[False] = answers_of(task)
        except (RuntimeError, MemoryError) as error:
            # Without the right result nothing could be compared, so nothing is measured.
            self._skip(task, "", f"the right result could not be computed: {_line(error)}", failed=True)
            return
        finally:
            release()
        for name in self.settings.backends:
            try:
                found = self._measure(name, task, answers)
            except UnavailableError as error:
                self._skip(task, name, _line(error))
            except Exception as error:  # other libraries raise errors of any type; the run goes on
                self._skip(task, name, f"{type(error).__name__}: {_line(error)}", failed=True)
            else:
                self.rows += found.rows
                for problem in found.problems:
                    self._skip(task, name, problem, failed=not found.rows)
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

    def _skip(self, task: Task, backend: str, reason: str, failed: bool = False) -> None:
        self.skipped.append(
            SkippedLatency(
                task.model, task.dataset, task.precision.value, backend, task.batch, reason, failed
            )
        )


def _line(error: BaseException) -> str:
    """Returns the first line of an error's message, 200 characters at most."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:200]
