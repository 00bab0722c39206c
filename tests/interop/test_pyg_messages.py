"""Users' code sees nothing of acceleration: it runs as often as in PyG, on the same types, or not at all."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.utils import parametrize

from tests.fuzz import messages
from tests.fuzz.common import Counts, Draw, Trial
from tests.interop.pyg_cases import both, close, edges_of, interop, pyg, used

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace:UserWarning"),
]

NODES, WIDTH = 40, 4


class Base(pyg.MessagePassing):
    """Passes messages with weights."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, w: Any = None) -> torch.Tensor:
        return self.propagate(edge_index, x=x, w=w)


class TypeTest(Base):
    def message(self, x_j: torch.Tensor, w: Any) -> torch.Tensor:
        if isinstance(w, torch.Tensor):
            return w.view(-1, 1) * x_j
        return x_j


class Counting(Base):
    runs = 0

    def message(self, x_j: torch.Tensor, w: Any) -> torch.Tensor:
        self.runs += 1
        return x_j


class Switching(Base):
    weighted, double = False, False

    def message(self, x_j: torch.Tensor, w: Any) -> torch.Tensor:
        if self.double:
            return 2 * x_j
        return w.view(-1, 1) * x_j if self.weighted else x_j


class OwnSum(pyg.aggr.SumAggregation):
    def reduce(self, *arguments: Any, **options: Any) -> torch.Tensor:
        return super().reduce(*arguments, **options) + 1


class OwnStep(TypeTest):
    def _lift(self, src: torch.Tensor, edge_index: Any, dim: int) -> torch.Tensor:
        return 2 * super()._lift(src, edge_index, dim)


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    edges = edges_of()
    return torch.randn(NODES, WIDTH), edges, torch.rand(edges.shape[1])


def test_a_message_is_not_run_by_accelerate_or_report() -> None:
    x, edges, _ = inputs()
    layer, other = interop.accelerate(Counting()), Counting()
    interop.report(layer)
    assert layer.runs == 0
    layer(x, edges)
    with interop.backend():
        other(x, edges)
    assert layer.runs == other.runs == 1


def test_a_message_that_reads_attributes() -> None:
    """Eager calls, and compiled ones, which run on our operator as long as what was read is as it was."""
    x, edges, w = inputs()
    for compiles in (False, True):
        plain, ours = both(Switching())
        run = torch.compile(ours, backend="eager", fullgraph=True) if compiles else ours
        for weighted, double in [(False, False), (True, False), (False, True), (True, True), (False, False)]:
            for layer in (plain, ours):
                layer.weighted, layer.double = weighted, double
            close(run(x, edges, w), plain(x, edges, w))
        torch._dynamo.reset()
        assert compiles or used(ours) == {"spmm, sum, fp32": 3, "aggregate_edges, sum, fp32": 2}


def operators(model: Any, *arguments: Any) -> list[str]:
    """The operators of ours in what torch.compile makes of a model."""
    found: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        found.extend(str(node.target) for node in graph.graph.nodes if "gnnsparse" in str(node.target))
        return graph

    torch._dynamo.reset()
    torch.compile(model, backend=backend)(*arguments)
    torch._dynamo.reset()
    return found


def test_compiled_layers_run_on_our_operators() -> None:
    x, edges, w = inputs()
    for layer, weights in [(pyg.GCNConv(WIDTH, 4), ()), (pyg.GraphConv(WIDTH, 4), (w,)), (TypeTest(), (w,))]:
        assert operators(interop.accelerate(layer), x, edges, *weights) == ["gnnsparse.pyg_aggregate"]
    kinds = torch.arange(edges.shape[1]) % 2
    rgcn = interop.accelerate(pyg.RGCNConv(WIDTH, 4, 2))
    assert operators(rgcn, x, edges, kinds) == ["gnnsparse.pyg_relations"]
    gat = interop.accelerate(pyg.GATConv(WIDTH, 4))
    assert operators(gat, x, edges) == ["gnnsparse.pyg_attention"]
    switching = interop.accelerate(Switching())
    assert operators(switching, x, edges, w) == ["gnnsparse.pyg_aggregate"]
    switching.double = True
    assert operators(switching, x, edges, w) == ["gnnsparse.pyg_edges"]


@pytest.mark.parametrize("compiles", [False, True])
def test_what_is_replaced_in_a_layer_later(compiles: bool) -> None:
    x, edges, w = inputs()
    plain, ours = both(TypeTest())
    run = torch.compile(ours, backend="eager") if compiles else ours
    close(run(x, edges, w), plain(x, edges, w))
    before = [copy.copy(layer.__dict__) for layer in (plain, ours)]
    changes: list[tuple[str, Any]] = [
        ("message", lambda layer: lambda x_j, w: -x_j),
        ("aggregate", lambda layer: lambda inputs, index, **_: inputs.new_ones(NODES, WIDTH)),
        ("update", lambda layer: lambda inputs: inputs + 1),
    ]
    for name, make in changes:
        for layer, own in zip((plain, ours), before, strict=True):
            layer.__dict__ = {**own, name: make(layer)}
        close(run(x, edges, w), plain(x, edges, w))
    for layer, own in zip((plain, ours), before, strict=True):
        layer.__dict__ = dict(own)
    for layer in (plain, ours):
        inner = layer.aggr_module.forward
        layer.aggr_module.forward = lambda *args, inner=inner, **options: 3 * inner(*args, **options)
    close(run(x, edges, w), plain(x, edges, w))
    torch._dynamo.reset()


