"""Models of graphs with types, of HGT layers or made by `to_hetero`, train accelerated as they do in PyG."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

import gnnsparse
import gnnsparse.interop.pyg as interop
from tests.interop.pyg_cases import close, pyg

WIDTH, CLASSES, STEPS = 8, 3, 4


def citations() -> Any:
    """A HeteroData of three types, their relations and the reverses; authors tell the labels of papers."""
    from torch_geometric.data import HeteroData
    from torch_geometric.transforms import ToUndirected

    torch.manual_seed(0)
    data, counts = HeteroData(), {"paper": 300, "author": 120, "venue": 7}
    for kind, count in counts.items():
        data[kind].x = torch.randn(count, WIDTH)
    for source, name, target, edges in (
        ("author", "writes", "paper", 900), ("paper", "cites", "paper", 1500), ("paper", "in", "venue", 300),
    ):  # fmt: skip
        ends = torch.randint(counts[source], (edges,)), torch.randint(counts[target], (edges,))
        data[source, name, target].edge_index = torch.stack(ends)
    data["paper"].y = torch.randint(CLASSES, (300,))
    return ToUndirected()(data)


class TwoLayers(torch.nn.Module):
    """A model of one kind of nodes, as users write it for `to_hetero`."""

    def __init__(self, make: Callable[[int], Any]) -> None:
        super().__init__()
        self.first, self.second = make(WIDTH), make(CLASSES)

    def forward(self, x: Any, edge_index: Any) -> Any:
        return self.second(self.first(x, edge_index).relu(), edge_index)


class Hgt(torch.nn.Module):
    """Two layers over all relations."""

    def __init__(self, metadata: Any) -> None:
        super().__init__()
        self.first = pyg.HGTConv(WIDTH, WIDTH, metadata, heads=2)
        self.second = pyg.HGTConv(-1, CLASSES, metadata)  # sizes are found in the first call

    def forward(self, x: Any, edges: Any) -> Any:
        return self.second({kind: y.relu() for kind, y in self.first(x, edges).items()}, edges)


LAYERS: dict[str, tuple[Callable[[int], Any], str]] = {
    "SAGEConv": (lambda out: pyg.SAGEConv((-1, -1), out), "spmm"),
    "GATConv": (lambda out: pyg.GATConv((-1, -1), out, add_self_loops=False), "graph_attention"),
    "HGTConv": (lambda out: None, "graph_attention"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_model_of_typed_nodes_trains_as_before(name: str) -> None:
    """With one preparation for all relations that the layers share, or one in each."""
    data = citations()
    make, runs_on = LAYERS[name]
    theirs = Hgt(data.metadata()) if name == "HGTConv" else pyg.to_hetero(TwoLayers(make), data.metadata())
    with torch.no_grad():  # lazy parameters get their sizes
        theirs(data.x_dict, data.edge_index_dict)
    ours = interop.accelerate(copy.deepcopy(theirs), convert="always")
    edges, losses = data.edge_index_dict, []
    for model in (theirs, ours):
        optimizer, found = torch.optim.Adam(model.parameters(), lr=0.01), []
        with mock.patch("gnnsparse.nn.adjacency.prepare", wraps=gnnsparse.prepare) as prepared:
            for _ in range(STEPS):
                optimizer.zero_grad()
                loss = torch.nn.functional.cross_entropy(model(data.x_dict, edges)["paper"], data["paper"].y)
                loss.backward()
                optimizer.step()
                found.append(loss.detach())
        losses.append(torch.stack(found))
    assert prepared.call_count == (2 if name == "SAGEConv" else 1)
    close(losses[1], losses[0])
    report = interop.report(ours)
    layers = 1 if name == "HGTConv" else len(edges) + 1
    assert len(report.accelerated) == len(report.rows) == 2 * layers
    assert {row.runs_on for row in report.rows} == {runs_on}
    assert losses[0][-1] < losses[0][0]


def test_arguments_of_an_accelerated_hgt_layer_may_be_named() -> None:
    data = citations()
    theirs = pyg.HGTConv(WIDTH, CLASSES, data.metadata())
    ours = interop.accelerate(copy.deepcopy(theirs), convert="always")
    named = {"edge_index_dict": data.edge_index_dict, "x_dict": data.x_dict}
    for out in (ours(**named), ours(data.x_dict, edge_index_dict=data.edge_index_dict)):
        close(out["paper"], theirs(**named)["paper"])
    assert len(interop.report(ours).accelerated) == 1


def test_other_layers_have_no_arguments_of_such_names() -> None:
    data = citations()
    ours = interop.accelerate(pyg.SAGEConv(WIDTH, CLASSES), convert="always")
    x, edges = data["paper"].x, data["paper", "cites", "paper"].edge_index
    with pytest.raises(TypeError, match="x_dict"):
        ours(x_dict=x, edge_index_dict=edges)
    conv = interop.accelerate(pyg.GATConv(WIDTH, CLASSES), convert="always")
    with pytest.raises(TypeError):
        conv(x_dict=x, edge_index_dict=edges)


def test_an_accelerated_han_layer_is_one_launch() -> None:
    """With weights of relations, types that no relation ends at, empty types, and sizes found in a call."""
    relations = [("a", "to", "b"), ("b", "back", "a"), ("a", "self", "a"), ("c", "to", "b"), ("a", "of", "d")]
    theirs = pyg.HANConv(-1, 6, (["a", "b", "c", "d"], relations), heads=2)
    x = {kind: torch.randn(count, 5) for kind, count in {"a": 30, "b": 20, "c": 9, "d": 0}.items()}
    torch.manual_seed(1)
    index = {
        relation: torch.stack([torch.randint(max(len(x[kind]), 1), (60,)) for kind in relation[::2]])
        for relation in relations[:4]
    }
    index["a", "of", "d"] = index["a", "to", "b"][:, :0]
    theirs(x, index)  # parameters get their sizes
    ours = interop.accelerate(copy.deepcopy(theirs), convert="always")
    with mock.patch("gnnsparse.nn.edges.graph_attention", wraps=gnnsparse.graph_attention) as launched:
        found = ours(x, index, return_semantic_attention_weights=True)
    assert launched.call_count == 1
    for got, want in zip(found, theirs(x, index, return_semantic_attention_weights=True), strict=True):
        assert list(got) == list(want)
        for kind, value in want.items():
            assert (value is None) == (got[kind] is None)
            if value is not None:
                close(got[kind], value)
    ours.dropout = 0.5
    assert not torch.equal(ours(x, index)["a"], ours(x, index)["a"])
    sparse = {relation: torch.eye(30).to_sparse() for relation in [("a", "self", "a")]}
    ours.eval()
    close(ours(x, sparse)["a"], theirs(x, sparse)["a"])
    (row,) = interop.report(ours).rows
    assert row.calls == {"graph_attention, fp32": 3}
    assert any("the adjacency is" in why for why in row.fallbacks), row.fallbacks
