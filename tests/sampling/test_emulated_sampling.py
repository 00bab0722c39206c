"""The CUDA source of sampling, run on the CPU: it draws and numbers what the CPU's code does, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gnnsparse import SparseGraph
from gnnsparse.sampling import NeighborSampler, Sample, blocks, draws
from gnnsparse.sampling.blocks import ROW_LIMIT
from gnnsparse.sampling.draws import Numbering
from models import MODELS
from tests import emulated
from tests.gpu_paths import RunningPath
from tests.sampling.samplers import STRATEGIES, assert_same, check_numbers, sampler


def graph(nodes: int = 300, edges: int = 4000, seed: int = 0) -> SparseGraph:
    """A graph with hubs of more neighbours than a warp has lanes, and nodes without any."""
    draw = torch.Generator().manual_seed(seed)
    found = torch.randint(nodes - 20, (2, edges), generator=draw)
    found[1, : edges // 4] %= 3
    return SparseGraph.from_edge_index(found, nodes)


def make(strategy: str, of: SparseGraph, fanouts: list[int], **options: Any) -> NeighborSampler:
    return sampler(of, fanouts, strategy=strategy, seed=11, keep_edge_ids=True, **options)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("values", [None, "mean", "gcn"])
@pytest.mark.parametrize("fanouts", [[5, 40, -1], [5, 40, 3]])
def test_a_gpu_draws_what_the_cpu_draws(
    strategy: str, values: str | None, fanouts: list[int], late: Any
) -> None:
    """Layer by layer, and all at once where no row can have more edges than are asked for."""
    if values == "gcn" and strategy.startswith("weighted"):
        pytest.skip("is refused")
    of, seeds = graph(), torch.tensor([0, 299, 17, 2, 100, 1, 64])
    on_cpu = make(strategy, of, fanouts, values=values).sample(seeds, step=9)
    with emulated.running(late) as path:
        made = make(strategy, of, fanouts, values=values)
        path.waits = 0
        with emulated.NotingWaits() as noted:
            found = made.sample(seeds, step=9)
        assert noted.found == []
        if strategy != "labor" and -1 not in fanouts:
            assert path.waits == 1
        assert_same(found, on_cpu)
        assert_same(made.sample(seeds, step=9), on_cpu)  # the places are free again
        assert {"cuda_draw_neighbors", "cuda_gather_neighbors", "cuda_number_nodes"} <= path.called


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_subgraphs_of_repeated_edges_are_those_of_the_cpu(strategy: str, late: Any) -> None:
    of, seeds = graph(edges=9000), torch.tensor([0, 299, 17, 2, 100])
    assert of.nnz < of.num_edges
    mine = make(strategy, of, [5, 40, -1]).sample_subgraph(seeds, step=9)
    with emulated.running(late):
        theirs = make(strategy, of, [5, 40, -1]).sample_subgraph(seeds, step=9)
    assert torch.equal(mine.nodes, theirs.nodes)
    assert torch.equal(mine.edge_index, theirs.edge_index)
    assert torch.equal(mine.edge_ids, theirs.edge_ids)


@settings(max_examples=15)
@given(st.data())
def test_numbers_are_given_in_the_order_of_first_appearance(late: Any, data: st.DataObject) -> None:
    with emulated.running(late):
        check_numbers(Numbering(41, torch.device("cpu")), data, 41)


@pytest.mark.parametrize(
    ("name", "hub"),
    [
        ("graphsage", False),
        ("graphsage", True),
        ("gcn", False),
        ("gcn", True),
        ("gat", False),
        ("gatv2", False),
        ("agnn", False),
        ("graph_transformer", False),
    ],
)
def test_a_step_on_a_sample_waits_for_nothing(name: str, hub: bool, late: Any) -> None:
    """Also with a column of so many nonzeros that it is cut into parts, which are made with the block."""
    edges = torch.randint(900, (2, 5000), generator=torch.Generator().manual_seed(1))
    if hub:
        edges = torch.cat([edges, torch.stack([torch.full((900,), 7), torch.arange(900)])], 1)
    of, seeds, x = SparseGraph.from_edge_index(edges, 900), torch.arange(400), torch.randn(900, 20)
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
    of = graph(60, data.draw(st.integers(0, 400)), data.draw(st.integers(0, 5)))
    seeds = torch.tensor(data.draw(st.lists(st.integers(0, 59), unique=True, max_size=60)), dtype=torch.int64)
    fanouts = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    strategy = data.draw(st.sampled_from([strategy for strategy in STRATEGIES if strategy != "labor"]))
    on_cpu = make(strategy, of, fanouts).sample(seeds, 3)
    with emulated.running(late):
        assert_same(make(strategy, of, fanouts).sample(seeds, 3), on_cpu)


def test_two_kinds_of_nodes_at_once(late: Any) -> None:
    ratings = torch.randint(40, (2, 300), generator=torch.Generator().manual_seed(3))
    options: dict[str, Any] = {"num_nodes": (50, 70), "keep_edge_ids": True}
    on_cpu = NeighborSampler(ratings, [4], **options).sample([3, 69, 0])
    with emulated.running(late) as path:
        made = NeighborSampler(ratings, [4], **options)
        path.waits = 0
        assert_same(made.sample([3, 69, 0]), on_cpu)
        assert path.waits == 1
        assert made.sample([69]).blocks[0].sources.tolist() == []


def test_what_would_need_too_much_room_is_drawn_in_turn(late: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = make("uniform", graph(), [5, 5]).sample([1, 2, 3])
    with emulated.running(late) as path:
        made = make("uniform", graph(), [5, 5])
        for most, waits in ((3 * 5 + 18 * 5, 1), (18 * 5 - 1, 7)):
            monkeypatch.setattr(blocks, "_MOST_EDGES", most)
            path.waits = 0
            assert_same(made.sample([1, 2, 3]), on_cpu)
            assert path.waits == waits


def test_plans_depend_on_the_block_alone(late: Any) -> None:
    """A resumed run, which sees other blocks before, computes what an uninterrupted one does."""
    small, large = graph(100, 500), graph(3000, 40000)
    with emulated.running(late):
        made = make("uniform", large, [9])
        other = make("uniform", large, [9])
        other.sample(torch.arange(4)).blocks[0].adj.plan(64)
        seeds = torch.arange(1000, 2000)
        plans = [s.sample(seeds).blocks[0].adj.plan(64) for s in (made, other)]
        assert plans[0] == plans[1]
        assert make("uniform", small, [9]).sample(torch.arange(50)).blocks[0].adj.plan(64).group > 0  # type: ignore[attr-defined]


def test_a_repeated_seed_is_refused(copyless: RunningPath) -> None:
    made = make("uniform", graph(), [3])
    with pytest.raises(ValueError, match=r"seeds: element 2 is 7 once more"):
        made.sample([7, 3, 7])
    for wrong in (300, -1, 2**40):
        with pytest.raises(ValueError, match=rf"seeds: element 1 is {wrong}; accepted: 0 to 299"):
            made.sample([7, wrong, 7])
    assert made.sample([7, 3]).seeds.tolist() == [7, 3]


def test_no_seeds_and_no_edges(copyless: RunningPath) -> None:
    made = make("uniform", graph(), [3, 2], values="mean")
    assert [b.adj.shape for b in made.sample(torch.empty(0, dtype=torch.int32)).blocks] == [(0, 0), (0, 0)]
    assert made.sample([299]).nodes.tolist() == [299]


def test_negatives_are_those_of_the_cpu(late: Any) -> None:
    of, pairs = graph(), torch.tensor([[0, 1], [5, 7]])
    on_cpu = make("uniform", of, [3]).sample_links(pairs, 200, step=4)
    with emulated.running(late):
        on_gpu = make("uniform", of, [3]).sample_links(pairs, 200, step=4)
        assert torch.equal(on_gpu.seeds, on_cpu.seeds)
        assert torch.equal(on_gpu.negative, on_cpu.negative)
        assert_same(on_gpu, on_cpu)
        full = SparseGraph.from_edge_index((torch.ones(5, 5) - torch.eye(5)).nonzero().T.contiguous(), 5)
        with pytest.raises(ValueError, match="graph: joins nearly all pairs"):
            make("uniform", full, [2]).sample_links([[0, 1]])


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

    made, seeds = make("uniform", graph(), fanouts), torch.arange(100)
    want = make("uniform", graph(), fanouts).sample(seeds.flip(0))
    with monkeypatch.context() as patch:
        patch.setattr(module, "launch", fails)
        with pytest.raises(torch.OutOfMemoryError):
            made.sample(seeds)
    assert_same(made.sample(seeds.flip(0)), want)
