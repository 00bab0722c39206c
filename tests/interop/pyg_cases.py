"""Every convolution of PyG and its basic models: how each is made, and what it is called with."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn import Linear, ReLU, Sequential

from gnnsparse.data.optional import import_optional

try:
    pyg: Any = import_optional("torch_geometric.nn", "this comparison")
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)
import gnnsparse.interop.pyg as interop
from gnnsparse.testing import assert_all_accurate, in_float64
from tests.helpers import ROUNDING

WIDTH, OUT, EDGE_DIM = 16, 8, 3
#: Node types and edge types of graphs of several kinds of nodes.
KINDS = ["a", "b"]
RELATIONS = [("a", "to", "b"), ("b", "back", "a"), ("a", "self", "a")]


class Graph(SimpleNamespace):
    """Inputs of layers: an edge_index without repeats, the number of nodes, and features of both."""

    def __init__(self, edges: torch.Tensor, nodes: int) -> None:
        count, device = edges.shape[1], edges.device
        super().__init__(
            edges=edges, nodes=nodes,
            w=torch.rand(count, device=device) + 0.1,
            attr=torch.rand(count, EDGE_DIM, device=device),
            x0=torch.randn(nodes, WIDTH, device=device),
            pos=(pos := torch.randn(nodes, 3, device=device)),
            normal=torch.nn.functional.normalize(pos),
            kind=torch.arange(count, device=device) % 2,
            node_kind=torch.arange(nodes, device=device) % 2,
        )  # fmt: skip

    def double(self) -> Graph:
        """The same inputs in float64."""
        other = Graph(self.edges, self.nodes)
        for name, x in vars(self).items():
            if isinstance(x, torch.Tensor) and x.is_floating_point():
                setattr(other, name, x.double())
        return other


Call = Callable[[Any, torch.Tensor, Graph], torch.Tensor]


def with_edges(*extras: str) -> Call:
    """Calls a layer with x, the edges and inputs of these names."""
    return lambda layer, x, g: layer(x, g.edges, *(getattr(g, name) for name in extras))


plain, weighted, with_attr, with_kinds = (with_edges(*names) for names in ((), ("w",), ("attr",), ("kind",)))


def before_edges(*extras: str) -> Call:
    """Calls a layer with x, inputs of these names, and the edges."""
    return lambda layer, x, g: layer(x, *(getattr(g, name) for name in extras), g.edges)


with_first, with_pos = before_edges("x0"), before_edges("pos")


def several(layer: Any, x: torch.Tensor, g: Graph) -> torch.Tensor:
    found = layer({"a": x, "b": x * 2}, dict.fromkeys(RELATIONS, g.edges))
    return torch.cat([found[kind] for kind in KINDS if found[kind] is not None])


def mlp(inputs: int = WIDTH, out: int = OUT) -> Any:
    return Sequential(Linear(inputs, out), ReLU(), Linear(out, out))


def degrees() -> torch.Tensor:
    return torch.tensor([4, 8, 16, 8, 4, 2, 1, 1])


@dataclass(frozen=True)
class Case:
    """The arguments of a layer, of which those that are functions make the argument, and a call of it."""

    arguments: tuple[Any, ...]
    options: dict[str, Any]
    call: Call

    def make(self, name: str) -> Any:
        return getattr(pyg, name)(*(a() if callable(a) else a for a in self.arguments), **self.options)


def of(*arguments: Any, call: Call = plain, **options: Any) -> Case:
    return Case(arguments, options, call)


def hetero() -> Any:
    layers = pyg.SAGEConv((WIDTH, WIDTH), OUT), pyg.GraphConv((WIDTH, WIDTH), OUT), pyg.GATConv(WIDTH, OUT)
    return dict(zip(RELATIONS, layers, strict=True))


_BOTH = WIDTH, OUT
#: Class -> calls of it. The first one is what the table says of the class.
CASES: dict[str, list[Case]] = {
    "SimpleConv": [
        of("mean"), of("sum", "self_loop", call=weighted), of("mean", call=weighted),
        of("max", call=weighted),
    ],
    "GCNConv": [
        of(*_BOTH), of(*_BOTH, call=weighted), of(*_BOTH, improved=True), of(*_BOTH, cached=True),
        of(*_BOTH, add_self_loops=False), of(*_BOTH, normalize=False),
    ],
    "ChebConv": [of(*_BOTH, 3), of(*_BOTH, 2, call=weighted)],
    "SAGEConv": [
        of(*_BOTH), of(*_BOTH, aggr="max"), of(*_BOTH, aggr="min", project=True),
        of(*_BOTH, aggr="sum", normalize=True), of(*_BOTH, aggr=["mean", "max"]), of(*_BOTH, aggr="median"),
    ],
    "GraphConv": [of(*_BOTH), of(*_BOTH, aggr="mean", call=weighted), of(*_BOTH, aggr="max", call=weighted)],
    "GatedGraphConv": [of(WIDTH, 2), of(WIDTH, 2, call=weighted)],
    "ResGatedGraphConv": [of(*_BOTH)],
    "GATConv": [
        of(*_BOTH, heads=2), of(*_BOTH, concat=False, heads=3), of(*_BOTH, add_self_loops=False),
        of(*_BOTH, edge_dim=EDGE_DIM, residual=True, call=with_attr),
    ],
    "GATv2Conv": [
        of(*_BOTH, heads=2), of(*_BOTH, share_weights=True), of(*_BOTH, edge_dim=EDGE_DIM, call=with_attr),
    ],
    "TransformerConv": [of(*_BOTH, heads=2), of(*_BOTH, beta=True, edge_dim=EDGE_DIM, call=with_attr)],
    "AGNNConv": [of(), of(add_self_loops=False)],
    "TAGConv": [of(*_BOTH), of(*_BOTH, normalize=False, call=weighted)],
    "GINConv": [of(mlp, train_eps=True), of(mlp, aggr="max")],
    "GINEConv": [of(mlp, edge_dim=EDGE_DIM, call=with_attr)],
    "ARMAConv": [of(*_BOTH, 2, 2)],
    "SGConv": [of(*_BOTH, 2), of(*_BOTH, cached=True, call=weighted)],
    "SSGConv": [of(*_BOTH, 0.1, 2)],
    "APPNP": [of(3, 0.1), of(2, 0.1, call=weighted)],
    "MFConv": [of(*_BOTH)],
    "RGCNConv": [
        of(*_BOTH, 2, call=with_kinds), of(*_BOTH, 2, num_bases=2, call=with_kinds),
        of(*_BOTH, 2, num_blocks=2, call=with_kinds), of(*_BOTH, 40, aggr="add", call=with_kinds),
        of(*_BOTH, 2, aggr="max", call=with_kinds),
    ],
    "FastRGCNConv": [
        of(*_BOTH, 2, call=with_kinds), of(*_BOTH, 40, num_bases=2, aggr="add", call=with_kinds),
        of(*_BOTH, 2, num_blocks=2, call=with_kinds),
    ],
    "RGATConv": [
        of(*_BOTH, 2, call=with_kinds),
        of(
            *_BOTH, 2, num_bases=2, mod="additive", attention_mode="multiplicative-self-attention", heads=2,
            dim=3, edge_dim=EDGE_DIM, call=with_edges("kind", "attr"),
        ),
        of(*_BOTH, 40, attention_mechanism="within-relation", mod="f-scaled", heads=2, call=with_kinds),
    ],
    "SignedConv": [of(*_BOTH, True, call=with_edges("edges"))],
    "DNAConv": [of(WIDTH, call=lambda layer, x, g: layer(torch.stack([x, g.x0], 1), g.edges))],
    "PointNetConv": [of(lambda: mlp(WIDTH + 3), call=with_pos)],
    "GMMConv": [
        of(*_BOTH, EDGE_DIM, 2, call=with_attr), of(*_BOTH, EDGE_DIM, 2, aggr="max", call=with_attr),
    ],
    "NNConv": [
        of(*_BOTH, lambda: Linear(EDGE_DIM, WIDTH * OUT), call=with_attr),
        of(*_BOTH, lambda: mlp(EDGE_DIM, WIDTH * OUT), aggr="mean", call=with_attr),
    ],
    "CGConv": [of(WIDTH, EDGE_DIM, call=with_attr)],
    "EdgeConv": [of(lambda: mlp(2 * WIDTH))],
    "PPFConv": [of(lambda: mlp(WIDTH + 4), call=before_edges("pos", "normal"))],
    "FeaStConv": [of(*_BOTH, 2)],
    "PointTransformerConv": [of(*_BOTH, call=with_pos)],
    "HypergraphConv": [of(*_BOTH)],
    "LEConv": [of(*_BOTH, call=weighted)],
    "PNAConv": [of(*_BOTH, ["mean", "max"], ["identity", "amplification"], degrees)],
    "ClusterGCNConv": [of(*_BOTH, diag_lambda=0.5)],
    "GENConv": [of(*_BOTH), of(*_BOTH, aggr="add")],
    "GCN2Conv": [
        of(WIDTH, 0.2, 0.5, 1, call=with_first), of(WIDTH, 0.2, shared_weights=False, call=with_first),
    ],
    "WLConvContinuous": [of(), of(call=weighted)],
    "FiLMConv": [of(*_BOTH)],
    "SuperGATConv": [of(*_BOTH, heads=2), of(*_BOTH, heads=2, attention_type="SD", concat=False)],
    "FAConv": [of(WIDTH, call=with_first)],
    "EGConv": [of(*_BOTH, ["mean", "symnorm"], num_heads=2), of(*_BOTH, ["max", "var"], num_heads=2)],
    "PDNConv": [of(*_BOTH, EDGE_DIM, 4, call=with_attr)],
    "GeneralConv": [of(*_BOTH), of(*_BOTH, attention=True)],
    "HGTConv": [of(*_BOTH, (KINDS, RELATIONS), heads=2, call=several)],
    "HEATConv": [of(*_BOTH, 2, 2, 4, EDGE_DIM, 4, heads=2, call=with_edges("node_kind", "kind", "attr"))],
    "HeteroConv": [of(hetero, call=several)],
    "HANConv": [of(*_BOTH, (KINDS, RELATIONS), heads=2, call=several)],
    "LGConv": [of(), of(normalize=False, call=weighted)],
    "PointGNNConv": [
        of(lambda: mlp(WIDTH, 3), lambda: mlp(WIDTH + 3), lambda: mlp(OUT, WIDTH), call=with_pos),
    ],
    "GPSConv": [of(WIDTH, lambda: pyg.GCNConv(WIDTH, WIDTH), heads=2, norm=None)],
    "AntiSymmetricConv": [of(WIDTH)],
    "DirGNNConv": [of(lambda: pyg.SAGEConv(WIDTH, OUT))],
    "MixHopConv": [of(*_BOTH, [0, 1, 2]), of(*_BOTH, call=weighted)],
}  # fmt: skip
MODELS: dict[str, list[Case]] = {
    "GCN": [of(WIDTH, 8, 2, OUT)],
    "GraphSAGE": [of(WIDTH, 8, 2, OUT)],
    "GIN": [of(WIDTH, 8, 2, OUT)],
    "GAT": [of(WIDTH, 8, 2, OUT, heads=2), of(WIDTH, 8, 2, OUT, v2=True)],
    "PNA": [of(WIDTH, 8, 2, OUT, aggregators=["mean"], scalers=["identity"], deg=degrees())],
    "EdgeCNN": [of(WIDTH, 8, 2, OUT)],
    "LightGCN": [of(40, OUT, 2, call=lambda model, x, g: model.get_embedding(g.edges % 40) * x.sum())],
}
#: Classes that are not called here, and why.
NOT_CALLED = {
    "MessagePassing": "the base class, whose message has no arguments",
    "CuGraphSAGEConv": "needs cugraph-pyg",
    "CuGraphGATConv": "needs cugraph-pyg",
    "CuGraphRGCNConv": "needs cugraph-pyg",
    "FusedGATConv": "needs dgNN",
    "GravNetConv": "needs torch-cluster",
    "DynamicEdgeConv": "needs torch-cluster",
    "XConv": "needs torch-cluster",
    "SplineConv": "needs pyg-lib",
    "PANConv": "needs torch-sparse",
    "WLConv": "has integer features and no gradient",
    "MeshCNNConv": "needs edges of a mesh, with four neighbours each",
}


def made(name: str, case: Case, device: str = "cpu") -> Any:
    """The layer of a case, whose parameters that are 0 or 1 at first are random."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = case.make(name)
    for parameter in layer.parameters():
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter)
    return layer.to(device)


