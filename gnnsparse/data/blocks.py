"""Batches of graphs: block-diagonal matrices, put together from arrays by offsets, without sorting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from gnnsparse.data.graphs import check_graph_ptr
from gnnsparse.data.lots import BatchPlans, Lot
from gnnsparse.data.padded import PaddedBlocks, PaddingSource
from gnnsparse.errors import bad_type, bad_value, check_integer, check_tensor
from gnnsparse.formats.csr import Csr
from gnnsparse.preprocess.prepare import Prepared, transpose_of
from gnnsparse.runtime.functorch import runs_outside
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.operand_core import OperandCore
from gnnsparse.sparse.oriented import Oriented

__all__ = ["BlockBatch", "BlockBatches", "block_diagonal"]


@runs_outside
def block_diagonal(graphs: Sequence[SparseGraph]) -> tuple[SparseGraph, torch.Tensor]:
    """Puts graphs together as the blocks on the diagonal of one matrix.

    Their arrays are in order already, so nothing is sorted: offsets and columns are shifted.

    Args:
        graphs: one or more square graphs with a node or more, on one device.

    Returns:
        The matrix, whose values are given if a graph has values; and graph_ptr, int64 [graphs + 1] on the
        CPU: graph g has the rows and columns graph_ptr[g] to graph_ptr[g + 1] - 1.

    Raises:
        TypeError: an element is no SparseGraph.
        ValueError: there is none, one is not square or empty, or they are on several devices.
    """
    graphs = list(graphs)
    for at, graph in enumerate(graphs):
        if not isinstance(graph, SparseGraph):
            bad_type(f"graphs[{at}]", graph, "a SparseGraph")
        if graph.num_rows != graph.num_cols or graph.num_rows == 0:
            shape = (graph.num_rows, graph.num_cols)
            bad_value(f"graphs[{at}]", f"has shape {shape}; accepted: a square one with a node or more")
        if graph.device != graphs[0].device:
            bad_value(f"graphs[{at}]", f"is on {graph.device}; accepted: {graphs[0].device}, as the first")
    if not graphs:
        bad_value("graphs", "is empty; accepted: one graph or more")
    nodes, edges = _starts([g.num_rows for g in graphs]), _starts([g.nnz for g in graphs])
    total = int(nodes[-1])
    if total >= 2**31:
        bad_value("graphs", f"have {total} nodes together; accepted: fewer than 2^31")
    shifts = zip(graphs, nodes.tolist(), edges.tolist(), strict=False)
    offsets, columns = [], []
    for graph, node, edge in shifts:
        offsets.append(graph.csr.indptr[:-1] + edge)
        columns.append(graph.csr.indices + node)
    offsets.append(edges[-1:].to(graphs[0].device))
    values = None
    if any(graph.values is not None for graph in graphs):
        device = graphs[0].device
        ones = [torch.ones(g.nnz, dtype=torch.float32, device=device) for g in graphs]
        values = torch.cat(
            [one if g.values is None else g.values for g, one in zip(graphs, ones, strict=True)]
        )
    return SparseGraph(Csr(torch.cat(offsets), torch.cat(columns), total), values), nodes


def _starts(sizes: list[int]) -> torch.Tensor:
    """Returns where each of several ranges begins, and the end, int64 [ranges + 1] on the CPU."""
    counts = torch.tensor([0, *sizes], dtype=torch.int64, device="cpu")
    return counts.cumsum(0)


@dataclass(frozen=True, eq=False)
class BlockBatch:
    """Some of the blocks of a block-diagonal operand, as an operand of their own.

    Attributes:
        adj: the operand, n x n, on the device of the whole.
        nodes: int64 [n], the row of each node in the whole operand, on the device.
        graph_ptr: int64 [blocks + 1], the first node of each block, and n, on the device.
    """

    adj: SparseOperand
    nodes: torch.Tensor
    graph_ptr: torch.Tensor


class BlockBatches:
    """Makes batches of the blocks of a prepared block-diagonal operand.

    The weights, the self-loops and the transpose of the whole operand were computed when it was prepared. A
    batch gathers them, on the operand's device, by ranges that are known on the CPU, and sorts nothing. On a
    GPU nothing waits for it: batches are made by work that is queued on the current stream, and used there.
    All batches of one GPU run by the plans that were chosen for the first.

    Args:
        operand: a square operand that was prepared with reorder="none", whose blocks are graphs.
        graph_ptr: int64 [graphs + 1], the first node of each graph, and the number of nodes.

    Raises:
        TypeError: an argument is of another type.
        ValueError: the operand has reordered rows or a format other than CSR, or `graph_ptr` is not that of
            its blocks.
    """

    @runs_outside
    def __init__(self, operand: SparseOperand, graph_ptr: torch.Tensor) -> None:
        if not isinstance(operand, SparseOperand):
            bad_type("operand", operand, "a SparseOperand, from gnnsparse.prepare")
        whole: Prepared = operand.prepared
        if whole.forward.row_ids is not None or whole.backward.row_ids is not None:
            bad_value("operand", "has reordered rows; accepted: one that was prepared with reorder='none'")
        check_graph_ptr(graph_ptr, operand.shape[0])
        self._whole, self._operand = whole, operand
        self._nodes = graph_ptr.cpu()
        sides = whole.forward, whole.backward
        offsets = [m.csr.indptr.cpu()[self._nodes] for m in sides]
        if not torch.equal(*offsets):
            bad_value("graph_ptr", "an edge joins two of its graphs; accepted: the blocks of the operand")
        self._edges = offsets[0]
        self._index = whole.transpose_map.to(operand.device)
        longest = [int(m.csr.degrees.max()) if m.csr.rows else 0 for m in sides]
        self._plans, self._longest = [BatchPlans(number) for number in longest], longest
        self._source: PaddingSource | None = None

    def __len__(self) -> int:
        return self._nodes.numel() - 1

    def elements(self, graphs: torch.Tensor) -> int:
        """Returns the number of nodes and nonzeros of some graphs, by which memory and time grow.

        Args:
            graphs: int64 [k] on the CPU, the numbers of the graphs.
        """
        bounds = self._nodes + self._edges
        return int((bounds[graphs + 1] - bounds[graphs]).sum())

    def sizes(self, graphs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns the numbers of nodes and of nonzeros of graphs.

        Args:
            graphs: int64 [k] on the CPU, the numbers of the graphs.

        Returns:
            int64 [k] each, on the CPU.
        """
        nodes, edges = (bounds[graphs + 1] - bounds[graphs] for bounds in (self._nodes, self._edges))
        return nodes, edges

    @runs_outside
    def padded(self, graphs: int, nodes: int, edges: int) -> PaddedBlocks:
        """Returns a batch of which all sizes are fixed, so that its arrays keep their places.

        Args:
            graphs: number of graphs.
            nodes: number of rows, more than any batch has nodes.
            edges: number of nonzeros, as many as any batch has or more.
        """
        if self._source is None:
            self._source = PaddingSource(self._operand, self._nodes, self._edges)
        # Plans of their own, whose rows are never cut.
        plans = [BatchPlans(number) for number in self._longest]
        return PaddedBlocks(self._source, graphs, nodes, edges, plans)

    def select(self, graphs: torch.Tensor) -> BlockBatch:
        """Returns some of the graphs as a batch.

        Args:
            graphs: int64 [k] on the CPU, the numbers of the graphs, in any order, with repeats or without.

        Raises:
            TypeError: `graphs` is of another type or dtype.
            ValueError: it is empty, not on the CPU, or a graph does not exist.
        """
        (batch,) = self.split(graphs, [graphs.numel() if isinstance(graphs, torch.Tensor) else 1])
        return batch

    @runs_outside
    def split(self, graphs: torch.Tensor, sizes: Sequence[int]) -> list[BlockBatch]:
        """Returns several batches, which are put together at once: they share their arrays' memory.

        Args:
            graphs: int64 [k] on the CPU, the numbers of the graphs of one batch after another.
            sizes: the number of graphs of each batch, 1 or more; k together.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: `graphs` is empty, not on the CPU, or has a graph that does not exist; or the sizes
                are not those of parts of it.
        """
        check_tensor("graphs", graphs, dtypes=(torch.int64,), shape=(None,), device=torch.device("cpu"))
        if graphs.numel() == 0 or int(graphs.min()) < 0 or int(graphs.max()) >= len(self):
            bad_value("graphs", f"is empty, or has numbers out of range; accepted: 0 to {len(self) - 1}")
        for size in sizes:
            check_integer("sizes", size)
        if sum(sizes) != graphs.numel():
            bad_value("sizes", f"are {sum(sizes)} together; accepted: {graphs.numel()}, as many as graphs")
        lot = Lot(self._nodes, self._edges, graphs, sizes, self._operand.device)
        forward = lot.structures(self._whole.forward.csr)
        shared = self._whole.backward.csr is self._whole.forward.csr
        backward = forward if shared else lot.structures(self._whole.backward.csr)
        indices = lot.indices(self._index)
        matrix, nodes, pointers = self._whole.forward, lot.nodes(), lot.pointers()
        values = _parts(lot.of_edges, matrix.values, len(sizes))
        scales = [_parts(lot.of_nodes, scale, len(sizes)) for scale in (matrix.row_scale, matrix.col_scale)]
        found = []
        for n, (csr, transposed, index) in enumerate(zip(forward, backward, indices, strict=True)):
            own = Oriented(csr, None, None, values[n], None, scales[0][n], scales[1][n])
            adj = self._operand_of(own, transposed, index)
            found.append(BlockBatch(adj, nodes[n], pointers[n]))
        return found

    def _operand_of(self, forward: Oriented, transposed: Csr, index: torch.Tensor) -> SparseOperand:
        whole = self._whole
        report = {**whole.report, "edges": forward.csr.nnz, "seconds": 0.0}
        made = whole.normalization, whole.added_loops
        backward = transpose_of(forward, transposed, None, index)
        prepared = Prepared(forward, backward, index, None, report, *made)
        core = OperandCore(prepared, self._operand.precision, False, False, one_stream=True)
        for cache, plans in zip(core.caches, self._plans, strict=True):
            cache.longest_row, cache.tuner = plans.longest_row, plans
        return SparseOperand(core)


def _parts(
    gather: Callable[[torch.Tensor], list[torch.Tensor]], array: torch.Tensor | None, count: int
) -> Sequence[torch.Tensor | None]:
    """Returns what an array has for each of `count` batches; None for each if there is no array."""
    return [None] * count if array is None else gather(array)
