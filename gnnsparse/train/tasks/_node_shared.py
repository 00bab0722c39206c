"""The task "node" on several ranks: each has some of the nodes, and all train one model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from gnnsparse.data import NodeDataset
from gnnsparse.distributed import DistributedOperand, distribute, share_batch_norm
from gnnsparse.distributed.exchange import total_of
from gnnsparse.distributed.training import Peers, RowGather, step_seed, sum_gradients
from gnnsparse.errors import bad_value
from gnnsparse.precision import Precision
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.train.config import OptimizerConfig, PreprocessConfig
from gnnsparse.train.metrics import known_items
from gnnsparse.train.plots import confusion_matrix
from gnnsparse.train.sampled import NodeBatch
from gnnsparse.train.tasks.node import FullGraphData, GraphBatch, NodeClassifier, Part

__all__ = ["SharedGraphData", "SharedNodeClassifier", "SharedPart"]


@dataclass(frozen=True, eq=False)
class SharedPart(Part):
    """The nodes of one part of a split of which a rank has some.

    Attributes:
        nodes: int64 [n], rows of the rank's own nodes of which a target is known.
        y: [n] or [n, ..], targets of these.
        share: of the numbers that the part's loss is a mean over, the share that this rank has.
        all_y: on rank 0 the targets of the part's nodes of all ranks, in the order of the graph; else None.
        gather: brings rows of these nodes to rank 0 in this order.
    """

    share: float
    all_y: torch.Tensor | None
    gather: RowGather


class SharedGraphData(FullGraphData):
    """The data module of one rank: its nodes of a graph, prepared and put on a device when it is made.

    Args:
        dataset: the whole graph with its features, labels and split, the same on all ranks.
        peers: the ranks.
        way, parts: how they share products and nodes, see `gnnsparse.distributed.distribute`.
        values, precision, device, preprocess: see FullGraphData.

    Attributes:
        peers: the ranks.
    """

    adj: DistributedOperand
    peers: Peers

    def __init__(
        self,
        dataset: NodeDataset,
        *,
        peers: Peers,
        way: str = "auto",
        parts: str = "auto",
        values: str | None = "gcn",
        precision: Precision | str = "fp32",
        device: torch.device | str = "cpu",
        preprocess: PreprocessConfig | None = None,
    ) -> None:
        self._way, self._parts, self.peers = way, parts, peers
        super().__init__(dataset, values=values, precision=precision, device=device, preprocess=preprocess)

    def _prepare(self, graph: SparseGraph, values: str | None, preprocess: PreprocessConfig) -> SparseOperand:
        if preprocess.reorder != "none":
            instead = "none, and an order of nodes by trainer.parts"
            bad_value(
                "preprocess.reorder", f"got {preprocess.reorder!r} on several devices; accepted: {instead}"
            )
        if preprocess.balance != "auto":
            bad_value("preprocess.balance", f"got {preprocess.balance!r} on several devices; accepted: auto")
        return distribute(
            graph, self.peers.group, values=values, precision=self.precision, format=preprocess.format,
            device=self.device, way=self._way, parts=self._parts, cache=preprocess.cache,
        )  # fmt: skip

    def _on_device(self, adj: SparseOperand) -> GraphBatch:
        assert isinstance(adj, DistributedOperand)
        dataset, own = self.dataset, adj.nodes

        def part(mask: torch.Tensor) -> SharedPart:
            everyone = known_items(mask.nonzero().flatten(), dataset.y)
            rows = torch.isin(own, everyone).nonzero().flatten()
            y, all_y = dataset.y[own[rows]], dataset.y[everyone]
            gather = RowGather(own[rows].to(self.device), self.peers.group)
            share = _counted(y) / max(_counted(all_y), 1)
            of_all = all_y.to(self.device) if self.peers.rank == 0 else None
            return SharedPart(rows.to(self.device), y.to(self.device), share, of_all, gather)

        dtype = self.precision.storage if self.device.type == "cuda" else torch.float32
        parts = [part(mask) for mask in (dataset.train_mask, dataset.val_mask, dataset.test_mask)]
        return GraphBatch(dataset.x[own].to(self.device, dtype), adj, *parts)


def _counted(y: torch.Tensor) -> int:
    """Returns how many numbers a loss of targets is a mean over."""
    return int((~y.isnan()).sum()) if y.is_floating_point() else y.shape[0]


class SharedNodeClassifier(NodeClassifier):
    """Trains one model on the nodes of all ranks; each rank has a copy of it, and all copies stay equal.

    The loss is that of one process. Gradients are added up in the order of ranks. Rank 0 computes the scores
    from the logits of all ranks, in the order of the graph, and tells the others. In each step a rank draws
    random numbers of its own, which depend on the seed, the step and the number of ranks alone.

    Args:
        model, dataset, optimizer, max_steps: see NodeClassifier.
        peers: the ranks.
        seed: seed of dropout.
        shards_optimizer: whether each rank keeps the optimiser's state of some parameters alone.

    Attributes:
        nodes_vary: whether the number of a rank's nodes differs from step to step.
    """

    nodes_vary = False

    def __init__(
        self,
        model: torch.nn.Module,
        dataset: NodeDataset,
        optimizer: OptimizerConfig,
        max_steps: int,
        peers: Peers,
        seed: int,
        shards_optimizer: bool = False,
    ) -> None:
        super().__init__(model, dataset, optimizer, max_steps)
        share_batch_norm(model, peers.group, nodes_vary=self.nodes_vary)
        self._peers, self._seed, self.shards_optimizer = peers, seed, shards_optimizer

    def make_optimizer(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """Makes Adam, of which each rank has the whole or a part."""
        if not self.shards_optimizer:
            return super().make_optimizer(groups)
        from gnnsparse.train.sharded_optimizer import ShardedOptimizer

        return ShardedOptimizer(groups, self._peers, lr=self._optimizer.lr, fused=self.fused)

    def begin_step(self, step: int) -> None:
        """Seeds the random numbers of the step, which a CUDA graph takes from torch's generator too."""
        torch.manual_seed(step_seed(self._seed, step, self._peers.rank))

    def training_step(self, batch: GraphBatch | NodeBatch) -> torch.Tensor:
        """Returns the mean loss of all training nodes, with the gradient of those of this rank."""
        assert isinstance(batch, GraphBatch)
        part, logits = batch.train, self._logits(batch, batch.train)
        assert isinstance(part, SharedPart)
        # A rank without training nodes takes part in the backward pass: others need its gradients.
        own = self._loss(logits, part.y) * part.share if part.share else logits.float().sum() * 0.0
        return total_of(own, self._peers.group)

    def share_gradients(self) -> None:
        """Adds up the gradients of all ranks."""
        sum_gradients(self.model.parameters(), self._peers.group)

    def _told(self, values: dict[str, torch.Tensor] | None, names: list[str]) -> dict[str, torch.Tensor]:
        """Returns what rank 0 has computed, by name, the same bits on each rank."""
        numbers = torch.zeros(len(names), dtype=torch.float32, device=self.device)
        if values is not None:
            numbers = torch.stack([values[name].float() for name in names])
        dist.broadcast(numbers, src=0, group=self._peers.group)
        return dict(zip(names, numbers.unbind(), strict=True))

    def validation_step(self, batch: GraphBatch | NodeBatch) -> dict[str, torch.Tensor]:
        """Returns "loss" and scores of the validation nodes of all ranks, the same bits on each rank."""
        assert isinstance(batch, GraphBatch)
        part, found = batch.val, None
        assert isinstance(part, SharedPart)
        logits = part.gather(self._logits(batch, part))
        if logits is not None and part.all_y is not None:
            scores = {name: score(logits, part.all_y) for name, score in self._scores.items()}
            found = {"loss": self._loss(logits, part.all_y), **scores}
        # All ranks choose their best epoch by these, so that the last bit must not differ.
        return self._told(found, ["loss", *self._scores])

    def test_step(self, batch: GraphBatch) -> None:
        """Logs the scores of all parts of the split as "part/score"."""
        outputs = self.outputs(batch)
        for name, part in batch.parts.items():
            assert isinstance(part, SharedPart)
            logits, found = part.gather(outputs.index_select(0, part.nodes)), None
            if logits is not None and part.all_y is not None:
                found = {key: score(logits, part.all_y) for key, score in self._scores.items()}
                if name == "test":
                    self.confusion = confusion_matrix(self._dataset, logits, part.all_y)
            scores = self._told(found, list(self._scores))
            self.log_scores({f"{name}/{key}": value for key, value in scores.items()})
