"""The rows of a matrix that one rank owns, the index maps of its exchange, and their files in the cache.

A file of the cache of prepared graphs is of one rank, and each process reads its own.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.distributed.partition import Partition, partition_rows
from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import Csr, check_ascending, check_csr, check_host_array, check_range, coo_to_csr
from gnnsparse.preprocess.normalize import Weighted, normalize, symmetric_scales
from gnnsparse.runtime.cache import CACHE_VERSION, GraphCache
from gnnsparse.runtime.device import path
from gnnsparse.runtime.hashing import fingerprint
from gnnsparse.runtime.serialization import from_plain, to_plain
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.prepared import inverse


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
    normalization: str | None = None
    added_loops: float | None = None
    has_self_loops: bool = False
    merged: bool = False

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
        return max(b - a for a, b in itertools.pairwise(self.starts))


@dataclass(frozen=True, eq=False)
class Shard:
    """The rows of a square matrix that one rank owns, on the CPU.

    Column c below `rows` is the rank's own node c; column rows + h is node halo[h] of the new numbering,
    where `halo` ascends. `send_rows` are own nodes that other ranks need, those for rank 0 first,
    `send_counts` their numbers for each rank, and `nodes` the own nodes by their numbers in the graph; all
    three are int64. `transposed` are the same rows of the transpose; None: the matrix is symmetric, weights
    included.
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
        starts = torch.tensor(self.facts.starts, dtype=torch.int64, device="cpu")
        return tuple(torch.searchsorted(self.halo, starts).diff().tolist())


def _touched(csr: Csr, partition: Partition) -> tuple[list[int], torch.Tensor]:
    """Return how many nonzeros of each rank have columns of others, and marks of these columns.

    The marks are bool [ranks, nodes], in the new numbering.
    """
    rank_of = partition.ranks_of(csr.device)
    rank = rank_of.repeat_interleave(csr.degrees, output_size=csr.nnz)
    outside = (rank != rank_of.index_select(0, csr.indices)).nonzero().flatten()
    rank, columns = rank[outside].long(), inverse(partition.order.to(csr.device))[csr.indices[outside]]
    touched = torch.zeros(partition.parts * partition.nodes, dtype=torch.bool, device=csr.device)
    touched[rank * partition.nodes + columns] = True
    counts = torch.bincount(rank, minlength=partition.parts).tolist()
    return counts, touched.view(partition.parts, partition.nodes)


def _transposed(weights: Weighted) -> Weighted | None:
    """Return the transpose of a square matrix; None: it is the matrix itself."""
    graph = weights.graph
    csr, index = graph.csr.transpose()
    values = None if graph.values is None else graph.values.index_select(0, index)
    same_values = values is None or torch.equal(values, graph.values)  # type: ignore[arg-type]
    same_structure = torch.equal(csr.indptr, graph.csr.indptr) and torch.equal(csr.indices, graph.csr.indices)
    if same_structure and same_values and symmetric_scales(weights):
        return None
    return Weighted(SparseGraph(csr, values), weights.col_scale, weights.row_scale)


_ARRAYS = ("indptr", "indices", "halo", "send_rows", "nodes")
_OPTIONAL = ("values", "row_scale", "col_scale")
#: What the names of the transpose's arrays begin with. `nodes` are those of the matrix.
_TRANSPOSED = "transposed."


