"""Runs train.py in a process of its own: in a fresh interpreter, as a user has, or in a warm one."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import warm

TRAIN = warm.ROOT / "train.py"
TIMEOUT = 300


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


class Started:
    """A running process.

    Args:
        options: the command line.
        folder: the folder it runs in.
        environment: its environment.
        fresh: whether its interpreter is a new one.
        change: lines of Python that it executes before train.py.
    """

    def __init__(
        self, options: list[str], folder: Path, environment: dict[str, str], fresh: bool = False,
        change: str = "",
    ) -> None:  # fmt: skip
        self._folder = folder
        program = ["-c", f"{change}\n{_RUN}", str(TRAIN)] if change else [str(TRAIN)]
        self._process = subprocess.Popen(
            [sys.executable if fresh else warm.python(), *program, *options], cwd=folder, env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip

    def send(self, signum: int) -> None:
        """Sends a signal, if the process still runs."""
        self._process.send_signal(signum)

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> Run:
        """Waits for the end."""
        try:
            output, errors = self._process.communicate(timeout=TIMEOUT)
        finally:
            self.kill()
        return Run(self._process.returncode, output, errors, self._folder)

    def kill(self) -> None:
        """Ends the process if it still runs."""
        with self._process:
            self._process.kill()


def wait_for(condition: Callable[[], object], process: Started) -> None:
    """Waits until something holds, or the process has ended."""
    end = time.monotonic() + 120
    while not condition() and process.runs:
        assert time.monotonic() < end
        time.sleep(0.01)


_RUN = """
import runpy, sys
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
