"""The task "sequence": classification of sequences, in mini-batches that share one attention pattern."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.data import SequenceDataset, SequencePart
from gnnsparse.errors import bad_value, check_choice, naming
from gnnsparse.patterns.masks import PATTERNS
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.train.data import MiniBatchData
from gnnsparse.train.module import ScoredModule
from gnnsparse.train.tasks import MiniBatchTask, RunOptions, register_task, text_of
from gnnsparse.train.trained import LoadedModel, arrays_of


@dataclass(frozen=True, eq=False)
class SequenceBatch:
    """A batch of sequences on one device.

    Attributes:
        tokens: int16 [batch, length].
        padding: bool [batch, length], True for padding; None if no sequence of the data set is padded.
        y: int64 [batch], classes.
        adj: the prepared pattern, [length, length].
        data: the data module of the batch, from which validation gets the sequences of other parts.
    """

    tokens: torch.Tensor
    padding: torch.Tensor | None
    y: torch.Tensor
    adj: SparseOperand
    data: SequenceData


class SequenceData(MiniBatchData):
    """Lightning data module of sequences and a pattern, which are put on a device when it is made.

    Args:
        dataset: the sequences with their classes and split.
        pattern: the attention pattern, [length, length], for example made by gnnsparse.masks.
        batch_size: sequences of a training step; the last step of an epoch may have fewer.
        options: seed, precision, device and preprocess, see MiniBatchData.

    Attributes:
        adj, precision, device, preprocess_seconds, cache_hit: see PreparedData.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range, or the pattern is of another length than the sequences.
    """

    def __init__(
        self, dataset: SequenceDataset, pattern: SparseGraph, *, batch_size: int = 32, **options: Any
    ) -> None:
        length = dataset.length
        if (pattern.num_rows, pattern.num_cols) != (length, length):
            bad_value("pattern", f"is {pattern.num_rows} x {pattern.num_cols}; accepted: {length} x {length}")
        super().__init__(pattern, batch_size=batch_size, **options)
        self.dataset = dataset
        self._parts = {
            name: SequencePart(part.tokens.to(self.device), part.y.to(self.device))
            for name, part in dataset.parts.items()
        }
        self._padded = any(bool((part.tokens == 0).any()) for part in dataset.parts.values())

    @property
    def train_items(self) -> int:
        """Number of training sequences."""
        return len(self.dataset.train)

    def gather(self, part: str, ids: torch.Tensor) -> SequenceBatch:
        """Return a batch of the sequences of a part with the indices `ids`, int64 [batch]."""
        source, ids = self._parts[part], ids.to(self.device)
        tokens = source.tokens[ids]
        padding = tokens == 0 if self._padded else None
        return SequenceBatch(tokens, padding, source.y[ids], self.adj, self)

    def chunks(self, part: str) -> Iterator[SequenceBatch]:
        """Yield all sequences of a part in their order, in batches."""
        for ids in torch.arange(len(self._parts[part])).split(self.batch_size):
            yield self.gather(part, ids)


class SequenceClassifier(ScoredModule):
    """Trains a model on sequences, by cross entropy over classes, and scores it by its accuracy.

    Args:
        model: maps tokens [batch, length], the operand of a pattern, and a padding mask or None, to logits
            [batch, classes].
        dataset: the sequences.
        optimizer: learning rate, weight decay, schedule.
        max_steps: the step at which a schedule ends, see TaskModule.
    """

    score_name = "accuracy"

    def _logits(self, batch: SequenceBatch) -> torch.Tensor:
        return self.model(batch.tokens, batch.adj, batch.padding)

    def training_step(self, batch: SequenceBatch) -> torch.Tensor:
        """Return the mean loss of the batch, a scalar on the device."""
        return F.cross_entropy(self._logits(batch).float(), batch.y)

    def scored(self, batch: SequenceBatch) -> SequenceData:
        """Return the data module, which has the sequences of all parts."""
        return batch.data

    def score(self, part: str, scored: SequenceData) -> dict[str, torch.Tensor]:
        """Return "loss" and "accuracy" of all sequences of a part, scalars on the device."""
        loss = torch.zeros((), device=scored.device)
        hits = torch.zeros((), device=scored.device)
        for chunk in scored.chunks(part):
            logits = self._logits(chunk).float()
            loss += F.cross_entropy(logits, chunk.y, reduction="sum")
            hits += (logits.argmax(dim=1) == chunk.y).sum()
        count = len(self._dataset.parts[part])
        return {"loss": loss / count, "accuracy": hits / count}


def make_pattern(options: Mapping[str, Any], length: int) -> SparseGraph:
    """Make a run's pattern of gnnsparse.masks.PATTERNS, "name" and its arguments; raise for wrong ones."""
    with naming("pattern"):
        name = check_choice("name", options.get("name"), tuple(PATTERNS))
        for option, value in options.items():
            if isinstance(value, int) and abs(value) >= 2**31:
                bad_value(option, f"got {value}; accepted: an integer of 32 bits")
        return PATTERNS[name](length, **{key: value for key, value in options.items() if key != "name"})


class SequenceTask(MiniBatchTask[SequenceDataset, SequenceData]):
    """The task "sequence": classification of sequences by attention over a pattern, the group `pattern`."""

    name = "sequence"
    dataset = SequenceDataset
    module = SequenceClassifier
    prepared = "pattern"
    groups = ("pattern",)

    def check(self, run: RunOptions) -> None:
        """Raise an error if an option of the pattern is not accepted, by making a pattern of length 1."""
        super().check(run)
        if "pattern" not in run.groups:
            bad_value("pattern", f"got nothing; accepted: {', '.join(PATTERNS)}, and its options")
        make_pattern(run.groups["pattern"], 1)

    def identity(self, run: RunOptions) -> dict[str, Any]:
        """Return the pattern, and the numbers that the order of the sequences depends on."""
        return {"pattern": text_of(run.groups["pattern"])} | super().identity(run)

    def model_sizes(self, dataset: SequenceDataset) -> tuple[int, int]:
        """Return the size of the vocabulary, and the number of classes."""
        return dataset.vocabulary, dataset.num_classes

    def make_data(self, dataset: SequenceDataset, run: RunOptions) -> SequenceData:
        """Make the data module: the sequences and the pattern, on the run's device."""
        pattern = make_pattern(run.groups["pattern"], dataset.length)
        options = {name: value for name, value in run.of_data.items() if name != "values"}
        return SequenceData(dataset, pattern, batch_size=self.batch_size(run), **options)

    def predict(
        self, model: LoadedModel, data: SequenceData
    ) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return "sequences" (indices), "classes" and "probabilities" of the test part, and its accuracy."""
        parts = [
            arrays_of(model.predict(chunk.tokens, chunk.adj, chunk.padding)) for chunk in data.chunks("test")
        ]
        arrays = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        hits = arrays["classes"] == data.dataset.test.y
        accuracy = float(hits.double().mean())
        return {"sequences": torch.arange(hits.numel()), **arrays}, {"test": {"accuracy": accuracy}}

    def describe(self, data: SequenceData, run: RunOptions) -> dict[str, Any]:
        """Return the number and length of the training sequences, the pattern's name and its nonzeros."""
        return {
            "sequences": len(data.dataset.train),
            "length": data.dataset.length,
            "pattern": run.groups["pattern"]["name"],
            "nonzeros": data.adj.nnz,
        }


register_task(SequenceTask())
