"""Sampled neighbourhoods in arrays that keep their places, for steps captured in CUDA graphs."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gnnsparse.data.graph_batches import BatchPlans
from gnnsparse.formats.csr import PaddedCsr
from gnnsparse.runtime.device import path
from gnnsparse.runtime.padding import Padding
from gnnsparse.sampling import NeighborSampler
from gnnsparse.sampling.blocks import BlockArrays, make_core
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.operand_core import OperandCore

__all__ = ["BlockBound", "PlacedBlocks", "bounds_of"]

#: Sizes are multiples of this, so that rows of 16-bit numbers are aligned and products are of whole tiles.
_MULTIPLE = 64
#: Arrays have room for the mean of the samples that were looked at and so many standard deviations, or for
#: the largest of them, and for a share more.
_DEVIATIONS, _MORE = 4, 1 / 64
#: Batches that are put into place ahead of the GPU at most: each keeps its arrays until they were copied.
_AHEAD = 4


@dataclass(frozen=True)
class BlockBound:
    """The sizes of a block's padded operand. There is a row, a column and a nonzero more than a sample has.

    Attributes:
        rows, cols, nnz: the sizes.
    """

    rows: int
    cols: int
    nnz: int

    def takes(self, block: BlockArrays) -> bool:
        """Returns whether there is room for a block."""
        csr = block.csr
        return csr.rows < self.rows and csr.cols < self.cols and csr.nnz <= self.nnz


def _rounded(size: int) -> int:
    return -(-size // _MULTIPLE) * _MULTIPLE


def _bound(sizes: Sequence[int], most: int) -> int:
    """Returns a size that samples hardly ever exceed, after the sizes of some; at most `most`."""
    mean = sum(sizes) / len(sizes)
    deviation = math.sqrt(sum((size - mean) ** 2 for size in sizes) / max(len(sizes) - 1, 1))
    return min(most, math.ceil((1 + _MORE) * max(*sizes, mean + _DEVIATIONS * deviation)))


def bounds_of(
    samples: Sequence[Sequence[BlockArrays]], nodes: int, most_edges: Sequence[tuple[int, int]]
) -> list[BlockBound]:
    """Returns sizes that samples hardly ever exceed, after some that were drawn.

    The numbers of rows grow from the last block to the first, so that arrays of nodes tell by their number of
    rows which block they belong to.

    Args:
        samples: the blocks of some samples with equally many seeds.
        nodes: number of nodes of the graph.
        most_edges: for each block numbers of nonzeros that no row and no column exceeds.
    """
    found: list[BlockBound] = []
    rows = _rounded(samples[0][-1].csr.rows + 1)
    for at in reversed(range(len(samples[0]))):
        blocks = [sample[at].csr for sample in samples]
        cols = _rounded(max(_bound([csr.cols for csr in blocks], nodes), rows) + 1)
        edges = _bound([csr.nnz for csr in blocks], rows * most_edges[at][0])
        found.append(BlockBound(rows, cols, _rounded(max(edges, 1))))
        rows = cols
    return found[::-1]


class _Arrays:
    """Arrays of one dtype, one behind another, each with room for a number of elements.

    Args:
        sizes: the numbers of elements.
        dtype, device: those of the arrays.

    Attributes:
        flat: the memory of all, zeros at first.
        whole: the arrays.
    """

    def __init__(self, sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self._rooms = [_rounded(size) for size in sizes]  # kernels need each to be aligned
        self.flat = torch.zeros(sum(self._rooms), dtype=dtype, device=device)
        self.whole = [part[:size] for part, size in zip(self.flat.split(self._rooms), sizes, strict=True)]

    def copy(self, given: Sequence[torch.Tensor]) -> None:
        """Copies an array to the begin of each."""
        if given:
            cuts = [cut for own, room in zip(given, self._rooms, strict=True) for cut in _halves(own, room)]
            torch._foreach_copy_(list(self.flat.split_with_sizes(cuts)[::2]), list(given))

    def numbers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns for each element of `flat` the number of its array, and its place in it, int32."""
        device = self.flat.device
        rooms = torch.tensor(self._rooms, dtype=torch.int64, device="cpu")
        array = torch.repeat_interleave(rooms)
        place = (
            torch.arange(array.numel(), dtype=torch.int64, device="cpu") - (rooms.cumsum(0) - rooms)[array]
        )
        return array.int().to(device), place.int().to(device)


def _halves(own: torch.Tensor, room: int) -> tuple[int, int]:
    size = own.numel()
    return size, room - size


