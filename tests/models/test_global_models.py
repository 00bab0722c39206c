"""models.GPS and Exphormer: their patterns, what they compute, training, options, configurations."""

from __future__ import annotations

import copy
import itertools
import re
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
import train
from gnnsparse import masks
from gnnsparse.nn import GCNConv, GINConv
from gnnsparse.nn.adjacency import AdjacencyMemo
from gnnsparse.precision import Precision
from gnnsparse.testing import assert_accurate, assert_all_accurate, in_float64, with_gradients
from gnnsparse.train import (
    FullGraphData,
    NodeClassifier,
    OptimizerConfig,
    PreprocessConfig,
    TrainerConfig,
    fit,
)
from models import GPS, MODELS, Exphormer
from models.patterns import ALL_PAIRS_UP_TO, EDGE_TYPES, AllNodes, Interactions, Pattern, pattern_of
from tests.configs import composed
from tests.helpers import ROUNDING, reference_layers
from tests.tasks import toy_task

NODES = 20
KINDS: dict[str, Any] = {"gps": GPS, "exphormer": Exphormer}
BOTH = pytest.mark.parametrize("name", KINDS)


def edges(nodes: int = NODES, count: int = 60, seed: int = 0) -> torch.Tensor:
    """Random edges, some of them repeated, and self-loops."""
    return torch.randint(0, nodes, (2, count), generator=torch.Generator().manual_seed(seed))


def graph(values: str | None, precision: str = "fp32") -> gnnsparse.SparseOperand:
    return gnnsparse.prepare(edges(), num_nodes=NODES, values=values, precision=precision, cache=False)


def dense_of(pattern: Pattern) -> torch.Tensor:
    """The type of each edge, from 1 on, in a dense matrix; 0 where there is no edge."""
    rows, cols = pattern.operand.indices()
    found = torch.zeros(pattern.operand.shape, dtype=torch.int64)
    if pattern.types is None:
        found[rows, cols] = 1
    else:
        assert torch.equal(pattern.types.sum(dim=1), torch.ones(len(rows)))
        found[rows, cols] = pattern.types.argmax(dim=1) + 1
    return found


@given(st.integers(1, 30), st.integers(0, 60), st.integers(1, 8), st.integers(0, 3), st.booleans())
def test_interactions(nodes: int, count: int, degree: int, virtual: int, as_operand: bool) -> None:
    """Every edge is there once, with the first of its types, whatever weights the graph has."""
    index = edges(nodes, count)
    total = nodes + virtual
    recipe = Interactions(degree, virtual, 3, Precision.FP32)
    fitting = min(degree, nodes - 1)
    fitting -= fitting * nodes % 2
    of_expander = torch.from_numpy(masks.expander(nodes, fitting, seed=3).to_scipy().toarray()).bool()
    want = torch.zeros(total, total, dtype=torch.int64)
    want[nodes:, :nodes] = 1 + EDGE_TYPES.index("to virtual")
    want[:nodes, nodes:] = 1 + EDGE_TYPES.index("from virtual")
    want[:nodes, :nodes][of_expander] = 1 + EDGE_TYPES.index("expander")
    want[index[1], index[0]] = 1 + EDGE_TYPES.index("graph")
    want.fill_diagonal_(1 + EDGE_TYPES.index("self"))
    values = "gcn" if count % 2 else None
    adj = gnnsparse.prepare(index, num_nodes=nodes, values=values, cache=False) if as_operand else index
    assert torch.equal(dense_of(pattern_of(AdjacencyMemo(), adj, nodes, recipe)), want)


