"""SparseAttention beside torch.nn.MultiheadAttention, and masks for both."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse import masks
from gnnsparse.nn import SparseAttention
from gnnsparse.testing import assert_accurate
from tests.helpers import ROUNDING
from tests.sparsified import HEADS, WIDTH, allowed

LENGTH, KEYS, BATCH = 12, 9, 3
WINDOW = {"name": "window", "radius": 3}


def pair(device: str = "cpu", pattern: Any = WINDOW, own: Any = None, **options: Any) -> tuple[Any, Any]:
    """The layer with a pattern, and torch's, with equal random parameters."""
    options = {"batch_first": True, **options}
    theirs = torch.nn.MultiheadAttention(WIDTH, HEADS, device=device, **options)
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    ours = SparseAttention(WIDTH, HEADS, device=device, pattern=pattern, **(own or {}), **options)
    ours.load_state_dict(theirs.state_dict())
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    return ours, theirs


def flat(result: tuple[torch.Tensor, torch.Tensor | None]) -> torch.Tensor:
    return torch.cat([x.flatten() for x in result if x is not None])


def tokens(device: str = "cpu", length: int = LENGTH, width: int = WIDTH) -> torch.Tensor:
    return torch.randn(BATCH, length, width, device=device)


def blocked(device: str = "cpu", length: int = LENGTH, keys: int | None = None) -> torch.Tensor:
    return ~allowed(masks.window(length, 3, keys=keys), device)


def additive(mask: torch.Tensor) -> torch.Tensor:
    return torch.zeros(mask.shape, device=mask.device).masked_fill(mask, float("-inf"))


def padding(device: str = "cpu") -> torch.Tensor:
    """Every window keeps a key: without one torch gives NaN."""
    lengths = torch.tensor([LENGTH, LENGTH - 2, LENGTH - 3], device=device)
    return torch.arange(LENGTH, device=device) >= lengths[:, None]


def assert_near(got: Any, want: Any) -> None:
    """The numbers of another way to compute the same in fp32, which rounds at other places."""
    if isinstance(got, tuple):
        for one, other in zip(got, want, strict=True):
            assert_near(one, other)
        return
    got, want = got.detach(), want.detach()
    assert_accurate(got, want, want.double(), floor=32 * ROUNDING["fp32"])
