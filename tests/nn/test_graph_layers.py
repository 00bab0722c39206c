"""The layers of graphs: precisions, dtypes, order of products, what they keep, compilation, errors.

What they compute is compared with PyG's layers in test_pyg_layers.py.
"""

from __future__ import annotations

import copy
import re
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import pytest
import torch

import gnnsparse
from gnnsparse.nn import (
    AGNNConv,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    RGCNConv,
    SAGEConv,
    TransformerConv,
)
from gnnsparse.sparse.typed import TypedGraph
from gnnsparse.testing import assert_accurate, assert_all_accurate, in_float64, with_gradients
from tests.helpers import PRECISIONS, ROUNDING, agnn_beta_scale, copies_of, reference_layers

NODES = 30


def gin(width: int, out: int, **options: Any) -> GINConv:
    return GINConv(torch.nn.Linear(width, out), **options)


def agnn(width: int, out: int, **options: Any) -> AGNNConv:
    return AGNNConv(**options)


def edges(seed: int = 0, count: int = 120) -> torch.Tensor:
    """Random edges, some of them repeated, and self-loops."""
    return torch.randint(0, NODES, (2, count), generator=torch.Generator().manual_seed(seed))


def distinct(seed: int = 0) -> torch.Tensor:
    return edges(seed).unique(dim=1)


def operand(index: torch.Tensor | None = None, **options: Any) -> gnnsparse.SparseOperand:
    index = distinct() if index is None else index
    return gnnsparse.prepare(index, num_nodes=NODES, cache=False, **options)


class Kind(NamedTuple):
    """A layer of sizes, the `values` of its operand, how many roundings may cancel, and features of edges."""

    make: Callable[..., Any]
    values: str | None = None
    roundings: int = 8
    edge_dim: int = 0

    def inputs(self, width: int, device: str = "cpu") -> list[torch.Tensor]:
        """x, and the features of `distinct()` edges if there are any."""
        x = torch.randn(NODES, width, device=device)
        attr = torch.randn(distinct().shape[1], self.edge_dim, device=device)
        return [x, attr] if self.edge_dim else [x]


AGGREGATING = {
    "sage mean": Kind(SAGEConv, "mean"),
    "sage sum": Kind(partial(SAGEConv, aggr="sum")),
    "sage max": Kind(partial(SAGEConv, aggr="max")),
    "graph add": Kind(GraphConv),
    "graph mean": Kind(partial(GraphConv, aggr="mean"), "mean"),
    "graph min": Kind(partial(GraphConv, aggr="min")),
    "gin": Kind(gin),
}
ATTENTION: dict[str, Any] = {"gat": GATConv, "gatv2": GATv2Conv, "transformer": TransformerConv}
ATTENDING = {
    name: Kind(partial(make, heads=3), None if make is TransformerConv else "gcn", 16)
    for name, make in ATTENTION.items()
}
#: With features of edges, of which the operand then has no other ones.
WITH_EDGES = {
    f"{name} of edges": Kind(partial(make, heads=3, edge_dim=2), None, 16, 2)
    for name, make in ATTENTION.items()
}
KINDS = {"gcn": Kind(GCNConv, "gcn"), "agnn": Kind(agnn, "gcn"), **AGGREGATING, **ATTENDING}
OF_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def without_loops(make: Any) -> dict[str, bool]:
    """The option by which a layer takes operands with features of edges."""
    return {} if make is TransformerConv else {"add_self_loops": False}


