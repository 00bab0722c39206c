"""Layers of PyG whose message is a network, split into products of nodes and rows of edges."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.nn import BatchNorm1d, Dropout, LayerNorm, LeakyReLU, Linear, ReLU, Sequential, Tanh

from gnnsparse.testing import assert_all_accurate, in_float64
from tests.helpers import ROUNDING
from tests.interop.pyg_cases import OUT, WIDTH, both, close, left, made, mlp, of, pyg, see_change, used
from tests.interop.test_pyg_edges import SOURCES, TARGETS, compiled, edges_of

_PAIRED = 2 * WIDTH
_BOTH = WIDTH, OUT


def deep(inputs: int, *between: Any) -> Any:
    """A network of three linear layers, activations that overwrite what they get, and other modules."""
    return Sequential(
        Linear(inputs, 12), *between, ReLU(inplace=True), Linear(12, 9, bias=False), LeakyReLU(0.3),
        Linear(9, OUT), Tanh(),
    )  # fmt: skip


#: Layers, what they are called with between x and the edges, and whether sources and targets may differ.
LAYERS: dict[str, tuple[Any, tuple[str, ...], bool]] = {
    "EdgeConv of a linear layer": (of(lambda: Linear(_PAIRED, OUT)), (), True),
    "EdgeConv of two": (of(lambda: mlp(_PAIRED)), (), True),
    "EdgeConv of a sum": (of(lambda: mlp(_PAIRED), aggr="sum"), (), True),
    "EdgeConv of a mean": (of(lambda: mlp(_PAIRED), aggr="mean"), (), True),
    "EdgeConv of several": (of(lambda: mlp(_PAIRED), aggr=["mean", "max"]), (), True),
    "EdgeConv of three": (of(lambda: deep(_PAIRED)), (), True),
    "EdgeConv of norms": (of(lambda: deep(_PAIRED, LayerNorm(12), BatchNorm1d(12))), (), True),
    "EdgeConv of an MLP": (of(lambda: pyg.MLP([_PAIRED, 11, OUT], norm="batch_norm"), aggr="sum"), (), True),
    "EdgeConv of an MLP that ends with a norm": (
        of(lambda: pyg.MLP([_PAIRED, OUT], norm="layer_norm", act="elu", act_first=True, plain_last=False)),
        (), False,
    ),
    "EdgeCNN": (of(WIDTH, 8, 2, OUT), (), False),
    "PointNetConv": (of(lambda: mlp(WIDTH + 3), lambda: mlp(OUT)), ("pos",), True),
    "PointNetConv of three": (of(lambda: deep(WIDTH + 3), add_self_loops=False), ("pos",), True),
    "PPFConv": (of(lambda: mlp(WIDTH + 4), lambda: mlp(OUT)), ("pos", "normal"), True),
    "PPFConv of a sum": (
        of(lambda: deep(WIDTH + 4), add_self_loops=False, aggr="sum"), ("pos", "normal"), True,
    ),
    "PointGNNConv": (
        of(lambda: mlp(WIDTH, 3), lambda: mlp(WIDTH + 3), lambda: mlp(OUT, WIDTH)), ("pos",), False,
    ),
    "PointGNNConv of nodes": (
        of(lambda: Linear(WIDTH, 3), lambda: Linear(WIDTH + 3, WIDTH), Tanh), ("pos",), False,
    ),
    "PointTransformerConv": (of(*_BOTH), ("pos",), False),
    "PointTransformerConv of pairs": (of((WIDTH, WIDTH), OUT), ("pos",), True),
    "PointTransformerConv of networks": (
        of((WIDTH, WIDTH), OUT, lambda: mlp(3), lambda: mlp(OUT), add_self_loops=False), ("pos",), True,
    ),
    "PointTransformerConv of a norm": (
        of(*_BOTH, lambda: pyg.MLP([3, 7, OUT]), lambda: deep(OUT)), ("pos",), False,
    ),
    "FeaStConv": (of(*_BOTH), (), True),
    "FeaStConv of heads": (of(*_BOTH, 5, add_self_loops=False), (), True),
}  # fmt: skip


def inputs(pair: bool) -> dict[str, Any]:
    """Features, positions and normals of nodes; of sources and of targets."""
    found: dict[str, Any] = {}
    for name, width in (("x", WIDTH), ("pos", 3), ("normal", 3)):
        tensors = [torch.randn(count, width) for count in (SOURCES, TARGETS)[: 1 + pair]]
        found[name] = [torch.nn.functional.normalize(t) if name == "normal" else t for t in tensors]
    return found


def results(layer: Any, given: dict[str, Any], edges: torch.Tensor, extras: tuple[str, ...]) -> list[Any]:
    """The output, gradients of each input and of all parameters, and what the layer remembers of inputs."""
    leaves = {name: [t.detach().clone().requires_grad_() for t in given[name]] for name in ("x", *extras)}
    out = layer(*(tuple(of) if len(of) > 1 else of[0] for of in leaves.values()), edges)
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    # Together, as some are 0: a softmax does not depend on what all edges of a target add.
    wanted = [*leaves.values(), list(layer.parameters())]
    flat = [t for of in wanted for t in of]
    grads = torch.autograd.grad(out, flat, probe, allow_unused=True)
    left_ = iter([torch.zeros_like(t) if g is None else g for t, g in zip(flat, grads, strict=True)])
    joined = [torch.cat([next(left_).flatten() for _ in of]) for of in wanted]
    return [out.detach(), *joined, *(b.clone() for b in layer.buffers() if b.is_floating_point())]


@pytest.mark.parametrize("pair", [False, True], ids=["one kind of nodes", "two"])
@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str, pair: bool) -> None:
    """Of a layer and its accelerated copy, where float64 judges."""
    case, extras, may_be_pair = LAYERS[name]
    if pair and not may_be_pair:
        pytest.skip("its sources are its targets")
    torch.manual_seed(0)
    theirs, ours = both(made(name.partition(" ")[0], case))
    edges, given = edges_of(SOURCES, TARGETS if pair else SOURCES), inputs(pair)
    exactly = copy.deepcopy(theirs)
    doubles = {name: [t.double() for t in of] for name, of in given.items()}
    for _ in range(2):
        with in_float64(exactly):
            exact = results(exactly, doubles, edges, extras)
        got, plain = (results(layer, given, edges, extras) for layer in (ours, theirs))
        assert [t.dtype for t in got] == [t.dtype for t in plain]
        assert_all_accurate(got, plain, exact, floor=64 * ROUNDING["fp32"])
    assert used(ours)
    assert all(what.startswith("aggregate_edges") for what in used(ours)), used(ours)
    assert left(ours) == ""


class Gated(pyg.MessagePassing):
    """A user's layer whose networks are of targets, of edges, and of both, where one result is used twice."""

    def __init__(self, nn: Any) -> None:
        super().__init__(aggr="sum")
        self.nn, self.of_targets, self.of_edges = (
            nn,
            mlp(WIDTH, 6),
            Sequential(Linear(3, 5), ReLU(), Linear(5, 6)),
        )
        self.lin, self.weight = Linear(6, OUT), torch.nn.Parameter(torch.randn(OUT))

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor, attr: torch.Tensor) -> torch.Tensor:
        return self.propagate(edge_index, x=x, attr=attr)

    def message(self, x_i: torch.Tensor, x_j: torch.Tensor, attr: torch.Tensor) -> torch.Tensor:
        gate = self.lin(torch.sigmoid(self.of_targets(x_i) + self.of_edges(attr)))
        h = self.nn(torch.cat([x_j - x_i, attr], dim=-1))
        return h * gate + torch.relu(h) * self.weight


