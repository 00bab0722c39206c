"""SequenceDataset: sequences of tokens, each with a class."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.errors import bad_value, check_tensor

__all__ = ["SequenceDataset", "SequencePart", "pad_sequences"]


@dataclass(frozen=True, eq=False)
class SequencePart:
    """The sequences of one part of a split.

    Attributes:
        tokens: int16 [n, length]; tokens of a sequence are above 0, and 0 is padding after them.
        y: int64 [n], the class of each sequence.

    Raises:
        TypeError: an attribute is of another type or dtype.
        ValueError: shapes do not agree.
    """

    tokens: torch.Tensor
    y: torch.Tensor

    def __post_init__(self) -> None:
        check_tensor("tokens", self.tokens, dtypes=(torch.int16,), shape=(None, None))
        check_tensor("y", self.y, dtypes=(torch.int64,), shape=(self.tokens.shape[0],))

    def __len__(self) -> int:
        return self.y.numel()


@dataclass(frozen=True, eq=False)
class SequenceDataset:
    """A classification task on sequences.

    Attributes:
        name: name of the data set.
        train: the sequences to train on.
        val: the sequences by which the best model is chosen.
        test: the sequences that it is scored on.
        vocabulary: number of tokens, which are 0 (padding) to vocabulary - 1.
        num_classes: number of classes, which are 0 to num_classes - 1.

    Raises:
        TypeError: an attribute is of another type or dtype.
        ValueError: lengths differ, or a token or a class is out of range.
    """

    name: str
    train: SequencePart
    val: SequencePart
    test: SequencePart
    vocabulary: int
    num_classes: int

    def __post_init__(self) -> None:
        for name, part in self.parts.items():
            for what, values, limit in (
                ("tokens", part.tokens, self.vocabulary),
                ("y", part.y, self.num_classes),
            ):
                if values.numel() and not 0 <= int(values.min()) <= int(values.max()) < limit:
                    low, high = int(values.min()), int(values.max())
                    bad_value(f"{name}.{what}", f"holds {low} to {high}; accepted: 0 to {limit - 1}")
            if part.tokens.shape[1] != self.length:
                bad_value(f"{name}.tokens", f"has length {part.tokens.shape[1]}; accepted: {self.length}")

    @property
    def parts(self) -> dict[str, SequencePart]:
        """The parts of the split by name: "train", "val", "test"."""
        return {"train": self.train, "val": self.val, "test": self.test}

    @property
    def length(self) -> int:
        """Number of tokens of a sequence, padding included."""
        return self.train.tokens.shape[1]


def pad_sequences(sequences: list[list[int]] | list[bytes], length: int, offset: int = 0) -> torch.Tensor:
    """Cuts sequences, or pads them with 0, to one length.

    Args:
        sequences: integers or bytes.
        length: the length.
        offset: added to each integer of a sequence.

    Returns:
        int16 [n, length].
    """
    padded = torch.zeros(len(sequences), length, dtype=torch.int16)
    for row, sequence in zip(padded, sequences, strict=True):
        kept = torch.tensor(list(sequence[:length]), dtype=torch.int16)
        row[: kept.numel()] = kept + offset
    return padded
