"""Classification of sequences, in mini-batches that share one prepared attention pattern."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.data import SequenceDataset, SequencePart, load_sequences
from gnnsparse.data.checks import check_seed
from gnnsparse.data.splits import split_generator
from gnnsparse.errors import bad_value, check_choice, check_integer, naming
from gnnsparse.graph import SparseGraph
from gnnsparse.masks import PATTERNS
from gnnsparse.operand import SparseOperand
from gnnsparse.precision import Precision
from gnnsparse.tasks import register_task
from gnnsparse.training.config import OptimizerConfig, PreprocessConfig
from gnnsparse.training.data import PreparedData
from gnnsparse.training.module import TaskModule
from gnnsparse.training.task import RunOptions, Task, text_of

__all__ = ["SequenceBatch", "SequenceClassifier", "SequenceData", "SequenceTask", "make_pattern"]


@dataclass(frozen=True, eq=False)
class SequenceBatch:
    """Some sequences, on one device.

    Attributes:
        tokens: int16 [batch, length].
        padding: bool [batch, length], True where there is no token; None where no sequence of the
            data set is padded.
        y: int64 [batch].
        adj: the prepared pattern, [length, length].
        data: what the batch is of: validation needs the other parts.
    """

    tokens: torch.Tensor
    padding: torch.Tensor | None
    y: torch.Tensor
    adj: SparseOperand
    data: SequenceData


class _Batches:
    """The training part in random order, without end; each epoch has its own order.

    A resumed run goes on where the checkpoint was written.
    """

    def __init__(self, data: SequenceData) -> None:
        self._data = data

    def __iter__(self) -> Iterator[SequenceBatch]:
        data = self._data
        step = 0 if data.trainer is None else data.trainer.global_step
        while True:
            epoch, skipped = divmod(step, data.steps_per_epoch)
            order = torch.randperm(len(data.dataset.train), generator=split_generator(epoch, data.seed))
            for ids in order.split(data.batch_size)[skipped:]:
                yield data.gather("train", ids)
                step += 1


class _Once:
    """One batch, for Lightning's loops: the module asks its data for all of them."""

    def __init__(self, data: SequenceData, part: str) -> None:
        self._data, self._part = data, part

    def __iter__(self) -> Iterator[SequenceBatch]:
        yield next(self._data.chunks(self._part))


class SequenceData(PreparedData):
    """Prepares a pattern and puts it and the tokens on a device, once; hands out mini-batches.

    Args:
        dataset: the sequences with their classes and split.
        pattern: [length, length], made by gnnsparse.masks, for instance.
        batch_size: sequences of a training step; the last one of an epoch may have fewer.
        seed: seed of the order of the sequences.
        precision: precision of the operand's products; see gnnsparse.Precision.
        device: where pattern and tokens go and training runs.
        preprocess: how the pattern is prepared.

    Attributes:
        adj, precision, device, preprocess_seconds, cache_hit: see PreparedData.

    Raises:
        TypeError, ValueError: an argument is of another type or out of range, or the pattern has
            another size than the sequences.
    """

    def __init__(
        self,
        dataset: SequenceDataset,
        pattern: SparseGraph,
        *,
        batch_size: int = 32,
        seed: int = 0,
        precision: Precision | str = "fp32",
        device: torch.device | str = "cpu",
        preprocess: PreprocessConfig | None = None,
    ) -> None:
        length = dataset.length
        if (pattern.num_rows, pattern.num_cols) != (length, length):
            bad_value("pattern", f"is {pattern.num_rows} x {pattern.num_cols}; accepted: {length} x {length}")
        batch_size, seed = check_integer("batch_size", batch_size), check_seed(seed)
        super().__init__(pattern, None, precision, device, preprocess)
        self.dataset, self.batch_size, self.seed = dataset, batch_size, seed
        self._parts = {
            name: SequencePart(part.tokens.to(self.device), part.y.to(self.device))
            for name, part in dataset.parts.items()
        }
        self._padded = any(bool((part.tokens == 0).any()) for part in dataset.parts.values())

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps in which every training sequence is seen once."""
        return -(-len(self.dataset.train) // self.batch_size)

    def gather(self, part: str, ids: torch.Tensor) -> SequenceBatch:
        """The sequences of a part with these numbers."""
        source, ids = self._parts[part], ids.to(self.device)
        tokens = source.tokens[ids]
        padding = tokens == 0 if self._padded else None
        return SequenceBatch(tokens, padding, source.y[ids], self.adj, self)

    def chunks(self, part: str) -> Iterator[SequenceBatch]:
        """All sequences of a part in their order, in batches."""
        for ids in torch.arange(len(self._parts[part])).split(self.batch_size):
            yield self.gather(part, ids)

    def train_dataloader(self) -> Any:
        """Batches without end: the trainer counts the steps."""
        return _Batches(self)

    def val_dataloader(self) -> Any:
        """One batch, which stands for all of them."""
        return _Once(self, "val")

    def test_dataloader(self) -> Any:
        """One batch, which stands for all of them."""
        return _Once(self, "test")


class SequenceClassifier(TaskModule):
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


def make_pattern(options: Mapping[str, Any], length: int) -> SparseGraph:
    """The attention pattern of a run for sequences of a length.

    Args:
        options: the name of a pattern in gnnsparse.masks.PATTERNS as "name", and what else it takes.

    Raises:
        TypeError, ValueError: an option is not what is accepted.
    """
    with naming("pattern"):
        name = check_choice("name", options.get("name"), tuple(PATTERNS))
        return PATTERNS[name](length, **{key: value for key, value in options.items() if key != "name"})


class SequenceTask(Task[SequenceDataset, SequenceData]):
    """Classification of sequences by a model with attention over a pattern, the group `pattern`."""

    name = "sequence"
    prepared = "pattern"

    def check(self, run: RunOptions) -> None:
        """Makes the smallest pattern, which complains of its options."""
        make_pattern(run.groups["pattern"], 1)

    def identity(self, run: RunOptions) -> dict[str, Any]:
        """The pattern and what decides the order of the sequences."""
        pattern = text_of(run.groups["pattern"])
        return {"pattern": pattern, "batch_size": run.trainer.batch_size, "order": run.seed}

    def load(self, name: str, options: Mapping[str, Any]) -> SequenceDataset:
        """The data set of a name; see gnnsparse.data.load_sequences."""
        return load_sequences(name, **options)

    def model_sizes(self, dataset: SequenceDataset) -> tuple[int, int]:
        """The size of the vocabulary, and classes."""
        return dataset.vocabulary, dataset.num_classes

    def make_data(self, dataset: SequenceDataset, run: RunOptions) -> SequenceData:
        """The sequences and the pattern, on the device of the run."""
        return SequenceData(
            dataset,
            make_pattern(run.groups["pattern"], dataset.length),
            batch_size=run.trainer.batch_size,
            seed=run.seed,
            precision=run.precision,
            device=run.device,
            preprocess=run.preprocess,
        )

    def make_module(self, model: torch.nn.Module, data: SequenceData, run: RunOptions) -> SequenceClassifier:
        """The model as a classifier of sequences."""
        steps = run.trainer.max_epochs * data.steps_per_epoch
        return SequenceClassifier(model, data.dataset, run.optimizer, steps)

    def describe(self, data: SequenceData, run: RunOptions) -> dict[str, Any]:
        """Training sequences and their length, the pattern and its nonzeros."""
        return {
            "sequences": len(data.dataset.train),
            "length": data.dataset.length,
            "pattern": run.groups["pattern"]["name"],
            "nonzeros": data.adj.nnz,
        }


register_task(SequenceTask())