@pytest.mark.parametrize("nodes", [1, 2, 3, 7, 50])
def test_patterns_in_place_of_all_pairs(nodes: int) -> None:
    def made(attention: str, degree: int = 4) -> torch.Tensor:
        recipe = AllNodes(attention, degree, 0, Precision.FP32)
        return dense_of(recipe.make(torch.empty(2, 0, dtype=torch.int64), (nodes, nodes), False))

    distance = (torch.arange(nodes)[:, None] - torch.arange(nodes)).abs()
    assert torch.equal(made("full"), torch.ones_like(distance))
    assert torch.equal(made("auto"), made("full"))
    assert torch.equal(made("window") > 0, distance <= 2)
    expander = made("expander")
    fitting = min(4, nodes - 1)
    assert torch.equal(expander, expander.T)
    assert torch.equal(expander.sum(dim=1), torch.full((nodes,), fitting - fitting * nodes % 2 + 1))
    assert bool(expander.diagonal().all())


def test_a_graph_too_large_for_all_pairs_gets_an_expander_and_a_warning() -> None:
    nodes = ALL_PAIRS_UP_TO + 1
    index = edges(nodes)
    model, x = GPS(6, 8, 3, num_layers=1).eval(), torch.randn(nodes, 6)
    with pytest.warns(UserWarning, match="attention over all pairs of 1025 nodes is too large"):
        y = model(x, index)
    assert torch.equal(model(x, index), y), "another warning would be an error"
    model.attention = "expander"
    assert torch.equal(model(x, index), y)


@BOTH
def test_a_pattern_is_made_once_for_a_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = KINDS[name](6, 8, 3).eval(), torch.randn(NODES, 6)
    made: list[Any] = []
    for recipe in (AllNodes, Interactions):
        make = recipe.make
        monkeypatch.setattr(recipe, "make", lambda *given, make=make: made.append(given) or make(*given))
    a, index = graph("gcn"), edges()
    other = copy.deepcopy(model)
    for of in (model, model, other):  # the operand keeps its pattern, for all models
        of(x, a)
    assert len(made) == 1
    for _ in range(2):
        model(x, index)
    assert len(made) == 2
    model(x, index.flip(1))  # other edges
    model.degree = 3  # another pattern of the operand
    model(x, a)
    assert len(made) == 4


@BOTH
@pytest.mark.parametrize(
    ("layers", "norm", "conv", "residual"),
    list(itertools.product((1, 3), ("none", "batch", "layer"), ("gcn", "gin"), (False, True))),
)
def test_shapes_and_gradients(
    name: str, layers: int, norm: str, conv: str, residual: bool, device: str
) -> None:
    model = KINDS[name](6, 8, 3, num_layers=layers, norm=norm, conv=conv, residual=residual).to(device)
    a = graph(MODELS[name].values_with({"conv": conv})).to(device)
    y = model(torch.randn(NODES, 6, device=device), a)
    y.square().sum().backward()
    assert y.shape == (NODES, 3)
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())
    assert model.first_layer is model.lin1
    kinds = {type(block.conv) for block in model.blocks}
    assert kinds == {GCNConv if conv == "gcn" else GINConv}


