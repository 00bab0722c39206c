"""PreparedData, the base class of the tasks' data modules: an operand, prepared and put on a device."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch

from gnnsparse.data.datasets import check_seed
from gnnsparse.data.splits import split_generator
from gnnsparse.distributed.training import Peers
from gnnsparse.errors import check_integer
from gnnsparse.precision import Precision
from gnnsparse.preprocess.api import prepare
from gnnsparse.sampling import prefetch
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.train.module import TaskModule, counts_steps, makes_blocks
from gnnsparse.train.settings import PreprocessConfig

__all__ = [
    "Feed", "MiniBatchData", "PreparedData", "RepeatedBatch", "StepInput", "repeated", "shuffled_epochs",
]  # fmt: skip


@dataclass(frozen=True, eq=False)
class StepInput:
    """The batch of a step.

    Attributes:
        single: makes the batch for a step that is launched by itself.
        place: what steps of one captured graph have in common; None: the step can't be captured.
        load: puts into place what the batch is made of, before the graph of its step is replayed.
        placed: makes the batch of what `load` has put into place, as a part of the step that is captured.
    """

    single: Callable[[], Any]
    place: Hashable | None = None
    load: Callable[[], None] = lambda: None
    placed: Callable[[], Any] = lambda: None


@dataclass(frozen=True, eq=False)
class Feed:
    """The batches of a run in blocks.

    Attributes:
        steps: yields the input of each step without end, from the trainer's next one on.
        validation: the batch that `TaskModule.validation_step` takes.
        captures_validation: whether the arrays of that batch keep their places, and a validation comes after
            so few steps that capturing it is worth the memory that its graph keeps.
    """

    steps: Iterator[StepInput]
    validation: Any
    captures_validation: bool = True


def repeated(batch: Any) -> Feed:
    """Returns the feed of a run whose every step takes one batch, which holds all of the data."""

    def steps() -> Iterator[StepInput]:
        while True:
            yield one

    one = StepInput(lambda: batch, "all", placed=lambda: batch)
    return Feed(steps(), batch)


class RepeatedBatch:
    """A data loader that yields one batch, which holds all of the data, one time or without end.

    Args:
        batch: the batch.
        endless: whether the batch is repeated without end.
    """

    def __init__(self, batch: Any, endless: bool) -> None:
        self._batch, self._endless = batch, endless

    def __iter__(self) -> Iterator[Any]:
        yield self._batch
        while self._endless:
            yield self._batch


class PreparedData(pl.LightningDataModule):
    """A Lightning data module with one operand, which is prepared and put on a device when it is made.

    Args:
        graph: the graph to prepare.
        values: weights of the operand: "gcn", "mean" or None (see `gnnsparse.prepare`).
        precision: precision of the operand's products.
        device: the device for the operand.
        preprocess: options of `gnnsparse.prepare`; None: their defaults.

    Attributes:
        dataset: the data set, which subclasses set.
        adj: the operand.
        precision: precision of the operand's products.
        device: the device of the operand.
        preprocess_seconds: wall time of preparing the operand, or of reading it from the cache.
        cache_hit: whether the operand was read from the cache.
        peers: the ranks that train together; None: this process trains alone.
    """

    dataset: Any
    adj: SparseOperand
    peers: Peers | None = None

    def __init__(
        self,
        graph: SparseGraph,
        values: str | None,
        precision: Precision | str,
        device: torch.device | str,
        preprocess: PreprocessConfig | None,
    ) -> None:
        super().__init__()
        preprocess = preprocess or PreprocessConfig()
        self.precision = Precision.parse(precision)
        self.device = torch.empty(0, device=device).device  # "cuda" -> "cuda:0"
        start = time.perf_counter()
        self.adj = self._prepare(graph, values, preprocess)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.preprocess_seconds = time.perf_counter() - start
        self.cache_hit = self.adj.cache_hit

    def _prepare(self, graph: SparseGraph, values: str | None, preprocess: PreprocessConfig) -> SparseOperand:
        """Makes the operand on the device."""
        return prepare(
            graph.to(self.device),  # a GPU sorts the edges of a large graph much faster
            values=values,
            precision=self.precision,
            reorder=preprocess.reorder,
            format=preprocess.format,
            balance=preprocess.balance,
            cache=preprocess.cache,
        ).to(self.device)

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimiser steps of an epoch."""
        return 1

    @property
    def fixed_batch(self) -> Any:
        """The batch of every training step and validation; None: batches differ."""
        return None

    def feed_obstacle(self, module: TaskModule) -> str | None:
        """Returns why steps of a module on this data can't be captured; None: `feed` feeds them."""
        return "the batches of this task differ from step to step" if self.fixed_batch is None else None

    def padding_obstacle(self, module: TaskModule) -> str | None:
        """Returns why a module can't be trained on batches with rows that are padding; None: it can.

        Its model has to have `ignores_padding`. In a precision of 8 bits no module can, because the scales of
        features are taken over all rows.
        """
        if not getattr(module.model, "ignores_padding", False):
            return f"{type(module.model).__name__} does not say that it ignores padding (ignores_padding)"
        if self.precision.quantizes:
            return f"in {self.precision.value} features are scaled by all rows, those of padding included"
        return None

    def feed(self) -> Feed:
        """Returns the feed of a run in blocks, if nothing forbids it (`feed_obstacle`)."""
        return repeated(self.fixed_batch)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Returns the batch itself, which is on the device already.

        Raises:
            ValueError: the trainer runs on another device than that of this data.
        """
        if device.type != self.device.type:
            raise ValueError(f"device: the trainer runs on {device}, the data was put on {self.device}")
        return batch


class MiniBatchData(PreparedData):
    """A data module whose steps take mini-batches of items, in an order that differs between epochs.

    The order depends on the seed and the number of the epoch alone. In a resumed run it begins with the batch
    after the last one that the checkpoint was trained on. Subclasses say how many items there are to train on
    (`train_items`), and make batches of them (`gather`) and of the parts to score (`chunks`).

    Args:
        graph, values, precision, device, preprocess: see PreparedData.
        batch_size: items of a training step; the last step of an epoch may have fewer.
        seed: seed of the order.

    Attributes:
        batch_size, seed: the arguments.
        prefetch: batches that a thread makes ahead; 0: there is no thread.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """

    prefetch = 0

    def __init__(
        self,
        graph: SparseGraph,
        values: str | None,
        precision: Precision | str,
        device: torch.device | str,
        preprocess: PreprocessConfig | None,
        *,
        batch_size: int,
        seed: int,
    ) -> None:
        self.batch_size, self.seed = check_integer("batch_size", batch_size), check_seed(seed)
        super().__init__(graph, values, precision, device, preprocess)

    @property
    def train_items(self) -> int:
        """Number of items to train on."""
        raise NotImplementedError

    def gather(self, part: str, ids: torch.Tensor) -> Any:
        """Returns a batch.

        Args:
            part: part of the split.
            ids: int64 [batch] on the CPU, indices of the items in the part.
        """
        raise NotImplementedError

    def gather_all(self, part: str, batches: Sequence[torch.Tensor]) -> Iterator[Any]:
        """Yields batches, each for the indices of its items, as `gather` takes them."""
        return (self.gather(part, ids) for ids in batches)

    def training_batches(self, first: int, batches: Sequence[torch.Tensor]) -> Iterator[Any]:
        """Yields the batches of training steps.

        Args:
            first: number of the first of the steps, counted from 0 over all epochs.
            batches: int64 [batch] on the CPU for each step, indices of its items.
        """
        return self.gather_all("train", batches)

    def chunks(self, part: str) -> Iterator[Any]:
        """Yields all items of a part in their order, in batches."""
        raise NotImplementedError

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimiser steps in an epoch, a pass over all items to train on."""
        return -(-self.train_items // self.batch_size)

    def train_dataloader(self) -> Any:
        """Returns a loader of batches: without end for the trainer of `fit`, which counts the steps."""
        if makes_blocks(self.trainer):
            return RepeatedBatch(self, endless=True)  # the feed has the batches
        return _ShuffledBatches(self)

    def val_dataloader(self) -> Any:
        """Returns a loader of one batch; the validation step gets the others from the data module."""
        return _FirstChunk(self, "val")

    def test_dataloader(self) -> Any:
        """Returns a loader of one batch; the test step gets the others from the data module."""
        return _FirstChunk(self, "test")


class _ShuffledBatches:
    """A loader of the training items: without end, or of one epoch for a trainer of the user's own."""

    def __init__(self, data: MiniBatchData) -> None:
        self._data = data

    def __iter__(self) -> Iterator[Any]:
        data = self._data
        return prefetch(self._batches(), data.prefetch, data.device)

    def _batches(self) -> Iterator[Any]:
        data = self._data
        for first, batches in shuffled_epochs(data, data.train_items, data.batch_size, data.seed):
            yield from data.training_batches(first, batches)


def shuffled_epochs(
    data: pl.LightningDataModule, items: int, batch_size: int, seed: int
) -> Iterator[tuple[int, Sequence[torch.Tensor]]]:
    """Yields the steps of epochs from the trainer's next step on: without end for `fit`, else one epoch.

    Args:
        data: the data module, whose trainer says how many steps were made.
        items: number of items, all of which an epoch takes.
        batch_size: items of a step.
        seed: seed of the order, which the seed and the number of the epoch decide.

    Yields:
        The number of the first step, counted from 0 over all epochs, and for each step the indices of its
        items, int64 [at most batch_size] on the CPU.
    """
    step = 0 if data.trainer is None else data.trainer.global_step
    while True:
        epoch, skipped = divmod(step, -(-items // batch_size))
        order = torch.randperm(items, generator=split_generator(epoch, seed))
        batches = order.split(batch_size)[skipped:]
        yield step, batches
        step += len(batches)
        if not counts_steps(data.trainer):
            return


class _FirstChunk:
    """A loader of one batch, for which Lightning calls a step; the step gets all batches from the data."""

    def __init__(self, data: MiniBatchData, part: str) -> None:
        self._data, self._part = data, part

    def __iter__(self) -> Iterator[Any]:
        yield next(iter(self._data.chunks(self._part)))
