"""The task "node": classification and regression of the nodes of one graph.

The whole graph is one batch on the device, or training steps take neighbours that are drawn for some nodes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from gnnsparse.data import NodeDataset, load_dataset
from gnnsparse.distributed import DistributedOperand, distribute, share_batch_norm
from gnnsparse.distributed.exchange import total_of
from gnnsparse.distributed.training import Peers, RowGather, step_seed, sum_gradients
from gnnsparse.errors import bad_value, check_memory
from gnnsparse.nn.padded_norm import ignoring_padding
from gnnsparse.nn.sparse_features import SparseFeatures
from gnnsparse.ops.dense import padded_rows
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import path
from gnnsparse.sampling import FeatureStore
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.train.data import BatchSource, LazyLoader, PreparedData, RepeatedBatch
from gnnsparse.train.device import numerics
from gnnsparse.train.metrics import is_known, make_scores
from gnnsparse.train.module import TargetModule, TaskModule, counts_steps, trains_in_chunks
from gnnsparse.train.sampled import (
    NodeBatch,
    NodeBatches,
    check_blocks,
    make_sampler,
    make_store,
    sampler_identity,
)
from gnnsparse.train.settings import OptimizerConfig, PreprocessConfig, SamplerConfig
from gnnsparse.train.tasks import RunOptions, Task, edge_options, options_found, register_task, texts_of
from gnnsparse.train.trained import LoadedModel, Prediction, arrays_of

__all__ = [
    "FullGraphData", "GraphBatch", "NodeClassifier", "NodeTask", "Part", "SharedGraphData",
    "SharedNodeClassifier",
]  # fmt: skip


#: Of the elements of features, the part that is not 0 up to which `trainer.sparse_features=auto` keeps them
#: as a sparse matrix on a CPU.
SPARSE_FRACTION = 1 / 8


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
        sparse_x: the features as a sparse matrix, for models that take it; None: they are not kept so.
        edge_attr: [edges, D], features of the edges, which the operand tells apart; None: there are none.
    """

    x: torch.Tensor
    adj: SparseOperand
    train: Part
    val: Part
    test: Part
    sparse_x: SparseFeatures | None = None
    edge_attr: torch.Tensor | None = None

    @property
    def parts(self) -> dict[str, Part]:
        """The parts of the split by name: "train", "val", "test"."""
        return {"train": self.train, "val": self.val, "test": self.test}


@dataclass(frozen=True, eq=False)
class StoredGraph:
    """A graph on disk, of which samples are scored in place of the whole.

    Attributes:
        parts: the parts of the split by name: "train", "val", "test".
        samples: batches of any nodes.
        size: nodes of a batch.
    """

    parts: dict[str, Part]
    samples: NodeBatches
    size: int

    def outputs(self, nodes: torch.Tensor, of: Callable[[NodeBatch], torch.Tensor]) -> torch.Tensor:
        """Return what a function says of nodes, one sample after another: the same ones in each call."""
        found = [
            of(self.samples.gather(self.samples.draw(step, ids)))
            for step, ids in enumerate(nodes.split(self.size))
        ]
        return torch.cat(found)