def run(layer: Any, adj: Any, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """The output and the gradients of inputs and parameters, but that of the keys' bias, which is 0."""
    parameters = [p for name, p in layer.named_parameters() if name != "lin_key.bias"]
    return with_gradients(lambda x, *attr: layer(x, adj, *attr), inputs, parameters)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("sizes", [(4, 9), (9, 4)], ids=str)
@pytest.mark.parametrize("name", ["agnn", *AGGREGATING, *ATTENDING, *WITH_EDGES])
def test_precisions(device: str, name: str, precision: str, sizes: tuple[int, int]) -> None:
    kind = {**KINDS, **WITH_EDGES}[name]
    options = without_loops(ATTENTION[name.split()[0]]) if kind.edge_dim else {}
    layer, inputs = kind.make(*sizes, **options).to(device), kind.inputs(sizes[0], device)
    a = operand(values=kind.values, precision=precision, reorder="degree").to(device)
    if name == "agnn":
        layer.beta.data.fill_(2.0)
    got, again = run(layer, a, inputs), run(layer, a, inputs)
    with reference_layers():
        plain = run(layer, a, inputs)
        with in_float64(layer):
            exact = run(layer, a, [x.double() for x in inputs])
    assert all(torch.equal(one, other) for one, other in zip(got, again, strict=True))
    roundings, scales = kind.roundings if precision == "fp32" else 2, [None] * len(got)
    if name == "agnn":
        linked = torch.zeros(NODES, NODES).index_put(tuple(a.indices().cpu()), torch.ones(()))
        scales[-1] = agnn_beta_scale(inputs[0], 2.0, linked)
    assert_all_accurate(got, plain, exact, floor=roundings * ROUNDING[precision], scales=scales)


@pytest.mark.parametrize("precision", PRECISIONS)
@OF_KIND
def test_edges_give_the_same_as_their_operand(kind: Kind, precision: str) -> None:
    """Without self-loops, which some layers replace."""
    index, x = distinct(), torch.randn(NODES, 5)
    index = index[:, index[0] != index[1]]
    layer = kind.make(5, 5, precision=precision)
    y = layer(x, operand(index, values=kind.values, precision=precision))
    assert torch.equal(layer(x, index), y)
    layer.precision = None
    assert precision == "fp32" or not torch.equal(layer(x, operand(index, values=kind.values)), y)


@pytest.mark.parametrize("kind", {**KINDS, **WITH_EDGES}.values(), ids=[*KINDS, *WITH_EDGES])
def test_a_layer_of_halves(device: str, kind: Kind) -> None:
    layer = kind.make(4, 8).to(device, torch.float16)
    x, *attr = (t.half() for t in kind.inputs(4, device))
    more = {"return_attention_weights": True} if kind.edge_dim else {}
    out = layer(x, distinct().to(device), *attr, **more)
    y, weights = (out[0], out[1][1]) if more else (out, out)
    (y.sum() + weights.sum()).backward()
    assert y.dtype == weights.dtype == torch.float16
    for parameter in layer.parameters():
        assert parameter.grad.dtype == torch.float16
        assert bool(torch.isfinite(parameter.grad).all())


def test_squares_of_halves_do_not_overflow() -> None:
    """Squares of 300 are beyond float16. The mean of equal rows is that row."""
    x = torch.full((NODES, 4), 300.0, dtype=torch.float16)
    y = AGNNConv()(x, operand(values="gcn"))
    assert y.dtype == torch.float16
    assert torch.equal(y, x)


@pytest.mark.parametrize("sizes", [(16, 4), (4, 16)], ids=str)
@pytest.mark.parametrize("name", ["gcn", *AGGREGATING, *WITH_EDGES])
def test_autocast(device: str, name: str, sizes: tuple[int, int]) -> None:
    """The output has the low dtype of the linear layers; gradients are float32."""
    kind = {**KINDS, **WITH_EDGES}[name]
    dtype = torch.float16 if device == "cuda" else torch.bfloat16
    layer, inputs = kind.make(*sizes).to(device), kind.inputs(sizes[0], device)
    index = distinct().to(device)
    with torch.autocast(device, dtype):
        y = layer(inputs[0], index, *inputs[1:])
    y.float().square().sum().backward()
    assert y.dtype == dtype
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters())
    wide = layer(inputs[0], index, *inputs[1:])
    with reference_layers(), in_float64(layer):
        x, *attr = (t.double() for t in inputs)
        exact = layer(x, index, *attr)
    assert_accurate(y.float(), wide, exact, floor=kind.roundings * torch.finfo(dtype).eps)


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets the features of what layers hand to spmm."""
    found: list[int] = []

    def watched(a: Any, dense: torch.Tensor, *values: Any) -> torch.Tensor:
        found.append(dense.shape[1])
        return gnnsparse.spmm(a, dense, *values)

    for module in ("aggregation", "gcn_conv", "gin_conv", "linear"):
        monkeypatch.setattr(f"gnnsparse.nn.{module}.spmm", watched)
    return found


@pytest.mark.parametrize(
    ("sizes", "x_needs_grad", "frozen", "width"),
    [
        ((8, 32), True, False, 8),
        ((32, 8), True, False, 8),
        ((8, 8), True, False, 8),
        ((12, 8), True, False, 8),
        # No gradient through A: 1 x 12 beats 2 x 8, while 1 x 20 does not.
        ((12, 8), False, False, 12),
        ((20, 8), False, False, 8),
        ((12, 8), False, True, 8),
        ((8, 12), False, True, 8),
    ],
)
def test_the_product_is_as_narrow_as_it_can_be(
    sizes: tuple[int, int], x_needs_grad: bool, frozen: bool, width: int, widths: list[int]
) -> None:
    """Of (A x) W and A (x W) the one with less sparse work runs, forward and backward."""
    x = torch.randn(NODES, sizes[0], requires_grad=x_needs_grad)
    for layer, adj in (
        (GCNConv(*sizes), operand(values="gcn")),
        (GCNConv(*sizes), edges()),
        (SAGEConv(*sizes), edges()),
        (GraphConv(*sizes), edges()),
    ):
        layer.requires_grad_(not frozen)(x, adj)
    assert widths == [width] * 4
    with torch.no_grad():  # the forward pass alone counts
        GCNConv(12, 8)(torch.randn(NODES, 12), operand(values="gcn"))
    assert widths[4:] == [8]


@pytest.mark.parametrize("watched", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_gin_sums_behind_a_linear_layer_to_fewer_features(
    bias: bool, watched: bool, widths: list[int]
) -> None:
    """The sum is as narrow as it can be, unless a hook would miss the linear layer."""
    tanh = torch.nn.Tanh()
    network = torch.nn.Sequential(torch.nn.Linear(16, 4, bias=bias), tanh, torch.nn.Linear(4, 9), tanh)
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
    got = run(layer, a, [x])
    assert widths == [16 if watched else 4]
    assert len(seen) == watched
    assert_all_accurate(got, plain, exact, floor=8 * ROUNDING["fp32"])


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize(("make", "name", "start"), [(gin, "eps", 0.25), (agnn, "beta", 1.0)])
def test_a_number_starts_where_it_was(make: Any, name: str, start: float, learned: bool) -> None:
    options = {"eps": 0.25, "train_eps": learned} if name == "eps" else {"requires_grad": learned}
    layer = make(4, 4, **options)
    if name == "beta":  # PyG's says nothing of its options; those of the other layers are compared with PyG's
        assert repr(layer) == f"AGNNConv(requires_grad={learned})"
    number = getattr(layer, name)
    assert number.tolist() == [start]
    assert isinstance(number, torch.nn.Parameter) == learned
    torch.nn.init.constant_(number, 3.0)
    layer.reset_parameters()
    assert number.tolist() == [start]


@pytest.fixture
def made() -> Iterator[mock.Mock]:
    """Sees each preparation."""
    with mock.patch("gnnsparse.nn.adjacency.prepare", wraps=gnnsparse.prepare) as calls:
        yield calls


@OF_KIND
def test_an_edge_index_is_prepared_once(kind: Kind, made: mock.Mock) -> None:
    layer, index, x = kind.make(4, 4), edges(), torch.randn(NODES, 4)
    first = layer(x, index)
    assert torch.equal(layer(x, index), first)
    assert made.call_count == 1
    assert not torch.equal(layer(x, edges(1)), first)
    assert made.call_count == 2
    layer(torch.randn(NODES + 3, 4), edges(1))
    assert made.call_count == 3
    if kind.make not in (GCNConv, agnn):
        layer((torch.randn(NODES + 3, 4), x), edges(1))
        assert made.call_count == 4


@OF_KIND
def test_copies_and_pickles(kind: Kind) -> None:
    layer, index, x = kind.make(4, 4), edges(), torch.randn(NODES, 4)
    want = layer(x, index)
    assert all(torch.equal(other(x, index), want) for other in copies_of(layer))
    layer.reset_parameters()
    assert torch.equal(layer(x, index), want) == (kind.make is agnn)


def assert_same(got: torch.Tensor, want: torch.Tensor, *, bits: bool) -> None:
    if bits:
        assert torch.equal(got, want)
    else:
        assert_accurate(got, want, want.double())


@pytest.mark.parametrize("name", [*KINDS, *WITH_EDGES, "gcn with weights"])
def test_inference_does_not_spoil_training(name: str) -> None:
    """Without gradients the order of the products may be another, but in layers of attention."""
    kind = {**KINDS, **WITH_EDGES, "gcn with weights": KINDS["gcn"]}[name]
    layer, index, (x, *attr) = kind.make(4, 4), distinct(), kind.inputs(4)
    if "weights" in name:
        attr = [torch.rand(index.shape[1])]
    with torch.inference_mode():
        want = layer(x, index, *attr)
    y = layer(x, index, *attr)
    y.sum().backward()
    assert_same(y, want, bits=kind.roundings == 16)


@pytest.mark.parametrize("make", ATTENTION.values(), ids=ATTENTION)
def test_gradients_by_torch_func(make: Any) -> None:
    layer, index, x = make(4, 3, heads=2, edge_dim=2), distinct(), torch.randn(NODES, 4)
    attr = torch.randn(index.shape[1], 2)

    def loss(x: torch.Tensor, attr: torch.Tensor) -> torch.Tensor:
        return layer(x, index, attr).square().sum()

    got = torch.func.grad(loss, argnums=(0, 1))(x, attr)
    plain = with_gradients(loss, [x, attr])
    probe = torch.randn((), generator=torch.Generator().manual_seed(0))
    with reference_layers(), in_float64(layer):
        exact = with_gradients(loss, [x.double(), attr.double()])
    scaled = [[grad / probe.to(grad) for grad in grads[1:]] for grads in (plain, exact)]
    assert_all_accurate(got, *scaled)


class TestMemo:
    """What a layer keeps of an edge_index."""

    def test_it_does_not_keep_the_tensor_alive(self) -> None:
        layer, index = GCNConv(4, 4), edges()
        layer(torch.randn(NODES, 4), index)
        watch = weakref.ref(index)
        del index
        assert watch() is None

    def test_cached_keeps_the_first(self, made: mock.Mock) -> None:
        layer, x = GCNConv(4, 4, cached=True), torch.randn(NODES, 4)
        first = layer(x, edges(1))
        assert torch.equal(layer(x, edges(2)), first)
        assert torch.equal(copy.deepcopy(layer)(x, edges(2)), first)
        assert made.call_count == 1
        layer.reset_parameters()
        layer(x, edges(2))
        assert made.call_count == 2

    @pytest.mark.parametrize("learned", [False, True])
    @pytest.mark.parametrize("weighted_first", [False, True])
    def test_cached_does_not_mix_calls_with_and_without_weights(
        self, learned: bool, weighted_first: bool
    ) -> None:
        layer, index, x = GCNConv(4, 4, cached=True), edges(), torch.randn(NODES, 4)
        calls = [(x, index), (x, index, torch.rand(index.shape[1], requires_grad=learned))]
        first, second = reversed(calls) if weighted_first else calls
        layer(*first)
        with pytest.raises(ValueError, match=r"edge_weight: got .*cached=True.*reset_parameters\(\)"):
            layer(*second)
        layer(*first)
        layer.reset_parameters()
        want = GCNConv(4, 4)
        want.load_state_dict(layer.state_dict())
        assert torch.equal(layer(*second), want(*second))

    def test_new_weights_on_old_edges(self, made: mock.Mock) -> None:
        layer, index, x = GCNConv(4, 4), edges(), torch.randn(NODES, 4)
        weight = torch.rand(index.shape[1])
        a = layer(x, index, weight)
        assert torch.equal(layer(x, index, weight), a)
        b = layer(x, index, 2 * weight + 1)
        weight += 1
        c = layer(x, index, weight)
        assert made.call_count == 1
        assert not torch.equal(a, b)
        assert not torch.equal(a, c)

    def test_learned_weights_get_a_gradient_in_every_step(self) -> None:
        layer, index, x = GCNConv(4, 4, cached=True), edges(), torch.randn(NODES, 4)
        weight = torch.rand(index.shape[1], requires_grad=True)
        for _ in range(3):
            weight.grad = None
            layer(x, index, weight).square().sum().backward()
            assert bool(weight.grad.abs().sum() > 0)

    def test_types_of_edges(self, made: mock.Mock) -> None:
        """They are compared as the edges are, and the layer in half precision has its dtype."""
        layer, index, x = RGCNConv(4, 4, 3), edges(), torch.randn(NODES, 4)
        types = torch.arange(120) % 3
        first = layer(x, index, types)
        assert torch.equal(layer(x, index, types.int().long()), first)
        assert made.call_count == 1
        types[:9] = 0
        assert not torch.equal(layer(x, index, types), first)
        layer(x, edges(1), types)
        assert made.call_count == 3
        assert layer.half()(x.half(), index, types).dtype == torch.float16


@pytest.mark.parametrize(
    ("relations", "bases", "edge_count", "columns"),
    [
        (5, None, 120, 5 * NODES),
        (5, 2, 120, 5 * NODES),
        (5, 5, 3, None),
        (99, None, 120, None),
        (40, 2, 120, NODES),
        (2, 1, 120, NODES),
    ],
)
def test_the_product_of_relations(
    relations: int, bases: int | None, edge_count: int, columns: int | None
) -> None:
    """It has nodes times relations, or only the pairs of both at which edges begin, or it is by bases."""
    layer, index = RGCNConv(40, 4, relations, bases), edges()[:, :edge_count]
    types = torch.arange(edge_count) % relations
    layer(torch.randn(NODES, 40), index, types)
    pairs = len((index[0] * relations + types).unique())
    entry = layer._memo._entry
    assert entry is not None
    assert entry.adjacency.operand.shape == (NODES, columns or pairs)


def test_relations_of_a_typed_graph_share_one_operand() -> None:
    counts, relations = {"a": 9, "b": 21}, [("a", "to", "b"), ("b", "of", "a"), ("b", "at", "b")]
    graph = TypedGraph(
        counts, {r: torch.stack([torch.randint(counts[k], (40,)) for k in r[::2]]) for r in relations[:2]}
    ).spanning(relations)
    first, second, x = RGCNConv(40, 4, 3), RGCNConv(40, 4, 3), torch.randn(NODES, 40)
    edges, kinds = graph.global_edges()
    for layer in (first, second):
        torch.testing.assert_close(layer(x, graph), layer(x, edges, kinds))
    assert len(graph._made) == 1
    assert graph.spanning(relations) is graph
    with pytest.raises(ValueError, match="edge_type: goes with an edge_index; a TypedGraph has its relation"):
        first(x, graph, kinds)
    with pytest.raises(ValueError, match="adj: has 3 relations; accepted: 2, as num_relations"):
        RGCNConv(40, 4, 2)(x, graph)
    with pytest.raises(ValueError, match="x: has 29 and 29 rows; accepted: 30, as the graph"):
        first(x[1:], graph)


def test_a_product_of_ranges_of_the_nodes() -> None:
    """Two relations begin at the first 10 nodes, one at the last 30, of which some have no edge."""
    layer, index, types = RGCNConv(40, 4, 4), edges()[:, :90], torch.arange(90) % 3
    index[0] = torch.where(types == 1, index[0] % (NODES - 12) + 10, index[0] % 10)
    index[0, :6] = torch.tensor([0, 10, 9, 9, NODES - 3, 0])
    out = layer(torch.randn(NODES, 40), index, types)
    assert out.shape == (NODES, 4)
    assert layer._memo._entry.adjacency.operand.shape == (NODES, 2 * 10 + NODES - 12)


def test_gradient_of_weights_where_a_degree_is_zero() -> None:
    """PyG's is NaN there: the derivative of d^-1/2 at 0."""
    index, weight = edges(), torch.zeros(120)
    weight[60:] = torch.rand(60)
    layer = GCNConv(4, 4, add_self_loops=False)
    weight.requires_grad_()
    layer(torch.randn(NODES, 4), index, weight).sum().backward()
    assert bool(torch.isfinite(weight.grad).all())


