"""Measures a backend in a process of its own, so that its failure does not take a run down.

A peer that is compiled may end the process: compilers crash, and a CUDA graph that can't be captured can
leave the device unusable. `measure_isolated` writes the task to a folder and starts this module with it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from gnnsparse.bench.latency.measure import Measured, measure_backend
from gnnsparse.bench.latency.reference import Answers
from gnnsparse.bench.latency.settings import LatencySettings
from gnnsparse.bench.latency.tasks import Task
from gnnsparse.formats.csr import Csr

__all__ = ["measure_isolated"]

_GIVEN, _FOUND = "given.pt", "found.json"


def measure_isolated(
    name: str, task: Task, settings: LatencySettings, answers: dict[bool, Answers]
) -> Measured:
    """Measures a backend in another process; whatever becomes of it is told under `problems`.

    Args:
        name: one of BACKENDS.
        task: the task.
        settings: what to measure; `timeout` is how long the process may take.
        answers: right results by `Backend.dense`.
    """
    with tempfile.TemporaryDirectory(prefix="gnnsparse-latency-") as folder:
        torch.save(_packed(name, task, settings, answers), Path(folder) / _GIVEN)
        command = [sys.executable, "-m", "gnnsparse.bench.latency.worker", folder]
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
    """Measures what `measure_isolated` wrote to a folder, and writes what was found there."""
    # The file is this package's own, written by the process that started this one.
    given = torch.load(folder / _GIVEN, weights_only=False)
    found = measure_backend(given["name"], _unpacked(given), given["settings"], given["answers"])
    (folder / _FOUND).write_text(json.dumps(asdict(found)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
