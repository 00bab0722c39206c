"""Exchanges of rows of features between ranks: each sends what others need, and gets what it needs itself.

Everything is sent as bytes, so that a backend need not know the dtype. A transfer begins with `start` and may
run beside computations until it is waited for. All ranks must begin their transfers in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from gnnsparse.distributed.shard import Shard, ShardFacts

__all__ = [
    "Exchange",
    "FeatureExchange",
    "GatherExchange",
    "HaloExchange",
    "Pending",
    "exchange_rows",
    "gather_ranks",
    "sum_over_ranks",
]


#: torch 2.13 gave the function another name.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor


#: Elements from which on more than two ranks divide the work of a sum.
_SHARED_SUM = 4096


class Pending:
    """A transfer that has begun.

    Args:
        work: what torch.distributed returned; None: nothing is under way.
        result: the tensor that is received.
        sent: the tensor that is sent, which must live until then.
    """

    def __init__(self, work: Any, result: torch.Tensor, sent: torch.Tensor | None = None) -> None:
        self._work, self._result, self._sent = work, result, sent

    def wait(self) -> torch.Tensor:
        """Returns what was received, complete for what the caller computes with it next."""
        if self._work is not None:
            self._work.wait()
            self._work = self._sent = None
        return self._result


def exchange_rows(
    x: torch.Tensor, send: Sequence[int], receive: Sequence[int], group: dist.ProcessGroup | None
) -> Pending:
    """Begins to send rows of x to all ranks, `send[r]` to rank r, and to receive `receive[r]` from it."""
    x = x.contiguous()
    found = x.new_empty((sum(receive), *x.shape[1:]))
    if x.shape[1:].numel() == 0:
        return Pending(None, found)  # rows without features, on every rank
    width = x.shape[1:].numel() * x.element_size()
    out, into = (_bytes_of(t, width) for t in (x, found))
    work = dist.all_to_all_single(into, out, list(receive), list(send), group=group, async_op=True)
    return Pending(work, found, x)


def _bytes_of(x: torch.Tensor, width: int) -> torch.Tensor:
    return x.reshape(-1).view(torch.uint8).reshape(x.shape[0], width)


class Exchange(Protocol):
    """What a product of rows needs of other ranks: the features of the columns that they own.

    Attributes:
        columns: number of columns of the layout in which other ranks' features arrive.
    """

    columns: int

    def start(self, x: torch.Tensor) -> Pending:
        """Begins to fetch the features of other ranks' nodes.

        Args:
            x: features of the own nodes, [rows, ...].

        Returns:
            What becomes [columns, ...] of the dtype of x.
        """

    def start_back(self, grad: torch.Tensor) -> Pending:
        """Begins to send gradients of other ranks' features, [columns, ...], to their owners."""

    def add_back(self, total: torch.Tensor, received: torch.Tensor) -> None:
        """Adds the gradients that other ranks sent to `total` [rows, ...], rank after rank."""


class HaloExchange:
    """Each rank sends every other rank the rows that this one touches, and no others.

    Args:
        shard: the shard of this rank.
        device: where features are.
        group: the ranks.

    Attributes:
        columns: number of halo columns.
    """

    def __init__(self, shard: Shard, device: torch.device, group: dist.ProcessGroup | None) -> None:
        self._group, self._send = group, shard.send_counts
        self._receive = shard.receive_counts
        self._rows = shard.send_rows.to(device)
        self.columns = shard.halo.numel()

    def start(self, x: torch.Tensor) -> Pending:
        """Begins to fetch the features of the halo columns, [columns, ...]."""
        return exchange_rows(x.index_select(0, self._rows), self._send, self._receive, self._group)

    def start_back(self, grad: torch.Tensor) -> Pending:
        """Begins to return the gradients of the halo columns to the ranks that own them."""
        return exchange_rows(grad, self._receive, self._send, self._group)

    def add_back(self, total: torch.Tensor, received: torch.Tensor) -> None:
        """Adds what other ranks returned to `total`, rank after rank: a rank names a row only once."""
        rows, parts = self._rows.split(list(self._send)), received.split(list(self._send))
        for row, part in zip(rows, parts, strict=True):
            if row.numel():
                total.index_add_(0, row, part.to(total.dtype))


