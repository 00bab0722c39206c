"""Batches of graphs for steps that are captured in CUDA graphs: in arrays that keep their places."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from gnnsparse.data.graph_batches import BlockBatches
from gnnsparse.runtime.padding import Padding
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.train.feeds import StepInput

__all__ = ["GraphInputs", "PlacedGraphs", "bound_of"]

_log = logging.getLogger("gnnsparse.train")

#: Arrays are sized for the mean of all batches and so many standard deviations.
_DEVIATIONS = 3
#: Sizes are multiples of this, so that rows of 16-bit numbers are aligned and products are of whole tiles.
_MULTIPLE = 64

#: (x, operand, graph_ptr, targets, padding) -> a batch.
MakeBatch = Callable[[torch.Tensor, SparseOperand, torch.Tensor, torch.Tensor, Padding], Any]


def bound_of(sizes: torch.Tensor, count: int) -> int:
    """Returns a size that batches hardly ever exceed, of `count` items that are drawn without repeats.

    Args:
        sizes: int64 [items], the size of each.
        count: items of a batch, at most as many as there are.
    """
    largest = int(sizes.sort(descending=True).values[:count].sum())
    items, exact = sizes.numel(), sizes.double()
    left = (items - count) / max(items - 1, 1)  # drawing without repeats makes sums differ less
    deviation = float(exact.std(correction=0)) * math.sqrt(count * left)
    return min(largest, math.ceil(count * float(exact.mean()) + _DEVIATIONS * deviation))


class PlacedGraphs:
    """Batches of a fixed number of training graphs, one after another in the same arrays.

    Args:
        blocks: makes the arrays.
        train: int64 [graphs] on the CPU, the numbers of the graphs to train on.
        count: graphs of a batch.
        x: [nodes, features], features of the nodes of all graphs.
        y: targets of all graphs.
        make: makes a batch of its parts.
    """

    def __init__(
        self, blocks: BlockBatches, train: torch.Tensor, count: int, x: torch.Tensor, y: torch.Tensor,
        make: MakeBatch,
    ) -> None:  # fmt: skip
        nodes, edges = (bound_of(sizes, count) for sizes in blocks.sizes(train))
        # One row more than nodes: nonzeros that belong to no row have its column.
        rounded = [-(-size // _MULTIPLE) * _MULTIPLE for size in (nodes + 1, max(edges, 1))]
        self._padded, self._blocks = blocks.padded(count, *rounded), blocks
        self._x, self._y, self._make = x, y, make

    def fits(self, graphs: torch.Tensor) -> bool:
        """Returns whether the arrays have room for graphs, int64 [count] on the CPU."""
        sizes = [int(size.sum()) for size in self._blocks.sizes(graphs)]
        return all(size <= most for size, most in zip(sizes, self._padded.capacity, strict=True))

    def load(self, graphs: torch.Tensor) -> None:
        """Puts the numbers of graphs into place, int64 [count] on the CPU."""
        self._padded.chosen[:-1].copy_(graphs, non_blocking=True)

    def batch(self) -> Any:
        """Puts the batch together, of the graphs that `load` was given."""
        padded = self._padded
        padded.assemble()
        x = self._x.index_select(0, padded.rows.clamp(max=self._x.shape[0] - 1))
        # Whatever padding holds must be finite, since weights' gradients are products with zeros there.
        x.masked_fill_(~padded.padding.real, 0)
        y = self._y.index_select(0, padded.chosen[:-1])
        return self._make(x, padded.adj, padded.graph_ptr, y, padded.padding)


@dataclass(frozen=True, eq=False)
class GraphInputs:
    """Makes the inputs of steps on graphs.

    Attributes:
        train: int64 [graphs] on the CPU, the numbers of the graphs to train on.
        place: makes the arrays for batches of a number of graphs.
        single: makes a batch of the graphs with some indices in `train`.
    """

    train: torch.Tensor
    place: Callable[[int], PlacedGraphs]
    single: Callable[[torch.Tensor], Any]

    def of(self, batches: Iterable[torch.Tensor]) -> Iterator[StepInput]:
        """Yields the inputs of steps.

        Args:
            batches: int64 [batch] on the CPU for each step, indices in `train`.
        """
        places: dict[int, PlacedGraphs] = {}
        was_large = False
        for ids in batches:
            count, graphs = ids.numel(), self.train[ids]
            if count not in places:
                places[count] = self.place(count)
            place, single = places[count], partial(self.single, ids)
            if place.fits(graphs):
                yield StepInput(single, place, partial(place.load, graphs), place.batch)
                continue
            if not was_large:
                _log.info("trainer.capture: a batch is larger than most; such steps are launched one by one")
            was_large = True
            yield StepInput(single)
