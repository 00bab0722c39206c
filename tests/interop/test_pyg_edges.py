"""Elementwise messages of layers of PyG and of users run as functions over edges, with the same numbers."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch._dynamo.testing import CompileCounterWithBackend

from gnnsparse.interop.pyg import graphs
from gnnsparse.testing import assert_all_accurate, in_float64
from tests.helpers import ROUNDING
from tests.interop.pyg_cases import (
    EDGE_DIM,
    OUT,
    WIDTH,
    both,
    close,
    degrees,
    interop,
    left,
    made,
    mlp,
    of,
    pyg,
    see_change,
    used,
)

SOURCES, TARGETS = 23, 17
_BOTH, _PAIR = (WIDTH, OUT), ((WIDTH, WIDTH), OUT)
_PNA = ["mean", "max", "min", "std"], ["identity", "amplification", "attenuation"], degrees
#: Layers, what they are called with besides the edges, and whether sources and targets may be other nodes.
LAYERS: dict[str, tuple[Any, tuple[str, ...], bool]] = {
    "GINEConv": (of(mlp, edge_dim=EDGE_DIM), ("attr",), True),
    "GINEConv of wide edges": (of(mlp, train_eps=True), ("wide",), True),
    "ResGatedGraphConv": (of(*_PAIR), (), True),
    "ResGatedGraphConv with edges": (of(*_PAIR, edge_dim=EDGE_DIM), ("attr",), True),
    "CGConv": (of((WIDTH, WIDTH), EDGE_DIM), ("attr",), True),
    "CGConv without edges": (of(WIDTH, aggr="max"), (), True),
    "FiLMConv": (of(*_PAIR), (), True),
    "FiLMConv of relations": (of(*_BOTH, 2, act=torch.nn.GELU()), ("kind",), False),
    "FAConv": (of(WIDTH), ("first",), False),
    "GENConv": (of(*_PAIR, learn_t=True, edge_dim=EDGE_DIM), ("attr",), True),
    "GENConv of powers": (of(*_PAIR, aggr="powermean", p=1.5, learn_p=True), (), True),
    "GENConv of several, powers": (
        of(*_BOTH, aggr=["mean", "powermean"], aggr_kwargs={"aggrs_kwargs": [{}, {"p": 3}]}), (), False
    ),
    "GENConv of several": (of(*_BOTH, aggr=["softmax", "std", "mean"]), (), False),
    "PNAConv": (of(*_BOTH, *_PNA), (), False),
    "PNAConv with edges": (of(*_BOTH, *_PNA, edge_dim=EDGE_DIM, towers=2), ("attr",), False),
    "PNAConv of deep networks": (
        of(*_BOTH, ["mean", "max"], *_PNA[1:], EDGE_DIM, towers=2, pre_layers=2, post_layers=2),
        ("attr",), False,
    ),
    "PNAConv of divided features": (of(*_BOTH, *_PNA, towers=4, divide_input=True), (), False),
    "GeneralConv": (of(WIDTH, OUT, EDGE_DIM, heads=2, directed_msg=False), ("attr",), False),
    "LEConv": (of(*_PAIR), ("w",), True),
    "SAGEConv of several": (of(*_PAIR, aggr=["mean", "max", "var"]), (), True),
    "HypergraphConv": (of(*_BOTH), (), False),
}  # fmt: skip


def edges_of(sources: int, targets: int, count: int = 90) -> torch.Tensor:
    """Edges of which some are repeated; the last sources and targets have none."""
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(0, size - 3, (count,), generator=generator) for size in (sources, targets)]
    edges = torch.stack(rows)
    return torch.cat([edges, edges[:, :7], edges[:, :3]], dim=1)


def results(layer: Any, tensors: dict[str, torch.Tensor], edges: torch.Tensor, extras: tuple[str, ...],
            pair: bool) -> list[torch.Tensor]:  # fmt: skip
    """The output, and the gradients of floating-point inputs and of parameters."""
    given = {k: t.detach().clone().requires_grad_(t.is_floating_point()) for k, t in tensors.items()}
    x: Any = (given["x"], given["x_target"]) if pair else given["x"]
    first = (given["first"],) if "first" in extras else ()
    out = layer(x, *first, edges, *(given[name] for name in extras if name != "first"))
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    wanted = [*(t for t in given.values() if t.requires_grad), *layer.parameters()]
    grads = torch.autograd.grad(out, wanted, probe, allow_unused=True)
    return [
        out.detach(),
        *(torch.zeros_like(t) if g is None else g for t, g in zip(wanted, grads, strict=True)),
    ]


def inputs(edges: torch.Tensor) -> dict[str, torch.Tensor]:
    count = edges.shape[1]
    return {
        "x": torch.randn(SOURCES, WIDTH), "x_target": torch.randn(TARGETS, WIDTH),
        "first": torch.randn(SOURCES, WIDTH), "attr": torch.randn(count, EDGE_DIM),
        "wide": torch.randn(count, WIDTH), "w": torch.rand(count), "kind": torch.arange(count) % 2,
    }  # fmt: skip


@pytest.mark.parametrize("pair", [False, True], ids=["one kind of nodes", "two"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, pair: bool) -> None:
    """Of a layer and its accelerated copy, where float64 judges."""
    case, extras, may_be_pair = LAYERS[name]
    if pair and not may_be_pair:
        pytest.skip("its sources are its targets")
    torch.manual_seed(0)
    theirs, ours = both(made(name.partition(" ")[0], case))
    edges = edges_of(SOURCES, TARGETS if pair else SOURCES)
    tensors = inputs(edges)
    exactly = copy.deepcopy(theirs)
    doubles = {k: t.double() if t.is_floating_point() else t for k, t in tensors.items()}
    with in_float64(exactly):
        exact = results(exactly, doubles, edges, extras, pair)
    for _ in range(2):
        got, plain = (results(layer, tensors, edges, extras, pair) for layer in (ours, theirs))
        assert [t.dtype for t in got] == [t.dtype for t in plain]
        # A variance is a difference of squares, whose roundings are larger by (mean / deviation)^2 of the
        # messages; drawn anew, both layers have 20 to 180 roundings, either one more than the other.
        # The gradient of a power is a difference, too, of sums over all messages and all means.
        floor = 256 if name.startswith("PNAConv") or "powers" in name else 64
        assert_all_accurate(got, plain, exact, floor=floor * ROUNDING["fp32"])
    assert all(what.startswith("aggregate_edges") for what in used(ours)), used(ours)
    assert sum(used(ours).values()) == 2
    assert left(ours) == ""


@pytest.mark.parametrize(("pair", "most"), [(False, 1), (True, 2)])
def test_products_of_a_tensor_are_one(pair: bool, most: int) -> None:
    """CGConv has two linear layers of sources and targets, which are one tensor or two."""
    edges = edges_of(SOURCES, TARGETS if pair else SOURCES)
    layer, tensors = interop.accelerate(pyg.CGConv((WIDTH, WIDTH)), convert="always"), inputs(edges)
    x = (tensors["x"], tensors["x_target"]) if pair else tensors["x"]
    layer(x, edges)
    with torch.profiler.profile() as seen:
        layer(x, edges).sum().backward()
    counts = {event.key: event.count for event in seen.key_averages()}
    assert counts["aten::linear"] == most
    assert "aten::slice_backward" not in counts


class _Quantized(torch.Tensor):
    """A weight that has linear products, and no other operation that makes one of several."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.cat:
            raise TypeError("no concatenation of quantized weights")
        return super().__torch_function__(func, types, args, kwargs or {})


