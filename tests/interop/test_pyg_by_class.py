"""Classes of PyG whose messages are told by the class give the same numbers as before."""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
from torch.nn import Linear, ReLU, Sequential

import gnnsparse
import gnnsparse.interop.pyg as interop
from gnnsparse.testing import assert_all_accurate, in_float64
from tests.helpers import ROUNDING
from tests.interop.pyg_cases import (
    EDGE_DIM,
    KINDS,
    OUT,
    RELATIONS,
    WIDTH,
    Case,
    both,
    close,
    left,
    made,
    of,
    pyg,
    used,
)
from tests.interop.test_pyg_edges import SOURCES, TARGETS, edges_of

_PAIR, _META = (WIDTH, WIDTH - 3), (KINDS, RELATIONS)
Given = dict[str, torch.Tensor]
Call = Callable[[Any, Given], torch.Tensor]


def _plain(layer: Any, g: Given) -> torch.Tensor:
    return layer(g["x"], g["edges"])


def _with_attr(layer: Any, g: Given) -> torch.Tensor:
    return layer(g["x"], g["edges"], g["attr"])


def _pair_with_attr(layer: Any, g: Given) -> torch.Tensor:
    return layer((g["x"], g["x_target"][:, 3:]), g["two_edges"], g["attr"])


def _of_kinds(layer: Any, g: Given) -> torch.Tensor:
    """Nodes of two kinds, of other numbers, and edges of three types, of which one has a single edge."""
    edges = g["two_edges"], g["back"], g["one_edge"]
    found = layer({"a": g["x"], "b": g["x_target"]}, dict(zip(RELATIONS, edges, strict=True)))
    return torch.cat([found[kind] for kind in KINDS])


def _of_relations(layer: Any, g: Given) -> torch.Tensor:
    edges = g["edges"]
    out, (_, weights) = layer(
        g["x"], edges, edges.sum(0) % 3, g["attr"] if layer.edge_dim else None, return_attention_weights=True
    )
    return torch.cat([out.flatten(), weights.flatten()])


def _of_layers(layer: Any, g: Given) -> torch.Tensor:
    stacked = torch.stack([g["x"], g["first"], g["x"] * 2], 1)
    return layer(stacked, g["edges"], *([] if layer.normalize else [g["w"]]))


def _heat(layer: Any, g: Given) -> torch.Tensor:
    kinds = torch.arange(SOURCES) % 2, torch.arange(g["edges"].shape[1]) % 2
    return layer(g["x"], g["edges"], *kinds, g["attr"])


def _networks(*widths: int, bias: bool = True) -> Callable[[], Any]:
    pairs = list(itertools.pairwise(widths))
    return lambda: Sequential(*(m for a, b in pairs for m in (ReLU(), Linear(a, b, bias=bias))))


_HEAT = WIDTH, OUT, 2, 2, 4, EDGE_DIM, 4
#: Layers with all that changes their `propagate`.
LAYERS: dict[str, tuple[Case, Call]] = {
    "HANConv": (of(WIDTH, OUT, _META, heads=2, negative_slope=0.4), _of_kinds),
    "HGTConv": (of(WIDTH, OUT, _META, heads=2), _of_kinds),
    "HGTConv as wide": (of(WIDTH, WIDTH, _META), _of_kinds),
    "RGATConv": (of(WIDTH, OUT, 4, heads=2, edge_dim=EDGE_DIM), _of_relations),
    "RGATConv of products": (
        of(
            WIDTH,
            OUT,
            4,
            num_bases=2,
            mod="scaled",
            attention_mechanism="within-relation",
            attention_mode="multiplicative-self-attention",
            heads=2,
            dim=2,
            concat=False,
        ),
        _of_relations,
    ),
    "SuperGATConv": (of(WIDTH, OUT, heads=3), _plain),
    "SuperGATConv of products": (of(WIDTH, OUT, attention_type="SD", concat=False, heads=2), _plain),
    "HEATConv": (of(*_HEAT, heads=3), _heat),
    "HEATConv of means": (of(*_HEAT, heads=2, concat=False, bias=False, root_weight=False), _heat),
    "HEATConv of one head": (of(*_HEAT), _heat),
    "GMMConv": (of(WIDTH, OUT, EDGE_DIM, 4), _with_attr),
    "GMMConv of pairs": (of(_PAIR, OUT, EDGE_DIM, 1, aggr="add"), _pair_with_attr),
    "NNConv": (of(WIDTH, OUT, lambda: Linear(EDGE_DIM, WIDTH * OUT)), _with_attr),
    "NNConv of a network": (
        of(_PAIR, OUT, _networks(EDGE_DIM, 6, WIDTH * OUT), aggr="mean"),
        _pair_with_attr,
    ),
    "NNConv without biases": (of(WIDTH, OUT, _networks(EDGE_DIM, 4, WIDTH * OUT, bias=False)), _with_attr),
    "DNAConv": (of(WIDTH, heads=4), _of_layers),
    "DNAConv of groups": (of(WIDTH, groups=2, heads=2, normalize=False), _of_layers),
    "DNAConv of one head": (of(WIDTH, cached=True, bias=False), _of_layers),
    "EGConv": (of(WIDTH, OUT, num_heads=2), _plain),
    "EGConv of all": (
        of(WIDTH, OUT, ["std", "symnorm", "max", "min", "var", "sum", "mean"], num_heads=4),
        _plain,
    ),
    "EGConv without loops": (of(WIDTH, OUT, ["std"], add_self_loops=False), _plain),
}


