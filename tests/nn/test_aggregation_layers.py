"""SAGEConv, GINConv and GraphConv: precisions, order of products, what they keep, errors."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.nn import GINConv, GraphConv, SAGEConv
from gnnsparse.testing import assert_accurate, assert_all_accurate, in_float64, with_gradients
from tests.helpers import PRECISIONS, ROUNDING, reference_layers

NODES = 30


def gin(width: int, out: int, **options: Any) -> GINConv:
    return GINConv(torch.nn.Linear(width, out), **options)


def edges(seed: int = 0, count: int = 120) -> torch.Tensor:
    return torch.randint(0, NODES, (2, count), generator=torch.Generator().manual_seed(seed))


def operand(index: torch.Tensor | None = None, **options: Any) -> gnnsparse.SparseOperand:
    index = edges().unique(dim=1) if index is None else index
    return gnnsparse.prepare(index, num_nodes=NODES, cache=False, **options)


#: Each layer and reduction: how it is made, and the `values` of its operand.
LAYERS: dict[str, tuple[Callable[..., Any], str | None]] = {
    "sage mean": (SAGEConv, "mean"),
    "sage sum": (lambda *sizes, **options: SAGEConv(*sizes, aggr="sum", **options), None),
    "graph add": (GraphConv, None),
    "graph mean": (lambda *sizes, **options: GraphConv(*sizes, aggr="mean", **options), "mean"),
    "gin": (gin, None),
    "sage max": (lambda *sizes, **options: SAGEConv(*sizes, aggr="max", **options), None),
    "graph min": (lambda *sizes, **options: GraphConv(*sizes, aggr="min", **options), None),
}


@pytest.fixture(params=LAYERS)
def kind(request: pytest.FixtureRequest) -> tuple[Callable[..., Any], str | None]:
    return LAYERS[request.param]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("sizes", [(4, 9), (9, 4)], ids=str)
def test_precisions(device: str, kind: Any, precision: str, sizes: tuple[int, int]) -> None:
    make, values = kind
    layer = make(*sizes).to(device)
    a = operand(values=values, precision=precision, reorder="degree").to(device)
    x = torch.randn(NODES, sizes[0], device=device)

    def run(x: torch.Tensor) -> list[torch.Tensor]:
        return with_gradients(lambda x: layer(x, a), [x], layer.parameters())

    got, again = run(x), run(x)
    with reference_layers():
        plain = run(x)
        with in_float64(layer):
            exact = run(x.double())
    assert all(torch.equal(one, other) for one, other in zip(got, again, strict=True))
    # Roundings of the operands of a product may cancel in the plain run and not in ours.
    assert_all_accurate(got, plain, exact, floor=(8 if precision == "fp32" else 2) * ROUNDING[precision])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_edges_give_the_same_as_their_operand(kind: Any, precision: str) -> None:
    make, values = kind
    layer, x = make(5, 5, precision=precision), torch.randn(NODES, 5)
    index = edges().unique(dim=1)
    assert torch.equal(layer(x, index), layer(x, operand(values=values, precision=precision)))


def test_weights_of_edges_are_those_of_an_operand() -> None:
    index, x = edges().unique(dim=1), torch.randn(NODES, 5)
    weight = torch.rand(index.shape[1])
    layer = GraphConv(5, 4)
    got, want = layer(x, index, weight), layer(x, operand(index, values=weight))
    with reference_layers(), in_float64(layer):
        exact = layer(x.double(), operand(index, values=weight))
    assert_accurate(got, want, exact)


def test_a_layer_of_halves(device: str, kind: Any) -> None:
    layer = kind[0](4, 8).to(device, torch.float16)
    y = layer(torch.randn(NODES, 4, device=device).half(), edges().to(device))
    y.sum().backward()
    assert y.dtype == torch.float16
    assert all(p.grad.dtype == torch.float16 for p in layer.parameters())


@pytest.mark.parametrize("sizes", [(16, 4), (4, 16)], ids=str)
def test_autocast(device: str, kind: Any, sizes: tuple[int, int]) -> None:
    dtype = torch.float16 if device == "cuda" else torch.bfloat16
    layer, x = kind[0](*sizes).to(device), torch.randn(NODES, sizes[0], device=device)
    index = edges().to(device)
    with torch.autocast(device, dtype):
        y = layer(x, index)
    y.float().square().sum().backward()
    assert y.dtype == dtype
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters())
    wide = layer(x, index)
    with reference_layers(), in_float64(layer):
        assert_accurate(y.float(), wide, layer(x.double(), index), floor=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize(("sizes", "width"), [((8, 32), 8), ((32, 8), 8), ((12, 8), 8)], ids=str)
def test_the_product_is_as_narrow_as_it_can_be(
    sizes: tuple[int, int], width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    widths = []

    def watched(a: Any, dense: torch.Tensor, *values: Any) -> torch.Tensor:
        widths.append(dense.shape[1])
        return gnnsparse.spmm(a, dense, *values)

    monkeypatch.setattr("gnnsparse.nn.aggregation.spmm", watched)
    x = torch.randn(NODES, sizes[0], requires_grad=True)
    for layer in (SAGEConv(*sizes), GraphConv(*sizes)):
        layer(x, edges())
    assert widths == [width, width]


def test_an_edge_index_is_prepared_once(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(*args: Any, **options: Any) -> gnnsparse.SparseOperand:
        calls.append(1)
        return gnnsparse.prepare(*args, **options)

    monkeypatch.setattr("gnnsparse.nn.aggregation.prepare", counted)
    layer, index, x = kind[0](4, 4), edges(), torch.randn(NODES, 4)
    first = layer(x, index)
    assert torch.equal(layer(x, index), first)
    assert len(calls) == 1
    assert not torch.equal(layer(x, edges(1)), first)
    index[:, 0] = 5
    layer(x, index)
    layer((x, x[:20]), index % 20)
    assert len(calls) == 4


def test_copies_and_pickles(kind: Any) -> None:
    layer, index, x = kind[0](4, 4), edges(), torch.randn(NODES, 4)
    want = layer(x, index)
    assert torch.equal(copy.deepcopy(layer)(x, index), want)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x, index), want)
    layer.reset_parameters()
    assert not torch.equal(layer(x, index), want)


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_gin_sums_behind_a_linear_layer_to_fewer_features(
    bias: bool, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sum is as narrow as it can be, unless a hook would miss the linear layer."""
    widths = []

    def product(a: Any, dense: torch.Tensor, *values: Any) -> torch.Tensor:
        widths.append(dense.shape[1])
        return gnnsparse.spmm(a, dense, *values)

    tanh = torch.nn.Tanh()
    linear = torch.nn.Linear(16, 4, bias=bias)
    network = torch.nn.Sequential(linear, tanh, torch.nn.Linear(4, 9), tanh)
    layer, x, a = GINConv(network, eps=0.5, train_eps=True), torch.randn(NODES, 16), operand()
    seen: list[int] = []
    if watched:
        network[0].register_forward_hook(lambda *_: seen.append(1))

    def formula(x: torch.Tensor) -> torch.Tensor:
        return network(gnnsparse.spmm(a, x, impl="reference") + (1 + layer.eps) * x)

    plain = with_gradients(formula, [x], layer.parameters())
    with in_float64(layer):
        exact = with_gradients(formula, [x.double()], layer.parameters())
    seen.clear()
    monkeypatch.setattr("gnnsparse.nn.gin_conv.spmm", product)
    got = with_gradients(lambda x: layer(x, a), [x], layer.parameters())
    assert widths == [16 if watched else 4]
    assert len(seen) == watched
    assert_all_accurate(got, plain, exact, floor=8 * ROUNDING["fp32"])


