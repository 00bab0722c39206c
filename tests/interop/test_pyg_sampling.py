"""PyG's loaders of sampled nodes: drawn by NeighborSampler, and their batches on accelerated models."""

from __future__ import annotations

import copy
import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric")

import torch_geometric.nn as pyg
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch_geometric.data import Data
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.sampler import EdgeSamplerInput, NegativeSampling, NodeSamplerInput
from torch_geometric.utils import k_hop_subgraph

from gnnsparse.interop.pyg import PygSampler, accelerate, report
from gnnsparse.interop.pyg.graphs import memo
from gnnsparse.sampling import NeighborSampler
from tests.sampling.samplers import STRATEGIES, sampler

NODES = 400


def data_of(nodes: int = NODES, edges: int = 5000, seed: int = 0, width: int = 8) -> Data:
    """A graph in which edges are repeated."""
    draw = torch.Generator().manual_seed(seed)
    return Data(
        torch.randn(nodes, width, generator=draw),
        torch.randint(nodes, (2, edges), generator=draw),
        torch.arange(1.0, edges + 1),
        edge_weight=torch.rand(edges, generator=draw).double(),
        num_nodes=nodes,
    )


def loader_of(
    data: Data, fanouts: Sequence[int] = (6, 4), seeds: int = 100, size: int = 40, **options: Any
) -> NodeLoader:
    made = sampler(data.edge_index, list(fanouts), num_nodes=data.num_nodes, **options)
    return NodeLoader(data, node_sampler=PygSampler(made), input_nodes=torch.arange(seeds), batch_size=size)


def test_epochs_draw_anew_and_a_seed_repeats_them() -> None:
    data = data_of()

    def drawn() -> list[list[int]]:
        return [batch.e_id.tolist() for batch in loader_of(data)]

    torch.manual_seed(3)
    first, second = drawn(), drawn()
    assert first != second
    torch.manual_seed(3)
    assert drawn() == first


@pytest.mark.parametrize("convert", ["auto", "always"])
def test_accelerated_models_take_the_batches_as_they_are(convert: str, own_cache: Any) -> None:
    torch.manual_seed(0)
    memo.clear()
    plain = pyg.GraphSAGE(8, 16, num_layers=2, out_channels=3)
    model = accelerate(copy.deepcopy(plain), convert=convert)
    for _ in range(4):
        for batch in loader_of(data_of()):
            got, want = (net(batch.x, batch.edge_index)[: batch.batch_size] for net in (model, plain))
            torch.testing.assert_close(got, want)
            got.sum().backward()
    if convert == "always":
        assert "spmm" in str(report(model))
    assert not own_cache.exists()  # nothing of a batch is stored
    del batch
    assert len(memo._graphs) <= 1  # nor kept longer than the batch


def test_what_can_not_be_drawn_is_refused_before_the_first_batch() -> None:
    edge_index = torch.tensor([[0, 1], [1, 0]])
    made = NeighborSampler(edge_index, [2])
    with pytest.raises(TypeError, match="sampler: got Data; accepted: a gnnsparse"):
        PygSampler(data_of())  # type: ignore[arg-type]
    for options in ({"values": "gcn"}, {"num_nodes": (2, 3)}):
        with pytest.raises(ValueError, match="values: of subgraphs"):
            PygSampler(NeighborSampler(edge_index, [2], **options))
    with pytest.raises(ValueError, match="values: of subgraphs"):
        NeighborSampler(edge_index, [2], values="gcn").sample_subgraph([1])
    one = torch.tensor([0])
    timed = NodeSamplerInput(None, one, time=one), EdgeSamplerInput(None, one, one, time=one)
    with pytest.raises(ValueError, match="time: is given, but edges have no times"):
        PygSampler(made).sample_from_nodes(timed[0])
    with pytest.raises(ValueError, match="edge_label_time: is given, but the sampler's edges have no"):
        PygSampler(made).sample_from_edges(timed[1])
    made = NeighborSampler(edge_index, [2], edge_time=[1, 2])
    with pytest.raises(ValueError, match="time: is None; accepted: the seeds' times"):
        PygSampler(made).sample_from_nodes(NodeSamplerInput(None, one))
    with pytest.raises(ValueError, match="edge_label_time: is None; accepted: the links' times"):
        PygSampler(made).sample_from_edges(EdgeSamplerInput(None, one, one))


# Graphs with repeated edges: which edges batches have, and with which attributes.


def assert_edges_are_those_of(batch: Data, data: Data) -> None:
    assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
    assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
    assert torch.equal(batch.edge_weight, data.edge_weight[batch.e_id])


