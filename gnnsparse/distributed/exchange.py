"""Exchanges of rows of features between ranks, and the autograd functions around them.

Each rank sends what others need, and gets what it needs itself. Everything is sent as bytes, so that a
backend need not know the dtype. A transfer begins with `start` and may run beside computations until it is
waited for. All ranks must begin their transfers in one order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.autograd.function import once_differentiable

from gnnsparse.distributed.shard import Shard, ShardFacts

#: torch 2.13 gave the function another name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
#: Elements from which on more than two ranks divide the work of a sum.
_SHARED_SUM = 4096


class Pending:
    """A transfer that has begun: its work, if there is any, its result, and what must live until then."""

    def __init__(self, work: Any, result: torch.Tensor, sent: torch.Tensor | None = None) -> None:
        self._work, self._result, self._sent = work, result, sent

    def wait(self) -> torch.Tensor:
        """Return what was received, complete for what the caller computes with it next."""
        if self._work is not None:
            self._work.wait()
            self._work = self._sent = None
        return self._result


class _PendingPacked(Pending):
    """A transfer of packed rows, the last ones of the result, in which the own ones are exact."""

    def __init__(self, packed: Pending, result: torch.Tensor, first: int, own: torch.Tensor) -> None:
        super().__init__(packed, result)
        self._first, self._own = first, own

    def wait(self) -> torch.Tensor:
        """See Pending."""
        if self._work is not None:
            packed, self._work = self._work.wait(), None
            _unpack(packed, self._result[len(self._result) - len(packed) :])
            _copy_rows(self._result[self._first : self._first + len(self._own)], self._own)
        return self._result


def _pack(x: torch.Tensor) -> torch.Tensor:
    """Return rows as integers of 8 bits, uint8 [rows, bytes], with the float32 that they are multiples of.

    An error is at most half of this scale, the largest magnitude of the row / 127. A row with an infinity or
    a NaN becomes NaN.
    """
    flat = x.flatten(1).float()
    scale = flat.abs().amax(1, keepdim=True) / 127
    numbers = (flat / scale.masked_fill(scale == 0, 1.0)).round().to(torch.int8).view(torch.uint8)
    whole = torch.nn.functional.pad(numbers, (0, -numbers.shape[1] % 4))  # a float begins at 4 bytes
    return torch.cat([whole, scale.view(torch.uint8)], dim=1)


def _unpack(packed: torch.Tensor, out: torch.Tensor) -> None:
    """Write the features of packed rows to `out` [rows, ...]."""
    scale, width = packed[:, -4:].contiguous().view(torch.float32), out.shape[1:].numel()
    out.copy_((packed[:, :width].view(torch.int8) * scale).view_as(out))


def exchange_rows(
    x: torch.Tensor,
    send: Sequence[int],
    receive: Sequence[int],
    group: dist.ProcessGroup | None,
    found: torch.Tensor | None = None,
) -> Pending:
    """Begin to send `send[r]` rows of x to rank r and to receive `receive[r]`, the last rows of `found`."""
    x, count = x.contiguous(), sum(receive)
    if found is None:
        found = x.new_empty((count, *x.shape[1:]))
    if x.shape[1:].numel() == 0:
        return Pending(None, found)  # rows without features, on every rank
    width = x.shape[1:].numel() * x.element_size()
    out, into = (_bytes_of(t, width) for t in (x, found[len(found) - count :]))
    work = dist.all_to_all_single(into, out, list(receive), list(send), group=group, async_op=True)
    return Pending(work, found, x)


def _in_words(*tensors: torch.Tensor) -> list[torch.Tensor]:
    """Return matrices as int64 (copied faster) if rows are whole words of 8 bytes, else as they are."""
    for x in tensors:
        size = x.element_size()
        offsets = (x.storage_offset(), x.shape[1], x.stride(0)) if x.dim() == 2 else (1,)
        if x.dim() != 2 or x.stride(1) != 1 or any(offset * size % 8 for offset in offsets):
            return list(tensors)
    return [x.view(torch.int64) for x in tensors]


def _copy_rows(out: torch.Tensor, x: torch.Tensor) -> None:
    """Copy features, converted to the dtype of `out`."""
    if out.dtype == x.dtype:
        out, x = _in_words(out, x)
    out.copy_(x)


def _select_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    return _in_words(x)[0].index_select(0, rows).view(x.dtype)


def _bytes_of(x: torch.Tensor, width: int) -> torch.Tensor:
    return x.reshape(-1).view(torch.uint8).reshape(x.shape[0], width)


class HaloExchange:
    """Each rank sends every other rank the rows that this one touches, and no others."""

    has_own = False

    def __init__(self, shard: Shard, device: torch.device, group: dist.ProcessGroup | None) -> None:
        self._group, self._send = group, shard.send_counts
        self._receive = shard.receive_counts
        self._rows = shard.send_rows.to(device)
        self.columns = shard.halo.numel()

    def start(self, x: torch.Tensor, dtype: torch.dtype, whole: bool = False, packs: bool = False) -> Pending:
        """Begin to fetch the columns of other ranks, in `dtype`; with `whole` the own ones come first.

        `packs`: they travel in 8 bits.
        """
        sent, own = _select_rows(x, self._rows), x if whole else x[:0]
        found = x.new_empty((len(own) + self.columns, *x.shape[1:]), dtype=dtype)
        if packs and x.shape[1:].numel():
            packed = exchange_rows(_pack(sent), self._send, self._receive, self._group)
            return _PendingPacked(packed, found, 0, own)
        sent = sent.to(dtype)
        pending = exchange_rows(sent, self._send, self._receive, self._group, found)
        _copy_rows(found[: len(own)], own)
        return pending

    def start_back(self, grad: torch.Tensor) -> Pending:
        """Begin to send gradients of other ranks' features, [columns, ...], to their owners."""
        return exchange_rows(grad, self._receive, self._send, self._group)

    def add_back(self, total: torch.Tensor, received: torch.Tensor) -> None:
        """Add the gradients that other ranks sent to `total` [rows, ...], rank after rank."""
        rows, chunks = self._rows.split(list(self._send)), received.split(list(self._send))
        for row, chunk in zip(rows, chunks, strict=True):  # each rank names a row only once
            if row.numel():
                total.index_add_(0, row, chunk.to(total.dtype))