class _TwoLinear(pyg.MessagePassing):
    def __init__(self) -> None:
        super().__init__(aggr="sum")
        self.a, self.b = torch.nn.Linear(WIDTH, 6), torch.nn.Linear(WIDTH, 6)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.propagate(edges, x=x)
        return found

    def message(self, x_i: torch.Tensor, x_j: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.a(x_i) + self.b(x_j))


def test_weights_of_a_subclass_are_multiplied_by_themselves() -> None:
    edges = edges_of(SOURCES, SOURCES)
    theirs, x = _TwoLinear(), torch.randn(SOURCES, WIDTH)
    ours = interop.accelerate(copy.deepcopy(theirs), convert="always")
    for linear in (ours.a, ours.b):
        linear.weight = torch.nn.Parameter(linear.weight.detach().as_subclass(_Quantized))
    torch.testing.assert_close(ours(x, edges), theirs(x, edges))


class _Overwritten(pyg.MessagePassing):
    def __init__(self) -> None:
        super().__init__(aggr="sum")
        self.a, self.b, self.c = (torch.nn.Linear(n, 6) for n in (5, 5, WIDTH))
        self.drop = torch.nn.Dropout(0.5, inplace=True)

    def forward(self, x: torch.Tensor, edges: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(0)
        found: torch.Tensor = self.propagate(edges, x=x, e=e)
        return found

    def message(self, x_j: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        return self.a(e) + self.c(x_j) + self.b(self.drop(e))


def test_dropout_in_place_has_no_part_in_what_came_before() -> None:
    edges = edges_of(SOURCES, SOURCES)
    theirs, x, e = _Overwritten(), torch.randn(SOURCES, WIDTH), torch.randn(edges.shape[1], 5)
    ours = interop.accelerate(copy.deepcopy(theirs), convert="always")
    torch.testing.assert_close(ours(x, edges, e.clone()), theirs(x, edges, e.clone()))


def test_the_first_call_of_a_layer_without_sizes_is_as_those_that_follow() -> None:
    """PyG's code runs once, as it finds out the sizes."""
    tensors = inputs(edges := edges_of(SOURCES, SOURCES))
    ours = interop.accelerate(pyg.GENConv(-1, OUT, edge_dim=-1), convert="always")
    first, second = (ours(tensors["x"], edges, tensors["attr"]) for _ in range(2))
    assert torch.equal(first, second)
    assert sum(used(ours).values()) == 2, str(interop.report(ours))


def test_attention_of_a_layer_that_stores_it() -> None:
    """FAConv's message stores what the call returns, with its gradient."""
    edges, x = edges_of(SOURCES, SOURCES), torch.randn(SOURCES, WIDTH)
    found = []
    for layer in both(made("FAConv", of(WIDTH))):
        out, (_, alpha) = layer(x, x, edges, return_attention_weights=True)
        grad = torch.autograd.grad(alpha.square().sum() + out.sum(), layer.att_l.weight)[0]
        assert layer._alpha is None
        found.append((out, alpha, grad))
    for want, got in zip(*found, strict=True):
        close(got, want)
    assert used(layer) == {"aggregate_edges, sum, fp32": 1}


class Elementwise(pyg.MessagePassing):
    """A user's layer."""

    def __init__(self) -> None:
        super().__init__(aggr="sum")
        self.lin, self.act, self.slope, self.p = (
            torch.nn.Linear(2 * WIDTH + 3, OUT),
            torch.nn.ReLU(),
            0.2,
            0.5,
        )
        self.shift, self.scale = torch.nn.Parameter(torch.randn(OUT)), torch.nn.Parameter(torch.randn(1))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, attr: torch.Tensor) -> torch.Tensor:
        return self.propagate(edge_index, x=x, attr=attr)

    def message(self, x_i: torch.Tensor, x_j: torch.Tensor, attr: torch.Tensor) -> torch.Tensor:
        if x_j.size(-1) != x_i.shape[-1]:  # no assert, whose code pytest would replace
            raise ValueError
        z = self.lin(torch.cat((x_i, x_j - x_i, attr), dim=-1))
        h = F.leaky_relu(z, negative_slope=self.slope) + self.act(z - 1) * self.scale
        h = torch.where(z > self.shift, h.clamp(max=3.0), -h / 2)
        return F.dropout(h, p=self.p, training=self.training) * attr[:, :1] if self.p > 2 else self.last(h)

    def last(self, h: torch.Tensor, power: int = 2) -> torch.Tensor:
        return F.dropout(h, self.p, self.training) ** power - torch.tanh(h) * self.shift


def both_with_inputs() -> tuple[Any, Any, tuple[torch.Tensor, ...]]:
    theirs, ours = both(Elementwise().eval())
    edges = edges_of(SOURCES, SOURCES)
    return theirs, ours, (torch.randn(SOURCES, WIDTH), edges, torch.randn(edges.shape[1], 3))


def test_a_layer_of_a_user() -> None:
    theirs, ours, given = both_with_inputs()
    found = [
        [out := layer(*given), *torch.autograd.grad(out.square().sum(), list(layer.parameters()))]
        for layer in (theirs, ours)
    ]
    for want, got in zip(*found, strict=True):
        close(got, want)
    assert used(ours) == {"aggregate_edges, sum, fp32": 1}
    assert "Elementwise  aggregate_edges" in str(interop.report(ours))


def _with_hook(layer: Any) -> None:
    layer.lin.register_forward_hook(lambda module, inputs, output: 2 * output)


def _parametrised(layer: Any) -> None:
    torch.nn.utils.parametrize.register_parametrization(layer.lin, "weight", torch.nn.Tanh())


def _with_own_forward(layer: Any) -> None:
    layer.act.forward = lambda x: x


CHANGES: dict[str, tuple[Any, bool]] = {
    "an attribute": (lambda layer: setattr(layer, "slope", 0.7), True),
    "an activation": (lambda layer: setattr(layer, "act", torch.nn.SiLU()), True),
    "an activation's option": (lambda layer: setattr(layer, "act", torch.nn.ELU(0.3)), True),
    "an activation in place": (lambda layer: setattr(layer, "act", torch.nn.ReLU(inplace=True)), False),
    "a layer": (lambda layer: setattr(layer, "lin", torch.nn.Linear(2 * WIDTH + 3, OUT, bias=False)), True),
    "a parameter": (lambda layer: setattr(layer, "shift", torch.nn.Parameter(torch.ones(OUT))), True),
    "a number for a vector": (lambda layer: setattr(layer, "shift", torch.nn.Parameter(torch.ones(1))), True),
    "an unknown module": (lambda layer: setattr(layer, "act", torch.nn.Hardtanh()), False),
    "dropout": (lambda layer: (setattr(layer, "p", 0.0), layer.train()), True),
    "a hook": (_with_hook, False),
    "a parametrisation": (_parametrised, False),
    "a module's forward": (_with_own_forward, False),
    "a method": (lambda layer: setattr(layer, "last", lambda h: h + 1), False),
    "the aggregation": (lambda layer: setattr(layer, "aggr_module", pyg.aggr.MeanAggregation()), True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_later_is_seen(change: str) -> None:
    """What the code reads is compared in each call; what it no longer is known to compute is PyG's."""
    see_change(*both_with_inputs(), *CHANGES[change])


def compiled(layer: Any, operator: str = "edges", **options: Any) -> tuple[Any, Callable[[], list[bool]]]:
    """A layer behind torch.compile, and what says of each graph whether it has an operator, the edges'."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    run = torch.compile(layer, fullgraph=True, backend=counter, **options)
    return run, lambda: [f"gnnsparse.pyg_{operator}(" in graph.code for graph in counter.graphs]


#: Of `LAYERS`, and whether sources and targets are other nodes.
COMPILED = [
    ("GINEConv", True), ("ResGatedGraphConv with edges", False), ("CGConv without edges", True),
    ("FiLMConv of relations", False), ("FAConv", False), ("GENConv", True), ("GENConv of several", False),
    ("GENConv of powers", True),
    ("PNAConv with edges", False), ("GeneralConv", False), ("LEConv", True),
]  # fmt: skip


@pytest.mark.parametrize(("name", "pair"), COMPILED)
def test_compiled(name: str, pair: bool) -> None:
    """Outputs and gradients are those of the eager layer, for two graphs of which one compiles it."""
    case, extras, _ = LAYERS[name]
    torch.manual_seed(0)
    plain, ours = both(made(name.partition(" ")[0], case))
    eager = copy.deepcopy(ours)
    run, graphs = compiled(ours, dynamic=True)
    counts = []
    for count in (90, 130):
        edges = edges_of(SOURCES, TARGETS if pair else SOURCES, count)
        tensors = inputs(edges)
        got, same, want = (results(layer, tensors, edges, extras, pair) for layer in (run, eager, plain))
        for one, other, theirs in zip(got, same, want, strict=True):
            # A deviation that is a root of a difference magnifies the roundings of both; the eager PNAConv
            # has it of messages without what targets add.
            if name != "PNAConv with edges":
                assert torch.allclose(one, other, rtol=1e-5, atol=1e-5 * float(other.abs().max()))
            # The gradient of a power mean's power is a sum of large terms that nearly cancel.
            rtol = 1e-2 if name == "GENConv of powers" else 1e-3
            assert torch.allclose(one, theirs, rtol=rtol, atol=1e-4 * float(theirs.abs().max()))
        counts.append(len(graphs()))
    assert graphs()[-1]
    assert counts[0] == counts[1], "the second graph was compiled anew"


@pytest.mark.parametrize("change", [change for change in CHANGES if change != "a hook"])
def test_compiled_layers_see_changes(change: str) -> None:
    """A change compiles the layer anew, or leaves it to PyG. Of hooks torch.compile itself sees none."""
    theirs, ours, given = both_with_inputs()
    run, graphs = compiled(ours)
    close(run(*given), theirs(*given))
    assert graphs() == [True]
    change_it, is_ours = CHANGES[change]
    for layer in (theirs, ours):
        torch.manual_seed(3)
        change_it(layer)
    close(run(*given), theirs(*given))
    assert graphs()[-1] is is_ours


_HEADS: dict[str, Any] = {"heads": 2, "edge_dim": EDGE_DIM}
#: Layers of attention with features of edges, and whether sources and targets are other nodes.
ATTENTION: dict[str, tuple[Any, bool]] = {
    "GATConv": (of(*_BOTH, **_HEADS, fill_value="max", residual=True), False),
    "GATConv of a pair": (of(*_PAIR, **_HEADS, fill_value=0.5), True),
    "GATv2Conv": (of(*_BOTH, **_HEADS, concat=False, share_weights=True), False),
    "GATv2Conv of a pair": (of(*_PAIR, **_HEADS, add_self_loops=False), True),
    "TransformerConv": (of(*_PAIR, **_HEADS, beta=True), True),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTENTION)
def test_compiled_attention_with_features_of_edges(name: str) -> None:
    """As `test_compiled`; the graphs have self-loops, of which each has another number."""
    case, pair = ATTENTION[name]
    torch.manual_seed(0)
    plain, ours = both(made(name.partition(" ")[0], case))
    run, graphs = compiled(ours, "attention", dynamic=True)
    counts = []
    for count in (90, 130):
        edges = edges_of(SOURCES, TARGETS if pair else SOURCES, count)
        assert (edges[0] == edges[1]).any()
        tensors = inputs(edges)
        got, want = (results(layer, tensors, edges, ("attr",), pair) for layer in (run, plain))
        for one, theirs in zip(got, want, strict=True):
            close(one, theirs)
        counts.append(len(graphs()))
    assert graphs()[-1]
    assert counts[0] == counts[1], "the second graph was compiled anew"
    with torch.autocast("cpu", torch.bfloat16):
        got, want = (results(layer, tensors, edges, ("attr",), pair) for layer in (run, ours))
    for one, theirs in zip(got, want, strict=True):
        assert one.dtype == theirs.dtype
        assert (one - theirs).norm() <= 0.03 * theirs.norm()
    assert graphs()[-1]


def test_compiled_attention_that_is_pygs() -> None:
    """Features of edges of a layer without a map of theirs, and a row for all self-loops."""
    edges = edges_of(SOURCES, SOURCES)
    tensors = inputs(edges)
    for options in ({}, {"edge_dim": EDGE_DIM, "fill_value": torch.ones(EDGE_DIM)}):
        theirs, ours = both(made("GATConv", of(*_BOTH, **options)))
        run, graphs = compiled(ours, "attention")
        assert torch.allclose(
            run(tensors["x"], edges, edge_attr=tensors["attr"] if options else None),
            theirs(tensors["x"], edges, edge_attr=tensors["attr"] if options else None), atol=1e-5,
        )  # fmt: skip
        assert graphs() == [not options]


def test_compiled_layers_of_pyg() -> None:
    """Hooks and dropout leave a layer to PyG; a graph without edges does not."""
    for change in (_with_hook, lambda layer: layer.train()):
        theirs, ours, given = both_with_inputs()
        for layer in (theirs, ours):
            change(layer)
        run, graphs = compiled(ours)
        assert run(*given).shape == theirs(*given).shape
        assert graphs() == [False]
    x, edges = torch.randn(SOURCES, WIDTH), torch.empty(2, 0, dtype=torch.int64)
    theirs, ours = both(made("SAGEConv", of(*_BOTH, aggr="max")))
    run, graphs = compiled(ours)
    close(run(x, edges), theirs(x, edges))
    assert graphs() == [True]


def test_compiled_under_autocast() -> None:
    """The dtype of autocast is that of the operator, as of an eager call."""
    _, ours = both(made("GINEConv", LAYERS["GINEConv"][0]))
    run, graphs = compiled(ours)
    tensors = inputs(edges := edges_of(SOURCES, SOURCES))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = (results(layer, tensors, edges, ("attr",), False) for layer in (run, ours))
    for one, other in zip(got, want, strict=True):
        assert one.dtype == other.dtype
        close(one, other)
    assert used(ours) == {"aggregate_edges, sum, bf16": 1}
    assert graphs() == [True]


def test_dropout_draws_as_pygs() -> None:
    theirs, ours, given = both_with_inputs()
    found = []
    for layer in (theirs.train(), ours.train()):
        torch.manual_seed(5)
        found.append(layer(*given))
    assert torch.equal(*found)
    assert used(ours) == {}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_cast", [False, True], ids=["stored", "autocast"])
def test_narrow_dtypes(dtype: torch.dtype, is_cast: bool) -> None:
    theirs, ours, (x, edges, attr) = both_with_inputs()
    exact = theirs(x, edges, attr)
    if is_cast:
        with torch.autocast("cpu", dtype):
            got, plain = ours(x, edges, attr), theirs(x, edges, attr)
    else:
        x, attr = x.to(dtype), attr.to(dtype)
        exact = copy.deepcopy(theirs).to(dtype).float()(x.float(), edges, attr.float())
        got, plain = (layer.to(dtype)(x, edges, attr) for layer in (ours, theirs))
        assert got.dtype == plain.dtype == dtype
    assert_all_accurate([got.float()], [plain.float()], [exact.double()], floor=16 * ROUNDING[
        "fp16" if dtype == torch.float16 else "bf16"
    ])  # fmt: skip
    assert len(used(ours)) == 1


def test_other_dtypes_are_pygs_with_the_reason() -> None:
    theirs, ours, (x, edges, attr) = both_with_inputs()
    close(ours.double()(x.double(), edges, attr.double()), theirs.double()(x.double(), edges, attr.double()))
    assert left(ours) == "features of dtype torch.float64"


def test_a_tiny_graph_stays_with_pyg() -> None:
    """Its calls take the host less there; a graph of Cora's size is converted after some calls."""
    runs_on = []
    for nodes, edges in ((30, 64), (2708, 10_556)):
        graphs.memo.clear()  # how long graphs of other tests lived
        layer = interop.accelerate(pyg.GINEConv(torch.nn.Linear(16, 16)))
        x, edge_index = torch.randn(nodes, 16), torch.randint(0, nodes, (2, edges))
        for _ in range(20):
            layer(x, edge_index, torch.randn(edges, 16))
        (row,) = interop.report(layer).rows
        runs_on.append(bool(row.calls))
        if not row.calls:
            assert set(row.fallbacks) == {"the graph is so small that nothing is saved"}
    assert runs_on == [False, True]
