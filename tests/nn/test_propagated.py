"""A GCN layer in one step of autograd: the bits of its operations one by one, and nothing hidden by it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.autograd import forward_ad

import gnnsparse
from gnnsparse.nn import GCNConv, linear
from tests.helpers import PRECISIONS

NODES, FEATURES, CLASSES = 40, 24, 7


def operand(precision: str = "fp32", device: str = "cpu") -> gnnsparse.SparseOperand:
    index = torch.randint(0, NODES, (2, 150), generator=torch.Generator().manual_seed(0))
    return gnnsparse.prepare(
        index, num_nodes=NODES, values="gcn", precision=precision, cache=False
    ).to(device)  # fmt: skip


def layer_and_x(device: str = "cpu", bias: bool = True) -> tuple[GCNConv, torch.Tensor]:
    layer = GCNConv(FEATURES, CLASSES, bias=bias).to(device)
    if layer.bias is not None:
        torch.nn.init.normal_(layer.bias)
    return layer, torch.randn(NODES, FEATURES, device=device)


def one_by_one(layer: GCNConv, x: torch.Tensor, a: gnnsparse.SparseOperand) -> torch.Tensor:
    out = a @ F.linear(x, layer.lin.weight)
    return out if layer.bias is None else out + layer.bias


@pytest.fixture
def taken() -> Iterator[mock.Mock]:
    """Sees each call of a layer in one step."""
    with mock.patch("gnnsparse.nn.gcn_conv.propagated_linear", wraps=linear.propagated_linear) as calls:
        yield calls


@pytest.mark.parametrize("precision", [*PRECISIONS, "int8"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("x_needs_grad", [True, False])
def test_bits(precision: str, bias: bool, x_needs_grad: bool, device: str, taken: mock.Mock) -> None:
    a, (layer, x) = operand(precision, device), layer_and_x(device, bias)
    x.requires_grad_(x_needs_grad)
    wanted = [t for t in (x, *layer.parameters()) if t.requires_grad]
    results = []
    for run in (layer, functools.partial(one_by_one, layer)):
        for _ in range(2):  # the second call is bound on a GPU
            out = run(x, a) if run is layer else run(x, a=a)
            seed = torch.cos(torch.arange(out.numel(), device=device)).view(out.shape)
            grads = torch.autograd.grad(out, wanted, seed)
        results.append((out, *grads))
    assert taken.call_count == 2
    for got, want in zip(*results, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("mean", [False, True])
def test_gradients_have_16_bits_whatever_ran_before(mean: bool, device: str) -> None:
    """Products with the transpose in 8 bits that were bound before are none that a gradient may take."""
    torch.manual_seed(0)
    layer, x = layer_and_x(device)
    seed = torch.randn(NODES, CLASSES, device=device)
    results = []
    for ran_before in (False, True):
        a = operand("int8", device)
        for _ in range(2 * ran_before):
            a.T @ seed
        for _ in range(2):
            x = x.detach().requires_grad_()
            out = gnnsparse.spmm(a, F.linear(x, layer.lin.weight), reduce="mean") if mean else layer(x, a)
            results.append(torch.autograd.grad(out, x, seed)[0])
    for got in results[1:]:
        assert torch.equal(got, results[0])


@pytest.mark.parametrize("frozen", ["lin.weight", "bias", "x"])
def test_gradients_that_nobody_wants(frozen: str, taken: mock.Mock) -> None:
    layer, x = layer_and_x()
    x.requires_grad_()
    tensors = {"x": x, **dict(layer.named_parameters())}
    tensors[frozen].requires_grad_(False)
    layer(x, operand()).sum().backward()
    assert taken.call_count == 1
    assert [name for name, t in tensors.items() if t.grad is None] == [frozen]


def test_one_step_of_autograd() -> None:
    layer, x = layer_and_x()
    out = layer(x, operand())
    assert out.grad_fn is not None
    steps = [step for step, _ in out.grad_fn.next_functions if step is not None]
    assert sorted(type(step).__name__ for step in steps) == ["AccumulateGrad", "AccumulateGrad"]


def test_second_derivatives(taken: mock.Mock) -> None:
    a, (layer, x) = operand(), layer_and_x()
    x.requires_grad_()
    results = []
    for run in (layer, functools.partial(one_by_one, layer)):
        out = run(x, a) if run is layer else run(x, a=a)
        wanted = (x, layer.lin.weight)
        first = torch.autograd.grad(out.pow(2).sum(), wanted, create_graph=True)
        results.append(torch.autograd.grad(sum(g.sin().sum() for g in first), (*wanted, layer.bias)))
    assert taken.call_count == 1
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_batches_and_tangents_of_gradients_are_refused(taken: mock.Mock) -> None:
    layer, x = layer_and_x()
    out = layer(x.requires_grad_(), operand())
    wanted, seeds = (x, *layer.parameters()), torch.randn(3, *out.shape)
    with pytest.raises(NotImplementedError, match="got a batch of gradients"):
        torch.autograd.grad(out, wanted, seeds, is_grads_batched=True, retain_graph=True)
    with (
        forward_ad.dual_level(),
        pytest.raises(NotImplementedError, match="got a tensor with a tangent of forward-mode AD"),
    ):
        torch.autograd.grad(out, wanted, forward_ad.make_dual(seeds[0], seeds[1]))
    assert taken.call_count == 1


def test_an_expanded_gradient() -> None:
    a, (layer, x) = operand(), layer_and_x()
    layer(x, a).sum().backward()
    got = [p.grad for p in layer.parameters()]
    want = torch.autograd.grad(one_by_one(layer, x, a).sum(), list(layer.parameters()))
    assert all(torch.equal(g, w) for g, w in zip(got, want, strict=True) if g is not None)


def test_changes_before_the_backward_pass() -> None:
    """What no gradient needs may be changed in place, and what one needs may not."""
    a, (layer, x) = operand(), layer_and_x()
    weight = layer.lin.weight
    for needs_grad, changed, message in (
        (False, weight, None),
        (True, weight, "modified by an inplace operation"),
        (False, x, "modified by an inplace operation"),
    ):
        out = layer(x.requires_grad_(needs_grad), a)
        with torch.no_grad():
            changed.mul_(2)
        with contextlib.nullcontext() if message is None else pytest.raises(RuntimeError, match=message):
            out.sum().backward()
    weight.grad = None
    layer(x, a).mul_(2).sum().backward()
    (want,) = torch.autograd.grad((one_by_one(layer, x, a) * 2).sum(), [weight])
    assert torch.equal(weight.grad, want)


def _hook(layer: GCNConv, x: torch.Tensor, a: Any) -> torch.Tensor:
    seen: list[Any] = []
    layer.lin.register_forward_hook(lambda module, inputs, out: seen.append(out))
    out: torch.Tensor = layer(x, a)
    assert len(seen) == 1
    return out


def _autocast(layer: GCNConv, x: torch.Tensor, a: Any) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out: torch.Tensor = layer(x, a)
    assert out.dtype == torch.bfloat16
    return out.float()


def _func(layer: GCNConv, x: torch.Tensor, a: Any) -> torch.Tensor:
    own = dict(layer.named_parameters())
    torch.func.grad(lambda p: torch.func.functional_call(layer, p, (x, a)).sum())(own)
    return layer.requires_grad_(False)(x.requires_grad_(False), a)


def _forward_ad(layer: GCNConv, x: torch.Tensor, a: Any) -> torch.Tensor:
    with forward_ad.dual_level(), pytest.raises(NotImplementedError, match="got a tensor with a tangent"):
        layer(forward_ad.make_dual(x, x * 2), a)
    return one_by_one(layer, x, a)


def _no_grad(layer: GCNConv, x: torch.Tensor, a: Any) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = layer(x, a)
    assert out.grad_fn is None
    return out


def _edge_weight(layer: GCNConv, x: torch.Tensor, a: Any) -> torch.Tensor:
    bare = GCNConv(FEATURES, CLASSES, normalize=False)
    bare.load_state_dict(layer.state_dict())
    ones = torch.ones(a.nnz, requires_grad=True)
    bare(x, a.indices().flip(0), ones).sum().backward()
    assert ones.grad is not None
    return one_by_one(layer, x, a)


SEEN = {
    "hook": _hook,
    "autocast": _autocast,
    "func": _func,
    "forward_ad": _forward_ad,
    "no_grad": _no_grad,
    "edge_weight": _edge_weight,
    "subclass": lambda layer, x, a: layer(x.as_subclass(type("Own", (torch.Tensor,), {})), a),
    "transposed": lambda layer, x, a: layer(x.T.contiguous().T, a),
    "compiled": lambda layer, x, a: torch.compile(layer, backend="aot_eager", fullgraph=True)(x, a),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("how", SEEN)
def test_what_has_to_be_seen_goes_step_by_step(how: str, taken: mock.Mock) -> None:
    a, (layer, x) = operand(), layer_and_x()
    x.requires_grad_()
    want = one_by_one(layer, x, a).detach()
    out = SEEN[how](layer, x, a).detach().as_subclass(torch.Tensor)
    assert not taken.called
    tolerance = {"rtol": 0.05, "atol": 0.1} if how == "autocast" else {}
    torch.testing.assert_close(out, want, **tolerance)