X, E, D, GCN = torch.randn(NODES, 4), edges(), distinct(), operand(values="gcn")
LABELS, TYPES = torch.ones(D.shape[1], 2), torch.arange(120) % 2


def labelled(make: Any, **options: Any) -> Any:
    """A layer of attention for operands with features of edges."""
    return make(4, 4, edge_dim=2, **without_loops(make), **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GCNConv(0, 3), "in_channels: got 0"),
        (lambda: GCNConv(3, 2.5), "out_channels: got float"),
        (lambda: GCNConv(3, 3, bias=1), "bias: got int"),
        (lambda: GCNConv(3, 3, precision="fp7"), "precision: got 'fp7'"),
        (lambda: GCNConv(4, 4)(X, None), "adj: got NoneType; accepted: a SparseOperand"),
        (lambda: GCNConv(4, 4)(X, torch.zeros(3, 4)), "adj: has shape (3, 4); accepted: (2, edges)"),
        (lambda: GCNConv(4, 4)(torch.zeros(NODES, 4, 4), E), "x: has shape"),
        (lambda: GCNConv(4, 4)(X[:, :3], GCN), "x: has shape"),
        (lambda: GCNConv(4, 4)(X[:9], GCN), "x: has shape"),
        (lambda: GCNConv(4, 4)(X.half(), GCN), "x: got"),
        (lambda: GCNConv(4, 4)(X.long(), GCN), "x: got"),
        (lambda: GCNConv(4, 4)(X.to_sparse(), GCN), "x: got"),
        (lambda: GCNConv(4, 4)(X.to("meta"), GCN), "x: is on meta"),
        (lambda: GCNConv(4, 4)([1.0], GCN), "x: got"),
        (lambda: GCNConv(4, 4)(X, torch.zeros(2, 5)), "edge_index: got a tensor of dtype torch.float32"),
        (lambda: GCNConv(4, 4)(X, torch.tensor([[0], [NODES]])), "accepted: 0 to 29, as num_nodes is 30"),
        (lambda: GCNConv(4, 4)(X, E, torch.ones(119)), "edge_weight: has shape (119,); accepted: (120,)"),
        (lambda: GCNConv(4, 4)(X, E, torch.ones(120, dtype=int)), "edge_weight: got a tensor of dtype"),
        (lambda: GCNConv(4, 4)(X, GCN, torch.ones(120)), "edge_weight: goes with an edge"),
        (lambda: SAGEConv(4, 0), "out_channels: got 0"),
        (lambda: SAGEConv((4, -1), 3), "in_channels: got -1"),
        (lambda: SAGEConv(4, 3, aggr="lstm"), "aggr: got 'lstm'; accepted: add, sum, mean, max, min"),
        (lambda: SAGEConv(4, 3, aggr=["mean", "max"]), "aggr: got list; accepted: one of add"),
        (lambda: GraphConv(4, 3, aggr=None), "aggr: got NoneType"),
        (lambda: SAGEConv(4, 3, project=1), "project: got int"),
        (lambda: SAGEConv(4, 3, normalize=None), "normalize: got NoneType"),
        (lambda: SAGEConv(4, 3, root_weight=0), "root_weight: got int"),
        (lambda: GraphConv(4, 3, bias=1), "bias: got int"),
        (lambda: GraphConv(4, 3, precision="fp7"), "precision: got 'fp7'; accepted: fp32, tf32, fp16, bf16"),
        (lambda: GraphConv(4, 3, flow="target_to_source"), "unexpected keyword argument 'flow'"),
        (lambda: GINConv(lambda x: x), "nn: got function; accepted: a torch.nn.Module"),
        (lambda: gin(4, 3, eps="0"), "eps: got str"),
        (lambda: gin(4, 3, eps=float("inf")), "eps: got inf"),
        (lambda: gin(4, 3, train_eps=1), "train_eps: got int"),
        (lambda: gin(4, 3)((X, X[:, :3]), E), "x[1]: has shape (30, 3)"),
        (lambda: AGNNConv(requires_grad=1), "requires_grad: got int; accepted: True or False"),
        (lambda: AGNNConv(add_self_loops=None), "add_self_loops: got NoneType"),
        (lambda: AGNNConv()(torch.ones(4, 2), operand(values="gcn")), "q: has shape (4, 2)"),
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
        (lambda: RGCNConv(4, 4, 0), "num_relations: got 0"),
        (lambda: RGCNConv(4, 4, 2, 2, 2), "num_blocks: got 2 with num_bases=2; accepted: one of both"),
        (lambda: RGCNConv(4, 6, 2, num_blocks=4), "num_blocks: got 4 for 4 and 6 features; accepted: a divi"),
        (lambda: RGCNConv(4, 4, 2, aggr="max"), "aggr: got 'max'; accepted: mean, sum, add"),
        (lambda: RGCNConv(4, 4, 2)(X, operand(), TYPES), "adj: got SparseOperand; accepted: an edge_index"),
        (lambda: RGCNConv(4, 4, 2)(X, E, None), "edge_type: got NoneType; accepted: an int64"),
        (lambda: RGCNConv(4, 4, 2)(X, E, TYPES[:9]), "edge_type: has shape (9,); accepted: (120,)"),
        (lambda: RGCNConv(4, 4, 2)(X, E, TYPES.to("meta")), "edge_type: is on meta; accepted: cpu"),
        (lambda: RGCNConv(4, 4, 2)(X, E, TYPES + 1), "edge_type: has types from 1 to 2; accepted: 0 to 1"),
        (
            lambda: RGCNConv(4, 4, 2)(X[:9], E, TYPES),
            "edge_index: has sources from 0 to 29; accepted: 0 to 8",
        ),
        (lambda: RGCNConv(4, 4, 2)((X, None), E, TYPES), "x: has no features of targets; accepted: a pair"),
        (lambda: RGCNConv(4, 4, 2)((X, X, X), E, TYPES), "x: has 3 elements"),
        (lambda: RGCNConv(4, 4, 2)(E, E, TYPES), "x: has shape (2, 120); accepted: (nodes,), or features"),
        (
            lambda: RGCNConv(4, 4, 2, num_blocks=2)(None, E, TYPES),
            "x: got NoneType; accepted: floating-point",
        ),
        (lambda: GATv2Conv((4, 5), 4, share_weights=True), "share_weights: got True for in_channels (4, 5)"),
        (lambda: TransformerConv(4, 4, edge_dim=2)(X, E), "edge_attr: got NoneType; accepted: a floating"),
        (lambda: TransformerConv(4, 4)((X, None), E), "x: has no features of targets"),
        (lambda: GATv2Conv(4, 4)((X, None), E), "x: has no features of targets"),
        (lambda: GATConv(4, 4)(X, E, size=(NODES,)), "size: got tuple"),
        (lambda: GATConv(4, 4)(X, E, size=5), "size: got int"),
        (lambda: GATConv(4, 4)(X, E, size=(NODES, -1)), "size: got -1; accepted: two integers"),
    ],
)
def test_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()