def test_overridden_aggregations_and_steps_are_pygs() -> None:
    x, edges, _ = inputs()
    of_aggregations = pyg.SAGEConv(WIDTH, 4, aggr=OwnSum()), pyg.GATConv(WIDTH, 4, aggr=OwnSum())
    for layer in (OwnStep(), *of_aggregations):
        plain, ours = both(layer)
        close(ours(x, edges), plain(x, edges))
        assert used(ours) == {}
        assert interop.report(ours).accelerated == ()


def test_hooks_for_all_modules() -> None:
    """They see the modules that PyG calls, in its order."""
    x, edges, _ = inputs()
    seen: list[list[str]] = []
    for layer in both(pyg.GAT(WIDTH, 4, 2)):
        names: list[str] = []
        handle = torch.nn.modules.module.register_module_forward_hook(
            lambda module, *_, names=names: names.append(type(module).__name__)
        )
        layer(x, edges)
        handle.remove()
        seen.append(names)
    assert seen[0] == seen[1]


@pytest.mark.parametrize(
    ("kind", "part", "hook"),
    [
        *itertools.product(("SAGEConv", "GATConv"), ["aggr_module"], ("full_backward", "full_backward_pre")),
        *itertools.product(["GATConv"], ("lin", "lin_edge", "res"), ["forward"]),
    ],
)
def test_hooks_on_parts_of_a_layer(kind: str, part: str, hook: str) -> None:
    x, edges, _ = inputs()
    options, more = {"aggr": "sum"}, []
    if kind == "GATConv":
        options, more = {"edge_dim": 3, "residual": True}, [torch.rand(edges.shape[1], 3)]
    seen: list[int] = []
    for model in (copies := both(getattr(pyg, kind)(WIDTH, 4, **options))):
        getattr(getattr(model, part), f"register_{hook}_hook")(lambda *_: seen.append(1))
        model(x.clone().requires_grad_(), edges, *more).sum().backward()
    assert len(seen) == 2
    assert ("hooks" if part == "aggr_module" else f"`{part}`") in str(interop.report(copies[1]))


class Doubled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        self.runs += 1
        return 2 * weight


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", ["att_src", "lin.weight"])
def test_parametrised_attention(name: str, first: bool) -> None:
    """It runs as often as in PyG: spectral_norm, for one, changes what it keeps whenever it runs."""
    x, edges, _ = inputs()
    layers, runs = [pyg.GATConv(WIDTH, 4)] * 2, []
    layers[1] = copy.deepcopy(layers[0])
    if not first:
        interop.accelerate(layers[1], convert="always")
    for layer in layers:
        owner = layer.lin if name == "lin.weight" else layer
        parametrize.register_parametrization(owner, name.rpartition(".")[2], doubled := Doubled())
        runs.append(doubled)
    plain, ours = layers
    if first:
        interop.accelerate(ours, convert="always")
    for doubled in runs:
        doubled.runs = 0
    close(ours(x, edges), plain(x, edges))
    assert runs[0].runs == runs[1].runs
    is_later = name == "att_src" and not first
    assert not is_later or "parametrize" in str(interop.report(ours))
    interop.restore(ours)
    assert isinstance(ours, pyg.GATConv)
    close(ours(x, edges), plain(x, edges))
    if is_later:
        parametrize.remove_parametrizations(ours, "att_src")
        parametrize.remove_parametrizations(plain, "att_src")
        close(ours(x, edges), plain(x, edges))


