"""What a training on several ranks adds: agreements, sums of gradients, rows in one order, batch norms."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from gnnsparse.distributed.exchange import (
    Pending,
    exchange_rows,
    gather_ranks,
    shared_sum,
    start_gather,
    sum_over_ranks,
)
from gnnsparse.errors import bad_value
from gnnsparse.runtime.padding import Padding, current_padding


@dataclass(frozen=True)
class Peers:
    """This process's rank of a run, their number, and their groups of processes.

    Features and gradients travel in `group`, nccl on GPUs and gloo on CPUs; `control`, of gloo, is for small
    messages on the host, which do not wait for a GPU.
    """

    rank: int
    ranks: int
    group: dist.ProcessGroup | None
    control: dist.ProcessGroup | None


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
    return start_all_of_ranks(number, peers).wait()


def start_all_of_ranks(number: int, peers: Peers) -> Pending:
    """Begin to ask for the number of each rank, as `all_of_ranks` does. All ranks call it in one order."""
    return start_gather(torch.tensor([number], dtype=torch.int64, device="cpu"), peers.control)


def group_options(backend: str, timeout: timedelta | None = None) -> Any:
    """Return `pg_options` of torch.distributed for the group that features travel in; None: the defaults.

    NCCL exchanges on a stream of high priority. On one of equal priority a chunk's exchange would not begin
    before all blocks of threads of a product that was launched earlier have begun. Beside the group's own
    timeout, torch wants to be told it here as well.
    """
    if backend != "nccl":
        return None
    options = dist.ProcessGroupNCCL.Options()
    options.is_high_priority_stream = True
    if timeout is not None:
        options._timeout = timeout
    return options


def sum_gradients(parameters: Iterable[torch.Tensor], group: dist.ProcessGroup | None) -> None:
    """Replace the gradients of replicated parameters by their sums over all ranks, in the order of ranks.

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
        parts = total.split([gradient.numel() for gradient in gradients])
        shaped = [part.view_as(one) for one, part in zip(gradients, parts, strict=True)]
        torch._foreach_copy_(gradients, shaped)  # one launch


class RowGather:
    """Brings rows that all ranks have of some nodes to rank 0, in the order of the nodes in the graph."""

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
        """Return the rows of all ranks, [count, ...], on rank 0, and None on the others."""
        rows = self._collected(x.detach())
        return None if self._place is None else rows.index_select(0, self._place)


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of a rank's random numbers in a step, the same when a run is resumed."""
    mixed = seed
    for part in (step, rank):  # the constants of Knuth's linear congruential generator (MMIX)
        mixed = (mixed * 6364136223846793005 + 1442695040888963407 + part) % 2**64
    return mixed >> 1


class SharedBatchNorm(torch.nn.BatchNorm1d):
    """BatchNorm1d of nodes that are divided among ranks; it computes what one process with all nodes would.

    Sums are float32 and are added in the order of ranks. Parameters, buffers and the state_dict are those of
    BatchNorm1d. `share_batch_norm` makes it. Unless `nodes_vary`, the number of a rank's nodes must not
    change on some ranks alone; rows that are padding (`gnnsparse.runtime.padding`) are left out in any case.
    """

    takes_padding = True
    group: dist.ProcessGroup | None = None
    nodes_vary: bool = False
    _counted: tuple[int, int] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise features of the own nodes, [nodes, num_features], in their dtype."""
        if x.dim() != 2:
            bad_value("x", f"has {x.dim()} dimensions; accepted with several ranks: 2, [nodes, features]")
        if not self.training and self.running_mean is not None:
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            return self._normalized(x.float()).to(x.dtype)

    def _nodes(self, x: torch.Tensor, padding: Padding | None) -> int | torch.Tensor:
        """Return the number of nodes of all ranks.

        A number that stays is asked for once, since the host would wait for a GPU. One that varies is a
        tensor on the device of x, float32 [1].
        """
        own = x.shape[0]
        if padding is not None or self.nodes_vary:
            count = torch.full((1,), own, device=x.device) if padding is None else padding.count.reshape(1)
            return sum_over_ranks(count.to(torch.int64), self.group).to(x.dtype)
        if self._counted is None or self._counted[0] != own:
            count = torch.tensor([own], dtype=torch.int64, device=x.device)
            self._counted = own, int(sum_over_ranks(count, self.group))
        return self._counted[1]

    def _normalized(self, x: torch.Tensor) -> torch.Tensor:
        padding = current_padding(x.shape[0])
        nodes = self._nodes(x, padding)
        if self.training and isinstance(nodes, int) and nodes <= 1:
            bad_value("x", "has one node on all ranks; accepted in training: at least two")
        own = x if padding is None else x * padding.mask
        mean = shared_sum(own.sum(0), self.group) / nodes
        centred = x - mean if padding is None else (x - mean) * padding.mask
        variance = shared_sum(centred.square().sum(0), self.group) / nodes
        if self.training:
            self._track(mean.detach(), variance.detach() * (nodes / (nodes - 1)))
        y = centred * (variance + self.eps).rsqrt()
        return y if self.weight is None else y * self.weight.float() + self.bias.float()

    def _track(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        self.num_batches_tracked.add_(1)
        weight = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), weight)
        self.running_var.lerp_(variance.to(self.running_var.dtype), weight)


def share_batch_norm(model: torch.nn.Module, group: Any = None, *, nodes_vary: bool = False) -> int:
    """Make every BatchNorm1d of a model take its statistics over the nodes of all ranks, in place.

    The class of the modules changes, and nothing else: parameters and the state_dict stay.

    Args:
        model: the model.
        group: the ranks.
        nodes_vary: whether ranks have other numbers of nodes in each step, of which each rank has at least
            one.

    Returns:
        The number of modules that were changed.

    Raises:
        ValueError: the model has another layer whose statistics are of nodes.
    """
    found = 0
    for name, module in model.named_modules():
        kind: Any = type(module)
        if kind is torch.nn.BatchNorm1d:
            module.__class__ = SharedBatchNorm
            shared: Any = module
            shared.group, shared.nodes_vary = group, nodes_vary
            found += 1
        elif issubclass(kind, torch.nn.modules.batchnorm._BatchNorm) and kind is not SharedBatchNorm:
            kinds = "BatchNorm1d, LayerNorm"
            bad_value("model", f"{name} is a {kind.__name__}; accepted on several ranks: {kinds}")
    return found
