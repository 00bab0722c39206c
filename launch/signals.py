"""What train.py does when SIGTERM or Ctrl-C ends it: one line, and the exit status of the signal."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from launch.resuming import LAST

__all__ = ["StoppedError", "command_to_resume", "exit_status", "line_of", "raising"]


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
    """Makes SIGTERM raise an error inside a `with` block, as Ctrl-C does, which undoes what was begun."""
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
    """Returns the exit status of a process that a signal has ended: 130 of Ctrl-C, 143 of SIGTERM."""
    return 128 + _signal_of(stop)


def line_of(stop: KeyboardInterrupt, sweep: Path | None = None) -> str:
    """Returns the line that says what is left, and how to go on.

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