class FullGraphData(PreparedData):
    """Lightning data module of a whole graph, which is prepared and put on a device when it is made.

    On a GPU in fp16 or bf16 the features are stored in that dtype, since the first layer would round them to
    it in each step anyway.

    Args:
        dataset: the graph with its features, labels and split. If it has features of edges, the operand is
            made of their edges.
        values: weights of the operand: "gcn", "mean" or None (see `gnnsparse.prepare`).
        sampler: which neighbours a training step takes; None: all, in one step on the whole graph.
        seed: seed of what is sampled.
        peers: the ranks that take samples together, each of which has the whole graph; `sampler.batch_size`
            nodes are those of all ranks. None: this process trains alone.
        sparse_features: whether features are kept as a sparse matrix too, see TrainerConfig.
        options: precision, device and preprocess, see PreparedData.

    Attributes:
        dataset: the graph with its features, labels and split.
        adj, precision, device, preprocess_seconds, cache_hit, peers: see PreparedData.
        store: where the features are, of which samples take rows; None: steps take the whole graph.
    """

    def __init__(
        self,
        dataset: NodeDataset,
        *,
        values: str | None = "gcn",
        sampler: SamplerConfig | None = None,
        seed: int = 0,
        peers: Peers | None = None,
        sparse_features: str = "auto",
        **options: Any,
    ) -> None:
        self.peers, self._sparse_features = peers, sparse_features
        more = dataset.edge_features if isinstance(dataset, NodeDataset) else None
        if more is not None and peers is None:
            graph = SparseGraph.from_edge_index(more.edge_index, dataset.num_nodes)
        else:
            graph = dataset.graph
        super().__init__(graph, values, **options)
        self.dataset = dataset
        self._edge_attr = None if more is None else more.edge_attr.to(self.device)
        self._samples: NodeBatches | None = None
        self.store: FeatureStore | None = None
        if sampler is not None and sampler.draws:
            self._samples = self._make_batches(sampler, values, seed)
        stays = self.store is None or self.store.placement == "device"
        self._batch = self._on_device(self.adj) if stays else None

    def _make_batches(self, sampler: SamplerConfig, values: str | None, seed: int) -> NodeBatches:
        draw = make_sampler(sampler, self.dataset.graph, values, self, seed)
        self.store = make_store(sampler, self.dataset.x, draw, self)
        train = self._part(self.dataset.train_mask)
        return NodeBatches(self, draw, sampler, self.store, train.nodes, train.y, seed)

    def _part(self, mask: torch.Tensor) -> Part:
        nodes = (mask & is_known(self.dataset.y)).nonzero().flatten()
        return Part(nodes.to(self.device), self.dataset.y[nodes].to(self.device))

    def _on_device(self, adj: SparseOperand) -> GraphBatch:
        dataset = self.dataset
        masks = dataset.train_mask, dataset.val_mask, dataset.test_mask
        if self.store is not None:
            x = self.store.whole()
        else:
            dtype = self.precision.storage if self.device.type == "cuda" else torch.float32
            x = dataset.x.to(self.device, dtype)
            if path().takes(self.device):
                x = padded_rows(x)  # once, and not in each product of a first layer
        train, val, test = (self._part(mask) for mask in masks)
        return GraphBatch(x, adj, train, val, test, self._sparse(x), self._edge_attr)

    def _sparse(self, x: torch.Tensor) -> SparseFeatures | None:
        wanted = self._sparse_features == "on"
        if self._sparse_features == "auto" and self._samples is None and x.is_cpu:
            wanted = 0 < int(x.count_nonzero()) <= x.numel() * SPARSE_FRACTION
        if not wanted:
            return None
        # Dense layers compute in float32 on a CPU, and store no 8 bits.
        exact = x.is_cpu or self.precision.quantizes
        return SparseFeatures.of(x.float(), Precision.FP32 if exact else self.precision)

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

    def capture_obstacle(self, module: TaskModule) -> str | None:
        """Return why steps of a module can't be captured; None: they can. Samples have padding."""
        if self._samples is None:
            return super().capture_obstacle(module)
        kind, known = type(module), self._module_class
        for name in ("training_step", "outputs"):
            if getattr(kind, name) is not getattr(known, name):
                return f"{kind.__name__}.{name} is not that of {known.__name__}, which knows padding"
        return self.padding_obstacle(module)

    @property
    def _module_class(self) -> type[NodeClassifier]:
        """The class whose steps know padding."""
        return NodeClassifier if self.peers is None else SharedNodeClassifier

    def batch_source(self) -> BatchSource:
        """Return the batches of a run in chunks: the whole graph, or samples in static buffers."""
        if self._samples is None:
            return super().batch_source()
        # On the whole graph, once in an epoch. A graph would keep the memory of all its layers.
        return BatchSource(self._samples.inputs(), self.val_dataloader(), captures_validation=False)

    def train_dataloader(self) -> Any:
        """Return a loader of the graph or of samples: endless for the trainer of `fit`, else of an epoch."""
        if self._samples is not None and trains_in_chunks(self.trainer):
            return RepeatedBatch(self, endless=True)  # the batch source has the batches
        if self._samples is not None:
            return self._samples
        return RepeatedBatch(self.batch, endless=counts_steps(self.trainer))

    def val_dataloader(self) -> Any:
        """Return a loader that yields the graph one time."""
        return LazyLoader(lambda: iter([self.batch]))

    test_dataloader = val_dataloader


