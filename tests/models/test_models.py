"""The models of train.py: what they compute, patterns, dropout, training, options, configurations."""

from __future__ import annotations

import copy
import re
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
import train
from gnnsparse import masks
from gnnsparse.nn import GCNConv, GINConv
from gnnsparse.nn.adjacency import AdjacencyMemo
from gnnsparse.precision import Precision
from gnnsparse.testing import assert_accurate, assert_all_accurate, in_float64, measure_errors, with_gradients
from gnnsparse.train import TrainerConfig, fit
from models import AGNN, GAT, GCN, GIN, GPS, MODELS, Exphormer, GATv2, GraphTransformer, Transformer
from models.patterns import ALL_PAIRS_UP_TO, EDGE_TYPES, AllNodes, Interactions, pattern_of
from models.transformer import sinusoids
from tests.configs import composed
from tests.helpers import ROUNDING, reference_layers
from tests.tasks import classifier, prepared, toy_task

NODES, LENGTH = 20, 14
#: Those of nodes; tests/models/test_edge_models.py has those that take features of edges.
KINDS: dict[str, Any] = {
    name: model.build
    for name, model in MODELS.items()
    if model.task == "node" and model.edge_features == "none"
}
#: The models with an option `conv`, and the layer of each of its values.
GLOBAL, CONVS = ("gps", "exphormer"), {"gcn": GCNConv, "gin": GINConv}
#: Each model of nodes, those with an option `conv` with each value.
VARIANTS = [
    pytest.param(name, options, id="-".join([name, *options.values()]))
    for name in KINDS
    for options in ([{"conv": conv} for conv in CONVS] if name in GLOBAL else [{}])
]
#: Those that take an edge_index in place of an operand.
TAKE_EDGES = ("gcn", "agnn", "gat", "gatv2", "graphsage", "gin", *GLOBAL)
BOTH = pytest.mark.parametrize("name", GLOBAL)


def edges(nodes: int = NODES, count: int = 60, seed: int = 0) -> torch.Tensor:
    """Random edges, some of them repeated, and self-loops."""
    return torch.randint(0, nodes, (2, count), generator=torch.Generator().manual_seed(seed))


def graph(values: str | None, precision: str = "fp32") -> gnnsparse.SparseOperand:
    return gnnsparse.prepare(edges(), num_nodes=NODES, values=values, precision=precision, cache=False)


def graph_for(name: str, options: dict[str, Any], precision: str = "fp32") -> gnnsparse.SparseOperand:
    return graph(MODELS[name].values_with(options), precision)


def linked(a: gnnsparse.SparseOperand) -> torch.Tensor:
    found = torch.zeros(NODES, NODES, dtype=torch.bool)
    found[tuple(a.indices())] = True
    return found


def pattern(radius: int = 3) -> gnnsparse.SparseOperand:
    return gnnsparse.prepare(masks.window(LENGTH, radius), cache=False)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
@pytest.mark.parametrize(
    ("layers", "norm", "residual"),
    [(1, "none", False), (1, "batch", True), (3, "none", True), (3, "batch", False), (3, "layer", True)],
)
def test_shapes_and_gradients_and_dropout_in_training_alone(
    name: str, options: dict[str, Any], layers: int, norm: str, residual: bool, device: str
) -> None:
    model = KINDS[name](6, 8, 3, num_layers=layers, norm=norm, residual=residual, **options).to(device)
    x, a = torch.randn(NODES, 6, device=device), graph_for(name, options).to(device)
    y = model(x, a)
    y.square().sum().backward()
    assert y.shape == (NODES, 3)
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())
    first = getattr(model, "lin1", None)
    assert model.first_layer is (model.convs[0] if first is None else first)
    assert getattr(model, "num_convolutions", layers) == layers
    if name in GLOBAL:
        assert {type(block.conv) for block in model.blocks} == {CONVS[options["conv"]]}
    assert not torch.equal(model(x, a), y)
    model.eval()
    assert torch.equal(model(x, a), model(x, a))


