"""The Lightning callback of `trainer.profile`: a trace of a few steps of a run."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from gnnsparse.runtime.profiler import Recorder, print_profile, wide_console
from gnnsparse.train.folders import RunFolderWarning

__all__ = ["StepProfiler"]

#: Steps before those that are profiled: kernels are loaded, plans made and memory allocated in the first
#: ones.
_BEFORE = 5


class StepProfiler(Callback):
    """Profiles a few steps after the first ones, writes their trace and prints what they cost.

    A run with fewer steps than that is profiled from its first step on. If Lightning's step is a block of
    steps, whole blocks are profiled.

    Args:
        steps: number of steps to profile.
        device: the device of the run.
        trace: the file of the trace. If it can't be written, a RunFolderWarning says so.
    """

    def __init__(self, steps: int, device: torch.device, trace: Path) -> None:
        self._steps, self._trace = steps, trace
        self._recorder = Recorder(device)
        self._begin = 0
        self._first: int | None = None
        self._done = False

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Notes the step that the run begins with, which is not 0 if it resumes another."""
        self._begin = trainer.global_step

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        """Begins to record once the first steps are over."""
        if self._first is not None or self._done:
            return
        step = trainer.global_step
        if step - self._begin >= _BEFORE or trainer.max_steps - step <= self._steps:
            self._first = step
            self._recorder.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Ends the recording after the last of the steps."""
        if self._first is not None and trainer.global_step - self._first >= self._steps:
            self._finish(trainer.global_step - self._first)

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Ends the recording of a run that stopped early."""
        if self._first is not None:
            self._finish(max(trainer.global_step - self._first, 1))
        elif not self._done:
            warnings.warn(
                "trainer.profile: the run ended before it could be profiled; give it more epochs",
                RunFolderWarning,
                stacklevel=2,
            )

    def on_exception(self, trainer: pl.Trainer, module: Any, exception: BaseException) -> None:
        """Ends the recording without a result."""
        if self._first is not None:
            self._first, self._done = None, True
            self._recorder.abandon()

    def _finish(self, steps: int) -> None:
        self._first, self._done = None, True
        try:
            profile = self._recorder.stop(steps, trace=self._trace)
        except OSError as error:
            problem = f"trainer.profile: {self._trace} can't be written ({error})"
            warnings.warn(problem, RunFolderWarning, stacklevel=2)
            return
        print_profile(profile, wide_console())
