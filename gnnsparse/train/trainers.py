"""`StepTrainer`, by which `fit` runs all steps in one epoch, and what other trainers get instead."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import Callback

__all__ = ["StepLogs", "StepTrainer", "counts_steps", "makes_blocks"]


class StepTrainer(pl.Trainer):
    """A trainer that ends after a number of steps, and whose loaders are endless: ends of epochs are slow.

    Attributes:
        feeds_blocks: whether its steps are blocks of steps.
    """

    feeds_blocks = False


def counts_steps(trainer: Any) -> bool:
    """Returns whether loaders are endless: that of a StepTrainer, and of no trainer at all."""
    return trainer is None or isinstance(trainer, StepTrainer)


def makes_blocks(trainer: Any) -> bool:
    """Returns whether a training step of Lightning is a block of steps, which get their batches by a feed."""
    return isinstance(trainer, StepTrainer) and trainer.feeds_blocks


class StepLogs(Callback):
    """Logs the loss of each step, and the scores of each validation, in a trainer that is the user's own.

    The callbacks of `fit` do so many steps at a time. The names are theirs: "train/loss", "val/loss" and
    "val/SCORE".
    """

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, *_: Any) -> None:
        """Logs the loss."""
        module.log("train/loss", outputs["loss"], batch_size=1)

    def on_validation_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, *_: Any) -> None:
        """Logs the scores."""
        module.log_dict({f"val/{name}": value for name, value in outputs.items()}, batch_size=1)
