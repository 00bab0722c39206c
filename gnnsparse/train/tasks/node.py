"""The task "node": classification and regression of the nodes of one graph.

The whole graph is one batch on the device, or training steps take neighbours that are drawn for some nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gnnsparse.data import NodeDataset, load_dataset
from gnnsparse.distributed import DistributedOperand, distribute, share_batch_norm
from gnnsparse.distributed.exchange import total_of
from gnnsparse.distributed.training import Peers, RowGather, step_seed, sum_gradients
from gnnsparse.errors import bad_value
from gnnsparse.nn.padded_norm import ignoring_padding
from gnnsparse.precision import Precision
from gnnsparse.sampling import FeatureStore, NeighborSampler
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.train.data import Feed, PreparedData, RepeatedBatch
from gnnsparse.train.metrics import SMALLER_IS_BETTER, known_items, make_loss, make_scores
from gnnsparse.train.module import TaskModule, counts_steps, makes_blocks
from gnnsparse.train.plots import confusion_matrix
from gnnsparse.train.ranks import holds_everywhere
from gnnsparse.train.sampled import (
    DrawnBatch,
    NodeBatch,
    NodeBatches,
    check_blocks,
    make_sampler,
    make_store,
    sampler_identity,
)
from gnnsparse.train.settings import OptimizerConfig, PreprocessConfig, SamplerConfig
from gnnsparse.train.tasks import RunOptions, Task, register_task
from gnnsparse.train.trained import LoadedModel, arrays_of

__all__ = [
    "FullGraphData", "GraphBatch", "NodeClassifier", "NodeTask", "Part", "SharedGraphData",
    "SharedNodeClassifier",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class Part:
    """The nodes of one part of a split.

    Attributes:
        nodes: int64 [n], ids of the nodes of which a target is known. Indexing by a mask would make the host
            wait for a GPU in each step.
        y: int64 [n], float32 [n, labels] or float32 [n, numbers], targets of the nodes; NaN is missing.
    """

    nodes: torch.Tensor
    y: torch.Tensor


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """The whole graph on one device.

    Attributes:
        x: [nodes, features], features of the nodes.
        adj: the prepared graph.
        train, val, test: the parts of the split.
    """

    x: torch.Tensor
    adj: SparseOperand
    train: Part
    val: Part
    test: Part

    @property
    def parts(self) -> dict[str, Part]:
        """The parts of the split by name: "train", "val", "test"."""
        return {"train": self.train, "val": self.val, "test": self.test}


class FullGraphData(PreparedData):
    """Lightning data module of a whole graph, which is prepared and put on a device when it is made.

    On a GPU in fp16 or bf16 the features are stored in that dtype, since the first layer would round them to
    it in each step anyway.

    Args:
        dataset: the graph with its features, labels and split.
        values: weights of the operand: "gcn", "mean" or None (see `gnnsparse.prepare`).
        precision: precision of the operand's products.
        device: the device for graph, features and labels.
        preprocess: options of `gnnsparse.prepare`; None: their defaults.
        sampler: which neighbours a training step takes; None: all, in one step on the whole graph.
        seed: seed of what is sampled.

    Attributes:
        dataset: the graph with its features, labels and split.
        adj, precision, device, preprocess_seconds, cache_hit: see PreparedData.
        store: where the features are, of which samples take rows; None: steps take the whole graph.
    """

    def __init__(
        self,
        dataset: NodeDataset,
        *,
        values: str | None = "gcn",
        precision: Precision | str = "fp32",
        device: torch.device | str = "cpu",
        preprocess: PreprocessConfig | None = None,
        sampler: SamplerConfig | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(dataset.graph, values, precision, device, preprocess)
        self.dataset = dataset
        self._samples: NodeBatches | None = None
        self.store: FeatureStore | None = None
        if sampler is not None and sampler.draws:
            draw = make_sampler(sampler, dataset.graph, values, self, seed)
            self.store = make_store(sampler, dataset.x, draw, self)
            train = self._part(dataset.train_mask)
            self._samples = self._batches(draw, sampler, self.store, train, seed)
        stays = self.store is None or self.store.placement == "device"
        self._batch = self._on_device(self.adj) if stays else None

    def _batches(
        self, draw: NeighborSampler, sampler: SamplerConfig, store: FeatureStore, train: Part, seed: int
    ) -> NodeBatches:
        """Makes the loader of the training steps."""
        return NodeBatches(self, draw, sampler, store, train.nodes, train.y, seed)

    def _part(self, mask: torch.Tensor) -> Part:
        nodes = known_items(mask.nonzero().flatten(), self.dataset.y)
        return Part(nodes.to(self.device), self.dataset.y[nodes].to(self.device))

    def _on_device(self, adj: SparseOperand) -> GraphBatch:
        dataset = self.dataset
        masks = dataset.train_mask, dataset.val_mask, dataset.test_mask
        if self.store is not None:
            x = self.store.whole()
        else:
            dtype = self.precision.storage if self.device.type == "cuda" else torch.float32
            x = dataset.x.to(self.device, dtype)
        return GraphBatch(x, adj, *(self._part(mask) for mask in masks))

    @property
    def batch(self) -> GraphBatch:
        """The whole graph. Of a store that keeps features elsewhere each call copies them to the device."""
        return self._on_device(self.adj) if self._batch is None else self._batch

    @property
    def fixed_batch(self) -> GraphBatch | None:
        """The whole graph, which every step takes; None: training steps take samples."""
        return self.batch if self._samples is None else None

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimiser steps of an epoch."""
        return 1 if self._samples is None else self._samples.steps

    def feed_obstacle(self, module: TaskModule) -> str | None:
        """Returns why steps of a module can't be captured; None: `feed` feeds them.

        Samples that keep their places have rows that are padding.
        """
        if self._samples is None:
            return super().feed_obstacle(module)
        kind, known = type(module), self._module_of_samples()
        for name in ("training_step", "outputs"):
            if getattr(kind, name) is not getattr(known, name):
                return f"{kind.__name__}.{name} is not that of {known.__name__}, which knows padding"
        return self.padding_obstacle(module)

    def _module_of_samples(self) -> type[NodeClassifier]:
        """Returns the module whose steps take samples with rows that are padding."""
        return NodeClassifier

    def feed(self) -> Feed:
        """Returns the feed of a run in blocks: the whole graph, or samples, which keep their places."""
        if self._samples is None:
            return super().feed()
        # On the whole graph, once in an epoch. A graph would keep the memory of all its layers.
        return Feed(self._samples.inputs(), _WholeGraph(self), captures_validation=False)

    def train_dataloader(self) -> Any:
        """Returns a loader of the graph or of samples: endless for the trainer of `fit`, else of an epoch."""
        if self._samples is not None and makes_blocks(self.trainer):
            return RepeatedBatch(self, endless=True)  # the feed has the batches
        if self._samples is not None:
            return self._samples
        return RepeatedBatch(self.batch, endless=counts_steps(self.trainer))

    def val_dataloader(self) -> Any:
        """Returns a loader that yields the graph one time."""
        return _WholeGraph(self)

    def test_dataloader(self) -> Any:
        """Returns a loader that yields the graph one time."""
        return _WholeGraph(self)


