"""Blocks: the layers of a sample, drawn one after another or on a GPU at once, and their operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from gnnsparse.formats.csr import Csr, check_range
from gnnsparse.plan import CsrPlan, Plan, Problem, choose_plan
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import path
from gnnsparse.runtime.memo import ForkLock
from gnnsparse.sampling.draws import (
    Drawn,
    LayerDraw,
    Neighbourhood,
    Nodes,
    Numbering,
    draw_edges,
    launch,
    merge_repeats,
    refuse_repeat,
)
from gnnsparse.sparse.kernel_cache import KernelCache, Product
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.prepared import Prepared, assemble, inverse

#: Edges of a layer for which there may be room at once. Of more the number is waited for, which takes less
#: time than the memory would be worth.
MOST_EDGES = 2**24
#: Numbers that the kernels find out about a layer, SampleSizes in the native header.
EDGES, SOURCES, _DISTINCT, _LONGEST = range(4)


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer of a sample."""

    targets: torch.Tensor  # int32 [rows], the nodes whose neighbours were drawn
    drawn: Drawn
    sources: torch.Tensor  # int32 [sources], the node of each number
    numbers: torch.Tensor  # int32 [edges], the number of the source of each edge
    longest: tuple[int, int] | None = None  # numbers of edges that no row and no source exceeds, if known
    trees: torch.Tensor | None = None  # int32 [sources] of a disjoint sample, the seed of each


def draw_in_turn(
    graph: Neighbourhood,
    numbering: Numbering,
    seeds: Nodes,
    draws: Sequence[LayerDraw],
    times: torch.Tensor | None = None,
) -> list[Layer]:
    """Draw the layers of a sample, on a GPU with several waits for each.

    A seed that is repeated is a ValueError, unless each has a tree. `times` are those of the seeds.
    """
    layers, targets = [], seeds
    for layer in draws:
        drawn = draw_edges(graph, targets, layer, times=times)
        known = targets if graph.is_square else targets.between(0, 0)
        sources, numbers = numbering.extend(known, targets.sources(drawn))
        layers.append(Layer(targets.ids, drawn, sources.ids, numbers, trees=sources.trees))
        targets = sources
    return layers


def fits_at_once(graph: Neighbourhood, rows: int, draws: Sequence[LayerDraw]) -> bool:
    """Return whether there may be room for the most that can be drawn of so many seeds."""
    for layer in draws:
        if layer.row_edges is None or rows * layer.row_edges > MOST_EDGES:
            return False
        rows = min(rows + rows * layer.row_edges, graph.csr.cols)
    return True


def draw_at_once(
    graph: Neighbourhood, numbering: Numbering, seeds: torch.Tensor, draws: Sequence[LayerDraw]
) -> list[Layer] | None:
    """Draw what `draw_in_turn` draws on a GPU, into arrays that have room for the most that can be drawn.

    The kernels of a layer read from the GPU's memory how much the layer before has drawn; the host waits
    once, for the sizes of all. Seeds may be int64, and one out of range is a ValueError. The result is None
    if there are no seeds, a row may have any number of edges, or there would be too many.
    """
    nodes = graph.csr.rows
    if seeds.numel() == 0 or nodes == 0 or not fits_at_once(graph, seeds.numel(), draws):
        return None
    counts = torch.zeros(len(draws) + 1, 4, dtype=torch.int32, device=seeds.device)
    # Seeds that are out of range are noticed after the kernels have run, which are given others.
    targets = seeds.clamp(0, nodes - 1)
    counts[-1, 0] = (targets != seeds).any()
    targets, layers = targets.to(torch.int32), []
    used: torch.Tensor | None = None  # int32 [1], how many of the targets there are; None: all
    with numbering.using_places() as place:
        for number, layer in enumerate(draws):
            made = draw_layer(graph, place, targets, layer, used, counts[number])
            layers.append(made)
            targets, used = made.sources, counts[number, SOURCES : SOURCES + 1]
        found = path().read(counts.view(-1))
    if found[-4]:
        check_range("seeds", seeds, nodes, "the number of nodes")
    if graph.is_square and found[_DISTINCT] != seeds.numel():
        refuse_repeat(seeds)
    used_layers, rows = [], seeds.numel()
    for number, made in enumerate(layers):
        sizes, drawn = found[4 * number : 4 * number + 4], made.drawn
        count = sizes[EDGES]
        copies = None if drawn.copies is None else drawn.copies[:count]
        drawn = Drawn(drawn.indptr[: rows + 1], drawn.nodes[:count], drawn.edges[:count], copies)
        most = draws[number].row_edges or 0, sizes[_LONGEST]
        sources, numbers = made.sources[: sizes[SOURCES]], made.numbers[:count]
        used_layers.append(Layer(made.targets[:rows], drawn, sources, numbers, most))
        rows = sizes[SOURCES]
    return used_layers


