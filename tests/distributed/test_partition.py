"""Partitions of graphs among ranks: index maps, counts, the cache of shards, and the cost model."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnsparse import SparseGraph
from gnnsparse.cli.cache import check_cached
from gnnsparse.distributed import Rates, ShardFacts, choose_way, known_rates, partition_rows
from gnnsparse.distributed.cost import slices_of
from gnnsparse.distributed.names import PARTITIONS
from gnnsparse.distributed.operations import global_columns
from gnnsparse.distributed.partition import _MAKERS, balanced_ranges, cut_sizes, moving
from gnnsparse.distributed.shard import (
    Shard,
    ShardRecipe,
    _pack,
    content_of,
    read_shard,
    store_shard,
)
from gnnsparse.preprocess.normalize import normalize
from gnnsparse.runtime.cache import CacheWarning, GraphCache
from gnnsparse.testing import random_graph
from tests.helpers import dense_matrix, overwrite

METHODS = [method for method in PARTITIONS if method != "auto"]


def shards_of(graph: SparseGraph, recipe: ShardRecipe) -> list[Shard]:
    """The shards of all ranks, made by one process."""
    weights = recipe.weights(graph)
    partition = recipe.partition(weights)
    return [recipe.cut(weights, partition, rank) for rank in range(recipe.parts)]


def assert_same(made: Shard, expected: Shard) -> None:
    """Shards have the same counts and the same bits."""
    (arrays, facts), (others, known) = _pack(made), _pack(expected)
    assert facts == known
    assert arrays.keys() == others.keys()
    assert all(torch.equal(array, others[name]) for name, array in arrays.items())


def dense_rows(shard: Shard, order: torch.Tensor) -> torch.Tensor:
    """The rows of a shard, with columns in the numbering of the graph."""
    csr, facts = shard.csr, shard.facts
    values = torch.ones(csr.nnz) if shard.values is None else shard.values
    row, column = csr.row_index(), csr.indices.long()
    if shard.row_scale is not None:
        values = values * shard.row_scale[row]
    if shard.col_scale is not None:
        values = values * shard.col_scale[column]
    rows = torch.zeros(facts.rows, facts.nodes)
    rows[row, order[global_columns(shard)[column]]] = values
    return rows


@given(
    nodes=st.integers(1, 40), parts=st.integers(1, 5), method=st.sampled_from(METHODS),
    kind=st.sampled_from([None, "gcn", "mean"]), density=st.sampled_from([0.0, 0.05, 0.4]),
    weighted=st.booleans(), seed=st.integers(0, 99),
)  # fmt: skip
def test_shards_are_the_rows_of_the_matrix_and_send_lists_are_what_others_need(
    nodes: int, parts: int, method: str, kind: str | None, density: float, weighted: bool, seed: int
) -> None:
    graph = random_graph(
        nodes, nodes, density, seed=seed, weighted=weighted and kind is None, hubs=1, empty_rows=0.3
    )
    shards = shards_of(graph, ShardRecipe(kind, 1.0, parts, method))
    order = torch.cat([shard.nodes for shard in shards])
    assert torch.equal(order.sort().values, torch.arange(nodes))
    matrix = dense_matrix(graph, kind).float()
    for shard in shards:
        torch.testing.assert_close(dense_rows(shard, order), matrix[shard.nodes])
        assert torch.equal(shard.halo, shard.halo.unique())
        place = shard.csr.row_index() * max(shard.csr.cols, 1) + shard.csr.indices
        assert torch.equal(place, place.unique())  # ascending in each row
    for rank, shard in enumerate(shards):
        sent = shard.send_rows.split(list(shard.send_counts))
        for other, rows in enumerate(sent):
            halo, start, end = shards[other].halo, *shard.facts.starts[rank : rank + 2]
            assert torch.equal(rows + start, halo[(halo >= start) & (halo < end)])
            assert shards[other].receive_counts[rank] == rows.numel()
        back = shard if shard.transposed is None else shard.transposed
        torch.testing.assert_close(dense_rows(back, order), matrix.T[shard.nodes])
        assert torch.equal(back.nodes, shard.nodes)
    symmetric = torch.equal(matrix, matrix.T)
    assert symmetric or all(shard.transposed is not None for shard in shards)
    facts = shards[0].facts
    csr = normalize(graph, kind).graph.csr
    assert sum(facts.nnz) == csr.nnz
    counted = cut_sizes(csr, partition_rows(SparseGraph(csr), parts, method))
    assert counted == list(zip(facts.nnz, facts.outside, facts.halo, strict=True))
    assert facts.has_self_loops == (int((csr.row_index() == csr.indices).sum()) == csr.rows)
    assert all(dataclasses.replace(shard.facts, rank=0) == facts for shard in shards)


@given(work=st.lists(st.integers(0, 50), max_size=60), parts=st.integers(1, 8))
def test_ranges_are_cut_where_the_work_reaches_its_share(work: list[int], parts: int) -> None:
    starts = balanced_ranges(torch.tensor(work, dtype=torch.int64), parts)
    assert starts[0] == 0
    assert starts[-1] == len(work)
    assert list(starts) == sorted(starts)
    share, most = sum(work) / parts, max(work, default=0)
    for begin, end in itertools.pairwise(starts):
        assert sum(work[begin:end]) <= share + most


def blocks_of(blocks: int, size: int) -> tuple[SparseGraph, torch.Tensor]:
    """A graph of communities whose nodes have random numbers, and its edges by numbers in their order."""
    generator = torch.Generator().manual_seed(0)
    inside = torch.randint(0, size, (2, 4000), generator=generator)
    edges = inside + size * torch.randint(0, blocks, (1, 4000), generator=generator)
    names = torch.randperm(blocks * size, generator=generator)
    return SparseGraph.from_edge_index(names[edges], blocks * size), edges


def test_communities_have_a_smaller_halo_than_random_numbers_and_auto_takes_the_smallest() -> None:
    graph, size = blocks_of(4, 50)[0], 50
    found = {
        method: max(halo for _, _, halo in cut_sizes(graph.csr, partition_rows(graph, 2, method)))
        for method in METHODS
    }
    assert found["metis"] == 0
    assert found["community"] < size  # a cut goes through one community at most
    assert found["contiguous"] > 90
    assert partition_rows(graph, 2).method in ("community", "metis")


def test_metis_is_tried_where_communities_say_that_it_can_help(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    metis = _MAKERS["metis"]
    monkeypatch.setitem(_MAKERS, "metis", lambda *given: calls.append("metis") or metis(*given))
    graph, edges = blocks_of(4, 50)
    assert partition_rows(graph, 2).method in ("community", "metis")
    assert calls == ["metis"]
    # In its own order, with the blocks beside each other, it has nothing to gain.
    assert partition_rows(SparseGraph.from_edge_index(edges, 200), 2).method == "contiguous"
    assert calls == ["metis"]


@given(
    nodes=st.integers(1, 30), parts=st.integers(1, 4), method=st.sampled_from(METHODS),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_nodes_with_more_neighbours_elsewhere_are_counted(
    nodes: int, parts: int, method: str, seed: int
) -> None:
    graph = random_graph(nodes, nodes, 0.2, seed=seed, hubs=1, empty_rows=0.3)
    partition = partition_rows(graph, parts, method)
    count = 0
    for own in map(partition.owned, range(parts)):
        row = dense_matrix(graph, None)[own] != 0
        found = [row[:, partition.owned(rank)].sum(1) for rank in range(parts)]
        count += int((torch.stack(found).amax(0) > row[:, own].sum(1)).sum())
    assert moving(graph.csr, partition) == count / nodes


def test_nobody_looks_for_communities_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_MAKERS, "community", lambda *_: pytest.fail("looked for communities"))
    for ranks in (2, 4):  # of four blocks
        assert (
            partition_rows(SparseGraph.from_edge_index(blocks_of(4, 50)[1], 200), ranks).method
            == "contiguous"
        )


@pytest.mark.gpu
@pytest.mark.parametrize("method", PARTITIONS)
@pytest.mark.parametrize("kind", [None, "gcn", "mean"])
def test_shards_made_on_a_gpu_have_the_bits_of_those_of_the_host(kind: str | None, method: str) -> None:
    for seed, nodes in enumerate((1, 7, 400)):
        weighted = kind is None and seed != 1
        graph = random_graph(nodes, nodes, 0.05, seed=seed, weighted=weighted, hubs=1, empty_rows=0.3)
        recipe = ShardRecipe(kind, 1.0, 3, method)
        for made, expected in zip(shards_of(graph.to("cuda"), recipe), shards_of(graph, recipe), strict=True):
            assert_same(made, expected)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match=r"graph: is 3 x 4; accepted: a square matrix"):
        partition_rows(random_graph(3, 4, 0.5), 2)
    with pytest.raises(ValueError, match="parts: got 0"):
        partition_rows(random_graph(3, 3, 0.5), 0)
    with pytest.raises(ValueError, match=r"method: got 'best'; accepted: auto, contiguous"):
        partition_rows(random_graph(3, 3, 0.5), 2, "best")


def test_symmetric_matrices_have_no_shards_of_their_transpose() -> None:
    edges = random_graph(30, 30, 0.1, seed=5, weighted=False).csr
    both = torch.stack([edges.row_index(), edges.indices.long()])
    graph = SparseGraph.from_edge_index(torch.cat([both, both.flip(0)], 1), 30)
    for kind, symmetric in (("gcn", True), (None, True), ("mean", False)):
        for shard in shards_of(graph, ShardRecipe(kind, 1.0, 2, "community")):
            assert (shard.transposed is None) == symmetric


def test_shards_come_from_the_cache_and_damaged_ones_are_made_anew(tmp_path: Path) -> None:
    graph, recipe = random_graph(30, 30, 0.2, seed=3), ShardRecipe("gcn", 1.0, 3, "contiguous")
    cache, content, host = GraphCache(tmp_path), content_of(graph, recipe), torch.device("cpu")
    assert read_shard(cache, content, 1, host) is None
    for rank, made in enumerate(shards_of(graph, recipe)):
        store_shard(cache, content, made)
        kept = read_shard(cache, content, rank, host)
        assert kept is not None
        assert kept.facts.rank == rank
        assert kept.transposed is not None
        assert_same(kept, made)
    assert all(cache.problem_of(entry, check_cached) is None for entry in cache.entries())
    mapped = read_shard(cache, content, 2, torch.device("cuda"))
    assert mapped is not None
    before = {file: file.read_bytes() for file in tmp_path.glob("*.safetensors")}
    assert torch.equal(mapped.csr.indices, kept.csr.indices)
    mapped.csr.indices.zero_()
    assert before == {file: file.read_bytes() for file in tmp_path.glob("*.safetensors")}
    file = max(tmp_path.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    damaged = bytearray(file.read_bytes())
    damaged[-3] ^= 1
    overwrite(file, damaged)
    assert sum(cache.problem_of(entry, check_cached) is not None for entry in cache.entries()) == 1
    with pytest.warns(CacheWarning, match="damaged"):
        again = [read_shard(GraphCache(tmp_path), content, rank, host) for rank in range(3)]
    assert again.count(None) == 1


def facts_with(rows: int, nnz: int, outside: int, halo: int, ranks: int = 2) -> ShardFacts:
    starts = tuple(rows * rank for rank in range(ranks + 1))
    counts = ((nnz,) * ranks, (outside,) * ranks, (halo,) * ranks)
    return ShardFacts(0, starts, *counts, nnz * ranks, "contiguous", None, None, True, False)


RATES = Rates(link_bytes=1e9, latency=1e-6, product_bytes=1e12, narrow_bytes=64, copy_bytes=1e12)


def test_a_small_halo_is_fetched_and_a_full_one_is_gathered() -> None:
    few = choose_way(facts_with(10_000, 1_000_000, 1_000, 500), 128, rates=RATES)
    assert few.way == "halo"
    assert few.seconds["halo"] < few.seconds["gather"]
    slow_copies = dataclasses.replace(RATES, copy_bytes=1e9)
    full = choose_way(
        facts_with(10_000, 1_000_000, 500_000, 10_000), 128, rates=slow_copies, ways=("halo", "gather")
    )
    assert full.way == "gather"  # which packs nothing


def test_features_are_split_where_their_exchange_is_cheaper_than_rows() -> None:
    eight = facts_with(1_000, 100_000, 90_000, 7_000, ranks=8)
    assert choose_way(eight, 512, rates=RATES).way == "features"
    assert choose_way(eight, 8, rates=dataclasses.replace(RATES, narrow_bytes=4096)).way != "features"


def test_what_travels_longer_than_own_columns_take_is_cut_into_chunks() -> None:
    facts = facts_with(10_000, 1_000_000, 100_000, 9_000)
    # 9.2 MB travel in 4.6 ms, and the product takes 1 ms in all: it ends with the product of the last chunk.
    slow = dataclasses.replace(RATES, link_bytes=2e9)
    choice = choose_way(facts, 256, rates=slow, ways=("halo",))
    assert choice.chunks == 4
    assert choice.seconds["halo"] == pytest.approx(4.6e-3, rel=0.2)
    # Own columns take .8 ms and what travels .77, so that nothing is gained by chunks.
    fast = dataclasses.replace(RATES, link_bytes=1.2e10)
    choice = choose_way(facts, 256, rates=fast, ways=("halo",))
    assert (choice.split, choice.chunks) == (True, 1)
    assert "(1 chunk) behind the product of own columns, with 0 ms of waiting" in str(choice)
    undisturbed = dataclasses.replace(fast, beside=1e-9)
    seconds = choose_way(facts, 256, rates=undisturbed, ways=("halo",)).seconds["halo"]
    assert seconds < 1.1e-3
    assert choice.seconds["halo"] == pytest.approx(seconds + fast.beside * 0.77e-3, rel=0.01)
    # Two results would have to be added for nothing.
    few = dataclasses.replace(RATES, link_bytes=1e14, latency=1e-9, copy_bytes=1e10)
    choice = choose_way(facts, 256, rates=few, ways=("halo",))
    assert not choice.split
    assert "behind products of all columns" in str(choice)


@pytest.mark.parametrize(
    ("width", "itemsize", "chunks", "sizes"),
    [
        (128, 2, 2, [64, 64]),
        (128, 2, 4, [64, 64]),  # no less than 128 bytes
        (128, 4, 4, [32] * 4),
        (100, 2, 2, [56, 44]),  # whole vectors
        (47, 2, 4, [47]),
        (1, 4, 3, [1]),
        (0, 4, 2, [0]),
    ],
)
def test_chunks_are_whole_slices_and_vectors(
    width: int, itemsize: int, chunks: int, sizes: list[int]
) -> None:
    parts = slices_of(width, itemsize, chunks)
    assert [part.stop - part.start for part in parts] == sizes
    assert (parts[0].start, parts[-1].stop) == (0, width)
    assert all(a.stop == b.start for a, b in itertools.pairwise(parts))


def test_reasons_name_every_way() -> None:
    text = str(choose_way(facts_with(100, 1_000, 500, 90), 64, 2, rates=known_rates("nccl")))
    for part in (
        "halo:",
        "gather:",
        "features:",
        "is estimated to be the fastest for 64 features of 2 bytes",
    ):
        assert part in text
    assert "by 1/2 of 64 features" in text
    facts = facts_with(100, 1_000, 500, 90)
    with pytest.raises(ValueError, match=r"width: is empty; accepted: an integer, or one for each"):
        choose_way(facts, (), rates=RATES)
    with pytest.raises(TypeError, match=r"width: got float"):
        choose_way(facts, 6.5, rates=RATES)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"rates.link_bytes: got 0.0; accepted: a number above 0"):
        dataclasses.replace(RATES, link_bytes=0.0)
    with pytest.raises(ValueError, match=r"backend: got 'mpi'; accepted: nccl, gloo"):
        known_rates("mpi")