@dataclass(frozen=True)
class ShardRecipe:
    """The parameters that shards depend on, beside the graph."""

    normalization: str | None
    self_loop_weight: float
    parts: int
    method: str

    def weights(self, graph: SparseGraph) -> Weighted:
        """Compute the weights of the whole graph, on its device."""
        return normalize(graph, self.normalization, self.self_loop_weight)

    def partition(self, weights: Weighted) -> Partition:
        """Divide the nodes among the ranks."""
        return partition_rows(weights.graph, self.parts, self.method)

    def cut(self, weights: Weighted, partition: Partition, rank: int) -> Shard:
        """Take a rank's shard, which is on the CPU, out of the whole matrix, on the device of this."""
        shard, back = self._cut(weights, partition, rank), _transposed(weights)
        return shard if back is None else replace(shard, transposed=self._cut(back, partition, rank))

    def _cut(self, weights: Weighted, partition: Partition, rank: int) -> Shard:
        """Take a rank's shard without its transpose."""
        graph, csr, order = weights.graph, weights.graph.csr, partition.order.to(weights.graph.device)
        outside, touched = _touched(csr, partition)
        start, end = partition.starts[rank : rank + 2]
        halo, nodes = touched[rank].nonzero().flatten(), order[start:end]
        sent = [marks[start:end].nonzero().flatten() for marks in touched]
        columns = torch.cat([nodes, order[halo]])
        own, nonzeros = csr.select_rows(nodes)
        # Nodes that no row touches get no number.
        local_of = torch.empty(csr.rows, dtype=torch.int32, device=csr.device)
        local_of[columns] = torch.arange(columns.numel(), dtype=torch.int32, device=csr.device)
        local = local_of.index_select(0, own.indices)
        made, place = coo_to_csr(own.row_index().int(), local, end - start, columns.numel())
        values = graph.values
        if values is not None:
            values = values.new_empty(made.nnz).index_copy_(0, place.long(), values[nonzeros])
        added = self.self_loop_weight if self.normalization == "gcn" else None
        loops = added is not None or int((csr.row_index().int() == csr.indices).sum()) == csr.rows
        before = F.pad(csr.degrees[order].cumsum(0), (1, 0)).cpu()
        facts = ShardFacts(
            rank=rank,
            starts=partition.starts,
            nnz=tuple(before[list(partition.starts)].diff().tolist()),
            outside=tuple(outside),
            halo=tuple(touched.sum(1).tolist()),
            edges=graph.num_edges,
            method=partition.method,
            normalization=self.normalization,
            added_loops=added,
            has_self_loops=loops,
            merged=added is None and graph.num_edges != graph.nnz,
        )
        row_scale = None if weights.row_scale is None else weights.row_scale[nodes].cpu()
        col_scale = None if weights.col_scale is None else weights.col_scale[columns].cpu()
        return Shard(
            facts,
            made.to(torch.device("cpu")),
            None if values is None else values.cpu(),
            row_scale,
            col_scale,
            halo.cpu(),
            torch.cat(sent).cpu(),
            tuple(ids.numel() for ids in sent),
            nodes.cpu(),
        )


def _pack(shard: Shard) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    csr, facts = {"indptr": shard.csr.indptr, "indices": shard.csr.indices}, shard.facts
    found = {name: csr.get(name, getattr(shard, name, None)) for name in (*_ARRAYS, *_OPTIONAL)}
    arrays = {name: array.contiguous() for name, array in found.items() if array is not None}
    metadata: dict[str, Any] = {"shard": to_plain(facts), "sent": list(shard.send_counts)}
    if shard.transposed is not None:
        others, metadata["transposed"] = _pack(shard.transposed)
        arrays |= {_TRANSPOSED + name: array for name, array in others.items() if name != "nodes"}
    metadata |= {
        "rows": facts.rows, "cols": shard.csr.cols, "edges": shard.csr.nnz,
        "reorder": {"method": facts.method},
        "kind": f"rank {facts.rank} of {facts.ranks}, {facts.method}",
    }  # fmt: skip
    return arrays, metadata


