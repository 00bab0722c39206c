"""GATConv, GATv2Conv, TransformerConv: precisions, dtypes, what they keep, errors."""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.nn import GATConv, GATv2Conv, TransformerConv
from gnnsparse.testing import assert_accurate, assert_all_accurate, in_float64, with_gradients
from tests.helpers import PRECISIONS, ROUNDING, reference_layers

NODES = 30
KINDS: list[Any] = [GATConv, GATv2Conv, TransformerConv]
LOOPS: list[Any] = KINDS[:2]


def edges(seed: int = 0, count: int = 120) -> torch.Tensor:
    index = torch.randint(0, NODES, (2, count), generator=torch.Generator().manual_seed(seed))
    return index.unique(dim=1)


def operand(index: torch.Tensor | None = None, **options: Any) -> gnnsparse.SparseOperand:
    index = edges() if index is None else index
    return gnnsparse.prepare(index, num_nodes=NODES, **{"values": "gcn", "cache": False, **options})


def repeated() -> torch.Tensor:
    return torch.cat([edges(), edges()[:, :9]], dim=1)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("with_edges", [False, True])
def test_precisions(device: str, kind: Any, precision: str, with_edges: bool) -> None:
    index = edges()
    loops = {} if kind is TransformerConv else {"add_self_loops": False}
    layer = kind(7, 5, heads=3, edge_dim=2 if with_edges else None, **loops).to(device)
    a = operand(index, values=None, precision=precision, reorder="degree").to(device)
    inputs = [torch.randn(NODES, 7, device=device)]
    inputs += [torch.randn(index.shape[1], 2, device=device)] if with_edges else []
    parameters = [p for name, p in layer.named_parameters() if name != "lin_key.bias"]

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return with_gradients(lambda x, *attr: layer(x, a, *attr), inputs, parameters)

    got = run(inputs)
    again = run(inputs)
    with reference_layers():
        plain = run(inputs)
        with in_float64(layer):
            exact = run([x.double() for x in inputs])
    assert all(torch.equal(one, other) for one, other in zip(got, again, strict=True))
    # Roundings of the operands of a product may cancel in the plain run and not in ours.
    assert_all_accurate(got, plain, exact, floor=(16 if precision == "fp32" else 2) * ROUNDING[precision])


@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_of_halves(device: str, kind: Any) -> None:
    layer = kind(4, 8, heads=2, edge_dim=3).to(device, torch.float16)
    x, attr = (torch.randn(n, w, device=device).half() for n, w in ((NODES, 4), (edges().shape[1], 3)))
    y, (_, weights) = layer(x, edges().to(device), attr, return_attention_weights=True)
    (y.sum() + weights.sum()).backward()
    assert y.dtype == weights.dtype == layer.lin_edge.weight.grad.dtype == torch.float16
    assert all(bool(torch.isfinite(p.grad).all()) for p in layer.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_autocast(device: str, kind: Any) -> None:
    """The output has the low dtype of the linear layers, or wider; gradients are float32."""
    dtype = torch.float16 if device == "cuda" else torch.bfloat16
    layer, x = kind(6, 5, heads=2, edge_dim=3).to(device), torch.randn(NODES, 6, device=device)
    index, attr = edges().to(device), torch.randn(edges().shape[1], 3, device=device)
    with torch.autocast(device, dtype):
        y = layer(x, index, attr)
    y.float().square().sum().backward()
    assert y.dtype == dtype
    assert all(p.grad.dtype == torch.float32 for p in layer.parameters())
    wide = layer(x, index, attr)
    with reference_layers(), in_float64(layer):
        exact = layer(x.double(), index, attr.double())
    floor = 16 * torch.finfo(dtype).eps
    assert_accurate(y.float(), wide, exact, floor=floor)


@pytest.mark.parametrize("kind", KINDS)
def test_an_edge_index_is_prepared_once(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(*args: Any, **options: Any) -> gnnsparse.SparseOperand:
        calls.append(1)
        return gnnsparse.prepare(*args, **options)

    monkeypatch.setattr("gnnsparse.nn.edges.prepare", counted)
    layer, index, x = kind(4, 4), edges(), torch.randn(NODES, 4)
    first = layer(x, index)
    assert torch.equal(layer(x, index), first)
    assert len(calls) == 1
    assert not torch.equal(layer(x, edges(1)), first)
    assert len(calls) == 2
    layer(torch.randn(NODES + 3, 4), edges(1))
    assert len(calls) == 3
    index[:, 0] = 5
    layer(x, index)
    assert len(calls) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_copies_and_pickles(kind: Any) -> None:
    layer, index, x = kind(4, 4), edges(), torch.randn(NODES, 4)
    want = layer(x, index)
    assert torch.equal(copy.deepcopy(layer)(x, index), want)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x, index), want)
    layer.reset_parameters()
    assert not torch.equal(layer(x, index), want)


