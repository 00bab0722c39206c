"""The Lightning modules: classification of the nodes of one graph, and of sequences."""

from __future__ import annotations

import math
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.data import NodeDataset, SequenceDataset
from gnnsparse.errors import bad_value
from gnnsparse.training.config import OptimizerConfig
from gnnsparse.training.data import GraphBatch, Part
from gnnsparse.training.metrics import make_scores
from gnnsparse.training.sequences import SequenceBatch

__all__ = ["NodeClassifier", "SequenceClassifier"]


class _Classifier(pl.LightningModule):
    """A model and how it learns.

    Args:
        model: the model; with `optimizer.decay="first"` it has an attribute `first_layer`, a module.
        optimizer: learning rate, weight decay, schedule.
        max_steps: where a schedule ends.

    Attributes:
        score_name: the score that chooses the best epoch.

    Raises:
        ValueError: the model has no `first_layer`.
    """

    score_name: str

    def __init__(self, model: torch.nn.Module, optimizer: OptimizerConfig, max_steps: int) -> None:
        super().__init__()
        self.model = model
        self._optimizer, self._max_steps = optimizer, max_steps
        if optimizer.decay == "first" and not hasattr(model, "first_layer"):
            bad_value("optimizer.decay", f"'first' needs a model with first_layer; {type(model)} has none")

    def configure_optimizers(self) -> Any:
        """Adam in one kernel a step, and a schedule that counts steps."""
        config = self._optimizer
        decayed = list(self.model.parameters())
        rest: list[torch.nn.Parameter] = []
        if config.decay == "first":
            decayed = list(self.model.first_layer.parameters())  # type: ignore[union-attr]
            ids = {id(parameter) for parameter in decayed}
            rest = [p for p in self.model.parameters() if id(p) not in ids]
        groups = [
            {"params": decayed, "weight_decay": config.weight_decay},
            {"params": rest, "weight_decay": 0.0},
        ]
        # Fused, the step of a GradScaler needs no answer from the GPU either.
        optimizer = torch.optim.Adam([g for g in groups if g["params"]], lr=config.lr, fused=True)
        if config.schedule == "none":
            return optimizer
        # A function of the step, and not CosineAnnealingLR: a checkpoint would bring its own end.
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self._cosine)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def _cosine(self, step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * min(step / self._max_steps, 1.0)))


class NodeClassifier(_Classifier):
    """Trains a model on the training nodes of a graph, by cross entropy over classes or labels.

    Steps return tensors on the device and log nothing: Lightning's `log` costs more than a step on a
    small graph, and sends metrics to the host one by one. The callbacks of `fit` do it in bulk.

    Args:
        model: maps features [nodes, F] and an operand to logits [nodes, classes]. With
            `optimizer.decay="first"` it has an attribute `first_layer`, a module.
        dataset: says what the labels mean and how they are scored.
        optimizer: learning rate, weight decay, schedule.
        max_epochs: where a schedule ends.

    Attributes:
        score_name: the score that chooses the best epoch.

    Raises:
        ValueError: the model has no `first_layer`, or the metric does not go with the labels.
    """

    def __init__(
        self, model: torch.nn.Module, dataset: NodeDataset, optimizer: OptimizerConfig, max_epochs: int
    ) -> None:
        super().__init__(model, optimizer, max_epochs)
        self._multi_label = dataset.multi_label
        self._scores = make_scores(dataset)
        self.score_name = next(iter(self._scores))

    def _loss(self, logits: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self._multi_label:
            return F.binary_cross_entropy_with_logits(logits.float(), y)
        return F.cross_entropy(logits.float(), y)

    def _logits(self, batch: GraphBatch, part: Part) -> torch.Tensor:
        return self.model(batch.x, batch.adj).index_select(0, part.nodes)

    def training_step(self, batch: GraphBatch) -> torch.Tensor:
        """The loss of the training nodes."""
        return self._loss(self._logits(batch, batch.train), batch.train.y)

    def validation_step(self, batch: GraphBatch) -> dict[str, torch.Tensor]:
        """Loss and scores of the validation nodes, as scalars on the device."""
        logits, y = self._logits(batch, batch.val), batch.val.y
        scores = {name: score(logits, y) for name, score in self._scores.items()}
        return {"loss": self._loss(logits, y), **scores}

    def test_step(self, batch: GraphBatch) -> None:
        """Logs the scores of all three parts, as "part/score"."""
        logits = self.model(batch.x, batch.adj)
        for name, part in batch.parts.items():
            of_part = logits.index_select(0, part.nodes)
            scores = {f"{name}/{key}": score(of_part, part.y) for key, score in self._scores.items()}
            self.log_dict(scores, logger=False, batch_size=1)


class SequenceClassifier(_Classifier):
    """Trains a model on sequences, by cross entropy over classes; it is scored by its accuracy.

    Args:
        model: maps tokens [batch, length], the operand of a pattern and a padding mask or None to
            logits [batch, classes].
        dataset: the task.
        optimizer: learning rate, weight decay, schedule.
        max_steps: where a schedule ends: epochs times SequenceData.steps_per_epoch.

    Attributes:
        score_name: the score that chooses the best epoch.

    Raises:
        ValueError: the model has no `first_layer` where the weight decay asks for one.
    """

    def __init__(
        self, model: torch.nn.Module, dataset: SequenceDataset, optimizer: OptimizerConfig, max_steps: int
    ) -> None:
        super().__init__(model, optimizer, max_steps)
        self._dataset = dataset
        self.score_name = "accuracy"

    def _logits(self, batch: SequenceBatch) -> torch.Tensor:
        return self.model(batch.tokens, batch.adj, batch.padding)

    def training_step(self, batch: SequenceBatch) -> torch.Tensor:
        """The mean loss of the batch."""
        return F.cross_entropy(self._logits(batch).float(), batch.y)

    def validation_step(self, batch: SequenceBatch) -> dict[str, torch.Tensor]:
        """Loss and accuracy of all validation sequences, as scalars on the device."""
        return self._score(batch, "val")

    def test_step(self, batch: SequenceBatch) -> None:
        """Logs the accuracies of all three parts, as "part/accuracy"."""
        for part in self._dataset.parts:
            scores = {f"{part}/accuracy": self._score(batch, part)["accuracy"]}
            self.log_dict(scores, logger=False, batch_size=1)

    def _score(self, batch: SequenceBatch, part: str) -> dict[str, torch.Tensor]:
        loss = torch.zeros((), device=batch.y.device)
        hits = torch.zeros((), device=batch.y.device)
        for chunk in batch.data.chunks(part):
            logits = self._logits(chunk).float()
            loss += F.cross_entropy(logits, chunk.y, reduction="sum")
            hits += (logits.argmax(dim=1) == chunk.y).sum()
        count = len(self._dataset.parts[part])
        return {"loss": loss / count, "accuracy": hits / count}