class _WholeGraph:
    """A loader of the whole graph, which is brought to the device when it is asked for.

    Attributes:
        data: the data module that has it.
    """

    def __init__(self, data: FullGraphData) -> None:
        self.data = data

    def __iter__(self) -> Iterator[GraphBatch]:
        yield self.data.batch


class NodeClassifier(TaskModule):
    """Trains a model on the training nodes of a graph, by the loss of `gnnsparse.train.metrics.make_loss`.

    Steps return tensors on the device and log nothing, because Lightning's `log` takes longer than a step on
    a small graph, and copies metrics to the host one by one. The callbacks of `fit` log many at a time.

    Args:
        model: maps features [nodes, F] and an operand to logits [nodes, classes]. With
            `optimizer.decay="first"` it must have an attribute `first_layer`, a module.
        dataset: the data set, whose labels and metric decide loss and scores.
        optimizer: learning rate, weight decay, schedule.
        max_steps: the step at which a schedule ends.

    Attributes:
        score_name: name of the score by which the best epoch is chosen.
        call: calls the model with features and an operand; `gnnsparse.fit` sets it for models that take
            something else.

    Raises:
        ValueError: the weight decay needs a `first_layer`, which the model lacks; the metric does not go with
            the labels; or all training nodes have one class.
    """

    def __init__(
        self, model: torch.nn.Module, dataset: NodeDataset, optimizer: OptimizerConfig, max_steps: int
    ) -> None:
        super().__init__(model, optimizer, max_steps)
        _check_classes(dataset)
        self._dataset = dataset
        self._scores, self._loss = make_scores(dataset), make_loss(dataset)
        self.score_name = next(iter(self._scores))
        self.smaller_is_better = self.score_name in SMALLER_IS_BETTER
        self.call: Callable[[Any, torch.Tensor, Any], torch.Tensor] = lambda model, x, adj: model(x, adj)

    def outputs(self, batch: GraphBatch | NodeBatch) -> torch.Tensor:
        """Returns what the model says of all nodes, or of those of a sample, [nodes, classes]."""
        return self.call(self.model, batch.x, batch.adj)

    def _logits(self, batch: GraphBatch, part: Part) -> torch.Tensor:
        return self.outputs(batch).index_select(0, part.nodes)

    def _scored(self, outputs: torch.Tensor, part: Part) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the logits and the targets from which the scores of a part are computed."""
        return outputs.index_select(0, part.nodes), part.y

    def training_step(self, batch: GraphBatch | NodeBatch) -> torch.Tensor:
        """Returns the mean loss of the training nodes, or of those of a sample, a scalar on the device."""
        if isinstance(batch, NodeBatch):
            return self._sample_loss(batch)
        return self._loss(self._logits(batch, batch.train), batch.train.y)

    def _sample_loss(self, batch: NodeBatch) -> torch.Tensor:
        """Returns the mean loss of the nodes of a sample."""
        with ignoring_padding(self.model, *batch.paddings):
            outputs = self.outputs(batch)
        # Behind the batch's nodes is padding, if there is any.
        return self._loss(outputs[: len(batch.y)] if batch.paddings else outputs, batch.y)

    def validation_step(self, batch: Any) -> dict[str, torch.Tensor]:
        """Returns "loss" and scores of the validation nodes, scalars on the device.

        They are computed on the whole graph, layer by layer, also where training takes samples.

        Args:
            batch: the GraphBatch, or a NodeBatch or another object whose attribute `data` has it.
        """
        whole: GraphBatch = batch.data.batch if isinstance(batch, NodeBatch | _WholeGraph) else batch
        logits, y = self._scored(self.outputs(whole), whole.val)
        scores = {name: score(logits, y) for name, score in self._scores.items()}
        return {"loss": self._loss(logits, y), **scores}

    def test_step(self, batch: GraphBatch) -> None:
        """Logs the scores of all parts of the split as "part/score"."""
        outputs = self.outputs(batch)
        for name, part in batch.parts.items():
            logits, y = self._scored(outputs, part)
            scores = {f"{name}/{key}": score(logits, y) for key, score in self._scores.items()}
            self.log_scores(scores)
            if name == "test":
                self.confusion = confusion_matrix(self._dataset, logits, y)


class NodeTask(Task[NodeDataset, FullGraphData]):
    """The task "node": nodes of one graph, with a class, several labels, or numbers to predict."""

    name = "node"
    dataset = NodeDataset
    steps_per_epoch = 1
    samples = True
    shared = True

    def check(self, run: RunOptions) -> None:
        """Raises ValueError if the way in which devices share products is chosen, but each has the graph."""
        super().check(run)
        for name in ("way", "parts"):
            got = getattr(run.trainer, name)
            if run.sampler.draws and got != "auto":
                accepted = "auto, as each device has the whole graph with sampler=neighbor"
                bad_value(f"trainer.{name}", f"got {got!r}; accepted: {accepted}")

    def known_steps(self, run: RunOptions) -> int | None:
        """Returns 1, the whole graph; None where steps take samples of it."""
        return None if run.sampler.draws else self.steps_per_epoch

    def identity(self, run: RunOptions) -> dict[str, Any]:
        """Returns what decides which nodes and neighbours a step takes; None: it takes the whole graph."""
        return sampler_identity(run)

    def load(self, name: str, options: Mapping[str, Any]) -> NodeDataset:
        """Loads a data set by `gnnsparse.data.load_dataset`."""
        return load_dataset(name, **options)

    def model_sizes(self, dataset: NodeDataset) -> tuple[int, int]:
        """Returns the number of features of a node, and the number of classes, labels or numbers."""
        return dataset.num_features, dataset.num_classes

    def make_data(self, dataset: NodeDataset, run: RunOptions) -> FullGraphData:
        """Makes the data module: the graph with the weights that the model needs, on the run's device."""
        common: dict[str, Any] = {
            name: getattr(run, name) for name in ("values", "precision", "device", "preprocess")
        }
        if run.peers is None:
            return FullGraphData(dataset, sampler=run.sampler, seed=run.seed, **common)
        if run.sampler.draws:
            return SampledNodeData(dataset, peers=run.peers, sampler=run.sampler, seed=run.seed, **common)

        way, parts = run.trainer.way, run.trainer.parts
        return SharedGraphData(dataset, peers=run.peers, way=way, parts=parts, **common)

    def names(self, dataset: NodeDataset) -> dict[str, np.ndarray]:
        """Returns "ids", the names of the nodes, and "class_names", if the data set has such."""
        found = {"ids": dataset.node_ids, "class_names": dataset.class_names}
        return {name: np.array(texts, dtype=str) for name, texts in found.items() if texts is not None}

    def found_options(self, dataset: NodeDataset) -> dict[str, Any]:
        """Returns what the labels are (kind, classes, metric), and the names of the features."""
        names = dataset.class_names
        kind = "regression" if dataset.regression else "multilabel" if dataset.multi_label else "class"
        classes = dataset.num_classes if names is None else list(names)
        found: dict[str, Any] = {"label_kind": kind, "classes": classes, "metric": dataset.metric}
        if dataset.feature_names is not None:
            found["feature_columns"] = list(dataset.feature_names)
        return found

    def feature_names(self, dataset: NodeDataset) -> tuple[str, ...] | None:
        """Return the names of the features, if the data set has such."""
        return dataset.feature_names

    def several_labels(self, dataset: NodeDataset) -> bool:
        """Returns whether a node can have several labels."""
        return dataset.multi_label

    def regression(self, dataset: NodeDataset) -> bool:
        """Returns whether the model predicts numbers."""
        return dataset.regression

    def predict(
        self, model: LoadedModel, data: FullGraphData
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Returns "nodes" (ids), "classes" and "probabilities" of all nodes, and the scores of the parts.

        A model that predicts numbers has "values" in place of classes and probabilities.
        A part without nodes, in data without labels, has no scores.
        """
        batch = data.batch
        prediction = model.predict(batch.x, batch.adj)
        scores = {
            part: {
                name: float(score(prediction.logits.index_select(0, of.nodes), of.y))
                for name, score in make_scores(data.dataset).items()
            }
            for part, of in batch.parts.items()
            if of.nodes.numel()
        }
        return {"nodes": torch.arange(data.dataset.num_nodes), **arrays_of(prediction)}, scores

    def make_module(self, model: torch.nn.Module, data: FullGraphData, run: RunOptions) -> NodeClassifier:
        """Makes the Lightning module that trains the model; raises ValueError if a part has no nodes."""
        _check_parts(data.dataset)
        steps = run.trainer.max_epochs * data.steps_per_epoch
        if run.sampler.draws:
            check_blocks(model, run.sampler)
        if run.peers is not None:
            from gnnsparse.train.tasks.node import SharedNodeClassifier

            kind = SampledNodeClassifier if run.sampler.draws else SharedNodeClassifier
            return kind(
                model, data.dataset, run.optimizer, steps, run.peers, run.seed, run.trainer.shard_optimizer
            )
        return NodeClassifier(model, data.dataset, run.optimizer, steps)

    def describe(self, data: FullGraphData, run: RunOptions) -> dict[str, Any]:
        """Returns the numbers of nodes and of the operand's nonzeros."""
        if isinstance(adj := data.adj, DistributedOperand):
            facts = adj.facts
            shared = {"devices": facts.ranks, "way": adj.choice.way, "parts": facts.method}
            return {"nodes": facts.nodes, "nonzeros": sum(facts.nnz), **shared, "halo": list(facts.halo)}
        kept = {} if data.store is None else {"features": data.store.explain().replace("\n", "; ")}
        devices = {} if run.peers is None else {"devices": run.peers.ranks}
        return {"nodes": data.dataset.num_nodes, "nonzeros": adj.nnz, **devices, **kept}


def _check_parts(dataset: NodeDataset) -> None:
    for name in ("train", "val", "test"):
        if not getattr(dataset, f"{name}_mask").any():
            bad_value(
                "dataset", f"{dataset.name} has no nodes for {name}; accepted: some with labels in each part"
            )


def _check_classes(dataset: NodeDataset) -> None:
    """Raise ValueError if all training nodes have one class, which a model learns to say of any node."""
    if dataset.multi_label or dataset.regression:
        return
    found = dataset.y[known_items(dataset.train_mask.nonzero().flatten(), dataset.y)].unique()
    if found.numel() == 1:
        name = int(found) if dataset.class_names is None else repr(dataset.class_names[int(found)][:80])
        bad_value(
            "dataset",
            f"{dataset.name}: all training nodes have the class {name}; accepted: two or more classes",
        )


register_task(NodeTask())


@dataclass(frozen=True, eq=False)
class SharedPart(Part):
    """The nodes of one part of a split of which a rank has some.

    Attributes:
        nodes: int64 [n], rows of the rank's own nodes of which a target is known.
        y: [n] or [n, ..], targets of these.
        share: of the numbers that the part's loss is a mean over, the share that this rank has.
        all_y: on rank 0 the targets of the part's nodes of all ranks, in the order of the graph; else None.
        gather: brings rows of these nodes to rank 0 in this order.
    """

    share: float
    all_y: torch.Tensor | None
    gather: RowGather


class SharedGraphData(FullGraphData):
    """The data module of one rank: its nodes of a graph, prepared and put on a device when it is made.

    Args:
        dataset: the whole graph with its features, labels and split, the same on all ranks.
        peers: the ranks.
        way: how they share products, see `gnnsparse.distributed.distribute`.
        parts: how they share nodes, see `gnnsparse.distributed.distribute`.
        values: see FullGraphData.
        precision: see FullGraphData.
        device: see FullGraphData.
        preprocess: see FullGraphData.

    Attributes:
        peers: the ranks.
    """

    adj: DistributedOperand
    peers: Peers

    def __init__(
        self,
        dataset: NodeDataset,
        *,
        peers: Peers,
        way: str = "auto",
        parts: str = "auto",
        values: str | None = "gcn",
        precision: Precision | str = "fp32",
        device: torch.device | str = "cpu",
        preprocess: PreprocessConfig | None = None,
    ) -> None:
        self._way, self._parts, self.peers = way, parts, peers
        super().__init__(dataset, values=values, precision=precision, device=device, preprocess=preprocess)

    def _prepare(self, graph: SparseGraph, values: str | None, preprocess: PreprocessConfig) -> SparseOperand:
        if preprocess.reorder != "none":
            instead = "none, and an order of nodes by trainer.parts"
            bad_value(
                "preprocess.reorder", f"got {preprocess.reorder!r} on several devices; accepted: {instead}"
            )
        if preprocess.balance != "auto":
            bad_value("preprocess.balance", f"got {preprocess.balance!r} on several devices; accepted: auto")
        return distribute(
            graph, self.peers.group, values=values, precision=self.precision, format=preprocess.format,
            device=self.device, way=self._way, parts=self._parts, cache=preprocess.cache,
        )  # fmt: skip

    def _on_device(self, adj: SparseOperand) -> GraphBatch:
        assert isinstance(adj, DistributedOperand)
        dataset, own = self.dataset, adj.nodes

        def part(mask: torch.Tensor) -> SharedPart:
            everyone = known_items(mask.nonzero().flatten(), dataset.y)
            rows = torch.isin(own, everyone).nonzero().flatten()
            y, all_y = dataset.y[own[rows]], dataset.y[everyone]
            gather = RowGather(own[rows].to(self.device), self.peers.group)
            share = _counted(y) / max(_counted(all_y), 1)
            of_all = all_y.to(self.device) if self.peers.rank == 0 else None
            return SharedPart(rows.to(self.device), y.to(self.device), share, of_all, gather)

        dtype = self.precision.storage if self.device.type == "cuda" else torch.float32
        parts = [part(mask) for mask in (dataset.train_mask, dataset.val_mask, dataset.test_mask)]
        return GraphBatch(dataset.x[own].to(self.device, dtype), adj, *parts)


def _counted(y: torch.Tensor) -> int:
    """Returns how many numbers a loss of targets is a mean over."""
    return int((~y.isnan()).sum()) if y.is_floating_point() else y.shape[0]


class SharedNodeClassifier(NodeClassifier):
    """Trains one model on the nodes of all ranks; each rank has a copy of it, and all copies stay equal.

    The loss is that of one process. Gradients are added up in the order of ranks. Rank 0 computes the scores
    from the logits of all ranks, in the order of the graph, and tells the others. In each step a rank draws
    random numbers of its own, which depend on the seed, the step and the number of ranks alone.

    Args:
        model: see NodeClassifier.
        dataset: see NodeClassifier.
        optimizer: see NodeClassifier.
        max_steps: see NodeClassifier.
        peers: the ranks.
        seed: seed of dropout.
        shards_optimizer: whether each rank keeps the optimiser's state of some parameters alone.

    Attributes:
        nodes_vary: whether the number of a rank's nodes differs from step to step.
    """

    nodes_vary = False

    def __init__(
        self,
        model: torch.nn.Module,
        dataset: NodeDataset,
        optimizer: OptimizerConfig,
        max_steps: int,
        peers: Peers,
        seed: int,
        shards_optimizer: bool = False,
    ) -> None:
        super().__init__(model, dataset, optimizer, max_steps)
        share_batch_norm(model, peers.group, nodes_vary=self.nodes_vary)
        self._peers, self._seed, self.shards_optimizer = peers, seed, shards_optimizer

    def make_optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Makes Adam, of which each rank has the whole or a part."""
        if not self.shards_optimizer:
            return super().make_optimizer(groups)
        from gnnsparse.train.sharded_optimizer import ShardedOptimizer

        return ShardedOptimizer(groups, self._peers, lr=self._optimizer.lr, fused=self.fused)

    def begin_step(self, step: int) -> None:
        """Seeds the random numbers of the step, which a CUDA graph takes from torch's generator too."""
        torch.manual_seed(step_seed(self._seed, step, self._peers.rank))

    def training_step(self, batch: GraphBatch | NodeBatch) -> torch.Tensor:
        """Returns the mean loss of all training nodes, with the gradient of those of this rank."""
        assert isinstance(batch, GraphBatch)
        part, logits = batch.train, self._logits(batch, batch.train)
        assert isinstance(part, SharedPart)
        # A rank without training nodes takes part in the backward pass: others need its gradients.
        own = self._loss(logits, part.y) * part.share if part.share else logits.float().sum() * 0.0
        return total_of(own, self._peers.group)

    def share_gradients(self) -> None:
        """Adds up the gradients of all ranks."""
        sum_gradients(self.model.parameters(), self._peers.group)

    def _told(self, values: dict[str, torch.Tensor] | None, names: list[str]) -> dict[str, torch.Tensor]:
        """Returns what rank 0 has computed, by name, the same bits on each rank."""
        numbers = torch.zeros(len(names), dtype=torch.float32, device=self.device)
        if values is not None:
            numbers = torch.stack([values[name].float() for name in names])
        dist.broadcast(numbers, src=0, group=self._peers.group)
        return dict(zip(names, numbers.unbind(), strict=True))

    def validation_step(self, batch: GraphBatch | NodeBatch) -> dict[str, torch.Tensor]:
        """Returns "loss" and scores of the validation nodes of all ranks, the same bits on each rank."""
        assert isinstance(batch, GraphBatch)
        part, found = batch.val, None
        assert isinstance(part, SharedPart)
        logits = part.gather(self._logits(batch, part))
        if logits is not None and part.all_y is not None:
            scores = {name: score(logits, part.all_y) for name, score in self._scores.items()}
            found = {"loss": self._loss(logits, part.all_y), **scores}
        # All ranks choose their best epoch by these, so that the last bit must not differ.
        return self._told(found, ["loss", *self._scores])

    def test_step(self, batch: GraphBatch) -> None:
        """Logs the scores of all parts of the split as "part/score"."""
        outputs = self.outputs(batch)
        for name, part in batch.parts.items():
            assert isinstance(part, SharedPart)
            logits, found = part.gather(outputs.index_select(0, part.nodes)), None
            if logits is not None and part.all_y is not None:
                found = {key: score(logits, part.all_y) for key, score in self._scores.items()}
                if name == "test":
                    self.confusion = confusion_matrix(self._dataset, logits, part.all_y)
            scores = self._told(found, list(self._scores))
            self.log_scores({f"{name}/{key}": value for key, value in scores.items()})


class _SharedNodeBatches(NodeBatches):
    """A loader of a rank's shares of the batches that one process would take.

    Which nodes a step takes does not depend on the number of ranks, and neither does which neighbours are
    drawn for a node: the draws of all ranks have one seed. A rank that no node is left for takes the first
    one of the step with a share of 0, since its gradients are exchanged like those of the others.

    Args:
        data, sampler, config, store, nodes, y, seed: see NodeBatches; all ranks have the same.
        peers: the ranks.
    """

    def __init__(
        self,
        data: FullGraphData,
        sampler: NeighborSampler,
        config: SamplerConfig,
        store: FeatureStore,
        nodes: torch.Tensor,
        y: torch.Tensor,
        seed: int,
        peers: Peers,
    ) -> None:
        super().__init__(data, sampler, config, store, nodes, y, seed)
        is_known = ~y.isnan() if y.is_floating_point() else torch.ones_like(y, dtype=torch.bool)
        # How many known numbers the target of each node has.
        self._known, self._peers = is_known[:, None].flatten(1).sum(dim=1).cpu(), peers

    def _own(self, ids: torch.Tensor) -> tuple[torch.Tensor, float]:
        part = ids.tensor_split(self._peers.ranks)[self._peers.rank]
        share = int(self._known[part].sum()) / int(self._known[ids].sum())
        return (part if part.numel() else ids[:1]), share

    def _fits(self, drawn: DrawnBatch) -> bool:
        """Returns whether each rank has room for what it has drawn: all replay a step, or none does."""
        return holds_everywhere(super()._fits(drawn), self._peers)


class SampledNodeData(FullGraphData):
    """The data module of one rank whose training steps take samples; each rank has the whole graph.

    Args:
        dataset, values, precision, device, preprocess, sampler, seed: see FullGraphData. `sampler.batch_size`
            is the number of nodes that all ranks together take in a step.
        peers: the ranks.

    Attributes:
        peers: the ranks.
    """

    peers: Peers

    def __init__(
        self,
        dataset: NodeDataset,
        *,
        peers: Peers,
        sampler: SamplerConfig,
        values: str | None = "gcn",
        precision: Precision | str = "fp32",
        device: torch.device | str = "cpu",
        preprocess: PreprocessConfig | None = None,
        seed: int = 0,
    ) -> None:
        self.peers = peers
        super().__init__(
            dataset, values=values, precision=precision, device=device, preprocess=preprocess,
            sampler=sampler, seed=seed,
        )  # fmt: skip

    def _batches(
        self, draw: NeighborSampler, sampler: SamplerConfig, store: FeatureStore, train: Part, seed: int
    ) -> NodeBatches:
        return _SharedNodeBatches(self, draw, sampler, store, train.nodes, train.y, seed, self.peers)

    def _module_of_samples(self) -> type[NodeClassifier]:
        return SampledNodeClassifier


class SampledNodeClassifier(SharedNodeClassifier):
    """Trains one model on the samples of all ranks; each rank has a copy of it, and all copies stay equal.

    The loss of a step is the mean over the nodes of all ranks, as if one process had taken them. Gradients
    are added up in the order of ranks. Rank 0 alone computes scores, on the whole graph, and the others get
    them from it. Batch normalisation takes its statistics over the rows of all ranks' samples, in which a
    node that two ranks have reached is counted twice.

    Args: see SharedNodeClassifier.
    """

    nodes_vary = True

    def training_step(self, batch: GraphBatch | NodeBatch) -> torch.Tensor:
        """Returns the mean loss of the step's nodes, with the gradient of those of this rank."""
        assert isinstance(batch, NodeBatch)
        return total_of(self._sample_loss(batch) * batch.share, self._peers.group)

    def validation_step(self, batch: GraphBatch | NodeBatch) -> dict[str, torch.Tensor]:
        """Returns "loss" and scores of the validation nodes, the same bits on each rank."""
        leads = self._peers.rank == 0
        found = NodeClassifier.validation_step(self, batch) if leads else None
        return self._told(found, ["loss", *self._scores])

    def test_step(self, batch: GraphBatch) -> None:
        """Logs the scores of all parts of the split as "part/score"."""
        outputs = self.outputs(batch) if self._peers.rank == 0 else None
        for name, part in batch.parts.items():
            found = None
            if outputs is not None:
                logits, y = self._scored(outputs, part)
                found = {key: score(logits, y) for key, score in self._scores.items()}
                if name == "test":
                    self.confusion = confusion_matrix(self._dataset, logits, y)
            scores = self._told(found, list(self._scores))
            self.log_scores({f"{name}/{key}": value for key, value in scores.items()})
