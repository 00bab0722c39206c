"""GCNConv: order of the products, what it keeps between calls, precisions, errors."""

from __future__ import annotations

import copy
import re
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.nn import GCNConv
from gnnsparse.testing import assert_accurate, assert_all_accurate, in_float64, with_gradients
from tests.helpers import PRECISIONS

NODES = 30


def edges(seed: int = 0, count: int = 120) -> torch.Tensor:
    return torch.randint(0, NODES, (2, count), generator=torch.Generator().manual_seed(seed))


def operand(index: torch.Tensor, **options: Any) -> gnnsparse.SparseOperand:
    return gnnsparse.prepare(index, num_nodes=NODES, values="gcn", cache=False, **options)


def formula(layer: GCNConv, index: torch.Tensor) -> Callable[..., torch.Tensor]:
    """What the layer computes of x and edge weights, by dense products in their dtype.

    Of several self-loops at a node the last one counts; one of weight 1 is added where there is none.
    """
    apart, loops = (index[0] != index[1]).nonzero().flatten(), (index[0] == index[1]).nonzero().flatten()

    def run(x: torch.Tensor, weight: torch.Tensor | None = None) -> torch.Tensor:
        weight = x.new_ones(index.shape[1]) if weight is None else weight
        matrix = x.new_zeros(NODES, NODES)
        matrix = matrix.index_put((index[1, apart], index[0, apart]), weight[apart], accumulate=True)
        if layer.add_self_loops:
            last = dict(zip(index[0, loops].tolist(), loops.tolist(), strict=True))
            matrix = matrix + torch.diag(
                torch.stack([weight[last[n]] if n in last else x.new_ones(()) for n in range(NODES)])
            )
        else:
            matrix = matrix.index_put(tuple(index[:, loops]), weight[loops], accumulate=True)
        degree = matrix.sum(1)
        scale = torch.where(degree > 0, degree.clamp(min=1e-30).rsqrt(), 0.0)
        return scale[:, None] * matrix * scale @ layer.lin(x) + layer.bias

    return run


def product_width(layer: GCNConv, x: torch.Tensor, adj: Any, monkeypatch: pytest.MonkeyPatch) -> int:
    """The features of what the layer hands to spmm."""
    widths = []

    def watched(a: Any, dense: torch.Tensor, *values: Any) -> torch.Tensor:
        widths.append(dense.shape[1])
        return gnnsparse.spmm(a, dense, *values)

    for module in ("gcn_conv", "linear"):
        monkeypatch.setattr(f"gnnsparse.nn.{module}.spmm", watched)
    layer(x, adj)
    return widths[0]


