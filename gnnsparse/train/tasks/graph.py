"""The task "graph": classification and regression of graphs, in mini-batches of graphs."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from gnnsparse.data.datasets import EdgeFeatures, GraphDataset, edge_keys
from gnnsparse.data.graph_batches import BlockBatch, BlockBatches, PaddedBlocks
from gnnsparse.data.optional import import_optional
from gnnsparse.errors import bad_value
from gnnsparse.nn.padded_norm import ignoring_padding
from gnnsparse.runtime.padding import Padding
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.train.data import BatchSource, MiniBatchData, StepInput, shuffled_epochs
from gnnsparse.train.metrics import is_known, make_scores
from gnnsparse.train.module import TargetModule, TaskModule
from gnnsparse.train.settings import PreprocessConfig
from gnnsparse.train.tasks import (
    MiniBatchTask,
    RunOptions,
    edge_options,
    options_found,
    register_task,
    texts_of,
)
from gnnsparse.train.trained import LoadedModel, Prediction, arrays_of

__all__ = ["GraphData", "GraphPredictor"]

_log = logging.getLogger("gnnsparse.train")

#: Arrays are sized for the mean of all batches and so many standard deviations.
_DEVIATIONS = 3
#: Sizes are multiples of this, so that rows of 16-bit numbers are aligned and products are of whole tiles.
_MULTIPLE = 64


def bound_of(sizes: torch.Tensor, count: int) -> int:
    """Return a size that `count` items of the sizes, int64 [items], drawn without repeats hardly exceed."""
    largest = int(sizes.sort(descending=True).values[:count].sum())
    items, exact = sizes.numel(), sizes.double()
    left = (items - count) / max(items - 1, 1)  # drawing without repeats makes sums differ less
    deviation = float(exact.std(correction=0)) * math.sqrt(count * left)
    return min(largest, math.ceil(count * float(exact.mean()) + _DEVIATIONS * deviation))


#: Most nodes of a batch that is scored, unless a single graph has more.
_SCORED_NODES = 2**16
#: Most nodes and nonzeros of batches that are put together at once, unless a single batch has more.
_PACKED_ELEMENTS = 2**19


@dataclass(frozen=True, eq=False)
class GraphsBatch:
    """A batch of graphs on one device: features [n, F], a block-diagonal operand, and targets [graphs]."""

    # graph_ptr, int64 [graphs + 1], has the first node of each graph, and the number of nodes; `paddings` say
    # which rows are nodes, and edges, if there are more. From `data` validation gets graphs of other parts.

    x: torch.Tensor
    adj: SparseOperand
    graph_ptr: torch.Tensor
    y: torch.Tensor
    data: GraphData
    paddings: tuple[Padding, ...] = ()
    edge_attr: torch.Tensor | None = None


class EdgeRows:
    """The features of the edges of all graphs on a device, of which batches take theirs.

    Raises:
        ValueError: they are not those of the edges of the graph.
    """

    def __init__(self, dataset: GraphDataset, features: EdgeFeatures, device: torch.device) -> None:
        keys, (source, target) = edge_keys(dataset.graph), features.edge_index.cpu()
        own, order = (target * dataset.num_nodes + source).sort(stable=True)
        counts = torch.searchsorted(keys, own, right=False).bincount(minlength=len(keys))
        is_whole = len(counts) == len(keys) and bool(counts.all())
        if not is_whole or not torch.equal(keys.repeat_interleave(counts), own):
            bad_value("edge_features", "are of other edges than the graph has; accepted: those of all edges")
        self._attr = features.edge_attr[order].to(device)
        # The first edge of each nonzero of the graph, and the end; None: each stands for one edge.
        repeats = len(own) > len(keys)
        self._first = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).to(device) if repeats else None

    @property
    def has_repeats(self) -> bool:
        """Whether edges share a nonzero of the graph."""
        return self._first is not None

    def padded(self, padded: PaddedBlocks) -> torch.Tensor:
        """Return the features of the edges of a batch in static buffers, of padding 0."""
        found = self._attr.index_select(0, padded.edges.clamp(max=self._attr.shape[0] - 1))
        return found.masked_fill_(~padded.edge_padding.real, 0)

    def of(self, batch: BlockBatch) -> tuple[SparseOperand, torch.Tensor]:
        """Return the operand of a batch, which tells repeated edges apart, and the features of its edges."""
        if self._first is None:
            return batch.adj, self._attr.index_select(0, batch.edges)
        first, counts = self._first[batch.edges], self._first.diff()[batch.edges]
        nonzero = torch.repeat_interleave(counts)
        place = torch.arange(len(nonzero), device=nonzero.device) - (counts.cumsum(0) - counts)[nonzero]
        prepared = batch.adj.prepared
        report = {**prepared.report, "edges": len(nonzero)}
        adj = SparseOperand(dataclasses.replace(prepared, edge_map=nonzero, report=report))
        return adj, self._attr.index_select(0, first[nonzero] + place)


class GraphData(MiniBatchData):
    """Lightning data module of many graphs, which are prepared together and put on a device when it is made.

    A batch is put together on the device by offsets (gnnsparse.data.BlockBatches). The batches of the
    validation and the test part are made once.

    Args:
        dataset: the graphs with their features, targets and split. If it has features of edges, batches have
            theirs, and their operands tell repeated edges apart.
        batch_size: graphs of a training step; the last step of an epoch may have fewer.
        values: weights of the operands: "gcn", "mean" or None (see `gnnsparse.prepare`).
        preprocess: options of `gnnsparse.prepare`, with reorder="none" and format="auto" or "csr"; None:
            their defaults.
        options: seed, precision and device, see MiniBatchData.

    Attributes:
        dataset: the data set.
        adj: the operand of all graphs.
        x, y: features and targets of all graphs, on the device.
        parts: int64 [graphs] on the CPU by part of the split, the graphs of which a target is known.
        blocks: makes the operands of batches.
        precision, device, preprocess_seconds, cache_hit: see PreparedData.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        dataset: GraphDataset,
        *,
        batch_size: int = 32,
        values: str | None = None,
        preprocess: PreprocessConfig | None = None,
        **options: Any,
    ) -> None:
        preprocess = preprocess or PreprocessConfig()
        check_preprocess(preprocess)
        options["preprocess"] = dataclasses.replace(preprocess, format="csr")
        super().__init__(dataset.graph, values, batch_size=batch_size, **options)
        self.dataset = dataset
        self.blocks = BlockBatches(self.adj, dataset.graph_ptr)
        known = is_known(dataset.y.cpu())
        self.parts = {name: ids[known[ids]] for name, ids in dataset.parts.items()}
        dtype = self.precision.storage if self.device.type == "cuda" else torch.float32
        self.x, self.y = dataset.x.to(self.device, dtype), dataset.y.to(self.device)
        more = dataset.edge_features
        self._edges = None if more is None else EdgeRows(dataset, more, self.device)
        self._chunks: dict[str, list[GraphsBatch]] = {}

    @property
    def train_items(self) -> int:
        """Number of graphs to train on."""
        return self.parts["train"].numel()

    def gather(self, part: str, ids: torch.Tensor) -> GraphsBatch:
        """Return a batch of the graphs of a part with the indices `ids`, int64 [batch] on the CPU."""
        (batch,) = self.gather_all(part, [ids])
        return batch

    def gather_all(self, part: str, batches: Sequence[torch.Tensor]) -> Iterator[GraphsBatch]:
        """Yield batches of graphs, each for indices as `gather` takes them; small ones are packed."""
        return self._batches([self.parts[part][ids] for ids in batches])

    def _batches(self, batches: Sequence[torch.Tensor]) -> Iterator[Any]:
        """Yield batches of graphs by their numbers in the data set, int64 [batch] each."""
        for packed in self._packed(batches):
            graphs, sizes = torch.cat(packed), [numbers.numel() for numbers in packed]
            targets = self.y.index_select(0, graphs.to(self.device, non_blocking=True)).split(sizes)
            for batch, y in zip(self.blocks.split(graphs, sizes), targets, strict=True):
                adj, attr = (batch.adj, None) if self._edges is None else self._edges.of(batch)
                x = self.x.index_select(0, batch.nodes)
                yield GraphsBatch(x, adj, batch.graph_ptr, y, self, edge_attr=attr)

    def _packed(self, batches: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
        """Yield consecutive batches as long as they have few nodes and nonzeros together."""
        packed: list[torch.Tensor] = []
        elements = 0
        for graphs in batches:
            count = self.blocks.elements(graphs)
            if packed and elements + count > _PACKED_ELEMENTS:
                yield packed
                packed, elements = [], 0
            packed.append(graphs)
            elements += count
        if packed:
            yield packed

    def training_batches(self, first: int, batches: Sequence[torch.Tensor]) -> Iterator[GraphsBatch]:
        """Yield the batches of training steps, see MiniBatchData."""
        return self.gather_all("train", batches)

    def capture_obstacle(self, module: TaskModule) -> str | None:
        """Return why steps of a module can't be captured on batches with padding; None: they can."""
        if type(module).training_step is not GraphPredictor.training_step:
            return f"{type(module).__name__}.training_step is not that of GraphPredictor, which knows padding"
        if self._edges is not None and self._edges.has_repeats:
            return "features of edges that are repeated have no static buffers"
        return self.padding_obstacle(module)

    def batch_source(self) -> BatchSource:
        """Return the batches of a run in chunks, in static buffers."""
        return BatchSource(self._step_inputs(), next(iter(self.chunks("val"))))

    def _step_inputs(self) -> Iterator[StepInput]:
        buffers: dict[int, PaddedBlocks] = {}
        was_large = False
        for _, batches in shuffled_epochs(self, self.train_items, self.batch_size, self.seed):
            for ids in batches:
                count, graphs = ids.numel(), self.parts["train"][ids]
                if count not in buffers:
                    buffers[count] = self._padded(count)
                static, single = buffers[count], partial(self.gather, "train", ids)
                sizes = [int(size.sum()) for size in self.blocks.sizes(graphs)]
                if all(size <= most for size, most in zip(sizes, static.capacity, strict=True)):
                    load = partial(static.chosen[:-1].copy_, graphs, non_blocking=True)
                    yield StepInput(single, static, load, partial(self._static_batch, static))
                    continue
                if not was_large:
                    _log.info(
                        "trainer.capture: a batch is larger than most; such steps are launched one by one"
                    )
                was_large = True
                yield StepInput(single)

    def _padded(self, count: int) -> PaddedBlocks:
        """Make static buffers for batches of `count` training graphs."""
        nodes, edges = (bound_of(sizes, count) for sizes in self.blocks.sizes(self.parts["train"]))
        # One row more than nodes: nonzeros that belong to no row have its column.
        rounded = [-(-size // _MULTIPLE) * _MULTIPLE for size in (nodes + 1, max(edges, 1))]
        if rounded[0] == rounded[1]:  # which rows are padding is told by how many there are
            rounded[1] += _MULTIPLE
        return self.blocks.padded(count, *rounded)

    def _static_batch(self, padded: PaddedBlocks) -> GraphsBatch:
        """Put the batch in static buffers together, of the graphs whose numbers were copied there."""
        padded.assemble()
        x = self.x.index_select(0, padded.rows.clamp(max=self.x.shape[0] - 1))
        # Whatever padding holds must be finite, since weights' gradients are products with zeros there.
        x.masked_fill_(~padded.padding.real, 0)
        y = self.y.index_select(0, padded.chosen[:-1])
        paddings, attr = (padded.padding, padded.edge_padding), None
        if self._edges is not None:
            attr = self._edges.padded(padded)
        return GraphsBatch(x, padded.adj, padded.graph_ptr, y, self, paddings, attr)

    def chunks(self, part: str) -> Iterator[GraphsBatch]:
        """Yield all graphs of a part in their order, in batches."""
        if part == "train":
            return self._batches(self._ranges(self.parts[part]))
        if part not in self._chunks:
            self._chunks[part] = list(self._batches(self._ranges(self.parts[part])))
        return iter(self._chunks[part])

    def all_graphs(self) -> Iterator[Any]:
        """Yield all graphs in their order, of whatever part, in batches."""
        return self._batches(self._ranges(torch.arange(self.dataset.num_graphs, device="cpu")))

    def _ranges(self, graphs: torch.Tensor) -> list[torch.Tensor]:
        """Divide graphs, int64 [graphs], into ranges of not too many nodes."""
        ptr = self.dataset.graph_ptr.cpu()
        ends = (ptr[graphs + 1] - ptr[graphs]).cumsum(0)
        group = (ends - 1) // _SCORED_NODES
        return list(graphs.split(torch.unique_consecutive(group, return_counts=True)[1].tolist()))


def check_preprocess(preprocess: PreprocessConfig) -> None:
    """Raise ValueError for a row order or a format that a batch of graphs can't be gathered from."""
    if preprocess.reorder != "none":
        bad_value("preprocess.reorder", f"got {preprocess.reorder!r} for batches of graphs; accepted: none")
    if preprocess.format not in ("auto", "csr"):
        bad_value(
            "preprocess.format", f"got {preprocess.format!r} for batches of graphs; accepted: auto, csr"
        )


class PygGraphData(GraphData):
    """GraphData whose batches have PyG's Batch of some Data in the place of an operand.

    Args:
        dataset: what is known of the graphs, without weights of edges that are not used.
        graphs: the torch_geometric.data.Data of each.
        options: those of GraphData.
    """

    def __init__(self, dataset: GraphDataset, graphs: Sequence[Any], **options: Any) -> None:
        super().__init__(dataset, **{**options, "preprocess": PreprocessConfig(cache=False)})
        self.graphs = graphs
        self._batch = import_optional("torch_geometric.data", "a list of graphs").Batch

    def _batches(self, batches: Sequence[torch.Tensor]) -> Iterator[Any]:
        for numbers in batches:
            batch = self._batch.from_data_list([self.graphs[at] for at in numbers.tolist()]).to(self.device)
            x = batch.get("x")
            if x is not None and x.is_floating_point():
                x = x.float()
            yield GraphsBatch(x, batch, batch.ptr, self.y.index_select(0, numbers.to(self.device)), self)

    def capture_obstacle(self, module: TaskModule) -> str | None:
        """Return why steps can't be captured: PyG puts batches together on the CPU."""
        return "PyG puts batches of graphs together on the CPU, each of another size"


def call_with_operand(model: torch.nn.Module, batch: GraphsBatch) -> torch.Tensor:
    """Call a model with the features, the operand and the graphs of a batch, and features of edges if any."""
    more = () if batch.edge_attr is None else (batch.edge_attr,)
    outputs: torch.Tensor = model(batch.x, batch.adj, batch.graph_ptr, *more)
    return outputs


class GraphPredictor(TargetModule):
    """Trains a model on graphs, by the loss of `gnnsparse.train.metrics.make_loss`.

    Args:
        model: maps features [nodes, F], an operand and graph_ptr [graphs + 1] to outputs [graphs, classes];
            if the data set has features of edges, they are the fourth argument, [edges, D].
        dataset: the data set, whose targets and metric decide loss and scores.
        optimizer: learning rate, weight decay, schedule.
        max_steps: the step at which a schedule ends, see TaskModule.

    Attributes:
        call: calls the model with a batch; `gnnsparse.fit` sets it for models that take something else.

    Raises:
        ValueError: as a TaskModule does; or the metric does not go with the targets.
    """

    call: Callable[[Any, Any], torch.Tensor] = staticmethod(call_with_operand)

    def training_step(self, batch: GraphsBatch) -> torch.Tensor:
        """Return the mean loss of the batch, a scalar on the device."""
        with ignoring_padding(self.model, *batch.paddings):
            outputs = self.call(self.model, batch)
        return self._loss(outputs, batch.y)

    def scored(self, batch: GraphsBatch) -> GraphData:
        """Return the data module, which has the graphs of all parts."""
        return batch.data

    def score(self, part: str, scored: GraphData) -> dict[str, torch.Tensor]:
        """Return "loss" and the scores of all graphs of a part, scalars on the device."""
        chunks = list(scored.chunks(part))
        outputs = [self.call(self.model, chunk).float() for chunk in chunks]
        return self.score_outputs(part, torch.cat(outputs), torch.cat([chunk.y for chunk in chunks]))


class GraphTask(MiniBatchTask[GraphDataset, GraphData]):
    """The task "graph": graphs with a class, several labels, or numbers to predict."""

    name = "graph"
    dataset = GraphDataset
    data = GraphData
    module = GraphPredictor
    prepared = "graphs"
    weighs_classes = True

    def model_options(self, dataset: GraphDataset) -> dict[str, Any]:
        """Return the number of features of an edge, if edges have some."""
        return edge_options(dataset)

    def check(self, run: RunOptions) -> None:
        """Raise ValueError for a row order or a format that a batch of graphs can't be gathered from."""
        super().check(run)
        check_preprocess(run.preprocess)

    def predict(self, model: LoadedModel, data: GraphData) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return "graphs" (numbers), what `arrays_of` has of them, and the scores of parts with labels."""
        found = [
            model.predict(chunk.x, chunk.adj, graph_ptr=chunk.graph_ptr, edge_attr=chunk.edge_attr)
            for chunk in data.all_graphs()
        ]
        logits = torch.cat([one.logits for one in found])
        whole = Prediction(logits, model.recipe.several_labels, model.recipe.regression)
        scores = {
            part: {
                name: float(score(logits[ids.to(logits.device)], data.y[ids.to(data.device)]))
                for name, score in make_scores(data.dataset).items()
            }
            for part, ids in data.parts.items()
            if ids.numel()
        }
        return {"graphs": torch.arange(data.dataset.num_graphs), **arrays_of(whole)}, scores

    def make_module(self, model: torch.nn.Module, data: GraphData, run: RunOptions) -> TaskModule:
        """Make the Lightning module; raise ValueError if nothing is known of the graphs of a part."""
        for name, ids in data.parts.items():
            if ids.numel() == 0:
                bad_value(f"{name}_mask", "has no graph of which a target is known; accepted: one or more")
        return super().make_module(model, data, run)

    def names(self, dataset: GraphDataset) -> dict[str, np.ndarray]:
        """Return "ids", the names of the graphs, and "class_names", if the data set has such."""
        return texts_of(ids=dataset.graph_ids, class_names=dataset.class_names)

    def found_options(self, dataset: GraphDataset) -> dict[str, Any]:
        """Return the task, what the labels are, and what the features are made of."""
        return options_found(self.name, dataset)

    def describe(self, data: GraphData, run: RunOptions) -> dict[str, Any]:
        """Return the numbers of graphs, of nodes, and of the nonzeros of all operands."""
        dataset = data.dataset
        return {"graphs": dataset.num_graphs, "nodes": dataset.num_nodes, "nonzeros": data.adj.nnz}


register_task(GraphTask())