@pytest.mark.parametrize("kind", KINDS)
def test_inference_does_not_spoil_training(kind: Any) -> None:
    layer, index, x = kind(4, 4, edge_dim=2), edges(), torch.randn(NODES, 4)
    attr = torch.randn(index.shape[1], 2)
    with torch.inference_mode():
        want = layer(x, index, attr)
    y = layer(x, index, attr)
    y.sum().backward()
    assert torch.equal(y, want)


@pytest.mark.parametrize("kind", KINDS)
def test_repeated_edges_share_their_weight(kind: Any) -> None:
    """Weights of a node sum to 1 over all edges, repeats included, which count as often as they are given."""
    index = repeated()
    _, (pairs, weights) = kind(4, 4, heads=2)(torch.randn(NODES, 4), index, return_attention_weights=True)
    sums = torch.zeros(NODES, 2).index_add(0, pairs[1], weights)
    some = torch.zeros(NODES).index_add(0, pairs[1], torch.ones(pairs.shape[1])) > 0
    exact = some.double()[:, None].expand(-1, 2)
    assert_accurate(sums, exact.float(), exact)


def test_loops_share_the_mean_of_features() -> None:
    """In a tie of equal scores only the features of edges tell; they are the mean of those at the node."""
    index, attr = torch.tensor([[1, 2, 2], [0, 0, 2]]), torch.tensor([[1.0], [5.0], [9.0]])
    layer = GATConv(2, 2, edge_dim=1)
    edges = layer(torch.zeros(3, 2), index, attr, return_attention_weights=True)[1][0]
    assert edges.tolist() == [[1, 2, 0, 1, 2], [0, 0, 0, 1, 2]]
    made = layer._memo._entry.adjacency
    assert made.features(attr, index, layer.lin_edge.weight, "mean").flatten().tolist() == [1, 5, 3, 0, 0]
    assert made.features(attr, index, layer.lin_edge.weight, "mul").flatten().tolist() == [1, 5, 5, 1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_compiled(kind: Any) -> None:
    a, layer, x = operand(), kind(6, 3, heads=2), torch.randn(NODES, 6)
    _ = a.T
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = torch.compile(layer, backend="aot_eager")
        results = [compiled(x, adj) for adj in (a, edges())]
    for got, adj in zip(results, (a, edges()), strict=True):
        assert_accurate(got, layer(x, adj), layer(x, adj).double())


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_by_torch_func(kind: Any) -> None:
    layer, index, x = kind(4, 3, heads=2, edge_dim=2), edges(), torch.randn(NODES, 4)
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


class TestErrors:
    """What a layer can't do is refused by the name of the argument."""

    X, E = torch.randn(NODES, 4), edges()

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda kind: kind(0, 4), "in_channels: got 0; accepted: a positive integer"),
            (lambda kind: kind(-1, 4), "in_channels: got -1; accepted: a positive integer"),
            (lambda kind: kind((4, 4, 4), 4), "in_channels: has 3 numbers"),
            (lambda kind: kind((4, None), 4), "in_channels: got NoneType"),
            (lambda kind: kind(4, 2.0), "out_channels: got float"),
            (lambda kind: kind(4, 4, heads=0), "heads: got 0"),
            (lambda kind: kind(4, 2**20, heads=2**20), "heads: got 1048576 of 1048576 features"),
            (lambda kind: kind(4, 4, dropout=1.0), "dropout: got 1.0; accepted: a number in [0, 1)"),
            (lambda kind: kind(4, 4, concat=1), "concat: got int"),
            (lambda kind: kind(4, 4, bias=None), "bias: got NoneType"),
            (lambda kind: kind(4, 4, edge_dim=0), "edge_dim: got 0"),
            (lambda kind: kind(4, 4, precision="fp7"), "precision: got 'fp7'"),
            (lambda kind: kind(4, 4, flow="target_to_source"), "unexpected keyword argument 'flow'"),
        ],
    )
    @pytest.mark.parametrize("kind", KINDS)
    def test_options(self, kind: Any, make: Callable[[Any], Any], message: str) -> None:
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            make(kind)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"fill_value": "median"}, "fill_value: got 'median'; accepted: mean, add"),
            ({"fill_value": None}, "fill_value: got NoneType"),
            (
                {"fill_value": torch.ones(3, dtype=torch.int64)},
                "fill_value: got a tensor of dtype torch.int64",
            ),
            ({"fill_value": float("nan")}, "fill_value: got nan"),
            ({"negative_slope": "0.2"}, "negative_slope: got str"),
            ({"add_self_loops": None}, "add_self_loops: got NoneType"),
            ({"residual": 1}, "residual: got int"),
        ],
    )
    @pytest.mark.parametrize("kind", LOOPS)
    def test_options_of_self_loops(self, kind: Any, options: dict[str, Any], message: str) -> None:
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            kind(4, 4, **options)

    def test_shared_weights_of_two_widths(self) -> None:
        with pytest.raises(ValueError, match=re.escape("share_weights: got True for in_channels (4, 5)")):
            GATv2Conv((4, 5), 4, share_weights=True)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda f: f(TestErrors.X[:, :3], TestErrors.E), "x: has shape (30, 3)"),
            (lambda f: f(TestErrors.X.double(), TestErrors.E), "x: got a tensor of dtype torch.float64"),
            (lambda f: f((TestErrors.X,), TestErrors.E), "x: has 1 elements"),
            (lambda f: f((TestErrors.X, TestErrors.X[:, :3]), TestErrors.E), "x[1]: has shape (30, 3)"),
            (lambda f: f(TestErrors.X, [[0], [1]]), "adj: got list; accepted: a SparseOperand"),
            (lambda f: f(TestErrors.X, TestErrors.X), "adj: has shape (30, 4); accepted: (2, edges)"),
            (lambda f: f(TestErrors.X[:9], TestErrors.E), "accepted: 0 to 8"),
            (
                lambda f: f(TestErrors.X[:9], operand()),
                "x: has 9 sources and 9 targets, the operand 30 and 30",
            ),
            (lambda f: f(TestErrors.X, TestErrors.E, torch.ones(3)), "edge_attr: goes with edge_dim"),
            (
                lambda f: f(TestErrors.X, TestErrors.E, return_attention_weights=1),
                "return_attention_weights: got int; accepted: True or False",
            ),
        ],
    )
    @pytest.mark.parametrize("kind", KINDS)
    def test_inputs(self, kind: Any, call: Callable[[Any], Any], message: str) -> None:
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            call(kind(4, 4))

    @pytest.mark.parametrize(
        ("attr", "message"),
        [
            (torch.ones(5, 2), "edge_attr: is of 5 edges"),
            (torch.ones(E.shape[1], 3), "edge_attr: has shape"),
            (torch.ones(E.shape[1]), "edge_attr: has shape"),
            (torch.ones(E.shape[1], 2).double(), "edge_attr: got a tensor of dtype torch.float64"),
            ([1.0], "edge_attr: got list"),
        ],
    )
    @pytest.mark.parametrize("kind", KINDS)
    def test_edge_features(self, kind: Any, attr: Any, message: str) -> None:
        with pytest.raises((TypeError, ValueError), match=re.escape(message)):
            kind(4, 4, edge_dim=2)(self.X, self.E, attr)

    @pytest.mark.parametrize("kind", KINDS)
    def test_features_of_repeated_edges(self, kind: Any) -> None:
        index = repeated()
        attr = torch.randn(index.shape[1], 2)
        layer = kind(4, 4, edge_dim=2)
        with pytest.raises(ValueError, match="edge_attr: edges are repeated"):
            layer(self.X, index, attr)
        loops = {} if kind is TransformerConv else {"add_self_loops": False}
        layer = kind(4, 4, edge_dim=2, **loops)
        with pytest.raises(ValueError, match="edge_attr: edges are repeated"):
            layer(self.X, operand(index, values=None), attr)
        with pytest.raises(ValueError, match="edge_attr: the operand has self-loops that prepare added"):
            layer(self.X, operand(), torch.randn(self.E.shape[1], 2))

    @pytest.mark.parametrize("kind", LOOPS)
    def test_operands_and_self_loops(self, kind: Any) -> None:
        wide = gnnsparse.prepare(self.E % 20, num_nodes=(NODES, 20), cache=False)
        layer = kind(4, 4, edge_dim=2, fill_value=torch.ones(3))
        with pytest.raises(ValueError, match="adj: an operand of which nodes lack self-loops; accepted: one"):
            kind(4, 4)(self.X, operand(values=None))
        with pytest.raises(
            ValueError, match="adj: an operand of 30 sources and 20 targets has no self-loops"
        ):
            kind(4, 4)((self.X, self.X[:20]), wide)
        with pytest.raises(
            ValueError, match="edge_attr: goes with an operand only if no self-loops are added"
        ):
            kind(4, 4, edge_dim=2)(self.X, operand(), torch.randn(self.E.shape[1], 2))
        with pytest.raises(
            ValueError, match=re.escape("fill_value: has shape (3,); accepted: one that expands")
        ):
            layer(self.X, self.E, torch.randn(self.E.shape[1], 2))
        kind(4, 4, add_self_loops=False)(self.X, operand(values=None))

    @pytest.mark.parametrize("kind", KINDS)
    def test_precision_of_operands(self, kind: Any) -> None:
        with pytest.raises(ValueError, match="precision: got 'bf16', the operand has 'fp32'"):
            kind(4, 4, precision="bf16")(self.X, operand())

    def test_missing_features(self) -> None:
        with pytest.raises(TypeError, match=re.escape("edge_attr: got NoneType; accepted: a floating-point")):
            TransformerConv(4, 4, edge_dim=2)(self.X, self.E)
        for kind in (GATv2Conv, TransformerConv):
            with pytest.raises(ValueError, match="x: has no features of targets"):
                kind(4, 4)((self.X, None), self.E)

    @pytest.mark.parametrize("size", [(NODES,), (NODES, 9), 5, (3, NODES), (NODES, -1)], ids=str)
    def test_size(self, size: Any) -> None:
        with pytest.raises((TypeError, ValueError), match="size: "):
            GATConv(4, 4)(self.X, self.E, size=size)
