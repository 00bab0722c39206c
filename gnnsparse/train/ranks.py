# A module of its own, because what decides on signals, on captures and on samples needs it alike.
"""What ranks that train together agree on. They exchange it on the host, which no CUDA graph sees."""

from __future__ import annotations

import torch
import torch.distributed as dist

from gnnsparse.distributed.exchange import gather_ranks
from gnnsparse.distributed.training import Peers


def agreed_problem(problem: str | None, peers: Peers | None) -> str | None:
    """Return this rank's problem, or else that of the first rank with one. All ranks call it."""
    if peers is None:
        return problem
    found: list[str | None] = [None] * peers.ranks
    dist.all_gather_object(found, problem, group=peers.control)
    others = (f"on rank {rank} {text}" for rank, text in enumerate(found) if text is not None)
    return problem if problem is not None else next(others, None)


def all_of_ranks(number: int, peers: Peers) -> torch.Tensor:
    """Return the number of each rank, int64 [ranks] on the CPU. All ranks call it."""
    return gather_ranks(torch.tensor([number], dtype=torch.int64, device="cpu"), peers.control)
