"""What a process of a run on several devices knows of the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch.distributed as dist

__all__ = ["Peers"]


@dataclass(frozen=True)
class Peers:
    """The ranks of a run.

    Attributes:
        rank: that of this process.
        ranks: their number.
        group: the group that features and gradients travel in: nccl on GPUs, gloo on CPUs.
        control: a group of gloo for small messages on the host, which do not wait for a GPU.
    """

    rank: int
    ranks: int
    group: dist.ProcessGroup | None
    control: dist.ProcessGroup | None
