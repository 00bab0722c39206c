"""The function `fit`, which trains a model and scores its best epoch."""

from __future__ import annotations

import contextlib
import logging
import resource
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger

from gnnsparse.precision import Precision
from gnnsparse.training.callbacks import (
    BestEpoch,
    Checkpoints,
    EpochTimer,
    History,
    ProgressBar,
    Validation,
)
from gnnsparse.training.config import TrainerConfig
from gnnsparse.training.data import PreparedData
from gnnsparse.training.module import TaskModule

__all__ = ["CheckpointError", "FitResult", "check_checkpoint", "fit"]

#: Lightning's precision and torch's float32 matmul precision on a GPU.
_GPU_MODES: dict[Precision, tuple[Any, str]] = {
    Precision.FP32: ("32-true", "highest"),
    Precision.TF32: ("32-true", "high"),
    Precision.FP16: ("16-mixed", "high"),
    Precision.BF16: ("bf16-mixed", "high"),
}


class CheckpointError(ValueError):
    """A run can't be resumed from a checkpoint; the message says why."""


@dataclass(frozen=True)
class FitResult:
    """The outcome of a run.

    Attributes:
        epochs: number of trained epochs, which includes those before a resumed checkpoint.
        best_epoch: the validated epoch with the best score, the first one among equals, counted from 1.
        metrics: scores of the model after the best epoch: {"train" | "val" | "test": {name: value}}.
        epoch_milliseconds: median time of a step, validation included, times the steps of an epoch; None if
            nothing was trained.
        fit_seconds: wall time of the training, which includes validation, logging and checkpoints.
        peak_memory_bytes: on a GPU: most memory allocated by torch during the run; on a CPU: largest resident
            size of the process until then.
        parameters: number of trained values.
    """

    epochs: int
    best_epoch: int
    metrics: dict[str, dict[str, float]]
    epoch_milliseconds: float | None
    fit_seconds: float
    peak_memory_bytes: int
    parameters: int


def fit(
    module: TaskModule,
    data: PreparedData,
    config: TrainerConfig,
    *,
    folder: Path | None = None,
    resume: Path | None = None,
    identity: dict[str, Any] | None = None,
) -> FitResult:
    """Trains a model, scores it after the best epoch, and leaves it with the weights of that epoch.

    The precision is that of the data's operand. On a GPU dense layers use it, too: fp16 and bf16 run under
    autocast, fp16 with a gradient scaler, and in tf32 float32 products may use TF32. On the CPU dense layers
    use float32, and only sparse products round their operands.

    Args:
        module: the model and its optimiser.
        data: the training data, on the device to train on.
        config: settings of the training loop.
        folder: folder for logs and checkpoints; None: nothing is written, and `config.logger` is ignored.
        resume: the last.ckpt of an earlier run, from which training goes on until `config.max_epochs`; None:
            training begins anew.
        identity: plain values by name that identify the run. They are stored in checkpoints, and must equal
            those of `resume`.

    Returns:
        The outcome of the run.

    Raises:
        CheckpointError: `resume` can't be used.
        FloatingPointError: the loss became infinite or NaN.
    """
    identity, steps = identity or {}, data.steps_per_epoch
    if resume is not None:
        check_checkpoint(resume, config, identity, steps)
    best = BestEpoch(module.score_name, None if config.patience is None else steps * config.patience)
    timer, history = EpochTimer(), History(config.log_every, "epoch" if steps == 1 else "step")
    keep = folder / "checkpoints" if folder is not None and config.checkpoint else None
    # The order matters: History adds a step's row before Validation adds scores to it, and BestEpoch has the
    # scores before Checkpoints writes the weights.
    callbacks: list[Callback] = [timer, history, best, Validation(steps * config.val_every, history, best)]
    callbacks.append(Checkpoints(keep, best, config.checkpoint_seconds, identity))
    if config.progress:
        callbacks.append(ProgressBar(history))
    device = data.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with _quiet(), _matmul_precision(data.precision, device):
        trainer = _make_trainer(config, data, callbacks, folder)
        start = time.perf_counter()
        trainer.fit(module, datamodule=data, ckpt_path=resume, weights_only=True)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = time.perf_counter() - start
        best.restore(module)
        trainer.test(module, datamodule=data, verbose=False)
    step_milliseconds = timer.median_milliseconds()
    return FitResult(
        epochs=trainer.global_step // steps,
        best_epoch=best.epoch // steps,
        metrics=_by_part(trainer.callback_metrics),
        epoch_milliseconds=None if step_milliseconds is None else steps * step_milliseconds,
        fit_seconds=seconds,
        peak_memory_bytes=_peak_memory(device),
        parameters=sum(p.numel() for p in module.parameters() if p.requires_grad),
    )


