"""The task "typed_node": classification and regression of the nodes of one type, in a graph with types."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch

from gnnsparse.data.catalog import load_entry
from gnnsparse.data.graph_batches import BatchPlans
from gnnsparse.data.typed import TypedNodeDataset
from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import PaddedCsr, index_dtype
from gnnsparse.nn.edges import Edges
from gnnsparse.nn.rgcn_conv import Ranges, Relations
from gnnsparse.precision import Precision
from gnnsparse.preprocess.api import prepare
from gnnsparse.runtime.memo import cached_property
from gnnsparse.sampling.blocks import BlockArrays, prepare_block
from gnnsparse.sampling.typed import PaddedTypedDraw, TypedNeighborSampler, TypedRoom, TypedSubgraph
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.typed import Relation, StaticTypedGraph, TypedGraph, starts_of
from gnnsparse.train.data import PreparedData
from gnnsparse.train.device import numerics
from gnnsparse.train.module import TaskModule
from gnnsparse.train.sampled import (
    DrawnBatch,
    NodeBatch,
    NodeBatches,
    PaddedBatch,
    StaticArrays,
    StaticBatch,
    rounded,
    size_for,
)
from gnnsparse.train.settings import PreprocessConfig, SamplerConfig
from gnnsparse.train.tasks import RunOptions, register_task, texts_of
from gnnsparse.train.tasks.node import FullGraphData, GraphBatch, NodeClassifier, NodeTask, StoredGraph
from gnnsparse.train.trained import LoadedModel, Prediction, set_precision

__all__ = ["TypedNodeClassifier", "TypedNodeData", "TypedNodeTask"]


def prepare_typed(
    data: PreparedData, graph: TypedGraph, values: str | None, preprocess: PreprocessConfig
) -> Any:
    """Return a typed graph on the device of the data, prepared if layers take an operand of all relations.

    With values="mean" they prepare the means of all relations themselves.
    """
    here = graph.to(data.device)
    if values == "mean":
        return here
    return prepare(here, precision=data.precision, **dataclasses.asdict(preprocess))


def make_typed_sampler(
    config: SamplerConfig, graph: TypedGraph, seed: int, device: torch.device, **times: Any
) -> Any:
    """Make the sampler of a run; `times` are those that TypedNeighborSampler takes."""
    if config.features != "auto":
        bad_value("sampler.features", "plays no part in graphs with types; accepted: auto")
    if config.fanouts is None:
        accepted = "a number for each layer, or settings.with_fanouts(model)"
        bad_value("sampler.fanouts", f"got None for a model that is not known yet; accepted: {accepted}")
    config.check_times(any(of is not None for of in times.values()))
    leading = Counter(target for _, _, target in graph.edges)
    fanouts = {
        relation: [
            -(-fanout // leading[relation[2]]) if config.relations == "shared" and fanout > 0 else fanout
            for fanout in config.fanouts
        ]
        for relation in graph.edges
    }
    return TypedNeighborSampler(
        graph, fanouts, method=config.method, replace=config.replace, seed=seed,
        temporal_strategy=config.temporal_strategy, device=device, **times,
    )  # fmt: skip


def features_on(data: PreparedData, x: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the features of all types on the device of the data."""
    dtype = data.precision.storage if data.device.type == "cuda" else torch.float32
    return {kind: of.to(data.device, dtype) for kind, of in x.items()}


