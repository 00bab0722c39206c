"""The task "graph": classification and regression of graphs, in mini-batches of graphs."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from gnnsparse.data.datasets import GraphDataset
from gnnsparse.data.graph_batches import BlockBatches
from gnnsparse.errors import bad_value
from gnnsparse.nn.padded_norm import ignoring_padding
from gnnsparse.precision import Precision
from gnnsparse.runtime.padding import Padding
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.train.data import Feed, MiniBatchData, StepInput, shuffled_epochs
from gnnsparse.train.metrics import SMALLER_IS_BETTER, known_items, make_loss, make_scores
from gnnsparse.train.module import TaskModule
from gnnsparse.train.plots import confusion_matrix
from gnnsparse.train.settings import OptimizerConfig, PreprocessConfig
from gnnsparse.train.tasks import RunOptions, Task, register_task
from gnnsparse.train.trained import LoadedModel, Prediction, arrays_of

__all__ = ["GraphData", "GraphPredictor", "bound_of"]

_log = logging.getLogger("gnnsparse.train")

#: Arrays are sized for the mean of all batches and so many standard deviations.
_DEVIATIONS = 3
#: Sizes are multiples of this, so that rows of 16-bit numbers are aligned and products are of whole tiles.
_MULTIPLE = 64

#: (x, operand, graph_ptr, targets, padding) -> a batch.
MakeBatch = Callable[[torch.Tensor, SparseOperand, torch.Tensor, torch.Tensor, Padding], Any]


def bound_of(sizes: torch.Tensor, count: int) -> int:
    """Returns a size that batches hardly ever exceed, of `count` items that are drawn without repeats.

    Args:
        sizes: int64 [items], the size of each.
        count: items of a batch, at most as many as there are.
    """
    largest = int(sizes.sort(descending=True).values[:count].sum())
    items, exact = sizes.numel(), sizes.double()
    left = (items - count) / max(items - 1, 1)  # drawing without repeats makes sums differ less
    deviation = float(exact.std(correction=0)) * math.sqrt(count * left)
    return min(largest, math.ceil(count * float(exact.mean()) + _DEVIATIONS * deviation))


class PlacedGraphs:
    """Batches of a fixed number of training graphs, one after another in the same arrays.

    Args:
        blocks: makes the arrays.
        train: int64 [graphs] on the CPU, the numbers of the graphs to train on.
        count: graphs of a batch.
        x: [nodes, features], features of the nodes of all graphs.
        y: targets of all graphs.
        make: makes a batch of its parts.
    """

    def __init__(
        self, blocks: BlockBatches, train: torch.Tensor, count: int, x: torch.Tensor, y: torch.Tensor,
        make: MakeBatch,
    ) -> None:  # fmt: skip
        nodes, edges = (bound_of(sizes, count) for sizes in blocks.sizes(train))
        # One row more than nodes: nonzeros that belong to no row have its column.
        rounded = [-(-size // _MULTIPLE) * _MULTIPLE for size in (nodes + 1, max(edges, 1))]
        self._padded, self._blocks = blocks.padded(count, *rounded), blocks
        self._x, self._y, self._make = x, y, make

    def fits(self, graphs: torch.Tensor) -> bool:
        """Returns whether the arrays have room for graphs, int64 [count] on the CPU."""
        sizes = [int(size.sum()) for size in self._blocks.sizes(graphs)]
        return all(size <= most for size, most in zip(sizes, self._padded.capacity, strict=True))

    def load(self, graphs: torch.Tensor) -> None:
        """Puts the numbers of graphs into place, int64 [count] on the CPU."""
        self._padded.chosen[:-1].copy_(graphs, non_blocking=True)

    def batch(self) -> Any:
        """Puts the batch together, of the graphs that `load` was given."""
        padded = self._padded
        padded.assemble()
        x = self._x.index_select(0, padded.rows.clamp(max=self._x.shape[0] - 1))
        # Whatever padding holds must be finite, since weights' gradients are products with zeros there.
        x.masked_fill_(~padded.padding.real, 0)
        y = self._y.index_select(0, padded.chosen[:-1])
        return self._make(x, padded.adj, padded.graph_ptr, y, padded.padding)


@dataclass(frozen=True, eq=False)
class GraphInputs:
    """Makes the inputs of steps on graphs.

    Attributes:
        train: int64 [graphs] on the CPU, the numbers of the graphs to train on.
        place: makes the arrays for batches of a number of graphs.
        single: makes a batch of the graphs with some indices in `train`.
    """

    train: torch.Tensor
    place: Callable[[int], PlacedGraphs]
    single: Callable[[torch.Tensor], Any]

    def of(self, batches: Iterable[torch.Tensor]) -> Iterator[StepInput]:
        """Yields the inputs of steps.

        Args:
            batches: int64 [batch] on the CPU for each step, indices in `train`.
        """
        places: dict[int, PlacedGraphs] = {}
        was_large = False
        for ids in batches:
            count, graphs = ids.numel(), self.train[ids]
            if count not in places:
                places[count] = self.place(count)
            place, single = places[count], partial(self.single, ids)
            if place.fits(graphs):
                yield StepInput(single, place, partial(place.load, graphs), place.batch)
                continue
            if not was_large:
                _log.info("trainer.capture: a batch is larger than most; such steps are launched one by one")
            was_large = True
            yield StepInput(single)


#: Most nodes of a batch that is scored, unless a single graph has more.
_SCORED_NODES = 2**16
#: Most nodes and nonzeros of batches that are put together at once, unless a single batch has more.
_LOT_ELEMENTS = 2**19


@dataclass(frozen=True, eq=False)
class GraphsBatch:
    """A batch of graphs on one device, with n nodes together.

    Attributes:
        x: [n, F], features of the nodes.
        adj: the operand of the batch, n x n, block-diagonal.
        graph_ptr: int64 [graphs + 1], the first node of each graph, and n.
        y: [graphs] or [graphs, columns], targets.
        data: the data module of the batch, from which validation gets the graphs of other parts.
        padding: which rows of `x` and `adj` are nodes, if there are more rows (gnnsparse.runtime.padding);
            None: all are. graph_ptr then ends with the number of nodes.
    """

    x: torch.Tensor
    adj: SparseOperand
    graph_ptr: torch.Tensor
    y: torch.Tensor
    data: GraphData
    padding: Padding | None = None


class GraphData(MiniBatchData):
    """Lightning data module of many graphs, which are prepared together and put on a device when it is made.

    A batch is put together on the device by offsets (gnnsparse.data.BlockBatches). The batches of the
    validation and the test part are kept.

    Args:
        dataset: the graphs with their features, targets and split.
        batch_size: graphs of a training step; the last step of an epoch may have fewer.
        seed: seed of the order of the graphs.
        values: weights of the operands: "gcn", "mean" or None (see `gnnsparse.prepare`).
        precision: precision of the operands' products.
        device: the device, on which training runs.
        preprocess: options of `gnnsparse.prepare`, with reorder="none" and format="auto" or "csr"; None:
            their defaults.

    Attributes:
        dataset: the data set.
        adj: the operand of all graphs.
        precision, device, preprocess_seconds, cache_hit: see PreparedData.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range, or nothing is known of the graphs of a part.
    """

    def __init__(
        self,
        dataset: GraphDataset,
        *,
        batch_size: int = 32,
        seed: int = 0,
        values: str | None = None,
        precision: Precision | str = "fp32",
        device: torch.device | str = "cpu",
        preprocess: PreprocessConfig | None = None,
    ) -> None:
        preprocess = preprocess or PreprocessConfig()
        check_preprocess(preprocess)
        preprocess = dataclasses.replace(preprocess, format="csr")
        super().__init__(
            dataset.graph, values, precision, device, preprocess, batch_size=batch_size, seed=seed
        )
        self.dataset = dataset
        self._blocks = BlockBatches(self.adj, dataset.graph_ptr)
        self._parts = {name: known_items(ids, dataset.y.cpu()) for name, ids in dataset.parts.items()}
        for name, ids in self._parts.items():
            if ids.numel() == 0:
                bad_value(f"{name}_mask", "has no graph of which a target is known; accepted: one or more")
        dtype = self.precision.storage if self.device.type == "cuda" else torch.float32
        self._x, self._y = dataset.x.to(self.device, dtype), dataset.y.to(self.device)
        self._kept: dict[str, list[GraphsBatch]] = {}

    @property
    def train_items(self) -> int:
        """Number of graphs to train on."""
        return self._parts["train"].numel()

    def gather(self, part: str, ids: torch.Tensor) -> GraphsBatch:
        """Returns a batch of graphs.

        Args:
            part: part of the split.
            ids: int64 [batch] on the CPU, indices of the graphs in the part.
        """
        (batch,) = self.gather_all(part, [ids])
        return batch

    def gather_all(self, part: str, batches: Sequence[torch.Tensor]) -> Iterator[GraphsBatch]:
        """Yields batches of graphs; small ones are put together several at a time."""
        for lot in self._lots(part, batches):
            graphs = self._parts[part][torch.cat(lot)]
            sizes = [ids.numel() for ids in lot]
            targets = self._y.index_select(0, graphs.to(self.device, non_blocking=True)).split(sizes)
            for batch, y in zip(self._blocks.split(graphs, sizes), targets, strict=True):
                yield GraphsBatch(self._x.index_select(0, batch.nodes), batch.adj, batch.graph_ptr, y, self)

    def feed_obstacle(self, module: TaskModule) -> str | None:
        """Returns why steps of a module can't be captured; None: `feed` feeds them.

        Batches that keep their places have rows that are padding.
        """
        if type(module).training_step is not GraphPredictor.training_step:
            return f"{type(module).__name__}.training_step is not that of GraphPredictor, which knows padding"
        return self.padding_obstacle(module)

    def feed(self) -> Feed:
        """Returns the feed of a run in blocks, whose batches keep their places."""
        train = self._parts["train"]
        inputs = GraphInputs(train, self.placed, lambda ids: self.gather("train", ids))
        epochs = shuffled_epochs(self, train.numel(), self.batch_size, self.seed)
        return Feed(
            inputs.of(ids for _, batches in epochs for ids in batches), next(iter(self.chunks("val")))
        )

    def placed(self, count: int) -> PlacedGraphs:
        """Returns arrays for batches of `count` graphs to train on, which keep their places."""
        return PlacedGraphs(
            self._blocks, self._parts["train"], count, self._x, self._y,
            lambda x, adj, graph_ptr, y, padding: GraphsBatch(x, adj, graph_ptr, y, self, padding),
        )  # fmt: skip

    def _lots(self, part: str, batches: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
        """Yields consecutive batches as long as they have few nodes and nonzeros together."""
        lot: list[torch.Tensor] = []
        elements = 0
        for ids in batches:
            count = self._blocks.elements(self._parts[part][ids])
            if lot and elements + count > _LOT_ELEMENTS:
                yield lot
                lot, elements = [], 0
            lot.append(ids)
            elements += count
        if lot:
            yield lot

    def chunks(self, part: str) -> Iterator[GraphsBatch]:
        """Yields all graphs of a part in their order, in batches."""
        if part == "train":
            return self.gather_all(part, self._cut(part))
        if part not in self._kept:
            self._kept[part] = list(self.gather_all(part, self._cut(part)))
        return iter(self._kept[part])

    def _cut(self, part: str) -> list[torch.Tensor]:
        """Cuts the graphs of a part into ranges of not too many nodes."""
        graphs = self._parts[part]
        ptr = self.dataset.graph_ptr.cpu()
        ends = (ptr[graphs + 1] - ptr[graphs]).cumsum(0)
        numbers = torch.arange(graphs.numel(), dtype=torch.int64, device="cpu")
        group = (ends - 1) // _SCORED_NODES
        return list(numbers.split(torch.unique_consecutive(group, return_counts=True)[1].tolist()))


def check_preprocess(preprocess: PreprocessConfig) -> None:
    """Raises ValueError for a row order or a format that a batch of graphs can't be gathered from."""
    if preprocess.reorder != "none":
        bad_value("preprocess.reorder", f"got {preprocess.reorder!r} for batches of graphs; accepted: none")
    if preprocess.format not in ("auto", "csr"):
        bad_value(
            "preprocess.format", f"got {preprocess.format!r} for batches of graphs; accepted: auto, csr"
        )


