"""The layers on `aggregate_edges` against PyG's, in 16 bits, compiled, and what they refuse."""

from __future__ import annotations

import copy
import functools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.nn import (
    CGConv,
    EdgeConv,
    FAConv,
    FiLMConv,
    GatedGCNConv,
    GENConv,
    GINEConv,
    PNAConv,
    PointNetConv,
    ResGatedGraphConv,
)
from gnnsparse.testing import with_gradients
from tests.helpers import assert_same_results, named
from tests.nn.pyg_layers import SQUARE, TALL, WIDE, edges, pair, pyg

NONE = torch.empty(2, 0, dtype=torch.int64)
SIZES = pytest.mark.parametrize("size", [SQUARE, WIDE, TALL], ids=str)


def network(width: int = 6, out: int = 3) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(width, 8), torch.nn.Tanh(), torch.nn.Linear(8, out))


def learned(module: Any) -> dict[str, torch.Tensor]:
    return {name: p for name, p in named(module).items() if p.requires_grad}


def compare(
    layers: tuple[Any, Any], size: tuple[int, int], widths: tuple[int, int], edge_dim: int | None = None, *,
    seed: int = 0, as_pair: bool = True,
) -> None:  # fmt: skip
    """Compare with repeated edges, as an edge_index and as an operand, and without any edge."""
    ours, theirs = layers
    for index in (edges(size, seed), NONE):
        inputs = [torch.randn(count, width) for count, width in zip(size, widths, strict=True)][: 1 + as_pair]
        inputs += [] if edge_dim is None else [torch.randn(index.shape[1], edge_dim)]
        operand = gnnsparse.prepare(index, num_nodes=size, cache=False)
        for adj in (index, operand):

            def call(layer: Any, *given: torch.Tensor, adj: Any = adj, index: Any = index) -> torch.Tensor:
                nodes, rest = (given[:2], given[2:]) if as_pair else (given[0], given[1:])
                out: torch.Tensor = layer(nodes, index if layer is theirs else adj, *rest)
                return out

            assert_same_results(ours, theirs, call, inputs, parameters=learned)


@SIZES
@pytest.mark.parametrize("edge_dim", [None, 3, 20])
@pytest.mark.parametrize("train_eps", [True, False])
def test_gine(size: tuple[int, int], edge_dim: int | None, train_eps: bool) -> None:
    layers = pair("GINEConv", network, eps=0.3, train_eps=train_eps, edge_dim=edge_dim)
    compare(layers, size, (6, 6), edge_dim or 6)


BIPARTITE = {SQUARE: (6, 6), WIDE: (6, 4), TALL: (6, 4)}


@SIZES
@pytest.mark.parametrize("edge_dim", [None, 3, 20])
@pytest.mark.parametrize(
    "act", [torch.nn.Sigmoid(), torch.nn.LeakyReLU(0.2), torch.nn.ReLU(inplace=True)], ids=str
)
def test_res_gated(size: tuple[int, int], edge_dim: int | None, act: Any) -> None:
    options: dict[str, Any] = {"act": act, "root_weight": edge_dim != 20, "bias": edge_dim != 3}
    widths = BIPARTITE[size]
    compare(pair("ResGatedGraphConv", widths, 5, edge_dim=edge_dim, **options), size, widths, edge_dim)


@SIZES
@pytest.mark.parametrize("dim", [0, 3, 20])
@pytest.mark.parametrize("aggr", ["add", "mean", "max"])
def test_crystal_graph(size: tuple[int, int], dim: int, aggr: str) -> None:
    widths = BIPARTITE[size]
    layers = pair("CGConv", widths, dim, aggr, batch_norm=dim == 3, bias=dim != 20)
    compare(layers, size, widths, dim or None)


@SIZES
@pytest.mark.parametrize("relations", [1, 3])
@pytest.mark.parametrize("nn", [None, lambda: torch.nn.Sequential(torch.nn.Linear(4, 10), torch.nn.Tanh())])
def test_film(size: tuple[int, int], relations: int, nn: Any) -> None:
    layers = pair("FiLMConv", (6, 4), 5, relations, nn, aggr="max" if nn else "mean")
    ours, theirs = layers
    for index in (edges(size), NONE):
        kinds = torch.randint(0, relations, index.shape[1:])

        def call(layer: Any, *x: torch.Tensor, index: Any = index, kinds: Any = kinds) -> Any:
            return layer(x, index, kinds)

        inputs = [torch.randn(count, width) for count, width in zip(size, (6, 4), strict=True)]
        assert_same_results(ours, theirs, call, inputs)


