"""Graphs with types of nodes and edges: numbers, the operand of all relations, and what is refused."""

import copy
import pickle

import pytest
import torch

import gnnsparse
from gnnsparse.sparse.typed import TypedGraph

SIZES = {"paper": 7, "author": 5, "field": 4, "empty": 0}
CITES, WRITES, TOPIC, OF = (
    ("paper", "cites", "paper"),
    ("author", "writes", "paper"),
    ("paper", "has", "field"),
    ("empty", "of", "author"),
)


def random_edges(relation, count, seed):
    made = torch.Generator().manual_seed(seed)
    sources = torch.randint(SIZES[relation[0]], (count,), generator=made) if count else torch.empty(0).long()
    targets = torch.randint(SIZES[relation[2]], (count,), generator=made) if count else torch.empty(0).long()
    return torch.stack([sources, targets])


def typed_edges():
    """Relations with repeated edges, between types of several sizes, one of them empty."""
    return {
        CITES: random_edges(CITES, 20, 1),
        WRITES: random_edges(WRITES, 30, 2).int(),
        TOPIC: random_edges(TOPIC, 0, 3),
        OF: random_edges(OF, 0, 4),
    }


def dense_of(edges):
    """The matrix of all relations, in float64, edge by edge."""
    blocks = []
    for (source, _, target), given in edges.items():
        block, offset = torch.zeros(sum(SIZES.values()), SIZES[source], dtype=torch.float64), 0
        for kind, count in SIZES.items():
            offset, at = offset + count, offset
            if kind == target:
                for j, i in given.t().tolist():
                    block[at + i, j] += 1
        blocks.append(block)
    return torch.cat(blocks, dim=1)


def test_the_operand_of_all_relations_has_a_block_of_columns_for_each():
    edges = typed_edges()
    graph = gnnsparse.prepare(edges, num_nodes=SIZES, cache=False)
    exact = dense_of(edges)
    assert graph.operand.shape == tuple(exact.shape) == graph.block_size[::-1]
    assert torch.equal(graph.operand @ torch.eye(exact.shape[1]), exact.float())
    assert graph.offsets == {"paper": 0, "author": 7, "field": 12, "empty": 16}
    assert graph.blocks == {CITES: 0, WRITES: 7, TOPIC: 12, OF: 19}
    assert graph.relations == list(edges)
    assert graph.edges[WRITES].dtype == torch.int64
    everywhere, kinds = graph.global_edges()
    assert torch.equal(everywhere[:, :20], edges[CITES])
    assert torch.equal(everywhere[:, 20:], edges[WRITES] + torch.tensor([[7], [0]]))
    assert torch.equal(kinds, torch.tensor([0] * 20 + [1] * 30))


def test_values_are_in_the_order_of_all_edges():
    edges, values = typed_edges(), torch.randn(50)
    a = gnnsparse.prepare(edges, num_nodes=SIZES, values=values, cache=False).operand
    sums = torch.zeros(a.shape).index_put((a.indices()[0], a.indices()[1]), a.from_coo_order(values))
    assert torch.allclose(a @ torch.eye(a.shape[1]), sums, atol=1e-6)


def test_a_hetero_data_is_a_typed_graph():
    data = pytest.importorskip("torch_geometric.data").HeteroData()
    edges = typed_edges()
    for kind, count in SIZES.items():
        data[kind].num_nodes = count
    for relation, given in edges.items():
        data[relation].edge_index = given.long()
    graph = gnnsparse.prepare(data, cache=False)
    assert graph.num_nodes == SIZES
    assert graph.relations == list(edges)
    assert torch.equal(graph.operand @ torch.eye(26 - 7), dense_of(edges).float())
    del data[CITES].edge_index
    with pytest.raises(ValueError, match="has no edge_index"):
        gnnsparse.prepare(data)


def test_it_is_stored_as_one_entry(tmp_path):
    edges = typed_edges()
    first = gnnsparse.prepare(edges, num_nodes=SIZES, cache=tmp_path)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    again = gnnsparse.prepare(TypedGraph(SIZES, edges), cache=tmp_path)
    assert not first.operand.cache_hit
    assert again.operand.cache_hit
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == files


def test_it_is_copied_and_pickled():
    plain = TypedGraph(SIZES, typed_edges())
    for graph in (plain, gnnsparse.prepare(plain, cache=False)):
        model = torch.nn.Module()
        model.graph = graph
        assert copy.deepcopy(model).graph is graph is copy.copy(graph)
        again = pickle.loads(pickle.dumps(graph))
        assert repr(again) == repr(graph)
        assert all(torch.equal(again.edges[relation], graph.edges[relation]) for relation in graph.relations)
    every = torch.eye(graph.operand.shape[1])
    assert torch.equal(again.operand @ every, graph.operand @ every)


@pytest.mark.parametrize(
    ("counts", "edges", "error", "words"),
    [
        (SIZES, {}, TypeError, "edges: .*not empty"),
        (None, {CITES: torch.zeros(2, 0).long()}, TypeError, "num_nodes: .*types of nodes to numbers"),
        ({"paper": -1}, {CITES: torch.zeros(2, 0).long()}, ValueError, r"num_nodes\['paper'\]: got -1"),
        (SIZES, {"cites": torch.zeros(2, 0).long()}, TypeError, "triples of names"),
        (
            SIZES,
            {("paper", "x", "venue"): torch.zeros(2, 0).long()},
            ValueError,
            "type 'venue'; accepted: 'pa",
        ),
        (SIZES, {CITES: torch.zeros(2, 3)}, TypeError, r"edges\[.*cites.*\]: edge_index"),
        (SIZES, {WRITES: torch.tensor([[5], [0]])}, ValueError, "sources from 5 to 5; accepted: 0 to 4"),
        (SIZES, {WRITES: torch.tensor([[0], [-1]])}, ValueError, "targets from -1 to -1"),
    ],
)
def test_what_is_no_typed_graph_is_refused(counts, edges, error, words):
    with pytest.raises(error, match=words):
        gnnsparse.prepare(edges, num_nodes=counts, cache=False)


def test_numbers_of_nodes_are_given_once():
    graph = TypedGraph(SIZES, typed_edges())
    with pytest.raises(ValueError, match="num_nodes: goes with a dict"):
        gnnsparse.prepare(graph, num_nodes=SIZES)
    with pytest.raises(ValueError, match="num_cols"):
        gnnsparse.prepare(graph, num_cols=3)
    assert graph.operand is None
    assert "not prepared" in repr(graph)


@pytest.mark.gpu
def test_it_moves_with_its_operand():
    plain = TypedGraph(SIZES, typed_edges())
    for graph in (plain, gnnsparse.prepare(plain, cache=False)):
        assert graph.to("cpu") is graph
        moved = graph.to("cuda")
        assert moved.device == torch.empty(0, device="cuda").device
        assert all(torch.equal(moved.to("cpu").edges[r], edges) for r, edges in graph.edges.items())
    assert moved.operand.device == moved.device


@pytest.mark.parametrize("device", ["x", "meta", "cuda:99", 3, None])
def test_a_device_that_does_not_exist_is_refused(device):
    graph = TypedGraph(SIZES, typed_edges())
    assert graph.to(torch.device("cpu")) is graph
    with pytest.raises((TypeError, ValueError), match=r"device: .*accepted: cpu"):
        graph.to(device)