def inputs() -> Given:
    """Of graphs with repeated edges, and nodes without any; `two_edges` are between nodes of two kinds."""
    edges = edges_of(SOURCES, SOURCES)
    count = edges.shape[1]
    return {
        "edges": edges, "two_edges": edges_of(SOURCES, TARGETS), "back": edges_of(TARGETS, SOURCES),
        "one_edge": edges[:, :1].clone(), "x": torch.randn(SOURCES, WIDTH),
        "x_target": torch.randn(TARGETS, WIDTH), "first": torch.randn(SOURCES, WIDTH),
        "attr": torch.randn(count, EDGE_DIM), "w": torch.rand(count) + 0.1,
    }  # fmt: skip


def layers_of(name: str) -> tuple[Any, Any, Any]:
    case, call = LAYERS[name]
    layer = made(name.partition(" ")[0], case)
    if name.startswith("RGATConv"):  # which PyG leaves as the memory was
        torch.nn.init.normal_(layer.l2)
    return *both(layer), call


def results(layer: Any, given: Given, call: Any) -> list[torch.Tensor]:
    """The output, and the gradients of floating-point inputs and of parameters."""
    leaves = {
        k: t.detach().clone().requires_grad_() if t.is_floating_point() else t for k, t in given.items()
    }
    out = call(layer, leaves)
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out)
    wanted = [*(t for t in leaves.values() if t.requires_grad), *layer.parameters()]
    grads = torch.autograd.grad(out, wanted, probe, allow_unused=True)
    return [
        out.detach(),
        *(torch.zeros_like(t) if g is None else g for t, g in zip(wanted, grads, strict=True)),
    ]


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    """Outputs and all gradients of a layer and its accelerated copy, where float64 judges."""
    torch.manual_seed(0)
    theirs, ours, call = layers_of(name)
    theirs.eval(), ours.eval()
    assert "1 ready" in str(interop.report(ours))
    given, exactly = inputs(), copy.deepcopy(theirs)
    doubles = {k: t.double() if t.is_floating_point() else t for k, t in given.items()}
    with in_float64(exactly):
        exact = results(exactly, doubles, call)
    for _ in range(2):
        got, plain = results(ours, given, call), results(theirs, given, call)
        assert [t.dtype for t in got] == [t.dtype for t in plain]
        # Deviations are roots of differences, which magnify the roundings of both.
        floor = 512 if name == "EGConv of all" else 64
        assert_all_accurate(got, plain, exact, floor=floor * ROUNDING["fp32"])
    assert sum(used(ours).values()) == 2, used(ours)
    assert left(ours) == ""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", [name for name in LAYERS if " " not in name])
