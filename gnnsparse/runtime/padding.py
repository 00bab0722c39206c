"""Rows of dense arrays that stand for no node, and what layers that look at several rows need of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from gnnsparse.runtime.memo import cached_property

#: Rows that are summed one after another; the sums of so many rows are summed then.
_CHUNK = 32


@dataclass(frozen=True, eq=False)
class Padding:
    """Rows of a batch of which the first `count`, an integer tensor [] on the device, are nodes."""

    count: torch.Tensor
    rows: int
    _segments: dict[int, tuple[torch.Tensor, _Segments]] = field(default_factory=dict, repr=False)

    # Made when they are first asked for: a model without batch norm needs none.

    @cached_property
    def real(self) -> torch.Tensor:
        """Whether a row is a node, bool [rows, 1]."""
        return (torch.arange(self.rows, dtype=torch.int64, device=self.count.device) < self.count)[:, None]

    @cached_property
    def mask(self) -> torch.Tensor:
        """1 for nodes and 0 for padding, float32 [rows, 1]."""
        return self.real.float()

    @cached_property
    def mean_weights(self) -> torch.Tensor:
        """1 / count for nodes and 0 for padding, float32 [rows, 1]."""
        return self.mask / self.count

    def sums(self, x: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
        """Sum rows between `starts`, int64 [segments + 1], in a fixed order. Differentiable."""
        if id(starts) not in self._segments:
            self._segments[id(starts)] = starts, _Segments.of(starts, self.rows)
        return _Sums.apply(x, self._segments[id(starts)][1])


class _Segments(NamedTuple):
    """Consecutive rows that are summed, in chunks: torch takes one thread for a feature of a whole segment.

    `chunks` has the first row of each chunk (the last ones may be empty), `ends` the first chunk of each
    segment, both with the end; `of_row` the segment of each row, for padding the number of segments; int64.
    """

    chunks: torch.Tensor
    ends: torch.Tensor
    of_row: torch.Tensor

    @classmethod
    def of(cls, starts: torch.Tensor, rows: int) -> _Segments:
        segments = starts.numel() - 1
        ends = torch.nn.functional.pad(((starts.diff() + _CHUNK - 1) // _CHUNK).cumsum(0), (1, 0))
        # There are no more chunks than this, however long the segments are.
        places = torch.arange(rows // _CHUNK + segments + 1, dtype=torch.int64, device=starts.device)
        segment = torch.searchsorted(ends[1:], places, right=True)
        chunks = (starts[segment] + (places - ends[segment]) * _CHUNK).clamp_(max=starts[-1])
        numbers = torch.arange(rows, dtype=torch.int64, device=starts.device)
        return cls(chunks, ends, torch.searchsorted(starts[1:], numbers, right=True))


class _Sums(torch.autograd.Function):
    """The sums of segments, chunk by chunk."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, segments: _Segments) -> torch.Tensor:
        ctx.of_row = segments.of_row
        parts = torch.segment_reduce(x, "sum", offsets=segments.chunks, initial=0.0, unsafe=True)
        return torch.segment_reduce(parts, "sum", offsets=segments.ends, initial=0.0, unsafe=True)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return torch.cat([grad, grad.new_zeros(1, grad.shape[1])]).index_select(0, ctx.of_row), None


_current: ContextVar[tuple[Padding, ...]] = ContextVar("padding", default=())


def current_padding(rows: int) -> Padding | None:
    """Return the padding of arrays of that many rows; None: each of their rows is a node."""
    return next((padding for padding in _current.get() if padding.rows == rows), None)


@contextmanager
def padded(*paddings: Padding) -> Iterator[None]:
    """Make arrays with as many rows as one of `paddings` have that padding inside a `with` block."""
    token = _current.set(paddings)
    try:
        yield
    finally:
        _current.reset(token)