@BOTH
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("conv", ["gcn", "gin"])
def test_accuracy(name: str, conv: str, precision: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output and gradients beside the reference in the same precision, and twice the same bits."""
    a = graph(MODELS[name].values_with({"conv": conv}), precision)
    model, x = KINDS[name](6, 8, 3, conv=conv).eval(), torch.randn(NODES, 6)
    with torch.no_grad():
        for attention in model.attentions:
            if name == "exphormer":
                torch.nn.init.normal_(attention.of_types)

    def run(x: torch.Tensor, a: gnnsparse.SparseOperand) -> list[torch.Tensor]:
        found = with_gradients(lambda x: model(x, a), [x], model.parameters())
        return [*found[:2], torch.cat([grad.flatten() for grad in found[2:]])]

    model.to(device)
    got, again = (run(x.to(device), a.to(device)) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(got, again, strict=True))
    model.cpu()
    with reference_layers():
        by_reference = partial(gnnsparse.graph_attention, impl="reference")
        monkeypatch.setattr("models.exphormer.graph_attention", by_reference)
        plain = run(x, a)
        with in_float64(model):
            exact = run(x.double(), graph(MODELS[name].values_with({"conv": conv})))
    assert_all_accurate(got, plain, exact, floor=16 * ROUNDING[precision])


@BOTH
@pytest.mark.parametrize("conv", ["gcn", "gin"])
def test_an_edge_index_gives_the_same_as_its_operand(name: str, conv: str) -> None:
    values = MODELS[name].values_with({"conv": conv})
    index = edges().unique(dim=1)
    a = gnnsparse.prepare(index, num_nodes=NODES, values=values, cache=False)
    model, x = KINDS[name](6, 8, 3, conv=conv).eval(), torch.randn(NODES, 6)
    assert torch.equal(model(x, a), model(x, index))


@BOTH
def test_dropout_in_training_alone(name: str) -> None:
    model, a, x = KINDS[name](6, 8, 3), graph("gcn"), torch.randn(NODES, 6)
    assert not torch.equal(model(x, a), model(x, a))
    model.eval()
    assert torch.equal(model(x, a), model(x, a))


@BOTH
@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_small_graphs(name: str, nodes: int) -> None:
    model = KINDS[name](6, 8, 3)
    a = gnnsparse.prepare(torch.empty(2, 0, dtype=torch.int64), num_nodes=nodes, values="gcn", cache=False)
    assert bool(torch.isfinite(model(torch.randn(nodes, 6), a)).all())


@BOTH
@pytest.mark.slow
@torch.no_grad()
def test_a_model_is_compiled_whole(name: str) -> None:
    """After a run that makes the pattern; without one, it is made where the graph breaks."""
    model, x = KINDS[name](6, 8, 3).eval(), torch.randn(NODES, 6)
    a, index = graph("gcn"), edges()
    for whole, adj in ((False, a), (True, a), (False, index)):
        torch._dynamo.reset()
        got = torch.compile(model, backend="aot_eager", fullgraph=whole)(x, adj)
        assert_accurate(got, model(x, adj), model(x, adj).double())


@BOTH
def test_autocast(name: str) -> None:
    """The parameters stay float32, the logits are those of float32 but for the rounding."""
    model, a, x = KINDS[name](6, 8, 3).eval(), graph("gcn", "bf16"), torch.randn(NODES, 6)
    want = model(x, graph("gcn"))
    with torch.autocast("cpu", torch.bfloat16):
        got = model(x, a)
        got.float().sum().backward()
    assert got.dtype == torch.bfloat16
    assert (got - want).norm() < 0.05 * want.norm()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())


def reached(model: torch.nn.Module, adj: torch.Tensor, nodes: int) -> torch.Tensor:
    """Which inputs change each output, bool [nodes, nodes]."""
    x = torch.randn(nodes, 6, requires_grad=True)
    y = model.eval()(x, adj)
    return torch.stack(
        [torch.autograd.grad(row.sum(), x, retain_graph=True)[0].abs().sum(1) > 0 for row in y]
    )


def test_how_far_nodes_see() -> None:
    """Without edges a node sees what attention shows: all nodes, its pattern, or all by virtual nodes."""
    nodes, none = 40, torch.empty(2, 0, dtype=torch.int64)
    assert reached(GPS(6, 8, 3, num_layers=1), none, nodes).all()
    window = reached(GPS(6, 8, 3, num_layers=1, attention="window", degree=2), none, nodes)
    assert torch.equal(window, dense_window(nodes, 1))
    two = reached(GPS(6, 8, 3, num_layers=2, attention="window", degree=2), none, nodes)
    assert torch.equal(two, dense_window(nodes, 2))
    sparse = reached(Exphormer(6, 8, 3, num_layers=2, degree=3, virtual_nodes=0), none, nodes)
    step = torch.from_numpy(masks.expander(nodes, 3, seed=0).to_scipy().toarray()) + torch.eye(nodes)
    assert torch.equal(sparse, step @ step > 0)
    assert reached(Exphormer(6, 8, 3, num_layers=2, degree=3, virtual_nodes=1), none, nodes).all()


def dense_window(nodes: int, radius: int) -> torch.Tensor:
    return (torch.arange(nodes)[:, None] - torch.arange(nodes)).abs() <= radius


def test_types_of_edges_matter_when_they_are_learned() -> None:
    model, a, x = Exphormer(6, 8, 3).eval(), graph("gcn"), torch.randn(NODES, 6)
    before = model(x, a)
    with torch.no_grad():
        model.attentions[0].of_types[EDGE_TYPES.index("expander")] = -1.0
    assert not torch.allclose(model(x, a), before)


@BOTH
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("conv", ["gcn", "gin"])
def test_a_small_task_is_learned(name: str, precision: str, conv: str) -> None:
    task = toy_task()
    torch.manual_seed(0)
    model = KINDS[name](task.num_features, 16, task.num_classes, dropout=0.2, conv=conv)
    values = MODELS[name].values_with({"conv": conv})
    data = FullGraphData(task, values=values, precision=precision, preprocess=PreprocessConfig(cache=False))
    module = NodeClassifier(model, task, OptimizerConfig(lr=0.01), 30)
    before = module.training_step(data.batch).item()
    result = fit(module, data, TrainerConfig(max_epochs=30, progress=False))
    assert module.training_step(data.batch).item() < 0.7 * before
    assert result.metrics["test"]["accuracy"] > 0.6  # chance is a third


@BOTH
@pytest.mark.parametrize("dataset", ["cora", "citeseer", "pubmed", "amazon_photo", "tolokers"])
@pytest.mark.parametrize(("conv", "values"), [("gcn", "gcn"), ("gin", None)])
def test_configurations_compose(name: str, dataset: str, conv: str, values: str | None) -> None:
    cfg = composed(f"model={name}", f"dataset={dataset}", f"model.conv={conv}")
    assert train.read_settings(cfg).values == values
    assert type(train.build_model(cfg, 10, 3)) is KINDS[name]
    assert set(train.options_of(cfg.model)) == set(MODELS[name].options)


def test_weights_by_an_option() -> None:
    assert MODELS["gps"].values_with({}) == MODELS["gps"].values == "gcn"
    assert MODELS["gps"].values_with({"conv": "gin"}) is None
    assert MODELS["graphsage"].values_with({"conv": "gin"}) == "mean"


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (GPS, {"heads": 3}, "heads: got 3; accepted: a divisor of hidden_channels, 8"),
        (GPS, {"conv": "gat"}, "conv: got 'gat'; accepted: gcn, gin"),
        (GPS, {"attention": "all"}, "attention: got 'all'; accepted: auto, full, expander, window"),
        (GPS, {"degree": 0}, "degree: got 0"),
        (GPS, {"seed": -1}, "seed: got -1; accepted: an integer, 0 or more"),
        (GPS, {"norm": "group"}, "norm: got 'group'; accepted: none, batch, layer"),
        (GPS, {"dropout": 1.0}, "dropout: got 1.0; accepted: a number in [0, 1)"),
        (GPS, {"num_layers": 0}, "num_layers: got 0"),
        (GPS, {"residual": 1}, "residual: got int"),
        (Exphormer, {"virtual_nodes": -1}, "virtual_nodes: got -1; accepted: an integer, 0 or more"),
        (Exphormer, {"degree": 2.5}, "degree: got float"),
        (Exphormer, {"conv": 1}, "conv: got int"),
        (Exphormer, {"hidden_channels": 0}, "hidden_channels: got 0"),
    ],
)
def test_bad_options(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        kind(**{"in_channels": 6, "hidden_channels": 8, "out_channels": 3, **options})


@BOTH
@pytest.mark.parametrize(
    ("adj", "message"),
    [
        (torch.eye(NODES), "adj: has shape (20, 20); accepted: (2, edges)"),
        ("graph", "adj: got str"),
        (
            gnnsparse.prepare(edges(9), num_nodes=9, cache=False),
            "adj: an operand of shape (9, 9), and x of 20",
        ),
        (graph(None), "adj: an operand prepared with weights of its own"),
    ],
)
def test_bad_graphs(name: str, adj: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        KINDS[name](6, 8, 3)(torch.randn(NODES, 6), adj)