class PlacedBlocks:
    """The operands of a sample's blocks, whose arrays keep their places from sample to sample.

    All sizes are bounds: rows behind those of a sample have no edges, nonzeros behind its own belong to no
    row. `load` copies arrays to their places, and `assemble` gives what is behind them the values it has to
    have, by operations whose sizes do not depend on the sample, so that a CUDA graph can hold it.

    Args:
        sampler: draws the samples.
        bounds: the sizes of the blocks.
        weighted: a block that was drawn, which shows what weights there are.

    Attributes:
        adjs: the operands.
        nodes: int32 [columns of the first block], the nodes of its columns; behind them node 0.
        paddings: which rows are nodes: of the features of the first block's columns, and of each block's
            results. `assemble` replaces them.
    """

    paddings: tuple[Padding, ...]

    def __init__(self, sampler: NeighborSampler, bounds: Sequence[BlockBound], weighted: BlockArrays) -> None:
        device = sampler.device
        self._bounds, self._device = list(bounds), device
        edges = [bound.nnz for bound in bounds]
        # Offsets of each block and of its transpose; maps to the transpose and the nodes; columns of both.
        sides = [size + 1 for bound in bounds for size in (bound.rows, bound.cols)]
        self._offsets = _Arrays(sides, torch.int64, device)
        self._maps = _Arrays([*edges, bounds[0].cols], torch.int32, device)
        self._columns = _Arrays([nnz for nnz in edges for _ in range(2)], torch.int32, device)
        self.nodes = self._maps.whole[-1]
        self._has_values, self._has_scale = weighted.values is not None, weighted.row_scale is not None
        sizes = edges if self._has_values else [bound.rows for bound in bounds] if self._has_scale else []
        self._weights = _Arrays(sizes, torch.float32, device)
        self._of_offset, self._offset_places = self._offsets.numbers()
        self._of_map, self._map_places = self._maps.numbers()
        # Behind a map comes a map of each place to itself, and behind the nodes node 0.
        self._behind = self._map_places.clone().masked_fill_(self._of_map == len(edges), 0)
        # Of each array of offsets how many are its own, and the last; of each map how many are its own; and
        # the numbers of nodes of `paddings`.
        counts = 2 * len(sides) + 2 * (len(edges) + 1)
        self._counts = torch.zeros(counts, dtype=torch.int32, device=device)
        self._loaded: deque[torch.cuda.Event] = deque()
        made = zip(bounds, sampler.most_edges, strict=True)
        self._cores = [self._core(at, sampler, *both) for at, both in enumerate(made)]
        self.adjs = [SparseOperand(core) for core in self._cores]

    def _core(
        self, at: int, sampler: NeighborSampler, bound: BlockBound, most: tuple[int, int]
    ) -> OperandCore:
        """Makes the state of a block's operand over its places."""
        sides = []
        for side, cols in enumerate((bound.cols, bound.rows)):
            offsets = self._offsets.whole[2 * at + side]
            offsets[-1] = bound.nnz  # on the CPU a native handle checks the offsets when it is made
            sides.append(PaddedCsr(offsets, self._columns.whole[2 * at + side], cols))
            assert sides[-1].view is not None
        index = self._maps.whole[at]
        index.copy_(torch.arange(bound.nnz, dtype=index.dtype, device=index.device))
        weights = self._weights.whole[at] if self._weights.whole else None
        arrays = BlockArrays(
            self.nodes[: bound.rows], self.nodes[: bound.cols], sides[0], sides[1], index,
            weights if self._has_values else None, weights if self._has_scale else None,
        )  # fmt: skip
        core = make_core(arrays, sampler.normalization, sampler.precision, renewable=True)
        limits = most[0], min(most[1], bound.rows)  # a column has one edge to each row at most
        for cache, longest in zip(core.caches, limits, strict=True):
            cache.longest_row, cache.tuner, cache.keeps_rows_whole = longest, BatchPlans(longest), True
        return core

    def takes(self, blocks: Sequence[BlockArrays]) -> bool:
        """Returns whether there is room for a sample."""
        return all(bound.takes(block) for bound, block in zip(self._bounds, blocks, strict=True))

    def load(self, blocks: Sequence[BlockArrays]) -> None:
        """Copies the arrays of a sample, for which there is room, to their places on the current stream."""
        self._wait()
        structures = [csr for block in blocks for csr in (block.csr, block.transposed)]
        self._offsets.copy([csr.indptr for csr in structures])
        self._columns.copy([csr.indices for csr in structures])
        self._maps.copy([*(block.index for block in blocks), blocks[0].sources])
        if self._has_values:
            self._weights.copy([block.values for block in blocks if block.values is not None])
        elif self._has_scale:
            self._weights.copy([block.row_scale for block in blocks if block.row_scale is not None])
        own = [csr.rows + 1 for csr in structures]
        last = [csr.nnz for csr in structures]
        nodes = [blocks[0].csr.cols, *(block.csr.rows for block in blocks)]
        counts = [*own, *last, *last[::2], nodes[0], *nodes]
        pin = path().takes(self._device) and self._device.type == "cuda"
        given = torch.tensor(counts, dtype=torch.int32, device="cpu", pin_memory=pin)
        self._counts.copy_(given, non_blocking=True)

    def _wait(self) -> None:
        """Lets the host be a few samples ahead of the GPU at most: each takes memory until it was copied."""
        if self._device.type != "cuda":
            return
        if len(self._loaded) == _AHEAD:
            self._loaded.popleft().synchronize()
        # Before the copies of this sample: they come after the step on the sample before.
        self._loaded.append(torch.cuda.current_stream(self._device).record_event())

    def assemble(self) -> None:
        """Gives what is behind a sample's own offsets, maps and nodes its values, and renews the operands."""
        sides = 2 * len(self._bounds)
        blocks = len(self._bounds)
        own, last, mapped, nodes = self._counts.split([sides, sides, blocks + 1, blocks + 1])
        offsets, maps = self._offsets.flat, self._maps.flat
        is_own = self._offset_places < own.index_select(0, self._of_offset)
        torch.where(is_own, offsets, last.index_select(0, self._of_offset), out=offsets)
        is_own = self._map_places < mapped.index_select(0, self._of_map)
        torch.where(is_own, maps, self._behind, out=maps)
        for core in self._cores:
            core.renew()
        rows = [self._bounds[0].cols, *(bound.rows for bound in self._bounds)]
        self.paddings = tuple(Padding.of(count, size) for count, size in zip(nodes, rows, strict=True))