WIDE = gnnsparse.prepare(D % 20, num_nodes=(NODES, 20), cache=False)


#: What all layers of attention refuse.
REFUSED: list[tuple[Callable[[Any], Any], str]] = [
    (lambda make: make(0, 4), "in_channels: got 0; accepted: a positive integer"),
    (lambda make: make((4, 4, 4), 4), "in_channels: has 3 numbers"),
    (lambda make: make((4, None), 4), "in_channels: got NoneType"),
    (lambda make: make(4, 2.0), "out_channels: got float"),
    (lambda make: make(4, 4, heads=0), "heads: got 0"),
    (lambda make: make(4, 2**20, heads=2**20), "heads: got 1048576 of 1048576 features"),
    (lambda make: make(4, 4, dropout=1.0), "dropout: got 1.0; accepted: a number in [0, 1)"),
    (lambda make: make(4, 4, concat=1), "concat: got int"),
    (lambda make: make(4, 4, bias=None), "bias: got NoneType"),
    (lambda make: make(4, 4, edge_dim=0), "edge_dim: got 0"),
    (lambda make: make(4, 4, precision="fp7"), "precision: got 'fp7'"),
    (lambda make: make(4, 4, flow="target_to_source"), "unexpected keyword argument 'flow'"),
    (lambda make: make(4, 4)(X[:, :3], D), "x: has shape (30, 3)"),
    (lambda make: make(4, 4)(X.double(), D), "x: got a tensor of dtype torch.float64"),
    (lambda make: make(4, 4)((X,), D), "x: has 1 elements"),
    (lambda make: make(4, 4)((X, X[:, :3]), D), "x[1]: has shape (30, 3)"),
    (lambda make: make(4, 4)(X, [[0], [1]]), "adj: got list; accepted: a SparseOperand"),
    (lambda make: make(4, 4)(X, X), "adj: has shape (30, 4); accepted: (2, edges)"),
    (lambda make: make(4, 4)(X[:9], D), "accepted: 0 to 8"),
    (lambda make: make(4, 4)(X[:9], GCN), "x: has 9 sources and 9 targets, the"),
    (lambda make: make(4, 4)(X, D, torch.ones(3)), "edge_attr: goes with edge_dim"),
    (lambda make: make(4, 4)(X, D, return_attention_weights=1), "return_attention_weights: got"),
    (lambda make: make(4, 4, edge_dim=2)(X, D, LABELS[:5]), "edge_attr: is of 5 edges"),
    (lambda make: make(4, 4, edge_dim=3)(X, D, LABELS), "edge_attr: has shape"),
    (lambda make: make(4, 4, edge_dim=2)(X, D, LABELS[:, 0]), "edge_attr: has shape"),
    (lambda make: make(4, 4, edge_dim=2)(X, D, LABELS.double()), "edge_attr: got a tensor of dtype"),
    (lambda make: make(4, 4, edge_dim=2)(X, D, [1.0]), "edge_attr: got list"),
    (
        lambda make: labelled(make)(X, operand(E), torch.randn(120, 2)),
        "edge_attr: the operand's edges were repeated",
    ),
    (lambda make: labelled(make)(X, GCN, LABELS), "edge_attr: the operand has self-loops that prepare"),
    (lambda make: make(4, 4, precision="bf16")(X, GCN), "precision: got 'bf16', the operand has 'fp32'"),
]
#: What those refuse that add self-loops.
REFUSED_LOOPS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda make: make(4, 4, fill_value="median"), "fill_value: got 'median'; accepted: mean, add"),
    (lambda make: make(4, 4, fill_value=None), "fill_value: got NoneType"),
    (lambda make: make(4, 4, fill_value=torch.ones(3).long()), "fill_value: got a tensor of dtype"),
    (lambda make: make(4, 4, fill_value=float("nan")), "fill_value: got nan"),
    (lambda make: make(4, 4, negative_slope="0.2"), "negative_slope: got str"),
    (lambda make: make(4, 4, add_self_loops=None), "add_self_loops: got NoneType"),
    (lambda make: make(4, 4, residual=1), "residual: got int"),
    (lambda make: make(4, 4)(X, operand()), "adj: an operand of which nodes lack self-loops; accepted"),
    (lambda make: make(4, 4)((X, X[:20]), WIDE), "adj: an operand of 30 sources and 20 targets has no"),
    (lambda make: make(4, 4, edge_dim=2)(X, GCN, LABELS), "edge_attr: goes with an operand only if no"),
    (
        lambda make: make(4, 4, edge_dim=2, fill_value=torch.ones(3))(X, D, LABELS),
        "fill_value: has shape (3,); accepted: one that expands",
    ),
]


@pytest.mark.parametrize(
    ("make", "call", "message"),
    [
        *((make, *row) for row in REFUSED for make in ATTENTION.values()),
        *((make, *row) for row in REFUSED_LOOPS for make in (GATConv, GATv2Conv)),
    ],
)
def test_refused_by_attention(make: Any, call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call(make)


@pytest.mark.parametrize("make", [GATConv, GATv2Conv])
def test_operands_without_self_loops_are_taken_without_the_option(make: Any) -> None:
    make(4, 4, add_self_loops=False)(X, operand())