class StoredGraphData(FullGraphData):
    """The data module of a graph on disk, which prepares no operand of the whole graph."""

    def __init__(self, dataset: NodeDataset, *, sampler: SamplerConfig, **options: Any) -> None:
        if not sampler.draws:
            accepted = "neighbor, or dataset.in_memory=true"
            bad_value("sampler", f"got 'none', and {dataset.name} is a graph on disk; accepted: {accepted}")
        self._sampler = sampler
        super().__init__(dataset, sampler=sampler, **options)

    def _prepare(self, graph: SparseGraph, values: str | None, preprocess: PreprocessConfig) -> SparseOperand:
        # Only samples are multiplied.
        nothing = torch.empty(2, 0, dtype=torch.int64, device="cpu")
        return super()._prepare(SparseGraph.from_edge_index(nothing, 1), values, preprocess)

    def _on_device(self, adj: SparseOperand) -> Any:
        assert self._samples is not None
        dataset = self.dataset
        masks = {"train": dataset.train_mask, "val": dataset.val_mask, "test": dataset.test_mask}
        everyone = torch.arange(dataset.num_nodes, device=self.device)
        samples = self._samples.of_other_nodes(everyone, dataset.y.to(self.device))
        parts = {name: self._part(mask) for name, mask in masks.items()}
        return StoredGraph(parts, samples, self._sampler.batch_size)


class NodeClassifier(TargetModule):
    """Trains a model on the training nodes of a graph, by the loss of `gnnsparse.train.metrics.make_loss`.

    Steps log nothing, because Lightning's `log` takes longer than a step on a small graph.

    Args:
        model: maps features [nodes, F] and an operand to logits [nodes, classes]; if the data set has
            features of edges, they are the third argument, [edges, D].
        dataset: the data set, whose labels and metric decide loss and scores.
        optimizer: learning rate, weight decay, schedule.
        max_steps: the step at which a schedule ends, see TaskModule.

    Attributes:
        call: calls the model with these arguments; `gnnsparse.fit` sets it for models that take
            something else.

    Raises:
        ValueError: as a TaskModule does; the metric does not go with the labels; or all training nodes have
            one class.
    """

    def __init__(
        self, model: torch.nn.Module, dataset: NodeDataset, optimizer: OptimizerConfig, max_steps: int
    ) -> None:
        super().__init__(model, dataset, optimizer, max_steps)
        self.call: Callable[..., torch.Tensor] = lambda model, x, adj, *attr: model(x, adj, *attr)

    def outputs(self, batch: GraphBatch | NodeBatch) -> torch.Tensor:
        """Return what the model says of all nodes, or of those of a sample, [nodes, classes]."""
        attr, sparse_x = (getattr(batch, name, None) for name in ("edge_attr", "sparse_x"))
        more = () if attr is None else (attr,)
        if sparse_x is not None and getattr(self.model, "takes_sparse_features", False):
            return self.call(self.model, sparse_x, batch.adj, *more)
        return self.call(self.model, batch.x, batch.adj, *more)

    def _logits(self, batch: GraphBatch, part: Part) -> torch.Tensor:
        return self.outputs(batch).index_select(0, part.nodes)

    def training_step(self, batch: GraphBatch | NodeBatch) -> torch.Tensor:
        """Return the mean loss of the training nodes, or of those of a sample, a scalar on the device."""
        if isinstance(batch, NodeBatch):
            return self._sample_loss(batch)
        return self._loss(self._logits(batch, batch.train), batch.train.y)

    def _sample_loss(self, batch: NodeBatch) -> torch.Tensor:
        """Return the mean loss of the nodes of a sample."""
        with ignoring_padding(self.model, *batch.paddings):
            outputs = self.outputs(batch)
        # Behind the batch's nodes is padding, if there is any.
        return self._loss(outputs[: len(batch.y)] if batch.paddings else outputs, batch.y)

    def scored(self, batch: GraphBatch | NodeBatch | LazyLoader) -> Any:
        """Return the whole graph, also where training takes samples, and what the model says of its nodes."""
        if isinstance(batch, NodeBatch):
            batch = batch.data.batch
        whole: Any = next(iter(batch)) if isinstance(batch, LazyLoader) else batch
        return whole, None if isinstance(whole, StoredGraph) else self.outputs(whole)

    def _outputs_of(self, nodes: torch.Tensor, scored: Any) -> torch.Tensor:
        """Return what the model says of some nodes."""
        whole, outputs = scored
        if isinstance(whole, StoredGraph):
            return whole.outputs(nodes, self.outputs)
        found: torch.Tensor = outputs.index_select(0, nodes)
        return found

    def score(self, part: str, scored: Any) -> dict[str, torch.Tensor]:
        """Return "loss" and the scores of the nodes of a part, scalars on the device."""
        of = scored[0].parts[part]
        return self.score_outputs(part, self._outputs_of(of.nodes, scored), of.y)


