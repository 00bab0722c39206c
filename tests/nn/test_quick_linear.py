"""Linear layers of inference: equal bit for bit to those of training, and nothing that is seen is changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
from gnnsparse.nn import GCNConv, SAGEConv, TransformerEncoderLayer
from gnnsparse.nn.linear import activated_linear, padded_linear
from gnnsparse.testing import in_float64, measure_errors, random_graph
from tests.helpers import reference_layers

HALVES = (torch.float32, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("features", [1, 7, 41])
def test_rows_in_vectors(features: int, dtype: torch.dtype, device: str) -> None:
    x, weight = torch.randn(50, 9, device=device).to(dtype), torch.randn(features, 9, device=device).to(dtype)
    out = padded_linear(x, weight)
    plain, exact = F.linear(x, weight), x.double() @ weight.double().T
    assert measure_errors(out, plain, exact).ok
    assert out.shape == plain.shape
    assert out.stride(0) * dtype.itemsize % 16 == 0
    assert out.data_ptr() % 16 == 0


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("dtype", HALVES)
def test_inference_of_a_feed_forward_network_is_that_of_training(
    activation: str, dtype: torch.dtype, device: str
) -> None:
    layer = TransformerEncoderLayer(16, 2, 32, 0.0, activation, batch_first=True, device=device, dtype=dtype)
    pattern = gnnsparse.prepare(gnnsparse.masks.window(24, 3), cache=False).to(device)
    x = torch.randn(2, 24, 16, device=device).to(dtype)
    before, want = x.clone(), layer(x, pattern).detach()
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            assert torch.equal(layer(x, pattern), want)
    assert torch.equal(x, before)


@pytest.mark.parametrize("how", ["hook", "function", "grad", "autocast", "subclass"])
def test_what_is_seen_is_not_changed(how: str) -> None:
    linear, x, kept = torch.nn.Linear(4, 6), torch.randn(3, 4), list[torch.Tensor]()
    want: Any = F.relu(linear(x)).detach()
    if how == "hook":
        linear.register_forward_hook(lambda module, inputs, out: kept.append(out))
    if how == "subclass":
        x = x.as_subclass(type("Own", (torch.Tensor,), {}))
    activation = (lambda t: (kept.append(t), F.relu(t))[1]) if how == "function" else F.relu
    with torch.set_grad_enabled(how == "grad"), torch.autocast("cpu", enabled=how == "autocast"):
        out = activated_linear(x, linear, activation)
    assert out.requires_grad == (how == "grad")
    assert out.dtype == (torch.bfloat16 if how == "autocast" else torch.float32)
    if how != "autocast":
        assert torch.equal(torch.Tensor(out.detach()), want)
    if kept:
        assert (kept[0] < 0).any()
    assert bool(kept) == (how in ("hook", "function"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("kind", [GCNConv, SAGEConv])
def test_layers_of_few_classes(kind: Any, dtype: torch.dtype) -> None:
    """7 columns are no whole vector in any dtype."""
    graph = random_graph(200, 200, 0.05, weighted=False, symmetric=True)
    precision = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}[dtype]
    weights = "gcn" if kind is GCNConv else "mean"
    a = gnnsparse.prepare(graph, values=weights, precision=precision, cache=False).to("cuda")
    layer = kind(32, 7).to("cuda", dtype)
    x = torch.randn(200, 32, device="cuda").to(dtype)
    plain = layer(x, a).detach()
    with torch.inference_mode():
        out = layer(x, a)
    with reference_layers(), in_float64(layer):
        exact = layer(x.double(), a).detach()
    assert measure_errors(out, plain, exact).ok
