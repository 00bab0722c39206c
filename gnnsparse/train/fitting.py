"""The function `fit`, which trains a model and scores its best epoch."""

from __future__ import annotations

import contextlib
import logging
import resource
import signal
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch.callbacks import Callback

from gnnsparse.distributed.training import agreed_problem
from gnnsparse.errors import is_out_of_memory
from gnnsparse.precision import Precision
from gnnsparse.train.callbacks import (
    BestEpoch,
    Checkpoints,
    EpochTimer,
    History,
    ProgressReport,
    StepProfiler,
    Validation,
    make_loggers,
)
from gnnsparse.train.checkpoint import CheckpointError, check_checkpoint, check_fits, is_complete
from gnnsparse.train.data import PreparedData
from gnnsparse.train.device import matmul_precision
from gnnsparse.train.folders import RunFolder, RunFolderError
from gnnsparse.train.interruption import StopAtRequest, StopRequest, TrainingInterrupted
from gnnsparse.train.module import StepTrainer, TaskModule
from gnnsparse.train.plots import Curves, write_classes, write_plots
from gnnsparse.train.settings import TrainerConfig
from gnnsparse.train.steps import Chunks, ChunkStrategy, Recorder, UncapturableError, obstacle
from gnnsparse.train.trained import ModelRecipe

_log = logging.getLogger("gnnsparse.train")

#: Fewest periods between validations that a run is timed by; its first one has the captures in it.
_PERIODS = 5
#: Lightning's name of what runs under autocast on a GPU.
_MIXED: dict[Precision, Any] = {Precision.FP16: "16-mixed", Precision.BF16: "bf16-mixed"}


@dataclass(frozen=True)
class FitResult:
    """The outcome of a run.

    Attributes:
        epochs: number of trained epochs, which includes those before a resumed checkpoint.
        best_epoch: the validated epoch with the best score, the first one among equals, counted from 1.
        metrics: scores of the model after the best epoch: {"train" | "val" | "test": {name: value}}.
        epoch_milliseconds: median over the periods between validations of a step's mean time, validation
            included, times the steps of an epoch; in a run of fewer than five such periods the median time of
            a step times the steps of an epoch; None if nothing was trained.
        fit_seconds: wall time of the training, which includes validation, logging and checkpoints.
        peak_memory_bytes: on a GPU: most memory allocated by torch during the run; on a CPU: largest resident
            size of the process until then.
        parameters: number of trained values.
        capture: "on" if steps were captured in CUDA graphs, "off" if `config.capture` is, else why they were
            not.
        classes: of a classifier a row for each class or label of the test part, by the model after the best
            epoch: "class" (its name or number), "precision", "recall", "f1", "count".
    """

    epochs: int
    best_epoch: int
    metrics: dict[str, dict[str, float]]
    epoch_milliseconds: float | None
    fit_seconds: float
    peak_memory_bytes: int
    parameters: int
    capture: str = "off"
    classes: Sequence[dict[str, Any]] = ()


