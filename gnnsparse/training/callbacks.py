"""What goes on beside the steps: scores, the best epoch, checkpoints, timing, progress.

Nothing here waits for a GPU in an ordinary epoch: scores stay on the device, and come to the host
every `log_every` epochs, in one copy.
"""

from __future__ import annotations

import itertools
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

__all__ = ["BestEpoch", "Checkpoints", "EpochTimer", "History", "ProgressBar", "Validation"]


class Validation(Callback):
    """Validates after every few epochs, and after the last one.

    On the graph that was just trained on, in place of Lightning's evaluation loop: that takes as long
    as a whole epoch on a small graph.

    Args:
        every: epochs from one validation to the next.
        listeners: have a method `validated(trainer, module, scores)`, called with each outcome.
    """

    def __init__(self, every: int, *listeners: History | BestEpoch) -> None:
        self._every, self._listeners = every, listeners

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Validates if it is time."""
        epoch = trainer.global_step
        if epoch % self._every and epoch != trainer.max_steps:
            return
        module.eval()
        with torch.no_grad(), trainer.precision_plugin.val_step_context():
            scores = module.validation_step(batch)
        module.train()
        for listener in self._listeners:
            listener.validated(trainer, module, scores)


class History(Callback):
    """Sends losses and validation scores to the loggers, a row for each epoch.

    Args:
        every: steps from one write to the next.
        unit: what a step is to the user: "epoch" of a graph, "step" of mini-batches.

    Attributes:
        latest: the last step's values that are on the host.
    """

    def __init__(self, every: int, unit: str = "epoch") -> None:
        self._every, self.unit = every, unit
        self._rows: list[tuple[int, dict[str, torch.Tensor]]] = []
        self.latest: dict[str, float] = {}

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, *_: Any) -> None:
        """Keeps the training loss; writes the epochs before this one if it is time."""
        if len(self._rows) >= self._every:
            self._write(trainer)
        self._rows.append((trainer.global_step, {"train/loss": outputs["loss"]}))

    def validated(self, trainer: pl.Trainer, module: Any, scores: dict[str, torch.Tensor]) -> None:
        """Keeps the scores of the epoch."""
        self._rows[-1][1].update({f"val/{name}": value for name, value in scores.items()})

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Writes the rest."""
        self._write(trainer)

    def on_save_checkpoint(self, trainer: pl.Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        """Writes the epochs that the checkpoint comes after: a resumed run does not have them."""
        self._write(trainer)

    def _write(self, trainer: pl.Trainer) -> None:
        """Raises FloatingPointError for a training loss that is not finite."""
        if not self._rows:
            return
        tensors = [value.float() for _, row in self._rows for value in row.values()]
        values = iter(torch.stack(tensors).tolist())
        for epoch, row in self._rows:
            self.latest = {name: next(values) for name in row}
            for logger in trainer.loggers:
                logger.log_metrics(self.latest, step=epoch)
            if not math.isfinite(loss := self.latest["train/loss"]):
                raise FloatingPointError(
                    f"training diverged: the loss of {self.unit} {epoch} is {loss}; try a smaller "
                    "optimizer.lr or precision=fp32"
                )
        for logger in trainer.loggers:
            logger.save()
        self._rows = []


class BestEpoch(Callback):
    """Keeps the weights of the epoch with the best validation score, the first one of equals.

    Which one that is stays on the device: better or not, each validation selects between the kept
    tensors and the present ones. With `patience` the host has to know, and waits for it.

    Args:
        score: name of the score; more is better.
        patience: stop after this many epochs without a better one; None: never.
    """

    def __init__(self, score: str, patience: int | None) -> None:
        self._score, self._patience = score, patience
        self._kept: dict[str, torch.Tensor] = {}
        self._best: torch.Tensor | None = None
        self._epoch: torch.Tensor | None = None

    @property
    def epoch(self) -> int:
        """The best epoch so far, from 1; 0: there is none."""
        return 0 if self._epoch is None else int(self._epoch)

    @property
    def score(self) -> float:
        """Its score."""
        return -math.inf if self._best is None else float(self._best)

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        """The model's state after it."""
        return self._kept

    def validated(self, trainer: pl.Trainer, module: Any, scores: dict[str, torch.Tensor]) -> None:
        """Takes the score, and the weights if it is the best one."""
        value = scores[self._score].float()
        present = {name: tensor.detach() for name, tensor in module.model.state_dict().items()}
        if self._best is None or self._epoch is None:
            self._best = torch.full_like(value, -math.inf)
            self._epoch = torch.zeros((), dtype=torch.int64, device=value.device)
            self._kept = {name: tensor.clone() for name, tensor in present.items()}
        better = value > self._best
        self._best = torch.where(better, value, self._best)
        self._epoch = torch.where(better, trainer.global_step, self._epoch)
        for name, kept in self._kept.items():
            torch.where(better, present[name], kept, out=kept)
        if self._patience is not None and trainer.global_step - self.epoch >= self._patience:
            trainer.should_stop = True

    def restore(self, module: Any) -> None:
        """Puts the weights of the best epoch into the model, if there is one."""
        if self.epoch:
            module.model.load_state_dict(self._kept)

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return {"best": self._best, "epoch": self._epoch, "weights": self._kept}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._best, self._epoch = state_dict["best"], state_dict["epoch"]
        self._kept = state_dict["weights"]

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Brings what a checkpoint had to the device."""
        if self._best is not None and self._epoch is not None:
            self._best, self._epoch = self._best.to(module.device), self._epoch.to(module.device)
            self._kept = {name: tensor.to(module.device) for name, tensor in self._kept.items()}


class Checkpoints(Callback):
    """Writes last.ckpt, everything that resuming needs, and best.ckpt, the best weights.

    Each file appears whole or not at all. The state of the random numbers goes with last.ckpt, so
    that a resumed run has the dropout of an uninterrupted one.

    Args:
        folder: where to; None: nowhere, the state is restored only.
        best: the callback that knows the best weights.
        seconds: time from one write to the next during training.
        identity: what the run is about, written to both files.
    """

    def __init__(
        self, folder: Path | None, best: BestEpoch, seconds: float, identity: dict[str, Any]
    ) -> None:
        self._folder, self._best, self._seconds, self._identity = folder, best, seconds, identity
        self._written_at = time.monotonic()
        self._best_written = 0
        self._random: dict[str, torch.Tensor] = {}

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Restores the random numbers of a checkpoint."""
        self._written_at = time.monotonic()
        if "cpu" in self._random:
            torch.set_rng_state(self._random["cpu"].cpu())
        if "cuda" in self._random and module.device.type == "cuda":
            torch.cuda.set_rng_state(self._random["cuda"].cpu(), module.device)

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        """Writes if it is time."""
        if time.monotonic() - self._written_at >= self._seconds:
            self._write(trainer, module)

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Writes the last state."""
        self._write(trainer, module)

    def on_save_checkpoint(self, trainer: pl.Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        """Adds what the run is about."""
        checkpoint["gnnsparse"] = self._identity

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        state = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state()
        return {"random": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """From a checkpoint."""
        self._random = state_dict["random"]

    def _write(self, trainer: pl.Trainer, module: Any) -> None:
        if self._folder is None:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        part = self._folder / "part.ckpt"
        trainer.save_checkpoint(part)
        os.replace(part, self._folder / "last.ckpt")
        if (epoch := self._best.epoch) > self._best_written:
            content = {"epoch": epoch, "score": self._best.score, "gnnsparse": self._identity}
            torch.save({"state_dict": self._best.weights, **content}, part)
            os.replace(part, self._folder / "best.ckpt")
            self._best_written = epoch
        self._written_at = time.monotonic()


class EpochTimer(Callback):
    """Times epochs: from the start of one step to the start of the next, validation included.

    On a GPU by events, which are read at the end: the host runs ahead of the device.
    """

    def __init__(self) -> None:
        self._marks: list[Any] = []

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        """Marks the start of an epoch."""
        self._mark(module)

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Marks the end of the last epoch."""
        self._mark(module)

    def _mark(self, module: Any) -> None:
        if module.device.type == "cuda":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append(event)
        else:
            self._marks.append(time.perf_counter())

    def median_milliseconds(self) -> float | None:
        """The median over all epochs; None if there was none."""
        pairs = list(itertools.pairwise(self._marks))
        if not pairs:
            return None
        if isinstance(self._marks[0], float):
            return statistics.median(1e3 * (end - start) for start, end in pairs)
        self._marks[-1].synchronize()
        return statistics.median(start.elapsed_time(end) for start, end in pairs)


class ProgressBar(Callback):
    """A bar of epochs, drawn a few times a second, with the last values that are on the host.

    Args:
        history: has these values.
        seconds: time from one drawing to the next.
    """

    def __init__(self, history: History, seconds: float = 0.25) -> None:
        self._history, self._seconds = history, seconds
        self._drawn = 0.0
        self._bar: Progress | None = None

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Shows the bar, on a terminal."""
        console = Console()
        if not console.is_terminal:
            return
        columns = (
            TextColumn(self._history.unit), MofNCompleteColumn(), BarColumn(), TimeRemainingColumn(),
            TextColumn("{task.fields[values]}"),
        )  # fmt: skip
        self._bar = Progress(*columns, console=console, auto_refresh=False, transient=True)
        self._bar.add_task("", total=trainer.max_steps, completed=trainer.global_step, values="")
        self._bar.start()

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        """Draws it if it is time."""
        if self._bar is None or time.monotonic() - self._drawn < self._seconds:
            return
        self._drawn = time.monotonic()
        values = "  ".join(f"{name} {value:.4g}" for name, value in self._history.latest.items())
        self._bar.update(self._bar.task_ids[0], completed=trainer.global_step, values=values, refresh=True)

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Takes it away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def on_exception(self, trainer: pl.Trainer, module: Any, exception: BaseException) -> None:
        """Takes it away."""
        self.on_train_end(trainer, module)