@pytest.mark.parametrize(("name", "options"), [v for v in VARIANTS if v.values[0] in TAKE_EDGES])
def test_an_edge_index_gives_the_same_as_its_operand(name: str, options: dict[str, Any]) -> None:
    """Without repeats, and without self-loops, which attention layers replace."""
    index = torch.randint(0, NODES, (2, 60)).unique(dim=1)
    index = index[:, index[0] != index[1]]
    values = MODELS[name].values_with(options)
    a = gnnsparse.prepare(index, num_nodes=NODES, values=values, cache=False)
    model, x = KINDS[name](6, 8, 3, **options).eval(), torch.randn(NODES, 6)
    assert torch.equal(model(x, a), model(x, index))


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_a_small_task_is_learned(name: str, options: dict[str, Any]) -> None:
    task = toy_task()
    module = classifier(task, 30, model=KINDS[name], options={"dropout": 0.2, **options}, lr=0.01)
    data = prepared(task, values=MODELS[name].values_with(options), precision="fp16")
    before = module.training_step(data.batch).item()
    result = fit(module, data, TrainerConfig(max_epochs=30, progress=False))
    assert module.training_step(data.batch).item() < 0.7 * before
    assert result.metrics["test"]["accuracy"] > 0.6  # chance is a third


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_configurations_compose(name: str, options: dict[str, Any]) -> None:
    """With one data set; tests/train/test_train_options.py composes those with settings of their own."""
    own = [f"model.{option}={value}" for option, value in options.items()]
    cfg = composed(f"model={name}", "dataset=cora", *own)
    settings, model = train.read_settings(cfg), train.build_model(cfg, 10, 3)
    assert type(model) is KINDS[name]
    assert settings.values == MODELS[name].values_with(options)
    assert set(train.options_of(cfg.model)) == set(MODELS[name].options)
    if name in ("gat", "gatv2"):
        assert (model.convs[0].heads, model.convs[0].out_channels, model.dropout) == (8, 8, 0.6)
        assert (settings.optimizer.lr, settings.optimizer.decay) == (0.005, "all")


def test_registry() -> None:
    assert MODELS["gps"].values_with({}) == MODELS["gps"].values == "gcn"
    assert MODELS["gps"].values_with({"conv": "gin"}) is None
    assert MODELS["graphsage"].values_with({"conv": "gin"}) == "mean"
    gin, gcn = MODELS["gin"], MODELS["gcn"]
    assert gin.tasks == ("node", "graph", "edge")
    assert gin.for_task("node") is gin
    assert ("pool" in gcn.options, "pool" in gcn.for_task("graph").options) == (False, True)
    with pytest.raises(ValueError, match="task: got 'sequence'; accepted: node, graph, edge"):
        gin.for_task("sequence")
    assert list(MODELS)[:4] == ["gcn", "agnn", "graph_transformer", "transformer"]


def test_the_agnn_is_thekumparampils() -> None:
    model = AGNN(6, 8, 3)
    first, second = model.convs
    assert [name for name, _ in first.named_parameters()] == []
    assert [name for name, _ in second.named_parameters()] == ["beta"]
    with torch.no_grad():
        second.beta.fill_(2.5)
    apart = ~linked(graph("gcn"))

    def formula(x: torch.Tensor) -> torch.Tensor:
        hidden = model.lin1(x).relu()
        for beta in (1.0, 2.5):
            unit = torch.nn.functional.normalize(hidden)
            hidden = (beta * unit @ unit.T).masked_fill(apart, float("-inf")).softmax(dim=1) @ hidden
        return model.lin2(hidden)

    x = torch.randn(NODES, 6)
    got, plain = model.eval()(x, graph("gcn")), formula(x)
    with in_float64(model):
        assert_accurate(got, plain, formula(x.double()))


