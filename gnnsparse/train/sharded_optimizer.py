# A module of its own, because importing torch.distributed.optim takes half a second.
"""An optimiser whose state is divided among ranks (ZeRO, stage 1), and the checkpoints of such a run."""

from __future__ import annotations

import warnings
from typing import Any

import lightning.pytorch as pl
import torch

from gnnsparse.distributed.training import Peers, all_of_ranks
from gnnsparse.train.callbacks import Checkpoints

with warnings.catch_warnings():
    # The package compiles other optimisers with torch.jit when it is imported, of which torch warns itself.
    warnings.simplefilter("ignore", DeprecationWarning)
    from torch.distributed.optim import ZeroRedundancyOptimizer


class ShardedOptimizer(ZeroRedundancyOptimizer):
    """Adam of which each rank has the state of some parameters, which it updates and sends to the others."""

    # Checkpoints hold the state of all, as Adam's do: a run can go on with any number of ranks.

    def __init__(self, groups: list[dict[str, Any]], peers: Peers, **defaults: Any) -> None:
        super().__init__(groups, torch.optim.Adam, peers.group, parameters_as_bucket_view=True, **defaults)
        #: Whether this rank has the state of all, as of the last `collect`.
        self._collected = False

    def collect(self) -> None:
        """Bring the state of all ranks to rank 0, for its `state_dict`. All ranks call it."""
        super().consolidate_state_dict(to=0)
        self._collected = self.rank == 0

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Do nothing: Lightning calls it on the rank that writes, and the others would not answer."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state as of the last `collect`; before the first one the settings alone."""
        if not self._collected:
            return torch.optim.Optimizer.state_dict(self)
        found: dict[str, Any] = super().state_dict()
        self._all_state_dicts: list[dict[str, Any]] = []  # on the CPU, but as large as Adam's whole state
        self._collected = False
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take the state of this rank's parameters out of that of all."""
        super().load_state_dict(state_dict)
        self.state.clear()  # a second copy, which nothing reads
        for parameter, state in self.optim.state.items():
            # torch puts numbers of steps on the CPU, which a fused optimiser on a GPU does not take.
            state["step"] = state["step"].to(parameter.device if self.defaults["fused"] else "cpu")


class SharedCheckpoints(Checkpoints):
    """Checkpoints of such ranks: rank 0, which alone has a folder, writes after all have sent theirs."""

    def __init__(self, peers: Peers, *args: Any) -> None:
        super().__init__(*args)
        self._peers, self._writes = peers, False

    @property
    def state_key(self) -> str:
        """The name of the state in a checkpoint: that of Checkpoints, which can go on from it."""
        return Checkpoints.__qualname__

    def on_train_start(self, trainer: pl.Trainer, module: Any) -> None:
        """Tell the ranks whether rank 0 writes at all."""
        super().on_train_start(trainer, module)
        self._writes = self._of_first(self._folder is not None)

    def _of_first(self, own: bool) -> bool:
        return bool(all_of_ranks(own, self._peers)[0])

    def _is_due(self) -> bool:
        return self._writes and self._of_first(super()._is_due())

    def _write(self, trainer: pl.Trainer, module: Any) -> None:
        if self._writes:
            for optimizer in trainer.optimizers:
                if isinstance(optimizer, ShardedOptimizer):
                    optimizer.collect()
        super()._write(trainer, module)
