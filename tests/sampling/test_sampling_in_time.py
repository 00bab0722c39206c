"""Disjoint samples, and those of edges that have times: nothing that is later than a seed reaches it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from gnnsparse import SparseGraph
from gnnsparse.sampling import NeighborSampler, Subgraph
from tests import emulated
from tests.gpu_paths import RunningPath
from tests.sampling.conftest import ON_GPU, Place
from tests.sampling.samplers import STRATEGIES, assert_same, sampler

NODES = 12


def drawn_graph(
    edges: int, seed: int, floating: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Generator]:
    """Edges with repeats, of few different times, and what draws more."""
    draw = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(NODES, (2, edges), generator=draw)
    times = torch.randint(-3, 9, (edges,), generator=draw)
    return edge_index, times / 4 if floating else times, draw


def allowed(edge_index: torch.Tensor, times: torch.Tensor, node: int, time: float) -> list[int]:
    """The edges that end at a node and are not later, the oldest first, of equal ones the first given."""
    ends, moments = edge_index[1].tolist(), times.tolist()
    found = [e for e in range(len(ends)) if ends[e] == node and moments[e] <= time]
    return sorted(found, key=lambda e: moments[e])


def check(
    found: Subgraph, edge_index: torch.Tensor, times: torch.Tensor, seeds: list[int], at: list[float],
    fanouts: list[int], strategy: str, last: bool,
) -> None:  # fmt: skip
    """Each tree has the edges that its nodes may draw, as many as they have to, and its own nodes once."""
    assert found.trees is not None
    trees, nodes = found.trees.tolist(), found.nodes.tolist()
    assert len(set(zip(trees, nodes, strict=True))) == len(nodes) == sum(found.num_nodes)
    assert (trees[: len(seeds)], nodes[: len(seeds)]) == (list(range(len(seeds))), seeds)
    source, target = found.edge_index
    assert torch.equal(torch.stack([found.nodes[source], found.nodes[target]]), edge_index[:, found.edge_ids])
    assert torch.equal(found.trees[source], found.trees[target])
    hops = itertools.pairwise(itertools.accumulate(found.num_nodes, initial=0))
    per_hop = found.edge_ids.split(found.num_edges), target.split(found.num_edges)
    for (begin, end), fanout, ids, rows in zip(hops, fanouts, *per_hop, strict=False):
        assert bool(((rows >= begin) & (rows < end)).all())
        for row in range(begin, end):
            could = allowed(edge_index, times, nodes[row], at[trees[row]])
            if last and fanout > 0:
                could = could[-fanout:]
            taken = ids[rows == row].tolist()
            assert set(taken) <= set(could)  # nothing of the future
            if fanout < 0:
                assert sorted(taken) == sorted(could)
            elif strategy == "uniform":
                assert len(set(taken)) == len(taken) == min(fanout, len(could))
            elif strategy == "uniform replaced":
                assert len(taken) == (fanout if could else 0)
            elif strategy == "weighted":
                assert len(set(taken)) == len(taken) <= fanout


CASES = st.tuples(
    st.integers(0, 80), st.integers(0, 2**16), st.booleans(), st.booleans(), st.booleans(),
    st.lists(st.sampled_from([-1, 1, 2, 3, 30]), min_size=1, max_size=3), st.sampled_from(sorted(STRATEGIES)),
)  # fmt: skip


@given(CASES)
def test_no_later_edge_is_drawn(case: tuple[Any, ...]) -> None:
    """Against a plain search: by times of edges or of nodes, the latest or any, by every strategy."""
    edges, seed, floating, last, of_nodes, fanouts, strategy = case
    edge_index, times, draw = drawn_graph(edges, seed, floating)
    options: dict[str, Any] = {"edge_time": times}
    if of_nodes:
        node_time = torch.randint(-3, 9, (NODES,), generator=draw) / (4 if floating else 1)
        times, options = node_time[edge_index[0]], {"node_time": node_time}
    if not floating:
        times, options = times.long(), {name: time.long() for name, time in options.items()}
    made = sampler(
        edge_index, fanouts, strategy=strategy, num_nodes=NODES, seed=seed,
        temporal_strategy="last" if last else "uniform", **options,
    )  # fmt: skip
    seeds = torch.randint(NODES, (6,), generator=draw)
    at = times.new_tensor([-9, 9, 0, 3, 0, 2])
    found = made.sample_subgraph(seeds, 2, at)
    check(found, edge_index, times, seeds.tolist(), at.tolist(), fanouts, strategy, last)
    if of_nodes:  # the seeds' own times, if no others are given
        own = made.sample_subgraph(seeds, 2)
        check(own, edge_index, times, seeds.tolist(), node_time[seeds].tolist(), fanouts, strategy, last)


@given(st.integers(0, 60), st.integers(0, 2**16), st.sampled_from([None, "mean"]), st.booleans())
def test_products_of_blocks_are_those_of_the_edges_until_then(
    edges: int, seed: int, values: str | None, weighted: bool
) -> None:
    """Two layers over all neighbours, of repeated edges with weights, beside a plain recursion in float64."""
    edge_index, times, draw = drawn_graph(edges, seed)
    weight = torch.rand(edges, generator=draw) + 0.5 if weighted else None
    x = torch.randn(NODES, 3, generator=draw)

    def value(node: int, time: int, layers: int) -> torch.Tensor:
        if layers == 0:
            return x[node].double()
        found = allowed(edge_index, times, node, time)
        factors = [1.0 if weight is None else float(weight[e]) for e in found]
        total = torch.zeros(3, dtype=torch.float64)
        for e, factor in zip(found, factors, strict=True):
            total += factor * value(int(edge_index[0, e]), time, layers - 1)
        return total / sum(factors) if found and values == "mean" else total

    made = NeighborSampler(
        edge_index, [-1, -1], values=values, edge_weight=weight, edge_time=times, num_nodes=NODES,
        keep_edge_ids=True,
    )  # fmt: skip
    seeds, at = torch.tensor([3, 3, 0, 7]), torch.tensor([1, 8, 4, -4])
    sample = made.sample(seeds, time=at)
    got = x[sample.nodes]
    for block in sample.blocks:
        assert block.trees is not None
        row, col = block.adj.indices()
        assert torch.equal(block.trees[: len(block.targets)][row], block.trees[col])
        assert len((row * block.adj.shape[1] + col).unique()) == block.adj.nnz  # repeats are merged
        ends = torch.stack([block.sources[col], block.targets[row]])
        assert torch.equal(edge_index[:, block.edge_ids], ends)
        every = block.adj @ torch.eye(block.adj.shape[1])
        assert torch.equal(block.adj.to_dense(), every)
        assert torch.equal(block.adj.T @ torch.eye(block.adj.shape[0]), every.T)  # by which gradients are
        got = block.adj @ got
    want = torch.stack([value(int(n), int(t), 2) for n, t in zip(seeds, at, strict=True)])
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-4)


def test_edges_until_then_are_drawn_alike() -> None:
    """Each pair of the five edges until time 4, in every tree, and independently of the other trees."""
    edge_index = torch.stack([torch.arange(1, 10), torch.zeros(9, dtype=torch.int64)])
    made = NeighborSampler(edge_index, [2], num_nodes=10, edge_time=torch.arange(9), seed=1)
    outcomes = {pair: i for i, pair in enumerate(itertools.combinations(range(5), 2))}
    trees = 2000
    found = made.sample_subgraph(torch.zeros(trees, dtype=torch.int64), 0, torch.full((trees,), 4))
    pairs = torch.sort(found.edge_ids.view(trees, 2), dim=1).values.tolist()
    codes = torch.tensor([outcomes[tuple(pair)] for pair in pairs])
    assert chisquare(torch.bincount(codes, minlength=10)).pvalue > 1e-3
    joint = torch.bincount(10 * codes[::2] + codes[1::2], minlength=100)
    assert chisquare(joint).pvalue > 1e-3


def test_draws_by_weight_are_of_the_edges_that_are_drawn_from() -> None:
    """With replacement, of the last three: the sums of weights begin at those."""
    edge_index = torch.stack([torch.arange(1, 8), torch.zeros(7, dtype=torch.int64)])
    weights = torch.tensor([9.0, 8.0, 0.0, 1.0, 2.0, 7.0, 9.0])
    made = NeighborSampler(
        edge_index, [3], method="weighted", weights=weights, replace=True, num_nodes=8,
        edge_time=torch.arange(7), temporal_strategy="last",
    )  # fmt: skip
    trees = 2000
    found = made.sample_subgraph(torch.zeros(trees, dtype=torch.int64), 0, torch.full((trees,), 4))
    counts = torch.bincount(found.edge_ids, minlength=7)
    assert counts[[0, 1, 2, 5, 6]].sum() == 0
    assert chisquare(counts[[3, 4]], [trees, 2 * trees]).pvalue > 1e-3


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("values", [None, "mean", "gcn"])
def test_a_tree_is_a_sample_of_its_seed(strategy: str, values: str | None) -> None:
    """The first one is that of a sampler that is not disjoint, bit for bit; no tree shares nodes."""
    if values == "gcn" and "weighted" in strategy:
        return
    edge_index, _, _ = drawn_graph(200, 5)
    options: dict[str, Any] = {
        "strategy": strategy,
        "values": values,
        "num_nodes": NODES,
        "keep_edge_ids": True,
    }
    apart = sampler(edge_index, [3, 2], disjoint=True, **options)
    shared = sampler(edge_index, [3, 2], **options)
    assert_same(apart.sample([4], 3), shared.sample([4], 3))
    both = apart.sample([4, 4, 7], 3)
    assert both.seeds.tolist() == [4, 4, 7]
    for block in both.blocks:
        assert block.trees is not None
        row, col = block.adj.indices()
        assert torch.equal(block.trees[row], block.trees[col])
        assert len(set(zip(block.trees.tolist(), block.sources.tolist(), strict=True))) == block.adj.shape[1]
    assert shared.sample([4], 3).blocks[0].trees is None
    if values != "gcn":
        (one, two) = (made.sample_subgraph([4], 3) for made in (apart, shared))
        assert all(torch.equal(getattr(one, n), getattr(two, n)) for n in ("nodes", "edge_index", "edge_ids"))


@given(st.integers(0, 40), st.integers(0, 2**16))
def test_links_have_a_tree_for_each_end(edges: int, seed: int) -> None:
    edge_index, times, _ = drawn_graph(edges, seed)
    made = NeighborSampler(edge_index, [3, 2], edge_time=times, num_nodes=NODES, keep_edge_ids=True)
    pairs, at = torch.tensor([[0, 1], [5, 5], [0, 1]]), torch.tensor([0, 3, 8])
    sample = made.sample_links(pairs, 2, time=at)
    assert torch.equal(sample.seeds[sample.positive], pairs)
    assert sample.negative.shape == (6, 2)
    assert torch.equal(torch.cat([sample.positive, sample.negative]).flatten(), torch.arange(18))
    joined = set(zip(*edge_index.tolist(), strict=True))
    assert not joined & {tuple(pair) for pair in sample.seeds[sample.negative].tolist()}
    of_tree = at.repeat(3).repeat_interleave(2)
    for block in sample.blocks:
        assert block.trees is not None
        assert block.edge_ids is not None
        assert bool((times[block.edge_ids] <= of_tree[block.trees[block.adj.indices()[1]]]).all())


def test_a_matrix_of_two_kinds_of_nodes_has_times() -> None:
    edge_index, times = torch.tensor([[0, 4, 4, 2], [0, 0, 0, 1]]), torch.tensor([5, 1, 2, 3])
    made = NeighborSampler(edge_index, [-1], num_nodes=(5, 2), edge_time=times, keep_edge_ids=True)
    (block,) = made.sample([0, 1, 0], time=torch.tensor([2, 2, 5])).blocks
    assert block.trees is not None
    assert (block.sources.tolist(), block.trees.tolist()) == ([4, 4, 0], [0, 2, 2])
    assert (block.adj @ torch.eye(3)).tolist() == [[2, 0, 0], [0, 0, 0], [0, 2, 1]]


def large(seed: int = 0) -> tuple[SparseGraph, torch.Tensor]:
    """A graph with hubs, repeated edges and times, some of which are equal."""
    draw = torch.Generator().manual_seed(seed)
    found = torch.randint(280, (2, 5000), generator=draw)
    found[1, :1500] %= 3
    return SparseGraph.from_edge_index(found, 300), torch.randint(50, (5000,), generator=draw)


@ON_GPU
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("last", [False, True])
def test_a_gpu_draws_until_then_what_the_cpu_draws(strategy: str, last: bool, place: Place) -> None:
    of, times = large()
    seeds, at = torch.tensor([0, 299, 17, 0, 100, 1, 64]), torch.tensor([9, 9, 60, 30, -1, 25, 49])
    options: dict[str, Any] = {"strategy": strategy, "keep_edge_ids": True, "seed": 11}
    options["temporal_strategy"] = "last" if last else "uniform"
    found = []
    for device, running in (("cpu", None), (place.device, place.running)):
        with running() if running is not None else emulated.NotingWaits():
            made = sampler(of, [5, 40, -1], edge_time=times.to(device), device=device, **options)
            here = seeds.to(device), 9, at.to(device)
            found.append((made.sample(*here), made.sample_subgraph(*here)))
    assert_same(found[0][0], found[1][0])
    for name in ("nodes", "edge_index", "edge_ids", "trees"):
        assert torch.equal(getattr(found[0][1], name), getattr(found[1][1], name).cpu())


@settings(max_examples=10)
@given(CASES)
def test_any_case_is_drawn_on_a_gpu_as_on_the_cpu(late: Any, case: tuple[Any, ...]) -> None:
    edges, seed, floating, last, _, fanouts, strategy = case
    edge_index, times, _ = drawn_graph(edges, seed, floating)
    options: dict[str, Any] = {"strategy": strategy, "num_nodes": NODES, "keep_edge_ids": True}
    options |= {"edge_time": times, "temporal_strategy": "last" if last else "uniform"}
    at = times.new_tensor([0, 1, 2, 1])
    on_cpu = sampler(edge_index, fanouts, **options).sample([1, 2, 1, 5], 0, at)
    with emulated.running(late):
        assert_same(sampler(edge_index, fanouts, **options).sample([1, 2, 1, 5], 0, at), on_cpu)


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (r"edge_time: has shape \(3,\); accepted: \(2,\)", {"edge_time": torch.zeros(3)}),
        (r"edge_time: got a tensor of dtype torch.bool", {"edge_time": torch.ones(2).bool()}),
        (r"edge_time: element 1 is nan", {"edge_time": [0.0, float("nan")]}),
        (r"node_time: has shape \(2,\); accepted: \(3,\)", {"node_time": [1, 2]}),
        (r"node_time: is given with edge_time", {"node_time": [1, 2, 3], "edge_time": [1, 2]}),
        (r"temporal_strategy: got 'first'; accepted: uniform, last", {"temporal_strategy": "first"}),
        (r"values: 'gcn' weighs by edges of all times", {"edge_time": [1, 2], "values": "gcn"}),
        (r"disjoint: got int", {"disjoint": 1}),
        (r"fanouts: has 300 numbers; accepted if disjoint", {"fanouts": [1] * 300, "disjoint": True}),
    ],
)
def test_wrong_options_of_times_are_refused(message: str, options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        NeighborSampler(torch.tensor([[0, 1], [1, 2]]), **{"fanouts": [2], **options})


def test_wrong_times_of_seeds_are_refused(path: RunningPath | None) -> None:
    edge_index = torch.tensor([[0, 1], [1, 2]])
    timed = NeighborSampler(edge_index, [2], edge_time=[1, 2])
    for made, message, time in (
        (timed, "time: is None; accepted: the seeds' times", None),
        (timed, r"time: has shape \(1,\); accepted: \(2,\)", [1]),
        (timed, "time: got .*; accepted: int64, as the edges' times are", [1.0, 2.0]),
        (NeighborSampler(edge_index, [2]), "time: is given, but edges have no times", [1, 2]),
    ):
        for call in (made.sample, made.sample_subgraph):
            with pytest.raises((TypeError, ValueError), match=message):
                call([0, 1], 0, time)
    by_node = NeighborSampler(edge_index, [2], node_time=[1, 2, 3])
    with pytest.raises(ValueError, match="seeds: element 0 is 3"):
        by_node.sample([3])
    merged = SparseGraph.from_edge_index(torch.tensor([[0, 0], [1, 1]]), 2, torch.tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match="edge_weight: is None, and the graph has added up"):
        NeighborSampler(merged, [2], edge_time=[1, 2])
    (block,) = (
        NeighborSampler(merged, [2], edge_time=[1, 2], edge_weight=[1.0, 2.0]).sample([1], 0, [1]).blocks
    )
    assert (block.adj @ torch.ones(2, 1)).tolist() == [[1.0]]
