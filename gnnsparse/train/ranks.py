"""Training on several ranks: what all of them agree on, the end and whether steps are captured."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist

from gnnsparse.distributed.exchange import gather_ranks
from gnnsparse.distributed.training import Peers
from gnnsparse.train.interruption import StopAtRequest, StopRequest
from gnnsparse.train.steps import Recorder

__all__ = ["AgreedRecorder", "AgreedStop", "agreed_problem", "holds_everywhere"]


def agreed_problem(problem: str | None, peers: Peers) -> str | None:
    """Returns a problem of this rank, or else that of the first rank that has one; None: no rank has.

    All ranks call it. They exchange texts on the host, which no capture of a CUDA graph sees.
    """
    found: list[str | None] = [None] * peers.ranks
    dist.all_gather_object(found, problem, group=peers.control)
    others = (f"on rank {rank} {text}" for rank, text in enumerate(found) if text is not None)
    return problem if problem is not None else next(others, None)


def holds_everywhere(holds: bool, peers: Peers) -> bool:
    """Returns whether something holds on each rank. All ranks call it, and exchange on the host."""
    own = torch.tensor([holds], dtype=torch.int64, device="cpu")
    return bool(gather_ranks(own, peers.control).min())


class AgreedRecorder(Recorder):
    """Captures calls in CUDA graphs on all ranks, or on none: NCCL does not allow anything between.

    A capture launches nothing, so that a rank whose capture fails leaves no other one waiting.

    Args:
        device: the GPU.
        required: whether a capture that fails ends the run.
        peers: the ranks.
    """

    def __init__(self, device: torch.device, required: bool, peers: Peers) -> None:
        super().__init__(device, required)
        self._peers = peers

    def _agreed(self, problem: str | None) -> str | None:
        return agreed_problem(problem, self._peers)


class AgreedStop(StopAtRequest):
    """Ends the training of all ranks after one step, the first in which a signal had come to one of them.

    Args:
        request: notes the signals of this process.
        peers: the ranks.
    """

    def __init__(self, request: StopRequest, peers: Peers) -> None:
        super().__init__(request)
        self._peers = peers

    def on_train_batch_end(self, trainer: pl.Trainer, module: Any, *_: Any) -> None:
        """Stops if a signal has come to a rank."""
        own = torch.tensor([self._request.signum or 0], dtype=torch.int64, device="cpu")
        signum = int(gather_ranks(own, self._peers.control).max())
        self._request.signum = signum or None
        super().on_train_batch_end(trainer, module)
