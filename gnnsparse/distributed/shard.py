"""The rows of a matrix that one rank owns, and the index maps of its exchange with other ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from gnnsparse.distributed.partition import Partition
from gnnsparse.formats.csr import Csr, coo_to_csr
from gnnsparse.preprocess.normalize import Weighted, symmetric_scales
from gnnsparse.sparse.graph import SparseGraph

__all__ = ["Shard", "ShardFacts", "make_shards"]


@dataclass(frozen=True)
class ShardFacts:
    """What all ranks know of a partitioned matrix, plain values.

    Attributes:
        rank: the rank that a shard is of.
        starts: the first node of each rank in the new numbering, and the number of nodes at the end.
        nnz: nonzeros of the rows of each rank.
        outside: nonzeros of each rank whose column another rank owns.
        halo: number of different columns of other ranks that the rows of each rank touch.
        edges: number of edges that were given, repeats included.
        method: how nodes were divided.
        normalization: name of the weights that were computed, "gcn" or "mean"; None: they were given.
        added_loops: weight of the self-loops that nodes without one got; None: none were added.
        has_self_loops: whether every node has a self-loop.
        merged: whether edges were repeated, and thus merged.
    """

    rank: int
    starts: tuple[int, ...]
    nnz: tuple[int, ...]
    outside: tuple[int, ...]
    halo: tuple[int, ...]
    edges: int
    method: str
    normalization: str | None
    added_loops: float | None
    has_self_loops: bool
    merged: bool

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return len(self.nnz)

    @property
    def nodes(self) -> int:
        """Number of nodes of the graph."""
        return self.starts[-1]

    @property
    def rows(self) -> int:
        """Number of nodes of this rank."""
        return self.starts[self.rank + 1] - self.starts[self.rank]

    @property
    def most_rows(self) -> int:
        """Largest number of nodes of a rank."""
        return max(b - a for a, b in zip(self.starts, self.starts[1:], strict=False))


@dataclass(frozen=True, eq=False)
class Shard:
    """The rows of a square matrix that one rank owns, on the CPU.

    Column c below `rows` is the rank's own node c; column rows + h is node halo[h] of the new numbering.

    Attributes:
        facts: plain values.
        csr: the structure, [rows, rows + halo].
        values: float32 [nnz], or None.
        row_scale: float32 [rows], or None.
        col_scale: float32 [rows + halo], or None.
        halo: int64 [halo], the columns of other ranks in the new numbering, ascending.
        send_rows: int64 [n], own nodes whose features other ranks need, those for rank 0 first.
        send_counts: number of these for each rank.
        nodes: int64 [rows], the own nodes by their numbers in the graph.
        transposed: the same rows of the transpose, by which gradients are multiplied; None: the matrix is
            symmetric, weights included.
    """

    facts: ShardFacts
    csr: Csr
    values: torch.Tensor | None
    row_scale: torch.Tensor | None
    col_scale: torch.Tensor | None
    halo: torch.Tensor
    send_rows: torch.Tensor
    send_counts: tuple[int, ...]
    nodes: torch.Tensor
    transposed: Shard | None = None

    @property
    def receive_counts(self) -> tuple[int, ...]:
        """Number of halo columns of each rank."""
        bounds = torch.searchsorted(
            self.halo, torch.tensor(self.facts.starts, dtype=torch.int64, device="cpu")
        )
        return tuple(bounds.diff().tolist())


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of a rank before other ranks are known."""

    csr: Csr
    values: torch.Tensor | None
    halo: torch.Tensor
    outside: int
    loops: int


def _rows_of(csr: Csr, values: torch.Tensor | None, partition: Partition, rank: int, new: Any) -> _Rows:
    """Takes the rows of a rank out of a matrix and numbers their columns as `Shard` does."""
    start, end = partition.starts[rank : rank + 2]
    own, nonzeros = csr.select_rows(partition.owned(rank))
    row, columns = own.row_index(), new[own.indices.long()]
    inside = (columns >= start) & (columns < end)
    halo = columns[~inside].unique()
    local = torch.where(inside, columns - start, torch.searchsorted(halo, columns) + (end - start))
    loops = int((local == row).sum())
    made, place = coo_to_csr(row.int(), local.int(), end - start, end - start + halo.numel())
    if values is not None:
        values = values.new_empty(made.nnz).index_copy_(0, place.long(), values[nonzeros])
    return _Rows(made, values, halo, int((made.indices >= end - start).sum()), loops)


def make_shards(
    weights: Weighted, partition: Partition, normalization: str | None, added_loops: float | None
) -> list[Shard]:
    """Divides a square matrix and its transpose into the shards of all ranks.

    Args:
        weights: the matrix and its weights, on the CPU.
        partition: which rank owns which nodes.
        normalization, added_loops: how the weights were made, see ShardFacts.
    """
    shards = _divided(weights, partition, normalization, added_loops)
    back = _transposed(weights)
    if back is None:
        return shards
    transposed = _divided(back, partition, normalization, added_loops)
    return [replace(shard, transposed=other) for shard, other in zip(shards, transposed, strict=True)]


def _transposed(weights: Weighted) -> Weighted | None:
    """Returns the transpose of a square matrix; None: it is the matrix itself."""
    graph = weights.graph
    csr, index = graph.csr.transpose()
    values = None if graph.values is None else graph.values[index.long()]
    same_values = values is None or torch.equal(values, graph.values)  # type: ignore[arg-type]
    same_structure = torch.equal(csr.indptr, graph.csr.indptr) and torch.equal(csr.indices, graph.csr.indices)
    if same_structure and same_values and symmetric_scales(weights, csr):
        return None
    return Weighted(SparseGraph(csr, values), weights.col_scale, weights.row_scale)


def _divided(
    weights: Weighted, partition: Partition, normalization: str | None, added_loops: float | None
) -> list[Shard]:
    """Divides a square matrix without its transpose, see make_shards."""
    graph, new = weights.graph, partition.new_numbers()
    parts = [_rows_of(graph.csr, graph.values, partition, rank, new) for rank in range(partition.parts)]
    facts = ShardFacts(
        rank=0,
        starts=partition.starts,
        nnz=tuple(part.csr.nnz for part in parts),
        outside=tuple(part.outside for part in parts),
        halo=tuple(part.halo.numel() for part in parts),
        edges=graph.num_edges,
        method=partition.method,
        normalization=normalization,
        added_loops=added_loops,
        has_self_loops=sum(part.loops for part in parts) == partition.nodes,
        merged=added_loops is None and graph.num_edges != graph.nnz,
    )
    shards = []
    for rank, part in enumerate(parts):
        nodes, start = partition.owned(rank), partition.starts[rank]
        bounds = torch.tensor([start, partition.starts[rank + 1]], dtype=torch.int64, device="cpu")
        sent = []
        for other in parts:
            low, high = torch.searchsorted(other.halo, bounds).tolist()
            sent.append(other.halo[low:high] - start)
        columns = torch.cat([nodes, partition.order[part.halo]])
        shards.append(
            Shard(
                replace(facts, rank=rank),
                part.csr,
                part.values,
                None if weights.row_scale is None else weights.row_scale[nodes],
                None if weights.col_scale is None else weights.col_scale[columns],
                part.halo,
                torch.cat(sent),
                tuple(ids.numel() for ids in sent),
                nodes,
            )
        )
    return shards
