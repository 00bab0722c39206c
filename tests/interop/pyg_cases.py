"""Every convolution of PyG and its basic models: how each is made, and what it is called with."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
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

WIDTH, OUT, EDGE_DIM = 16, 8, 3
#: Node types and edge types of graphs of several kinds of nodes.
KINDS = ["a", "b"]
RELATIONS = [("a", "to", "b"), ("b", "back", "a"), ("a", "self", "a")]


@dataclass
class Graph:
    """Inputs of layers: an edge_index without repeats, the number of nodes, and features of both."""

    edges: torch.Tensor
    nodes: int
    extras: dict[str, torch.Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count, device = self.edges.shape[1], self.edges.device
        self.extras = {
            "w": torch.rand(count, device=device) + 0.1,
            "attr": torch.rand(count, EDGE_DIM, device=device),
            "pseudo": torch.rand(count, 2, device=device),
            "x0": torch.randn(self.nodes, WIDTH, device=device),
            "pos": torch.randn(self.nodes, 3, device=device),
            "kind": torch.arange(count, device=device) % 2,
            "node_kind": torch.arange(self.nodes, device=device) % 2,
        }

    def double(self) -> Graph:
        """The same inputs in float64."""
        other = Graph(self.edges, self.nodes)
        other.extras = {name: x.double() if x.is_floating_point() else x for name, x in self.extras.items()}
        return other

    def __getattr__(self, name: str) -> torch.Tensor:
        try:
            return self.extras[name]
        except KeyError:
            raise AttributeError(name) from None


Call = Callable[[Any, torch.Tensor, Graph], torch.Tensor]


def plain(layer: Any, x: torch.Tensor, g: Graph) -> torch.Tensor:
    return layer(x, g.edges)


def weighted(layer: Any, x: torch.Tensor, g: Graph) -> torch.Tensor:
    return layer(x, g.edges, g.w)


def with_attr(layer: Any, x: torch.Tensor, g: Graph) -> torch.Tensor:
    return layer(x, g.edges, g.attr)


def with_first(layer: Any, x: torch.Tensor, g: Graph) -> torch.Tensor:
    return layer(x, g.x0, g.edges)


def with_kinds(layer: Any, x: torch.Tensor, g: Graph) -> torch.Tensor:
    return layer(x, g.edges, g.kind)


def several(layer: Any, x: torch.Tensor, g: Graph) -> torch.Tensor:
    found = layer({"a": x, "b": x * 2}, dict.fromkeys(RELATIONS, g.edges))
    return torch.cat([found[kind] for kind in KINDS if found[kind] is not None])


def heat(layer: Any, x: torch.Tensor, g: Graph) -> torch.Tensor:
    return layer(x, g.edges, g.node_kind, g.kind, g.attr)


def mlp(inputs: int = WIDTH, out: int = OUT) -> Any:
    return Sequential(Linear(inputs, out), ReLU(), Linear(out, out))


def degrees() -> torch.Tensor:
    return torch.tensor([4, 8, 16, 8, 4, 2, 1, 1])


@dataclass(frozen=True)
class Case:
    """A layer, which `make` makes, and a call of it."""

    make: Callable[[], Any]
    call: Call = plain


def conv(name: str, *arguments: Any, **options: Any) -> Callable[[], Any]:
    return lambda: getattr(pyg, name)(*arguments, **options)


#: Class -> calls of it. The first one is what the table says of the class.
CASES: dict[str, list[Case]] = {
    "SimpleConv": [
        Case(conv("SimpleConv", "mean")),
        Case(conv("SimpleConv", "sum", "self_loop"), weighted),
        Case(conv("SimpleConv", "mean"), weighted),
        Case(conv("SimpleConv", "max"), weighted),
    ],
    "GCNConv": [
        Case(conv("GCNConv", WIDTH, OUT)),
        Case(conv("GCNConv", WIDTH, OUT), weighted),
        Case(conv("GCNConv", WIDTH, OUT, improved=True)),
        Case(conv("GCNConv", WIDTH, OUT, cached=True)),
        Case(conv("GCNConv", WIDTH, OUT, add_self_loops=False)),
        Case(conv("GCNConv", WIDTH, OUT, normalize=False)),
    ],
    "ChebConv": [Case(conv("ChebConv", WIDTH, OUT, 3)), Case(conv("ChebConv", WIDTH, OUT, 2), weighted)],
    "SAGEConv": [
        Case(conv("SAGEConv", WIDTH, OUT)),
        Case(conv("SAGEConv", WIDTH, OUT, aggr="max")),
        Case(conv("SAGEConv", WIDTH, OUT, aggr="min", project=True)),
        Case(conv("SAGEConv", WIDTH, OUT, aggr="sum", normalize=True)),
        Case(conv("SAGEConv", WIDTH, OUT, aggr=["mean", "max"])),
        Case(conv("SAGEConv", WIDTH, OUT, aggr="median")),
    ],
    "GraphConv": [
        Case(conv("GraphConv", WIDTH, OUT)),
        Case(conv("GraphConv", WIDTH, OUT, aggr="mean"), weighted),
        Case(conv("GraphConv", WIDTH, OUT, aggr="max"), weighted),
    ],
    "GatedGraphConv": [
        Case(conv("GatedGraphConv", WIDTH, 2)),
        Case(conv("GatedGraphConv", WIDTH, 2), weighted),
    ],
    "ResGatedGraphConv": [Case(conv("ResGatedGraphConv", WIDTH, OUT))],
    "GATConv": [
        Case(conv("GATConv", WIDTH, OUT, heads=2)),
        Case(conv("GATConv", WIDTH, OUT, concat=False, heads=3)),
        Case(conv("GATConv", WIDTH, OUT, edge_dim=EDGE_DIM, residual=True), with_attr),
        Case(conv("GATConv", WIDTH, OUT, add_self_loops=False)),
    ],
    "GATv2Conv": [
        Case(conv("GATv2Conv", WIDTH, OUT, heads=2)),
        Case(conv("GATv2Conv", WIDTH, OUT, share_weights=True)),
        Case(conv("GATv2Conv", WIDTH, OUT, edge_dim=EDGE_DIM), with_attr),
    ],
    "TransformerConv": [
        Case(conv("TransformerConv", WIDTH, OUT, heads=2)),
        Case(conv("TransformerConv", WIDTH, OUT, beta=True, edge_dim=EDGE_DIM), with_attr),
    ],
    "AGNNConv": [Case(conv("AGNNConv")), Case(conv("AGNNConv", add_self_loops=False))],
    "TAGConv": [
        Case(conv("TAGConv", WIDTH, OUT)),
        Case(conv("TAGConv", WIDTH, OUT, normalize=False), weighted),
    ],
    "GINConv": [
        Case(lambda: pyg.GINConv(mlp(), train_eps=True)),
        Case(lambda: pyg.GINConv(mlp(), aggr="max")),
    ],
    "GINEConv": [Case(lambda: pyg.GINEConv(mlp(), edge_dim=EDGE_DIM), with_attr)],
    "ARMAConv": [Case(conv("ARMAConv", WIDTH, OUT, 2, 2))],
    "SGConv": [Case(conv("SGConv", WIDTH, OUT, 2)), Case(conv("SGConv", WIDTH, OUT, cached=True), weighted)],
    "SSGConv": [Case(conv("SSGConv", WIDTH, OUT, 0.1, 2))],
    "APPNP": [Case(conv("APPNP", 3, 0.1)), Case(conv("APPNP", 2, 0.1), weighted)],
    "MFConv": [Case(conv("MFConv", WIDTH, OUT))],
    "RGCNConv": [
        Case(conv("RGCNConv", WIDTH, OUT, 2), with_kinds),
        Case(conv("RGCNConv", WIDTH, OUT, 2, num_bases=2), with_kinds),
        Case(conv("RGCNConv", WIDTH, OUT, 2, num_blocks=2), with_kinds),
    ],
    "FastRGCNConv": [Case(conv("FastRGCNConv", WIDTH, OUT, 2), with_kinds)],
    "RGATConv": [Case(conv("RGATConv", WIDTH, OUT, 2), with_kinds)],
    "SignedConv": [
        Case(conv("SignedConv", WIDTH, OUT, True), lambda layer, x, g: layer(x, g.edges, g.edges))
    ],
    "DNAConv": [Case(conv("DNAConv", WIDTH), lambda layer, x, g: layer(torch.stack([x, g.x0], 1), g.edges))],
    "PointNetConv": [
        Case(lambda: pyg.PointNetConv(mlp(WIDTH + 3)), lambda layer, x, g: layer(x, g.pos, g.edges))
    ],
    "GMMConv": [Case(conv("GMMConv", WIDTH, OUT, EDGE_DIM, 2), with_attr)],
    "NNConv": [Case(lambda: pyg.NNConv(WIDTH, OUT, Linear(EDGE_DIM, WIDTH * OUT)), with_attr)],
    "CGConv": [Case(conv("CGConv", WIDTH, EDGE_DIM), with_attr)],
    "EdgeConv": [Case(lambda: pyg.EdgeConv(mlp(2 * WIDTH)))],
    "PPFConv": [
        Case(
            lambda: pyg.PPFConv(mlp(WIDTH + 4)),
            lambda layer, x, g: layer(x, g.pos, torch.nn.functional.normalize(g.pos), g.edges),
        )
    ],
    "FeaStConv": [Case(conv("FeaStConv", WIDTH, OUT, 2))],
    "PointTransformerConv": [
        Case(conv("PointTransformerConv", WIDTH, OUT), lambda layer, x, g: layer(x, g.pos, g.edges))
    ],
    "HypergraphConv": [Case(conv("HypergraphConv", WIDTH, OUT))],
    "LEConv": [Case(conv("LEConv", WIDTH, OUT), weighted)],
    "PNAConv": [
        Case(lambda: pyg.PNAConv(WIDTH, OUT, ["mean", "max"], ["identity", "amplification"], degrees()))
    ],
    "ClusterGCNConv": [Case(conv("ClusterGCNConv", WIDTH, OUT, diag_lambda=0.5))],
    "GENConv": [Case(conv("GENConv", WIDTH, OUT)), Case(conv("GENConv", WIDTH, OUT, aggr="add"))],
    "GCN2Conv": [
        Case(conv("GCN2Conv", WIDTH, 0.2, 0.5, 1), with_first),
        Case(conv("GCN2Conv", WIDTH, 0.2, shared_weights=False), with_first),
    ],
    "WLConvContinuous": [Case(conv("WLConvContinuous")), Case(conv("WLConvContinuous"), weighted)],
    "FiLMConv": [Case(conv("FiLMConv", WIDTH, OUT))],
    "SuperGATConv": [Case(conv("SuperGATConv", WIDTH, OUT, heads=2))],
    "FAConv": [Case(conv("FAConv", WIDTH), with_first)],
    "EGConv": [Case(conv("EGConv", WIDTH, OUT, ["mean", "symnorm"], num_heads=2))],
    "PDNConv": [Case(conv("PDNConv", WIDTH, OUT, EDGE_DIM, 4), with_attr)],
    "GeneralConv": [
        Case(conv("GeneralConv", WIDTH, OUT)),
        Case(conv("GeneralConv", WIDTH, OUT, attention=True)),
    ],
    "HGTConv": [Case(conv("HGTConv", WIDTH, OUT, (KINDS, RELATIONS), heads=2), several)],
    "HEATConv": [Case(conv("HEATConv", WIDTH, OUT, 2, 2, 4, EDGE_DIM, 4, heads=2), heat)],
    "HeteroConv": [
        Case(
            lambda: pyg.HeteroConv(
                {
                    RELATIONS[0]: pyg.SAGEConv((WIDTH, WIDTH), OUT),
                    RELATIONS[1]: pyg.GraphConv((WIDTH, WIDTH), OUT),
                    RELATIONS[2]: pyg.GATConv(WIDTH, OUT),
                }
            ),
            several,
        )
    ],
    "HANConv": [Case(conv("HANConv", WIDTH, OUT, (KINDS, RELATIONS), heads=2), several)],
    "LGConv": [Case(conv("LGConv")), Case(conv("LGConv", normalize=False), weighted)],
    "PointGNNConv": [
        Case(
            lambda: pyg.PointGNNConv(mlp(WIDTH, 3), mlp(WIDTH + 3), mlp(OUT, WIDTH)),
            lambda layer, x, g: layer(x, g.pos, g.edges),
        )
    ],
    "GPSConv": [Case(lambda: pyg.GPSConv(WIDTH, pyg.GCNConv(WIDTH, WIDTH), heads=2, norm=None))],
    "AntiSymmetricConv": [Case(conv("AntiSymmetricConv", WIDTH))],
    "DirGNNConv": [Case(lambda: pyg.DirGNNConv(pyg.SAGEConv(WIDTH, OUT)))],
    "MixHopConv": [
        Case(conv("MixHopConv", WIDTH, OUT, [0, 1, 2])),
        Case(conv("MixHopConv", WIDTH, OUT), weighted),
    ],
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

MODELS: dict[str, list[Case]] = {
    "GCN": [Case(lambda: pyg.GCN(WIDTH, 8, 2, OUT))],
    "GraphSAGE": [Case(lambda: pyg.GraphSAGE(WIDTH, 8, 2, OUT))],
    "GIN": [Case(lambda: pyg.GIN(WIDTH, 8, 2, OUT))],
    "GAT": [
        Case(lambda: pyg.GAT(WIDTH, 8, 2, OUT, heads=2)),
        Case(lambda: pyg.GAT(WIDTH, 8, 2, OUT, v2=True)),
    ],
    "PNA": [
        Case(lambda: pyg.PNA(WIDTH, 8, 2, OUT, aggregators=["mean"], scalers=["identity"], deg=degrees()))
    ],
    "EdgeCNN": [Case(lambda: pyg.EdgeCNN(WIDTH, 8, 2, OUT))],
    "LightGCN": [
        Case(
            lambda: pyg.LightGCN(40, OUT, 2), lambda model, x, g: model.get_embedding(g.edges % 40) * x.sum()
        )
    ],
}


def made(case: Case, device: str = "cpu") -> Any:
    """The layer of a case, whose parameters that are 0 or 1 at first are random."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = case.make()
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


def used(model: Any) -> dict[str, int]:
    """What the calls of a model's layers ran on."""
    return {what: n for row in interop.report(model).rows for what, n in row.calls.items()}


def left(model: Any) -> str:
    """Why calls of a model's layers were left to PyG."""
    return " ".join(why for row in interop.report(model).rows for why in row.fallbacks)


def outcome(call: Callable[[torch.Tensor], torch.Tensor], model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    """The output of a call, the gradient of x, and that of all parameters of the model as one vector."""
    x = x.detach().clone().requires_grad_()
    out = call(x)
    probe = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out)
    of = [x, *(p for p in model.parameters() if p.requires_grad)]
    grads = torch.autograd.grad(out, of, probe, allow_unused=True)
    found = [torch.zeros_like(t) if g is None else g for t, g in zip(of, grads, strict=True)]
    rest = [torch.cat([g.flatten() for g in found[1:]])] if len(found) > 1 else []
    return [out.detach(), found[0], *rest]
