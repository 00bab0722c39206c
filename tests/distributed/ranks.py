"""Processes that tests of several ranks share: they start once, and run one function after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks import scaling_ranks


def _with_group(place: scaling_ranks.Place, function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    torch.set_num_threads(1)
    assert place.peers is not None
    return function(place.peers.group, *args)


class Ranks(scaling_ranks.Ranks):
    """Processes with a group for all of them, and one for the first two."""

    def run(self, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Calls function(group, *args) on the first `size` ranks; returns what each of them returned."""
        # A rank that takes longer waits for another one in vain.
        return super().run(size, _with_group, function, args, limit=120.0)
