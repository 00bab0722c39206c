"""DGL's graphs become ours, and its layers compute the same on our kernels: outputs and all gradients."""

from __future__ import annotations

import copy
import gc
import itertools
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse.interop.dgl import accelerate, from_dgl, graphs, import_dgl, report, restore
from tests.helpers import agnn_beta_scale, assert_same_results, copies_of
from tests.interop.dgl_graphs import dgl_or_skip, homogeneous, multigraph, operands

dgl = dgl_or_skip()
import dgl.function as fn  # noqa: E402
import dgl.nn.pytorch as dnn  # noqa: E402


def compare(layer: torch.nn.Module, graph: Any, inputs: list[torch.Tensor], call: Callable[..., Any]) -> None:
    """The layer accelerated, as it is, and in float64; `call` computes outputs of (layer, graph, *inputs)."""
    ours, scales = accelerate(copy.deepcopy(layer)), None
    if isinstance(layer, dnn.AGNNConv):
        targets = inputs[-1][: graph.num_dst_nodes()]
        scale = agnn_beta_scale(inputs[0], layer.beta.item(), _dense(graph), targets)
        scales = [None] * (1 + len(inputs)) + [scale]

    def of(module: torch.nn.Module, *given: torch.Tensor) -> torch.Tensor:
        return call(module, graph, *given)

    got, again = (assert_same_results(ours, layer, of, inputs, scales=scales) for _ in range(2))
    assert all(map(torch.equal, again, got))
    rows = report(ours).accelerated
    assert rows
    assert all(row.reason == "" for row in rows), str(report(ours))


def blocks_of_a_sampler() -> Iterator[Any]:
    dgl.seed(0)
    sampler = dgl.dataloading.NeighborSampler([3, 3])
    graph = homogeneous(dgl, 40, 200)
    loader = dgl.dataloading.DataLoader(graph, torch.arange(40), sampler, batch_size=16)
    return (block for _, _, blocks in loader for block in blocks)


def layers() -> Iterator[Any]:
    torch.manual_seed(0)
    for norm, (inside, outside), weight in itertools.product(
        ("both", "right", "left", "none"), ((6, 3), (3, 6)), (True, False)
    ):
        if weight or inside == 6:
            made = dnn.GraphConv(
                inside, outside, norm=norm, weight=weight, bias=weight, allow_zero_in_degree=True,
                activation=torch.tanh if norm == "left" else None,
            )  # fmt: skip
            yield pytest.param(made, inside, id=f"GraphConv-{norm}-{inside}-{weight}")
    for kind, (inside, outside) in itertools.product(("mean", "gcn", "pool"), ((6, 3), (3, 6))):
        made = dnn.SAGEConv(inside, outside, kind, norm=torch.nn.LayerNorm(outside), activation=torch.tanh)
        yield pytest.param(made, inside, id=f"SAGEConv-{kind}-{inside}")
    for kind in ("sum", "mean", "max"):
        made = dnn.GINConv(torch.nn.Linear(5, 4), kind, init_eps=0.3, learn_eps=True, activation=torch.tanh)
        yield pytest.param(made, 5, id=f"GINConv-{kind}")
    yield pytest.param(dnn.GINConv(None, "sum"), 5, id="GINConv-alone")


def attention_layers() -> Iterator[Any]:
    torch.manual_seed(0)
    for residual, bias, inside in ((False, True, 5), (True, True, 5), (True, False, 12), (False, False, 5)):
        for kind in (dnn.GATConv, dnn.GATv2Conv):
            made = kind(
                inside, 4, 3, residual=residual, bias=bias, negative_slope=0.1, allow_zero_in_degree=True,
                activation=torch.tanh if bias else None,
            )  # fmt: skip
            yield pytest.param(made, inside, id=f"{kind.__name__}-{residual}-{bias}")
    made = dnn.GATv2Conv(5, 4, 3, share_weights=True, allow_zero_in_degree=True)
    yield pytest.param(made, 5, id="GATv2Conv-shared")
    yield pytest.param(dnn.AGNNConv(0.7, allow_zero_in_degree=True), 5, id="AGNNConv")


@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize(("layer", "width"), [*layers(), *attention_layers()])
def test_a_homogeneous_graph(layer: torch.nn.Module, width: int, loops: bool) -> None:
    graph = homogeneous(dgl, 30, 90, loops=loops)
    compare(layer, graph, [torch.randn(30, width)], lambda module, g, x: module(g, x))


