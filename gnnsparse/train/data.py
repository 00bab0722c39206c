"""PreparedData, the base class of the tasks' data modules: an operand, prepared and put on a device."""

from __future__ import annotations

import dataclasses
import itertools
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
from gnnsparse.train.module import TaskModule, counts_steps, trains_in_chunks
from gnnsparse.train.settings import PreprocessConfig


@dataclass(frozen=True, eq=False)
class StepInput:
    """The batch of a step: `single` makes it for a step that is launched by itself."""

    # Steps of one captured graph share `buffers`, which `load` fills before it is replayed and of which
    # `static` makes the batch within it. Without buffers the step can't be captured.

    single: Callable[[], Any]
    buffers: Hashable | None = None
    load: Callable[[], object] = lambda: None
    static: Callable[[], Any] = lambda: None


@dataclass(frozen=True, eq=False)
class BatchSource:
    """The inputs of a run's steps without end, and the batch that it validates with."""

    # A validation is captured if its arrays are static, and it is worth the memory that its graph keeps.

    steps: Iterator[StepInput]
    validation: Any
    captures_validation: bool = True


class LazyLoader:
    """A data loader that makes its batches anew each time that they are asked for, by a function."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()


class RepeatedBatch(LazyLoader):
    """A data loader that yields one batch, which holds all of the data, one time or without end.

    Args:
        batch: the batch.
        endless: whether the batch is repeated without end.
    """

    def __init__(self, batch: Any, endless: bool) -> None:
        super().__init__(lambda: itertools.repeat(batch) if endless else iter([batch]))


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
        values: str | None = None,
        precision: Precision | str = "fp32",
        device: torch.device | str = "cpu",
        preprocess: PreprocessConfig | None = None,
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
        """Make the operand on the device."""
        options = dataclasses.asdict(preprocess)
        here = graph.to(self.device)  # a GPU sorts the edges of a large graph much faster
        return prepare(here, values=values, precision=self.precision, **options).to(self.device)

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimiser steps of an epoch."""
        return 1

    @property
    def fixed_batch(self) -> Any:
        """The batch of every training step and validation; None: batches differ."""
        return None

    def capture_obstacle(self, module: TaskModule) -> str | None:
        """Return why steps of a module can't be captured; None: `batch_source` has their batches."""
        return "the batches of this task differ from step to step" if self.fixed_batch is None else None

    def padding_obstacle(self, module: TaskModule) -> str | None:
        """Return why a module can't be trained on batches with padding; None: it can."""
        # In a precision of 8 bits no module can: the scales of features are taken over all rows.
        if not getattr(module.model, "ignores_padding", False):
            return f"{type(module.model).__name__} does not say that it ignores padding (ignores_padding)"
        if self.precision.quantizes:
            return f"in {self.precision.value} features are scaled by all rows, those of padding included"
        return None

    def batch_source(self) -> BatchSource:
        """Return the batches of a run in chunks, if nothing forbids it (`capture_obstacle`)."""
        batch = self.fixed_batch
        step = StepInput(lambda: batch, "all", static=lambda: batch)
        return BatchSource(itertools.repeat(step), batch)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Return the batch, which is there already; raise ValueError for another device."""
        if device.type != self.device.type:
            raise ValueError(f"device: the trainer runs on {device}, the data was put on {self.device}")
        return batch


class MiniBatchData(PreparedData):
    """A data module whose steps take mini-batches of items, in an order that differs between epochs.

    The order depends on the seed and the number of the epoch alone, and a resumed run goes on in it.
    Subclasses say how many items there are to train on (`train_items`), and make batches of them (`gather`)
    and of the parts to score (`chunks`). With `prefetch` a thread makes so many batches ahead.
    """

    prefetch = 0

    def __init__(
        self, graph: SparseGraph, values: str | None = None, *, batch_size: int, seed: int = 0, **options: Any
    ) -> None:
        self.batch_size, self.seed = check_integer("batch_size", batch_size), check_seed(seed)
        super().__init__(graph, values, **options)

    @property
    def train_items(self) -> int:
        """Number of items to train on."""
        raise NotImplementedError

    def gather(self, part: str, ids: torch.Tensor) -> Any:
        """Return a batch of the items of a part with the indices `ids`, int64 [batch] on the CPU."""
        raise NotImplementedError

    def training_batches(self, first: int, batches: Sequence[torch.Tensor]) -> Iterator[Any]:
        """Yield the batches of steps from `first` on, each of items by index, int64 [batch]."""
        return (self.gather("train", ids) for ids in batches)

    def chunks(self, part: str) -> Iterator[Any]:
        """Yield all items of a part in their order, in batches."""
        raise NotImplementedError

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimiser steps in an epoch, a pass over all items to train on."""
        return -(-self.train_items // self.batch_size)

    def train_dataloader(self) -> Any:
        """Return a loader of batches: without end for the trainer of `fit`, which counts the steps."""
        if trains_in_chunks(self.trainer):
            return RepeatedBatch(self, endless=True)  # the batch source has the batches
        return LazyLoader(lambda: prefetch(self._training_batches(), self.prefetch, self.device))

    def _training_batches(self) -> Iterator[Any]:
        for first, batches in shuffled_epochs(self, self.train_items, self.batch_size, self.seed):
            yield from self.training_batches(first, batches)

    def val_dataloader(self) -> Any:
        """Return a loader of one batch; the validation step gets the others from the data module."""
        return LazyLoader(lambda: itertools.islice(self.chunks("val"), 1))

    def test_dataloader(self) -> Any:
        """Return a loader of one batch; the test step gets the others from the data module."""
        return LazyLoader(lambda: itertools.islice(self.chunks("test"), 1))


def shuffled_epochs(
    data: pl.LightningDataModule, items: int, batch_size: int, seed: int
) -> Iterator[tuple[int, Sequence[torch.Tensor]]]:
    """Yield epochs' first steps, counted over all epochs, and the items of each of their steps."""
    # They begin with the trainer's next step, and do not end for `fit`. The order of the items, int64 [at
    # most batch_size] on the CPU, depends on the seed and the number of the epoch.
    step = 0 if data.trainer is None else data.trainer.global_step
    while True:
        epoch, skipped = divmod(step, -(-items // batch_size))
        order = torch.randperm(items, generator=split_generator(epoch, seed))
        batches = order.split(batch_size)[skipped:]
        yield step, batches
        step += len(batches)
        if not counts_steps(data.trainer):
            return
