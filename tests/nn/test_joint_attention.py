"""Layers of graph attention as one step of autograd: values and gradients beside float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
from gnnsparse.nn import GATConv, GATv2Conv, TransformerConv
from gnnsparse.nn import joint_attention as module
from tests import emulated

NODES = 40
LAYERS: dict[str, Any] = {"gat": GATConv, "gatv2": GATv2Conv, "transformer": TransformerConv}


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def where(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device of tensors, whose kernels a GPU or the emulator runs."""
    if request.param == "cuda":
        yield "cuda"
        return
    with emulated.running(request.getfixturevalue("late")):
        yield "cpu"


@pytest.fixture
def taken() -> Iterator[mock.Mock]:
    """Sees each call in one step."""
    with mock.patch.object(module, "_recorded", wraps=module._recorded) as calls:
        yield calls


def graph(device: str, seed: int = 0) -> torch.Tensor:
    """Random edges without repeats; the last nodes have none."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, NODES - 4, (2, 220), generator=generator).unique(dim=1).to(device)


def made(name: str, heads: int, width: int, device: str, **options: Any) -> Any:
    """A layer with 6 inputs whose parameters are all random."""
    torch.manual_seed(heads * width)
    layer = LAYERS[name](6, width, heads=heads, **options)
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return layer.to(device)


def exact(layer: Any, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """What a layer computes, over a matrix of all pairs."""
    heads = layer.heads
    mask = torch.zeros(NODES, NODES, dtype=torch.bool, device=x.device)
    mask[index[1], index[0]] = True
    if layer.add_self_loops:
        mask.fill_diagonal_(True)

    def of(linear: Any) -> torch.Tensor:
        return linear(x).unflatten(1, (heads, -1)).transpose(0, 1)  # [heads, nodes, width]

    if isinstance(layer, TransformerConv):
        v, scores = of(layer.lin_value), of(layer.lin_query) @ of(layer.lin_key).mT / layer.out_channels**0.5
    elif isinstance(layer, GATConv):
        v = of(layer.lin)
        pairs = (v * layer.att_dst[0, :, None]).sum(-1)[:, :, None] + (v * layer.att_src[0, :, None]).sum(-1)[
            :, None
        ]
        scores = F.leaky_relu(pairs, layer.negative_slope)
    else:
        v = of(layer.lin_l)
        pairs = F.leaky_relu(of(layer.lin_r)[:, :, None] + v[:, None], layer.negative_slope)
        scores = (pairs * layer.att[0, :, None, None]).sum(-1)
    weights = torch.where(mask, scores, -torch.inf).softmax(-1).nan_to_num()
    out = (weights @ v).transpose(0, 1).flatten(1)
    if isinstance(layer, TransformerConv):
        return out + layer.lin_skip(x) if layer.root_weight else out
    return out if layer.bias is None else out + layer.bias


def results(run: Any, x: torch.Tensor, layer: Any) -> list[torch.Tensor]:
    out = run(x)
    seed = torch.cos(torch.arange(out.numel(), device=x.device)).view(out.shape).to(out.dtype)
    wanted = [t for t in (x, *layer.parameters()) if t.requires_grad]
    return [out, *torch.autograd.grad(out, wanted, seed, allow_unused=True)]


def doubled(layer: Any) -> Any:
    copy = type(layer)(6, layer.out_channels, heads=layer.heads, **layer.given)
    copy.load_state_dict(layer.state_dict())
    return copy.to(next(layer.parameters()).device).double()


CASES = [
    ("gat", 8, 16, {}),
    ("gat", 1, 7, {"bias": False}),
    ("gat", 3, 5, {"add_self_loops": False}),
    ("gatv2", 8, 16, {}),
    ("gatv2", 3, 5, {"bias": False, "add_self_loops": False}),
    ("transformer", 8, 16, {}),
    ("transformer", 3, 5, {"root_weight": False}),
    ("transformer", 2, 8, {"bias": False}),
]


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
@pytest.mark.parametrize(("name", "heads", "width", "options"), CASES)
@pytest.mark.parametrize("x_needs_grad", [True, False])
def test_values_and_gradients(
    name: str, heads: int, width: int, options: Any, precision: str, x_needs_grad: bool, where: str,
    taken: mock.Mock,
) -> None:  # fmt: skip
    layer = made(name, heads, width, where, precision=precision, **options)
    layer.given = options
    x, index = torch.randn(NODES, 6, device=where).requires_grad_(x_needs_grad), graph(where)
    reference = doubled(layer)
    dtype = gnnsparse.Precision.parse(precision).storage
    with rows_always(), torch.autocast(where, dtype, enabled=precision != "fp32"):
        got = results(lambda x: layer(x, index), x, layer)
    wide = x.detach().double().requires_grad_(x_needs_grad)
    want = results(lambda x: exact(reference, x, index), wide, reference)
    assert taken.call_count == 1
    assert got[0].dtype is dtype
    # An edge at the bend of leaky_relu may be off, and gradients of keys' biases are 0 but for rounding.
    tolerance = {"fp32": 1e-5, "fp16": 3e-2, "bf16": 0.15}[precision] * (3 if name == "gatv2" else 1)
    least = 0.3 * max(float(t.detach().norm()) for t in want if t is not None)
    for found, wanted in zip(got, want, strict=True):
        assert (found is None) == (wanted is None)
        if wanted is not None:
            error = (found.double() - wanted).detach().norm()
            assert float(error) <= tolerance * max(least, float(wanted.detach().norm()))


def rows_always() -> Any:
    """Dot products of wide heads run over panels otherwise."""
    return mock.patch.object(module, "rows_are_faster", return_value=True)


@pytest.mark.parametrize("name", LAYERS)
def test_same_as_the_steps_one_by_one(name: str, where: str, taken: mock.Mock) -> None:
    """With dropout of the same seed, and with gradients of gradients."""
    layer = made(name, 4, 8, where, dropout=0.4)
    x, index = torch.randn(NODES, 6, device=where).requires_grad_(), graph(where)

    def run(x: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        out = layer(x, index)
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        return torch.cat([out.flatten(), grad.flatten()])[None]

    with rows_always():
        got = results(run, x, layer)
        assert taken.call_count == 1
        again = results(run, x, layer)
    with mock.patch("gnnsparse.nn.edges.suits", return_value=False):
        want = results(run, x, layer)
    assert taken.call_count == 2
    largest = max(float(t.detach().abs().max()) for t in want)
    for found, other, wanted in zip(got, again, want, strict=True):
        if where != "cuda":  # second derivatives are torch's operations, which have no order there
            assert torch.equal(found, other)
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4 * largest)


@pytest.mark.parametrize("name", LAYERS)
def test_what_takes_other_steps(name: str, where: str, taken: mock.Mock) -> None:
    x, index = torch.randn(NODES, 6, device=where), graph(where)
    layer = made(name, 2, 8, where)
    with rows_always():
        with torch.no_grad():
            layer(x, index)
        layer(x, torch.cat([index, index[:, :5]], dim=1))  # repeated edges
        layer((x, x.clone()), index)
        layer(x, index, return_attention_weights=True)
        made(name, 2, 8, where, concat=False)(x, index)
        made(name, 2, 8, where, edge_dim=3)(x, index, torch.randn(index.shape[1], 3, device=where))
        hooked = made(name, 2, 8, where)
        for linear in hooked.children():
            linear.register_forward_hook(lambda *_: None)
        hooked(x, index)
        assert taken.call_count == 0
        layer(x, index)
        assert taken.call_count == 1
