"""PygSampler on graphs with repeated edges: which edges batches have, and with which attributes."""

from __future__ import annotations

import itertools
import math
from collections import Counter
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

from gnnsparse.interop.pyg import PygSampler
from gnnsparse.sampling import NeighborSampler
from tests.sampling.samplers import WAYS, sampler


def multigraph(nodes: int, edges: int, seed: int) -> Data:
    draw = torch.Generator().manual_seed(seed)
    return Data(
        torch.randn(nodes, 3, generator=draw).double(),
        torch.randint(nodes, (2, edges), generator=draw),
        torch.arange(1.0, edges + 1),
        edge_weight=torch.rand(edges, generator=draw).double(),
        num_nodes=nodes,
    )


def batches(
    data: Data, fanouts: list[int], size: int = 4, way: str = "uniform", **options: Any
) -> list[Data]:
    made = sampler(data.edge_index, fanouts, way=way, num_nodes=data.num_nodes, **options)
    loader = NodeLoader(
        data, node_sampler=PygSampler(made), input_nodes=torch.arange(data.num_nodes), batch_size=size
    )
    return list(loader)


def test_three_edges_of_which_two_are_equal() -> None:
    data = Data(
        torch.tensor([[4.0], [4.0], [0.0]]), torch.tensor([[0, 0, 1], [2, 2, 2]]), torch.tensor([1, 2, 3])
    )
    made = NeighborSampler(data.edge_index, [-1], num_nodes=3)
    (batch,) = NodeLoader(data, node_sampler=PygSampler(made), input_nodes=torch.tensor([2]), batch_size=1)
    assert batch.edge_attr.tolist() == [1, 2, 3]
    assert batch.e_id.tolist() == [0, 1, 2]
    assert batch.num_sampled_edges == [3]
    found = [pyg.SimpleConv(aggr)(batch.x, batch.edge_index)[0, 0].item() for aggr in ("sum", "mean")]
    assert found == [12.0, 4.0]


@given(st.integers(1, 12), st.integers(0, 60), st.integers(1, 2), st.integers(0, 2**16))
def test_all_neighbours_give_every_edge_with_its_attributes(
    nodes: int, edges: int, hops: int, seed: int
) -> None:
    """A batch has the edges that end at a node less than `hops` steps away, and layers the exact outputs."""
    data = multigraph(nodes, edges, seed)
    conv = pyg.SimpleConv("sum").double()
    exact = conv(data.x, data.edge_index, data.edge_weight)
    for batch in batches(data, [-1] * hops):
        seeds = batch.n_id[: batch.batch_size]
        inner, *_ = k_hop_subgraph(seeds, hops - 1, data.edge_index, num_nodes=nodes)
        ends = torch.isin(data.edge_index[1], inner).nonzero().flatten()
        assert torch.equal(batch.e_id.sort().values, ends)
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert torch.equal(batch.edge_weight, data.edge_weight[batch.e_id])
        got = conv(batch.x, batch.edge_index, batch.edge_weight)[: batch.batch_size]
        torch.testing.assert_close(got, exact[seeds])


@given(
    st.sampled_from(sorted(WAYS)), st.integers(1, 10), st.integers(0, 60), st.integers(1, 4),
    st.integers(0, 2**16),
)  # fmt: skip
def test_sampled_edges_are_edges_of_the_graph(
    way: str, nodes: int, edges: int, fanout: int, seed: int
) -> None:
    data = multigraph(nodes, edges, seed)
    for batch in batches(data, [fanout, fanout], way=way, seed=seed):
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.e_id])
        assert torch.equal(batch.edge_attr, data.edge_attr[batch.e_id])
        assert torch.equal(batch.edge_weight, data.edge_weight[batch.e_id])
        if not WAYS[way].get("replace"):
            assert batch.e_id.unique().numel() == batch.num_edges
        if way == "uniform":
            drawn = torch.bincount(batch.edge_index[1], minlength=batch.num_nodes)
            ends = torch.bincount(data.edge_index[1], minlength=nodes)[batch.n_id]
            # The nodes that the last hop reaches have no edges.
            expanded = batch.num_nodes - batch.num_sampled_nodes[-1]
            assert torch.equal(drawn[:expanded], ends.clamp(max=fanout)[:expanded])
            assert not drawn[expanded:].any()


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


def test_what_can_not_be_drawn_is_refused_before_the_first_batch() -> None:
    edge_index = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="values: of subgraphs"):
        PygSampler(NeighborSampler(edge_index, [2], values="gcn"))
    with pytest.raises(ValueError, match="values: of subgraphs"):
        PygSampler(NeighborSampler(edge_index, [2], num_nodes=(2, 3)))
    timed = NodeSamplerInput(None, torch.tensor([0]), time=torch.tensor([5]))
    with pytest.raises(NotImplementedError, match="input_time: PygSampler draws whatever the times"):
        PygSampler(NeighborSampler(edge_index, [2])).sample_from_nodes(timed)