@given(st.integers(1, 12), st.integers(0, 60), st.integers(1, 2), st.integers(0, 2**16))
def test_all_neighbours_give_every_edge_with_its_attributes(
    nodes: int, edges: int, hops: int, seed: int
) -> None:
    """A batch has the edges that end at a node less than `hops` steps away, and layers the exact outputs."""
    data = data_of(nodes, edges, seed, 3)
    conv = pyg.SimpleConv("sum").double()
    exact = conv(data.x.double(), data.edge_index, data.edge_weight)
    for batch in loader_of(data, [-1] * hops, nodes, 4):
        seeds = batch.n_id[: batch.batch_size]
        inner, *_ = k_hop_subgraph(seeds, hops - 1, data.edge_index, num_nodes=nodes)
        ends = torch.isin(data.edge_index[1], inner).nonzero().flatten()
        assert torch.equal(batch.e_id.sort().values, ends)
        assert_edges_are_those_of(batch, data)
        got = conv(batch.x.double(), batch.edge_index, batch.edge_weight)[: batch.batch_size]
        torch.testing.assert_close(got, exact[seeds])


@given(*map(st.sampled_from, (sorted(STRATEGIES), range(1, 11), range(61), range(1, 5), range(2**16))))
def test_batches_are_parts_of_the_graph(
    strategy: str, nodes: int, edges: int, fanout: int, seed: int
) -> None:
    data, seen = data_of(nodes, edges, seed, 3), []
    for batch in loader_of(data, [fanout, fanout], nodes, 4, strategy=strategy, seed=seed):
        seen.append(batch.n_id[: batch.batch_size])
        assert batch.n_id.unique().numel() == batch.num_nodes == sum(batch.num_sampled_nodes)
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert_edges_are_those_of(batch, data)
        assert sum(batch.num_sampled_edges) == batch.num_edges
        first, second = batch.edge_index[1].split(batch.num_sampled_edges)
        assert bool((first < batch.batch_size).all())
        # The second hop is drawn for nodes that the first one has reached.
        assert bool((second >= batch.batch_size).all())
        is_replaced = STRATEGIES[strategy].get("replace", False)
        assert is_replaced or batch.e_id.unique().numel() == batch.num_edges
        if "uniform" in strategy:
            drawn = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)
            ends = torch.bincount(data.edge_index[1], minlength=nodes)[batch.n_id]
            wanted = (ends > 0) * fanout if is_replaced else ends.clamp(max=fanout)
            # The nodes that the last hop reaches have no edges.
            expanded = batch.num_nodes - batch.num_sampled_nodes[-1]
            assert torch.equal(drawn[:expanded], wanted[:expanded])
            assert not drawn[expanded:].any()
    assert torch.equal(torch.cat(seen), torch.arange(nodes))


@pytest.mark.parametrize(
    ("options", "outcomes"),
    [
        # Two of the four edges, of which three are equal: each of the six pairs.
        ({}, dict.fromkeys(itertools.combinations(range(4), 2), 1 / 6)),
        # Each of two draws takes each edge.
        (
            {"replace": True},
            {(i, j): (1 if i == j else 2) / 16 for i in range(4) for j in range(i, 4)},
        ),
        # In proportion to the weights 1, 2, 0, 3 of what is left.
        (
            {"method": "weighted", "weights": [1.0, 2.0, 0.0, 3.0]},
            {(0, 1): 1 / 6 * 2 / 5 + 2 / 6 * 1 / 4, (0, 3): 1 / 6 * 3 / 5 + 3 / 6 * 1 / 3,
             (1, 3): 2 / 6 * 3 / 4 + 3 / 6 * 2 / 3},
        ),
        (
            {"method": "weighted", "weights": [1.0, 2.0, 0.0, 3.0], "replace": True},
            {(0, 0): 1 / 36, (1, 1): 4 / 36, (3, 3): 9 / 36, (0, 1): 4 / 36, (0, 3): 6 / 36, (1, 3): 12 / 36},
        ),
    ],
    ids=["uniform", "replaced", "weighted", "weighted replaced"],
)  # fmt: skip
def test_edges_and_not_neighbours_are_drawn(
    options: dict[str, Any], outcomes: dict[tuple[int, int], float]
) -> None:
    assert math.isclose(sum(outcomes.values()), 1.0)
    draws = 3000
    edge_index = torch.tensor([[0, 1, 0, 0], [2, 2, 2, 2]])
    made = NeighborSampler(edge_index, [2], num_nodes=3, **options)
    seen = Counter(tuple(sorted(made.sample_subgraph([2], step).edge_ids.tolist())) for step in range(draws))
    assert set(seen) <= set(outcomes)
    expected = [draws * share for share in outcomes.values()]
    assert chisquare([seen[pair] for pair in outcomes], expected).pvalue > 1e-4


def test_blocks_still_merge_repeated_edges() -> None:
    """The weight of the merged edge counts its repeats, and a mean is over them."""
    edge_index = torch.tensor([[0, 0, 1], [2, 2, 2]])
    x = torch.tensor([[4.0], [10.0], [0.0]])
    for values, result in ((None, 18.0), ("mean", 6.0)):
        made = NeighborSampler(edge_index, [-1], num_nodes=3, values=values, keep_edge_ids=True)
        made.sample_subgraph([2])
        (block,) = made.sample([2]).blocks
        assert (block.adj @ x[block.sources]).item() == pytest.approx(result)
        assert block.edge_ids is not None
        assert block.edge_ids.tolist() == [0, 2]


