"""The rows of a matrix that one rank owns, the index maps of its exchange, and their files in the cache.

A file of the cache of prepared graphs is of one rank, and each process reads its own.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from gnnsparse.distributed.partition import Partition, partition_rows
from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import Csr, check_ascending, check_csr, check_host_array, check_range, coo_to_csr
from gnnsparse.preprocess.normalize import Weighted, normalize, symmetric_scales
from gnnsparse.runtime.cache import CACHE_VERSION, GraphCache
from gnnsparse.runtime.device import path
from gnnsparse.runtime.hashing import fingerprint
from gnnsparse.runtime.serialization import from_plain, to_plain
from gnnsparse.sparse.graph import SparseGraph


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


class _Rows(NamedTuple):
    """The rows of a rank before other ranks are known."""

    csr: Csr
    values: torch.Tensor | None
    halo: torch.Tensor
    outside: int
    loops: int


def _rows_of(csr: Csr, values: torch.Tensor | None, order: torch.Tensor, start: int, end: int) -> _Rows:
    """Take a range of rows in a new order out of a matrix, and number their columns as `Shard` does."""
    own, nonzeros = csr.select_rows(order[start:end])
    rows, touched = end - start, torch.zeros(csr.rows, dtype=torch.bool, device=csr.device)
    touched[own.indices.long()] = True
    touched = touched[order]  # in the new numbering
    touched[start:end] = False
    halo = touched.nonzero().flatten()
    # Nodes that no row touches get no number.
    local_of, width = torch.empty(csr.rows, dtype=torch.int32, device=csr.device), rows + halo.numel()
    local_of[order[start:end]] = torch.arange(rows, dtype=torch.int32, device=csr.device)
    local_of[order[halo]] = torch.arange(rows, width, dtype=torch.int32, device=csr.device)
    row, local = own.row_index().int(), local_of.index_select(0, own.indices)
    loops, outside = int((local == row).count_nonzero()), int((local >= rows).count_nonzero())
    made, place = coo_to_csr(row, local, rows, width)
    if values is not None:
        values = values.new_empty(made.nnz).index_copy_(0, place.long(), values[nonzeros])
    return _Rows(made, values, halo, outside, loops)


def _transposed(weights: Weighted) -> Weighted | None:
    """Return the transpose of a square matrix; None: it is the matrix itself."""
    graph = weights.graph
    csr, index = graph.csr.transpose()
    values = None if graph.values is None else graph.values[index.long()]
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

    def make(self, graph: SparseGraph) -> list[Shard]:
        """Make the shards of all ranks, which are on the CPU, on the device of the graph."""
        weights = normalize(graph, self.normalization, self.self_loop_weight)
        partition = partition_rows(weights.graph, self.parts, self.method)
        shards, back = self._divided(weights, partition), _transposed(weights)
        if back is None:
            return shards
        pairs = zip(shards, self._divided(back, partition), strict=True)
        return [replace(shard, transposed=other) for shard, other in pairs]

    def _divided(self, weights: Weighted, partition: Partition) -> list[Shard]:
        """Divide a square matrix without its transpose."""
        graph, order = weights.graph, partition.order.to(weights.graph.device)
        ranges = list(itertools.pairwise(partition.starts))
        parts = [_rows_of(graph.csr, graph.values, order, *bounds) for bounds in ranges]
        loops = self.self_loop_weight if self.normalization == "gcn" else None
        facts = ShardFacts(
            rank=0,
            starts=partition.starts,
            nnz=tuple(part.csr.nnz for part in parts),
            outside=tuple(part.outside for part in parts),
            halo=tuple(part.halo.numel() for part in parts),
            edges=graph.num_edges,
            method=partition.method,
            normalization=self.normalization,
            added_loops=loops,
            has_self_loops=sum(part.loops for part in parts) == partition.nodes,
            merged=loops is None and graph.num_edges != graph.nnz,
        )
        shards, host = [], torch.device("cpu")
        for rank, (part, (start, end)) in enumerate(zip(parts, ranges, strict=True)):
            nodes = order[start:end]
            bounds = torch.tensor([start, end], dtype=torch.int64, device=order.device)
            sent = []
            for other in parts:
                low, high = torch.searchsorted(other.halo, bounds).tolist()
                sent.append(other.halo[low:high] - start)
            columns = torch.cat([nodes, order[part.halo]])
            row_scale = None if weights.row_scale is None else weights.row_scale[nodes].cpu()
            col_scale = None if weights.col_scale is None else weights.col_scale[columns].cpu()
            shards.append(
                Shard(
                    replace(facts, rank=rank),
                    part.csr.to(host),
                    None if part.values is None else part.values.cpu(),
                    row_scale,
                    col_scale,
                    part.halo.cpu(),
                    torch.cat(sent).cpu(),
                    tuple(ids.numel() for ids in sent),
                    nodes.cpu(),
                )
            )
        return shards


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


def _made(recipe: ShardRecipe, graph: SparseGraph, device: torch.device | None) -> list[Shard]:
    """Make the shards of all ranks on a GPU with room for the graph, or on the CPU."""
    if device is not None and device.type == "cuda" and path().free_memory(device) >= _GPU_BYTES * graph.nnz:
        with contextlib.suppress(torch.OutOfMemoryError):
            return recipe.make(graph.to(device))
    return recipe.make(graph.to(torch.device("cpu")))


@contextlib.contextmanager
def _threads_of(ranks: int) -> Iterator[None]:
    """Compute with the threads of all ranks, which wait for this one."""
    own = torch.get_num_threads()
    torch.set_num_threads(max(own, min(own * ranks, os.cpu_count() or 1)))
    try:
        yield
    finally:
        torch.set_num_threads(own)


def _store(cache: GraphCache, locked: str, key: str, shard: Shard) -> None:
    """Write a shard under its key's lock, so that nobody takes the unfinished file for a leftover."""
    with contextlib.nullcontext() if key == locked else cache.lock(key):
        cache.store(key, *_pack(shard), synced=False)


def load_shard(
    graph: SparseGraph, recipe: ShardRecipe, rank: int, cache: GraphCache | None, content: str,
    device: torch.device | None = None,
) -> tuple[Shard, bool]:  # fmt: skip
    """Read a rank's shard from the cache, or make the shards of all ranks and store them there.

    Of the processes of a host that need shards of one graph, the one that gets a lock makes them, and the
    others wait for it. Without a cache, each process makes them. `content` is what `content_of` returns. With
    a GPU as the `device` shards are made there, if it has room, and those in the cache are mapped. Also
    returns whether the shard was read.
    """
    if cache is None:
        return _made(recipe, graph, device)[rank], False
    cache.check_folder()
    keys = [fingerprint([], content, other) for other in range(recipe.parts)]
    load = functools.partial(
        cache.load, keys[rank], unpack_shard, device is not None and device.type == "cuda"
    )
    if (shard := load()) is not None:
        return shard, True
    with cache.lock(keys[0]) as locked:
        if locked and (shard := load()) is not None:
            return shard, True
        with _threads_of(recipe.parts if locked else 1):
            shards = _made(recipe, graph, device)
        if locked:
            with ThreadPoolExecutor() as pool:  # the other ranks wait for their files
                list(pool.map(functools.partial(_store, cache, keys[0]), keys, shards))
    return shards[rank], False
