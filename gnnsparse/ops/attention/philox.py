"""The random numbers of attention's dropout in torch operations, equal to native/include/gnnsparse/philox.h.

The generator is Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3"
(SC 2011). Its four words depend on a counter and a key alone, so that the order of work can't change a mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10

_Words = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _multiply(x: torch.Tensor, factor: int) -> tuple[torch.Tensor, torch.Tensor]:
    product = x * factor  # int64 wraps around, and keeps all 64 bits
    return (product >> 32) & _WORD, product & _WORD


def philox4x32(counter: _Words, key: tuple[torch.Tensor, torch.Tensor]) -> _Words:
    """Compute ten rounds of Philox of words in [0, 2^32), int64 tensors that are broadcast."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _MULTIPLIERS[0])
        high1, low1 = _multiply(c2, _MULTIPLIERS[1])
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _KEY_STEPS[0]) & _WORD, (k1 + _KEY_STEPS[1]) & _WORD
    return c0, c1, c2, c3


_given: ContextVar[torch.Tensor | None] = ContextVar("seed", default=None)


def draw_seed(device: torch.device) -> torch.Tensor:
    """Draw a seed from torch's default generator of the device: int64 [1], without waiting for a GPU."""
    given = None if torch.compiler.is_compiling() else _given.get()
    return torch.randint(2**63 - 1, (1,), dtype=torch.int64, device=device) if given is None else given


@contextmanager
def seeded(seed: torch.Tensor | None) -> Iterator[None]:
    """Let `draw_seed` return a seed that was drawn before, or draw one as ever."""
    token = _given.set(seed)
    try:
        yield
    finally:
        _given.reset(token)


def dropout_threshold(p: float) -> int:
    """Return the bound for dropout with probability `p`: an edge whose word is below it is dropped."""
    return int(p * 2**32)


def keeps(seed: torch.Tensor, index: torch.Tensor, head: int, p: float) -> torch.Tensor:
    """Compute which edges `index` [2, edges] dropout leaves; `head` counts those of all batch entries."""
    key = (seed & _WORD, (seed >> 32) & _WORD)
    zero = torch.zeros_like(seed)
    word = philox4x32((index[0], index[1], zero + head, zero), key)[0]
    return word >= dropout_threshold(p)
