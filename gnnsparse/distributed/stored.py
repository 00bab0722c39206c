"""Shards in the cache of prepared graphs: one file for each rank, of which each process reads its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from gnnsparse.distributed.partition import partition_rows
from gnnsparse.distributed.shard import Shard, ShardFacts, make_shards
from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import Csr, check_ascending, check_csr, check_host_array, check_indices
from gnnsparse.preprocess.normalize import normalize
from gnnsparse.runtime.cache import CACHE_VERSION, GraphCache
from gnnsparse.runtime.hashing import fingerprint
from gnnsparse.runtime.serialization import from_plain, to_plain
from gnnsparse.sparse.graph import SparseGraph

__all__ = ["ShardRecipe", "check_shard", "content_of", "load_shard"]

_ARRAYS = ("indptr", "indices", "halo", "send_rows", "nodes")
_OPTIONAL = ("values", "row_scale", "col_scale")
#: What the names of the transpose's arrays begin with. `nodes` are those of the matrix.
_TRANSPOSED = "transposed."


@dataclass(frozen=True)
class ShardRecipe:
    """The parameters that shards depend on, beside the graph.

    Attributes:
        normalization: the weights to compute, "gcn", "mean" or None, see `gnnsparse.prepare`.
        self_loop_weight: weight of the self-loops that "gcn" adds.
        parts: number of ranks.
        method: how nodes are divided, one of PARTITIONS.
    """

    normalization: str | None
    self_loop_weight: float
    parts: int
    method: str

    def make(self, graph: SparseGraph) -> list[Shard]:
        """Makes the shards of all ranks on the CPU."""
        weights = normalize(graph.to(torch.device("cpu")), self.normalization, self.self_loop_weight)
        partition = partition_rows(weights.graph, self.parts, self.method)
        loops = self.self_loop_weight if self.normalization == "gcn" else None
        return make_shards(weights, partition, self.normalization, loops)


def _pack(shard: Shard) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    arrays, metadata = _pack_one(shard)
    if shard.transposed is not None:
        others, metadata["transposed"] = _pack_one(shard.transposed)
        arrays |= {_TRANSPOSED + name: array for name, array in others.items() if name != "nodes"}
    facts = shard.facts
    metadata |= {
        "rows": facts.rows, "cols": shard.csr.cols, "edges": shard.csr.nnz,
        "reorder": {"method": facts.method},
        "kind": f"rank {facts.rank} of {facts.ranks}, {facts.method}",
    }  # fmt: skip
    return arrays, metadata


def _pack_one(shard: Shard) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Returns arrays and facts of a shard without its transpose."""
    arrays = {
        "indptr": shard.csr.indptr, "indices": shard.csr.indices, "halo": shard.halo,
        "send_rows": shard.send_rows, "nodes": shard.nodes,
    }  # fmt: skip
    arrays |= {name: found for name in _OPTIONAL if (found := getattr(shard, name)) is not None}
    metadata = {"shard": to_plain(shard.facts), "sent": list(shard.send_counts)}
    return {name: array.contiguous() for name, array in arrays.items()}, metadata


def _unpack(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> Shard:
    """Restores a shard; raises ValueError if an array or a value can't be one of a shard."""
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
    """Restores a shard without its transpose; raises ValueError, see _unpack."""
    unknown = set(tensors) - {*_ARRAYS, *_OPTIONAL}
    if unknown or not set(_ARRAYS) <= set(tensors):
        bad_value("arrays", f"are {', '.join(sorted(tensors))}; accepted: those of a shard")
    facts: ShardFacts = from_plain(ShardFacts, metadata.get("shard"), "metadata.shard")
    _check_facts(facts)
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
        check_indices(name, array, limit)
    check_ascending("halo", halo, facts.nodes)
    counts = {"values": csr.nnz, "row_scale": facts.rows, "col_scale": csr.cols}
    for name, count in counts.items():
        if name in tensors:
            check_host_array(name, tensors[name], (torch.float32,), count)
    sent = metadata.get("sent")
    if (
        not isinstance(sent, list)
        or len(sent) != facts.ranks
        or not all(type(count) is int and count >= 0 for count in sent)
        or sum(sent) != send_rows.numel()
    ):
        bad_value("metadata.sent", f"got {sent!r}; accepted: {facts.ranks} counts of send_rows")
    if facts.nnz[facts.rank] != csr.nnz or facts.halo[facts.rank] != halo.numel():
        bad_value("metadata.shard", "counts other nonzeros or columns than the arrays have")
    values, row_scale, col_scale = (tensors.get(name) for name in _OPTIONAL)
    return Shard(facts, csr, values, row_scale, col_scale, halo, send_rows, tuple(sent), nodes)


def _check_facts(facts: ShardFacts) -> None:
    ranks = len(facts.nnz)
    ascending = all(a <= b for a, b in zip(facts.starts, facts.starts[1:], strict=False))
    fits = len(facts.starts) == ranks + 1 == len(facts.halo) + 1 == len(facts.outside) + 1
    if not ranks or not fits or not ascending or facts.starts[0] != 0 or not facts.rank < ranks:
        bad_value("metadata.shard", "does not describe the ranges of nodes of its ranks")
    if facts.nodes >= 2**31:
        bad_value("metadata.shard", f"has {facts.nodes} nodes; accepted: fewer than 2^31")


def check_shard(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> None:
    """Raises ValueError if the content of a cache file is no shard that `load_shard` stored."""
    _unpack(tensors, metadata)


def content_of(graph: SparseGraph, recipe: ShardRecipe) -> str:
    """Returns a hash of a graph and a recipe, 32 hexadecimal digits: equal for equal shards."""
    arrays = [graph.csr.indptr, graph.csr.indices, graph.values, graph.nnz_index_of_edge]
    return fingerprint(arrays, "shard and transpose", CACHE_VERSION, graph.num_cols, to_plain(recipe))


def load_shard(
    graph: SparseGraph, recipe: ShardRecipe, rank: int, cache: GraphCache | None, content: str
) -> tuple[Shard, bool]:
    """Reads a rank's shard from the cache, or makes the shards of all ranks and stores them there.

    Of the processes of a host that need shards of one graph, the one that gets a lock makes them, and the
    others wait for it. Without a cache, each process makes them.

    Args:
        graph: the square graph.
        recipe: how it is weighted and divided.
        rank: the rank.
        cache: the cache; None: nothing is stored.
        content: what `content_of` returns for the graph and the recipe.

    Returns:
        The shard, and whether it was read from the cache.
    """
    if cache is None:
        return recipe.make(graph)[rank], False
    cache.check_folder()
    keys = [fingerprint([], content, other) for other in range(recipe.parts)]
    if (shard := cache.load(keys[rank], _unpack)) is not None:
        return shard, True
    with cache.lock(keys[0]) as locked:
        if locked and (shard := cache.load(keys[rank], _unpack)) is not None:
            return shard, True
        shards = recipe.make(graph)
        if locked:
            for key, made in zip(keys, shards, strict=True):
                cache.store(key, *_pack(made))
    return shards[rank], False