@pytest.mark.parametrize(
    ("sizes", "small"), [((20, 15, 60), False), ((1, 4, 3), True), ((4, 1, 2), False)], ids=str
)
@pytest.mark.parametrize(("layer", "width"), [*layers(), *attention_layers()])
def test_a_bipartite_graph(
    layer: torch.nn.Module, width: int, sizes: tuple[int, int, int], small: bool
) -> None:
    graph = multigraph(dgl, *sizes)
    graph = graph.int() if small else graph
    inputs = [torch.randn(sizes[0], width), torch.randn(sizes[1], width)]
    if isinstance(layer, dnn.GraphConv):  # it has no use for the features of targets
        compare(layer, graph, inputs[:1], lambda module, g, x: module(g, (x, inputs[1].to(x))))
        compare(layer, graph, inputs[:1], lambda module, g, x: module(g, x))
    else:
        compare(layer, graph, inputs, lambda module, g, x, y: module(g, (x, y)))


@pytest.mark.parametrize(("layer", "width"), [*layers(), *attention_layers()])
def test_a_graph_without_edges(layer: torch.nn.Module, width: int) -> None:
    """DGL gives the gradient of a maximum of nothing to the first source; ours is 0."""
    graph, given = multigraph(dgl, 4, 3, 0), (torch.randn(4, width), torch.randn(3, width))
    torch.testing.assert_close(accelerate(copy.deepcopy(layer))(graph, given), layer(graph, given))


@pytest.mark.parametrize(("layer", "width"), [*layers(), *attention_layers()])
@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
def test_blocks_of_a_sampler(layer: torch.nn.Module, width: int) -> None:
    for block in blocks_of_a_sampler():
        compare(layer, block, [torch.randn(block.num_src_nodes(), width)], lambda m, g, x: m(g, x))


@pytest.mark.parametrize("column", [True, False])
@pytest.mark.parametrize(("layer", "width"), [*layers()])
def test_weights_of_edges_get_gradients(layer: torch.nn.Module, width: int, column: bool) -> None:
    graph = homogeneous(dgl, 30, 90)
    if getattr(layer, "_aggre_type", getattr(layer, "_aggregator_type", "")) in ("pool", "max"):
        graph = dgl.to_simple(graph)  # the weight of each repeat has to be kept apart
    weight = torch.rand(graph.num_edges()) + 0.5
    inputs = [torch.randn(30, width), weight[:, None] if column else weight]
    compare(layer, graph, inputs, lambda module, g, x, w: module(g, x, edge_weight=w))


@pytest.mark.parametrize("kind", [dnn.GATConv, dnn.GATv2Conv])
def test_the_weights_of_attention(kind: Any) -> None:
    layer, graph = kind(5, 4, 3, allow_zero_in_degree=True), homogeneous(dgl, 30, 90)
    x = torch.randn(30, 5)

    def both(module: torch.nn.Module, g: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.flatten() for part in module(g, x, get_attention=True)])

    compare(layer, graph, [x], both)
    out, weights = accelerate(layer)(graph, x, get_attention=True)
    assert weights.shape == (graph.num_edges(), 3, 1)
    assert torch.equal(out, layer(graph, x))


def test_an_external_weight_and_features_of_two_widths() -> None:
    layer, graph = dnn.GraphConv(5, 4, weight=False, bias=False), homogeneous(dgl, 30, 90)
    inputs = [torch.randn(30, 5), torch.randn(5, 4)]
    compare(layer, graph, inputs, lambda module, g, x, w: module(g, x, weight=w))
    for kind in (dnn.GATConv, dnn.GATv2Conv):
        layer = kind((5, 7), 4, 3, residual=True, allow_zero_in_degree=True)
        inputs = [torch.randn(20, 5), torch.randn(15, 7)]
        compare(layer, multigraph(dgl, 20, 15, 60), inputs, lambda module, g, x, y: module(g, (x, y)))