class GatherExchange:
    """Every rank gets the features of all nodes: for matrices whose halo is nearly everything.

    The layout has `most_rows` columns for each rank, of which the last ones may be unused.

    Args:
        facts: what is known of all shards.
        group: the ranks.

    Attributes:
        columns: number of columns of the layout, of which the own nodes have theirs.
    """

    def __init__(self, facts: ShardFacts, group: dist.ProcessGroup | None) -> None:
        self._facts, self._group = facts, group
        self.columns = facts.ranks * facts.most_rows

    def start(self, x: torch.Tensor) -> Pending:
        """Begins to gather the features of all nodes."""
        most = self._facts.most_rows
        padded = x.contiguous()
        if x.shape[0] < most:
            padded = torch.cat([x, x.new_zeros((most - x.shape[0], *x.shape[1:]))])
        found = x.new_empty((self.columns, *x.shape[1:]))
        if found.numel() == 0:
            return Pending(None, found)
        out, into = (t.reshape(-1).view(torch.uint8) for t in (padded, found))
        work = _all_gather(into, out, group=self._group, async_op=True)
        return Pending(work, found, padded)

    def start_back(self, grad: torch.Tensor) -> Pending:
        """Begins to send the gradients of all columns to the ranks that own them."""
        counts = [self._facts.most_rows] * self._facts.ranks
        return exchange_rows(grad, counts, counts, self._group)

    def add_back(self, total: torch.Tensor, received: torch.Tensor) -> None:
        """Adds the gradients that all ranks sent to `total`, rank after rank."""
        for part in received.split(max(self._facts.most_rows, 1)):
            total += part[: total.shape[0]].to(total.dtype)


class FeatureExchange:
    """Turns rows of all features into all rows of a slice of the features, and back.

    Args:
        sizes: number of rows of each rank.
        rank: this rank.
        group: the ranks.
    """

    def __init__(self, sizes: Sequence[int], rank: int, group: dist.ProcessGroup | None) -> None:
        self._sizes, self._rank, self._group = tuple(sizes), rank, group

    def to_features(self, x: torch.Tensor) -> torch.Tensor:
        """Returns all rows of this rank's slice of the features.

        Args:
            x: the own rows, [own rows, ranks * width, ...].

        Returns:
            [all rows, width, ...].
        """
        ranks, rows = len(self._sizes), x.shape[0]
        width = x.shape[1] // ranks
        by_rank = x.unflatten(1, (ranks, width)).transpose(0, 1).reshape(ranks * rows, width, *x.shape[2:])
        return exchange_rows(by_rank, [rows] * ranks, self._sizes, self._group).wait()

    def to_rows(self, y: torch.Tensor) -> torch.Tensor:
        """Returns all features of the own rows: the inverse of `to_features`."""
        ranks, rows = len(self._sizes), self._sizes[self._rank]
        received = exchange_rows(y, self._sizes, [rows] * ranks, self._group).wait()
        return received.unflatten(0, (ranks, rows)).transpose(0, 1).flatten(1, 2).contiguous()


def gather_ranks(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Returns the tensors of all ranks, which have one shape and dtype, [ranks, ...]."""
    ranks, flat = dist.get_world_size(group), x.detach().contiguous().reshape(-1)
    found = flat.new_empty(ranks * flat.numel())
    if found.numel():
        _all_gather(found, flat, group=group)
    return found.reshape(ranks, *x.shape)


def sum_over_ranks(x: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Adds the tensors of all ranks, rank after rank, so that the sum has the same bits on each of them.

    Args:
        x: a tensor of one shape and dtype on all ranks, which is left as it is.
        group: the ranks.
    """
    ranks = dist.get_world_size(group)
    if ranks == 1:
        return x.detach().clone()
    if ranks == 2 or x.numel() < _SHARED_SUM:
        return _in_order(gather_ranks(x, group))
    # Each rank adds up its share for all: what travels does not grow with the number of ranks.
    share = -(-x.numel() // ranks)
    padded = torch.nn.functional.pad(x.detach().reshape(-1), (0, ranks * share - x.numel()))
    mine = exchange_rows(padded.reshape(ranks, share), [1] * ranks, [1] * ranks, group).wait()
    return gather_ranks(_in_order(mine), group).reshape(-1)[: x.numel()].reshape(x.shape)


def _in_order(parts: torch.Tensor) -> torch.Tensor:
    """Adds up [ranks, ...], rank after rank."""
    total = parts[0].clone()
    for part in parts[1:]:
        total += part
    return total
