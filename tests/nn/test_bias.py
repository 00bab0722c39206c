"""Sums of long columns, and biases that get their gradients by them."""

from __future__ import annotations

import copy

import pytest
import torch

from gnnsparse.nn import bias
from gnnsparse.nn.bias import FastBiases, _in_two_stages, column_sum, has_many_rows
from gnnsparse.testing import with_gradients


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rows", [0, 5, 1 << 14, (1 << 14) + 1, (1 << 14) + 511])
def test_column_sum(device: str, rows: int, dtype: torch.dtype) -> None:
    """Sums are rounded once from what is added up in float32: halves of integers are exact."""
    x = torch.randint(-4, 5, (rows, 70), device=device).to(dtype) / 2
    exact = x.double().sum(0).to(dtype)
    for found in (column_sum(x), *([_in_two_stages(x)] if rows >= 512 else [])):
        assert found.dtype is dtype
        assert found.equal(exact)
    torch.testing.assert_close(column_sum(x.t().contiguous().t()), x.sum(0))


class Layers(torch.nn.Module):
    """A linear layer, a bias that is added, one number that is added to all features, and no bias."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.plain = torch.nn.Linear(6, 80), torch.nn.Linear(80, 1, bias=False)
        self.bias, self.one = torch.nn.Parameter(torch.randn(80)), torch.nn.Parameter(torch.randn(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.lin(x).relu_() + self.bias  # what follows may work in place
        return self.plain(hidden.tanh_() + self.one) + self.bias[:1]


def test_results_and_gradients(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are torch's bits, gradients its sums, and gradients of gradients, too."""
    if device == "cpu":
        monkeypatch.setattr(bias, "has_many_rows", lambda x: x.dim() == 2 and x.shape[0] > 1000)
        monkeypatch.setattr(bias, "column_sum", _in_two_stages)
    x, layers = torch.randn(20_000, 6, device=device), Layers().to(device)
    fast = copy.deepcopy(layers)

    def run(model: Layers, x: torch.Tensor) -> torch.Tensor:
        out = model(x)
        (grad,) = torch.autograd.grad(out.square().mean(), model.lin.bias, create_graph=True)
        return torch.cat([out.flatten(), grad])

    want = with_gradients(lambda x: run(layers, x), [x], layers.parameters())
    with FastBiases():
        assert "_Added" in type(fast.lin(x).grad_fn).__name__
        got = with_gradients(lambda x: run(fast, x), [x], fast.parameters())
    assert got[0][:-80].equal(want[0][:-80])
    for found, wanted in zip(got, want, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


def test_small_or_on_a_cpu(device: str) -> None:
    x = torch.randn(1 << 14, 3, device=device)
    assert has_many_rows(x) == (device == "cuda")
    assert not has_many_rows(x[1:])
    assert not has_many_rows(x[:, 0])