def gated(nn: Any = None) -> tuple[Any, Any, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    nn = nn or Sequential(Linear(WIDTH + 3, 7), BatchNorm1d(7), ReLU(), Dropout(0.4), Linear(7, OUT))
    edges = edges_of(SOURCES, SOURCES)
    return *both(Gated(nn)), (torch.randn(SOURCES, WIDTH), edges, torch.randn(edges.shape[1], 3))


@pytest.mark.parametrize("training", [True, False])
def test_dropout_and_batch_norms_are_pygs_own(training: bool) -> None:
    """They run once, on all rows in the order of the edges, so that they draw and remember the same."""
    theirs, ours, given = gated()
    found = []
    for layer in (theirs.train(training), ours.train(training)):
        torch.manual_seed(5)
        out = layer(*given)
        grads = torch.autograd.grad(out.square().sum(), list(layer.parameters()))
        # Together: a bias before a norm has none.
        found.append([out.detach(), torch.cat([g.flatten() for g in grads]), *layer.buffers()])
    for want, got in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5 * float(want.abs().max()))
    assert int(ours.nn[1].num_batches_tracked) == training
    assert used(ours) == {"aggregate_edges, sum, fp32": 1}


def _with_hook(layer: Any) -> None:
    layer.nn[0].register_forward_hook(lambda module, inputs, output: 2 * output)


def _with_own_forward(layer: Any) -> None:
    layer.of_edges[1].forward = torch.tanh


