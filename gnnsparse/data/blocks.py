"""Batches of graphs: block-diagonal matrices, put together from arrays by offsets, without sorting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse.csr import Csr, index_dtype
from gnnsparse.data.graphs import check_graph_ptr
from gnnsparse.errors import bad_type, bad_value, check_tensor
from gnnsparse.graph import SparseGraph
from gnnsparse.operand import SparseOperand
from gnnsparse.oriented import Oriented
from gnnsparse.preprocess.prepare import Prepared, transpose_of
from gnnsparse.transforms import runs_outside

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
    batch gathers them, on the operand's device, by ranges that are known on the CPU, and sorts nothing.

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
        offsets = [m.csr.indptr.cpu()[self._nodes] for m in (whole.forward, whole.backward)]
        if not torch.equal(*offsets):
            bad_value("graph_ptr", "an edge joins two of its graphs; accepted: the blocks of the operand")
        self._edges = offsets[0]
        self._index = whole.transpose_map.to(operand.device)

    def __len__(self) -> int:
        return self._nodes.numel() - 1

    @runs_outside
    def select(self, graphs: torch.Tensor) -> BlockBatch:
        """Returns some of the graphs as a batch.

        Args:
            graphs: int64 [k] on the CPU, the numbers of the graphs, in any order, with repeats or without.

        Raises:
            TypeError: `graphs` is of another type or dtype.
            ValueError: it is empty, not on the CPU, or a graph does not exist.
        """
        check_tensor("graphs", graphs, dtypes=(torch.int64,), shape=(None,), device=torch.device("cpu"))
        if graphs.numel() == 0 or int(graphs.min()) < 0 or int(graphs.max()) >= len(self):
            bad_value("graphs", f"is empty, or has numbers out of range; accepted: 0 to {len(self) - 1}")
        node, edge = (_Ranges(bounds, graphs, self._operand.device) for bounds in (self._nodes, self._edges))
        nodes = node.positions()
        forward = self._gather(self._whole.forward, nodes, node, edge)
        index = self._index[edge.positions()] - edge.expand(edge.shift)
        index = index.to(index_dtype(edge.total))
        if self._whole.backward.csr is self._whole.forward.csr:
            csr = forward.csr
        else:
            csr = self._structure(self._whole.backward.csr, nodes, node, edge)
        whole = self._whole
        report = {**whole.report, "edges": edge.total, "seconds": 0.0}
        batch = Prepared(
            forward, transpose_of(forward, csr, None, index), index, None, report,
            whole.normalization, whole.added_loops,
        )  # fmt: skip
        adj = SparseOperand.from_prepared(
            batch, self._operand.precision, self._operand.device, auto_format=False, cache_hit=False
        )
        return BlockBatch(adj, nodes, node.starts)

    def _gather(self, matrix: Oriented, nodes: torch.Tensor, node: _Ranges, edge: _Ranges) -> Oriented:
        csr = self._structure(matrix.csr, nodes, node, edge)
        values = None if matrix.values is None else matrix.values[edge.positions()]
        scales = [None if s is None else s[nodes] for s in (matrix.row_scale, matrix.col_scale)]
        return Oriented(csr, None, None, values, None, *scales)

    @staticmethod
    def _structure(csr: Csr, nodes: torch.Tensor, node: _Ranges, edge: _Ranges) -> Csr:
        indptr = torch.empty(node.total + 1, dtype=torch.int64, device=nodes.device)
        indptr[:-1] = csr.indptr[nodes] - node.expand(edge.shift)
        indptr[-1:].fill_(edge.total)
        columns = csr.indices[edge.positions()] - edge.expand(node.shift)
        return Csr(indptr, columns.to(torch.int32), node.total)


class _Ranges:
    """Ranges of a sequence, chosen by number and laid one after another.

    Attributes:
        total: number of elements of the chosen ranges.
        starts: int64 [ranges + 1] on the device, where each of them begins in the result, and the end.
        shift: int64 [ranges] on the device: places in the sequence minus places in the result.
    """

    def __init__(self, bounds: torch.Tensor, chosen: torch.Tensor, device: torch.device) -> None:
        begin = bounds[chosen]
        counts = bounds[chosen + 1] - begin
        starts = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
        self.total = int(starts[-1])
        arrays: Any = torch.cat([counts, starts, begin - starts[:-1]]).to(device, non_blocking=True)
        k = chosen.numel()
        self._counts, self.starts, self.shift = arrays.split([k, k + 1, k])

    def expand(self, of_range: torch.Tensor) -> torch.Tensor:
        """Returns for each element what its range has, [total]."""
        return torch.repeat_interleave(of_range, self._counts, output_size=self.total)

    def positions(self) -> torch.Tensor:
        """Returns the place of each element in the sequence, int64 [total]."""
        places = torch.arange(self.total, dtype=torch.int64, device=self.shift.device)
        return places + self.expand(self.shift)