class GatherExchange:
    """Every rank gets all nodes' features, `most_rows` columns each: for halos of nearly everything."""

    has_own = True

    def __init__(self, facts: ShardFacts, group: dist.ProcessGroup | None) -> None:
        self._facts, self._group = facts, group
        self.columns = facts.ranks * facts.most_rows

    def start(self, x: torch.Tensor, dtype: torch.dtype, whole: bool = True, packs: bool = False) -> Pending:
        """Begin to gather the features of all nodes, [columns, ...] in `dtype`; `packs`: in 8 bits."""
        most, begin = self._facts.most_rows, self._facts.rank * self._facts.most_rows
        found = x.new_empty((self.columns, *x.shape[1:]), dtype=dtype)
        if found.numel() == 0:
            return Pending(None, found)
        if packs:
            packed = self.start(_pack(x), torch.uint8)
            return _PendingPacked(packed, found, begin, x)
        # Own features are sent from their place in the result, where a gather would copy them to anyway.
        own = found[begin : begin + most]
        _copy_rows(own[: x.shape[0]], x)
        own[x.shape[0] :].zero_()
        out, into = (t.reshape(-1).view(torch.uint8) for t in (own, found))
        return Pending(_all_gather(into, out, group=self._group, async_op=True), found, own)

    def start_back(self, grad: torch.Tensor) -> Pending:
        """Begin to send the gradients of all columns to the ranks that own them."""
        counts = [self._facts.most_rows] * self._facts.ranks
        return exchange_rows(grad, counts, counts, self._group)

    def add_back(self, total: torch.Tensor, received: torch.Tensor) -> None:
        """Add the gradients that all ranks sent to `total`, rank after rank."""
        for chunk in received.split(max(self._facts.most_rows, 1)):
            total += chunk[: total.shape[0]].to(total.dtype)


class _Turn(torch.autograd.Function):
    """Rows of all features become all rows of a slice of the features, or with `to_rows` the reverse."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, exchange: FeatureExchange, to_rows: bool) -> torch.Tensor:
        ctx.exchange, ctx.to_rows = exchange, to_rows
        ranks, own, sizes = len(exchange.sizes), exchange.sizes[exchange.rank], exchange.sizes
        if to_rows:
            received = exchange_rows(x, sizes, [own] * ranks, exchange.group).wait()
            return received.unflatten(0, (ranks, own)).transpose(0, 1).flatten(1, 2).contiguous()
        width = x.shape[1] // ranks
        by_rank = x.unflatten(1, (ranks, width)).transpose(0, 1).reshape(ranks * own, width, *x.shape[2:])
        return exchange_rows(by_rank, [own] * ranks, sizes, exchange.group).wait()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _Turn.apply(grad, ctx.exchange, not ctx.to_rows), None, None


@dataclass(frozen=True, eq=False)
class FeatureExchange:
    """Turns rows of all features into all rows of a slice of the features, and back. Differentiable."""

    sizes: tuple[int, ...]
    rank: int
    group: dist.ProcessGroup | None

    def to_features(self, x: torch.Tensor) -> torch.Tensor:
        """Return all rows of this rank's slice, [all rows, width, ...], of [own rows, ranks * width, ...]."""
        found: torch.Tensor = _Turn.apply(x, self, False)
        return found

    def to_rows(self, y: torch.Tensor) -> torch.Tensor:
        """Return all features of the own rows: the inverse of `to_features`."""
        found: torch.Tensor = _Turn.apply(y, self, True)
        return found