@pytest.mark.parametrize("kind", [GAT, GATv2])
def test_two_layers_are_velickovics(kind: Any) -> None:
    """8 heads of 8 features, ELU, and the mean of the last layer's heads."""
    model, a, x = kind(6, 64, 3, out_heads=2).eval(), graph("gcn"), torch.randn(NODES, 6)
    first, second = model.convs
    assert (first.heads, first.out_channels, first.concat, first.dropout) == (8, 8, True, 0.6)
    assert (second.heads, second.out_channels, second.concat) == (2, 3, False)
    assert torch.equal(model(x, a), second(F.elu(first(x, a)), a))


@pytest.mark.parametrize("name", ["gcn", "gat", "gatv2", "graphsage"])
def test_residual_adds_the_input_of_hidden_layers(name: str) -> None:
    model = KINDS[name](6, 8, 3, num_layers=3, residual=True).eval()
    a, x = graph(MODELS[name].values), torch.randn(NODES, 6)
    first, second, third = model.convs
    act = F.elu if name.startswith("gat") else F.relu
    hidden = act(first(x, a))
    assert torch.equal(model(x, a), third(act(second(hidden, a)) + hidden, a))


def test_gin_classifies_the_sums() -> None:
    model, a, x = GIN(6, 8, 3, residual=True, train_eps=True).eval(), graph(None), torch.randn(NODES, 6)
    first, second = model.convs
    hidden = first(x, a)
    assert torch.equal(model(x, a), model.lin(second(hidden, a) + hidden))
    assert [name for name, _ in model.named_parameters() if "eps" in name] == ["convs.0.eps", "convs.1.eps"]


def test_dropout_acts_on_the_input_of_each_layer() -> None:
    model, a, x = GCN(6, 8, 3, dropout=0.5), graph("gcn"), torch.randn(NODES, 6)
    seen: list[torch.Tensor] = []
    for conv in model.convs:
        conv.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(x, a)
    assert 0.3 < float((seen[0] == 0).float().mean()) < 0.7
    seen.clear()
    model.eval()(x, a)
    assert torch.equal(seen[0], x)


def test_nodes_attend_to_their_neighbours_alone() -> None:
    a = graph("gcn")
    assert torch.equal(reached(GraphTransformer(6, 8, 3, num_layers=1), a, NODES), linked(a))


def transformer(**options: Any) -> Transformer:
    return Transformer(7, 8, 3, **{"num_layers": 2, "heads": 2, "feed_forward": 12, **options})


@pytest.mark.parametrize(
    ("norm_first", "pool", "padded"),
    [(True, "mean", True), (False, "first", True), (True, "first", False), (False, "mean", False)],
)
def test_transformer(norm_first: bool, pool: str, padded: bool) -> None:
    model = transformer(norm_first=norm_first, pool=pool, fused=padded)
    assert all(layer.self_attn.fused is padded for layer in model.encoder.layers)
    tokens = torch.randint(1, 7, (4, LENGTH), dtype=torch.int16)
    tokens[:, 10:] = 0
    y = model(tokens, pattern(), tokens == 0 if padded else None)
    y.square().sum().backward()
    assert y.shape == (4, 3)
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())
    assert model.first_layer is model.embedding


@pytest.mark.parametrize("pool", ["mean", "first"])
def test_padding_does_not_matter(pool: str) -> None:
    """The logits are those of the shorter sequence."""
    model = transformer(pool=pool).eval()
    tokens = torch.randint(1, 7, (4, LENGTH), dtype=torch.int16)
    tokens[:, 9:] = 0
    short = gnnsparse.prepare(masks.window(9, 3), cache=False)
    got, plain = model(tokens, pattern(), tokens == 0), model(tokens[:, :9], short)
    with reference_layers(), in_float64(model):
        assert_accurate(got, plain, model(tokens[:, :9], short))
    empty = torch.zeros(2, LENGTH, dtype=torch.int16)
    assert torch.isfinite(model(empty, pattern(), empty == 0)).all()


