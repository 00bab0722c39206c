"""TaskModule, the base class of the tasks' Lightning modules: a model and its optimiser."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback

from gnnsparse.errors import bad_value
from gnnsparse.train.metrics import (
    SMALLER_IS_BETTER,
    Score,
    WeightedLoss,
    class_rows,
    is_known,
    make_loss,
    make_scores,
)
from gnnsparse.train.plots import confusion_matrix
from gnnsparse.train.settings import OptimizerConfig


class StepTrainer(pl.Trainer):
    """A trainer of so many steps, each maybe a chunk, with endless loaders: ends of epochs are slow."""

    in_chunks = False


def counts_steps(trainer: Any) -> bool:
    """Return whether loaders are endless: that of a StepTrainer, and of no trainer at all."""
    return trainer is None or isinstance(trainer, StepTrainer)


def trains_in_chunks(trainer: Any) -> bool:
    """Return whether a training step of Lightning is a chunk of steps, which have a BatchSource."""
    return isinstance(trainer, StepTrainer) and trainer.in_chunks


class _StepLogs(Callback):
    """Logs losses and scores by the names of `fit`, step by step, in a trainer of the user's own."""

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, *_: Any) -> None:
        module.log("train/loss", outputs["loss"], batch_size=1)

    def on_validation_batch_end(self, trainer: pl.Trainer, module: Any, outputs: Any, *_: Any) -> None:
        module.log_dict({f"val/{name}": value for name, value in outputs.items()}, batch_size=1)


class TaskModule(pl.LightningModule):
    """A Lightning module with a model and its optimiser. Subclasses, one for each task, add the steps.

    `training_step` returns the loss. `validation_step` returns "loss" and the scores of the validation part
    by name, scalars on the device. `test_step` logs "part/score" for the parts "train", "val" and "test".
    Steps log nothing by themselves, which takes longer than a step on a small graph: `fit` does it for many
    steps at a time, and in a trainer of the user's own a callback does it for each.

    Args:
        model: the model; with `optimizer.decay="first"` it must have an attribute `first_layer`, a module.
        optimizer: learning rate, weight decay, schedule.
        max_steps: the step at which a schedule ends.

    Attributes:
        score_name: name of the score by which the best epoch is chosen.
        smaller_is_better: whether smaller values of that score are better.
        fused: whether the optimiser is fused into one kernel a step.
        shards_optimizer: whether its state is divided among ranks, which then write checkpoints together.
        confusion: after a test of a classifier int64 [classes, classes] on the CPU: how many items of the
            test part with the class of a row were given the class of a column. None: there is none.
        class_rows: after a test of a classifier a row for each class of the test part, see
            `gnnsparse.train.metrics.class_rows`.

    Raises:
        ValueError: the weight decay needs a `first_layer`, which the model lacks.
    """

    score_name: str
    smaller_is_better: bool = False
    fused: bool = True
    shards_optimizer: bool = False
    confusion: torch.Tensor | None = None
    class_rows: Sequence[dict[str, Any]] = ()

    def __init__(self, model: torch.nn.Module, optimizer: OptimizerConfig, max_steps: int) -> None:
        super().__init__()
        self.model = model
        self._optimizer, self._max_steps = optimizer, max_steps
        if optimizer.decay == "first" and not hasattr(model, "first_layer"):
            bad_value("optimizer.decay", f"'first' needs a model with first_layer; {type(model)} has none")

    def make_optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Make Adam for groups of parameters, each with its weight decay."""
        # With a fused optimiser the host does not wait for the GPU in a step of a GradScaler either.
        return torch.optim.Adam(groups, lr=self._optimizer.lr, fused=self.fused)

    def configure_optimizers(self) -> Any:
        """Return Adam, if `fused` in one kernel a step, and a schedule of the learning rate by steps."""
        config = self._optimizer
        first: Any = self.model.first_layer if config.decay == "first" else self.model
        decayed = list(first.parameters())
        ids = {id(parameter) for parameter in decayed}
        rest = [p for p in self.model.parameters() if id(p) not in ids]
        groups = [
            {"params": decayed, "weight_decay": config.weight_decay},
            {"params": rest, "weight_decay": 0.0},
        ]
        optimizer = self.make_optimizer([group for group in groups if group["params"]])
        if config.schedule == "none":
            return optimizer
        # Not CosineAnnealingLR, which would take the last step of the schedule from a resumed checkpoint.
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._cosine)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def begin_step(self, step: int) -> None:
        """Do on the host what a step needs before it begins or is replayed; `step` come before it."""

    def share_gradients(self) -> None:
        """Add up the gradients of all ranks after a backward pass, as a CUDA graph can hold."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Begin a step of Lightning's."""
        self.begin_step(self.trainer.global_step)

    def on_after_backward(self) -> None:
        """Share the gradients of a step of Lightning's."""
        self.share_gradients()

    def configure_callbacks(self) -> list[Callback]:
        """Return what logs losses and score, for a trainer that is not that of `fit`."""
        return [] if counts_steps(self.trainer) else [_StepLogs()]

    def _cosine(self, step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * min(step / self._max_steps, 1.0)))


