"""A data set of sequences on a device, in mini-batches that share one prepared pattern."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse.data import SequenceDataset, SequencePart
from gnnsparse.data.checks import check_seed
from gnnsparse.data.splits import split_generator
from gnnsparse.errors import bad_value, check_integer
from gnnsparse.graph import SparseGraph
from gnnsparse.operand import SparseOperand
from gnnsparse.precision import Precision
from gnnsparse.training.config import PreprocessConfig
from gnnsparse.training.data import PreparedData

__all__ = ["SequenceBatch", "SequenceData"]


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
        dataset: the task.
        pattern: [length, length], as from gnnsparse.masks.
        batch_size: sequences of a training step; the last one of an epoch may have fewer.
        seed: of the order of the sequences.
        precision: of the operand; see gnnsparse.Precision.
        device: where pattern and tokens go and training runs.
        preprocess: how to prepare the pattern.

    Attributes:
        adj, precision, device, preprocess_seconds, cache_hit: as in PreparedData.

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
