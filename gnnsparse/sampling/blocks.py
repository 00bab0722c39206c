"""Blocks: the edges that were drawn for one layer, as operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gnnsparse.formats.csr import Csr
from gnnsparse.precision import Precision
from gnnsparse.preprocess.prepare import assemble, inverse
from gnnsparse.runtime.device import path
from gnnsparse.sampling.layers import Layer
from gnnsparse.sampling.neighbourhood import Neighbourhood
from gnnsparse.sampling.plans import ROW_LIMIT, BlockPlans
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.operand_core import OperandCore
from gnnsparse.sparse.oriented import Oriented

__all__ = ["Block", "BlockArrays", "arrange", "make_block", "make_core", "plan_blocks"]


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
    """Makes the arrays of a block of edges that were drawn.

    The edges of a row are in the order in which they were drawn. Transposing counts them by column; what is
    transposed twice has ascending columns in every row, without any comparison.

    Args:
        graph: what was drawn from.
        layer: the edges, and the numbers of their nodes.
        keep_edge_ids: whether the block has `edge_ids`.
    """
    drawn, sources = layer.drawn, layer.sources
    weights = graph.weigh(layer.targets, drawn)
    transposed, first = Csr(drawn.indptr, layer.numbers, sources.numel()).transpose()
    csr, second = transposed.transpose()
    values, edge_ids = weights.values, None
    if values is not None or keep_edge_ids:
        order = first.long()[second.long()]
        values = None if values is None else values[order]
        edge_ids = graph.edge_ids(drawn.edges[order]) if keep_edge_ids else None
    index = inverse(second)
    return BlockArrays(
        layer.targets, sources, csr, transposed, index, values, weights.row_scale, edge_ids, layer.longest
    )


def make_core(
    arrays: BlockArrays, normalization: str | None, precision: Precision, *, renewable: bool = False
) -> OperandCore:
    """Makes the state of a block's operand.

    Args:
        arrays: its arrays.
        normalization: how its weights were made, "gcn", "mean" or None.
        precision: precision of the operand.
        renewable: whether the arrays will be overwritten, see OperandCore.
    """
    prepared = assemble(
        Oriented(arrays.csr, values=arrays.values, row_scale=arrays.row_scale),
        arrays.transposed,
        arrays.index,
        normalization=normalization,
        added_loops=1.0 if normalization == "gcn" else None,
    )
    # On a GPU it is used on the stream on which it is made, or on one that waits for it.
    return OperandCore(
        prepared, precision, auto_format=False, cache_hit=False, one_stream=True, renewable=renewable
    )


def make_block(arrays: BlockArrays, normalization: str | None, precision: Precision) -> Block:
    """Makes a block of its arrays, see `make_core`."""
    adj = SparseOperand(make_core(arrays, normalization, precision))
    return Block(adj, arrays.targets.long(), arrays.sources.long(), arrays.edge_ids)


def plan_blocks(
    blocks: Sequence[Block], plans: BlockPlans, longest: Sequence[tuple[int, int] | None]
) -> None:
    """Readies the products of blocks on a GPU, so that the host does not wait for it in a step.

    It waits here, once, if the lengths of rows are not known; and more often for each block with rows that
    have to be cut.

    Args:
        blocks: the blocks of a sample.
        plans: chooses their plans.
        longest: for each block numbers of nonzeros that no row and no column exceeds; None: not known.
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