GEN: list[dict[str, Any]] = [
    {"learn_t": True, "t": 0.7, "norm": "layer"},
    {"t": 2.0, "msg_norm": True, "learn_msg_scale": True, "num_layers": 3, "norm": "layer"},
    {"aggr": "mean", "msg_norm": True, "norm": None, "bias": True},
    {"aggr": "max", "expansion": 3},
    {"aggr": "powermean", "p": 1.7, "learn_p": True, "norm": "layer"},
    {"aggr": "powermean", "p": -0.5, "norm": None, "num_layers": 1},
    {"aggr": "powermean", "norm": "layer"},
    {"aggr": "add", "num_layers": 1, "bias": True, "norm": "instance", "eps": 0.1},
]


@SIZES
@pytest.mark.parametrize("edge_dim", [None, 5, 3, 20])
@pytest.mark.parametrize("options", GEN, ids=str)
def test_gen(size: tuple[int, int], edge_dim: int | None, options: dict[str, Any]) -> None:
    widths = (5, 5) if edge_dim == 3 else BIPARTITE[size]
    compare(pair("GENConv", widths, 5, edge_dim=edge_dim, **options), size, widths, edge_dim)


ALL: dict[str, Any] = {
    "aggregators": ["mean", "min", "max", "std", "var", "sum"],
    "scalers": ["identity", "amplification", "attenuation", "linear", "inverse_linear"],
}
FEW: dict[str, Any] = {"aggregators": ["max", "mean"], "scalers": ["attenuation"]}


@pytest.mark.parametrize("edge_dim", [None, 3, 20])
@pytest.mark.parametrize(
    "options",
    [
        ALL,
        {**FEW, "towers": 3, "post_layers": 3, "act": "leaky_relu", "act_kwargs": {"negative_slope": 0.3}},
        {**ALL, "towers": 2, "divide_input": True, "train_norm": True},
        {**FEW, "towers": 2, "pre_layers": 3, "act": "tanh"},
    ],
    ids=["all", "towers", "divided", "deep"],
)
def test_pna(edge_dim: int | None, options: dict[str, Any]) -> None:
    deg = torch.tensor([3, 5, 8, 2, 0, 1])
    layers = pair("PNAConv", 6, 12, deg=deg, edge_dim=edge_dim, **options)
    compare(layers, SQUARE, (6, 6), edge_dim, as_pair=False)


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_pna_of_many_features_of_edges() -> None:
    """Under vmap, with nodes that are the same for all."""
    torch.manual_seed(0)
    layer = PNAConv(6, 4, **ALL, deg=torch.tensor([2, 3, 4]), edge_dim=3)
    x, edges, attr = torch.randn(7, 6), torch.randint(0, 7, (2, 20)), torch.randn(3, 20, 3)
    run = lambda of: layer(x, edges, of)  # noqa: E731
    torch.testing.assert_close(torch.vmap(run)(attr), torch.stack([run(of) for of in attr]))


def test_degree_histogram() -> None:
    loader = [SimpleNamespace(edge_index=edges(SQUARE, seed), num_nodes=40 + seed) for seed in range(3)]
    ours, theirs = (kind.get_degree_histogram(loader) for kind in (PNAConv, pyg.PNAConv))
    assert torch.equal(ours, theirs)


def gated_gcn(layer: Any, nodes: Any, index: torch.Tensor, attr: torch.Tensor | None) -> tuple[Any, Any]:
    """The layer as its authors wrote it."""
    (x, y), (source, target) = nodes, index
    new = layer.D(x)[source] + layer.E(y)[target] + (0 if attr is None else layer.C(attr))
    gate = new.sigmoid()
    sums = [
        new.new_zeros(len(y), new.shape[1]).index_add(0, target, t) for t in (gate * layer.B(x)[source], gate)
    ]
    found = []
    norms = (layer.bn_node_h, y), (layer.bn_node_e, attr)
    for out, (norm, given) in zip((layer.A(y) + sums[0] / (sums[1] + 1e-6), new), norms, strict=True):
        out = (out if norm is None else norm(out)).relu()
        found.append(
            out + given if layer.residual and given is not None and given.shape == out.shape else out
        )
    return found[0], found[1]


