"""Lightning callbacks of a run: validation, logging, the best epoch, checkpoints, timing.

In most epochs none of them waits for a GPU: scores stay on the device, and every `log_every` steps one copy
brings them to the host. Where steps run in chunks (gnnsparse.train.steps), a chunk validates and tells
History, BestEpoch and EpochTimer itself, and the other callbacks see a chunk as one step.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import itertools
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from gnnsparse.runtime.environment import without_pipe, write_text
from gnnsparse.runtime.profiler import Recorder, print_profile, wide_console
from gnnsparse.train.checkpoint import IDENTITY, MODEL, SUM, best_sum, checkpoint_sum
from gnnsparse.train.folders import RunFolder, RunFolderWarning
from gnnsparse.train.plots import Curves
from gnnsparse.train.settings import SERVICES, TrainerConfig
from gnnsparse.train.trained import ModelRecipe


def validate(plugin: Any, module: Any, batch: Any) -> dict[str, torch.Tensor]:
    """Return the scores of the module's validation step, in evaluation mode and without gradients."""
    module.eval()
    try:
        with torch.no_grad(), plugin.val_step_context():
            scores: dict[str, torch.Tensor] = module.validation_step(batch)
    finally:
        module.train()
    return scores


class Validation(Callback):
    """Validates every few steps, and after the last one, with the batch that was just trained on."""

    # Lightning's evaluation loop would take as long as a whole epoch on a small graph.

    def __init__(self, every: int, history: History, best: BestEpoch) -> None:
        self._every, self._history, self._best = every, history, best

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Validate if `every` steps have passed, or the last one."""
        step = trainer.global_step
        if step % self._every and step != trainer.max_steps:
            return
        scores = validate(trainer.precision_plugin, module, batch)
        self._history.validated(scores)
        self._best.update(scores, step, module)
        self._best.stop_if_worse(trainer, step)


class StepRows:
    """What a chunk of steps has logged, [steps, columns], on its way from the device to the host."""

    # Making it does not wait for a GPU, and `read` waits for these steps alone. The first column is the
    # training loss, and steps that are not in `validated` have no other.

    def __init__(
        self, first: int, names: tuple[str, ...], values: torch.Tensor, validated: frozenset[int]
    ) -> None:
        self._first, self._names, self._validated = first, names, validated
        self._arrived: torch.cuda.Event | None = None
        self._values = values
        if values.is_cuda:
            host = torch.empty(values.shape, dtype=values.dtype, device="cpu", pin_memory=True)
            self._values = host.copy_(values, non_blocking=True)
            self._arrived = torch.cuda.Event()
            self._arrived.record()

    def __len__(self) -> int:
        return self._values.shape[0]

    def read(self) -> list[tuple[int, dict[str, float]]]:
        """Return each step with its values by name."""
        if self._arrived is not None:
            self._arrived.synchronize()
        rows = []
        for step, values in enumerate(self._values.tolist(), start=self._first):
            named = dict(zip(self._names, values, strict=True))
            rows.append((step, named if step in self._validated else {self._names[0]: values[0]}))
        return rows


class History(Callback):
    """Sends losses and validation scores to the loggers, a row for each step, `every` steps at a time."""

    # Rows of single steps come with Lightning's steps, and those of chunks by `add`. `latest` has the value
    # of each column that was written last.

    def __init__(
        self, every: int, steps: int = 1, in_chunks: bool = False, curves: Curves | None = None
    ) -> None:
        self._every, self._steps, self._in_chunks, self._curves = every, steps, in_chunks, curves
        self._chunks: list[StepRows] = []
        self._rows: list[tuple[int, dict[str, torch.Tensor]]] = []  # of single steps, on the device
        self.latest: dict[str, float] = {}

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, *_: Any) -> None:
        """Store the step's training loss, after writing the rows before it if there are `every` of them."""
        if not self._in_chunks:
            self._make_room(trainer)
            self._rows.append((trainer.global_step, {"train/loss": outputs["loss"]}))

    def add(self, trainer: pl.Trainer, chunk: StepRows) -> None:
        """Store the rows of steps, after writing the rows before them if there are `every` of them."""
        self._make_room(trainer)
        self._chunks.append(chunk)

    def validated(self, scores: dict[str, torch.Tensor]) -> None:
        """Store the validation scores of the last step."""
        self._rows[-1][1].update({f"val/{name}": value for name, value in scores.items()})

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Write the rows that are left."""
        self.flush(trainer)

    def on_save_checkpoint(self, trainer: pl.Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        """Write all rows up to the checkpoint, because a run that resumes from it can't."""
        self.flush(trainer)

    def _make_room(self, trainer: pl.Trainer) -> None:
        if len(self._rows) + sum(map(len, self._chunks)) >= self._every:
            self.flush(trainer)

    def flush(self, trainer: pl.Trainer) -> None:
        """Write all rows up to now; raise FloatingPointError if a loss is not finite."""
        found = [row for chunk in self._chunks for row in chunk.read()]
        if self._rows:  # one copy from the device
            values = iter(torch.stack([v.float() for _, row in self._rows for v in row.values()]).tolist())
            found += [(step, {name: next(values) for name in row}) for step, row in self._rows]
        for step, row in found:
            self.latest.update(row)
            # With the epoch that the step belongs to, counted from 1.
            _log(trainer, "log_metrics", {"epoch": -(-step // self._steps), **row}, step=step)
            if self._curves is not None:
                self._curves.append((step, row))
            if not math.isfinite(loss := row["train/loss"]):
                unit = "epoch" if self._steps == 1 else "step"
                raise FloatingPointError(
                    f"training diverged: the loss of {unit} {step} is {loss}; try a smaller "
                    "optimizer.lr or precision=fp32"
                )
        if found:
            _log(trainer, "save")
        self._chunks, self._rows = [], []


def _log(trainer: pl.Trainer, method: str, *args: Any, **options: Any) -> None:
    """Call a method of all loggers. One that can't write is dropped, after a RunFolderWarning."""
    for logger in trainer.loggers:
        try:
            getattr(logger, method)(*args, **options)
        except OSError as error:
            trainer.loggers = [other for other in trainer.loggers if other is not logger]
            problem = f"the log in {logger.log_dir} can't be written ({error.strerror or error})"
            warnings.warn(f"{problem}; training goes on without it", RunFolderWarning, stacklevel=2)


class BestEpoch(Callback):
    """Stores the weights of the epoch with the best validation score, the first one among equals."""

    # It compares on the device, so that the host does not wait, unless there is `patience`: the steps without
    # a better score after which training stops.

    def __init__(self, score: str, patience: int | None, smaller_is_better: bool = False) -> None:
        self._score, self._patience = score, patience
        self._sign = -1.0 if smaller_is_better else 1.0
        self.weights: dict[str, torch.Tensor] = {}
        self._best: torch.Tensor | None = None
        self._epoch: torch.Tensor | None = None

    @property
    def epoch(self) -> int:
        """The step of the best score so far, counted from 1; 0: none was validated."""
        return 0 if self._epoch is None else int(self._epoch)

    @property
    def score(self) -> float:
        """The best score so far; the worst there can be if there is none."""
        return self._sign * (-math.inf if self._best is None else float(self._best))

    def update(self, scores: dict[str, torch.Tensor], step: int | torch.Tensor, module: Any) -> None:
        """Store score, step and weights if the score is the best so far."""
        # The tensors stay the same from the second call on: it can be captured, with a step on the device.
        value = self._sign * scores[self._score].float()
        present = {name: tensor.detach() for name, tensor in module.model.state_dict().items()}
        if self._best is None or self._epoch is None:
            self._best = torch.full_like(value, -math.inf)
            self._epoch = torch.zeros((), dtype=torch.int64, device=value.device)
            self.weights = {name: tensor.clone() for name, tensor in present.items()}
        better = value > self._best
        self._best.copy_(torch.where(better, value, self._best))
        self._epoch.copy_(torch.where(better, step, self._epoch))
        for name, best in self.weights.items():
            torch.where(better, present[name], best, out=best)

    def stop_if_worse(self, trainer: pl.Trainer, step: int) -> None:
        """Stop the run if the last `patience` steps up to this one have brought no better score."""
        if self._patience is not None and step - self.epoch >= self._patience:
            trainer.should_stop = True

    def restore(self, module: Any) -> None:
        """Load the weights of the best epoch into the model, if there are any."""
        if self.epoch:
            module.model.load_state_dict(self.weights)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint stores."""
        return {"best": self._best, "epoch": self._epoch, "weights": self.weights}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._best, self._epoch = state_dict["best"], state_dict["epoch"]
        self.weights = state_dict["weights"]

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Move the state of a checkpoint to the device."""
        if self._best is not None and self._epoch is not None:
            self._best, self._epoch = self._best.to(module.device), self._epoch.to(module.device)
            self.weights = {name: tensor.to(module.device) for name, tensor in self.weights.items()}


class Checkpoints(Callback):
    """Writes last.ckpt, to resume a run from, and best.ckpt, the best weights, `seconds` apart at least."""

    # Files are written atomically. If the disk is full or fails, a RunFolderWarning says so, the files of
    # before stay, and training goes on. last.ckpt includes the state of torch's random numbers, so that a
    # resumed run drops out what an uninterrupted one would. Without a folder nothing is written.

    def __init__(
        self,
        folder: Path | None,
        best: BestEpoch,
        seconds: float,
        identity: dict[str, Any],
        recipe: ModelRecipe | None = None,
    ) -> None:
        self._folder, self._best, self._seconds = folder, best, seconds
        self._labels = {IDENTITY: identity, **({} if recipe is None else {MODEL: recipe.to_dict()})}
        self._written_at = time.monotonic()
        self._best_written = 0
        self._random: dict[str, torch.Tensor] = {}

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Restore the state of the random number generators from a checkpoint."""
        self._written_at = time.monotonic()
        if "cpu" in self._random:
            torch.set_rng_state(self._random["cpu"].cpu())
        if "cuda" in self._random and module.device.type == "cuda":
            torch.cuda.set_rng_state(self._random["cuda"].cpu(), module.device)

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        """Write if enough time has passed."""
        if self._is_due():
            self._write(trainer, module)

    def _is_due(self) -> bool:
        return time.monotonic() - self._written_at >= self._seconds

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Write the final state."""
        self._write(trainer, module)

    def on_save_checkpoint(self, trainer: pl.Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the identity of the run and a checksum to last.ckpt."""
        checkpoint.update(self._labels)
        checkpoint[SUM] = checkpoint_sum(checkpoint)

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a checkpoint stores."""
        state = {"cpu": torch.get_rng_state()}
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state()
        return {"random": state}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the state of a checkpoint."""
        self._random = state_dict["random"]

    def _write(self, trainer: pl.Trainer, module: Any) -> None:
        self._write_files({"last.ckpt": trainer.save_checkpoint, "best.ckpt": self._save_best})
        self._written_at = time.monotonic()

    def write_best(self) -> None:
        """Write best.ckpt alone, if there is a better epoch than in that file."""
        self._write_files({"best.ckpt": self._save_best})

    def _write_files(self, writes: Mapping[str, Callable[[Path], bool | None]]) -> None:
        """Call what writes a file, or return False, each by way of another file in the folder."""
        if self._folder is None:
            return
        part = self._folder / "part.ckpt"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            for name, write in writes.items():
                if write(part) is not False:
                    os.replace(part, self._folder / name)
            self._best_written = self._best.epoch
        except (OSError, RuntimeError) as error:  # torch.save reports a full disk by a RuntimeError
            if isinstance(error, RuntimeError) and part.name not in str(error) and "write" not in str(error):
                raise
            with contextlib.suppress(OSError):
                part.unlink()
            reason = " ".join(str(error).split())[:200]
            problem = f"the checkpoints in {self._folder} can't be written ({reason}); training goes on"
            warnings.warn(problem, RunFolderWarning, stacklevel=2)

    def _save_best(self, part: Path) -> bool:
        if (epoch := self._best.epoch) <= self._best_written:
            return False
        content = {"epoch": epoch, "score": self._best.score, **self._labels}
        content["state_dict"] = self._best.weights
        torch.save({**content, SUM: best_sum(content)}, part)
        return True


class EpochTimer(Callback):
    """Times steps in periods, those from one validation to the next, so that each has one."""

    # On a GPU it records CUDA events and reads them at the end, because the host runs ahead of the device.

    def __init__(self, period: int = 1) -> None:
        self._period = period
        self._marks: list[tuple[int, Any]] = []

    @property
    def has_begun(self) -> bool:
        """Whether the first step was begun."""
        return bool(self._marks)

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        """Record the start of a step."""
        self.mark(module.device, trainer.global_step)

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Record the end of the last step."""
        self.mark(module.device, trainer.global_step, always=True)

    def mark(self, device: torch.device, done: int, always: bool = False) -> None:
        """Record the time after `done` steps if a period begins then, or the run."""
        if self._marks and (self._marks[-1][0] == done or (done % self._period and not always)):
            return
        now: Any = time.perf_counter()
        if device.type == "cuda":
            now = torch.cuda.Event(enable_timing=True)
            now.record()
        self._marks.append((done, now))

    def median_milliseconds(self) -> float | None:
        """Return the median over periods of a step's mean time in milliseconds; None: there was no step."""
        if len(self._marks) < 2:
            return None
        last = self._marks[-1][1]
        if not isinstance(last, float):
            last.synchronize()
        return statistics.median(
            (1e3 * (end - start) if isinstance(start, float) else start.elapsed_time(end)) / (after - before)
            for (before, start), (after, end) in itertools.pairwise(self._marks)
        )


def make_loggers(
    config: TrainerConfig, folder: RunFolder | None, done: int, about: Mapping[str, Any]
) -> list[Logger]:
    """Return a run's loggers, without what was logged after the `done` steps that it goes on from.

    A service's logger is told what the run is `about`; metrics.csv is written beside it.
    """
    loggers: list[Logger] = []
    if folder is None:
        return loggers
    where = folder.path / "logs"
    if config.logger != "none" and config.logger != "tensorboard":
        folder.make("logs/csv")
        loggers.append(logger := _CsvLogger(where, name="csv", version=0))
        logger.done = done
    if config.logger in ("tensorboard", "both"):
        folder.make("logs/tensorboard")  # the logger warns if it is missing
        loggers.append(TensorBoardLogger(where, name="tensorboard", version=0, purge_step=done + 1))
    if config.logger in SERVICES:
        loggers.append(_service(config.logger, folder.path))
        loggers[-1].log_hyperparams(dict(about))
    return loggers


def _service(name: str, folder: Path) -> Logger:
    """Return the logger of a service, which the service's own environment variables set up."""
    if name == "wandb":
        # A run that goes on in its folder is the same run there.
        same = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:16]
        return WandbLogger(
            folder.name, save_dir=folder / "logs", project="gnnsparse", id=same, resume="allow"
        )
    where = os.environ.get("MLFLOW_TRACKING_URI") or (folder / "logs" / "mlflow").absolute().as_uri()
    return MLFlowLogger("gnnsparse", run_name=folder.name, tracking_uri=where)


class _CsvLogger(CSVLogger):
    """Lightning's logger, which does not begin its file anew if it has rows of steps up to `done`."""

    done = 0

    @property
    def experiment(self) -> Any:
        if self._experiment is None:
            os.makedirs(self.root_dir, exist_ok=True)
            self._experiment = _Writer(self.log_dir, self.done)
        return self._experiment


class _Writer(ExperimentWriter):
    """Lightning's writer of metrics.csv, which leaves the rows of steps up to `done` there."""

    def __init__(self, log_dir: str, done: int) -> None:
        self._done = done
        super().__init__(log_dir)

    def _check_log_dir_exists(self) -> None:
        """Drop the other rows, and one that a kill has cut, in place of Lightning's warning."""
        file = Path(self.metrics_file_path)
        if not file.is_file():
            return
        with file.open(newline="", encoding="utf-8", errors="replace") as source:
            columns, *rows = [*csv.reader(source)] or [[]]
        at = columns.index("step") if "step" in columns else None
        whole = [row for row in rows if at is not None and len(row) == len(columns)]
        rows = [row for row in whole if row[at].isdecimal() and int(row[at]) <= self._done]
        if not rows:
            file.unlink()
            return
        self.metrics_keys = columns
        write_text(file, "".join(",".join(row) + "\r\n" for row in [columns, *rows]))


#: Steps before those that are profiled: kernels are loaded, plans made and memory allocated in the first
#: ones.
_BEFORE = 5


class StepProfiler(Callback):
    """Profiles a few steps after the first ones, writes their trace and prints what they cost."""

    # A run with fewer steps is profiled from its first step on, and one in chunks by whole chunks.

    def __init__(self, steps: int, device: torch.device, trace: Path) -> None:
        self._steps, self._trace, self._recorder = steps, trace, Recorder(device)
        self._begin, self._done = 0, False
        self._first: int | None = None  # of the steps that are being recorded

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Note the step that the run begins with, which is not 0 if it resumes another."""
        self._begin = trainer.global_step

    def on_train_batch_start(self, trainer: pl.Trainer, module: Any, batch: Any, batch_idx: int) -> None:
        """Begin to record once the first steps are over."""
        step, idle = trainer.global_step, self._first is None and not self._done
        if idle and (step - self._begin >= _BEFORE or trainer.max_steps - step <= self._steps):
            self._first = step
            self._recorder.start()

    def on_train_batch_end(
        self, trainer: pl.Trainer, module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """End the recording after the last of the steps."""
        if self._first is not None and trainer.global_step - self._first >= self._steps:
            self._finish(trainer.global_step - self._first)

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """End the recording of a run that stopped early."""
        if self._first is not None:
            self._finish(max(trainer.global_step - self._first, 1))
        elif not self._done:
            problem = "the run ended before it could be profiled; give it more epochs"
            warnings.warn(f"trainer.profile: {problem}", RunFolderWarning, stacklevel=2)

    def on_exception(self, trainer: pl.Trainer, module: Any, exception: BaseException) -> None:
        """End the recording without a result."""
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


class _Bar(Progress):
    """A bar with a second line, of values, which has as many lines as it needs: no number is cut."""

    values = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield Text(self.values, overflow="fold")


class ProgressReport(Callback):
    """Reports the latest loss and scores: on a terminal a bar, elsewhere a line every few `seconds`."""

    # A line is flushed at once, for a log file that is watched. For it the history is written to the loggers,
    # which waits for a GPU. `redraw` are the seconds between two looks of the bar.

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
        """Show the bar if the output is a terminal."""
        self._console = console = self._console or Console()
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
        """Draw the bar or print a line if enough time has passed."""
        now = time.monotonic()
        if self._quiet or now - self._drawn < self._redraw:
            return
        self._drawn = now
        if due := now - self._told >= self._seconds:
            self._told = now
            self._history.flush(trainer)
        values = ", ".join(f"{name} {value:.4g}" for name, value in self._history.latest.items())
        steps, done, end = self._steps, trainer.global_step, trainer.max_steps
        if self._bar is not None:
            self._bar.values = values
            self._bar.update(self._bar.task_ids[0], completed=done, refresh=True)
        elif due:
            within = "" if steps == 1 else f", step {done} of {end}"
            seconds = round((now - self._began) / (done - self._first) * (end - done))
            left = f"{seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left"
            assert self._console is not None
            try:
                epoch = f"epoch {-(-done // steps)} of {end // steps}"
                self._console.file.write(f"{epoch}{within}: {values}; {left}\n")
                self._console.file.flush()
            except OSError:  # the reader of a pipe has gone, or a disk is full
                self._quiet = True
                without_pipe()

    def on_train_end(self, trainer: pl.Trainer, module: Any) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def on_exception(self, trainer: pl.Trainer, module: Any, exception: BaseException) -> None:
        """Remove the bar, so that the error is readable."""
        self.on_train_end(trainer, module)
