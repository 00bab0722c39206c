"""RGCN and HGT as models of typed graphs: what they are made of, and what they compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gnnsparse import prepare
from gnnsparse.sparse.typed import TypedGraph
from models import MODELS
from tests.tasks import typed_links, typed_nodes


def model_of(name: str, **options: Any) -> Any:
    data = typed_nodes()
    torch.manual_seed(0)
    types = {**data.types, "target": "paper"}
    return MODELS[name].build(4, out_channels=3, hidden_channels=8, types=types, **options).eval()


def outputs(model: Any, graph: Any, **x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model({**typed_nodes().x, **x}, graph)
    return found


@pytest.mark.parametrize("name", ["rgcn", "hgt"])
def test_all_forms_of_a_graph_say_the_same(name: str) -> None:
    model, data = model_of(name, norm="layer"), typed_nodes()
    expected = outputs(model, data.graph)
    assert expected.shape == (80, 3)
    turned = dict(reversed(data.graph.edges.items()))
    kinds = dict(reversed(data.graph.num_nodes.items()))
    for graph in (
        data.graph.edges, prepare(data.graph, cache=False), TypedGraph(kinds, turned),
        {relation: edges for relation, edges in data.graph.edges.items() if edges.numel()},
    ):  # fmt: skip
        torch.testing.assert_close(outputs(model, graph), expected, rtol=1e-4, atol=1e-5)
    # The embedded nodes may be given by their numbers, as samples have them.
    ids = torch.arange(10)
    torch.testing.assert_close(outputs(model, data.graph, author=ids), expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(outputs(model, data.graph, author=ids.flip(0)), expected, rtol=1e-3)


def test_an_rgcn_is_a_mean_by_relation() -> None:
    model, data = model_of("rgcn", num_layers=1), typed_nodes()
    of, conv = model.double(), model.convs[0]
    x: dict[str, torch.Tensor] = {}
    for kind, lin in zip(of.mapped, of.lins, strict=True):
        x[kind] = lin(data.x[kind].double())
    x |= {kind: e.weight for kind, e in zip(of.embedded, of.embeddings, strict=True)}
    y = x["paper"] @ conv.root + conv.bias
    for number, ((source, _, target), edges) in enumerate(data.graph.edges.items()):
        if target != "paper":
            continue
        dense = torch.zeros(80, len(x[source]), dtype=torch.float64)
        dense.index_put_((edges[1], edges[0]), torch.ones((), dtype=torch.float64), accumulate=True)
        mean = dense / dense.sum(1, keepdim=True).clamp(min=1)
        y = y + mean @ x[source] @ conv.weight[number]
    expected = of.head(y.relu()).detach()
    found = outputs(model.float(), data.graph)
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["rgcn", "hgt"])
def test_scores_of_links_depend_on_both_ends_and_their_order(name: str) -> None:
    data = typed_links()
    torch.manual_seed(0)
    types = {**data.types, "target": None, "link": ["user", "item"]}
    build = MODELS[name].for_task("typed_link").build
    model: Any = build(0, out_channels=1, hidden_channels=8, types=types)
    sources, targets = model.eval()(data.x, data.graph)
    assert (sources.shape, targets.shape) == ((20, 8), (15, 8))
    scores = model.score((sources, targets), data.test_edges)
    assert scores.shape == (15,)
    back = model.score((targets, sources), data.test_edges.flip(1))
    assert not torch.allclose(scores, back)
    scores.sum().backward()
    assert all(p.grad is not None for p in model.encoder.embeddings.parameters())


@pytest.mark.parametrize("name", ["rgcn", "hgt"])
def test_wrong_input_is_named(name: str) -> None:
    model, data = model_of(name), typed_nodes()
    with pytest.raises(ValueError, match="x: lacks 'venue'; accepted: features of 'paper', 'venue'"):
        model({"paper": data.x["paper"]}, data.graph)
    with pytest.raises(TypeError, match="x: got a tensor of dtype"):
        model(data.x["paper"], data.graph)
    other = {("paper", "sees", "paper"): torch.zeros(2, 1, dtype=torch.int64)}
    with pytest.raises(ValueError, match=r"graph: has \('paper', 'sees', 'paper'\); accepted: "):
        model(data.x, other)
    more = TypedGraph({**data.graph.num_nodes, "author": 11}, data.graph.edges)
    with pytest.raises(
        ValueError, match="graph: has 11 nodes of type 'author', and there are embeddings of 10"
    ):
        model(data.x, more)
    with pytest.raises(
        ValueError, match="graph: has nodes of type 'editor'; accepted: 'paper', 'venue', 'author'"
    ):
        model(data.x, TypedGraph({**data.graph.num_nodes, "editor": 1}, data.graph.edges))
    with pytest.raises(ValueError, match="out_channels: got 2; accepted: 1, the score of a pair"):
        MODELS[name].for_task("typed_link").build(4, out_channels=2, hidden_channels=8)