def test_narrow_dtypes(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    theirs, ours, call = layers_of(name)
    theirs.eval(), ours.eval()
    given = inputs()
    exact = call(theirs, given)
    narrow = {k: t.to(dtype) if t.is_floating_point() else t for k, t in given.items()}
    got, plain = (call(layer.to(dtype), narrow) for layer in (ours, theirs))
    assert got.dtype == plain.dtype == dtype
    rounding = ROUNDING["fp16" if dtype == torch.float16 else "bf16"]
    assert_all_accurate([got.float()], [plain.float()], [exact.double()], floor=16 * rounding)
    assert sum(used(ours).values()) == 1, left(ours)


@pytest.mark.parametrize("name", [name for name in LAYERS if " " not in name])
def test_autocast(name: str) -> None:
    torch.manual_seed(0)
    theirs, ours, call = layers_of(name)
    theirs.eval(), ours.eval()
    given = inputs()
    exact = results(theirs, given, call)
    with torch.autocast("cpu", torch.bfloat16):
        got, plain = results(ours, given, call), results(theirs, given, call)
    assert_all_accurate(
        [t.float() for t in got], [t.float() for t in plain], [t.double() for t in exact],
        floor=64 * ROUNDING["bf16"],
    )  # fmt: skip
    assert sum(used(ours).values()) == 1, left(ours)


def test_the_self_supervision_of_supergat() -> None:
    """What training samples, and the loss that is made of it, with its gradients, are PyG's."""
    for kind in ("MX", "SD"):
        found = []
        theirs, ours = both(pyg.SuperGATConv(WIDTH, OUT, 2, attention_type=kind, edge_sample_ratio=0.7))
        given = inputs()
        for layer in (theirs, ours):
            torch.manual_seed(3)
            random.seed(3)  # which negative samples are drawn by
            out = layer(given["x"], given["edges"])
            loss = layer.get_attention_loss()
            grads = torch.autograd.grad(out.square().sum() + loss, list(layer.parameters()))
            found.append([loss, layer.att_x, layer.att_y, *grads])
        for want, got in zip(*found, strict=True):
            close(got, want)
        assert used(ours) == {"spmm, fp32": 1}


@pytest.mark.parametrize("name", ["SuperGATConv", "HEATConv", "DNAConv"])
def test_dropout(name: str) -> None:
    """Training drops attention: no two calls are equal, and their mean is what nothing dropped gives."""
    torch.manual_seed(0)
    _, ours, call = layers_of(name)
    (ours.multi_head if name == "DNAConv" else ours).dropout = 0.3
    given = inputs()
    with torch.no_grad():
        ours.train()
        many = torch.stack([call(ours, given) for _ in range(400)])
        ours.eval()
        want = call(ours, given)
    assert not torch.equal(many[0], many[1])
    error = (many.mean(0) - want) / (many.std(0) / math.sqrt(400) + 1e-5)
    assert error.abs().max() < 6


def test_operands_are_made_once() -> None:
    """Also where the layer makes its edges anew in each call, and once more if these have changed."""
    for name in ("HANConv", "HGTConv", "DNAConv", "EGConv"):
        theirs, ours, call = layers_of(name)
        given = inputs()
        with mock.patch("gnnsparse.nn.adjacency.prepare", wraps=gnnsparse.prepare) as prepared:
            for _ in range(3):
                close(call(ours, given), call(theirs, given))
            assert prepared.call_count == 1, name
            given["edges"][0, :5] = 1
            given["two_edges"][0, :5] = 1
            close(call(ours, given), call(theirs, given))
            assert prepared.call_count == 2, name


def _hook(module: Any) -> None:
    module.register_forward_hook(lambda module, inputs, output: 2 * output)


#: What a layer is afterwards that is PyG's, and a part of the reason.
CHANGES: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "a message": (
        "SuperGATConv", lambda layer: setattr(layer, "message", lambda x_j, **_: 2 * x_j), "replaced"
    ),
    "a method": ("SuperGATConv", lambda layer: setattr(
        layer, "get_attention", lambda *_, **__: torch.ones(1, 3)), "replaced"),
    "a hook of messages": (
        "HEATConv", lambda layer: layer.register_message_forward_hook(lambda *_: None), "hooks"
    ),
    "an update": ("RGATConv", lambda layer: setattr(layer, "update", lambda aggr_out: aggr_out), "update"),
    "a hook of a map": ("HEATConv", lambda layer: _hook(layer.att), "`att`"),
    "a hook of a network": ("NNConv of a network", lambda layer: _hook(layer.nn), "`nn` has hooks"),
    "a hook of its last layer": ("NNConv of a network", lambda layer: _hook(layer.nn[-1]), "`nn`"),
    "a hook of relations": ("HGTConv", lambda layer: _hook(layer.v_rel), "its linear maps have hooks"),
    "a hook of a type": ("HGTConv", lambda layer: _hook(layer.out_lin.lins["a"]), "no plain linear"),
    "a hook in attention": ("DNAConv", lambda layer: _hook(layer.multi_head.lin_k), "`multi_head`"),
    "the aggregation": (
        "GMMConv", lambda layer: setattr(layer, "aggr_module", pyg.aggr.MaxAggregation()), "Max"
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_later_is_seen(change: str) -> None:
    name, run, why = CHANGES[change]
    theirs, ours, call = layers_of(name)
    given = inputs()
    theirs.eval(), ours.eval()
    call(ours, given)
    before = used(ours)
    for layer in (theirs, ours):
        run(layer)
    close(call(ours, given), call(theirs, given))
    assert used(ours) == before
    assert why in left(ours)


class Negated(pyg.SuperGATConv):
    """A class of a user with another message."""

    def message(self, **given: Any) -> torch.Tensor:
        return -super().message(**given)


class Doubled(Sequential):
    """A network of a user that is more than its layers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


def test_relations_in_another_order_are_left_to_pyg() -> None:
    """PyG takes the matrices of other relations for them."""
    theirs, ours, _ = layers_of("HGTConv")
    given = inputs()
    nodes = {"a": given["x"], "b": given["x_target"]}
    edges = dict(zip(RELATIONS, (given["two_edges"], given["back"], given["one_edge"]), strict=True))
    other = {relation: edges[relation] for relation in reversed(edges)}
    for kind in KINDS:
        close(ours(nodes, other)[kind], theirs(nodes, other)[kind])
    assert "not in the order of its metadata" in left(ours)
    missing = dict([*edges.items()][:1])
    for kind in KINDS:
        close(ours(nodes, missing)[kind], theirs(nodes, missing)[kind])
    assert used(ours) == {"graph_attention, fp32": 2}


def test_a_network_that_is_more_than_its_layers() -> None:
    plain, ours = both(pyg.NNConv(WIDTH, OUT, Doubled(Linear(EDGE_DIM, 2), ReLU(), Linear(2, WIDTH * OUT))))
    given = inputs()
    arguments = given["x"], given["edges"], given["attr"]
    close(ours(*arguments), plain(*arguments))
    assert "`nn` is of another class" in str(interop.report(ours))


def test_what_pyg_is_left_with() -> None:
    """Classes with messages of their own, gaussians of pairs, and networks whose matrices are cheaper."""
    assert "none that is recognised" in str(interop.report(interop.accelerate(Negated(WIDTH, OUT))))
    network = Sequential(Linear(EDGE_DIM, 300), ReLU(), Linear(300, 4 * OUT))
    given = inputs()
    for layer, why in [
        (pyg.GMMConv(WIDTH, OUT, EDGE_DIM, 2, separate_gaussians=True), "gaussians"),
        (pyg.NNConv(4, OUT, network), "cheaper"),
    ]:
        plain, ours = both(layer)
        arguments = given["x"][:, : layer.in_channels], given["edges"], given["attr"]
        close(ours(*arguments), plain(*arguments))
        assert why in left(ours)
    for layer in (pyg.HGTConv(WIDTH, OUT, _META), pyg.SuperGATConv(WIDTH, OUT).eval()):
        plain, ours = both(layer)
        torch._dynamo.reset()
        call = _of_kinds if isinstance(layer, pyg.HGTConv) else _plain
        with torch.no_grad():
            close(call(torch.compile(ours, backend="eager"), given), call(plain, given))
        assert not used(ours)
        told = "an adjacency" if isinstance(layer, pyg.HGTConv) else "a layer whose messages are told by its"
        assert f"torch.compile traces {told}" in left(ours)
        assert "torch.compiler.disable(layer)" in str(interop.report(ours))
