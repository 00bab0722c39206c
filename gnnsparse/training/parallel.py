"""Training on several ranks: the end that all of them agree on."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch

from gnnsparse.distributed.exchange import gather_ranks
from gnnsparse.distributed.peers import Peers
from gnnsparse.training.interruption import StopAtRequest, StopRequest

__all__ = ["AgreedStop"]


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
