"""Training steps on sampled neighbourhoods of nodes."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from gnnsparse.data.graph_batches import BatchPlans
from gnnsparse.data.splits import split_generator
from gnnsparse.distributed.exchange import Pending
from gnnsparse.distributed.training import start_all_of_ranks
from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import PaddedCsr
from gnnsparse.precision import PRECISIONS
from gnnsparse.runtime.device import path
from gnnsparse.runtime.memo import cached_property
from gnnsparse.runtime.padding import Padding
from gnnsparse.runtime.timing import CaptureError, capture
from gnnsparse.sampling import FeatureStore, NeighborSampler, prefetch
from gnnsparse.sampling.blocks import BlockArrays, prepare_block
from gnnsparse.sampling.draws import Numbering
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.prepared import Prepared
from gnnsparse.train.data import StepInput, shuffled_epochs
from gnnsparse.train.settings import SamplerConfig
from gnnsparse.train.tasks import text_of

if TYPE_CHECKING:
    from gnnsparse.sparse.graph import SparseGraph
    from gnnsparse.train.data import PreparedData
    from gnnsparse.train.tasks import RunOptions

#: Sizes are multiples of this, so that rows of 16-bit numbers are aligned and products are of whole tiles.
_MULTIPLE = 64
#: Arrays have room for the mean of the samples that were looked at and so many standard deviations, or for
#: the largest of them, and for a fraction more.
_DEVIATIONS, _MORE = 4, 1 / 64
#: Batches that are loaded ahead of the GPU at most: each keeps its arrays until they were copied.
_AHEAD = 4


@dataclass(frozen=True)
class BlockBound:
    """The sizes of a block's padded operand: a row, a column and a nonzero more than a sample has."""

    rows: int
    cols: int
    nnz: int

    def takes(self, block: BlockArrays) -> bool:
        """Return whether there is room for a block."""
        csr = block.csr
        return csr.rows < self.rows and csr.cols < self.cols and csr.nnz <= self.nnz