# What tests of accelerated layers have in common.


def edges_of(seed: int = 0, count: int = 160, *, nodes: int = 37, device: str = "cpu") -> torch.Tensor:
    return torch.randint(0, nodes, (2, count), generator=torch.Generator().manual_seed(seed)).to(device)


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def both(layer: Any) -> tuple[Any, Any]:
    """A layer and its accelerated copy."""
    return layer, interop.accelerate(copy.deepcopy(layer), convert="always")


def see_change(theirs: Any, ours: Any, given: Any, change: Callable[[Any], Any], is_ours: bool) -> None:
    """Compares both before and after a change, which leaves the accelerated one to PyG unless `is_ours`."""
    close(ours(*given), theirs(*given))
    found = []
    for layer in (theirs, ours):
        torch.manual_seed(3)
        change(layer)
    for layer in (theirs, ours):
        torch.manual_seed(4)
        try:
            found.append(layer(*given))
        except RuntimeError as problem:  # a change that PyG refuses
            found.append(str(problem))
    assert type(found[0]) is type(found[1])
    if isinstance(found[0], torch.Tensor):
        close(found[1], found[0])
    assert sum(used(ours).values()) == 1 + is_ours, str(interop.report(ours))


def used(model: Any) -> dict[str, int]:
    """What the calls of a model's layers ran on."""
    return {what: n for row in interop.report(model).rows for what, n in row.calls.items()}