class GraphPredictor(TaskModule):
    """Trains a model on graphs, by the loss of `gnnsparse.train.metrics.make_loss`.

    Args:
        model: maps features [nodes, F], an operand and graph_ptr [graphs + 1] to outputs [graphs, classes].
            With `optimizer.decay="first"` it must have an attribute `first_layer`, a module.
        dataset: the data set, whose targets and metric decide loss and scores.
        optimizer: learning rate, weight decay, schedule.
        max_steps: the step at which a schedule ends: epochs times GraphData.steps_per_epoch.

    Attributes:
        score_name: name of the score by which the best epoch is chosen.

    Raises:
        ValueError: the weight decay needs a `first_layer`, which the model lacks; or the metric does not go
            with the targets.
    """

    def __init__(
        self, model: torch.nn.Module, dataset: GraphDataset, optimizer: OptimizerConfig, max_steps: int
    ) -> None:
        super().__init__(model, optimizer, max_steps)
        self._dataset = dataset
        self._scores, self._loss = make_scores(dataset), make_loss(dataset)
        self.score_name = next(iter(self._scores))
        self.smaller_is_better = self.score_name in SMALLER_IS_BETTER

    def training_step(self, batch: GraphsBatch) -> torch.Tensor:
        """Returns the mean loss of the batch, a scalar on the device."""
        with ignoring_padding(self.model, batch.padding):
            outputs = self.model(batch.x, batch.adj, batch.graph_ptr)
        return self._loss(outputs, batch.y)

    def validation_step(self, batch: GraphsBatch) -> dict[str, torch.Tensor]:
        """Returns "loss" and the scores of all validation graphs, scalars on the device."""
        outputs, y = self._outputs(batch, "val")
        return {"loss": self._loss(outputs, y), **{k: score(outputs, y) for k, score in self._scores.items()}}

    def test_step(self, batch: GraphsBatch) -> None:
        """Logs the scores of all parts of the split as "part/score"."""
        for part in ("train", "val", "test"):
            outputs, y = self._outputs(batch, part)
            scores = {f"{part}/{name}": score(outputs, y) for name, score in self._scores.items()}
            self.log_scores(scores)
            if part == "test":
                self.confusion = confusion_matrix(self._dataset, outputs, y)

    def _outputs(self, batch: GraphsBatch, part: str) -> tuple[torch.Tensor, torch.Tensor]:
        chunks = list(batch.data.chunks(part))
        outputs = [self.model(chunk.x, chunk.adj, chunk.graph_ptr).float() for chunk in chunks]
        return torch.cat(outputs), torch.cat([chunk.y for chunk in chunks])


