"""SparseLinear: the product and its gradients, pruning, what is saved."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnsparse import masks
from gnnsparse.nn import SparseLinear
from gnnsparse.testing import assert_accurate, assert_all_accurate, random_graph
from tests.helpers import PRECISIONS, copies_of, plain_product, product_scale


def layer_of(rows: int, cols: int, density: float = 0.3, **options: Any) -> SparseLinear:
    layer = SparseLinear(random_graph(rows, cols, density, seed=rows), **options)
    if layer.bias is not None:
        torch.nn.init.normal_(layer.bias)
    return layer


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("sizes", [(24, 16), (7, 33), (1, 5), (5, 1)], ids=str)
def test_product_and_gradients(device: str, precision: str, sizes: tuple[int, int], poisoned: None) -> None:
    layer = layer_of(*sizes, bias=False, precision=precision).to(device)
    x = torch.randn(3, 4, sizes[1], device=device, requires_grad=True)
    y = layer(x)
    probe = torch.randn_like(y)
    got = [y, *torch.autograd.grad(y, [x, layer.weight], probe)]

    weight = layer.weight.detach().double().requires_grad_()
    row, col = layer.operand.indices()
    dense = weight.new_zeros(sizes).index_put((row, col), weight)
    exact_x = x.detach().double().requires_grad_()
    exact_y = exact_x @ dense.T
    exact = [exact_y, *torch.autograd.grad(exact_y, [exact_x, weight], probe.double())]
    w, flat, grad = dense.detach(), x.detach().reshape(-1, sizes[1]), probe.reshape(-1, sizes[0])
    plain = [
        plain_product(w, flat.T, precision).T,
        plain_product(w.T, grad.T, precision).T,
        plain_product(grad.T, flat, precision)[row, col],
    ]
    assert_all_accurate(got, [p.reshape(y.shape) for p, y in zip(plain, exact, strict=True)], exact)


def assert_linear(layer: SparseLinear, x: torch.Tensor) -> None:
    """The layer is the dense one with its weights."""
    dense = layer.to_dense()
    plain = torch.nn.functional.linear(x, dense, layer.bias)
    bias = None if layer.bias is None else layer.bias.double()
    exact = torch.nn.functional.linear(x.double(), dense.double(), bias)
    scale = product_scale(dense, x.T).T
    assert_accurate(layer(x), plain, exact, scale=scale if bias is None else torch.hypot(scale, bias))


def test_bias_and_leading_dimensions() -> None:
    layer = layer_of(6, 9)
    assert_linear(layer, torch.randn(2, 9))
    x = torch.randn(2, 3, 9)
    assert torch.equal(layer(x)[1, 2], layer(x[1, 2]))
    assert layer(torch.ones(2, 0, 3, 9)).shape == (2, 0, 3, 6)
    assert layer(torch.ones(4, 9).half()).dtype == torch.float16


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 1), st.sampled_from([1, 8, 16]))
def test_pruning_keeps_the_largest(rows: int, cols: int, sparsity: float, vector: int) -> None:
    linear = torch.nn.Linear(cols, rows)
    layer = SparseLinear.from_dense(linear, sparsity, vector)
    dense, kept = linear.weight.detach(), layer.to_dense().detach() != 0
    strips = -(-rows // vector)
    padded = torch.nn.functional.pad(dense, (0, 0, 0, strips * vector - rows))
    size = padded.double().reshape(strips, vector, cols).norm(dim=1)
    whole = torch.nn.functional.pad(kept, (0, 0, 0, strips * vector - rows)).reshape(strips, vector, cols)
    taken = whole.any(dim=1)
    assert int(taken.sum()) == round((1 - sparsity) * strips * cols)
    assert torch.equal(kept, taken.repeat_interleave(vector, 0)[:rows]), "vectors are kept whole"
    if taken.any() and not taken.all():  # which float32 sums of squares say
        a_few_roundings = 4 * torch.finfo(torch.float32).eps
        assert float(size[taken].min()) >= float(size[~taken].max()) * (1 - a_few_roundings)
    assert torch.equal(layer.to_dense().detach(), dense * kept)
    assert_linear(layer, torch.randn(3, cols))


def test_nothing_pruned_is_the_dense_layer() -> None:
    linear = torch.nn.Linear(12, 10, bias=False)
    layer = SparseLinear.from_dense(linear, 0.0, 8)
    assert layer.bias is None
    assert torch.equal(layer.to_dense(), linear.weight)
    assert_linear(layer, torch.randn(5, 12))


def test_the_state_dict_has_the_places() -> None:
    first, second = layer_of(8, 8), SparseLinear(masks.random(8, 2, seed=0))
    third = SparseLinear(masks.random(8, 2, seed=1))
    x = torch.randn(3, 8)
    before = third(x)
    third.load_state_dict(second.state_dict())
    assert torch.equal(third(x), second(x))
    assert not torch.equal(third(x), before)
    with pytest.raises(RuntimeError, match="size mismatch"):
        first.load_state_dict(second.state_dict())


def test_copies_compiled_code_and_training_after_inference() -> None:
    layer, x = layer_of(8, 6), torch.randn(3, 6)
    with torch.inference_mode():  # in which the operand is made
        layer(x)
    want = layer(x)
    want.sum().backward()
    assert layer.weight.grad is not None
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    assert all(torch.equal(other(x), want) for other in (*copies_of(layer), compiled))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: SparseLinear(torch.eye(3)), "graph: got a tensor of dtype torch.float32; accepted: a Spars"),
        (lambda: SparseLinear(masks.window(3, 0), bias=1), "bias: got int"),
        (lambda: layer_of(4, 5)(torch.ones(2, 4)), "x: has shape (2, 4); accepted: a floating-point"),
        (lambda: layer_of(4, 5)([1.0]), "x: got list"),
        (lambda: layer_of(4, 5)(torch.ones(2, 5).double()), "x: got a tensor of dtype torch.float64"),
        (lambda: SparseLinear.from_dense(torch.eye(3), 0.5), "linear: got a tensor"),
        (lambda: SparseLinear.from_dense(torch.nn.Linear(2, 2), 1.5), "sparsity: got 1.5"),
        (lambda: SparseLinear.from_dense(torch.nn.Linear(2, 2), 0.5, 0), "vector: got 0"),
    ],
)
def test_bad_arguments(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()


def test_repr() -> None:
    layer = SparseLinear.from_dense(torch.nn.Linear(20, 10), 0.75)
    assert repr(layer) == "SparseLinear(20, 10, nnz=50, sparsity=0.750)"
