"""HeteroConv and `to_hetero` models, whose relations are joined in products."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

import gnnsparse
from gnnsparse.interop.pyg import graphs, hetero
from tests.helpers import copies_of
from tests.interop.pyg_cases import both, close, interop, judge, left, pyg, used

WIDTH, OUT = 6, 5
#: "d" has no nodes; "e" is no target; the last two relations have no edges.
COUNTS = {"a": 30, "b": 20, "c": 9, "d": 0, "e": 7}
RELATIONS = [
    ("a", "to", "b"), ("b", "back", "a"), ("a", "self", "a"), ("c", "of", "b"), ("b", "in", "c"),
    ("a", "twice", "b"), ("e", "to", "a"), ("a", "none", "c"), ("d", "to", "a"),
]  # fmt: skip
X = torch.randn(sum(COUNTS.values()), WIDTH, generator=torch.Generator().manual_seed(0))
Edges = dict[tuple[str, str, str], torch.Tensor]


def edges_of(seed: int = 0, count: int = 90) -> Edges:
    """Of many edges between few nodes, some are repeated."""
    draw, found = torch.Generator().manual_seed(seed), {}
    for relation in RELATIONS:
        sizes = [COUNTS[kind] for kind in relation[::2]]
        edges = 0 if relation in RELATIONS[-2:] else count
        ends = [torch.randint(max(size, 1), (edges,), generator=draw) for size in sizes]
        found[relation] = torch.stack(ends)
    return found


EDGES = edges_of()


def of_kinds(x: torch.Tensor, widths: dict[str, int] | None = None) -> dict[str, torch.Tensor]:
    parts = zip(COUNTS, x.split(list(COUNTS.values())), strict=True)
    return {kind: part[:, : (widths or {}).get(kind, WIDTH)] for kind, part in parts}


def joined(found: dict[str, torch.Tensor]) -> torch.Tensor:
    return torch.cat([found[kind].flatten() for kind in sorted(found)])


def layer_of(make: Callable[[Any], Any], aggr: str | None = "sum", relations: Any = None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nodes of type "e" are no targets
        return pyg.HeteroConv({relation: make(relation) for relation in relations or RELATIONS}, aggr)


def sage(_: Any = None, out: int = OUT, **options: Any) -> Any:
    return pyg.SAGEConv((WIDTH, WIDTH), out, **options)


_MIXED: dict[str, Callable[[], Any]] = {
    "to": sage,
    "back": lambda: pyg.GraphConv((WIDTH, WIDTH), OUT),
    "self": lambda: pyg.GCNConv(WIDTH, OUT),
    "of": lambda: pyg.GINConv(torch.nn.Linear(WIDTH, OUT), train_eps=True),
    "in": lambda: sage(normalize=True),
    "twice": lambda: sage(aggr="sum", root_weight=False, bias=False),
    "none": lambda: pyg.GraphConv((WIDTH, WIDTH), OUT, aggr="mean"),
}
_WIDTHS = {"a": 6, "b": 4, "c": 3, "d": 2, "e": 6}
#: What makes the layer of a relation, with features of these widths, and how many relations are joined.
CASES: dict[str, tuple[Callable[[Any], Any], dict[str, int] | None, str]] = {
    "means": (sage, None, "9 relations at once"),
    "few outputs": (lambda r: sage(out=2), None, "9 relations at once"),
    "many outputs": (lambda r: sage(out=20), None, "9 relations at once"),
    "mixed": (lambda r: _MIXED[r[1]](), None, "7 relations at once, fp32 and spmm, 2 relations"),
    "other widths": (
        lambda r: pyg.SAGEConv((_WIDTHS[r[0]], _WIDTHS[r[2]]), 7), _WIDTHS,
        "5 relations at once, fp32 and spmm, 2 relations",
    ),
}  # fmt: skip


@pytest.mark.parametrize("aggr", ["sum", "mean", "max", "cat", None])
@pytest.mark.parametrize("name", CASES)
def test_relations_at_once(name: str, aggr: str | None) -> None:
    """Outputs and all gradients, where float64 judges; also of a hidden layer, whose features need some."""
    torch.manual_seed(0)
    make, widths, note = CASES[name]
    theirs, ours = both(layer_of(make, aggr))

    def call(model: Any, x: torch.Tensor, _: Any) -> torch.Tensor:
        return joined(model(of_kinds(x, widths), EDGES))

    judge(theirs, ours, X, X, call)
    with torch.no_grad():
        close(call(ours, X, X), call(theirs, X, X))
    assert interop.report(ours).rows[0].calls
    assert all(kind.startswith("spmm") for kind in used(ours)), used(ours)
    if name != "other widths" or aggr == "sum":
        assert any(note in what for what in interop.report(ours).rows[0].calls), used(ours)


@pytest.mark.parametrize("aggr", ["sum", "mean", "max"])
def test_a_layer_is_one_product(aggr: str) -> None:
    theirs, ours = both(torch.nn.ModuleList([layer_of(lambda r: sage(out=WIDTH), aggr) for _ in range(2)]))

    def run(model: Any) -> torch.Tensor:
        hidden = model[0](of_kinds(X), EDGES)
        return joined(model[1]({"e": of_kinds(X)["e"], **hidden, "d": of_kinds(X)["d"]}, EDGES))

    with (
        mock.patch.object(hetero, "spmm", wraps=gnnsparse.spmm) as products,
        mock.patch("gnnsparse.interop.pyg.aggregate.spmm", wraps=gnnsparse.spmm) as others,
        mock.patch("gnnsparse.nn.adjacency.prepare", wraps=gnnsparse.prepare) as prepared,
    ):
        for _ in range(3):
            close(run(ours), run(theirs))
    assert products.call_count == 6
    assert others.call_count == 0
    assert prepared.call_count <= 2
    assert used(ours) == {"spmm, 9 relations at once, fp32": 3}


def test_weights_of_edges_and_missing_relations() -> None:
    """Weights of some relations, with gradients, of which those without are cached."""
    theirs, ours = both(layer_of(lambda r: pyg.GraphConv((WIDTH, WIDTH), OUT, aggr="mean")))
    relations = [RELATIONS[i] for i in (2, 0, 5, 7)]
    index = {relation: EDGES[relation] for relation in relations}
    weights = {relation: torch.rand(index[relation].shape[1]) for relation in relations[:2]}
    for needs in (True, False):
        found = []
        for model in (theirs, ours):
            given = {relation: w.clone().requires_grad_(needs) for relation, w in weights.items()}
            out = joined(model(of_kinds(X), index, edge_weight_dict=given))
            found.append(
                [out.detach(), *torch.autograd.grad(out.square().sum(), list(given.values()))]
                if needs
                else [out]
            )
        for got, want in zip(*found, strict=True):
            close(got, want)
    assert used(ours) == {"spmm, 4 relations at once, fp32": 2}
    assert list(ours(of_kinds(X), index)) == list(theirs(of_kinds(X), index))


def test_changes_of_edges_are_noticed() -> None:
    index = edges_of(1)
    theirs, ours = both(layer_of(sage))
    for _ in range(2):
        close(joined(ours(of_kinds(X), index)), joined(theirs(of_kinds(X), index)))
        index[RELATIONS[3]][0, :40] = 2
    index[RELATIONS[0]] = index[RELATIONS[0]][:, :50].clone()
    close(joined(ours(of_kinds(X), index)), joined(theirs(of_kinds(X), index)))
    assert used(ours) == {"spmm, 9 relations at once, fp32": 3}


def gat(relation: Any, kind: str = "GATConv", **options: Any) -> Any:
    if kind == "GATConv":
        options["add_self_loops"] = relation[0] == relation[2]
    return getattr(pyg, kind)((WIDTH, WIDTH), OUT, heads=2, **options)


def _one_width(relation: Any) -> Any:
    """Relations with one map for sources and targets, and with two."""
    return gat(relation) if relation[1] != "self" else pyg.GATConv(WIDTH, OUT, heads=2)


ATTENTIONS: dict[str, Callable[[Any], Any]] = {
    "GATConv": _one_width,
    "GATConv of means": lambda r: gat(r, concat=False, residual=True, negative_slope=0.4),
    "GATConv without biases": lambda r: gat(r, bias=False),
    "TransformerConv": lambda r: gat(r, "TransformerConv"),
    "TransformerConv with gates": lambda r: gat(r, "TransformerConv", beta=True, concat=False),
}


@pytest.mark.parametrize("aggr", ["sum", "mean", "min", "cat"])
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_at_once(name: str, aggr: str) -> None:
    """The softmax is over the edges of a relation; self-loops are those of one."""
    torch.manual_seed(0)
    theirs, ours = both(layer_of(ATTENTIONS[name], aggr))
    assert {row.runs_on for row in interop.report(ours).rows} == {"graph_attention"}

    def call(model: Any, x: torch.Tensor, _: Any) -> torch.Tensor:
        return joined(model(of_kinds(x), EDGES))

    with mock.patch("gnnsparse.nn.edges.graph_attention", wraps=gnnsparse.graph_attention) as launched:
        judge(theirs, ours, X, X, call)
    assert launched.call_count == 1
    assert used(ours) == {"graph_attention, 9 relations at once, fp32": 1}
    with torch.autocast("cpu", torch.bfloat16):
        got, want = call(ours, X, X), call(theirs, X, X)
    assert got.dtype == torch.bfloat16  # as alone, where GATConv of PyG has another
    assert (got - want).float().norm() < 0.03 * want.float().norm()


def test_attention_that_differs_runs_by_itself() -> None:
    """Other heads, features of edges, and dropout, which the layers of a launch share."""
    makes = [
        gat, gat, lambda r: gat(r, edge_dim=3), lambda r: gat(r, negative_slope=0.1),
        lambda r: gat(r, "GATv2Conv", add_self_loops=False), lambda r: gat(r, dropout=0.5), sage,
    ]  # fmt: skip
    relations = RELATIONS[: len(makes)]
    layers = dict(zip(relations, makes, strict=True))
    theirs, ours = both(
        layer_of(
            lambda r: pyg.SAGEConv((WIDTH, WIDTH), 2 * OUT) if layers[r] is sage else layers[r](r),
            relations=relations,
        )
    )
    attr = {relations[2]: torch.randn(90, 3)}
    theirs.eval(), ours.eval()
    close(*(joined(model(of_kinds(X), EDGES, edge_attr_dict=attr)) for model in (ours, theirs)))
    (what,) = interop.report(ours).rows[0].calls
    assert what.startswith(
        "graph_attention, 3 relations at once, fp32; by themselves "
    )  # of no dropout in eval()
    for part in ("a__self__a: edges have features", "b__in__c: GATv2Conv is not joined", "no other relation"):
        assert part in what
    ours.train()
    ours(of_kinds(X), EDGES)
    assert any(what.startswith("graph_attention, 3 relations") for what in interop.report(ours).rows[0].calls)
    assert not torch.equal(ours(of_kinds(X), EDGES)["b"], ours(of_kinds(X), EDGES)["b"])


def _double(module: Any) -> None:
    module.register_forward_hook(lambda module, inputs, output: 2 * output)


def _project(layer: Any) -> None:
    layer.project, layer.lin = True, pyg.Linear(WIDTH, WIDTH)


#: What changes the layer of the first relation, so that it runs by itself, and a part of the reason.
CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a hook": (_double, "it has hooks"),
    "a hook of a map": (lambda layer: _double(layer.lin_l), "`lin_l` is no plain linear layer"),
    "a hook of messages": (
        lambda layer: layer.register_message_forward_hook(lambda module, inputs, output: 2 * output), "hooks"
    ),
    "a message": (lambda layer: setattr(layer, "message", lambda x_j: 2 * x_j), "replaced"),
    "an aggregation": (
        lambda layer: setattr(layer, "aggr_module", pyg.aggr.MaxAggregation()), "MaxAggregation"
    ),
    "a weight that is computed": (
        lambda layer: torch.nn.utils.parametrizations.weight_norm(layer.lin_r), "`lin_r` is no plain"
    ),
    "a map before": (_project, "project"),
}  # fmt: skip


@pytest.mark.parametrize("aggr", ["sum", "max"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_layer_that_was_changed_runs_by_itself(name: str, aggr: str) -> None:
    torch.manual_seed(0)
    theirs = layer_of(sage, aggr)
    ours = interop.accelerate(copy.deepcopy(theirs), convert="always")
    change, why = CHANGES[name]
    torch.manual_seed(0)
    change(theirs.convs[RELATIONS[0]])
    torch.manual_seed(0)
    change(ours.convs[RELATIONS[0]])
    close(joined(ours(of_kinds(X), EDGES)), joined(theirs(of_kinds(X), EDGES)))
    (what,) = interop.report(ours).rows[0].calls
    assert what.startswith("spmm, 8 relations at once, fp32; by themselves a__to__b: ")
    assert why in what


def test_what_runs_relation_by_relation() -> None:
    """Other dtypes and adjacencies, tracing, and graphs that do not pay; all with PyG's own results."""
    from torch_geometric import EdgeIndex

    theirs, ours = both(layer_of(sage))
    wide = {kind: x.double() for kind, x in of_kinds(X).items()}
    as_index = {r: EdgeIndex(e, sparse_size=(COUNTS[r[0]], COUNTS[r[2]])) for r, e in EDGES.items()}
    close(joined(ours(of_kinds(X), as_index)), joined(theirs(of_kinds(X), as_index)))
    assert "EdgeIndex" in left(ours)
    assert torch.equal(joined(ours.double()(wide, EDGES)), joined(theirs.double()(wide, EDGES)))
    assert "features of dtype torch.float64" in left(ours)
    row = interop.report(ours).rows[0]
    assert (row.runs_on, row.kind) == ("PyG", "HeteroConv")
    assert "relation by relation" in row.why
    index = {**EDGES, RELATIONS[0]: EDGES[RELATIONS[0]] + 100}
    with pytest.raises(IndexError):
        ours.float()(of_kinds(X), index)
    lazy = interop.accelerate(layer_of(lambda r: pyg.SAGEConv((-1, -1), OUT)), convert="always")
    close(joined(lazy(of_kinds(X), EDGES)), joined(lazy(of_kinds(X), EDGES)))
    assert "no sizes yet" in left(lazy)
    capture = SimpleNamespace(takes=lambda device: True, is_capturing=lambda: True)
    with mock.patch.object(graphs, "path", return_value=capture):
        lazy(of_kinds(X), edges_of(5))
    assert "a CUDA graph is captured" in left(lazy)
    slow = interop.accelerate(layer_of(sage))
    with mock.patch.object(graphs, "_OF_CPU", graphs.replace(graphs._OF_CPU, graph_us=1e9)):
        slow(of_kinds(X), edges_of(7))
    assert "pays after" in left(slow)