CHANGES: dict[str, tuple[Any, bool]] = {
    "a hook": (_with_hook, False),
    "a module's forward": (_with_own_forward, False),
    "an activation": (lambda layer: layer.nn.__setitem__(2, Tanh()), True),
    "an unknown module": (lambda layer: layer.nn.__setitem__(2, torch.nn.Hardtanh()), False),
    "a network": (lambda layer: setattr(layer, "nn", pyg.MLP([WIDTH + 3, OUT])), True),
    "dropout of an MLP": (
        lambda layer: setattr(layer, "nn", pyg.MLP([WIDTH + 3, 4, OUT], dropout=0.3)),
        False,
    ),
    "a module that overwrites": (lambda layer: setattr(layer.of_targets[1], "inplace", True), True),
    "one that overwrites an argument": (lambda layer: setattr(layer, "nn", Sequential(ReLU(True))), False),
    "the aggregation": (lambda layer: setattr(layer, "aggr_module", pyg.aggr.MaxAggregation()), True),
    "a norm of nodes": (lambda layer: layer.of_targets.__setitem__(1, BatchNorm1d(6)), False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_later_is_seen(change: str) -> None:
    """What is no longer known runs as it would without us."""
    see_change(*gated(mlp(WIDTH + 3)), *CHANGES[change])


def test_a_softmax_has_one_aggregation() -> None:
    theirs, ours = both(made("PointTransformerConv", of(*_BOTH, aggr="max")))
    edges, given = edges_of(SOURCES, SOURCES), inputs(False)
    close(ours(given["x"][0], given["pos"][0], edges), theirs(given["x"][0], given["pos"][0], edges))
    assert left(ours) == "its aggregation is max, of what a softmax weights"


def test_two_dropouts_are_pygs() -> None:
    """Of networks beside each other; one behind the other is drawn behind it here too."""
    for path, is_ours in (("of_edges", False), ("nn", True)):
        theirs, ours, given = gated()
        found = []
        for layer in (theirs, ours):
            getattr(layer, path).append(Dropout(0.5))
            torch.manual_seed(7)
            found.append(layer(*given))
        torch.testing.assert_close(*found, rtol=1e-4, atol=1e-3)
        assert bool(used(ours)) is is_ours


def test_compiled_layers_see_the_mode_of_dropout() -> None:
    _, ours, given = gated()
    run, graphs = compiled(ours.eval())
    first = run(*given)
    close(ours(*given), first)
    ours.nn.train()  # and not the layer
    assert not torch.allclose(run(*given), first)
    assert graphs() == [True, True]


#: Of `LAYERS`, and whether sources and targets are other nodes.
COMPILED = [
    ("EdgeConv of a mean", True), ("EdgeConv of norms", False), ("PPFConv of a sum", True),
    ("PointTransformerConv of networks", True), ("FeaStConv of heads", False), ("EdgeCNN", False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "pair"), COMPILED)
def test_compiled(name: str, pair: bool) -> None:
    """One graph, with the operators of edges, whose numbers are those of the eager layer."""
    case, extras, _ = LAYERS[name]
    torch.manual_seed(0)
    plain, ours = both(made(name.partition(" ")[0], case))
    run, graphs = compiled(ours, dynamic=True)
    for count in (90, 130):
        edges, given = edges_of(SOURCES, TARGETS if pair else SOURCES, count), inputs(pair)
        got, want = (results(layer, given, edges, extras) for layer in (run, plain))
        for one, theirs in zip(got, want, strict=True):
            assert torch.allclose(one, theirs, rtol=1e-3, atol=1e-4 * float(theirs.abs().max()))
    assert graphs()[-1]


@pytest.mark.parametrize("is_cast", [False, True], ids=["stored", "autocast"])
@pytest.mark.parametrize(
    "name", ["EdgeConv of norms", "EdgeConv of a mean", "PointTransformerConv of networks"]
)
def test_narrow_dtypes(name: str, is_cast: bool) -> None:
    """In bfloat16, whether the layer is stored so or runs under autocast."""
    case, extras, _ = LAYERS[name]
    torch.manual_seed(0)
    theirs, ours = both(made(name.partition(" ")[0], case))
    edges, given = edges_of(SOURCES, TARGETS), inputs(True)
    kind, rounded = torch.bfloat16, copy.deepcopy(theirs)
    if not is_cast:
        given = {name: [t.to(kind) for t in tensors] for name, tensors in given.items()}
        theirs, ours, rounded = theirs.to(kind), ours.to(kind), rounded.to(kind)
    with in_float64(rounded):
        exact = results(rounded, {n: [t.double() for t in of] for n, of in given.items()}, edges, extras)
    with torch.autocast("cpu", kind, enabled=is_cast):
        got, plain = (results(layer, given, edges, extras) for layer in (ours, theirs))
    assert [t.dtype for t in got] == [t.dtype for t in plain]
    assert_all_accurate(got[:2], plain[:2], exact[:2], floor=16 * ROUNDING["bf16"])
    assert [what.rpartition(" ")[2] for what in used(ours)] == ["bf16"]
