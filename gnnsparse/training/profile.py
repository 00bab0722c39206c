"""The Lightning callback of `trainer.profile`: a trace of a few steps of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from gnnsparse.tracing import Recorder, print_profile, wide_console

__all__ = ["StepProfiler"]

#: Steps before those that are profiled: kernels are loaded, plans made and memory allocated in the first
#: ones.
_BEFORE = 5


class StepProfiler(Callback):
    """Profiles a few steps after the first ones, writes their trace and prints what they cost.

    A run with fewer steps than that is profiled from its first step on.

    Args:
        steps: number of steps to profile.
        device: the device of the run.
        trace: the file of the trace.
    """

    def __init__(self, steps: int, device: torch.device, trace: Path) -> None:
        self._steps, self._trace = steps, trace
        self._recorder = Recorder(device)
        self._first = -1
        self._done = False

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        """Begins to record once the first steps are over."""
        if self._first >= 0 or self._done:
            return
        left = trainer.max_steps - trainer.global_step
        if batch_idx >= _BEFORE or left <= self._steps:
            self._first = trainer.global_step
            self._recorder.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Ends the recording after the last of the steps."""
        if self._first >= 0 and trainer.global_step - self._first >= self._steps:
            self._finish(trainer.global_step - self._first)

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Ends the recording of a run that stopped early."""
        if self._first >= 0:
            self._finish(max(trainer.global_step - self._first, 1))

    def on_exception(self, trainer: pl.Trainer, module: Any, exception: BaseException) -> None:
        """Ends the recording without a result."""
        if self._first >= 0:
            self._first, self._done = -1, True
            self._recorder.abandon()

    def _finish(self, steps: int) -> None:
        self._first, self._done = -1, True
        print_profile(self._recorder.stop(steps, trace=self._trace), wide_console())
