"""Runs train.py in a process of its own.

A fresh interpreter is what a user has, and takes six seconds of imports before the first epoch. Where a
test is about what comes after them, the process is forked from one that has done them already.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TRAIN = Path(__file__).resolve().parents[2] / "train.py"
TIMEOUT = 300

_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["tests.e2e.preload"])


@dataclass
class Run:
    """A finished process and the folder it wrote to."""

    status: int
    output: str
    errors: str
    folder: Path

    @property
    def result(self) -> dict[str, Any]:
        assert self.status == 0, self.errors
        return json.loads((self.folder / "result.json").read_text())


def run_fresh(options: list[str], folder: Path, environment: dict[str, str]) -> Run:
    """In a new interpreter."""
    done = subprocess.run(
        [sys.executable, str(TRAIN), *options],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT,
    )  # fmt: skip
    return Run(done.returncode, done.stdout, done.stderr, folder)


class Started:
    """A running process, forked from one that has the imports.

    Args:
        options: the command line.
        folder: the folder it runs in.
        environment: its environment.
        streams: a folder for what it prints.
    """

    def __init__(self, options: list[str], folder: Path, environment: dict[str, str], streams: Path) -> None:
        self._options, self._folder, self._streams = options, folder, streams
        self._process = _FORKED.Process(target=_train, args=(options, folder, environment, streams))
        self._process.start()

    def send(self, signum: int) -> None:
        """Sends a signal, if the process still runs."""
        if self._process.is_alive():
            os.kill(self._process.pid, signum)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def runs(self) -> bool:
        return self._process.is_alive()

    def wait(self) -> Run:
        """Waits for the end."""
        self._process.join(TIMEOUT)
        if self._process.exitcode is None:
            self._process.kill()
            raise TimeoutError(f"train.py {self._options} runs for more than {TIMEOUT} s")
        output, errors = ((self._streams / name).read_text() for name in ("stdout", "stderr"))
        return Run(self._process.exitcode, output, errors, self._folder)


def run_forked(options: list[str], folder: Path, environment: dict[str, str], streams: Path) -> Run:
    """In a process forked from one that has the imports; `streams` is a folder for what it prints."""
    return Started(options, folder, environment, streams).wait()


def _train(options: list[str], folder: Path, environment: dict[str, str], streams: Path) -> None:
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(streams / name, os.O_CREAT | os.O_WRONLY)
        os.dup2(file, number)
        setattr(sys, name, os.fdopen(number, "w", buffering=1))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = [str(TRAIN), *options]
    runpy.run_path(str(TRAIN), run_name="__main__")
