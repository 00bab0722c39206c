"""What a training step on several ranks adds to that of one: sums of gradients, and rows in one order."""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist

from gnnsparse.distributed.exchange import exchange_rows, gather_ranks, sum_over_ranks

__all__ = ["RowGather", "step_seed", "sum_gradients"]


def sum_gradients(parameters: Iterable[torch.Tensor], group: dist.ProcessGroup | None) -> None:
    """Replaces the gradients of replicated parameters by their sums over all ranks, in the order of ranks.

    All gradients of a dtype travel at once.

    Args:
        parameters: the parameters, in one order on all ranks, which all have gradients of the same ones.
        group: the ranks.
    """
    by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            by_dtype.setdefault(parameter.grad.dtype, []).append(parameter.grad)
    for gradients in by_dtype.values():
        total = sum_over_ranks(torch.cat([gradient.flatten() for gradient in gradients]), group)
        for gradient, part in zip(gradients, total.split([g.numel() for g in gradients]), strict=True):
            gradient.copy_(part.reshape(gradient.shape))


class RowGather:
    """Brings rows that all ranks have of some nodes to rank 0, in the order of the nodes in the graph.

    Args:
        nodes: int64 [n], the nodes of the own rows by their numbers in the graph.
        group: the ranks.

    Attributes:
        count: number of rows of all ranks.
    """

    def __init__(self, nodes: torch.Tensor, group: dist.ProcessGroup | None) -> None:
        self._group = group
        sizes = gather_ranks(nodes.new_tensor([nodes.numel()]), group).flatten().tolist()
        none = [0] * (len(sizes) - 1)
        rank = dist.get_rank(group)
        self.count = sum(sizes)
        self._send = [sizes[rank], *none]
        self._receive = sizes if rank == 0 else [0, *none]
        everyone = self._collected(nodes)
        self._place = everyone.argsort(stable=True) if rank == 0 else None

    def _collected(self, x: torch.Tensor) -> torch.Tensor:
        return exchange_rows(x, self._send, self._receive, self._group).wait()

    def __call__(self, x: torch.Tensor) -> torch.Tensor | None:
        """Returns the rows of all ranks, [count, ...], on rank 0, and None on the others.

        Args:
            x: [n, ...], the own rows. Gradients do not return to it.
        """
        rows = self._collected(x.detach())
        return None if self._place is None else rows.index_select(0, self._place)


def step_seed(seed: int, step: int, rank: int) -> int:
    """Returns the seed of a rank's random numbers in a step.

    Each step has its own, so that a run that is resumed draws what it would have drawn without an end.

    Args:
        seed: the seed of the run.
        step: number of the step.
        rank: the rank.
    """
    mixed = seed
    for part in (step, rank):  # the constants of Knuth's linear congruential generator (MMIX)
        mixed = (mixed * 6364136223846793005 + 1442695040888963407 + part) % 2**64
    return mixed >> 1