class GraphTask(Task[GraphDataset, GraphData]):
    """The task "graph": graphs with a class, several labels, or numbers to predict."""

    name = "graph"
    dataset = GraphDataset
    prepared = "graphs"

    def check(self, run: RunOptions) -> None:
        """Raises ValueError for a row order or a format that a batch of graphs can't be gathered from."""
        super().check(run)
        check_preprocess(run.preprocess)

    def identity(self, run: RunOptions) -> dict[str, Any]:
        """Returns the numbers that the order of the graphs depends on."""
        return {"batch_size": run.trainer.batch_size, "order": run.seed}

    def model_sizes(self, dataset: GraphDataset) -> tuple[int, int]:
        """Returns the number of features of a node, and the number of classes, labels or numbers."""
        return dataset.num_features, dataset.num_classes

    def make_data(self, dataset: GraphDataset, run: RunOptions) -> GraphData:
        """Makes the data module: the graphs with the weights that the model needs, on the run's device."""
        return GraphData(
            dataset,
            batch_size=run.trainer.batch_size,
            seed=run.seed,
            values=run.values,
            precision=run.precision,
            device=run.device,
            preprocess=run.preprocess,
        )

    def make_module(self, model: torch.nn.Module, data: GraphData, run: RunOptions) -> GraphPredictor:
        """Makes the Lightning module that trains the model."""
        steps = run.trainer.max_epochs * data.steps_per_epoch
        return GraphPredictor(model, data.dataset, run.optimizer, steps)

    def several_labels(self, dataset: GraphDataset) -> bool:
        """Returns whether a graph can have several labels."""
        return dataset.multi_label

    def regression(self, dataset: GraphDataset) -> bool:
        """Returns whether the model predicts numbers."""
        return dataset.regression

    def predict(self, model: LoadedModel, data: GraphData) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Returns "graphs" (numbers), "classes" and "probabilities" of the test part, and its scores.

        A model that predicts numbers has "values" in place of classes and probabilities.
        """
        chunks = list(data.chunks("test"))
        found = [model.predict(chunk.x, chunk.adj, graph_ptr=chunk.graph_ptr) for chunk in chunks]
        logits, y = torch.cat([one.logits for one in found]), torch.cat([chunk.y for chunk in chunks])
        whole = Prediction(logits, model.recipe.several_labels, model.recipe.regression)
        scores = {name: float(score(logits, y)) for name, score in make_scores(data.dataset).items()}
        graphs = known_items(data.dataset.parts["test"], data.dataset.y.cpu())
        return {"graphs": graphs, **arrays_of(whole)}, {"test": scores}

    def describe(self, data: GraphData, run: RunOptions) -> dict[str, Any]:
        """Returns the numbers of graphs, of nodes, and of the nonzeros of all operands."""
        dataset = data.dataset
        return {"graphs": dataset.num_graphs, "nodes": dataset.num_nodes, "nonzeros": data.adj.nnz}


register_task(GraphTask())