def test_a_heterograph_s_layers() -> None:
    rng = torch.Generator().manual_seed(0)
    ends = [(torch.randint(0, n, (50,), generator=rng), torch.randint(0, m, (50,), generator=rng))
            for n, m in ((9, 7), (7, 9), (9, 9))]  # fmt: skip
    graph = dgl.heterograph({("u", "r", "i"): ends[0], ("i", "s", "u"): ends[1], ("u", "t", "u"): ends[2]},
                            {"u": 9, "i": 7})  # fmt: skip
    layer = dnn.HeteroGraphConv(
        {"r": dnn.SAGEConv(4, 3, "mean"), "s": dnn.GraphConv(4, 3, allow_zero_in_degree=True),
         "t": dnn.SAGEConv(4, 3, "pool")}, aggregate="sum",
    )  # fmt: skip

    def run(module: torch.nn.Module, g: Any, u: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        out = module(g, {"u": u, "i": i})
        return torch.cat([out["u"].flatten(), out["i"].flatten()])

    compare(layer, graph, [torch.randn(9, 4), torch.randn(7, 4)], run)
    assert [row.uses for row in report(accelerate(layer)).rows] == ["spmm", "spmm", "spmm"]


def step(layer: Any, graph: Any, x: torch.Tensor, bits: int) -> None:
    """A GINConv of a low precision differs from the exact one, by so many bits at most."""
    exact = _dense(graph).double() @ x.double() + x.double()
    assert 0 < (layer(graph, x).double() - exact).norm() <= 2**-bits * exact.norm()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_precision(dtype: torch.dtype) -> None:
    """The dtype of the features decides, or that of autocast, or what was asked for."""
    graph, x = homogeneous(dgl, 30, 90), torch.randn(30, 6)
    layer, bits = accelerate(dnn.GINConv(None, "sum")), 9 if dtype == torch.float16 else 6
    step(layer, graph, x.to(dtype), bits)
    assert layer(graph, x.to(dtype)).dtype == torch.result_type(layer.eps, x.to(dtype))
    assert [a.precision.storage for a in operands(layer)] == [dtype]
    with torch.autocast("cpu", dtype):
        step(layer, graph, x, bits)
    assert [a.precision.storage for a in operands(layer)] == [dtype]
    step(accelerate(layer, precision="fp16" if dtype == torch.float16 else "bf16"), graph, x, bits + 1)


def _dense(graph: Any) -> torch.Tensor:
    source, target = graph.edges()
    shape = graph.num_dst_nodes(), graph.num_src_nodes()
    return torch.zeros(shape).index_put_((target.long(), source.long()), torch.ones(1), accumulate=True)


def test_dropout_of_weights_keeps_the_mean() -> None:
    graph, x = homogeneous(dgl, 30, 90), torch.randn(30, 5)
    layer = accelerate(dnn.GATConv(5, 4, 2, attn_drop=0.5))
    kept = layer.eval()(graph, x)
    layer.train()
    mean = torch.stack([layer(graph, x) for _ in range(400)]).mean(0)
    # The standard deviation of a mean of 400 is at most that of one draw / 20; values are below 4.
    assert (mean - kept).abs().max() < 1
    assert not torch.equal(layer(graph, x), layer(graph, x))


@pytest.mark.parametrize("make", [lambda: dnn.GraphConv(5, 4), lambda: dnn.GATConv(5, 4, 2)])
def test_errors_are_dgl_s(make: Callable[[], Any]) -> None:
    layer, graph = make(), homogeneous(dgl, 30, 90, loops=False)
    x = torch.randn(30, 5)
    with pytest.raises(dgl.DGLError) as theirs:
        layer(graph, x)
    accelerate(layer)
    with pytest.raises(dgl.DGLError) as ours:
        layer(graph, x)
    assert str(ours.value) == str(theirs.value)
    assert "without incoming edges" in str(report(layer))
    layer.set_allow_zero_in_degree(True)
    layer(graph, x)
    assert report(layer).rows[0].reason == ""


@pytest.mark.parametrize(
    ("make", "x", "of_edges"),
    [
        (lambda: dnn.GraphConv(5, 4), torch.randn(30, 2, 5), None),
        (lambda: dnn.GINConv(None, "sum"), torch.randn(30, 5).double(), None),
        (lambda: dnn.GATConv(5, 4, 2), torch.randn(30, 5), ()),
        (lambda: dnn.GINConv(None, "sum"), torch.randn(30, 5), (5,)),
        (lambda: dnn.GINConv(None, "max"), torch.randn(30, 5), (1,)),  # of repeated edges
    ],
    ids=["3d", "float64", "weights of attention", "weights with features", "a maximum"],
)
def test_what_is_not_covered_is_dgl_s(make: Callable[[], Any], x: torch.Tensor, of_edges: Any) -> None:
    layer, graph = make(), homogeneous(dgl, 30, 90)
    weights = [] if of_edges is None else [torch.rand(graph.num_edges(), *of_edges)]
    right = layer(graph, x, *weights)
    accelerate(layer)
    assert torch.equal(layer(graph, x, *weights), right)
    row = report(layer).rows[0]
    assert row.uses
    assert row.reason
    assert row.reason in str(report(layer))


def test_wrong_features_are_dgl_s_error() -> None:
    layer, graph = accelerate(dnn.GraphConv(5, 4)), homogeneous(dgl, 30, 90)
    with pytest.raises(RuntimeError, match="must match the size"):
        layer(graph, torch.randn(29, 5))
    assert "another number of nodes" in str(report(layer))
    with pytest.raises(ValueError, match="values to unpack"):
        layer(graph, (torch.randn(30, 5),) * 3)
    with pytest.raises(TypeError):
        layer(graph)


class Model(torch.nn.Module):
    """Layers of every kind that the report tells apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first = dnn.GraphConv(5, 4)
        self.left = dnn.ChebConv(4, 4, 2)
        self.lstm = dnn.SAGEConv(4, 4, "lstm")
        self.own = Derived(4, 4)
        self.last = torch.nn.Linear(4, 2)

    def forward(self, graph: Any, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.own(graph, self.first(graph, x).relu()))


class Derived(dnn.GraphConv):
    def forward(self, graph: Any, feat: Any) -> Any:
        return 2 * super().forward(graph, feat)


def test_the_report_says_what_runs_where(caplog: pytest.LogCaptureFixture) -> None:
    model = Model()
    assert report(model).accelerated == ()
    assert "has not been accelerated" in str(report(model))
    with caplog.at_level("INFO", logger="gnnsparse.interop"):
        assert accelerate(model) is model
    assert str(report(model)) in caplog.text
    rows = {row.name: row for row in report(model).rows}
    assert list(rows) == ["first", "left", "lstm", "own"]
    assert rows["first"].uses == "spmm"
    assert "no counterpart" in rows["left"].reason
    assert "order of the edges" in rows["lstm"].reason
    assert "subclass of DGL's GraphConv" in rows["own"].reason


def test_a_model_stays_itself_and_can_be_restored() -> None:
    model, graph, x = Model(), homogeneous(dgl, 30, 90), torch.randn(30, 5)
    text, state, before = repr(model), model.state_dict(), model(graph, x)
    kinds = [type(module) for module in model.modules()]
    accelerate(model)
    assert isinstance(model.first, dnn.GraphConv)
    assert repr(model) == text
    assert model.state_dict().keys() == state.keys()
    seen: list[Any] = []
    handle = model.first.register_forward_hook(lambda *arguments: seen.append(arguments))
    accelerated = model(graph, x)
    assert len(seen) == 1
    handle.remove()
    assert restore(model) is model
    assert [type(module) for module in model.modules()] == kinds
    assert torch.equal(model(graph, x), before)
    torch.testing.assert_close(accelerated, before)


def test_copies_and_pickles_stay_accelerated() -> None:
    model, graph, x = accelerate(Model(), precision="tf32"), homogeneous(dgl, 30, 90), torch.randn(30, 5)
    right = model(graph, x)
    for other in copies_of(model):
        assert torch.equal(other(graph, x), right)
        assert report(other) == report(model)
        assert other.first.gnnsparse_options.precision == "tf32"


def test_what_users_add_to_a_layer_is_dgl_s() -> None:
    """Parametrised weights, and hooks on modules whose place our kernels take."""
    graph = homogeneous(dgl, 12, 40)
    x = torch.randn(graph.num_nodes(), 5)
    seen: list[int] = []

    def hook(*_: Any) -> None:
        seen.append(1)

    for kind, change in [
        (lambda: dnn.GraphConv(5, 4), lambda m: torch.nn.utils.parametrize.register_parametrization(
            m, "weight", torch.nn.Tanh())),
        (lambda: dnn.GATConv(5, 4, 2), lambda m: m.attn_drop.register_forward_hook(hook)),
        (lambda: dnn.GATv2Conv(5, 4, 2), lambda m: m.leaky_relu.register_full_backward_hook(hook)),
    ]:  # fmt: skip
        plain = kind()
        ours = accelerate(copy.deepcopy(plain))
        for layer in (plain, ours):
            change(layer)
        given = x.clone().requires_grad_()
        want, got = plain(graph, given), ours(graph, given)
        assert torch.equal(got, want)
        (want.sum() + got.sum()).backward()
        assert "DGL in the last call" in str(report(ours))
        restore(ours)
        assert torch.equal(ours(graph, x), want)
    assert len(seen) >= 4


# Graphs, and what is kept of them.


def message_sums(graph: Any, x: torch.Tensor, weight: torch.Tensor | None, etype: Any = None) -> torch.Tensor:
    """The sums over incoming edges that DGL's update_all computes."""
    with graph.local_scope():
        part = graph if etype is None else graph[etype]
        part.srcdata["x"] = x
        if weight is None:
            part.update_all(fn.copy_u("x", "m"), fn.sum("m", "y"))
        else:
            part.edata["w"] = weight
            part.update_all(fn.u_mul_e("x", "w", "m"), fn.sum("m", "y"))
        return part.dstdata["y"]


@given(
    nodes=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    edges=st.integers(0, 40),
    layout=st.sampled_from(["coo", "csr", "csc"]),
    small=st.booleans(),
    weighted=st.booleans(),
)
def test_any_graph_becomes_ours(
    nodes: tuple[int, int], edges: int, layout: str, small: bool, weighted: bool
) -> None:
    graph = multigraph(dgl, *nodes, edges)
    graph = graph.int() if small else graph
    weight = torch.randn(edges)
    graph.edata["w"] = weight
    found = from_dgl(graph.formats(layout), weight="w" if weighted else None)
    assert (found.num_cols, found.num_rows, found.num_edges) == (*nodes, edges)
    x = torch.randn(nodes[0], 3)
    right = message_sums(graph, x.double(), weight.double() if weighted else None).float()
    torch.testing.assert_close(torch.from_numpy(found.to_scipy() @ x.numpy()), right)
    if not weighted:  # features of edges go with ours
        a, right = gnnsparse.prepare(found, cache=False), message_sums(graph, x, weight)
        torch.testing.assert_close(gnnsparse.spmm(a, x, a.from_coo_order(weight)), right)
        torch.testing.assert_close(gnnsparse.prepare(found, values=weight, cache=False) @ x, right)


def heterograph(*infinite: int) -> Any:
    """A graph with three relations; "t" has infinite weights of a shape, if one is given."""
    ends = torch.randint(0, 5, (2, 12))
    graph = dgl.heterograph(
        {("u", "r", "i"): (ends[0], ends[1]), ("i", "r", "u"): (ends[1], ends[0]),
         ("u", "t", "u"): (ends[0], ends[0])}, {"u": 5, "i": 6},
    )  # fmt: skip
    if infinite:
        graph.edges["t"].data["w"] = torch.full(infinite, torch.inf)
    return graph


def test_relations_of_a_heterograph() -> None:
    graph = heterograph()
    graph.edges["t"].data["w"] = torch.rand(12, 1)
    assert from_dgl(graph, ("u", "r", "i")).num_cols == 5
    assert from_dgl(graph, ("i", "r", "u")).num_cols == 6
    weighted = from_dgl(graph, "t", weight="w")
    x = torch.randn(5, 2)
    got = torch.from_numpy(weighted.to_scipy() @ x.numpy())
    torch.testing.assert_close(got, message_sums(graph, x, graph.edges["t"].data["w"], "t"))


@pytest.mark.filterwarnings("ignore:Dataloader CPU affinity")
def test_blocks_become_ours() -> None:
    for block in blocks_of_a_sampler():
        found, x = from_dgl(block), torch.randn(block.num_src_nodes(), 3)
        assert found.num_rows == block.num_dst_nodes()
        torch.testing.assert_close(
            torch.from_numpy(found.to_scipy() @ x.numpy()), message_sums(block, x, None)
        )


BAD = {
    "no graph": (lambda: from_dgl(torch.ones(2, 2)), TypeError, "graph: got a tensor"),
    "several relations": (lambda: from_dgl(heterograph()), ValueError, r"etype: got None; accepted: \('i', "),
    "an ambiguous name": (lambda: from_dgl(heterograph(), "r"), ValueError, "etype: got 'r'; accepted"),
    "another name": (lambda: from_dgl(heterograph(), "z"), ValueError, "etype: got 'z'; accepted"),
    "another type": (lambda: from_dgl(heterograph(), 3), TypeError, "etype: got int"),
    "no feature": (lambda: from_dgl(heterograph(), "t", "w"), ValueError, "weight: got 'w'; accepted: None"),
    "no name": (lambda: from_dgl(heterograph(), "t", 3), TypeError, "weight: got int"),
    "two numbers": (lambda: from_dgl(heterograph(12, 2), "t", "w"), ValueError, "one number for each edge"),
    "not finite": (lambda: from_dgl(heterograph(12), "t", "w"), ValueError, "finite float32 numbers"),
    "precision": (lambda: accelerate(Model(), precision="fp7"), ValueError, "precision: got 'fp7'"),
    "accelerate": (lambda: accelerate(3), TypeError, r"model: got int; accepted: a torch\.nn\.Module"),
    "restore": (lambda: restore(3), TypeError, r"model: got int; accepted: a torch\.nn\.Module"),
    "report": (lambda: report(3), TypeError, r"model: got int; accepted: a torch\.nn\.Module"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_arguments(name: str) -> None:
    call, error, message = BAD[name]
    with pytest.raises(error, match=message):
        call()


def test_layers_share_what_is_made_of_a_graph() -> None:
    """A relation that DGL makes anew in each call is known too."""
    graph, x = homogeneous(dgl, 30, 90), torch.randn(30, 4)
    first, second = accelerate(dnn.SAGEConv(4, 4, "mean")), accelerate(dnn.SAGEConv(4, 4, "mean"))
    relations = heterograph()
    for a, b in ((graph, graph.local_var()), (relations["t"], relations["t"])):
        first(a, x[: a.num_nodes()])
        made = [operand.handle for operand in operands(first)]
        for layer, again in ((second, b), (first, a)):
            layer(again, x[: a.num_nodes()])
            assert [operand.handle for operand in operands(layer)] == made


def test_changes_of_a_graph_are_seen() -> None:
    graph, x = homogeneous(dgl, 30, 90), torch.randn(30, 4)
    layer = dnn.GINConv(None, "sum")
    ours = accelerate(dnn.GINConv(None, "sum"))
    ours(graph, x)
    graph.add_edges(torch.tensor([3, 4]), torch.tensor([5, 5]))
    torch.testing.assert_close(ours(graph, x), layer(graph, x))
    graph.remove_edges(torch.arange(40))
    torch.testing.assert_close(ours(graph, x), layer(graph, x))


def test_graphs_that_are_gone_leave_nothing() -> None:
    layer, x = accelerate(dnn.GINConv(None, "sum")), torch.randn(30, 4)
    gc.collect()
    before, seen = len(graphs._by_index), []
    for seed in range(200):
        layer(homogeneous(dgl, 30, 40, seed=seed), x)
        seen.append(weakref.ref(layer.gnnsparse_options.structure))
    gc.collect()
    assert len(graphs._by_index) <= before + 1
    assert sum(reference() is not None for reference in seen) <= 1


IMPORTED = """
import sys, torch
try:
    import dgl
except Exception:
    pass
layer, x, right = torch.load('layer.pt', weights_only=False)
import dgl
from gnnsparse.interop.dgl import import_dgl
assert import_dgl() is dgl
assert type(layer).__module__ == 'gnnsparse.interop.dgl.layers'
assert torch.equal(layer(dgl.graph(([0, 1, 2], [1, 2, 0])), x), right)
assert 'outdated' not in sys.modules  # by which ogb asks the network for a newer release
try:
    import dgl.graphbolt as graphbolt
    graphbolt.load_graphbolt
except AttributeError as error:
    print(error)
"""


def test_the_import_of_dgl_by_a_pickled_layer(tmp_path: Any) -> None:
    """In another process, where a plain import has failed."""
    layer, x = accelerate(dnn.GraphConv(5, 4)), torch.randn(3, 5)
    torch.save((layer, x, layer(dgl.graph(([0, 1, 2], [1, 2, 0])), x)), tmp_path / "layer.pt")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IMPORTED],
        capture_output=True, text=True, cwd=tmp_path, env={"HOME": str(tmp_path), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "graphbolt has no library for torch" in done.stdout


def fails(name: str) -> None:
    raise OSError("libdgl.so: cannot open shared object file")


@pytest.mark.parametrize(
    ("name", "instead", "message"),
    [
        ("importlib.util.find_spec", lambda name: None, r"pip install --no-deps dgl==2\.1\.0"),
        ("importlib.import_module", fails, r"DGL can't be imported \(libdgl\.so.*pip install --no-deps"),
    ],
    ids=["no DGL", "a part of it"],
)
def test_what_lacks_is_told(name: str, instead: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [module for module in sys.modules if module.split(".")[0] == "dgl"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(name, instead)
    with pytest.raises(ImportError, match=message):
        import_dgl()
    assert not any(module.startswith("dgl.") for module in sys.modules)  # no stub is left