def draw_layer(
    graph: Neighbourhood,
    place: torch.Tensor,
    targets: torch.Tensor,
    layer: LayerDraw,
    used: torch.Tensor | None,
    counts: torch.Tensor,
    step: torch.Tensor | None = None,
    known: tuple[torch.Tensor, torch.Tensor | None] | None = None,
) -> Layer:
    """Draw a layer on a GPU into arrays that have room for the most, and its sizes into `counts`, int32 [4].

    Sources are numbered behind those `known`, and how many of these there are; None: the targets, if they are
    nodes of the same kind. What is behind the sizes has any numbers.
    """
    device = targets.device
    drawn = draw_edges(graph, Nodes(targets), layer, used, step=step, waits=False)
    numbers = torch.empty_like(drawn.nodes)
    own, own_used = known or ((targets, used) if graph.is_square else (targets[:0], None))
    rank = torch.empty(own.numel() + numbers.numel(), dtype=torch.int32, device=device)
    launch(device, "cuda_mark_first", own, drawn.nodes, place, rank, own_used, drawn.indptr)
    rank.cumsum_(0)
    different = min(rank.numel(), place.numel())
    sources = torch.empty(different, dtype=torch.int32, device=device)
    uses = torch.zeros(different, dtype=torch.int32, device=device)
    launch(
        device, "cuda_number_nodes", own, drawn.nodes, rank, place, sources, numbers, own_used, drawn.indptr,
        uses, counts,
    )  # fmt: skip
    return Layer(targets, drawn, sources, numbers)


def draw_padded(
    graph: Neighbourhood,
    place: torch.Tensor,
    seeds: torch.Tensor,
    step: torch.Tensor,
    draws: Sequence[LayerDraw],
    sizes: Sequence[tuple[int, int, int]],
) -> tuple[list[BlockArrays], torch.Tensor]:
    """Draw what `draw_at_once` draws, different `seeds` in range, into arrays of fixed sizes.

    The host waits for nothing and gives no numbers, so that a CUDA graph can hold it. `place` is that of a
    Numbering, and `step`, int64 [1], has the number of the draw.

    Args:
        graph, seeds, draws: see `draw_at_once`; the graph is square, and seeds are int32.
        place: see Numbering.
        step: int64 [1], the number of the draw.
        sizes: for each layer from the seeds outwards the rows, columns and nonzeros of its arrays. Columns
            are the rows of the next one; rows and columns are more than are drawn.

    Returns:
        The arrays of blocks in the order in which layers run, and int32 [layers, 2] the nonzeros and columns
        that were drawn, from the seeds outwards. If that is more than `sizes`, arrays hold anything.
        Nonzeros behind those that were drawn join the last row to the last column.
    """
    device = seeds.device
    counts = torch.zeros(len(draws), 4, dtype=torch.int32, device=device)
    targets = resized(seeds, sizes[0][0])
    used = torch.full((1,), seeds.numel(), dtype=torch.int32, device=device)
    found = []
    for layer, (_, cols, nnz), own in zip(draws, sizes, counts, strict=True):
        made = draw_layer(graph, place, targets, layer, used, own, step)
        drawn, places = made.drawn, torch.arange(max(cols, nnz), dtype=torch.int64, device=device)
        # All that is behind gets numbers in range.
        indptr, behind = drawn.indptr.clamp(max=nnz), places[:nnz] >= drawn.indptr[-1:]
        indptr[-1:].fill_(nnz)
        nodes, edges, numbers = (
            resized(x, nnz).masked_fill(behind, value)
            for x, value in ((drawn.nodes, 0), (drawn.edges, 0), (made.numbers, cols - 1))
        )
        copies = None if drawn.copies is None else resized(drawn.copies, nnz).masked_fill(behind, 1.0)
        drawn, numbers = Drawn(indptr, nodes, edges, copies), numbers.clamp_(max=cols - 1)
        sources = resized(made.sources, cols).masked_fill(places[:cols] >= own[SOURCES], 0)
        found.append(arrange(graph, Layer(targets, drawn, sources, numbers), keep_edge_ids=False))
        targets, used = sources, own[SOURCES : SOURCES + 1].clamp(max=cols)
    return found[::-1], counts[:, : SOURCES + 1]


