"""Batch normalisation whose statistics are of the nodes of all ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from gnnsparse.distributed.exchange import sum_over_ranks
from gnnsparse.distributed.functions import shared_sum
from gnnsparse.errors import bad_value
from gnnsparse.runtime.padding import Padding, current_padding

__all__ = ["SharedBatchNorm", "share_batch_norm"]


class SharedBatchNorm(torch.nn.BatchNorm1d):
    """BatchNorm1d of nodes that are divided among ranks; it computes what one process with all nodes would.

    Sums are float32 and are added in the order of ranks. Parameters, buffers and the state_dict are those of
    BatchNorm1d. `share_batch_norm` makes it.

    Attributes:
        group: the ranks.
        nodes_vary: whether ranks have other numbers of nodes in each call, and count them anew. If not, the
            number of a rank's nodes must not change on some ranks alone.
        takes_padding: that it leaves out rows that are padding by itself (`gnnsparse.runtime.padding`); their
            number may differ on each rank and in each call.
    """

    takes_padding = True
    group: dist.ProcessGroup | None = None
    nodes_vary: bool = False
    _counted: tuple[int, int] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalises features.

        Args:
            x: [own nodes, num_features].

        Returns:
            [own nodes, num_features] in the dtype of x.

        Raises:
            ValueError: the input is no matrix, or all ranks together have one node in training.
        """
        if x.dim() != 2:
            bad_value("x", f"has {x.dim()} dimensions; accepted with several ranks: 2, [nodes, features]")
        if not self.training and self.running_mean is not None:
            return super().forward(x)
        with torch.autocast(x.device.type, enabled=False):
            return self._normalized(x.float()).to(x.dtype)

    def _nodes(self, x: torch.Tensor, padding: Padding | None) -> int | torch.Tensor:
        """Returns the number of nodes of all ranks.

        A number that stays is asked for once, since the host would wait for a GPU. One that varies is a
        tensor on the device of x, float32 [1].
        """
        own = x.shape[0]
        if padding is not None:
            return sum_over_ranks(padding.count.reshape(1).to(torch.int64), self.group).to(x.dtype)
        if self.nodes_vary:
            count = torch.full((1,), own, dtype=torch.int64, device=x.device)
            return sum_over_ranks(count, self.group).to(x.dtype)
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
        share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


def share_batch_norm(model: torch.nn.Module, group: Any = None, *, nodes_vary: bool = False) -> int:
    """Makes every BatchNorm1d of a model take its statistics over the nodes of all ranks, in place.

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
        if type(module) is torch.nn.BatchNorm1d:
            module.__class__ = SharedBatchNorm
            shared: Any = module
            shared.group, shared.nodes_vary = group, nodes_vary
            found += 1
        elif isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and not isinstance(
            module, SharedBatchNorm
        ):
            kind = type(module).__name__
            bad_value("model", f"{name} is a {kind}; accepted on several ranks: BatchNorm1d, LayerNorm")
    return found