class NodeTask(Task[NodeDataset, FullGraphData]):
    """The task "node": nodes of one graph, with a class, several labels, or numbers to predict."""

    name = "node"
    dataset = NodeDataset
    module = NodeClassifier
    steps_per_epoch = 1
    samples = True
    sparse_features = True
    weighs_classes = True
    shared = True

    def check(self, run: RunOptions) -> None:
        """Raise ValueError if the way in which devices share products is chosen, but each has the graph."""
        super().check(run)
        if run.trainer.sparse_features == "on" and (run.sampler.draws or run.trainer.devices > 1):
            bad_value(
                "trainer.sparse_features",
                "got 'on'; accepted with sampler=neighbor and on several devices: auto, off",
            )
        for name in ("way", "parts", "wire"):
            got = getattr(run.trainer, name)
            if run.sampler.draws and got != "auto":
                accepted = "auto, as each device has the whole graph with sampler=neighbor"
                bad_value(f"trainer.{name}", f"got {got!r}; accepted: {accepted}")

    def known_steps(self, run: RunOptions) -> int | None:
        """Return 1, the whole graph; None where steps take samples of it."""
        return None if run.sampler.draws else self.steps_per_epoch

    def identity(self, run: RunOptions) -> dict[str, Any]:
        """Return what decides which nodes and neighbours a step takes; None: it takes the whole graph."""
        return sampler_identity(run)

    def model_options(self, dataset: NodeDataset) -> dict[str, Any]:
        """Return the number of features of an edge, if edges have some."""
        return edge_options(dataset)

    def load(self, name: str, options: Mapping[str, Any]) -> NodeDataset:
        """Load a data set by `gnnsparse.data.load_dataset`."""
        return load_dataset(name, **options)

    def make_data(self, dataset: NodeDataset, run: RunOptions) -> FullGraphData:
        """Make the data module: the graph with the weights that the model needs, on the run's device."""
        if dataset.edge_features is not None and (run.sampler.draws or run.peers is not None):
            name = "sampler" if run.sampler.draws else "trainer.devices"
            accepted = "sampler=none and trainer.devices=1"
            bad_value(name, f"edges have features, which go with the whole graph; accepted: {accepted}")
        if dataset.on_disk:
            return StoredGraphData(dataset, sampler=run.sampler, peers=run.peers, **run.of_data)
        if run.peers is None or run.sampler.draws:
            return FullGraphData(
                dataset, sampler=run.sampler, peers=run.peers, sparse_features=run.trainer.sparse_features,
                **run.of_data,
            )  # fmt: skip
        shared: dict[str, Any] = {
            "peers": run.peers,
            "way": run.trainer.way,
            "parts": run.trainer.parts,
            "wire": run.trainer.wire,
            "model": run.model,
        }
        return SharedGraphData(dataset, **shared, **run.of_data)

    def names(self, dataset: NodeDataset) -> dict[str, np.ndarray]:
        """Return "ids", the names of the nodes, and "class_names", if the data set has such."""
        return texts_of(ids=dataset.node_ids, class_names=dataset.class_names)

    def found_options(self, dataset: NodeDataset) -> dict[str, Any]:
        """Return the task, what the labels are, and what the features are made of."""
        return options_found(self.name, dataset)

    def predict(
        self, model: LoadedModel, data: FullGraphData
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return "nodes" (ids), what `arrays_of` has of all nodes, and the scores of parts with labels."""
        batch = data.batch
        if isinstance(batch, StoredGraph):
            prediction = self._predict_samples(model, batch, data.dataset.num_nodes)
        else:
            prediction = self._predict_whole(model, batch)
        place = prediction.logits.device
        scores = {
            part: {
                name: float(score(prediction.logits[of.nodes.to(place)], of.y.to(place)))
                for name, score in make_scores(data.dataset).items()
            }
            for part, of in batch.parts.items()
            if of.nodes.numel()
        }
        return {"nodes": torch.arange(data.dataset.num_nodes), **arrays_of(prediction)}, scores

    def _predict_whole(self, model: LoadedModel, batch: GraphBatch) -> Prediction:
        return model.predict(batch.x, batch.adj, edge_attr=batch.edge_attr)

    def _predict_samples(self, model: LoadedModel, batch: StoredGraph, nodes: int) -> Prediction:
        """Return what a model says of all nodes by samples of their neighbours, on the CPU."""
        check_memory("data", 8 * nodes * model.recipe.out_channels, f"predictions for {nodes} nodes")
        with torch.no_grad(), numerics(Precision.parse(model.recipe.precision), model.device):
            everyone = torch.arange(nodes, device=model.device)
            logits = batch.outputs(everyone, lambda of: model.module(of.x, of.adj)[: len(of.y)].float().cpu())
        return Prediction(logits, model.recipe.several_labels, model.recipe.regression)

    def make_module(self, model: torch.nn.Module, data: FullGraphData, run: RunOptions) -> TaskModule:
        """Make the Lightning module; raise ValueError if a part has no nodes, or features can't be sparse."""
        if run.trainer.sparse_features == "on" and not getattr(model, "takes_sparse_features", False):
            bad_value(
                "trainer.sparse_features",
                f"got 'on', and {type(model).__name__} does not say that it takes them "
                "(takes_sparse_features); accepted: auto, off",
            )
        for name in ("train", "val", "test"):
            if not getattr(data.dataset, f"{name}_mask").any():
                problem = f"has no nodes for {name}; accepted: some with labels in each part"
                bad_value("dataset", f"{data.dataset.name} {problem}")
        if run.sampler.draws:
            check_blocks(model, run.sampler, self.samples_graphs)
        if run.peers is None:
            return super().make_module(model, data, run)
        steps = run.trainer.max_epochs * data.steps_per_epoch
        shared = SharedNodeClassifier(
            model, data.dataset, run.optimizer, steps, peers=run.peers, seed=run.seed,
            shards_optimizer=run.trainer.shard_optimizer, draws=run.sampler.draws,
        )  # fmt: skip
        return self.weighed(shared, run)

    def describe(self, data: FullGraphData, run: RunOptions) -> dict[str, Any]:
        """Return the numbers of nodes and of the operand's nonzeros."""
        if isinstance(adj := data.adj, DistributedOperand):
            facts = adj.facts
            shared = {"devices": facts.ranks, "way": adj.choice.way, "parts": facts.method}
            return {"nodes": facts.nodes, "nonzeros": sum(facts.nnz), **shared, "halo": list(facts.halo)}
        nonzeros = data.dataset.graph.nnz if data.dataset.on_disk else adj.nnz
        kept = {} if data.store is None else {"features": data.store.explain().replace("\n", "; ")}
        devices = {} if run.peers is None else {"devices": run.peers.ranks}
        return {"nodes": data.dataset.num_nodes, "nonzeros": nonzeros, **devices, **kept}


register_task(NodeTask())


@dataclass(frozen=True, eq=False)
class SharedPart(Part):
    """The rank's own nodes of a part, which has the given fraction of the numbers in the part's loss."""

    # On rank 0 `all_y` are those of all ranks in the order of the graph, in which `gather` brings rows to it.

    fraction: float
    all_y: torch.Tensor | None
    gather: RowGather


class SharedGraphData(FullGraphData):
    """The data module of one rank, of the data set that all have: its nodes, shared by `way` and `parts`."""

    adj: DistributedOperand
    peers: Peers

    def __init__(
        self, dataset: NodeDataset, *, peers: Peers, way: str = "auto", parts: str = "auto",
        wire: str = "auto", model: torch.nn.Module | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self._how: dict[str, Any] = {"way": way, "parts": parts, "wire": wire}
        self._trial = None if model is None else _trial_of(model, dataset.num_features)
        super().__init__(dataset, peers=peers, **options)

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
            device=self.device, trial=self._trial, cache=preprocess.cache, **self._how,
        )  # fmt: skip

    def _on_device(self, adj: SparseOperand) -> GraphBatch:
        assert isinstance(adj, DistributedOperand)
        dataset, own = self.dataset, adj.nodes

        def part(mask: torch.Tensor) -> SharedPart:
            known = mask & is_known(dataset.y)
            rows = known[own].nonzero().flatten()
            y, all_y = dataset.y[own[rows]], dataset.y[known]
            gather = RowGather(own[rows].to(self.device), self.peers.group)
            fraction = _counted(y) / max(_counted(all_y), 1)
            of_all = all_y.to(self.device) if self.peers.rank == 0 else None
            return SharedPart(rows.to(self.device), y.to(self.device), fraction, of_all, gather)

        dtype = self.precision.storage if self.device.type == "cuda" else torch.float32
        parts = [part(mask) for mask in (dataset.train_mask, dataset.val_mask, dataset.test_mask)]
        in_a_row = bool((own.diff() == 1).all())  # then the rows are not copied before they are sent to a GPU
        x = dataset.x[int(own[0]) : int(own[-1]) + 1] if in_a_row and own.numel() else dataset.x[own]
        x = x.to(self.device, dtype)
        adj.fetch_once(x)  # a first layer may multiply it in each step
        return GraphBatch(x, adj, parts[0], parts[1], parts[2])


def _trial_of(model: torch.nn.Module, features: int) -> Callable[[SparseOperand], object]:
    """Return what `distribute` tries: a training step's forward pass, of a copy that may change."""

    def call(adj: SparseOperand) -> object:
        tried: Any = copy.deepcopy(model).to("cpu").train()
        return tried(torch.zeros(adj.shape[0], features, dtype=torch.float32, device="cpu"), adj)

    return call


def _counted(y: torch.Tensor) -> int:
    """Return how many numbers a loss of targets is a mean over."""
    return int((~y.isnan()).sum()) if y.is_floating_point() else y.shape[0]


class SharedNodeClassifier(NodeClassifier):
    """Trains one model on the nodes of all ranks; each rank has a copy of it, and all copies stay equal.

    The loss is that of one process. Gradients are added up in the order of ranks. Rank 0 computes the scores,
    from the logits of all ranks in the order of the graph, and tells the others. Random numbers of a step
    depend on the seed, the step, the rank and the number of ranks alone. With `draws` each rank takes samples
    of the whole graph, and rank 0 alone computes logits to score; batch normalisation counts a node twice
    that two ranks have reached.
    """

    def __init__(self, *args: Any, peers: Peers, seed: int, shards_optimizer: bool, draws: bool) -> None:
        super().__init__(*args)
        share_batch_norm(self.model, peers.group, nodes_vary=draws)
        self._peers, self._seed, self._draws = peers, seed, draws
        self.shards_optimizer = shards_optimizer

    def make_optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Make Adam, of which each rank has the whole or a part."""
        if not self.shards_optimizer:
            return super().make_optimizer(groups)
        from gnnsparse.train.sharded_optimizer import ShardedOptimizer

        return ShardedOptimizer(groups, self._peers, lr=self._optimizer.lr, fused=self.fused)

    def begin_step(self, step: int) -> None:
        """Seed the random numbers of the step, which a CUDA graph takes from torch's generator too."""
        torch.manual_seed(step_seed(self._seed, step, self._peers.rank))

    def training_step(self, batch: GraphBatch | NodeBatch) -> torch.Tensor:
        """Return the mean loss of the step's nodes, with the gradient of those of this rank."""
        if isinstance(batch, NodeBatch):
            return total_of(self._sample_loss(batch) * batch.fraction, self._peers.group)
        part, logits = batch.train, self._logits(batch, batch.train)
        assert isinstance(part, SharedPart)
        # A rank without training nodes takes part in the backward pass: others need its gradients.
        own = self._loss(logits, part.y) * part.fraction if part.fraction else logits.float().sum() * 0.0
        return total_of(own, self._peers.group)

    def share_gradients(self) -> None:
        """Add up the gradients of all ranks."""
        sum_gradients(self.model.parameters(), self._peers.group)

    def scored(self, batch: GraphBatch | NodeBatch | LazyLoader) -> Any:
        """Return the graph and the logits of this rank's nodes; None on ranks that only get the scores."""
        return None if self._draws and self._peers.rank else super().scored(batch)

    def score(self, part: str, scored: Any) -> dict[str, torch.Tensor]:
        """Return "loss" and the scores of a part, the same bits on each rank: they choose by them."""
        names, numbers = ["loss", *self._scores], None
        if scored is not None:
            of = scored[0].parts[part]
            own, y = self._outputs_of(of.nodes, scored), of.y
            logits: torch.Tensor | None = own
            if isinstance(of, SharedPart):
                logits, y = of.gather(own), of.all_y
            if logits is not None and y is not None:
                found = self.score_outputs(part, logits, y)
                numbers = torch.stack([found[name].float() for name in names])
        if numbers is None:
            numbers = torch.zeros(len(names), dtype=torch.float32, device=self.device)
        dist.broadcast(numbers, src=0, group=self._peers.group)
        return dict(zip(names, numbers.unbind(), strict=True))
