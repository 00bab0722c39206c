"""What train.py says, and how it ends: tables, refusals in one line, and the exit status of a signal."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console

from launch.words import LAST

__all__ = [
    "PROBLEMS", "RefusedError", "StoppedError", "command_to_resume", "exit_status", "line_of", "make_console",
    "raising", "refuse",
]  # fmt: skip

#: The errors that are reported in one line. A package that is missing or data that can't be loaded are such.
PROBLEMS = (ValueError, TypeError, ImportError, OSError, MemoryError)


class RefusedError(SystemExit):
    """Ends the process with status 2, after the reason was printed.

    Attributes:
        reason: the line that was printed, without the name of the program.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(2)
        self.reason = reason


def refuse(problem: Exception | str) -> NoReturn:
    """End the process with an error message of one line; HYDRA_FULL_ERROR=1 raises the error instead."""
    if os.environ.get("HYDRA_FULL_ERROR") == "1" and isinstance(problem, Exception):
        raise problem
    line = " ".join(str(problem).split())
    print(f"train.py: {line}", file=sys.stderr)
    raise RefusedError(line)


class _PipeConsole(Console):
    def on_broken_pipe(self) -> None:
        """Print nowhere from now on, in place of ending the process: what is printed is in files as well."""
        from gnnsparse.runtime.environment import without_pipe

        self.quiet = True
        without_pipe()


def make_console(width: int | None = None) -> Console:
    """Return a console of the standard output.

    Args:
        width: least characters of a line if the output is no terminal; None: as many as there are.
    """
    console = _PipeConsole()
    if width is not None and not console.is_terminal:
        console = _PipeConsole(width=max(width, console.width))
    return console


class StoppedError(KeyboardInterrupt):
    """A signal ends the process.

    Attributes:
        signum: the signal.
        finished: the file of results that was written before; None: there is none.
    """

    def __init__(self, signum: int, finished: Path | None = None) -> None:
        super().__init__()
        self.signum, self.finished = signum, finished


def _raise(signum: int, frame: FrameType | None) -> NoReturn:
    raise StoppedError(signum)


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Make SIGTERM raise an error inside a `with` block, as Ctrl-C does, which undoes what was begun."""
    before = signal.getsignal(signal.SIGTERM)
    if before == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _signal_of(stop: KeyboardInterrupt) -> int:
    return int(getattr(stop, "signum", signal.SIGINT))


def exit_status(stop: KeyboardInterrupt) -> int:
    """Return the exit status of a process that a signal has ended: 130 of Ctrl-C, 143 of SIGTERM."""
    return 128 + _signal_of(stop)


def line_of(stop: KeyboardInterrupt, sweep: Path | None = None) -> str:
    """Return the line that says what is left, and how to go on.

    Args:
        stop: what was raised.
        sweep: the folder of the sweep that the run is in; None: it is in none.
    """
    name = signal.Signals(_signal_of(stop)).name
    epochs, checkpoint = getattr(stop, "epochs", None), getattr(stop, "checkpoint", None)
    finished = getattr(stop, "finished", None)
    where = f"stopped by {name}"
    if epochs is not None:
        where = f"{where} after epoch {epochs}"
    if sweep is not None:
        return f"{where}; to go on with the sweep: {command_to_resume(sweep)}"
    if finished is not None:
        return f"{where} after the last epoch; {finished} is complete"
    if epochs is None:
        return f"{where} before training began; the same command begins again"
    if checkpoint is None:
        return f"{where}; nothing was kept, as trainer.checkpoint=false"
    if not checkpoint.is_file():  # a disk that is full, of which there was a warning
        return f"{where}; {checkpoint} could not be written"
    return f"{where}; to go on: {command_to_resume(checkpoint.parents[len(LAST.parts) - 1])}"


def command_to_resume(folder: Path) -> str:
    """Return the command that goes on with the run or the sweep of a folder."""
    path = folder.resolve()
    path = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f"python {Path(sys.argv[0]).name} {shlex.quote(f'resume={path}')}"