def fit(
    module: TaskModule,
    data: PreparedData,
    config: TrainerConfig,
    *,
    folder: Path | RunFolder | None = None,
    resume: Path | None = None,
    identity: dict[str, Any] | None = None,
    recipe: ModelRecipe | None = None,
    curves: Curves | None = None,
    stop: StopRequest | None = None,
) -> FitResult:
    """Train a model, score it after the best epoch, and leave it with the weights of that epoch.

    The precision is that of the data's operand. On a GPU dense layers use it, too: fp16 and bf16 run under
    autocast, fp16 with a gradient scaler, and in tf32 float32 products may use TF32. On the CPU dense layers
    use float32, and only sparse products round their operands.

    A signal, SIGTERM or that of Ctrl-C, ends the training after the step in which it comes: the checkpoint is
    written, the loggers are, and TrainingInterrupted is raised. A second one, more than a second later, ends
    it at once. One that comes after the last step ends the process after the scores.

    Args:
        module: the model and its optimiser.
        data: the training data, on the device to train on.
        config: settings of the training loop.
        folder: folder for logs and checkpoints, which no other run has used, except the one that `resume`
            goes on with; None: nothing is written, and `config.logger` is ignored.
        resume: the last.ckpt of an earlier run, from which training goes on until `config.max_epochs`; if it
            is of the last epoch, the model is only scored. None: training begins anew.
        identity: plain values by name that identify the run. They are stored in checkpoints, and must equal
            those of `resume`.
        recipe: what the model is made of, stored in checkpoints for `gnnsparse.load`; None: it can't be
            loaded by that.
        curves: takes the losses and scores of the run: each step, counted from 1, with its values by name;
            None: they are not kept.
        stop: notes the signals, if the caller has to know of one that came after the last step; None: `fit`
            does it by itself.

    Returns:
        The outcome of the run.

    Raises:
        UncapturableError: `config.capture` is "on", and the steps can't be captured.
        CheckpointError: `resume` can't be used.
        RunFolderError: another run has the folder, it can't be written to, or lacks space for checkpoints.
        FloatingPointError: the loss became infinite or NaN.
        TrainingInterrupted: a signal ended the training before the last step.
    """
    own = folder if isinstance(folder, RunFolder) else None
    done, end = 0, config.max_epochs * data.steps_per_epoch
    try:
        reason = _why_not(module, data, config)
        if resume is not None:
            checkpoint = check_checkpoint(resume, config, identity or {}, data.steps_per_epoch)
            check_fits(resume, checkpoint, module)
            done = checkpoint["global_step"]
            if is_complete(checkpoint, config, data.steps_per_epoch):
                end = done
            del checkpoint  # it is mapped from the file
        if own is None and folder is not None:
            own = RunFolder.claim(Path(folder), resume=resume)  # type: ignore[arg-type]
        with StopRequest() if stop is None else contextlib.nullcontext(stop) as noted:
            result = _fit(
                module, data, config, own, resume, (done, end), identity or {}, reason, recipe, curves, noted
            )
        if stop is None and noted.signum is not None:
            signal.raise_signal(noted.signum)
        return result
    except (CheckpointError, RunFolderError, UncapturableError):  # nothing was trained
        if own is not None:
            own.release()
        raise
    finally:
        if own is not None and own is not folder:
            own.finish()


def _why_not(module: TaskModule, data: PreparedData, config: TrainerConfig) -> str | None:
    """Return why steps are not captured, None if they are; raise UncapturableError if they have to be."""
    if config.capture == "off":
        return "off"
    reason = obstacle(module, data)
    if module.shards_optimizer:
        reason = "steps of an optimiser whose state is divided wait for the host"
    reason = agreed_problem(reason, data.peers)
    if reason is not None and config.capture == "on":
        raise UncapturableError(reason)
    if reason is not None:
        # On a CPU nobody expects a CUDA graph.
        level = logging.INFO if data.device.type == "cuda" else logging.DEBUG
        _log.log(level, "trainer.capture: %s; steps are launched one by one", reason)
    return reason