def rounded(size: int) -> int:
    """Return the next multiple of _MULTIPLE."""
    return -(-size // _MULTIPLE) * _MULTIPLE


def size_for(sizes: Sequence[int], most: int) -> int:
    """Return a size that samples hardly ever exceed, after the sizes of some; at most `most`."""
    mean = sum(sizes) / len(sizes)
    deviation = math.sqrt(sum((size - mean) ** 2 for size in sizes) / max(len(sizes) - 1, 1))
    return min(most, math.ceil((1 + _MORE) * max(*sizes, mean + _DEVIATIONS * deviation)))


def bounds_of(
    samples: Sequence[Sequence[BlockArrays]], nodes: int, most_edges: Sequence[tuple[int, int]]
) -> list[BlockBound]:
    """Return sizes that samples hardly ever exceed, after the blocks of some that were drawn."""
    # Rows grow from the last block to the first, so that their number tells the block of an array.
    # `most_edges` are numbers of nonzeros that no row and no column of each block exceeds.
    found: list[BlockBound] = []
    rows = rounded(samples[0][-1].csr.rows + 1)
    for at in reversed(range(len(samples[0]))):
        blocks = [sample[at].csr for sample in samples]
        cols = rounded(max(size_for([csr.cols for csr in blocks], nodes), rows) + 1)
        edges = size_for([csr.nnz for csr in blocks], rows * most_edges[at][0])
        found.append(BlockBound(rows, cols, rounded(max(edges, 1))))
        rows = cols
    return found[::-1]


class _Arrays:
    """Arrays of one dtype, one behind another in `flat`, each with room for some elements (`whole`)."""

    def __init__(self, sizes: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self._rooms = [rounded(size) for size in sizes]  # kernels need each to be aligned
        self.flat = torch.zeros(sum(self._rooms), dtype=dtype, device=device)
        self.whole = [part[:size] for part, size in zip(self.flat.split(self._rooms), sizes, strict=True)]

    def copy(self, given: Sequence[torch.Tensor]) -> None:
        """Copy an array to the begin of each."""
        if given:
            own = [array.numel() for array in given]
            cuts = [cut for n, room in zip(own, self._rooms, strict=True) for cut in (n, room - n)]
            torch._foreach_copy_(list(self.flat.split_with_sizes(cuts)[::2]), list(given))

    def numbers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return for each element of `flat` the number of its array, and its place in it, int32."""
        rooms = torch.tensor(self._rooms, dtype=torch.int64, device="cpu")
        array = torch.repeat_interleave(rooms)
        index = torch.arange(array.numel(), dtype=torch.int64, device="cpu")
        place = index - (rooms.cumsum(0) - rooms)[array]
        return array.int().to(self.flat.device), place.int().to(self.flat.device)


class BlockBuffers:
    """Arrays of fixed sizes for the blocks of a sample, and for the nodes of the first one's columns."""

    def __init__(self, bounds: Sequence[BlockBound], weighted: BlockArrays, device: torch.device) -> None:
        edges = [bound.nnz for bound in bounds]
        # Offsets of each block and of its transpose; maps to the transpose and the nodes; columns of both.
        sides = [size + 1 for bound in bounds for size in (bound.rows, bound.cols)]
        self.offsets = _Arrays(sides, torch.int64, device)
        self.maps = _Arrays([*edges, bounds[0].cols], torch.int32, device)
        self.columns = _Arrays([nnz for nnz in edges for _ in range(2)], torch.int32, device)
        self.has_values, self.has_scale = weighted.values is not None, weighted.row_scale is not None
        sizes = edges if self.has_values else [bound.rows for bound in bounds] if self.has_scale else []
        self.weights = _Arrays(sizes, torch.float32, device)
        # Of each array of offsets how many are its own, and the last; of each map how many are its own; and
        # the numbers of nodes of `StaticBlocks.paddings`.
        counts = 2 * len(sides) + 2 * (len(edges) + 1)
        self.counts = torch.zeros(counts, dtype=torch.int32, device=device)
        self.flat = [self.offsets.flat, self.maps.flat, self.columns.flat, self.weights.flat, self.counts]

    def copy(self, blocks: Sequence[BlockArrays]) -> None:
        """Copy the arrays of blocks, for which there is room."""
        structures = [csr for block in blocks for csr in (block.csr, block.transposed)]
        self.offsets.copy([csr.indptr for csr in structures])
        self.columns.copy([csr.indices for csr in structures])
        self.maps.copy([*(block.index for block in blocks), blocks[0].sources])
        if self.has_values:
            self.weights.copy([block.values for block in blocks if block.values is not None])
        elif self.has_scale:
            self.weights.copy([block.row_scale for block in blocks if block.row_scale is not None])


class StaticArrays:
    """Static buffers `flat` of a sample, which the arrays that were drawn are copied to."""

    def __init__(self, flat: Sequence[torch.Tensor]) -> None:
        self.flat, self._device = list(flat), flat[0].device
        self._loaded: deque[torch.cuda.Event] = deque()

    def load_padded(self, flat: Sequence[torch.Tensor]) -> None:
        """Copy what PaddedDraws has drawn, on the current stream."""
        self._wait()
        for own, given in zip(self.flat, flat, strict=True):
            own.copy_(given)

    def _wait(self) -> None:
        """Let the host be a few samples ahead of the GPU at most: each takes memory until it was copied."""
        if self._device.type != "cuda":
            return
        if len(self._loaded) == _AHEAD:
            self._loaded.popleft().synchronize()
        # Before the copies of this sample: they come after the step on the sample before.
        self._loaded.append(torch.cuda.current_stream(self._device).record_event())


class StaticBlocks(StaticArrays):
    """Static buffers for the operands of a sample's blocks, and for the nodes of the first one's columns.

    Rows behind those of a sample have no edges, and nonzeros behind its own belong to no row. `load` copies
    arrays into them, and `assemble` makes what is behind them, and `paddings` (of the first block's columns
    and of each block's rows), by operations that a CUDA graph can hold. `weighted` shows what weights to
    hold.
    """

    paddings: tuple[Padding, ...]

    def __init__(self, sampler: NeighborSampler, bounds: Sequence[BlockBound], weighted: BlockArrays) -> None:
        device = sampler.device
        self._bounds, self._buffers = list(bounds), BlockBuffers(bounds, weighted, device)
        super().__init__(self._buffers.flat)
        self.nodes = self._buffers.maps.whole[-1]
        self._of_offset, self._offset_places = self._buffers.offsets.numbers()
        self._of_map, self._map_places = self._buffers.maps.numbers()
        # Behind a map comes a map of each place to itself, and behind the nodes node 0.
        self._behind = self._map_places.clone().masked_fill_(self._of_map == len(bounds), 0)
        made = zip(bounds, sampler.most_edges, strict=True)
        self._prepared = [self._prepare(at, sampler, *both) for at, both in enumerate(made)]
        self.adjs = [SparseOperand(prepared) for prepared in self._prepared]

    def _prepare(
        self, at: int, sampler: NeighborSampler, bound: BlockBound, most: tuple[int, int]
    ) -> Prepared:
        """Make the state of a block's operand over its buffers."""
        sides, buffers = [], self._buffers
        for side, cols in enumerate((bound.cols, bound.rows)):
            offsets = buffers.offsets.whole[2 * at + side]
            offsets[-1] = bound.nnz  # on the CPU a native handle checks the offsets when it is made
            sides.append(PaddedCsr(offsets, buffers.columns.whole[2 * at + side], cols))
            assert sides[-1].view is not None
        index = buffers.maps.whole[at]
        index.copy_(torch.arange(bound.nnz, dtype=index.dtype, device=index.device))
        weights = buffers.weights.whole[at] if buffers.weights.whole else None
        arrays = BlockArrays(
            self.nodes[: bound.rows], self.nodes[: bound.cols], sides[0], sides[1], index,
            weights if buffers.has_values else None, weights if buffers.has_scale else None,
        )  # fmt: skip
        prepared = prepare_block(arrays, sampler.normalization, sampler.precision, renewable=True)
        limits = most[0], min(most[1], bound.rows)  # a column has one edge to each row at most
        for cache, longest in zip(prepared.caches, limits, strict=True):
            cache.longest_row, cache.tuner, cache.keeps_rows_whole = longest, BatchPlans(longest), True
        return prepared

    def takes(self, blocks: Sequence[BlockArrays]) -> bool:
        """Return whether there is room for a sample."""
        return all(bound.takes(block) for bound, block in zip(self._bounds, blocks, strict=True))

    def load(self, blocks: Sequence[BlockArrays]) -> None:
        """Copy the arrays of a sample, for which there is room, on the current stream."""
        self._wait()
        self._buffers.copy(blocks)
        structures = [csr for block in blocks for csr in (block.csr, block.transposed)]
        own = [csr.rows + 1 for csr in structures]
        last = [csr.nnz for csr in structures]
        nodes = [blocks[0].csr.cols, *(block.csr.rows for block in blocks)]
        counts = [*own, *last, *last[::2], nodes[0], *nodes]
        pin = path().takes(self._device) and self._device.type == "cuda"
        given = torch.tensor(counts, dtype=torch.int32, device="cpu", pin_memory=pin)
        self._buffers.counts.copy_(given, non_blocking=True)

    def assemble(self) -> None:
        """Give what is behind a sample's own offsets, maps and nodes its values, and renews the operands."""
        sides = 2 * len(self._bounds)
        blocks = len(self._bounds)
        own, last, mapped, nodes = self._buffers.counts.split([sides, sides, blocks + 1, blocks + 1])
        offsets, maps = self._buffers.offsets.flat, self._buffers.maps.flat
        is_own = self._offset_places < own.index_select(0, self._of_offset)
        torch.where(is_own, offsets, last.index_select(0, self._of_offset), out=offsets)
        is_own = self._map_places < mapped.index_select(0, self._of_map)
        torch.where(is_own, maps, self._behind, out=maps)
        for prepared in self._prepared:
            prepared.renew()
        rows = [self._bounds[0].cols, *(bound.rows for bound in self._bounds)]
        self.paddings = tuple(Padding(count, size) for count, size in zip(nodes, rows, strict=True))


class PaddedBlockDraw:
    """Draws samples into arrays of the sizes of StaticBlocks; the host waits for nothing."""

    def __init__(self, sampler: NeighborSampler, bounds: Sequence[BlockBound], weighted: BlockArrays) -> None:
        device = sampler.device
        self._sampler, self._sizes = sampler, [(b.rows, b.cols, b.nnz) for b in reversed(bounds)]
        self._place = Numbering(sampler.num_nodes, device).place
        self._buffers = BlockBuffers(bounds, weighted, device)
        # The numbers of rows from the seeds outwards, and of the last columns, and those of nonzeros.
        layers, blocks = len(bounds), range(len(bounds) - 1, -1, -1)
        own = [size for layer in blocks for size in (layer, layer + 1)]
        edges = [layers + 1 + layer for layer in blocks]
        nodes = [layers, *blocks]
        order = [*own, *(size for size in edges for _ in range(2)), *edges, nodes[0], *nodes]
        self._order = torch.tensor(order, dtype=torch.int64, device=device)
        self._more = (torch.arange(len(order), dtype=torch.int32, device="cpu") < len(own)).int().to(device)
        most = [(nnz, cols - 1) for _, cols, nnz in self._sizes]
        self._most = torch.tensor(most, dtype=torch.int32, device=device)

    def __call__(self, seeds: torch.Tensor, step: torch.Tensor) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Return what `StaticArrays.load_padded` takes, and whether there was room."""
        blocks, counts = self._sampler.draw_padded(seeds, step, self._place, self._sizes)
        self._buffers.copy(blocks)
        rows = torch.full((1,), seeds.numel(), dtype=torch.int32, device=seeds.device)
        sizes = torch.cat([rows, counts[:, 1], counts[:, 0]])
        torch.add(sizes.index_select(0, self._order), self._more, out=self._buffers.counts)
        return self._buffers.flat, (counts <= self._most).all()


class PaddedDraws:
    """Draws samples of `count` seeds into arrays of fixed sizes, by a CUDA graph on a GPU.

    The host gives seeds and the number of the step, replays the graph and reads whether there was room, where
    it would launch a hundred kernels one by one. The graph holds a call of `draw`, which gets seeds, int32
    [count], and the step, int64 [1], and returns arrays and whether there was room.
    """

    def __init__(
        self, draw: Callable[[torch.Tensor, torch.Tensor], tuple[list[torch.Tensor], torch.Tensor]],
        count: int, device: torch.device,
    ) -> None:  # fmt: skip
        self._draw = draw
        self._seeds = torch.zeros(count, dtype=torch.int64, device=device)
        self._step = torch.zeros(1, dtype=torch.int64, device=device)
        # It is replayed in another thread, on the stream on which prefetch makes batches.
        self._replay = self._run
        if device.type == "cuda":
            with path().current(device):
                self._replay = capture(self._run, 1)

    def _run(self) -> None:
        # Of the capture they are where each replay leaves its own.
        self._found, self._fits = self._draw(self._seeds.int(), self._step)

    def __call__(self, nodes: torch.Tensor, ids: torch.Tensor, step: int) -> list[torch.Tensor] | None:
        """Draw for `nodes[ids]`; return what `StaticArrays.load_padded` takes, or None without room."""
        torch.index_select(nodes, 0, ids, out=self._seeds)
        self._step.fill_(step)
        self._replay()
        found = [array.clone() for array in self._found]
        return found if path().read(self._fits.view(1))[0] else None


_Drawn = TypeVar("_Drawn")
_log = logging.getLogger("gnnsparse.train")

#: Samples that are drawn before the first step, by which arrays are sized.
_LOOKED_AT = 16


@dataclass(frozen=True, eq=False)
class NodeBatch:
    """Nodes to train on, features of their sampled neighbours, and the operands of the layers' blocks."""

    # The targets of the last block are the nodes. In static buffers `paddings` say which rows are nodes, and
    # the model has more rows of results than `y`. `data` has the whole graph for validation, and `fraction`
    # is this process' of the numbers that the loss is a mean over, on the device in static buffers.

    x: torch.Tensor
    adj: list[SparseOperand]
    y: torch.Tensor
    data: Any
    paddings: tuple[Padding, ...] = ()
    fraction: float | torch.Tensor = 1.0


@dataclass(frozen=True, eq=False)
class PaddedBatch:
    """What PaddedDraws has drawn for a step: `ids` among the nodes to train on, and the arrays of blocks."""

    # Without `flat` there was no room. `step` and `fraction` are those of `NodeBatches.draw`.

    ids: torch.Tensor
    flat: list[torch.Tensor] | None
    step: int
    fraction: float


@dataclass(frozen=True, eq=False)
class DrawnBatch:
    """What was drawn for a step: `ids` among the nodes to train on, and arrays of the layers' blocks."""

    # Without `x` the features of the first block's sources are gathered in the step, on the device.

    ids: torch.Tensor
    blocks: tuple[BlockArrays, ...]
    x: torch.Tensor | None
    fraction: float = 1.0


def make_sampler(
    config: SamplerConfig, graph: SparseGraph, values: str | None, data: PreparedData, seed: int
) -> NeighborSampler:
    """Make the sampler of a run, for operands with the weights `values` on the device of the data."""
    config.check_times(False)
    if config.fanouts is None:
        accepted = "a number for each layer, or settings.with_fanouts(model)"
        bad_value("sampler.fanouts", f"got None for a model that is not known yet; accepted: {accepted}")
    return NeighborSampler(
        graph,
        list(config.fanouts),
        method=config.method,
        replace=config.replace,
        values=values,
        precision=data.precision,
        seed=seed,
        device=data.device,
    )


def make_store(
    config: SamplerConfig, x: torch.Tensor, sampler: NeighborSampler, data: PreparedData
) -> FeatureStore:
    """Make the store of a run's features; raise ValueError if the placement does not go with the device."""
    on_gpu = path().takes(data.device)
    if config.features == "pinned" and not on_gpu:
        bad_value("sampler.features", "got 'pinned' on the CPU; accepted: auto, device, host")
    stored = data.precision.storage if data.device.type == "cuda" else torch.float32
    stays = x.is_cpu and x.dtype == torch.float16 and not on_gpu and config.features == "auto"
    return FeatureStore(
        x,
        "host" if stays else config.features,  # rows become float32 when they are taken
        device=data.device,
        dtype=PRECISIONS[stored].value,
        uses=sampler.source_degrees if on_gpu and config.features in ("auto", "pinned") else None,
        cache_share=config.cache_share,
    )


def sampler_identity(run: RunOptions) -> dict[str, Any]:
    """Return what decides which neighbours a step takes, for Task.identity; None: it takes all."""
    options = dataclasses.asdict(run.sampler)
    for name in ("prefetch", "features", "cache_share"):  # they change no number
        del options[name]
    return {"sampler": text_of(options | {"seed": run.seed}) if run.sampler.draws else None}


def check_blocks(model: Any, config: SamplerConfig, as_graph: bool = False) -> None:
    """Raise a ValueError unless a model takes so many sampled blocks (`num_convolutions`).

    With `as_graph` it gets what was drawn as one graph, which models of any layers take.
    """
    layers = getattr(model, "num_convolutions", None)
    if layers is None and as_graph:
        return
    if layers is None:
        bad_value("sampler", f"{type(model).__name__} takes the whole graph alone; accepted: none")
    assert config.fanouts is not None  # with_fanouts
    if layers != len(config.fanouts):
        bad_value(
            "sampler.fanouts",
            f"has {len(config.fanouts)} numbers for a model of {layers} layers; accepted: {layers}",
        )


class NodeBatches:
    """A loader of the training nodes without end, each batch with neighbours that are drawn anew.

    What a step takes depends on the seed and the number of the step alone. Several ranks divide its nodes:
    which these are, and what is drawn for a node, does not depend on their number. A rank that no node is
    left for takes the first one with a fraction of 0, since its gradients are exchanged like those of the
    others.
    """

    def __init__(
        self,
        data: PreparedData,
        sampler: NeighborSampler,
        config: SamplerConfig,
        store: FeatureStore,
        nodes: torch.Tensor,
        y: torch.Tensor,
        seed: int,
    ) -> None:
        self._data, self._sampler, self._config, self._seed = data, sampler, config, seed
        self._store, self._nodes, self._y = store, nodes, y
        self._was_large = False

    def of_other_nodes(self, nodes: torch.Tensor, y: torch.Tensor) -> NodeBatches:
        """Return a loader of other nodes, int64 [n], with the same sampler and features."""
        return type(self)(self._data, self._sampler, self._config, self._store, nodes, y, self._seed)

    @property
    def steps(self) -> int:
        """Number of optimiser steps of an epoch, a pass over all nodes to train on."""
        return -(-self._nodes.numel() // self._config.batch_size)

    def __iter__(self) -> Iterator[NodeBatch]:
        batches = (self.gather(drawn) for drawn in self._drawn(self.draw))
        return prefetch(batches, self._config.prefetch, self._data.device)

    def inputs(self) -> Iterator[StepInput]:
        """Yield the batches as inputs of steps."""
        # Ranks begin to agree about a step before the step before it is launched: when its turn has come,
        # the host does not wait for them.
        peers, ahead = self._data.peers, deque[tuple[DrawnBatch | PaddedBatch, Pending | None]]()
        draw = self.draw if self.buffers.draws is None else self._draw_padded  # captured before a thread runs
        for drawn in prefetch(self._drawn(draw), self._config.prefetch, self._data.device):
            ahead.append(
                (drawn, None if peers is None else start_all_of_ranks(self.buffers.takes(drawn), peers))
            )
            if peers is None or len(ahead) == 2:
                yield self.input_of(*ahead.popleft())
        for rest in ahead:
            yield self.input_of(*rest)

    def input_of(self, drawn: DrawnBatch | PaddedBatch, agreed: Pending | None = None) -> StepInput:
        """Return what was drawn as the input of a step; `agreed` is on which ranks it fits the buffers."""
        # Too large on some rank, or as an epoch's smaller last batch, it stays out of the static buffers.
        single = partial(self.gather, drawn)
        if self.buffers.takes(drawn) if agreed is None else bool(agreed.wait().min()):
            return StepInput(single, self.buffers, partial(self.buffers.load, drawn), self.buffers.batch)
        if drawn.ids.numel() == self.buffers.count and not self._was_large:
            _log.info("trainer.capture: a sample is larger than most; such steps are launched one by one")
            self._was_large = True
        return StepInput(single)

    @cached_property
    def _known(self) -> torch.Tensor:
        """int64 [n] on the CPU, how many known numbers the target of each node has."""
        y = self._y
        is_known = ~y.isnan() if y.is_floating_point() else torch.ones_like(y, dtype=torch.bool)
        return is_known[:, None].flatten(1).sum(dim=1).cpu()

    def _own(self, ids: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Return which nodes of a step this process takes, and their fraction of the loss."""
        if (peers := self._data.peers) is None:
            return ids, 1.0
        part = ids.tensor_split(peers.ranks)[peers.rank]
        fraction = int(self._known[part].sum()) / int(self._known[ids].sum())
        return (part if part.numel() else ids[:1]), fraction

    def _drawn(self, draw: Callable[[int, torch.Tensor, float], _Drawn]) -> Iterator[_Drawn]:
        """Yield what `draw` draws for each step from the next one on."""
        count, size = self._nodes.numel(), self._config.batch_size
        for first, batches in shuffled_epochs(self._data, count, size, self._seed):
            own = [self._own(ids) for ids in batches]
            # All at once: for a copy of each batch's numbers the host would wait for a GPU.
            order = torch.cat([ids for ids, _ in own]).to(self._data.device)
            parts = order.split([ids.numel() for ids, _ in own])
            for step, (ids, (_, fraction)) in enumerate(zip(parts, own, strict=True), first):
                yield draw(step, ids, fraction)

    def draw(self, step: int, ids: torch.Tensor, fraction: float = 1.0) -> DrawnBatch:
        """Draw the neighbours of the nodes `ids`, and gather features that are not on the device."""
        blocks = self._sampler.draw(self._nodes[ids], step % 2**32)
        stays = self._store.placement == "device"
        x = None if stays else self._store.gather(blocks[0].sources.long())
        return DrawnBatch(ids, blocks, x, fraction)

    def _draw_padded(self, step: int, ids: torch.Tensor, fraction: float) -> DrawnBatch | PaddedBatch:
        """Draw what `draw` draws by a CUDA graph, unless the batch is an epoch's smaller last one."""
        if ids.numel() != self.buffers.count or self.buffers.draws is None:
            return self.draw(step, ids, fraction)
        return PaddedBatch(ids, self.buffers.draws(self._nodes, ids, step % 2**32), step, fraction)

    def gather(self, drawn: DrawnBatch | PaddedBatch) -> NodeBatch:
        """Return the batch of what was drawn."""
        if isinstance(drawn, PaddedBatch):
            drawn = self.draw(drawn.step, drawn.ids, drawn.fraction)
        x = self._store.gather(drawn.blocks[0].sources.long()) if drawn.x is None else drawn.x
        adjs, y = self._sampler.operands(drawn.blocks), self._y[drawn.ids]
        return NodeBatch(x, adjs, y, self._data, fraction=drawn.fraction)

    @cached_property
    def buffers(self) -> StaticBatch:
        """Static buffers for batches of the full size, sized by the seed and the nodes alone."""
        order = torch.randperm(self._nodes.numel(), generator=split_generator(0, self._seed))
        batches = order.split(self._config.batch_size)
        full = [self._own(ids)[0] for ids in batches if ids.numel() == batches[0].numel()]
        seeds = [self._nodes[ids.to(self._data.device)] for ids in full[:_LOOKED_AT]]
        return self._make_buffers(list(itertools.islice(itertools.cycle(seeds), _LOOKED_AT)))

    def _make_buffers(self, seeds: Sequence[torch.Tensor]) -> StaticBatch:
        """Make static buffers by samples of equally many seeds each."""
        samples = [self._sampler.draw(nodes, step) for step, nodes in enumerate(seeds)]
        bounds = bounds_of(samples, self._sampler.num_nodes, self._sampler.most_edges)
        blocks, draws = StaticBlocks(self._sampler, bounds, samples[0][0]), None
        if self._store.placement == "device" and self._sampler.pads(len(seeds[0])):
            draws = self._padded_draws(PaddedBlockDraw(self._sampler, bounds, samples[0][0]), len(seeds[0]))
        return StaticBatch(blocks, len(seeds[0]), self._store, self._y, self._data, draws)

    def _padded_draws(self, draw: Any, count: int) -> PaddedDraws | None:
        try:
            return PaddedDraws(draw, count, self._data.device)
        except CaptureError as error:
            _log.warning("trainer.capture: draws can't be captured (%s); a thread launches them", error)
            return None


class StaticBatch:
    """Static buffers for a batch of a fixed number of nodes to train on."""

    # With `draws` a CUDA graph draws for it; None: kernels are launched one by one.

    def __init__(
        self, blocks: Any, count: int, store: FeatureStore | None, y: torch.Tensor, data: PreparedData,
        draws: PaddedDraws | None = None,
    ) -> None:  # fmt: skip
        self.count, self.draws = count, draws
        self._blocks, self._store, self._y, self._data = blocks, store, y, data
        self._ids = torch.zeros(count, dtype=torch.int64, device=data.device)
        self._fraction, self._loaded_fraction = torch.ones((), dtype=torch.float32, device=data.device), 1.0
        self._x: torch.Tensor | None = None
        if store is not None and store.placement != "device":
            size = blocks.nodes.numel(), store.shape[1]
            self._x = torch.zeros(size, dtype=store.dtype, device=data.device)

    def takes(self, drawn: DrawnBatch | PaddedBatch) -> bool:
        """Return whether there is room for what was drawn."""
        if isinstance(drawn, PaddedBatch):
            return drawn.flat is not None
        return drawn.ids.numel() == self.count and self._blocks.takes(drawn.blocks)

    def load(self, drawn: DrawnBatch | PaddedBatch) -> None:
        """Copy what was drawn, for which there is room, on the current stream."""
        if isinstance(drawn, DrawnBatch):
            self._blocks.load(drawn.blocks)
        elif drawn.flat is not None:
            self._blocks.load_padded(drawn.flat)
        self._ids.copy_(drawn.ids)
        if drawn.fraction != self._loaded_fraction:
            self._fraction.fill_(drawn.fraction)
            self._loaded_fraction = drawn.fraction
        if self._x is not None and isinstance(drawn, DrawnBatch) and drawn.x is not None:
            self._x[: drawn.x.shape[0]].copy_(drawn.x)

    def batch(self) -> NodeBatch:
        """Put together the batch that was loaded, by operations that a CUDA graph can hold."""
        # Features behind those of the sample are some node's: no edge leads from them.
        self._blocks.assemble()
        x = self._gather() if self._x is None else self._x
        y = self._y.index_select(0, self._ids)
        return NodeBatch(x, self._blocks.adjs, y, self._data, self._blocks.paddings, self._fraction)

    def _gather(self) -> Any:
        assert self._store is not None
        return self._store.gather(self._blocks.nodes.long())