@SIZES
@pytest.mark.parametrize("edge_dim", [None, 3, 5, 20])
@pytest.mark.parametrize("options", [{}, {"batch_norm": False, "residual": False}], ids=str)
def test_gated_gcn(size: tuple[int, int], edge_dim: int | None, options: dict[str, Any]) -> None:
    index = edges(size)
    layer = GatedGCNConv((6, 5), 5, edge_dim, **options)
    inputs = [torch.randn(size[0], 6), torch.randn(size[1], 5)]
    inputs += [] if edge_dim is None else [torch.randn(index.shape[1], edge_dim)]
    layers = layer, copy.deepcopy(layer)
    for adj in (index, gnnsparse.prepare(index, num_nodes=size, cache=False)):

        def call(layer: Any, x: Any, y: Any, attr: Any = None, *, adj: Any = adj) -> torch.Tensor:
            is_ours = layer is layers[0]
            found = layer((x, y), adj, attr) if is_ours else gated_gcn(layer, (x, y), index, attr)
            return torch.cat([out.flatten() for out in found])

        assert_same_results(*layers, call, inputs)


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("eps", [0.0, 0.3])
def test_frequency_adaptive(normalize: bool, loops: bool, eps: float) -> None:
    ours, theirs = pair("FAConv", 6, eps, add_self_loops=loops, normalize=normalize)
    x, x_0 = torch.randn(40, 6), torch.randn(40, 6)
    for index in (edges(SQUARE), edges(SQUARE, repeats=False), NONE):
        weights = [] if normalize else [torch.rand(index.shape[1])]
        all_loops = torch.arange(40).expand(2, -1)
        others = index[:, index[0] != index[1]]
        whole = torch.cat([others, all_loops], dim=1) if loops and normalize else index
        for adj in (index, gnnsparse.prepare(whole, num_nodes=40, cache=False)):

            def call(layer: Any, *given: torch.Tensor, adj: Any = adj, index: Any = index) -> Any:
                return layer(*given[:2], index if layer is theirs else adj, *given[2:])

            inputs = [x, x_0, *weights] if eps else [x, *weights]
            of = call if eps else lambda layer, x, *w, call=call: call(layer, x, x_0.to(x), *w)
            assert_same_results(ours, theirs, of, inputs)
        out = ours(x, x_0, index, *weights, return_attention_weights=True)[1]
        want = theirs(x, x_0, index, *weights, return_attention_weights=True)[1]
        assert torch.equal(out[0], want[0])
        torch.testing.assert_close(out[1], want[1])


def test_dropout_of_attention() -> None:
    """Weights are dropped in training alone, and divided by the share of those that are left."""
    layer = FAConv(1, eps=0.0, dropout=0.4, normalize=False)
    index = torch.stack([torch.zeros(9000, dtype=torch.int64), torch.arange(9000)])
    x, ones = torch.ones(9000, 1), torch.ones(9000)
    whole = layer.eval()(x, x, index, ones)
    found = layer.train()(x, x, index, ones) / whole
    assert abs(float((found == 0).float().mean()) - 0.4) < 5 * (0.4 * 0.6 / 9000) ** 0.5
    torch.testing.assert_close(found[found != 0], torch.full_like(found[found != 0], 1 / 0.6))


