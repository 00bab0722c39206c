"""Classification of the nodes of one graph, which is a single batch: prepared once, kept on the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.data import NodeDataset, load_dataset
from gnnsparse.operand import SparseOperand
from gnnsparse.precision import Precision
from gnnsparse.tasks import register_task
from gnnsparse.training.config import OptimizerConfig, PreprocessConfig
from gnnsparse.training.data import PreparedData, RepeatedBatch
from gnnsparse.training.metrics import make_scores
from gnnsparse.training.module import TaskModule
from gnnsparse.training.task import RunOptions, Task

__all__ = ["FullGraphData", "GraphBatch", "NodeClassifier", "NodeTask", "Part"]


@dataclass(frozen=True, eq=False)
class Part:
    """Nodes of one part of a split.

    Attributes:
        nodes: int64 [n], their numbers: a mask would have to be counted on the host in each step.
        y: their labels, int64 [n] or float32 [n, labels].
    """

    nodes: torch.Tensor
    y: torch.Tensor


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """The whole graph, on one device.

    Attributes:
        x: features [nodes, features].
        adj: the prepared graph.
        train, val, test: the split.
    """

    x: torch.Tensor
    adj: SparseOperand
    train: Part
    val: Part
    test: Part

    @property
    def parts(self) -> dict[str, Part]:
        """The split by name."""
        return {"train": self.train, "val": self.val, "test": self.test}


class FullGraphData(PreparedData):
    """Prepares the graph of a data set and puts graph, features and labels on a device, once.

    On a GPU in fp16 or bf16 the features are stored in that type: the first layer would round them
    to it anyway, in each step.

    Args:
        dataset: the graph with its features, labels and split.
        values: weights of the operand: "gcn", "mean" or None (see `gnnsparse.prepare`).
        precision: precision of the operand's products.
        device: where graph, features and labels go.
        preprocess: how the operand is prepared.

    Attributes:
        dataset: the graph with its features, labels and split.
        adj, precision, device, preprocess_seconds, cache_hit: see PreparedData.
    """

    def __init__(
        self,
        dataset: NodeDataset,
        *,
        values: str | None = "gcn",
        precision: Precision | str = "fp32",
        device: torch.device | str = "cpu",
        preprocess: PreprocessConfig | None = None,
    ) -> None:
        super().__init__(dataset.graph, values, precision, device, preprocess)
        self.dataset = dataset
        self._batch = self._on_device(self.adj)

    def _on_device(self, adj: SparseOperand) -> GraphBatch:
        dataset = self.dataset

        def part(mask: torch.Tensor) -> Part:
            nodes = mask.nonzero().flatten()
            return Part(nodes.to(self.device), dataset.y[nodes].to(self.device))

        dtype = self.precision.storage if self.device.type == "cuda" else torch.float32
        parts = [part(mask) for mask in (dataset.train_mask, dataset.val_mask, dataset.test_mask)]
        return GraphBatch(dataset.x.to(self.device, dtype), adj, *parts)

    @property
    def batch(self) -> GraphBatch:
        """The whole graph."""
        return self._batch

    def train_dataloader(self) -> Any:
        """The graph without end: the trainer counts the steps."""
        return RepeatedBatch(self._batch, endless=True)

    def val_dataloader(self) -> Any:
        """The graph once."""
        return RepeatedBatch(self._batch, endless=False)

    def test_dataloader(self) -> Any:
        """The graph once."""
        return RepeatedBatch(self._batch, endless=False)


class NodeClassifier(TaskModule):
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


class NodeTask(Task[NodeDataset, FullGraphData]):
    """Classification of the nodes of one graph, in classes or by several labels a node."""

    name = "node"
    steps_per_epoch = 1

    def load(self, name: str, options: Mapping[str, Any]) -> NodeDataset:
        """The data set of a name; see gnnsparse.data.load_dataset."""
        return load_dataset(name, **options)

    def model_sizes(self, dataset: NodeDataset) -> tuple[int, int]:
        """Features of a node, and classes or labels."""
        return dataset.num_features, dataset.num_classes

    def make_data(self, dataset: NodeDataset, run: RunOptions) -> FullGraphData:
        """The graph with the weights that the model wants, on the device of the run."""
        return FullGraphData(
            dataset,
            values=run.values,
            precision=run.precision,
            device=run.device,
            preprocess=run.preprocess,
        )

    def make_module(self, model: torch.nn.Module, data: FullGraphData, run: RunOptions) -> NodeClassifier:
        """The model as a classifier of nodes."""
        return NodeClassifier(model, data.dataset, run.optimizer, run.trainer.max_epochs)

    def describe(self, data: FullGraphData, run: RunOptions) -> dict[str, Any]:
        """Nodes, and nonzeros of the operand."""
        return {"nodes": data.dataset.num_nodes, "nonzeros": data.adj.nnz}


register_task(NodeTask())