# Disjoint batches, times and links.


def timed_data(edges: int, seed: int) -> tuple[Data, torch.Tensor]:
    data = data_of(20, edges, seed, 3)
    return data, torch.randint(10, (edges,), generator=torch.Generator().manual_seed(seed))


@given(st.integers(0, 80), st.integers(0, 2**16), st.sampled_from(["edges", "nodes", "none"]))
def test_batches_in_time_are_disjoint(edges: int, seed: int, times_of: str) -> None:
    data, times = timed_data(edges, seed)
    node_time = times.new_tensor(range(20))
    times = node_time[data.edge_index[0]] if times_of == "nodes" else times
    given_times: dict[str, Any] = {
        "edges": {"edge_time": times},
        "nodes": {"node_time": node_time},
        "none": {},
    }[times_of]
    made = NeighborSampler(data.edge_index, [3, 2], num_nodes=20, disjoint=True, **given_times)
    nodes, at = torch.arange(20).repeat(2), torch.arange(40) % 11
    options = {} if times_of == "none" else {"input_time": at}
    loader = NodeLoader(data, node_sampler=PygSampler(made), input_nodes=nodes, batch_size=16, **options)
    for batch in loader:
        assert torch.equal(batch.n_id[: batch.batch_size], nodes[batch.input_id])
        assert torch.equal(batch.batch[: batch.batch_size], torch.arange(batch.batch_size))
        assert_edges_are_those_of(batch, data)
        source, target = batch.batch[batch.edge_index]
        assert torch.equal(source, target)
        assert (sum(batch.num_sampled_nodes), sum(batch.num_sampled_edges)) == (
            batch.num_nodes,
            batch.num_edges,
        )
        if times_of == "none":
            assert "seed_time" not in batch
        else:
            assert torch.equal(batch.seed_time, at[batch.input_id])
            assert bool((times[batch.e_id] <= batch.seed_time[source]).all())


@pytest.mark.parametrize("mode", ["binary", "triplet", None])
@pytest.mark.parametrize("times_of", ["edges", "nodes", "none", "shared"])
def test_links_are_loaded_with_negatives(mode: str | None, times_of: str) -> None:
    """As LinkNeighborLoader: the ends of the links, and of two negatives for each, among a batch's nodes."""
    data, times = timed_data(80, 1)
    node_time = times.new_tensor(range(20)) // 2
    times = node_time[data.edge_index[0]] if times_of == "nodes" else times
    given_times: dict[str, Any] = {"edges": {"edge_time": times}, "nodes": {"node_time": node_time}}
    made = NeighborSampler(
        data.edge_index, [3, 2], num_nodes=20, disjoint=times_of == "none",
        **given_times.get(times_of, {}),
    )  # fmt: skip
    links, at = data.edge_index[:, ::4], torch.arange(20) // 2
    in_time = times_of in ("edges", "nodes")
    loader = LinkLoader(
        data, PygSampler(made), links, edge_label_time=at if in_time else None, batch_size=8,
        neg_sampling=None if mode is None else NegativeSampling(mode, 2),
    )  # fmt: skip
    seen = []
    for batch in loader:
        count = batch.input_id.numel()
        seen.append(batch.input_id)
        negatives = 0 if mode is None else 2
        if mode == "triplet":
            assert batch.dst_neg_index.shape == (count, 2)
            ends = torch.stack([batch.src_index, batch.dst_pos_index])
            others = batch.dst_neg_index.flatten()
            own = torch.arange(count).repeat_interleave(2)
        else:
            assert batch.edge_label_index.shape == (2, (1 + negatives) * count)
            ends, others = batch.edge_label_index[:, :count], batch.edge_label_index[:, count:].flatten()
            own = (torch.arange(2 * negatives * count) % (negatives * count)) % count if negatives else others
            wanted = torch.arange(count * (1 + negatives)) < count
            assert mode is None or torch.equal(batch.edge_label, wanted.float())
        assert torch.equal(batch.n_id[ends], links[:, batch.input_id])
        assert_edges_are_those_of(batch, data)
        if times_of == "shared":
            assert batch.batch is None
            assert batch.n_id.unique().numel() == batch.num_nodes
            continue
        source, target = batch.batch[batch.edge_index]
        assert torch.equal(source, target)
        # The trees of a link's ends, and of its negatives, have its number, and its time.
        assert torch.equal(batch.batch[ends], torch.arange(count).expand(2, -1))
        assert torch.equal(batch.batch[others], own)
        if in_time:
            of_links = at[batch.input_id]
            noted = batch.seed_time if mode == "triplet" else batch.edge_label_time
            assert torch.equal(noted[:count], of_links)
            assert bool((times[batch.e_id] <= of_links[source]).all())
    assert torch.equal(torch.cat(seen), torch.arange(20))