def unpack_shard(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> Shard:
    """Restore a shard; raise ValueError if an array or a value can't be one of a shard."""
    own = {name: array for name, array in tensors.items() if not name.startswith(_TRANSPOSED)}
    shard, back = _unpack_one(own, metadata), metadata.get("transposed")
    of_back = {name.removeprefix(_TRANSPOSED): tensors[name] for name in tensors if name not in own}
    if back is None and not of_back:
        return shard
    if not isinstance(back, dict):
        bad_value("metadata.transposed", f"got {back!r}; accepted: the facts of the transpose")
    transposed = _unpack_one({**of_back, "nodes": shard.nodes}, back)
    if (transposed.facts.rank, transposed.facts.starts) != (shard.facts.rank, shard.facts.starts):
        bad_value("metadata.transposed", "describes rows that are not those of the matrix")
    return replace(shard, transposed=transposed)


def _unpack_one(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> Shard:
    """Restore a shard without its transpose; raise ValueError, see unpack_shard."""
    unknown = set(tensors) - {*_ARRAYS, *_OPTIONAL}
    if unknown or not set(_ARRAYS) <= set(tensors):
        bad_value("arrays", f"are {', '.join(sorted(tensors))}; accepted: those of a shard")
    facts: ShardFacts = from_plain(ShardFacts, metadata.get("shard"), "metadata.shard")
    ranks = facts.ranks
    ascending = all(a <= b for a, b in itertools.pairwise(facts.starts))
    fits = len(facts.starts) == ranks + 1 == len(facts.halo) + 1 == len(facts.outside) + 1
    if not ranks or not fits or not ascending or facts.starts[0] != 0 or not facts.rank < ranks:
        bad_value("metadata.shard", "does not describe the ranges of nodes of its ranks")
    if facts.nodes >= 2**31:
        bad_value("metadata.shard", f"has {facts.nodes} nodes; accepted: fewer than 2^31")
    indptr, indices, halo, send_rows, nodes = (tensors[name] for name in _ARRAYS)
    csr = Csr(indptr, indices, facts.rows + halo.numel())
    check_host_array("indptr", indptr, (torch.int64,), facts.rows + 1)
    check_csr("shard", csr)
    for name, array, limit, count in (
        ("halo", halo, facts.nodes, None),
        ("send_rows", send_rows, facts.rows, None),
        ("nodes", nodes, facts.nodes, facts.rows),
    ):
        check_host_array(name, array, (torch.int64,), count)
        check_range(name, array, limit)
    check_ascending("halo", halo, facts.nodes)
    counts = {"values": csr.nnz, "row_scale": facts.rows, "col_scale": csr.cols}
    for name, count in counts.items():
        if name in tensors:
            check_host_array(name, tensors[name], (torch.float32,), count)
    sent = metadata.get("sent")
    if (
        not isinstance(sent, list)
        or len(sent) != ranks
        or not all(type(count) is int and count >= 0 for count in sent)
        or sum(sent) != send_rows.numel()
    ):
        bad_value("metadata.sent", f"got {sent!r}; accepted: {ranks} counts of send_rows")
    if facts.nnz[facts.rank] != csr.nnz or facts.halo[facts.rank] != halo.numel():
        bad_value("metadata.shard", "counts other nonzeros or columns than the arrays have")
    values, row_scale, col_scale = (tensors.get(name) for name in _OPTIONAL)
    return Shard(facts, csr, values, row_scale, col_scale, halo, send_rows, tuple(sent), nodes)


def content_of(graph: SparseGraph, recipe: ShardRecipe) -> str:
    """Return a hash of a graph and a recipe, 32 hexadecimal digits: equal for equal shards."""
    arrays = [graph.csr.indptr, graph.csr.indices, graph.values, graph.nnz_index_of_edge]
    return fingerprint(arrays, "shard and transpose", CACHE_VERSION, graph.num_cols, to_plain(recipe))


#: Bytes of a GPU for each nonzero, with which a graph is divided there.
_GPU_BYTES = 80


def make_shard(
    graph: SparseGraph, recipe: ShardRecipe, rank: int, device: torch.device,
    agreed: Callable[[Callable[[], Partition]], Partition],
) -> Shard:  # fmt: skip
    """Cut a rank's shard on its GPU, if that has room for the graph, or else on the CPU.

    `agreed` calls a function that divides the nodes, on one rank, and returns the result on each of them.
    """
    places = [torch.device("cpu")]
    if device.type == "cuda" and path().free_memory(device) >= _GPU_BYTES * graph.nnz:
        places.insert(0, device)

    def placed(make: Callable[[torch.device], Any]) -> Any:
        with contextlib.suppress(torch.OutOfMemoryError):
            return make(places[0])
        return make(places[-1])

    weights = placed(lambda place: recipe.weights(graph.to(place)))
    partition = agreed(lambda: placed(lambda place: recipe.partition(weights.to(place))))
    shard: Shard = placed(lambda place: recipe.cut(weights.to(place), partition, rank))
    return shard


def read_shard(cache: GraphCache, content: str, rank: int, device: torch.device) -> Shard | None:
    """Read a rank's shard, if there is one of what `content_of` returned; for a GPU it is mapped."""
    cache.check_folder()
    return cache.load(fingerprint([], content, rank), unpack_shard, device.type == "cuda")


def store_shard(cache: GraphCache, content: str, shard: Shard) -> None:
    """Write a shard for `read_shard`."""
    key = fingerprint([], content, shard.facts.rank)
    with cache.lock(key) as locked:  # so that nobody takes the unfinished file for a leftover
        if locked:
            cache.store(key, *_pack(shard), synced=False)