class ScoredModule(TaskModule):
    """A TaskModule that scores the parts "train", "val" and "test" of a data set in one way."""

    def __init__(
        self, model: torch.nn.Module, dataset: Any, optimizer: OptimizerConfig, max_steps: int
    ) -> None:
        super().__init__(model, optimizer, max_steps)
        self._dataset = dataset

    def scored(self, batch: Any) -> Any:
        """Return what `score` computes the scores of all parts from."""
        raise NotImplementedError

    def score(self, part: str, scored: Any) -> dict[str, torch.Tensor]:
        """Return "loss" and the scores of a part by name, scalars on the device."""
        raise NotImplementedError

    def validation_step(self, batch: Any) -> dict[str, torch.Tensor]:
        """Return "loss" and the scores of the validation part by name, scalars on the device."""
        return self.score("val", self.scored(batch))

    def test_step(self, batch: Any) -> None:
        """Log the scores of all parts of the split as "part/score"."""
        scored = self.scored(batch)
        for part in ("train", "val", "test"):
            scores = self.score(part, scored).items()
            named = {f"{part}/{name}": value for name, value in scores if name != "loss"}
            self.log_dict(named, logger=not counts_steps(self.trainer), batch_size=1)


class TargetModule(ScoredModule):
    """A ScoredModule of nodes or graphs, by the loss and the scores of gnnsparse.train.metrics.

    A model with a method `measure_degrees` is told the degrees of the nodes that it trains on.
    """

    def __init__(
        self, model: torch.nn.Module, dataset: Any, optimizer: OptimizerConfig, max_steps: int
    ) -> None:
        super().__init__(model, dataset, optimizer, max_steps)
        _check_classes(dataset)
        if (measure := getattr(model, "measure_degrees", None)) is not None:
            measure(dataset.train_degrees)
        self._scores = make_scores(dataset)
        self._loss: Score = make_loss(dataset)
        self.score_name = next(iter(self._scores))
        self.smaller_is_better = self.score_name in SMALLER_IS_BETTER

    def weigh_classes(self, weights: str | Sequence[float]) -> None:
        """Let classes count by weights in the loss, see TrainerConfig."""
        self._loss = WeightedLoss(self._dataset, weights)

    def score_outputs(self, part: str, outputs: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return "loss" and the scores of a part; of the test part what is known of classes is stored."""
        if part == "test" and not self._dataset.regression:
            self.class_rows = class_rows(outputs, y, self._dataset.class_names)
            self.confusion = confusion_matrix(self._dataset, outputs, y)
        return {"loss": self._loss(outputs, y), **{k: score(outputs, y) for k, score in self._scores.items()}}


def _check_classes(dataset: Any) -> None:
    """Raise ValueError if all training items have one class, which a model learns to say of any."""
    if dataset.multi_label or dataset.regression:
        return
    found = dataset.y[dataset.train_mask & is_known(dataset.y)]
    if found.numel() and found.min() == found.max():
        names = getattr(dataset, "class_names", None)
        kinds = {"graph_ptr": "graphs", "edge_index": "edges"}
        items = next((of for name, of in kinds.items() if hasattr(dataset, name)), "nodes")
        name = int(found[0]) if names is None else repr(names[int(found[0])][:80])
        bad_value(
            "dataset",
            f"{dataset.name}: all training {items} have the class {name}; accepted: two or more classes",
        )