def test_the_order_of_tokens_matters() -> None:
    model = transformer().eval()
    tokens = torch.randint(1, 7, (1, LENGTH))
    everything = gnnsparse.prepare(masks.full(LENGTH), cache=False)
    one, other = model(tokens, everything), model(tokens.flip(1), everything)
    with reference_layers(), in_float64(model):
        exact = model(tokens, everything)
    assert not measure_errors(other, one, exact).ok


def test_sinusoids() -> None:
    table = sinusoids(50, 8)
    assert table.shape == (50, 8)

    def formula(dtype: torch.dtype) -> torch.Tensor:
        angles = 7 * torch.tensor([10_000 ** (-2 * i / 8) for i in range(4)], dtype=dtype)
        return torch.cat([angles.sin(), angles.cos()])

    assert_accurate(table[7], formula(torch.float32), formula(torch.float64))


def expander(nodes: int, degree: int, seed: int) -> torch.Tensor:
    """The neighbours in an expander of the next smaller degree that there can be, in a dense matrix."""
    fitting = min(degree, nodes - 1)
    return masks.expander(nodes, fitting - fitting * nodes % 2, seed=seed).to_dense()


@given(st.integers(1, 30), st.integers(0, 60), st.integers(1, 8), st.integers(0, 3), st.booleans())
def test_interactions(nodes: int, count: int, degree: int, virtual: int, as_operand: bool) -> None:
    """Every edge is there once, with the first of its types, whatever weights the graph has."""
    index = edges(nodes, count)
    total = nodes + virtual
    recipe = Interactions(degree, virtual, 3, Precision.FP32)
    want, number = torch.zeros(total, total, dtype=torch.int64), EDGE_TYPES.index
    want[nodes:, :nodes] = 1 + number("to virtual")
    want[:nodes, nodes:] = 1 + number("from virtual")
    want[:nodes, :nodes][expander(nodes, degree, seed=3) > 0] = 1 + number("expander")
    want[index[1], index[0]] = 1 + number("graph")
    want.fill_diagonal_(1 + number("self"))
    values = "gcn" if count % 2 else None
    adj = gnnsparse.prepare(index, num_nodes=nodes, values=values, cache=False) if as_operand else index
    found = pattern_of(AdjacencyMemo(), adj, nodes, recipe)
    assert torch.equal(found.types.sum(dim=1), torch.ones(found.operand.nnz))
    types = torch.zeros(total, total, dtype=torch.int64)
    types[tuple(found.operand.indices())] = found.types.argmax(dim=1) + 1
    assert torch.equal(types, want)


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
    ("conv", "precision"),
    [("gcn", "fp32"), ("gin", "fp32"), ("gcn", "tf32"), ("gin", "fp16"), ("gcn", "bf16")],
)
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
@pytest.mark.slow
@torch.no_grad()
def test_a_model_is_compiled_whole(name: str) -> None:
    """After a run that makes the pattern; without one, it is made where the graph breaks."""
    model, x = KINDS[name](6, 8, 3, num_layers=1).eval(), torch.randn(NODES, 6)
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


def reached(model: torch.nn.Module, adj: Any, nodes: int) -> torch.Tensor:
    """Which inputs change each output, bool [nodes, nodes]."""
    x = torch.randn(nodes, 6, requires_grad=True)
    y = model.eval()(x, adj)
    return torch.stack(
        [torch.autograd.grad(row.sum(), x, retain_graph=True)[0].abs().sum(1) > 0 for row in y]
    )


