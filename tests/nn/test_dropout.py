"""dropout: the distribution of torch's, its gradient, and its seeds."""

from __future__ import annotations

import pytest
import torch

from gnnsparse.nn import dropout
from gnnsparse.testing import assert_accurate


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_share_and_scale(device: str, p: float, dtype: torch.dtype) -> None:
    count = 200_000
    y = dropout(torch.ones(count, device=device, dtype=dtype), p, True)
    kept = y != 0
    # Five standard deviations of a binomial share.
    assert abs(float(kept.float().mean()) - (1 - p)) < 5 * (p * (1 - p) / count) ** 0.5
    assert y.dtype == dtype
    exact = torch.full((int(kept.sum()),), 1 / (1 - p), dtype=torch.float64)
    assert_accurate(y[kept], exact.to(dtype), exact, floor=torch.finfo(dtype).eps)


def test_gradient_has_the_same_elements(device: str) -> None:
    x = torch.randn(300, 7, device=device, requires_grad=True)
    y = dropout(x, 0.5, True)
    (grad,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(grad, torch.where(y != 0, 2.0, 0.0))


def test_seeds_and_neighbours() -> None:
    """Neighbours are independent; without training or a share the input is returned."""
    x, drawn = torch.ones(400_000), []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(dropout(x, 0.5, True))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    kept = (drawn[0] != 0).float() - 0.5
    assert abs(float((kept[1:] * kept[:-1]).mean())) < 5 * 0.25 / 400_000**0.5
    assert dropout(x, 0.5, False) is x
    assert dropout(x, 0.0, True) is x


@pytest.mark.parametrize("p", [-0.1, 1.0, float("nan")])
def test_bad_share(p: float) -> None:
    with pytest.raises(ValueError, match="p: got"):
        dropout(torch.ones(3), p, True)