def resized(x: torch.Tensor, size: int) -> torch.Tensor:
    """Return the first elements of a vector, with zeros behind if it has fewer."""
    return x[:size] if x.numel() >= size else torch.nn.functional.pad(x, (0, size - x.numel()))


#: Rows of blocks with more nonzeros are split into parts, whatever the width of X, so that their parts can be
#: made with the block.
ROW_LIMIT = 256
#: Leading bits of a size by which plans are cached, and the most plans.
_BITS, _MOST = 3, 512


def _rounded(count: int) -> int:
    """Return a size with its leading bits alone."""
    shift = max(0, count.bit_length() - _BITS)
    return count >> shift << shift


class BlockPlans:
    """Chooses the plans of blocks on a GPU, as the attribute `tuner` of their KernelCaches.

    A plan is chosen for rounded sizes, so that few are, and depends on the block alone, not on those before:
    a resumed run has the plans of one that was not interrupted.
    """

    def __init__(self) -> None:
        self._found: dict[Problem, Plan] = {}
        self._lock = ForkLock()

    def __reduce__(self) -> Any:
        return BlockPlans, ()  # each process chooses its own

    def __call__(self, kernels: KernelCache, product: Product) -> Plan:
        """Return the plan of a product."""
        given = kernels.problem(product)
        rows, cols, nnz = (_rounded(count) for count in (given.rows, given.cols, given.nnz))
        problem = replace(given, rows=rows, cols=cols, nnz=nnz)
        plan = self._found.get(problem)
        if plan is None:
            plan = choose_plan(problem)
            if isinstance(plan, CsrPlan):
                plan = replace(plan, row_limit=ROW_LIMIT)
            with self._lock:
                if len(self._found) >= _MOST:
                    self._found.clear()
                self._found[problem] = plan
        longest = kernels.longest_row
        if isinstance(plan, CsrPlan) and (longest is None or longest > ROW_LIMIT):
            return replace(plan, group=0, narrow=False)  # which rows form groups depends on which are split
        return plan


