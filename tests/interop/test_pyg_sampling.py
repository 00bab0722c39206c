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
from torch_geometric.loader import NodeLoader
from torch_geometric.sampler import NodeSamplerInput
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
    with pytest.raises(NotImplementedError, match=r"NeighborSampler\.sample_links"):
        PygSampler(made).sample_from_edges(None)
    timed = NodeSamplerInput(None, torch.tensor([0]), time=torch.tensor([5]))
    with pytest.raises(NotImplementedError, match="input_time: PygSampler draws whatever the times"):
        PygSampler(made).sample_from_nodes(timed)


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