class Wide(torch.nn.Module):
    """A network that is no torch.nn.Sequential."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.lin = torch.nn.Linear(width, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lin(x).tanh()


#: Networks of pairs: those without a row for each edge, for any reduction and for sums, and others.
PAIRS: dict[str, Any] = {
    "linear": lambda n: torch.nn.Linear(n, 5),
    "activation": lambda n: torch.nn.Sequential(torch.nn.Linear(n, 5), torch.nn.LeakyReLU(0.2)),
    "two": lambda n: torch.nn.Sequential(torch.nn.Linear(n, 8), torch.nn.ReLU(), torch.nn.Linear(8, 5)),
    "deep": lambda n: torch.nn.Sequential(torch.nn.Linear(n, 5), torch.nn.LayerNorm(5), torch.nn.Tanh()),
    "other": Wide,
}


@SIZES
@pytest.mark.parametrize("network", PAIRS)
@pytest.mark.parametrize("aggr", ["max", "add", "mean"])
def test_edge_conv(size: tuple[int, int], network: str, aggr: str) -> None:
    layers = pair("EdgeConv", functools.partial(PAIRS[network], 12), aggr=aggr)
    compare(layers, size, (6, 6))


@SIZES
@pytest.mark.parametrize("network", [*PAIRS, None])
@pytest.mark.parametrize("with_x", [True, False])
@pytest.mark.parametrize(("aggr", "loops"), [("max", True), ("add", False)])
def test_point_net(size: tuple[int, int], network: str | None, with_x: bool, aggr: str, loops: bool) -> None:
    make = None if network is None else functools.partial(PAIRS[network], 9 if with_x else 3)
    behind = None if network is None else functools.partial(torch.nn.Linear, 5, 4)
    ours, theirs = pair("PointNetConv", make, behind, aggr=aggr, add_self_loops=loops)
    for index in (edges(size), NONE):
        whole = index
        if loops:
            nodes = torch.arange(min(size)).expand(2, -1)
            whole = torch.cat([index[:, index[0] != index[1]], nodes], dim=1)
        operand = gnnsparse.prepare(whole, num_nodes=size, cache=False)
        for adj in (index, operand) if size == SQUARE or not loops else (index,):

            def call(layer: Any, p: Any, q: Any, x: Any = None, *, adj: Any = adj, index: Any = index) -> Any:
                return layer(x, (p, q), index if layer is theirs else adj)

            inputs = [torch.randn(count, 3) for count in size]
            inputs += [torch.randn(size[0], 6)] if with_x else []
            assert_same_results(ours, theirs, call, inputs)


def test_differences_of_large_positions() -> None:
    """A common offset takes no digits from the difference of two positions."""
    x = torch.randn(40, 3) + 5000
    for name, call in (
        ("EdgeConv", lambda layer, x: layer(x - 5000, edges())),
        ("PointNetConv", lambda layer, x: layer(None, x, edges())),
    ):
        ours, theirs = pair(name, functools.partial(torch.nn.Linear, 6 if name == "EdgeConv" else 3, 5))
        assert_same_results(ours, theirs, call, [x])


def test_differences_without_sources_or_with_infinite_ones() -> None:
    """What is subtracted from all nodes is finite, whatever one of them is."""
    layer = EdgeConv(PAIRS["two"](12), aggr="mean")
    out = layer((torch.randn(0, 6), torch.randn(4, 6)), NONE)
    out.sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters() if p.grad is not None)
    x, index = torch.randn(40, 6), edges()
    for bad in (torch.nan, torch.inf):
        x[3] = bad
        reached = torch.zeros(40, dtype=torch.bool).index_fill(0, index[1][(index == 3).any(0)], True)
        assert not bool(reached.all())
        assert bool(layer(x, index)[~reached].isfinite().all())


def edge_attr_of(size: int = 20) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Features of nodes, edges of which some are repeated, and 3 features of each."""
    index = torch.randint(0, size - 4, (2, 60))
    index[:, 5] = index[:, 6]
    return torch.randn(size, 6), index, torch.randn(60, 3)


#: Layers with edge features.
WITH_EDGES: dict[str, Any] = {
    "GINEConv": lambda: GINEConv(network(), train_eps=True, edge_dim=3),
    "ResGatedGraphConv": lambda: ResGatedGraphConv(6, 5, edge_dim=3),
    "CGConv": lambda: CGConv(6, 3),
    "PNAConv": lambda: PNAConv(6, 4, **ALL, deg=torch.tensor([2, 3, 4]), edge_dim=3, towers=2),
    "GatedGCNConv": lambda: GatedGCNConv(6, 5, 3),
    "GENConv": lambda: GENConv(6, 5, edge_dim=3, learn_t=True, norm="layer"),
}


#: Layers without; they take what follows from the features of nodes.
OTHERS: dict[str, Any] = {
    "FiLMConv": lambda: FiLMConv(6, 5),
    "FAConv": lambda: FAConv(6),
    "EdgeConv": lambda: EdgeConv(PAIRS["activation"](12)),
    "PointNetConv": lambda: PointNetConv(PAIRS["two"](12), aggr="mean"),
}