@dataclass(frozen=True, eq=False)
class Block:
    """The edges that were drawn for one layer: a matrix of targets by sources.

    Attributes:
        adj: the operand [targets, sources], which layers of `gnnsparse.nn` take, and `adj.T`.
        targets: int64 [targets], the node of each row.
        sources: int64 [sources], the node of each column, in the order of first appearance. If targets and
            sources are nodes of one kind, the first sources are the targets.
        edge_ids: int64 [nnz] in the operand's order, for each nonzero the edge of the graph, as they were
            given; of repeated edges the first; -1 for a self-loop that was added. None: they are not kept.
        trees: int64 [sources], the position of the seed in whose tree each source is, which are the targets'
            first; a node that several trees have is several sources. None: the sample is not disjoint.
    """

    adj: SparseOperand
    targets: torch.Tensor
    sources: torch.Tensor
    edge_ids: torch.Tensor | None = None
    trees: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class BlockArrays:
    """The arrays of a block, of which an operand is made, or which are copied to where one has its own."""

    targets: torch.Tensor  # int32 [targets], the node of each row
    sources: torch.Tensor  # int32 [sources], the node of each column
    csr: Csr  # the structure, [targets, sources]
    transposed: Csr
    index: torch.Tensor  # for each nonzero of the transpose its index in `csr`, int32 or int64 [nnz]
    values: torch.Tensor | None = None  # float32 [nnz], the weights of the edges
    row_scale: torch.Tensor | None = None  # float32 [targets], factors of the rows
    edge_ids: torch.Tensor | None = None  # see Block
    longest: tuple[int, int] | None = None  # numbers of nonzeros that no row and no column exceeds, if known
    trees: torch.Tensor | None = None  # int32 [sources], see Block


def arrange(graph: Neighbourhood, layer: Layer, *, keep_edge_ids: bool) -> BlockArrays:
    """Make the arrays of a block of edges that were drawn."""
    drawn, sources, numbers = layer.drawn, layer.sources, layer.numbers
    values, row_scale = graph.weigh(layer.targets, drawn)
    if graph.repeats:
        drawn, numbers, values = merge_repeats(drawn, numbers, values)
    # What is transposed twice has ascending columns in every row, without any comparison.
    transposed, first = Csr(drawn.indptr, numbers, sources.numel()).transpose()
    csr, second = transposed.transpose()
    edge_ids = None
    if values is not None or keep_edge_ids:
        order = first.long()[second.long()]
        values = None if values is None else values[order]
        edge_ids = graph.edge_ids(drawn.edges[order]) if keep_edge_ids else None
    index = inverse(second)
    return BlockArrays(
        layer.targets, sources, csr, transposed, index, values, row_scale, edge_ids, layer.longest,
        layer.trees,
    )  # fmt: skip


def prepare_block(
    arrays: BlockArrays, normalization: str | None, precision: Precision, *, renewable: bool = False
) -> Prepared:
    """Make the state of a block's operand, whose arrays will be overwritten if it is renewable."""
    # On a GPU it is used on the stream on which it is made, or on one that waits for it.
    cache = KernelCache(arrays.csr, given_values=arrays.values, given_row_scale=arrays.row_scale)
    return assemble(
        cache, arrays.transposed, arrays.index, normalization=normalization,
        added_loops=1.0 if normalization == "gcn" else None, precision=precision, one_stream=True,
        renewable=renewable,
    )  # fmt: skip


def plan_blocks(
    blocks: Sequence[Block], plans: BlockPlans, longest: Sequence[tuple[int, int] | None]
) -> None:
    """Ready the products of blocks on a GPU, so that the host does not wait for it in a step.

    It waits here, once, if `longest` does not say for each block how many nonzeros no row and no column
    exceeds; and more often for each block with rows that have to be divided.
    """
    unknown = [
        kernels.csr.degrees.max() if kernels.csr.rows else kernels.csr.indptr[0]
        for block, bounds in zip(blocks, longest, strict=True)
        if bounds is None
        for kernels in (block.adj.kernels, block.adj.T.kernels)
    ]
    found = iter(path().read(torch.stack(unknown)) if unknown else ())
    for block, bounds in zip(blocks, longest, strict=True):
        caches = block.adj.kernels, block.adj.T.kernels
        for kernels, most in zip(caches, bounds or (next(found), next(found)), strict=True):
            kernels.longest_row, kernels.tuner = most, plans
            if most > ROW_LIMIT:
                kernels.row_work(ROW_LIMIT)
