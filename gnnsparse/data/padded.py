"""Batches of blocks in arrays that keep their places and sizes, for steps captured in CUDA graphs."""

from __future__ import annotations

import torch

from gnnsparse.data.lots import BatchPlans
from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import Csr, PaddedCsr, index_dtype
from gnnsparse.preprocess.prepare import Prepared, transpose_of
from gnnsparse.runtime.padding import Padding
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.operand_core import OperandCore
from gnnsparse.sparse.oriented import Oriented

__all__ = ["PaddedBlocks", "PaddingSource"]


class PaddingSource:
    """The arrays of a whole block-diagonal operand, each with one element more, which padding reads.

    Behind the last block comes an empty one. The nodes of a batch that are padding lie in it.

    Args:
        whole: the whole operand, prepared with reorder="none".
        nodes: int64 [blocks + 1] on the CPU, the first node of each block, and the end.
        edges: int64 [blocks + 1] on the CPU, the first nonzero of each block, and the end.
    """

    def __init__(self, whole: SparseOperand, nodes: torch.Tensor, edges: torch.Tensor) -> None:
        self.whole, prepared, device = whole, whole.prepared, whole.device
        self.num_blocks = nodes.numel() - 1
        self.num_nodes, self.num_edges = int(nodes[-1]), int(edges[-1])
        self.nodes, self.edges = (_with_end(t, int(t[-1])).to(device) for t in (nodes, edges))
        forward = prepared.forward.csr.indptr, _with_end(prepared.forward.csr.indices, self.num_nodes)
        backward = forward
        if prepared.backward.csr is not prepared.forward.csr:
            backward = prepared.backward.csr.indptr, _with_end(prepared.backward.csr.indices, self.num_nodes)
        self.sides = forward, backward
        self.index = _with_end(prepared.transpose_map.to(device), 0)
        matrix = prepared.forward
        self.values, self.row_scale, self.col_scale = (
            None if t is None else _with_end(t, 0)
            for t in (matrix.values, matrix.row_scale, matrix.col_scale)
        )


def _with_end(array: torch.Tensor, last: int) -> torch.Tensor:
    return torch.cat([array, array.new_full((1,), last)])


class PaddedBlocks:
    """A batch of a fixed number of blocks, whose arrays keep their places from batch to batch.

    All sizes are bounds: nodes behind those of the blocks have no edges, and nonzeros behind those of the
    blocks belong to no row. `assemble` writes the arrays of the blocks in `chosen` by operations whose sizes
    do not depend on them, so that a CUDA graph can hold it.

    Args:
        source: the arrays of all blocks.
        blocks: number of blocks.
        nodes: number of rows, more than any batch has nodes.
        edges: number of nonzeros, as many as any batch has or more.
        plans: plans of the operand and of its transpose.

    Attributes:
        chosen: int64 [blocks + 1], the numbers of the blocks, and that of the empty block behind all.
        adj: the operand, nodes x nodes.
        graph_ptr: int64 [blocks + 1], the first node of each block, and the number of nodes.
        rows: int64 [nodes], the row of each node in the whole operand; of padding the number of its rows.
        padding: which rows are nodes of the blocks. `assemble` replaces it.

    Raises:
        ValueError: a size is out of range.
    """

    rows: torch.Tensor
    padding: Padding

    def __init__(
        self, source: PaddingSource, blocks: int, nodes: int, edges: int, plans: list[BatchPlans]
    ) -> None:
        if not 0 < nodes < 2**31:
            bad_value("nodes", f"got {nodes}; accepted: 1 to 2^31 - 1")
        self._source, device = source, source.whole.device
        self.chosen = torch.full((blocks + 1,), source.num_blocks, dtype=torch.int64, device=device)
        self.graph_ptr = torch.zeros(blocks + 1, dtype=torch.int64, device=device)
        self._node_places = torch.arange(nodes + 1, dtype=torch.int64, device=device)
        self._edge_places = torch.arange(edges, dtype=torch.int64, device=device)
        self.capacity = nodes - 1, edges

        def structure() -> Csr:
            offsets = torch.zeros(nodes + 1, dtype=torch.int64, device=device)
            offsets[-1] = edges  # on the CPU a native handle checks the offsets when it is made
            csr = PaddedCsr(offsets, torch.zeros(edges, dtype=torch.int32, device=device), nodes)
            assert csr.view is not None
            return csr

        def array(like: torch.Tensor | None, size: int) -> torch.Tensor | None:
            return None if like is None else like.new_zeros(size)

        forward = structure()
        self._structures = forward, forward if source.sides[0] is source.sides[1] else structure()
        self._index = torch.arange(edges, dtype=index_dtype(edges), device=device)
        scales = array(source.row_scale, nodes), array(source.col_scale, nodes)
        self._matrix = Oriented(forward, None, None, array(source.values, edges), None, *scales)
        self._core = self._make_core(plans)
        self.adj = SparseOperand(self._core)

    def _make_core(self, plans: list[BatchPlans]) -> OperandCore:
        whole, matrix = self._source.whole.prepared, self._matrix
        backward = transpose_of(matrix, self._structures[1], None, self._index)
        report = {**whole.report, "edges": matrix.csr.nnz, "seconds": 0.0}
        made = whole.normalization, whole.added_loops
        prepared = Prepared(matrix, backward, self._index, None, report, *made)
        precision = self._source.whole.precision
        core = OperandCore(prepared, precision, False, False, one_stream=True, renewable=True)
        for cache, own in zip(core.caches, plans, strict=True):
            cache.longest_row, cache.tuner, cache.keeps_rows_whole = own.longest_row, own, True
        return core

    def assemble(self) -> None:
        """Writes the arrays of the blocks in `chosen`, which have at most `capacity` nodes and nonzeros."""
        source = self._source
        node_shift, node_ends = _placed(source.nodes, self.chosen)
        edge_shift, edge_ends = _placed(source.edges, self.chosen)
        self.graph_ptr[1:].copy_(node_ends[:-1])
        # Padding is in the block behind the last one.
        of_node = torch.searchsorted(node_ends[:-1], self._node_places, right=True)
        of_edge = torch.searchsorted(edge_ends[:-1], self._edge_places, right=True)
        nodes = (self._node_places + node_shift[of_node]).clamp_(max=source.num_nodes)
        edges = (self._edge_places + edge_shift[of_edge]).clamp_(max=source.num_edges)
        node_edge_shift, edge_node_shift = edge_shift[of_node], node_shift[of_edge]
        both = zip(self._structures, source.sides, strict=True)
        for csr, (indptr, indices) in list(both)[: len(set(map(id, self._structures)))]:
            torch.sub(indptr[nodes], node_edge_shift, out=csr.indptr)
            csr.indices.copy_(indices[edges] - edge_node_shift)
        in_blocks = self._edge_places < edge_ends[-1]
        index = source.index[edges] - edge_shift[of_edge]
        self._index.copy_(torch.where(in_blocks, index, self._edge_places))
        self.rows = nodes[:-1]
        for own, all_of, at in (
            (self._matrix.values, source.values, edges),
            (self._matrix.row_scale, source.row_scale, self.rows),
            (self._matrix.col_scale, source.col_scale, self.rows),
        ):
            if own is not None and all_of is not None:
                own.copy_(all_of[at])
        self._core.renew()
        self.padding = Padding.of(node_ends[-1], self.rows.numel())


def _placed(bounds: torch.Tensor, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns how far the place of each chosen block is from that in the whole, and where it ends."""
    begin = bounds[chosen]
    counts = bounds[chosen + 1] - begin
    ends = counts.cumsum(0)
    return begin - (ends - counts), ends