def gather_ranks(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Return the tensors of all ranks, which have one shape and dtype, [ranks, ...]."""
    ranks, flat = dist.get_world_size(group), x.detach().contiguous().reshape(-1)
    found = flat.new_empty(ranks * flat.numel())
    if found.numel():
        _all_gather(found, flat, group=group)
    return found.reshape(ranks, *x.shape)


def start_gather(x: torch.Tensor, group: dist.ProcessGroup | None) -> Pending:
    """Begin to gather the vectors of all ranks, which have one size above 0, [ranks * size]."""
    found = x.new_empty(dist.get_world_size(group) * x.numel())
    return Pending(_all_gather(found, x, group=group, async_op=True), found, x)


def sum_over_ranks(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Add the tensors of all ranks, rank after rank, so that the sum has the same bits on each of them.

    Args:
        x: a tensor of one shape and dtype on all ranks, which is left as it is.
        group: the ranks.
    """
    ranks = dist.get_world_size(group)
    if ranks == 1:
        return x.detach().clone()
    if ranks == 2 or x.numel() < _SHARED_SUM:
        return functools.reduce(torch.add, gather_ranks(x, group))
    # Each rank adds up its part for all: what travels does not grow with the number of ranks.
    part = -(-x.numel() // ranks)
    padded = torch.nn.functional.pad(x.detach().reshape(-1), (0, ranks * part - x.numel()))
    mine = exchange_rows(padded.reshape(ranks, part), [1] * ranks, [1] * ranks, group).wait()
    total = functools.reduce(torch.add, mine)
    return gather_ranks(total, group).reshape(-1)[: x.numel()].reshape(x.shape)


class Extend(torch.autograd.Function):
    """The features of own nodes with those of other ranks' nodes behind them, [rows + columns, ...].

    Where an exchange `has_own` columns for the own nodes, they are [columns, ...]. Features travel in the
    dtype `wire`, or `packs` in 8 bits, gradients in that of x, and owners add them up in the order of ranks,
    in float32.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, exchange: Any, wire: torch.dtype | None, packs: bool
    ) -> torch.Tensor:
        """Fetch the features of other ranks' nodes."""
        ctx.exchange, ctx.rows = exchange, x.shape[0]
        received: torch.Tensor = exchange.start(x, wire or x.dtype, packs=packs).wait().to(x.dtype)
        return received if exchange.has_own else torch.cat([x, received])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Send gradients to the owners of the features; there are no second derivatives."""
        of_others = grad if ctx.exchange.has_own else grad[ctx.rows :]
        pending = ctx.exchange.start_back(of_others.contiguous())
        dtype = torch.float32 if grad.dtype in (torch.float16, torch.bfloat16) else grad.dtype
        if ctx.exchange.has_own:
            total = torch.zeros((ctx.rows, *grad.shape[1:]), dtype=dtype, device=grad.device)
        else:
            total = grad[: ctx.rows].to(dtype, copy=True)
        ctx.exchange.add_back(total, pending.wait())
        return total.to(grad.dtype), None, None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, group: dist.ProcessGroup | None, sums_gradients: bool
    ) -> torch.Tensor:
        ctx.group, ctx.sums_gradients = group, sums_gradients
        return sum_over_ranks(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return sum_over_ranks(grad, ctx.group) if ctx.sums_gradients else grad, None, None


def shared_sum(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Add the tensors of all ranks; the gradient is the sum of those of all ranks."""
    found: torch.Tensor = _Sum.apply(x, group, True)
    return found


def total_of(loss: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Add the parts of a loss that each rank has. The gradient of a rank is that of its own part.

    Every rank calls `backward` of the result: together they compute the gradient of the one loss.
    """
    found: torch.Tensor = _Sum.apply(loss, group, False)
    return found
