"""Sequences of several lengths without padding: nested tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value

__all__ = ["Sequences", "is_nested"]


def is_nested(x: Any) -> bool:
    """Returns whether `x` is a nested tensor."""
    return isinstance(x, torch.Tensor) and x.is_nested


@dataclass(frozen=True)
class Sequences:
    """The tokens of sequences of several lengths, one after another.

    Attributes:
        values: [tokens of all sequences, features].
        lengths: the length of each sequence.
        offsets: int64 [sequences + 1], where each sequence begins, on the tokens' device; None: the nested
            tensor has the older layout torch.strided, which torch's encoder makes of padded sequences in
            evaluation.
    """

    values: torch.Tensor
    lengths: tuple[int, ...]
    offsets: torch.Tensor | None

    @classmethod
    def of(cls, name: str, x: Any) -> Sequences:
        """Reads a nested tensor [batch, length of the sequence, features]. A GPU is waited for.

        Args:
            name: the argument's name, for errors.
            x: the tensor.

        Raises:
            TypeError: `x` is no nested tensor.
            ValueError: it has other dimensions, or holes between its sequences.
        """
        if not is_nested(x):
            bad_type(name, x, "a nested tensor, as query, key and value all have to be")
        if x.dim() != 3 or (x.layout == torch.jagged and x._ragged_idx != 1):
            bad_value(name, f"has {x.dim()} dimensions; accepted: (batch, length of the sequence, features)")
        if x.layout != torch.jagged:
            parts = x.unbind()
            return cls(torch.cat(parts), tuple(part.shape[0] for part in parts), None)
        if x.lengths() is not None:
            bad_value(name, "has holes between its sequences; accepted: x.contiguous()")
        offsets = x.offsets()
        return cls(x.values(), tuple(offsets.diff().tolist()), offsets)

    def nested(self, values: torch.Tensor) -> torch.Tensor:
        """Returns other values of the same tokens as a nested tensor, which can be added to the first."""
        if self.offsets is not None:
            return torch.nested.nested_tensor_from_jagged(values, self.offsets)
        return torch.nested.as_nested_tensor(list(values.split(list(self.lengths))))
