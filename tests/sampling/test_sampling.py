"""NeighborSampler: its blocks are parts of the graph, and operands that layers take; what it refuses."""

from __future__ import annotations

import copy
import itertools
import threading
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.sampling import METHODS, Block, NeighborSampler, Sample, blocks, draws
from gnnsparse.sampling.blocks import ROW_LIMIT
from gnnsparse.sampling.draws import Numbering
from gnnsparse.testing import assert_accurate, assert_all_accurate, in_float64, random_graph
from models import MODELS
from tests import emulated
from tests.gpu_paths import RunningPath
from tests.helpers import reference_layers
from tests.sampling.conftest import ON_GPU, Place
from tests.sampling.samplers import STRATEGIES, assert_same, sampler
from tests.together import run_together


def edges(nodes: int = 60, count: int = 500, seed: int = 0, loops: bool = True) -> torch.Tensor:
    """Edges with repeats, some nodes without any, and hubs."""
    draw = torch.Generator().manual_seed(seed)
    found = torch.randint(nodes - 5, (2, count), generator=draw)
    found[1, : count // 4] = 1
    return found if loops else found[:, found[0] != found[1]]


def plain(nodes: int, count: int, seed: int = 0) -> SparseGraph:
    return SparseGraph.from_edge_index(edges(nodes, count, seed).unique(dim=1), nodes)


def matrix_of(graph: SparseGraph) -> torch.Tensor:
    return torch.from_numpy(graph.to_scipy().toarray())


def dense(block: Block) -> torch.Tensor:
    return block.adj @ torch.eye(block.adj.shape[1])


def pairs(block: Block) -> tuple[torch.Tensor, torch.Tensor]:
    """The target and the source of each nonzero."""
    row, col = block.adj.indices()
    return block.targets[row], block.sources[col]


#: All strategies and values, but for those that are refused together.
PAIRS = itertools.product(STRATEGIES, (None, "mean", "gcn"))
DRAWS = pytest.mark.parametrize(
    ("strategy", "values"), [pair for pair in PAIRS if pair[1] != "gcn" or "weighted" not in pair[0]]
)


@DRAWS
def test_every_edge_exists_and_fanouts_hold(strategy: str, values: str | None) -> None:
    edge_index = edges()
    graph = SparseGraph.from_edge_index(edge_index, 60)
    matrix = matrix_of(SparseGraph(graph.csr)) > 0
    fanouts = [4, 3, 2]
    made = sampler(edge_index, fanouts, strategy=strategy, values=values, num_nodes=60, keep_edge_ids=True)
    sample = made.sample([3, 59, 1, 10], step=5)
    assert sample.seeds.tolist() == [3, 59, 1, 10]
    assert torch.equal(sample.blocks[-1].targets, sample.seeds)
    for block, fanout in zip(reversed(sample.blocks), fanouts, strict=True):
        rows, cols = block.adj.shape
        assert (rows, cols) == (block.targets.numel(), block.sources.numel())
        assert torch.equal(block.sources[:rows], block.targets)
        assert block.sources.unique().numel() == cols
        target, source = pairs(block)
        ids = block.edge_ids
        assert ids is not None
        assert torch.equal(edge_index[:, ids[ids >= 0]], torch.stack([source, target])[:, ids >= 0])
        is_loop = (target == source) if values == "gcn" else torch.zeros_like(target, dtype=torch.bool)
        assert torch.equal(ids < 0, is_loop)
        assert bool(matrix[target[~is_loop], source[~is_loop]].all())
        taken = torch.bincount(block.adj.indices()[0][~is_loop], minlength=rows)
        degrees = matrix.sum(1)[block.targets]
        if values == "gcn":
            assert int(is_loop.sum()) == rows
            degrees = degrees - matrix.diagonal()[block.targets].long()
        if strategy == "uniform":
            assert torch.equal(taken, degrees.clamp(max=fanout))
        elif strategy == "labor":
            assert torch.equal(taken[degrees <= fanout], degrees[degrees <= fanout])
        else:
            assert int(taken.max()) <= fanout
        assert torch.equal(dense(block).T, block.adj.T @ torch.eye(rows))
    for outer, inner in zip(sample.blocks[1:], sample.blocks, strict=False):
        assert torch.equal(outer.sources, inner.targets)
    assert torch.equal(sample.nodes, sample.blocks[0].sources)


@pytest.mark.parametrize("values", [None, "mean", "gcn"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("loops", [False, True])
def test_with_all_neighbours_products_are_those_of_the_whole_graph(
    values: str | None, weighted: bool, loops: bool
) -> None:
    edge_index = edges(loops=loops)
    weight = torch.rand(edge_index.shape[1]) + 0.1 if weighted else None
    whole = SparseGraph.from_edge_index(edge_index, 60, weight)
    adj = gnnsparse.prepare(whole, values=values, cache=False)
    x = torch.randn(60, 9)
    exact = (adj @ torch.eye(60)).double()
    for method in METHODS:
        if (method, values) == ("weighted", "gcn"):
            continue
        weights = torch.ones(edge_index.shape[1]) if method == "weighted" else None
        made = NeighborSampler(whole, [-1, -1], values=values, method=method, weights=weights)
        sample = made.sample(torch.arange(0, 60, 7))
        got = x[sample.nodes]
        for block in sample.blocks:
            got = block.adj @ got
        assert_accurate(got, (adj @ (adj @ x))[sample.seeds], (exact @ (exact @ x.double()))[sample.seeds])


@pytest.mark.parametrize("replace", [False, True])
def test_means_and_sums_are_of_what_was_drawn(replace: bool) -> None:
    graph = plain(60, 600)
    seeds = torch.arange(0, 60, 3)
    made = {v: NeighborSampler(graph, [5], values=v, replace=replace, seed=2) for v in (None, "mean")}
    sums, means = (dense(made[v].sample(seeds).blocks[0]) for v in (None, "mean"))
    counts = sums.sum(1)
    has_any = graph.csr.degrees[seeds] > 0
    assert set(sums.unique().tolist()) <= set(map(float, range(6)))
    if replace:
        assert torch.equal(counts, torch.where(has_any, 5.0, 0.0))
        assert float(sums.max()) > 1
    assert_accurate(means, sums / counts.clamp(min=1)[:, None], sums.double() / counts.clamp(min=1)[:, None])


@pytest.mark.parametrize("strategy", ["uniform", "uniform replaced", "labor"])
def test_the_expectation_of_gcn_is_the_whole_graphs_product(strategy: str) -> None:
    graph = plain(40, 500)
    adj = gnnsparse.prepare(graph, values="gcn", cache=False)
    x, seeds, draws = torch.randn(40, 2), torch.arange(12), 300
    made = sampler(graph, [4], strategy=strategy, values="gcn", seed=1)
    found = []
    for step in range(draws):
        sample = made.sample(seeds, step)
        found.append(sample.blocks[0].adj @ x[sample.nodes])
    drawn = torch.stack(found).double()
    error = drawn.mean(0) - (adj @ x)[seeds].double()
    spread = drawn.std(0) / draws**0.5
    # LABOR divides by the number of draws, which makes it wrong by something of the order of 1 / fan-out^2.
    slack = 0.05 if strategy == "labor" else 1e-5
    assert bool((error.abs() <= 4.5 * spread + slack).all())


@pytest.mark.parametrize("name", ["gcn", "graphsage", "gin", "gat", "gatv2", "agnn", "graph_transformer"])
def test_models_take_blocks_as_graphs(name: str) -> None:
    torch.manual_seed(1)
    graph = plain(50, 300)
    model = MODELS[name].build(6, out_channels=3, hidden_channels=16, num_layers=2, residual=True).eval()
    values = MODELS[name].values
    adj = gnnsparse.prepare(graph, values=values, cache=False)
    seeds, x = torch.tensor([7, 0, 49, 20]), torch.randn(50, 6)
    sample = NeighborSampler(graph, [-1, -1], values=values).sample(seeds)
    assert sample.adjs[0].shape[0] < sample.adjs[0].shape[1]

    def run(x: torch.Tensor, adjs: Any, rows: Any = slice(None)) -> list[torch.Tensor]:
        """The output, and the gradients of the parameters."""
        model.zero_grad()
        out = model(x, adjs)[rows]
        out.square().sum().backward()
        return [out.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]

    found, plain_run = run(x[sample.nodes], sample.adjs), run(x, adj, seeds)
    with reference_layers(), in_float64(model):
        wanted = run(x.double(), adj, seeds)
    assert_accurate(found[0], plain_run[0], wanted[0])
    # Gradients of a single number, such as AGNN's beta, are sums over all edges whose terms cancel.
    assert_all_accurate(found[1:], plain_run[1:], wanted[1:], floor=80 * torch.finfo(torch.float32).eps)


def test_a_matrix_of_two_kinds_of_nodes_has_one_layer(path: RunningPath | None) -> None:
    graph = random_graph(30, 80, 0.2, seed=1, empty_rows=0.1)
    made = NeighborSampler(graph, [4], values="mean", keep_edge_ids=True)
    (block,) = made.sample([3, 1, 29]).blocks
    assert path is None or path.waits == 1
    target, source = pairs(block)
    assert bool((matrix_of(graph)[target, source] != 0).all())
    assert block.adj.shape[1] == source.unique().numel()
    assert torch.equal(graph.csr.row_index()[block.edge_ids], target)
    assert torch.equal(graph.csr.indices[block.edge_ids].long(), source)
    empty = (graph.csr.degrees == 0).nonzero()[0]
    assert made.sample(empty).blocks[0].sources.tolist() == []
    with pytest.raises(ValueError, match=r"fanouts: has 2 numbers for a matrix 30 x 80; accepted: one"):
        NeighborSampler(graph, [4, 4])
    with pytest.raises(ValueError, match="graph: is not square"):
        made.sample_links([[0, 1]])


@pytest.mark.parametrize("values", [None, "mean", "gcn"])
def test_no_seeds_give_empty_blocks(values: str | None, path: RunningPath | None) -> None:
    made = NeighborSampler(plain(20, 50), [3, 2], values=values)
    sample = made.sample(torch.empty(0, dtype=torch.int32))
    assert [block.adj.shape for block in sample.blocks] == [(0, 0), (0, 0)]
    assert (sample.blocks[0].adj @ torch.randn(0, 4)).shape == (0, 4)
    assert made.sample([19]).nodes.tolist() == [19]  # has no neighbours


def test_nodes_without_neighbours_have_empty_rows_or_their_loop() -> None:
    edge_index, options = torch.tensor([[0], [1]]), {"num_nodes": 5, "keep_edge_ids": True}
    sample = NeighborSampler(edge_index, [3, 3], **options).sample([4, 0])
    assert [block.adj.nnz for block in sample.blocks] == [0, 0]
    assert sample.nodes.tolist() == [4, 0]
    for found in (edge_index, torch.tensor([[0, 4], [0, 4]])):  # of which loops are no edges to draw
        block = NeighborSampler(found, [3, 3], values="gcn", **options).sample([4, 0]).blocks[0]
        assert torch.equal(dense(block), torch.eye(2))
        assert block.edge_ids.tolist() == [-1, -1]


def test_the_seed_and_the_step_decide() -> None:
    graph = plain(80, 1500)

    def ids(seed: int, step: int) -> list[int]:
        sample = NeighborSampler(graph, [3, 3], seed=seed, keep_edge_ids=True).sample(torch.arange(30), step)
        return [i for block in sample.blocks for i in block.edge_ids.tolist()]  # type: ignore[union-attr]

    assert ids(1, 4) == ids(1, 4)
    assert len({tuple(ids(seed, step)) for seed in (1, 2) for step in (0, 1, 2**32 - 1)}) == 6


def test_a_nodes_draws_do_not_depend_on_the_other_seeds() -> None:
    graph = plain(80, 1500)
    made = NeighborSampler(graph, [4], keep_edge_ids=True)
    (both,) = made.sample([5, 70]).blocks
    (alone,) = made.sample([70]).blocks
    of_second = both.edge_ids[both.adj.indices()[0] == 1]  # type: ignore[index]
    assert set(of_second.tolist()) == set(alone.edge_ids.tolist())  # type: ignore[union-attr]


def test_labor_shares_its_numbers_among_targets() -> None:
    # Two nodes with the same 30 neighbours, and one with twenty of them and 40 others.
    source = torch.cat([torch.arange(30), torch.arange(30), torch.arange(10, 70)])
    target = torch.cat([torch.full((30,), 70), torch.full((30,), 71), torch.full((60,), 72)])
    made = NeighborSampler(torch.stack([source, target]), [6], method="labor")
    for step in range(20):
        (block,) = made.sample([70, 71, 72], step).blocks
        matrix = dense(block) > 0
        assert torch.equal(matrix[0], matrix[1])
        shared = (block.sources >= 10) & (block.sources < 30)
        assert bool((matrix[0, shared] >= matrix[2, shared]).all())


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_number_of_threads_draws_the_same(strategy: str, any_threads: None) -> None:
    made = sampler(plain(30_000, 200_000), [6, 3], strategy=strategy, keep_edge_ids=True)
    found = []
    for threads in (1, 2, 3, 5):
        torch.set_num_threads(threads)
        found.append(made.sample(torch.arange(0, 30_000, 2), step=1))
        assert_same(found[0], found[-1])


def test_threads_share_a_sampler() -> None:
    made = NeighborSampler(plain(500, 4000), [5, 5])
    seeds = torch.arange(100)
    alone = [made.sample(seeds, step).nodes for step in range(8)]
    found: dict[int, torch.Tensor] = {}

    def draw(step: int, barrier: threading.Barrier) -> None:
        barrier.wait()
        for _ in range(5):
            found[step] = made.sample(seeds, step).nodes

    run_together(8, draw)
    assert all(torch.equal(found[step], alone[step]) for step in range(8))
    copied = copy.deepcopy(made)
    assert torch.equal(copied.sample(seeds, 3).nodes, alone[3])


@pytest.mark.parametrize("threads", [1, 4])
@given(data=st.data())
def test_numbers_are_given_in_the_order_of_first_appearance(
    threads: int, any_threads: None, path: RunningPath | None, data: st.DataObject
) -> None:
    """And places are free again after each call."""
    torch.set_num_threads(threads)
    targets = data.draw(st.lists(st.integers(0, 40), unique=True, max_size=20))
    others = data.draw(st.lists(st.integers(0, 40), max_size=300))
    want = list(dict.fromkeys(targets + others))
    numbering = Numbering(41, torch.device("cpu"))
    for _ in range(2):
        sources, numbers = numbering.number(*(torch.tensor(x, dtype=torch.int32) for x in (targets, others)))
        assert sources.tolist() == want
        assert numbers.tolist() == [want.index(node) for node in others]


def test_links_are_given_as_positions_among_the_seeds() -> None:
    graph = plain(60, 600)
    made = NeighborSampler(graph, [4, 2], seed=3)
    given_pairs = torch.stack([graph.csr.indices.long(), graph.csr.row_index()], dim=1)[::10]
    sample = made.sample_links(given_pairs, negatives=3, step=2)
    assert torch.equal(sample.seeds[sample.positive], given_pairs)
    assert sample.seeds.unique().numel() == sample.seeds.numel()
    negative = sample.seeds[sample.negative]
    assert negative.shape == (3 * len(given_pairs), 2)
    assert not bool((matrix_of(graph)[negative[:, 1], negative[:, 0]] != 0).any())
    assert not bool((negative[:, 0] == negative[:, 1]).any())
    assert torch.equal(sample.blocks[-1].targets, sample.seeds)
    assert torch.equal(made.sample_links(given_pairs, 3, 2).negative, sample.negative)
    other = made.sample_links(given_pairs, 3, 3)
    assert not torch.equal(other.seeds[other.negative], negative)
    assert made.sample_links(given_pairs, 0).negative.shape == (0, 2)
    assert made.sample_links(torch.empty(0, 2, dtype=torch.int64), 2).seeds.numel() == 0


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (r"fanouts: is empty", {"fanouts": []}),
        (r"fanouts: got 0; accepted: positive integers, or -1", {"fanouts": [0]}),
        (r"fanouts: got float", {"fanouts": [2.0]}),
        (r"fanouts: got int; accepted: a sequence", {"fanouts": 3}),
        (r"fanouts: got bool", {"fanouts": [True]}),
        (r"method: got 'random'; accepted: uniform, weighted, labor", {"method": "random"}),
        (r"weights: got None with method='weighted'", {"method": "weighted"}),
        (r"weights: got weights with method='uniform'", {"weights": torch.ones(2)}),
        (r"weights: element 1 is -1.0; accepted: numbers of 0 or more",
         {"method": "weighted", "weights": torch.tensor([1.0, -1.0])}),
        (r"weights: has shape \(3,\); accepted: \(2,\)", {"method": "weighted", "weights": torch.ones(3)}),
        (r"replace: got True with method='labor'", {"method": "labor", "replace": True}),
        (r"values: got 'sum'; accepted: gcn, mean", {"values": "sum"}),
        (r"values: got 'gcn' with method='weighted'",
         {"method": "weighted", "weights": torch.ones(2), "values": "gcn"}),
        (r"seed: got -1", {"seed": -1}),
        (r"precision: ", {"precision": "fp7"}),
        (r"device: got 'nowhere'", {"device": "nowhere"}),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(message: str, options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        NeighborSampler(torch.tensor([[0, 1], [1, 2]]), **{"fanouts": [2], **options})


@pytest.mark.parametrize(
    ("message", "seeds", "step"),
    [
        (r"seeds: element 2 is 1 once more; accepted: different nodes", [1, 0, 1], 0),
        (r"seeds: element 0 is 3; accepted: 0 to 2", [3], 0),
        (r"seeds: element 1 is -1; accepted: 0 to 2", [0, -1, 0], 0),
        (rf"seeds: element 1 is {2**40}; accepted: 0 to 2", [0, 2**40, 0], 0),
        (r"seeds: got dtype float64", [0.5], 0),
        (r"seeds: got set", {1}, 0),
        (r"step: got -1", [0], -1),
        (r"step: got 4294967296", [0], 2**32),
        (r"step: got float", [0], 1.0),
    ],
)
def test_wrong_seeds_are_refused(message: str, seeds: Any, step: Any, path: RunningPath | None) -> None:
    made = NeighborSampler(torch.tensor([[0, 1], [1, 2]]), [2, 2])
    with pytest.raises((TypeError, ValueError), match=message):
        made.sample(seeds, step)
    assert made.sample([1, 0]).seeds.tolist() == [1, 0]  # it works as before


def test_wrong_links_are_refused(path: RunningPath | None) -> None:
    made = NeighborSampler(torch.tensor([[0, 1], [1, 2]]), [2])
    for message, given_pairs, negatives in (
        (r"pairs: has shape \(1, 3\); accepted: \(pairs, 2\)", [[0, 1, 2]], 1),
        (r"pairs: element 1 is 5", [[0, 5]], 1),
        (r"negatives: got -1", [[0, 1]], -1),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            made.sample_links(given_pairs, negatives)
    full = SparseGraph.from_edge_index((torch.ones(8, 8) - torch.eye(8)).nonzero().T.contiguous(), 8)
    with pytest.raises(ValueError, match="graph: joins nearly all pairs"):
        NeighborSampler(full, [2]).sample_links([[0, 1]])


# The CUDA source of sampling draws and numbers what the CPU's code does, bit for bit.


def hubs(nodes: int = 300, count: int = 4000, seed: int = 0) -> SparseGraph:
    """A graph with hubs of more neighbours than a warp has lanes, and nodes without any."""
    draw = torch.Generator().manual_seed(seed)
    found = torch.randint(nodes - 20, (2, count), generator=draw)
    found[1, : count // 4] %= 3
    return SparseGraph.from_edge_index(found, nodes)


def make(strategy: str, of: SparseGraph, fanouts: list[int], **options: Any) -> NeighborSampler:
    return sampler(of, fanouts, strategy=strategy, seed=11, keep_edge_ids=True, **options)


@DRAWS
@ON_GPU
@pytest.mark.parametrize("fanouts", [[5, 40, -1], [5, 40, 3]])
def test_a_gpu_draws_what_the_cpu_draws(
    strategy: str, values: str | None, fanouts: list[int], place: Place
) -> None:
    """Layer by layer, and all at once where no row can have more edges than are asked for."""
    of, seeds = hubs(), torch.tensor([0, 299, 17, 2, 100, 1, 64])
    if place.device == "cuda":
        of, seeds = plain(30_000, 300_000), torch.randperm(30_000)[:2000]
    on_cpu = make(strategy, of, fanouts, values=values).sample(seeds, step=9)
    with place.running() as path:
        made, seeds = make(strategy, of, fanouts, values=values, device=place.device), seeds.to(place.device)
        if path is not None:
            path.waits = 0
        with emulated.NotingWaits() as noted:
            found = made.sample(seeds, step=9)
        if path is not None:
            assert noted.found == []
            assert path.waits == 1 or strategy == "labor" or -1 in fanouts
            assert {"cuda_draw_neighbors", "cuda_gather_neighbors", "cuda_number_nodes"} <= path.called
        assert_same(found, on_cpu)
        assert_same(made.sample(seeds, step=9), on_cpu)  # the places are free again
        x = torch.randn(found.nodes.numel(), 8)
        products = [(block.adj @ x[: block.adj.shape[1]].to(place.device)).cpu() for block in found.blocks]
    for product, block in zip(products, on_cpu.blocks, strict=True):
        # Sums of many neighbours are added up in another order.
        right = block.adj @ x[: block.adj.shape[1]]
        torch.testing.assert_close(product, right, rtol=1e-5, atol=1e-5 * float(right.abs().max()))


@ON_GPU
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_subgraphs_of_repeated_edges_are_those_of_the_cpu(strategy: str, place: Place) -> None:
    of, seeds = hubs(count=9000), torch.tensor([0, 299, 17, 2, 100])
    assert of.nnz < of.num_edges
    mine = make(strategy, of, [5, 40, -1]).sample_subgraph(seeds, step=9)
    with place.running():
        made = make(strategy, of, [5, 40, -1], device=place.device)
        theirs = made.sample_subgraph(seeds.to(place.device), step=9)
    for name in ("nodes", "edge_index", "edge_ids"):
        assert torch.equal(getattr(mine, name), getattr(theirs, name).cpu())
    assert (mine.num_nodes, mine.num_edges) == (theirs.num_nodes, theirs.num_edges)


@pytest.mark.parametrize(
    ("name", "hub"),
    [
        *itertools.product(("graphsage", "gcn"), (False, True)),
        *((name, False) for name in ("gat", "gatv2", "agnn", "graph_transformer")),
    ],
)
def test_a_step_on_a_sample_waits_for_nothing(name: str, hub: bool, late: Any) -> None:
    """Also with a column of so many nonzeros that it is cut into parts, which are made with the block."""
    found = torch.randint(900, (2, 5000), generator=torch.Generator().manual_seed(1))
    if hub:
        found = torch.cat([found, torch.stack([torch.full((900,), 7), torch.arange(900)])], 1)
    of, seeds, x = SparseGraph.from_edge_index(found, 900), torch.arange(400), torch.randn(900, 20)
    model = MODELS[name].build(20, out_channels=3, hidden_channels=24)
    model.eval()  # without dropout

    def gradients(sample: Sample) -> torch.Tensor:
        inputs = x[sample.nodes].requires_grad_()
        model.zero_grad()
        model(inputs, sample.adjs).logsumexp(1).sum().backward()
        return torch.cat([leaf.grad.flatten() for leaf in (inputs, *model.parameters())])  # type: ignore[union-attr]

    fanouts, values = [400, 400] if hub else [8, 4], MODELS[name].values
    with emulated.running(late) as path:
        sample = make("uniform", of, fanouts, values=values).sample(seeds)
        longest = max(block.adj.T.kernels.longest_row or 0 for block in sample.blocks)
        assert longest > ROW_LIMIT if hub else longest < ROW_LIMIT
        path.waits = 0
        with emulated.NotingWaits() as noted:
            found = gradients(sample)
        assert (path.waits, noted.found) == (0, [])
    torch.testing.assert_close(found, gradients(make("uniform", of, fanouts, values=values).sample(seeds)))


@settings(max_examples=20)
@given(st.data())
def test_any_fanouts_draw_what_the_cpu_draws(late: Any, data: st.DataObject) -> None:
    of = hubs(60, data.draw(st.integers(0, 400)), data.draw(st.integers(0, 5)))
    seeds = torch.tensor(data.draw(st.lists(st.integers(0, 59), unique=True, max_size=60)), dtype=torch.int64)
    fanouts = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    strategy = data.draw(st.sampled_from([strategy for strategy in STRATEGIES if strategy != "labor"]))
    on_cpu = make(strategy, of, fanouts).sample(seeds, 3)
    with emulated.running(late):
        assert_same(make(strategy, of, fanouts).sample(seeds, 3), on_cpu)


def test_what_would_need_too_much_room_is_drawn_in_turn(late: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = make("uniform", hubs(), [5, 5]).sample([1, 2, 3])
    with emulated.running(late) as path:
        made = make("uniform", hubs(), [5, 5])
        for most, waits in ((3 * 5 + 18 * 5, 1), (18 * 5 - 1, 7)):
            monkeypatch.setattr(blocks, "MOST_EDGES", most)
            path.waits = 0
            assert_same(made.sample([1, 2, 3]), on_cpu)
            assert path.waits == waits


def test_plans_depend_on_the_block_alone(late: Any) -> None:
    """A resumed run, which sees other blocks before, computes what an uninterrupted one does."""
    small, large = hubs(100, 500), hubs(3000, 40000)
    with emulated.running(late):
        made = make("uniform", large, [9])
        other = make("uniform", large, [9])
        other.sample(torch.arange(4)).blocks[0].adj.plan(64)
        seeds = torch.arange(1000, 2000)
        first, second = (s.sample(seeds).blocks[0].adj.plan(64) for s in (made, other))
        assert first == second
        assert make("uniform", small, [9]).sample(torch.arange(50)).blocks[0].adj.plan(64).group > 0  # type: ignore[attr-defined]


def test_negatives_are_those_of_the_cpu(late: Any) -> None:
    of, pairs = hubs(), torch.tensor([[0, 1], [5, 7]])
    on_cpu = make("uniform", of, [3]).sample_links(pairs, 200, step=4)
    with emulated.running(late):
        on_gpu = make("uniform", of, [3]).sample_links(pairs, 200, step=4)
        assert torch.equal(on_gpu.seeds, on_cpu.seeds)
        assert torch.equal(on_gpu.negative, on_cpu.negative)
        assert_same(on_gpu, on_cpu)


@pytest.mark.parametrize(("fanouts", "module"), [([4, 4], blocks), ([4, -1], draws)])
def test_a_sample_that_fails_leaves_no_places(
    fanouts: list[int], module: Any, copyless: RunningPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next sample is the right one, though kernels that have run have noted places of nodes."""
    launch = draws.launch

    def fails(device: torch.device, name: str, *arguments: Any) -> None:
        if name == "cuda_number_nodes":
            raise torch.OutOfMemoryError("no memory is left")
        launch(device, name, *arguments)

    made, seeds = make("uniform", hubs(), fanouts), torch.arange(100)
    want = make("uniform", hubs(), fanouts).sample(seeds.flip(0))
    with monkeypatch.context() as patch:
        patch.setattr(module, "launch", fails)
        with pytest.raises(torch.OutOfMemoryError):
            made.sample(seeds)
    assert_same(made.sample(seeds.flip(0)), want)