class Weighted(pyg.MessagePassing):
    """Features times weights of edges."""

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self.propagate(edge_index, x=x, weight=weight)

    def message(self, x_j: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return weight.view(-1, 1) * x_j


@pytest.mark.parametrize("aggr", ["max", "min"])
def test_a_maximum_tells_copies_of_an_edge_apart(aggr: str) -> None:
    """Sources and targets differ in number; the third copy of an edge is that of another source."""
    edges = torch.tensor([[0, 0, 1, 0, 2, 2, 1], [2, 2, 2, 2, 1, 1, 0]])
    plain, ours = both(Weighted(aggr=aggr))
    grads = []
    for layer in (plain, ours):
        torch.manual_seed(0)
        x, weight = torch.randn(3, WIDTH, requires_grad=True), torch.randn(7, requires_grad=True)
        out = layer(x, edges, weight)
        grads.append((out, *torch.autograd.grad(out.square().sum(), (x, weight))))
    for got, want in zip(*grads, strict=True):
        close(got, want)
    assert used(ours) == {f"spmm, {aggr}, fp32": 1}


def test_the_report_counts_a_call_once() -> None:
    edges = torch.tensor([[0, 0, 1, 2], [2, 2, 2, 1]])  # an edge is repeated
    x, attr = torch.randn(3, WIDTH), torch.rand(4, 2)
    layer = interop.accelerate(pyg.GATConv(WIDTH, 4, edge_dim=2), convert="always")
    for _ in range(4):
        layer(x, edges, attr)
    report = interop.report(layer)
    counts = [n for row in report.rows for n in (*row.calls.values(), *row.fallbacks.values())]
    assert sum(counts) == 4
    assert used(layer) == {"graph_attention, fp32": 4}
    plain = interop.accelerate(pyg.GATConv(WIDTH, 4, dropout=0.0).double(), convert="always")
    plain(x.double(), edges)
    report = interop.report(plain)
    assert "0 of 1 layers accelerated" in str(report)
    assert "float64" in str(report)


def test_a_call_with_many_products_counts_once() -> None:
    x, edges, _ = inputs()
    layer = interop.accelerate(pyg.APPNP(5, 0.1), convert="always")
    report = interop.report(layer)
    assert (report.accelerated, report.ready) == ((), report.rows)
    assert str(report).startswith("0 of 1 layers accelerated, 1 ready for the first call\n")
    for _ in range(2):
        layer(x, edges)
    (row,) = interop.report(layer).rows
    assert (row.calls, row.fallbacks) == ({"spmm, sum, fp32": 2}, {})
    assert "    2 calls on spmm, sum, fp32" in str(interop.report(layer))
    assert interop.report(layer).accelerated == (row,)


def test_a_call_in_part_on_pyg_counts_once() -> None:
    x, edges, _ = inputs()
    layer = interop.accelerate(pyg.GATConv(WIDTH, 4), convert="always")
    torch.nn.utils.parametrize.register_parametrization(layer, "att_src", torch.nn.Identity())
    layer(x, edges)
    (row,) = interop.report(layer).rows
    ((what, count),) = row.calls.items()
    assert (count, row.fallbacks) == (1, {})
    assert what.startswith("spmm, sum, fp32; in part on PyG: its parameters are computed")


def test_each_layer_left_to_pyg_has_advice() -> None:
    class Sizes(pyg.MessagePassing):
        def message(self, x_j: torch.Tensor) -> torch.Tensor:
            return x_j.cumsum(-1)

    model = torch.nn.ModuleList([Sizes(), OwnStep(), pyg.SAGEConv(WIDTH, 4, flow="target_to_source")])
    report = interop.report(interop.accelerate(model))
    assert all(row.advice for row in report.rows)
    assert str(report).count("    to accelerate it: ") == 3


def test_a_module_whose_functions_read_a_global_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Methods that call gcn_norm call one that keeps its results, and go on reading their module."""
    (tmp_path / "users_layers.py").write_text(
        "import torch_geometric.nn as pyg\n"
        "from torch_geometric.nn.conv.gcn_conv import gcn_norm\n"
        "FACTOR = 1.0\n"
        "CALLS = 0\n"
        "class Layer(pyg.MessagePassing):\n"
        "    def forward(self, x, edge_index):\n"
        "        global CALLS\n"
        "        CALLS += 1\n"
        "        edge_index, w = gcn_norm(edge_index, num_nodes=x.shape[0])\n"
        "        return FACTOR * self.propagate(edge_index, x=x, w=w)\n"
        "    def message(self, x_j, w):\n"
        "        return w.view(-1, 1) * x_j\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    users: Any = __import__("users_layers")
    x, edges, _ = inputs()
    plain, ours = both(users.Layer())
    for factor in (1.0, 2.0, 1.0):
        users.FACTOR = factor
        close(ours(x, edges), plain(x, edges))
    assert used(ours)
    assert users.CALLS == 6
    # A file that changed since it was imported no longer says what the code does.
    fresh = type("Fresh", (users.Layer,), {})
    (tmp_path / "users_layers.py").write_text("\n" * 40)
    from gnnsparse.interop.pyg import message

    message._definitions.clear()
    assert not interop.report(interop.accelerate(fresh())).ready


@pytest.mark.parametrize(
    ("compiles", "cases"), [(0.0, 150), pytest.param(1.0, 6, marks=pytest.mark.slow)], ids=["no", "yes"]
)
def test_random_messages(compiles: float, cases: int) -> None:
    """They test types, read attributes and globals, draw numbers and have effects; the fuzzer draws more."""
    ran = 0
    for i in range(cases):
        draw = Draw(f"compiled-{i}" if compiles else f"test-{i}")
        ran += messages.compare(Trial(draw, Counts()), compiles) > 0
    assert compiles or ran > cases / 5
