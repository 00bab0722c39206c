"""NetworkX's graphs as ours, and back."""

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.interop.networkx import from_networkx, to_networkx
from gnnsparse.testing import random_graph

KINDS = (nx.Graph, nx.DiGraph, nx.MultiGraph, nx.MultiDiGraph)


@st.composite
def graphs(draw: Any) -> Any:
    graph = draw(st.sampled_from(KINDS))()
    nodes = draw(st.permutations("abcdefgh"))[: draw(st.integers(0, 8))]
    graph.add_nodes_from(nodes)
    if nodes:
        ends, value = st.sampled_from(nodes), st.none() | st.integers(-3, 3) | st.floats(-2, 2, width=32)
        for source, target, number in draw(st.lists(st.tuples(ends, ends, value), max_size=25)):
            graph.add_edge(source, target, **({} if number is None else {"w": number}))
    return graph


@given(graph=graphs(), weight=st.sampled_from([None, "w"]), shuffled=st.booleans())
def test_it_is_the_transpose_of_networkx_s_matrix(graph: Any, weight: str | None, shuffled: bool) -> None:
    nodes = sorted(graph.nodes) if shuffled else None
    found = from_networkx(graph, weight, nodes)
    if not graph:  # NetworkX refuses a graph without nodes
        assert (found.num_rows, found.num_cols, found.nnz) == (0, 0, 0)
        return
    right = nx.to_scipy_sparse_array(graph, nodes, dtype=np.float64, weight=weight).T.toarray()
    np.testing.assert_allclose(found.to_dense().numpy(), right, rtol=1e-6, atol=1e-6)


@given(graph=graphs())
def test_edges_are_in_networkx_s_order(graph: Any) -> None:
    numbers = {node: at for at, node in enumerate(graph.nodes)}
    edges = [(numbers[u], numbers[v]) for u, v in graph.edges()]
    if not graph.is_directed():
        edges += [(v, u) for u, v in edges if u != v]
    found = from_networkx(graph)
    assert found.num_edges == len(edges)
    values = torch.arange(1.0, len(edges) + 1)
    right = torch.zeros(len(numbers), len(numbers))
    for (u, v), value in zip(edges, values.tolist(), strict=True):
        right[v, u] += value
    assert torch.equal(gnnsparse.prepare(found, values=values, cache=False).to_dense(), right)


@given(graph=graphs())
def test_there_and_back(graph: Any) -> None:
    simple = (nx.DiGraph if graph.is_directed() else nx.Graph)()
    simple.add_nodes_from(range(len(graph)))
    numbers = {node: at for at, node in enumerate(graph.nodes)}
    for u, v, value in graph.edges(data="w", default=1):
        u, v = numbers[u], numbers[v]
        before = simple.edges[u, v]["weight"] if simple.has_edge(u, v) else 0.0
        simple.add_edge(u, v, weight=float(np.float32(np.float32(before) + np.float32(value))))
    back = to_networkx(from_networkx(graph, "w"), directed=graph.is_directed())
    assert type(back) is type(simple)
    assert set(back.nodes) == set(simple.nodes)
    assert nx.utils.edges_equal(back.edges(), simple.edges())
    for u, v, value in simple.edges(data="weight"):
        assert back.edges[u, v]["weight"] == pytest.approx(value, abs=1e-6)


def test_an_operand_has_its_weights() -> None:
    a = gnnsparse.prepare(
        random_graph(9, 9, 0.4, weighted=False), values="mean", reorder="degree", cache=False
    )
    graph = to_networkx(a, weight="share")
    right = nx.to_numpy_array(graph, range(9), weight="share").T
    np.testing.assert_array_equal(a.to_dense().numpy(), right)
    assert next(iter(to_networkx(a, weight=None).edges(data=True)))[2] == {}


def graph_with(value: Any) -> Any:
    return nx.DiGraph([("a", "b", {"w": value})])


BAD = {
    "no graph": (lambda: from_networkx([(0, 1)]), TypeError, "graph: got list"),
    "no name": (lambda: from_networkx(nx.path_graph(3), weight=3), TypeError, "weight: got int"),
    "no number": (lambda: from_networkx(graph_with("x"), "w"), TypeError, "weight: got str.*from 'a' to 'b'"),
    "complex": (lambda: from_networkx(graph_with(1j), "w"), TypeError, "weight: got complex"),
    "none": (lambda: from_networkx(graph_with(None), "w"), TypeError, "weight: got NoneType"),
    "not finite": (lambda: from_networkx(graph_with(float("nan")), "w"), ValueError, "finite float32"),
    "twice": (lambda: from_networkx(nx.path_graph(3), None, [0, 1, 1, 2]), ValueError, "has a node twice"),
    "lacks": (lambda: from_networkx(nx.path_graph(3), None, [0, 1]), ValueError, "nodelist: lacks 2"),
    "unknown": (lambda: from_networkx(nx.path_graph(3), None, [0, 1, 2, 3]), ValueError, "nodelist: has 3"),
    "no matrix": (lambda: to_networkx(3), TypeError, "matrix: got int"),
    "not square": (lambda: to_networkx(random_graph(3, 4, 0.5)), ValueError, "accepted: a square one"),
    "not symmetric": (
        lambda: to_networkx(SparseGraph.from_edge_index([[0], [1]], 2), directed=False), ValueError,
        "directed: got False",
    ),
    "no flag": (lambda: to_networkx(random_graph(3, 3, 0.5), directed=1), TypeError, "directed: got int"),
    "no attribute": (lambda: to_networkx(random_graph(3, 3, 0.5), weight=1), TypeError, "weight: got int"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str) -> None:
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()