def inputs_of_sample(
    x: Mapping[str, torch.Tensor], nodes: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """Return what a model gets of the nodes of a sample: features, or of types without them the nodes."""
    return {kind: x[kind].index_select(0, own) if kind in x else own for kind, own in nodes.items()}


class TypedBatches(NodeBatches):
    """A loader of training nodes of one type, with neighbours of all types that are drawn anew."""

    _data: TypedNodeData
    _sampler: Any

    def draw(self, step: int, ids: torch.Tensor, fraction: float = 1.0) -> Any:
        """Draw the neighbours of the nodes `ids`."""
        return DrawnBatch(ids, self._sample(self._nodes[ids], step % 2**32), None, fraction)

    def _sample(self, nodes: torch.Tensor, step: int) -> Any:
        return self._sampler.sample({self._data.dataset.target: nodes}, step)

    def gather(self, drawn: Any) -> NodeBatch:
        """Return the batch of what was drawn."""
        if isinstance(drawn, PaddedBatch):
            drawn = self.draw(drawn.step, drawn.ids, drawn.fraction)
        data, sample = self._data, drawn.blocks
        x: Any = inputs_of_sample(data.x, sample.nodes)
        return NodeBatch(x, sample.graph, self._y[drawn.ids], data, fraction=drawn.fraction)

    @property
    def padding_obstacle(self) -> str | None:
        """Why samples of a step can't be drawn into arrays of fixed sizes; None: they can."""
        count, kind = min(self._config.batch_size, self._nodes.numel()), self._data.dataset.target
        found: str | None = self._sampler.padding_obstacle(kind, count)
        return found

    def _make_buffers(self, seeds: Sequence[torch.Tensor]) -> StaticBatch:
        kind = self._data.dataset.target
        samples = [self._sample(nodes, step) for step, nodes in enumerate(seeds)]
        room = room_of(samples, self._sampler, mean=self._data.values == "mean")
        draw = PaddedTypedDraw(self._sampler, kind, room)
        draws = self._padded_draws(draw, len(seeds[0]))
        count = 0 if draws is None else len(seeds[0])  # then there are batches for no number of nodes
        static = StaticTyped(self._sampler, room, self._data.precision)
        return StaticTypedBatch(static, count, None, self._y, self._data, draws)


def room_of(samples: Sequence[TypedSubgraph], sampler: TypedNeighborSampler, *, mean: bool) -> TypedRoom:
    """Return room that samples hardly ever exceed, after some that were drawn for equally many seeds."""
    counts = {kind: [sample.num_nodes[kind] for sample in samples] for kind in sampler.num_nodes}
    reached = {
        kind: [size_for(sizes, sampler.num_nodes[kind]) for sizes in zip(*counts[kind], strict=True)]
        for kind in counts
    }
    nodes = {
        kind: rounded(size_for([sum(sizes) for sizes in counts[kind]], sampler.num_nodes[kind]) + 1)
        for kind in counts
    }
    edges = {key: [0] * len(sampler.draws) for key in sampler.relations}
    for hop, draws in enumerate(sampler.draws):
        for key, layer in draws:
            if most := reached[key[2]][hop] * layer.fanout:
                sizes = [sample.num_edges[key][hop] for sample in samples]
                edges[key][hop] = rounded(max(1, size_for(sizes, most)))
    return TypedRoom(nodes, reached, edges, columns_of(nodes, sampler.relations, mean), mean)


def columns_of(
    nodes: Mapping[str, int], relations: Sequence[Relation], mean: bool
) -> dict[Relation, tuple[int, int]]:
    """Return the columns of relations, see TypedRoom.

    With `mean` the columns of a source follow one another, as RGCNConv multiplies it by all matrices at once;
    else those of a relation, as `TypedGraph.block_edges` has them.
    """
    if not mean:
        firsts = starts_of({key: nodes[key[0]] for key in relations})
        return {key: (first, 1) for key, first in firsts.items()}
    leaving = {kind: [key for key in relations if key[0] == kind] for kind in nodes}
    firsts = starts_of({kind: nodes[kind] * len(keys) for kind, keys in leaving.items()})
    return {
        key: (firsts[kind] + at, len(keys)) for kind, keys in leaving.items() for at, key in enumerate(keys)
    }


class StaticTyped(StaticArrays):
    """Static buffers for what PaddedTypedDraw draws, and the graph `adjs` over them."""

    paddings = ()  # rows of each type have padding behind them, from which no edge leads

    def __init__(self, sampler: TypedNeighborSampler, room: TypedRoom, precision: Precision) -> None:
        (rows, cols, nnz), device = room.size, sampler.device
        small = torch.int32
        arrays = [
            (rows, small), (rows + 1, torch.int64), (nnz, small), (cols + 1, torch.int64), (nnz, small),
            (nnz, index_dtype(nnz)),
        ]  # fmt: skip
        flat = [torch.zeros(size, dtype=dtype, device=device) for size, dtype in arrays]
        weights = torch.zeros(nnz, dtype=torch.float32, device=device) if room.mean else None
        super().__init__(flat if weights is None else [*flat, weights])
        self._sizes, (nodes, *sides, index) = room.nodes, flat
        for offsets in sides[::2]:
            offsets[-1] = nnz  # on the CPU a native handle checks the offsets when it is made
        csr, transposed = PaddedCsr(sides[0], sides[1], cols), PaddedCsr(sides[2], sides[3], rows)
        assert csr.view is not None is not transposed.view
        index.copy_(torch.arange(nnz, dtype=index.dtype, device=device))
        self._prepared = prepare_block(
            BlockArrays(nodes, nodes, csr, transposed, index, weights), None, precision, renewable=True
        )
        row, column = sampler.most_edges
        for cache, longest in zip(self._prepared.caches, (row, min(column, rows)), strict=True):
            cache.longest_row, cache.tuner, cache.keeps_rows_whole = longest, BatchPlans(longest), True
        operand = SparseOperand(self._prepared)
        made = Relations(operand, None, _ranges_of(room, device)) if room.mean else Edges(operand, nnz)
        self.adjs = StaticTypedGraph.of(room.nodes, list(room.edges), made)

    def takes(self, blocks: Any) -> bool:
        """Return whether there is room for a sample that was not drawn into arrays of fixed sizes: never."""
        return False

    @property
    def nodes(self) -> dict[str, torch.Tensor]:
        """The nodes of each type, int64."""
        return dict(zip(self._sizes, self.flat[0].long().split(list(self._sizes.values())), strict=True))

    def assemble(self) -> None:
        """Renew what the operand has derived from its arrays."""
        self._prepared.renew()


def _ranges_of(room: TypedRoom, device: torch.device) -> Ranges:
    """Return the ranges of the sources by type, and the relations that begin in each."""
    firsts, numbers = starts_of(room.nodes), {key: number for number, key in enumerate(room.edges)}
    leaving = {kind: [numbers[key] for key in numbers if key[0] == kind] for kind in room.nodes}
    leaving = {kind: own for kind, own in leaving.items() if own}
    order = torch.tensor([n for own in leaving.values() for n in own], dtype=torch.int64, device=device)
    ends = [(firsts[kind], firsts[kind] + room.nodes[kind]) for kind in leaving]
    return Ranges(ends, order, [len(own) for own in leaving.values()])


class StaticTypedBatch(StaticBatch):
    """Static buffers for a batch of a fixed number of nodes of one type to train on."""

    _data: TypedNodeData

    def _gather(self) -> Any:
        return inputs_of_sample(self._data.x, self._blocks.nodes)


class TypedNodeData(FullGraphData):
    """Lightning data module of a whole graph with types.

    If the data set has times, and steps take samples, scores and predictions are of samples too, which have
    no edge that is newer than the node that it is drawn for; else they are of the whole graph.

    Args:
        dataset: the graph with its features, targets and split.
        values: None: one operand of all relations is prepared, for attention; "mean": layers prepare the
            means of all relations themselves.
        sampler: which neighbours a training step takes; None: all, in one step on the whole graph.
        seed: seed of what is sampled.
        options: precision, device and preprocess, see PreparedData.

    Attributes:
        dataset: the data set.
        adj: the graph, a TypedGraph on the device.
        precision, device, preprocess_seconds, cache_hit: see PreparedData.
    """

    dataset: TypedNodeDataset

    def _prepare(self, graph: Any, values: str | None, preprocess: PreprocessConfig) -> Any:
        return prepare_typed(self, graph, values, preprocess)

    def _make_batches(self, sampler: SamplerConfig, values: str | None, seed: int) -> NodeBatches:
        of = self.dataset
        self.values = values
        draw = make_typed_sampler(sampler, of.graph, seed, device=self.device, node_time=of.times)
        train, store = self._part(of.train_mask), None
        self._size = sampler.batch_size
        return TypedBatches(self, draw, sampler, store, train.nodes, train.y, seed)  # type: ignore[arg-type]

    @cached_property
    def x(self) -> dict[str, torch.Tensor]:
        """The features of all types on the device."""
        return features_on(self, self.dataset.x)

    def _on_device(self, adj: Any) -> Any:
        of = self.dataset
        masks = {"train": of.train_mask, "val": of.val_mask, "test": of.test_mask}
        parts = {name: self._part(mask) for name, mask in masks.items()}
        if self._samples is None or not of.has_times:
            x: Any = self.x
            return GraphBatch(x, adj, parts["train"], parts["val"], parts["test"])
        everyone = torch.arange(of.num_nodes, dtype=torch.int64, device=self.device)
        samples = self._samples.of_other_nodes(everyone, of.y.to(self.device))
        return StoredGraph(parts, samples, self._size)

    def capture_obstacle(self, module: TaskModule) -> str | None:
        """Return why steps of a module can't be captured; None: they can."""
        if isinstance(self._samples, TypedBatches) and (reason := self._samples.padding_obstacle):
            return reason
        return super().capture_obstacle(module)

    @property
    def _module_class(self) -> type[NodeClassifier]:
        return TypedNodeClassifier


class TypedNodeClassifier(NodeClassifier):
    """Trains a model on the training nodes of one type.

    Args:
        model: maps features by type and a TypedGraph to logits [nodes of the target type, classes].
        dataset: the data set.
        optimizer: learning rate, weight decay, schedule.
        max_steps: the step at which a schedule ends, see TaskModule.

    Attributes:
        call: calls the model with these arguments.
    """

    def outputs(self, batch: GraphBatch | NodeBatch) -> torch.Tensor:
        """Return what the model says of all nodes of the type, or of those that a sample was drawn for."""
        found = self.call(self.model, batch.x, batch.adj)
        return found[: len(batch.y)] if isinstance(batch, NodeBatch) else found


class TypedNodeTask(NodeTask):
    """The task "typed_node": nodes of one type, with a class, several labels, or numbers to predict."""

    name = "typed_node"
    samples_graphs = True
    dataset: ClassVar[Any] = TypedNodeDataset
    data = TypedNodeData
    module = TypedNodeClassifier
    sparse_features = False
    shared = False

    def load(self, name: str, options: Mapping[str, Any]) -> Any:
        """Load a data set of the catalog."""
        return load_entry(name, options)

    def model_sizes(self, dataset: Any) -> tuple[int, int]:
        """Return the number of features of the target type, 0 if it has none, and the number of classes."""
        return dataset.types["features"].get(dataset.target, 0), dataset.num_classes

    def model_options(self, dataset: Any) -> dict[str, Any]:
        """Return the types and relations of the graph, and the type whose nodes the outputs are of."""
        return {"types": {**dataset.types, "target": dataset.target}}

    def make_data(self, dataset: Any, run: RunOptions) -> FullGraphData:
        """Make the data module, on the run's device."""
        return TypedNodeData(dataset, sampler=run.sampler, **run.of_data)

    def make_module(self, model: torch.nn.Module, data: FullGraphData, run: RunOptions) -> TaskModule:
        """Make the Lightning module, whose layers compute in the precision of the run."""
        set_precision(model, data.precision)
        return super().make_module(model, data, run)

    def found_options(self, dataset: Any) -> dict[str, Any]:
        """Return those of NodeTask, and the type whose nodes are learned."""
        return {**super().found_options(dataset), "nodes": dataset.target}

    def names(self, dataset: Any) -> dict[str, np.ndarray]:
        """Return "ids", the names of the nodes, and "class_names", if the data set has such."""
        return texts_of(ids=(dataset.node_ids or {}).get(dataset.target), class_names=dataset.class_names)

    def predict(
        self, model: LoadedModel, data: FullGraphData
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return what NodeTask does, of the nodes of the target type."""
        set_precision(model.module, data.precision)
        return super().predict(model, data)

    def _predict_whole(self, model: LoadedModel, batch: GraphBatch) -> Prediction:
        recipe = model.recipe
        with torch.no_grad(), numerics(Precision.parse(recipe.precision), model.device):
            logits = model.module(batch.x, batch.adj).float()
        return Prediction(logits, recipe.several_labels, recipe.regression)

    def describe(self, data: FullGraphData, run: RunOptions) -> dict[str, Any]:
        """Return the numbers of nodes of each type and of edges of each relation."""
        return sizes_of(data.dataset.graph)


def sizes_of(graph: Any) -> dict[str, Any]:
    """Return the numbers of nodes of each type and of edges of each relation, plain values."""
    edges = {"-".join(relation): of.shape[1] for relation, of in graph.edges.items()}
    return {"nodes": dict(graph.num_nodes), "edges": edges}


register_task(TypedNodeTask())