def test_eps_starts_where_it_was() -> None:
    for train_eps in (False, True):
        layer = gin(4, 4, eps=0.25, train_eps=train_eps)
        assert layer.eps.tolist() == [0.25]
        assert isinstance(layer.eps, torch.nn.Parameter) == train_eps
        torch.nn.init.constant_(layer.eps, 3.0)
        layer.reset_parameters()
        assert layer.eps.tolist() == [0.25]


def test_compiled_without_graph_breaks(kind: Any) -> None:
    make, values = kind
    a, layer, x = operand(values=values), make(6, 3), torch.randn(NODES, 6)
    _ = a.T  # made at the first backward otherwise, which can't be traced
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    y = compiled(x, a)
    y.sum().backward()
    assert torch.equal(y, layer(x, a))


X, E = torch.randn(NODES, 4), edges()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SAGEConv(4, 0), "out_channels: got 0"),
        (lambda: SAGEConv((4, -1), 3), "in_channels: got -1"),
        (lambda: SAGEConv(4, 3, aggr="lstm"), "aggr: got 'lstm'; accepted: add, sum, mean, max, min"),
        (lambda: SAGEConv(4, 3, aggr=["mean", "max"]), "aggr: got list; accepted: one of add"),
        (lambda: GraphConv(4, 3, aggr=None), "aggr: got NoneType"),
        (lambda: SAGEConv(4, 3, project=1), "project: got int"),
        (lambda: SAGEConv(4, 3, normalize=None), "normalize: got NoneType"),
        (lambda: SAGEConv(4, 3, root_weight=0), "root_weight: got int"),
        (lambda: GraphConv(4, 3, bias=1), "bias: got int"),
        (lambda: GraphConv(4, 3, precision="fp7"), "precision: got 'fp7'"),
        (lambda: GraphConv(4, 3, flow="target_to_source"), "unexpected keyword argument 'flow'"),
        (lambda: GINConv(lambda x: x), "nn: got function; accepted: a torch.nn.Module"),
        (lambda: gin(4, 3, eps="0"), "eps: got str"),
        (lambda: gin(4, 3, eps=float("inf")), "eps: got inf"),
        (lambda: gin(4, 3, train_eps=1), "train_eps: got int"),
        (lambda: gin(4, 3)((X, X[:, :3]), E), "x[1]: has shape (30, 3)"),
        (lambda: SAGEConv((4, 5), 3)(X, E), "x: has shape (30, 4); accepted: a floating-point tensor"),
        (lambda: SAGEConv(4, 3)((X, X, X), E), "x: has 3 elements"),
        (lambda: SAGEConv(4, 3)(X, E, size=(30, 29)), "size: got (30, 29), x has 30 sources and 30 targets"),
        (lambda: SAGEConv(4, 3)((X, None), E, size=(29, 30)), "size: got (29, 30), x has 30 sources"),
        (lambda: SAGEConv(4, 3)(X, None), "adj: got NoneType; accepted: a SparseOperand"),
        (lambda: SAGEConv(4, 3)(X, operand()), "prepared with weights of its own; accepted: values='mean'"),
        (lambda: SAGEConv(4, 3)(X, operand(values="gcn")), "adj: an operand prepared with values='gcn'"),
        (lambda: SAGEConv(4, 3, aggr="sum")(X, operand(values="gcn")), "weights aggr='sum' has no use for"),
        (lambda: gin(4, 3)(X, operand(values="mean")), "adj: an operand prepared with values='mean', whose"),
        (lambda: gin(4, 3, precision="bf16")(X, operand()), "precision: got 'bf16', the operand has 'fp32'"),
        (lambda: SAGEConv(4, 3)(X[:9], operand(values="mean")), "x: has 9 sources and 9 targets"),
        (lambda: SAGEConv(4, 3, "max")(X, operand(E)), "adj: an operand with weights or repeated edges"),
        (lambda: GraphConv(4, 3, "max")(X, operand(E)), "adj: an operand of repeated edges"),
        (lambda: GraphConv(4, 3)(X, operand(), torch.ones(120)), "edge_weight: goes with an edge_index"),
        (lambda: GraphConv(4, 3)(X, E, torch.ones(119)), "edge_weight: has shape (119,); accepted: (120,)"),
        (lambda: GraphConv(4, 3, "max")(X, E, torch.ones(120)), "edge_weight: repeated edges are merged"),
    ],
)  # fmt: skip
def test_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()