@pytest.mark.parametrize("nodes", [1, 2, 3, 7, 40])
def test_how_far_nodes_see(nodes: int) -> None:
    """Without edges a node sees what attention shows: all nodes, its pattern, or all by virtual nodes."""
    adj = gnnsparse.prepare(torch.empty(2, 0, dtype=torch.int64), num_nodes=nodes, values="gcn", cache=False)

    def seen(kind: Any, layers: int, **options: Any) -> torch.Tensor:
        return reached(kind(6, 8, 3, num_layers=layers, **options), adj, nodes)

    assert seen(GPS, 1).all()
    assert seen(GPS, 1, attention="full").all()
    for layers in (1, 2):
        window = seen(GPS, layers, attention="window", degree=3)
        assert torch.equal(window, dense_window(nodes, 2 * layers))
    step = expander(nodes, 3, seed=0) + torch.eye(nodes)
    assert torch.equal(seen(GPS, 1, attention="expander", degree=3), step > 0)
    assert torch.equal(seen(Exphormer, 2, degree=3, virtual_nodes=0), step @ step > 0)
    assert seen(Exphormer, 2, degree=3, virtual_nodes=1).all()


def dense_window(nodes: int, radius: int) -> torch.Tensor:
    return (torch.arange(nodes)[:, None] - torch.arange(nodes)).abs() <= radius


def test_types_of_edges_matter_when_they_are_learned() -> None:
    model, a, x = Exphormer(6, 8, 3).eval(), graph("gcn"), torch.randn(NODES, 6)
    before = model(x, a)
    with torch.no_grad():
        model.attentions[0].of_types[EDGE_TYPES.index("expander")] = -1.0
    assert not torch.allclose(model(x, a), before)


@BOTH
@pytest.mark.parametrize(
    ("adj", "message"),
    [
        (torch.eye(NODES), "adj: has shape (20, 20); accepted: (2, edges)"),
        ("graph", "adj: got str"),
        (gnnsparse.prepare(edges(9), num_nodes=9), "adj: an operand of shape (9, 9), and x of 20"),
        (graph(None), "adj: an operand prepared with weights of its own"),
    ],
)
def test_bad_graphs(name: str, adj: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        KINDS[name](6, 8, 3)(torch.randn(NODES, 6), adj)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (GCN, {"dropout": 1.0}, "dropout: got 1.0; accepted: a number in [0, 1)"),
        (GCN, {"num_layers": 0}, "num_layers: got 0; accepted: a positive integer"),
        (GCN, {"hidden_channels": "8"}, "hidden_channels: got str; accepted: a positive integer"),
        (GCN, {"norm": "group"}, "norm: got 'group'; accepted: none, batch, layer"),
        (GCN, {"residual": 1}, "residual: got int; accepted: True or False"),
        (GraphTransformer, {"heads": 3}, "heads: got 3; accepted: a divisor of hidden_channels, 8"),
        (Transformer, {"heads": 5}, "heads: got 5; accepted: a divisor of hidden_channels, 8"),
        (Transformer, {"hidden_channels": 7}, "hidden_channels: got 7; accepted: an even number"),
        (Transformer, {"pool": "max"}, "pool: got 'max'; accepted: mean, first"),
        (Transformer, {"activation": "tanh"}, "activation: got 'tanh'; accepted: relu, gelu"),
        (Transformer, {"fused": "yes"}, "fused: got str"),
        (GAT, {"heads": 3}, "heads: got 3; accepted: a divisor of hidden_channels, 8"),
        (GATv2, {"out_heads": 0}, "out_heads: got 0"),
        (GIN, {"train_eps": 1}, "train_eps: got int"),
        (GPS, {"heads": 3}, "heads: got 3; accepted: a divisor of hidden_channels, 8"),
        (GPS, {"conv": "gat"}, "conv: got 'gat'; accepted: gcn, gin"),
        (GPS, {"attention": "all"}, "attention: got 'all'; accepted: auto, full, expander, window"),
        (GPS, {"degree": 0}, "degree: got 0"),
        (GPS, {"seed": -1}, "seed: got -1; accepted: an integer, 0 or more"),
        (GPS, {"num_layers": 0}, "num_layers: got 0"),
        (Exphormer, {"virtual_nodes": -1}, "virtual_nodes: got -1; accepted: an integer, 0 or more"),
    ],
)
def test_bad_options(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        kind(**{"in_channels": 6, "hidden_channels": 8, "out_channels": 3, **options})