def test_attention_stays_as_it_was() -> None:
    """A HeteroConv of layers that are not joined has no row in the report."""
    _, ours = both(layer_of(lambda r: pyg.GATv2Conv(WIDTH, OUT, add_self_loops=False)))
    assert type(ours) is pyg.HeteroConv
    assert len(interop.report(ours).rows) == len(RELATIONS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast(dtype: torch.dtype) -> None:
    for make in (sage, lambda r: _MIXED[r[1]]()):
        theirs, ours = both(layer_of(make))
        with torch.autocast("cpu", dtype):
            got, want = ours(of_kinds(X), EDGES), theirs(of_kinds(X), EDGES)
        exact = joined(theirs(of_kinds(X), EDGES))
        assert {kind: y.dtype for kind, y in got.items()} == {kind: y.dtype for kind, y in want.items()}
        assert (joined(got).float() - exact).norm() < 0.03 * exact.norm()
        assert any("at once" in what for what in used(ours))


class Net(torch.nn.Module):
    """A model of one kind of nodes."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__()
        self.first, self.rest = make(), torch.nn.ModuleList([make()])

    # Without annotations, which PyG makes such that torch.fx can't pickle them.
    def forward(self, x, edge_index):  # type: ignore[no-untyped-def]
        return self.rest[0](self.first(x, edge_index).relu(), edge_index)


_KINDS = ["a", "b", "c"]
_AMONG = [relation for relation in RELATIONS if {relation[0], relation[2]} <= {*_KINDS}]


def hetero_model(aggr: str = "sum", make: Callable[[], Any] = lambda: sage(out=WIDTH)) -> tuple[Any, Any]:
    return both(pyg.to_hetero(Net(make), (_KINDS, _AMONG), aggr))


def run(model: Any, x: torch.Tensor = X, _: Any = None) -> torch.Tensor:
    given = {kind: part for kind, part in of_kinds(x).items() if kind in _KINDS}
    return joined(model(given, {relation: EDGES[relation] for relation in _AMONG}))


@pytest.mark.parametrize("aggr", ["sum", "mean", "max", "mul"])
def test_to_hetero(aggr: str) -> None:
    theirs, ours = hetero_model(aggr)
    judge(theirs, ours, X, X, run)
    rows = {row.name: row for row in interop.report(ours).rows}
    assert rows["first"].calls == rows["rest.0"].calls == {"spmm, 7 relations at once, fp32": 1}
    with mock.patch.object(hetero, "spmm", wraps=gnnsparse.spmm) as products:
        run(ours)
    assert products.call_count == 2
    assert not [node for node in ours.graph.nodes if node.target in (torch.add, torch.div)]


@pytest.mark.parametrize("aggr", ["sum", "mean", "max"])
def test_copies_files_and_restored_models(aggr: str) -> None:
    """The parameters and their names are what they were; what is restored has PyG's bits."""
    theirs, ours = hetero_model(aggr)
    want = run(theirs)
    names = [name for name, _ in theirs.named_parameters()]
    for other in (*copies_of(ours), interop.accelerate(ours, convert="always")):
        assert [name for name, _ in other.named_parameters()] == names
        other.load_state_dict(theirs.state_dict())
        close(run(other), want)
        assert used(other) == {"spmm, 7 relations at once, fp32": 1}
        back = interop.restore(copy.deepcopy(other))
        assert torch.equal(run(back), want)
        assert not interop.report(back).accelerated
        assert type(back.first) in (torch.nn.ModuleDict, torch.nn.Module)
    conv = layer_of(sage)
    for other in copies_of(interop.accelerate(copy.deepcopy(conv), convert="always")):
        close(joined(other(of_kinds(X), EDGES)), joined(conv(of_kinds(X), EDGES)))
        assert used(other) == {"spmm, 9 relations at once, fp32": 1}
        assert type(interop.restore(other)) is pyg.HeteroConv


def test_compiled() -> None:
    """What torch.compile traces is multiplied relation by relation."""
    for model in (hetero_model()[1], hetero_model("mean")[1]):
        want = run(model)
        torch._dynamo.reset()
        close(run(torch.compile(model, backend="aot_eager", fullgraph=True)), want)
    _, ours = both(layer_of(sage, relations=_AMONG))
    compiled = torch.compile(ours, backend="aot_eager", fullgraph=True)
    close(run(compiled), run(ours))
    torch._dynamo.reset()


def test_graphs_that_use_what_is_added_are_not_changed() -> None:
    """A model whose code calls a layer twice, or needs the output of one for the arguments of another."""

    class Twice(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = sage(out=WIDTH)

        def forward(self, x: Any, edge_index: Any) -> Any:
            return self.conv(self.conv(x, edge_index).relu(), edge_index)

    theirs, ours = both(pyg.to_hetero(Twice(), (_KINDS, _AMONG)))
    close(run(ours), run(theirs))
    assert not any("at once" in what for what in used(ours))


@pytest.mark.parametrize("make", [sage, gat], ids=["SAGEConv", "GATConv"])
def test_targets_of_an_empty_type(make: Callable[[Any], Any]) -> None:
    relations = [("a", "of", "d"), ("a", "to", "b"), ("d", "in", "b"), ("c", "of", "d")]
    index = {
        r: EDGES["a", "to", "b"] if r[2] == "b" and r[0] == "a" else EDGES["d", "to", "a"] for r in relations
    }
    for aggr in ("sum", "max"):
        theirs, ours = both(layer_of(make, aggr, relations))
        for features in (of_kinds(X), of_kinds(X.clone().requires_grad_())):
            got, want = ours(features, index), theirs(features, index)
            assert {kind: y.shape for kind, y in got.items()} == {kind: y.shape for kind, y in want.items()}
            close(joined(got), joined(want))
        assert all("4 relations at once" in what for what in used(ours)), used(ours)