def _fit(
    module: TaskModule,
    data: PreparedData,
    config: TrainerConfig,
    folder: RunFolder | None,
    resume: Path | None,
    span: tuple[int, int],
    identity: dict[str, Any],
    reason: str | None,
    recipe: ModelRecipe | None,
    curves: Curves | None,
    stop: StopRequest,
) -> FitResult:
    """Train from the first to the second step of `span`, or only score if they are equal."""
    done, end = span
    steps, device = data.steps_per_epoch, data.device
    on_gpu = device.type == "cuda"
    every = steps * config.val_every
    patience = None if config.patience is None else steps * config.patience
    best = BestEpoch(module.score_name, patience, module.smaller_is_better)
    timer = EpochTimer(every if _PERIODS * every <= steps * config.max_epochs else 1)
    plots = config.plots and folder is not None
    if plots and curves is None:
        curves = []
    history = History(config.log_every, steps, in_chunks=reason is None, curves=curves)
    recorder = strategy = keep = None
    if reason is None:
        recorder = Recorder(device, config.capture == "on", data.peers)
        chunks = Chunks(every, config.log_every, config.patience is not None, best, history, timer)
        strategy = ChunkStrategy(device, chunks, recorder, data.batch_source)
    if folder is not None and config.checkpoint:
        weights = sum(tensor.nbytes for tensor in module.state_dict().values())
        moments = 2 * sum(p.nbytes for p in module.parameters() if p.requires_grad)
        # At most the last one, the one that replaces it, and the best.
        most = 2 * (2 * weights + moments) + weights + 2**20
        folder.check_space(most, "the checkpoints of this model")
        keep = folder.path / "checkpoints"  # made by the first write
    # The order matters: History adds a step's row before Validation adds scores to it, and BestEpoch has the
    # scores before Checkpoints writes the weights.
    callbacks: list[Callback] = [timer, history, best]
    if strategy is None:
        callbacks.append(Validation(every, history, best))
    stopping = StopAtRequest(stop, data.peers)
    writes = (keep, best, config.checkpoint_seconds, identity, recipe)
    checkpoints = Checkpoints(*writes)
    if data.peers is not None and module.shards_optimizer:
        from gnnsparse.train.sharded_optimizer import SharedCheckpoints

        checkpoints = SharedCheckpoints(data.peers, *writes)
    callbacks += [checkpoints, stopping]
    if config.profile is not None and folder is not None:
        callbacks.append(StepProfiler(config.profile, device, Path(folder.make("profile")) / "trace.json"))
    if config.progress:
        callbacks.append(ProgressReport(history, steps))
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
    with _quiet(), matmul_precision(data.precision, device):
        trainer = StepTrainer(
            strategy=strategy or "auto",
            accelerator="cuda" if on_gpu else "cpu",
            devices=[device.index] if on_gpu else 1,
            precision=_MIXED.get(data.precision.rounded, "32-true") if on_gpu else "32-true",
            max_epochs=-1,  # one endless epoch, because ends of epochs are slow
            max_steps=end,
            limit_val_batches=0,  # done by the callback Validation
            logger=make_loggers(config, folder, done, {} if recipe is None else recipe.to_dict()) or False,
            callbacks=callbacks,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=None if folder is None else folder.path,
            # Lightning trains one device in each process: the ranks exchange what they need themselves.
            plugins=None if data.peers is None else [LightningEnvironment()],
        )
        trainer.in_chunks = strategy is not None
        start = time.perf_counter()
        try:
            trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
            if on_gpu:
                torch.cuda.synchronize(device)
            seconds = time.perf_counter() - start
        except (OSError, FloatingPointError, UncapturableError):
            raise
        except Exception as error:  # Lightning and torch raise errors of many types
            # Before the first step Lightning restores the checkpoint.
            if resume is None or timer.has_begun or is_out_of_memory(error):
                raise
            problem = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise CheckpointError(f"resume: {resume} can't be restored ({problem})") from error
        finally:
            if strategy is not None:
                strategy.release()
        if stop.signum is not None and stopping.stopped:
            last = None if keep is None else keep / "last.ckpt"
            raise TrainingInterrupted(stop.signum, trainer.global_step // steps, last)
        if done == end:  # a kill may have come between the two files of a checkpoint
            checkpoints.write_best()
        best.restore(module)
        trainer.test(module, datamodule=data, verbose=False)
    if plots and curves is not None and folder is not None:
        title = "" if recipe is None else f"{recipe.name} on {data.dataset.name}"
        classes = getattr(data.dataset, "class_names", None)
        write_plots(
            folder.path / "plots", curves, module.confusion, steps_per_epoch=steps, title=title,
            classes=classes,
        )  # fmt: skip
    if folder is not None and module.class_rows:
        write_classes(folder.path / "classes.csv", module.class_rows)
    metrics: dict[str, dict[str, float]] = {"train": {}, "val": {}, "test": {}}
    for name, value in trainer.callback_metrics.items():
        part, score = name.split("/")
        metrics[part][score] = float(value)
    step_milliseconds = timer.median_milliseconds()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return FitResult(
        epochs=trainer.global_step // steps,
        best_epoch=best.epoch // steps,
        metrics=metrics,
        epoch_milliseconds=None if step_milliseconds is None else steps * step_milliseconds,
        fit_seconds=seconds,
        peak_memory_bytes=torch.cuda.max_memory_allocated(device) if on_gpu else resident,
        parameters=sum(p.numel() for p in module.parameters() if p.requires_grad),
        capture=reason or (recorder and recorder.problem) or "on",
        classes=module.class_rows,
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence Lightning's notices, and warnings about its use of torch, inside a `with` block."""
    loggers = [logging.getLogger(f"lightning.{part}") for part in ("pytorch", "fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)", FutureWarning)
        warnings.filterwarnings("ignore", "It is recommended to use .*sync_dist")  # ranks have equal scores
        warnings.filterwarnings("ignore", "GPU available but not used")  # the user asked for the CPU
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
