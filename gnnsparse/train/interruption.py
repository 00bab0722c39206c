"""Signals that end a training: they are noted, and the training ends after the step in which they came."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

from gnnsparse.distributed.training import Peers, all_of_ranks

#: The signals that end a training: Ctrl-C, and what `kill`, batch systems and containers send.
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: Seconds in which a second signal is the same request: shells and launchers often send one twice.
_SAME = 1.0


class TrainingInterrupted(KeyboardInterrupt):
    """A signal ended the training, after a checkpoint if the run writes them.

    Attributes:
        signum: the signal.
        epochs: the epochs that are done.
        checkpoint: the checkpoint to go on from; None: none was written.
    """

    def __init__(self, signum: int, epochs: int, checkpoint: Path | None) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name} after epoch {epochs}")
        self.signum, self.epochs, self.checkpoint = signum, epochs, checkpoint


class StopRequest:
    """Notes SIGINT and SIGTERM inside a `with` block, in place of what they did before.

    A second signal, more than a second later, does what it did before the block. Outside of the main thread,
    in which Python handles signals, nothing is noted. A signal that is ignored stays ignored.

    Attributes:
        signum: the first signal that has come; None: there was none.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._came = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        self.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)
        self._before = {}

    def install(self) -> None:
        """Take the signals, once more if something else has taken them since."""
        if threading.current_thread() is not threading.main_thread():
            return
        for signum in _SIGNALS:
            present = signal.getsignal(signum)
            # None: a handler of C, which could not be put back.
            if present not in (signal.SIG_IGN, None, self._note):
                self._before.setdefault(signum, present)
                signal.signal(signum, self._note)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.signum is None:
            self.signum, self._came = signum, time.monotonic()
        elif time.monotonic() - self._came > _SAME:
            self.__exit__(None, None, None)
            signal.raise_signal(signum)


class StopAtRequest(Callback):
    """Ends the training after the step in which a signal came, on several ranks after the same step."""

    # `stopped` says that it has, and not early stopping in the same step.

    def __init__(self, request: StopRequest, peers: Peers | None = None) -> None:
        self._request, self._peers, self.stopped = request, peers, False

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Take the signals from Lightning, which would end in the middle of an epoch."""
        self._request.install()

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        """Stop if a signal has come."""
        if self._peers is not None:
            signum = int(all_of_ranks(self._request.signum or 0, self._peers).max())
            self._request.signum = signum or None
        if self._request.signum is not None and not trainer.should_stop:
            self.stopped = trainer.global_step < trainer.max_steps
            trainer.should_stop = True
