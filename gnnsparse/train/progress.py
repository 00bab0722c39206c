"""What a run prints while it trains: a bar on a terminal, and lines in a pipe or a log file."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from gnnsparse.runtime.environment import without_pipe
from gnnsparse.train.callbacks import History

__all__ = ["ProgressReport"]


class _Bar(Progress):
    """A bar with a second line, of values, which has as many lines as it needs: no number is cut."""

    values = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        """Yields the bar and the values."""
        yield from super().get_renderables()
        yield Text(self.values, overflow="fold")


class ProgressReport(Callback):
    """Reports how far the training is, with the latest loss and scores.

    On a terminal it is a bar; elsewhere a line every few seconds, which is flushed at once, so that a log
    file can be watched. A run that takes less prints none. For the report the history is written to the
    loggers, which waits for a GPU, every few seconds.

    Args:
        history: the callback that has the losses and scores.
        steps: optimiser steps of an epoch.
        seconds: least time from one line to the next.
        redraw: least time from one drawing of the bar to the next.
        console: the console; None: the standard output.
    """

    def __init__(
        self,
        history: History,
        steps: int,
        *,
        seconds: float = 5.0,
        redraw: float = 0.25,
        console: Console | None = None,
    ) -> None:
        self._history, self._steps, self._seconds, self._redraw = history, steps, seconds, redraw
        self._console = console
        self._bar: _Bar | None = None
        self._quiet = False
        self._told = self._drawn = self._began = 0.0
        self._first = 0

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Shows the bar if the output is a terminal."""
        console = self._console or Console()
        self._told = self._began = time.monotonic()
        self._first = trainer.global_step
        if not console.is_terminal or console.is_dumb_terminal:
            return
        columns = (
            TextColumn("epoch" if self._steps == 1 else "step"),
            MofNCompleteColumn(), BarColumn(20), TimeRemainingColumn(),
        )  # fmt: skip
        self._bar = _Bar(*columns, console=console, auto_refresh=False, transient=True)
        self._bar.add_task("", total=trainer.max_steps, completed=trainer.global_step)
        self._bar.start()

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        """Draws the bar or prints a line if enough time has passed."""
        now = time.monotonic()
        if self._quiet or now - self._drawn < self._redraw:
            return
        self._drawn = now
        if due := now - self._told >= self._seconds:
            self._told = now
            self._history.flush(trainer)
        if self._bar is not None:
            self._bar.values = self._values()
            self._bar.update(self._bar.task_ids[0], completed=trainer.global_step, refresh=True)
        elif due:
            self._say(f"{self._place(trainer)}: {self._values()}; {self._left(trainer, now)} left")

    def _place(self, trainer: pl.Trainer) -> str:
        """Returns the epoch, or epoch and step, that were trained last."""
        steps, done = self._steps, trainer.global_step
        place = f"epoch {-(-done // steps)} of {trainer.max_steps // steps}"
        return place if steps == 1 else f"{place}, step {done} of {trainer.max_steps}"

    def _values(self) -> str:
        return ", ".join(f"{name} {value:.4g}" for name, value in self._history.latest.items())

    def _left(self, trainer: pl.Trainer, now: float) -> str:
        done = trainer.global_step - self._first
        seconds = round((now - self._began) / done * (trainer.max_steps - trainer.global_step))
        hours, minutes = seconds // 3600, seconds // 60 % 60
        return f"{hours}:{minutes:02d}:{seconds % 60:02d}"

    def _say(self, line: str) -> None:
        console = self._console or Console()
        try:
            console.file.write(f"{line}\n")
            console.file.flush()
        except OSError:  # the reader of a pipe has gone, or a disk is full
            self._quiet = True
            without_pipe()

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def on_exception(self, trainer: pl.Trainer, module: Any, exception: BaseException) -> None:
        """Removes the bar, so that the error is readable."""
        self.on_train_end(trainer, module)