def _make_trainer(
    config: TrainerConfig, data: PreparedData, callbacks: list[Callback], folder: Path | None
) -> pl.Trainer:
    """Makes a trainer that runs all steps in one endless Lightning epoch, because ends of epochs are slow."""
    on_gpu = data.device.type == "cuda"
    return pl.Trainer(
        accelerator="cuda" if on_gpu else "cpu",
        devices=[data.device.index] if on_gpu else 1,
        precision=_GPU_MODES[data.precision][0] if on_gpu else "32-true",
        max_epochs=-1,
        max_steps=config.max_epochs * data.steps_per_epoch,
        limit_val_batches=0,  # done by the callback Validation
        logger=_loggers(config, folder) or False,
        callbacks=callbacks,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )


def _loggers(config: TrainerConfig, folder: Path | None) -> list[Logger]:
    loggers: list[Logger] = []
    if folder is None or config.logger == "none":
        return loggers
    logs = folder / "logs"
    for name, kind in (("csv", CSVLogger), ("tensorboard", TensorBoardLogger)):
        if config.logger in (name, "both"):
            (logs / name).mkdir(parents=True, exist_ok=True)  # the logger warns if it is missing
            loggers.append(kind(logs, name=name))
    return loggers


def check_checkpoint(
    path: Path, config: TrainerConfig, identity: dict[str, Any], steps_per_epoch: int | None = 1
) -> None:
    """Raises an error if a run can't be resumed from a checkpoint.

    Args:
        path: the checkpoint.
        config: settings of the run.
        identity: plain values by name that identify the run, the argument of `fit`.
        steps_per_epoch: optimiser steps of an epoch; None: unknown yet, and epochs are not compared.

    Raises:
        CheckpointError: there is no such file, it is no checkpoint, it belongs to a run of another identity,
            or it has all epochs of the run already.
    """
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        steps, written = int(checkpoint["global_step"]), dict(checkpoint["gnnsparse"])
    except FileNotFoundError:
        raise CheckpointError(f"resume: there is no file {path}") from None
    except Exception as error:  # torch.load raises errors of many types
        raise CheckpointError(f"resume: {path} is no last.ckpt of a run ({type(error).__name__})") from error
    for name, value in identity.items():
        if written.get(name) != value:
            was = f"{name}={written.get(name)}"
            raise CheckpointError(f"resume: {path} is of a run with {was}, this one has {value}")
    done = 0 if steps_per_epoch is None else steps // steps_per_epoch
    if done >= config.max_epochs:
        accepted = f"more than {done}, the epochs of {path}"
        raise CheckpointError(f"trainer.max_epochs: got {config.max_epochs}; accepted: {accepted}")


def _by_part(metrics: dict[str, torch.Tensor]) -> dict[str, dict[str, float]]:
    parts: dict[str, dict[str, float]] = {"train": {}, "val": {}, "test": {}}
    for name, value in metrics.items():
        part, score = name.split("/")
        parts[part][score] = float(value)
    return parts


def _peak_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


@contextlib.contextmanager
def _matmul_precision(precision: Precision, device: torch.device) -> Iterator[None]:
    """Sets the precision of float32 products on a GPU inside a `with` block."""
    before = torch.get_float32_matmul_precision()
    if device.type == "cuda":
        torch.set_float32_matmul_precision(_GPU_MODES[precision][1])
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences Lightning's notices, and warnings about its use of torch, inside a `with` block."""
    loggers = [logging.getLogger(f"lightning.{part}") for part in ("pytorch", "fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.WARNING)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)", FutureWarning)
        warnings.filterwarnings("ignore", "GPU available but not used")  # the user asked for the CPU
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)