class TestOrder:
    """Which of (A x) W and A (x W) runs: the one with less sparse work, forward and backward."""

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
    def test_rule(
        self, sizes: tuple[int, int], x_needs_grad: bool, frozen: bool, width: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:  # fmt: skip
        layer = GCNConv(*sizes)
        layer.requires_grad_(not frozen)
        x = torch.randn(NODES, sizes[0], requires_grad=x_needs_grad)
        assert product_width(layer, x, operand(edges()), monkeypatch) == width

    def test_without_gradients_the_forward_pass_alone_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with torch.no_grad():
            assert product_width(GCNConv(12, 8), torch.randn(NODES, 12), operand(edges()), monkeypatch) == 8

    @pytest.mark.parametrize("weighted", [False, True])
    def test_both_give_the_same(self, weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        layer, index, x = GCNConv(9, 7), edges(), torch.randn(NODES, 9)
        torch.nn.init.normal_(layer.bias)
        inputs = [x, torch.rand(index.shape[1])] if weighted else [x]
        plain = with_gradients(formula(layer, index), inputs, layer.parameters())
        with in_float64(layer):
            wide = [t.double() for t in inputs]
            exact = with_gradients(formula(layer, index), wide, layer.parameters())
        for first in (True, False):
            monkeypatch.setattr("gnnsparse.nn.gcn_conv.product_first", lambda *_, first=first: first)
            got = with_gradients(lambda x, *weight: layer(x, index, *weight), inputs, layer.parameters())
            assert_all_accurate(got, plain, exact)


class TestMemo:
    """What a layer keeps of an edge_index."""

    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Grows by one for each preparation."""
        calls: list[int] = []

        def counted(*args: Any, **options: Any) -> gnnsparse.SparseOperand:
            calls.append(1)
            return gnnsparse.prepare(*args, **options)

        monkeypatch.setattr("gnnsparse.nn.adjacency.prepare", counted)
        return calls

    def test_it_does_not_keep_the_tensor_alive(self) -> None:
        layer, index = GCNConv(4, 4), edges()
        layer(torch.randn(NODES, 4), index)
        watch = weakref.ref(index)
        del index
        assert watch() is None

    def test_cached_keeps_the_first(self, made: list[int]) -> None:
        layer, x = GCNConv(4, 4, cached=True), torch.randn(NODES, 4)
        first = layer(x, edges(1))
        assert torch.equal(layer(x, edges(2)), first)
        assert torch.equal(copy.deepcopy(layer)(x, edges(2)), first)
        assert len(made) == 1
        layer.reset_parameters()
        layer(x, edges(2))
        assert len(made) == 2

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

    def test_new_weights_on_old_edges(self, made: list[int]) -> None:
        layer, index, x = GCNConv(4, 4), edges(), torch.randn(NODES, 4)
        weight = torch.rand(index.shape[1])
        a = layer(x, index, weight)
        assert torch.equal(layer(x, index, weight), a)
        b = layer(x, index, 2 * weight + 1)
        weight += 1
        c = layer(x, index, weight)
        assert len(made) == 1
        assert not torch.equal(a, b)
        assert not torch.equal(a, c)

    def test_learned_weights_get_a_gradient_in_every_step(self) -> None:
        layer, index, x = GCNConv(4, 4, cached=True), edges(), torch.randn(NODES, 4)
        weight = torch.rand(index.shape[1], requires_grad=True)
        for _ in range(3):
            weight.grad = None
            layer(x, index, weight).square().sum().backward()
            assert bool(weight.grad.abs().sum() > 0)

    def test_inference_does_not_spoil_training(self) -> None:
        layer, index, x = GCNConv(4, 4), edges(), torch.randn(NODES, 4)
        weight = torch.rand(index.shape[1])
        with torch.inference_mode():
            want = layer(x, index, weight)
        y = layer(x, index, weight)
        y.sum().backward()
        with in_float64(layer):  # the order of the products may be another
            assert_accurate(y, want, formula(layer, index)(x.double(), weight.double()))


def _one_loop_each(index: torch.Tensor) -> torch.Tensor:
    return index[:, index[0] != index[1]]


def test_gradient_of_weights_where_a_degree_is_zero() -> None:
    """PyG's is NaN there: the derivative of d^-1/2 at 0."""
    index, weight = edges(), torch.zeros(120)
    weight[60:] = torch.rand(60)
    layer = GCNConv(4, 4, add_self_loops=False)
    weight.requires_grad_()
    layer(torch.randn(NODES, 4), index, weight).sum().backward()
    assert bool(torch.isfinite(weight.grad).all())


def test_gradient_of_weights_by_finite_differences() -> None:
    """Differences of the dense formula in float64, a step apart where truncation and rounding are equal."""
    index = edges(count=40)
    layer, x = GCNConv(3, 2), torch.randn(NODES, 3)
    weight = torch.rand(40) + 0.5
    plain, got = (
        torch.autograd.grad(function(x, leaf).square().sum(), leaf)[0]
        for function, leaf in (
            (formula(layer, index), weight.clone().requires_grad_()),
            (lambda x, weight: layer(x, index, weight), weight.clone().requires_grad_()),
        )
    )
    step, slopes = torch.finfo(torch.float64).eps ** (1 / 3), []
    with in_float64(layer), torch.no_grad():
        for way in torch.eye(40, dtype=torch.float64):
            ends = (formula(layer, index)(x.double(), weight + sign * step * way) for sign in (1, -1))
            after, before = (y.square().sum() for y in ends)
            slopes.append((after - before) / (2 * step))
    assert_accurate(got, plain, torch.stack(slopes))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precision_of_the_operand_it_makes(precision: str) -> None:
    index, x = _one_loop_each(edges()), torch.randn(NODES, 6)
    layer = GCNConv(6, 6, precision=precision)
    want = layer(x, operand(index, precision=precision))
    assert torch.equal(layer(x, index), want)
    layer.precision = None
    assert precision == "fp32" or not torch.equal(want, layer(x, operand(index)))


@pytest.mark.parametrize("sizes", [(16, 4), (4, 16)], ids=str)
def test_autocast(device: str, sizes: tuple[int, int]) -> None:
    """Under autocast both orders give the low dtype, and parameters float32 gradients."""
    dtype = torch.float16 if device == "cuda" else torch.bfloat16
    layer, x = GCNConv(*sizes).to(device), torch.randn(NODES, sizes[0], device=device)
    # The operand has a self-loop where there is none, and sums those that are there.
    a = operand(_one_loop_each(edges()).to(device), precision="fp16" if device == "cuda" else "bf16")
    index = _one_loop_each(edges()).to(device)
    with torch.autocast(device, dtype):
        y, plain = layer(x, a), formula(layer, index)(x)
    y.float().square().sum().backward()
    assert y.dtype == dtype
    assert layer.lin.weight.grad.dtype == torch.float32
    with in_float64(layer):
        assert_accurate(y, plain, formula(layer, index)(x.double()))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"adj": None}, TypeError, "adj: got NoneType; accepted: a SparseOperand"),
        ({"adj": torch.zeros(3, 4)}, ValueError, "adj: has shape (3, 4); accepted: (2, edges)"),
        ({"x": torch.zeros(NODES, 4, 4)}, ValueError, "x: has shape"),
        ({"adj": torch.zeros(2, 5)}, TypeError, "edge_index: got a tensor of dtype torch.float32"),
        ({"adj": torch.tensor([[0], [NODES]])}, ValueError, "accepted: 0 to 29, as num_nodes is 30"),
        ({"edge_weight": torch.ones(119)}, ValueError, "edge_weight: has shape (119,); accepted: (120,)"),
        ({"edge_weight": torch.ones(120, dtype=int)}, TypeError, "edge_weight: got a tensor of dtype"),
    ],
)
def test_bad_inputs(change: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {"x": torch.randn(NODES, 4), "adj": edges(), **change}
    with pytest.raises(error, match=re.escape(message)):
        GCNConv(4, 4)(**arguments)


def test_edge_weights_beside_an_operand() -> None:
    with pytest.raises(ValueError, match="an operand has its weights already"):
        GCNConv(4, 4)(torch.randn(NODES, 4), operand(edges()), torch.ones(120))


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"in_channels": 0}, ValueError),
        ({"in_channels": -1}, ValueError),
        ({"out_channels": 2.5}, TypeError),
        ({"bias": 1}, TypeError),
        ({"precision": "fp7"}, ValueError),
    ],
)
def test_bad_options(options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error, match=next(iter(options))):
        GCNConv(**{"in_channels": 3, "out_channels": 3, **options})
