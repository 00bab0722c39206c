"""What a process of a run on several devices knows of the others."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

__all__ = ["Peers", "group_options"]


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


def group_options(backend: str, timeout: timedelta | None = None) -> Any:
    """Returns `pg_options` of torch.distributed for the group that features travel in; None: the defaults.

    NCCL exchanges on a stream of high priority. On one of equal priority a chunk's exchange would not begin
    before all blocks of threads of a product that was launched earlier have begun.

    Args:
        backend: "nccl" or "gloo".
        timeout: that of the group, which torch wants to be told here as well; None: torch's own.
    """
    if backend != "nccl":
        return None
    options = dist.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = True
    if timeout is not None:
        options._timeout = timeout
    return options