def left(model: Any) -> str:
    """Why calls of a model's layers were left to PyG."""
    return " ".join(why for row in interop.report(model).rows for why in row.fallbacks)


def judge(theirs: Any, ours: Any, x: torch.Tensor, graph: Any, call: Any = None, calls: int = 1) -> None:
    """Compares results of calls of a layer and of its accelerated copy, float64 judging."""
    exactly = copy.deepcopy(theirs)
    inputs = x.double(), graph.double() if isinstance(graph, Graph) or graph.is_floating_point() else graph

    def compute() -> list[torch.Tensor]:
        with in_float64(exactly):
            return _results(exactly, *inputs, call)

    for right in [compute] if calls == 1 else [compute() for _ in range(calls)]:
        expected, got = _results(theirs, x, graph, call), _results(ours, x, graph, call)
        assert [t.dtype for t in got] == [t.dtype for t in expected]
        # A layer rounds about 16 times from its input to a gradient, and a model of two twice as often.
        assert_all_accurate(got, expected, right, floor=32 * ROUNDING["fp32"])


def _results(model: Any, x: torch.Tensor, graph: Any, call: Any) -> list[torch.Tensor]:
    """The output of a call, the gradient of x, and that of all parameters of the model as one vector."""
    x = x.detach().clone().requires_grad_()
    out = model(x, graph) if call is None else call(model, x, graph)
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out)
    of = [x, *(p for p in model.parameters() if p.requires_grad)]
    grads = torch.autograd.grad(out, of, probe, allow_unused=True)
    found = [torch.zeros_like(t) if g is None else g for t, g in zip(of, grads, strict=True)]
    rest = [torch.cat([g.flatten() for g in found[1:]])] if len(found) > 1 else []
    return [out.detach(), found[0], *rest]