def call_on(layer: Any, x: torch.Tensor, index: Any, *attr: torch.Tensor) -> torch.Tensor:
    """The results of a layer, as one tensor."""
    twice = type(layer).__name__ in ("FAConv", "PointNetConv")
    out = layer(*([x, x] if twice else [x]), index, *attr)
    return torch.cat(out) if isinstance(out, tuple) else out


@pytest.mark.gpu
@pytest.mark.parametrize("name", [*WITH_EDGES, *OTHERS])
def test_on_a_gpu(name: str) -> None:
    """On a GPU, with edges beyond what one block of a kernel takes, as on the CPU."""
    layer = (WITH_EDGES | OTHERS)[name]()
    index, more = torch.randint(0, 290, (2, 5000)), []
    index[1, :1500] = 7  # a long row
    x = torch.randn(300, 6)
    if name in WITH_EDGES:
        more = [torch.randn(5000, 3)]

    runs = []
    for where in ("cuda", "cpu"):
        copied, inputs = copy.deepcopy(layer).to(where), [t.to(where) for t in (x, *more)]
        at = index.to(where)
        call = lambda x, *attr, layer=copied, at=at: call_on(layer, x, at, *attr)  # noqa: E731
        found = with_gradients(call, inputs, learned(copied).values())
        runs.append([t.cpu() for t in found])
    # A bias in front of a batch norm has the gradient 0, of sums that cancel.
    most = max(float(wanted.detach().abs().max()) for wanted in runs[1])
    for got, wanted in zip(*runs, strict=True):
        atol = max(1e-3 * float(wanted.detach().abs().max()), 1e-5 * most)
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=atol)


#: Layers that store nothing of the size of edges x features for the backward pass.
LEAN: dict[str, Any] = {
    **{name: WITH_EDGES[name] for name in ("GINEConv", "GENConv", "PNAConv")},
    **OTHERS,
    "EdgeConv, sums": lambda: EdgeConv(PAIRS["two"](12), aggr="add"),
}


@pytest.mark.parametrize("name", LEAN)
def test_nothing_of_edges_is_stored(name: str) -> None:
    layer, (x, index, attr) = LEAN[name](), edge_attr_of()
    x.requires_grad_()
    seen: list[tuple[int, ...]] = []

    def keep(t: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(t.shape))
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda t: t):
        call_on(layer, x, index, *([attr] if name in WITH_EDGES else []))
    assert seen
    assert all(shape[:1] != (60,) or shape[1:] in ((), (1,), (3,)) for shape in seen)


@pytest.mark.parametrize("name", WITH_EDGES)
def test_compiled_whole(name: str) -> None:
    """With an operand nothing is left to Python; gradients are those of the layer called as it is."""
    layer, (x, index, attr) = WITH_EDGES[name](), edge_attr_of()
    operand = gnnsparse.prepare(index, num_nodes=20, cache=False)
    found = []
    for run in (torch.compile(layer, fullgraph=True, backend="aot_eager"), layer):
        given = [t.clone().requires_grad_() for t in (x, attr)]
        out = call_on(run, given[0], operand, given[1])
        found.append([out, *torch.autograd.grad(out.square().sum(), [*given, *learned(layer).values()])])
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", WITH_EDGES)
def test_16_bits(name: str, dtype: torch.dtype) -> None:
    """Layers and features in 16 bits, and autocast, beside the same numbers in float32."""
    layer, (x, index, attr) = WITH_EDGES[name]().to(dtype), edge_attr_of()
    x, attr = x.to(dtype), attr.to(dtype)
    run = functools.partial(call_on, layer)
    got = run(x, index, attr)
    layer.float()
    wanted = run(x.float(), index, attr.float())
    assert got.dtype == dtype
    precision = 50 * torch.finfo(dtype).eps
    close = functools.partial(torch.testing.assert_close, rtol=precision, atol=precision)
    close(got.float(), wanted)
    with torch.autocast("cpu", dtype):
        close(run(x.float(), index, attr.float()).float(), wanted)
    reduced = "bf16" if dtype == torch.bfloat16 else "fp16"
    operand = gnnsparse.prepare(index, num_nodes=20, precision=reduced, cache=False)
    close(run(x.float(), operand, attr.float()), wanted)


