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
    Numbering,
    draw_edges,
    launch,
    queue_draws,
    refuse_repeat,
)
from gnnsparse.sampling.neighbourhood import Neighbourhood
from gnnsparse.sparse.kernel_cache import KernelCache, Product
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.prepared import Prepared, assemble, inverse

__all__ = [
    "ROW_LIMIT", "Block", "BlockArrays", "BlockPlans", "arrange", "draw_at_once", "draw_in_turn",
    "make_block", "plan_blocks", "prepare_block",
]  # fmt: skip

#: Edges of a layer for which there may be room at once. Of more the number is waited for, which takes less
#: time than the memory would be worth.
_MOST_EDGES = 2**24
#: Numbers that the kernels find out about a layer, SampleSizes in the native header.
_EDGES, _SOURCES, _DISTINCT, _LONGEST = range(4)


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer of a sample.

    Attributes:
        targets: int32 [rows], the nodes whose neighbours were drawn.
        drawn: the edges.
        sources: int32 [sources], the node of each number.
        numbers: int32 [edges], the number of the source of each edge.
        longest: numbers of edges that no row and no source exceeds; None: they are not known.
    """

    targets: torch.Tensor
    drawn: Drawn
    sources: torch.Tensor
    numbers: torch.Tensor
    longest: tuple[int, int] | None = None


def draw_in_turn(
    graph: Neighbourhood,
    numbering: Numbering,
    seeds: torch.Tensor,
    draws: Sequence[LayerDraw],
    *,
    square: bool,
) -> list[Layer]:
    """Draw the layers of a sample. On a GPU the host waits several times for each.

    Args:
        graph: what is drawn from.
        numbering: numbers its nodes.
        seeds: int32 [seeds], different nodes; a repeated one is a ValueError.
        draws: what is drawn for each layer.
        square: whether targets are sources, too.
    """
    layers, targets = [], seeds
    for layer in draws:
        drawn = draw_edges(graph.csr, targets, layer, graph.weights, graph.running)
        sources, numbers = numbering.number(targets if square else targets[:0], drawn.nodes)
        layers.append(Layer(targets, drawn, sources, numbers))
        targets = sources
    return layers


def draw_at_once(
    graph: Neighbourhood,
    numbering: Numbering,
    seeds: torch.Tensor,
    draws: Sequence[LayerDraw],
    *,
    square: bool,
) -> list[Layer] | None:
    """Draw the layers of a sample on a GPU, into arrays that have room for the most that can be drawn.

    The kernels of a layer read from the GPU's memory how much the layer before has drawn. The host waits
    once, at the end, for the sizes of all layers. The arguments are those of `draw_in_turn`, but seeds may be
    int64, and one out of range is a ValueError.

    Returns:
        The layers, those that `draw_in_turn` draws; None: there are no seeds, a row may have any number of
        edges, or there would be too many.
    """
    nodes = graph.csr.rows
    if seeds.numel() == 0 or nodes == 0 or not _has_room(seeds.numel(), graph.csr.cols, draws):
        return None
    sizes = torch.zeros(len(draws) + 1, 4, dtype=torch.int32, device=seeds.device)
    # Seeds that are out of range are noticed after the kernels have run, which are given others.
    targets = seeds.clamp(0, nodes - 1)
    sizes[-1, 0] = (targets != seeds).any()
    targets, used, layers = targets.to(torch.int32), None, []
    with numbering.using_places() as place:
        for number, layer in enumerate(draws):
            layers.append(_draw_layer(graph, place, targets, used, layer, sizes[number], square))
            targets, used = layers[-1].sources, sizes[number, _SOURCES : _SOURCES + 1]
        found = path().read(sizes.view(-1))
    if found[-4]:
        check_range("seeds", seeds, nodes, "the number of nodes")
    if square and found[_DISTINCT] != seeds.numel():
        refuse_repeat(seeds)
    used_layers, rows = [], seeds.numel()
    for number, made in enumerate(layers):
        of_layer = found[4 * number : 4 * number + 4]
        used_layers.append(_used_part(made, rows, of_layer, draws[number].row_edges or 0))
        rows = of_layer[_SOURCES]
    return used_layers


def _has_room(rows: int, columns: int, draws: Sequence[LayerDraw]) -> bool:
    """Return whether the most edges that can be drawn for some rows are few enough in each layer."""
    for layer in draws:
        if layer.row_edges is None or rows * layer.row_edges > _MOST_EDGES:
            return False
        rows = min(rows + rows * layer.row_edges, columns)
    return True


def _draw_layer(
    graph: Neighbourhood,
    place: torch.Tensor,
    targets: torch.Tensor,
    used: torch.Tensor | None,
    layer: LayerDraw,
    sizes: torch.Tensor,
    square: bool,
) -> Layer:
    """Queue the kernels of a layer, which write its sizes, into arrays with room for the most edges.

    `place` is that of the numbering, and `used`, int32 [1], says how many targets there are; None: all.
    """
    device = targets.device
    drawn = queue_draws(graph.csr, targets, used, layer, graph.weights, graph.running)
    indptr, nodes = drawn.indptr, drawn.nodes
    numbers = torch.empty_like(nodes)
    first_targets, first_used = (targets, used) if square else (targets[:0], None)
    rank = torch.empty(first_targets.numel() + nodes.numel(), dtype=torch.int32, device=device)
    launch(device, "cuda_mark_first", first_targets, nodes, place, rank, first_used, indptr)
    rank.cumsum_(0)
    different = min(rank.numel(), place.numel())
    sources = torch.empty(different, dtype=torch.int32, device=device)
    uses = torch.zeros(different, dtype=torch.int32, device=device)
    launch(
        device, "cuda_number_nodes", first_targets, nodes, rank, place, sources, numbers, first_used, indptr,
        uses, sizes,
    )  # fmt: skip
    return Layer(targets, drawn, sources, numbers)


def _used_part(layer: Layer, rows: int, sizes: Sequence[int], row_edges: int) -> Layer:
    """Return the part of a layer's arrays that is used."""
    count, drawn = sizes[_EDGES], layer.drawn
    copies = None if drawn.copies is None else drawn.copies[:count]
    return Layer(
        layer.targets[:rows],
        Drawn(drawn.indptr[: rows + 1], drawn.nodes[:count], drawn.edges[:count], copies),
        layer.sources[: sizes[_SOURCES]],
        layer.numbers[:count],
        (row_edges, sizes[_LONGEST]),
    )


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

    The blocks of a layer differ little from step to step. A plan is chosen for sizes that are rounded, so
    that few are, and depends on the block alone: not on blocks that were there before, and a resumed run has
    the plans of one that was not interrupted.
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
    """

    adj: SparseOperand
    targets: torch.Tensor
    sources: torch.Tensor
    edge_ids: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class BlockArrays:
    """The arrays of a block, of which an operand is made, or which are copied to where one has its own.

    Attributes:
        targets: int32 [targets], the node of each row.
        sources: int32 [sources], the node of each column.
        csr: the structure, [targets, sources].
        transposed: the structure of the transpose.
        index: for each nonzero of the transpose its index in `csr`, int32 or int64 [nnz].
        values: float32 [nnz], the weights of the edges, or None.
        row_scale: float32 [targets], factors of the rows, or None.
        edge_ids: see Block.
        longest: numbers of nonzeros that no row and no column exceeds; None: not known.
    """

    targets: torch.Tensor
    sources: torch.Tensor
    csr: Csr
    transposed: Csr
    index: torch.Tensor
    values: torch.Tensor | None = None
    row_scale: torch.Tensor | None = None
    edge_ids: torch.Tensor | None = None
    longest: tuple[int, int] | None = None


def arrange(graph: Neighbourhood, layer: Layer, *, keep_edge_ids: bool) -> BlockArrays:
    """Make the arrays of a block of edges that were drawn.

    The edges of a row are in the order in which they were drawn. Transposing counts them by column; what is
    transposed twice has ascending columns in every row, without any comparison.
    """
    drawn, sources = layer.drawn, layer.sources
    values, row_scale = graph.weigh(layer.targets, drawn)
    transposed, first = Csr(drawn.indptr, layer.numbers, sources.numel()).transpose()
    csr, second = transposed.transpose()
    edge_ids = None
    if values is not None or keep_edge_ids:
        order = first.long()[second.long()]
        values = None if values is None else values[order]
        edge_ids = graph.edge_ids(drawn.edges[order]) if keep_edge_ids else None
    index = inverse(second)
    return BlockArrays(
        layer.targets, sources, csr, transposed, index, values, row_scale, edge_ids, layer.longest
    )


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


def make_block(arrays: BlockArrays, normalization: str | None, precision: Precision) -> Block:
    """Make a block of its arrays, see `prepare_block`."""
    adj = SparseOperand(prepare_block(arrays, normalization, precision))
    return Block(adj, arrays.targets.long(), arrays.sources.long(), arrays.edge_ids)


def plan_blocks(
    blocks: Sequence[Block], plans: BlockPlans, longest: Sequence[tuple[int, int] | None]
) -> None:
    """Ready the products of blocks on a GPU, so that the host does not wait for it in a step.

    It waits here, once, if the lengths of rows are not known; and more often for each block with rows that
    have to be divided. `longest` has for each block numbers of nonzeros that no row and no column exceeds;
    None: not known.
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
