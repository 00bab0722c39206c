"""Measurement of the rates that the cost model of shared products needs."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from gnnsparse.distributed.api import group_of
from gnnsparse.distributed.cost import Rates
from gnnsparse.distributed.exchange import gather_ranks
from gnnsparse.errors import bad_value, check_integer
from gnnsparse.ops import spmm
from gnnsparse.ops.common import check_operand
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["measure_rates"]

#: Bytes that each rank sends to each other one, to tell latency from bandwidth.
_SMALL, _LARGE = 2**10, 2**24
#: Features of a product that is too narrow to be faster.
_NARROW = 16


def measure_rates(operand: SparseOperand, group: Any = None, *, width: int = 128, repeats: int = 5) -> Rates:
    """Measures how fast ranks exchange features and how fast each of them multiplies.

    All ranks of the group call it. It takes about a second on GPUs of one host.

    Args:
        operand: an operand of one process that is like the graph to be divided, on the device to be used.
        group: the ranks, see `distribute`.
        width: features of a product.
        repeats: how often each measurement is repeated; the median counts, and the slowest rank.

    Returns:
        The rates, equal on all ranks.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range, or the operand is of several ranks or has no nonzeros.
        RuntimeError: torch.distributed has not been initialised.
    """
    group = group_of(group)
    check_operand(operand)
    if operand.operations is not None or operand.nnz == 0:
        bad_value("operand", "is of several ranks or empty; accepted: one of a process, with nonzeros")
    check_integer("width", width)
    check_integer("repeats", repeats)
    clock = _Clock(operand.device, group, repeats)
    ranks, dtype = dist.get_world_size(group), operand.precision.storage
    seconds = []
    for nbytes in (_SMALL, _LARGE):
        sent = torch.zeros(ranks * nbytes, dtype=torch.uint8, device=operand.device)
        exchange = functools.partial(dist.all_to_all_single, torch.empty_like(sent), sent, group=group)
        seconds.append(clock.seconds(exchange))
    by_width = {}
    for features in (_NARROW, width):
        x = torch.zeros((operand.shape[1], features), dtype=dtype, device=operand.device)
        by_width[features] = clock.seconds(functools.partial(spmm, operand, x))
    block = torch.zeros(_LARGE, dtype=torch.uint8, device=operand.device)
    copied = clock.seconds(block.clone)
    received_bytes = max(ranks - 1, 1) * (_LARGE - _SMALL)
    product = operand.nnz * width * dtype.itemsize / by_width[width]
    return Rates(
        link_bytes=received_bytes / max(seconds[1] - seconds[0], 1e-9),
        latency=seconds[0],
        product_bytes=product,
        # The width at which the time of the narrow product would be that of its bytes.
        narrow_bytes=max(1.0, by_width[_NARROW] * product / operand.nnz),
        copy_bytes=2 * _LARGE / copied,
        add_passes=1.0 if operand.device.type == "cuda" else 3.0,  # as ops/spmm/into.py adds
        about=f"measured on {ranks} ranks, {dist.get_backend(group)}, {operand!r}",
    )


class _Clock:
    """Times calls on all ranks at once."""

    def __init__(self, device: torch.device, group: dist.ProcessGroup | None, repeats: int) -> None:
        self._device, self._group, self._repeats = device, group, repeats

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def seconds(self, call: Callable[[], Any]) -> float:
        """Returns the median time of a call on the slowest rank, after one call that is not timed."""
        call()
        found = []
        for _ in range(self._repeats):
            start = self._now()
            call()
            found.append(self._now() - start)
        own = torch.tensor([statistics.median(found)], dtype=torch.float64, device=self._device)
        return float(gather_ranks(own, self._group).max())
