"""The benchmark of `gnnsparse bench latency`: every combination of what was asked for."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from gnnsparse.bench.candidates import UnavailableError, first_line, release
from gnnsparse.bench.latency_measure import COMPILED, Measured, matmul_precision, measure_backend
from gnnsparse.bench.latency_reference import Answers, answers_of
from gnnsparse.bench.latency_tasks import (
    GRAPH_MODELS,
    LatencySettings,
    Task,
    graph_task,
    load_graph,
    sequence_task,
)
from gnnsparse.bench.noise import NoiseMeter
from gnnsparse.formats.csr import Csr
from gnnsparse.precision import Precision

__all__ = ["LatencyBench", "SkippedLatency", "measure_isolated"]


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
        """Measure everything."""
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
                reason = first_line(error).replace(str(settings.root), "ROOT")  # results are published
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
        """Measure a task with every backend."""
        answers: dict[bool, Answers] = {}
        try:
            answers[False] = answers_of(task)
        except (RuntimeError, MemoryError) as error:
            # Without the right result nothing could be compared, so nothing is measured.
            self._skip(task, "", f"the right result could not be computed: {first_line(error)}", failed=True)
            return
        finally:
            release()
        for name in self.settings.backends:
            try:
                found = self._measure(name, task, answers)
            except UnavailableError as error:
                self._skip(task, name, first_line(error))
            except Exception as error:  # other libraries raise errors of any type; the run goes on
                self._skip(task, name, f"{type(error).__name__}: {first_line(error)}", failed=True)
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


# Measures a backend in a process of its own, so that its failure does not take a run down.
#
# A peer that is compiled may end the process: compilers crash, and a CUDA graph that can't be captured can
# leave the device unusable. `measure_isolated` writes the task to a folder and starts this module with it.

_GIVEN, _FOUND = "given.pt", "found.json"


def measure_isolated(
    name: str, task: Task, settings: LatencySettings, answers: dict[bool, Answers]
) -> Measured:
    """Measure a backend in another process; whatever becomes of it is told under `problems`.

    Args:
        name: one of BACKENDS.
        task: the task.
        settings: what to measure; `timeout` is how long the process may take.
        answers: right results by `Backend.dense`.
    """
    with tempfile.TemporaryDirectory(prefix="gnnsparse-latency-") as folder:
        torch.save(_packed(name, task, settings, answers), Path(folder) / _GIVEN)
        command = [sys.executable, "-m", "gnnsparse.bench.latency_run", folder]
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
        content = json.loads(found.read_text())
    return Measured(content["rows"], content["problems"])


def _packed(name: str, task: Task, settings: LatencySettings, answers: dict[bool, Answers]) -> dict[str, Any]:
    return {
        "name": name, "settings": settings, "answers": answers, "model": task.model, "dataset": task.dataset,
        "precision": task.precision, "indptr": task.csr.indptr, "indices": task.csr.indices,
        "cols": task.csr.cols, "x": task.x, "module": task.module, "heads": task.heads,
        "checked": task.checked,
    }  # fmt: skip


def _unpacked(given: dict[str, Any]) -> Task:
    csr = Csr(given["indptr"], given["indices"], given["cols"])
    return Task(
        given["model"], given["dataset"], given["precision"], csr, given["x"], given["module"],
        given["heads"], given["checked"],
    )  # fmt: skip


def main(folder: Path) -> None:
    """Measure what `measure_isolated` wrote to a folder, and write what was found there."""
    # The file is this package's own, written by the process that started this one.
    given = torch.load(folder / _GIVEN, weights_only=False)
    found = measure_backend(given["name"], _unpacked(given), given["settings"], given["answers"])
    (folder / _FOUND).write_text(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
