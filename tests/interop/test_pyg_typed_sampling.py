"""PyG's loaders of HeteroData, drawn by TypedNeighborSampler: nodes, links, times, a model's outputs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric")

import torch_geometric.nn as pyg
from hypothesis import given
from hypothesis import strategies as st
from torch_geometric.data import HeteroData
from torch_geometric.loader import LinkLoader, NodeLoader
from torch_geometric.sampler import NegativeSampling

from gnnsparse.interop.pyg import PygSampler
from gnnsparse.sampling import TypedNeighborSampler

NODES = {"user": 30, "item": 20, "tag": 4}
RATES = ("user", "rates", "item")
RELATIONS = (RATES, ("item", "rated_by", "user"), ("user", "knows", "user"), ("item", "has", "tag"))


def data_of(seed: int = 0, edges: int = 120) -> HeteroData:
    """A typed graph with repeated edges and attributes of nodes and edges."""
    draw, data = torch.Generator().manual_seed(seed), HeteroData()
    for kind, count in NODES.items():
        data[kind].x = torch.randn(count, 4, generator=draw)
    for source, name, target in RELATIONS:
        ends = [torch.randint(NODES[kind], (edges,), generator=draw) for kind in (source, target)]
        data[source, name, target].edge_index = torch.stack(ends)
        data[source, name, target].edge_attr = torch.randn(edges, 2, generator=draw)
        data[source, name, target].when = torch.randint(10, (edges,), generator=draw)
    return data


def check(batch: HeteroData, data: HeteroData, until: torch.Tensor | None = None) -> None:
    """Nodes, edges and attributes are the graph's; trees are apart, and no edge is later than `until`."""
    for kind in NODES:
        assert torch.equal(batch[kind].x, data[kind].x[batch[kind].n_id])
        assert sum(batch[kind].num_sampled_nodes) == batch[kind].num_nodes
    for key in RELATIONS:
        mine, theirs = batch[key], data[key]
        source, target = mine.edge_index
        ends = torch.stack([batch[key[0]].n_id[source], batch[key[2]].n_id[target]])
        assert torch.equal(ends, theirs.edge_index[:, mine.e_id])
        assert torch.equal(mine.edge_attr, theirs.edge_attr[mine.e_id])
        assert sum(mine.num_sampled_edges) == mine.e_id.numel()
        if until is not None:
            tree = batch[key[0]].batch[source]
            assert torch.equal(tree, batch[key[2]].batch[target])
            assert bool((theirs.when[mine.e_id] <= until[tree]).all())


@given(st.integers(0, 2**16), st.booleans(), st.sampled_from(["item", "user", "tag"]))
def test_nodes_of_a_type_are_loaded(seed: int, timed: bool, kind: str) -> None:
    data = data_of(seed)
    made = TypedNeighborSampler(data, [3, 2], edge_time=data.collect("when") if timed else None)
    count = NODES[kind]
    at = torch.arange(count) % 10
    loader = NodeLoader(
        data, PygSampler(made), input_nodes=(kind, torch.arange(count)), input_time=at if timed else None,
        batch_size=7,
    )  # fmt: skip
    seen = []
    for batch in loader:
        own = batch[kind]
        seen.append(own.n_id[: own.batch_size])
        assert torch.equal(seen[-1], own.input_id)
        check(batch, data, own.seed_time if timed else None)
        assert not timed or torch.equal(own.seed_time, at[own.input_id])
    assert torch.equal(torch.cat(seen), torch.arange(count))


@pytest.mark.parametrize("key", [RATES, ("user", "knows", "user")])
@pytest.mark.parametrize("mode", ["binary", "triplet", None])
@pytest.mark.parametrize("trees", ["shared", "disjoint", "timed"])
def test_links_of_a_relation_are_loaded(key: tuple[str, str, str], mode: str | None, trees: str) -> None:
    data = data_of(1)
    times: dict[str, Any] = {"edge_time": data.collect("when")} if trees == "timed" else {}
    made = TypedNeighborSampler(data, [3, 2], disjoint=trees == "disjoint", **times)
    links, at = data[key].edge_index[:, :20], data[key].when[:20]
    loader = LinkLoader(
        data, PygSampler(made), (key, links), edge_label_time=at if times else None, batch_size=8,
        neg_sampling=None if mode is None else NegativeSampling(mode, 2),
    )  # fmt: skip
    seen = []
    for batch in loader:
        own = batch[key]
        seen.append(own.input_id)
        count = own.input_id.numel()
        if mode == "triplet":
            ends = batch[key[0]].src_index, batch[key[2]].dst_pos_index
            assert batch[key[2]].dst_neg_index.shape == (count, 2)
            assert batch[key[2]].dst_neg_index.max() < batch[key[2]].num_nodes
        else:
            assert own.edge_label_index.shape == (2, count * (1 if mode is None else 3))
            ends = tuple(own.edge_label_index[:, :count])
            assert mode is None or torch.equal(own.edge_label, (torch.arange(3 * count) < count).float())
        found = torch.stack([batch[kind].n_id[end] for kind, end in zip((key[0], key[2]), ends, strict=True)])
        assert torch.equal(found, links[:, own.input_id])
        if trees != "shared":
            for kind, end in zip((key[0], key[2]), ends, strict=True):
                assert torch.equal(batch[kind].batch[end], torch.arange(count))
        check(batch, data, at[own.input_id] if times else None)
    assert torch.equal(torch.cat(seen), torch.arange(20))


def test_a_model_on_all_neighbours_computes_what_it_does_on_the_whole_graph() -> None:
    torch.manual_seed(0)
    data = data_of(2)
    convs = [pyg.HeteroConv({key: pyg.SAGEConv(4, 4).double() for key in RELATIONS}) for _ in range(2)]

    def run(graph: HeteroData) -> torch.Tensor:
        x = {kind: features.double() for kind, features in graph.x_dict.items()}
        for conv in convs:
            x = x | conv(x, graph.edge_index_dict)
        return x["item"]

    whole, made = run(data), TypedNeighborSampler(data, [-1, -1])
    for batch in NodeLoader(data, PygSampler(made), input_nodes="item", batch_size=6):
        size = batch["item"].batch_size
        torch.testing.assert_close(run(batch)[:size], whole[batch["item"].n_id[:size]])