@pytest.mark.parametrize("name", WITH_EDGES)
def test_refused_edges(name: str) -> None:
    layer, (x, index, attr) = WITH_EDGES[name](), edge_attr_of()
    with pytest.raises(ValueError, match=r"^edge_attr: is of 59 edges; accepted: 60, all edges"):
        layer(x, index, attr[1:])
    with pytest.raises(ValueError, match=r"^edge_attr: has shape \(60, 2\); accepted: .* \[nodes, 3\]"):
        layer(x, index, attr[:, 1:])
    if name != "GENConv":  # where they are 0 then
        with pytest.raises(TypeError, match=r"^edge_attr: got NoneType"):
            layer(x, index, None)
    with pytest.raises(ValueError, match="self-loops that prepare added"):
        layer(x, gnnsparse.prepare(index, num_nodes=20, values="gcn", cache=False), attr)


def test_refused() -> None:
    x, index, attr = edge_attr_of()
    with pytest.raises(ValueError, match=r"^aggr: got 'median'; accepted: add, sum, mean, max, min, softmax"):
        GENConv(6, 5, aggr="median")
    with pytest.raises(ValueError, match=r"^edge_attr: goes with a layer that was made for edge features"):
        ResGatedGraphConv(6, 5)(x, index, attr)
    with pytest.raises(ValueError, match=r"^message: calls softmax, which has no elementwise kernel"):
        ResGatedGraphConv(6, 5, act=torch.nn.Softmax(-1))(x, index)
    with pytest.raises(ValueError, match=r"^x: has no features of targets"):
        CGConv(6)((x, None), index)
    with pytest.raises(ValueError, match=r"^nn: takes 6 features; accepted: 12, those of a pair of nodes"):
        EdgeConv(torch.nn.Linear(6, 5))(x, index)
    with pytest.raises(TypeError, match=r"^local_nn: got function; accepted: a torch.nn.Module"):
        PointNetConv(lambda x: x)  # type: ignore[arg-type]
    plain = gnnsparse.prepare(index[:, index[0] != index[1]], num_nodes=20, cache=False)
    with pytest.raises(ValueError, match=r"^adj: an operand of which nodes lack self-loops"):
        PointNetConv()(None, x, plain)
    with pytest.raises(ValueError, match=r"^x: is of 3 nodes; accepted: 20, those of pos"):
        PointNetConv()(x[:3], x, index)
    with pytest.raises(ValueError, match=r"^adj: an operand of which nodes lack self-loops"):
        FAConv(6)(x, x, plain)
    with pytest.raises(ValueError, match=r"^edge_weight: got a tensor; accepted: None with normalize=True"):
        FAConv(6)(x, x, index, torch.ones(60))
    few: dict[str, Any] = {**FEW, "deg": torch.tensor([1, 2])}
    with pytest.raises(ValueError, match=r"^pre_layers: got 0; accepted: a positive"):
        PNAConv(6, 4, **few, pre_layers=0)
    with pytest.raises(ValueError, match=r"^deg: is no histogram of degrees"):
        PNAConv(6, 4, **{**few, "deg": torch.zeros(3)})
    with pytest.raises(ValueError, match=r"^aggregators: got 'median'; accepted: add, sum"):
        PNAConv(6, 4, **{**few, "aggregators": ["median"]})
    with pytest.raises(ValueError, match=r"^out_channels: got 4; accepted: a multiple of towers, 3"):
        PNAConv(6, 4, **few, towers=3)
    with pytest.raises(ValueError, match=r"^act: got 'what'; accepted: "):
        PNAConv(6, 4, **few, act="what", post_layers=2)
    film = FiLMConv(6, 5, num_relations=2)
    with pytest.raises(TypeError, match=r"^edge_type: got NoneType; accepted: an int64 or int32 tensor"):
        film(x, index)
    with pytest.raises(ValueError, match=r"^edge_type: has shape \(3,\) on cpu; accepted: \(60,\) on cpu"):
        film(x, index, torch.zeros(3, dtype=torch.int64))
    with pytest.raises(TypeError, match=r"^adj: got SparseOperand; accepted: an edge_index"):
        film(x, gnnsparse.prepare(index, num_nodes=20, cache=False))
    with pytest.raises(ValueError, match=r"^nn: does not say how many features it takes"):
        GINEConv(torch.nn.ReLU(), edge_dim=3)
    with pytest.raises(ValueError, match=r"^edge_attr: has shape \(60, 3\); accepted: .* \[nodes, 6\]"):
        GINEConv(network())(x, index, attr)
