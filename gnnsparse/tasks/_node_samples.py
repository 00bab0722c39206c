"""The task "node" on several ranks that train on samples: each draws for its share of a step's nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from gnnsparse.data import NodeDataset
from gnnsparse.distributed.functions import total_of
from gnnsparse.distributed.peers import Peers
from gnnsparse.precision import Precision
from gnnsparse.sampling import prefetch
from gnnsparse.tasks._node_shared import SharedNodeClassifier
from gnnsparse.tasks.node import FullGraphData, GraphBatch, NodeClassifier
from gnnsparse.training.config import PreprocessConfig, SamplerConfig
from gnnsparse.training.data import shuffled_epochs
from gnnsparse.training.metrics import known_items
from gnnsparse.training.module import TaskModule
from gnnsparse.training.plots import confusion_matrix
from gnnsparse.training.sampled import NodeBatch, NodeBatches

__all__ = ["SampledNodeClassifier", "SampledNodeData", "SharedNodeBatch"]


@dataclass(frozen=True, eq=False)
class SharedNodeBatch(NodeBatch):
    """A rank's share of the nodes of a step, with neighbours that were drawn.

    Attributes:
        share: of the numbers that the loss of the step is a mean over, the share that this rank has.
    """

    share: float = field(kw_only=True)


class _SharedNodeBatches:
    """A loader of a rank's shares of the batches that one process would take.

    Which nodes a step takes does not depend on the number of ranks, and neither does which neighbours are
    drawn for a node: the draws of all ranks have one seed. A rank that no node is left for takes the first
    one of the step with a share of 0, since its gradients are exchanged like those of the others.

    Args:
        data: the data module of the rank.
        batches: makes the batch of given nodes.
        config: the options.
        known: int64 [n] on the CPU, how many known numbers the target of each training node has.
        seed: seed of the order.
    """

    def __init__(
        self,
        data: SampledNodeData,
        batches: NodeBatches,
        config: SamplerConfig,
        known: torch.Tensor,
        seed: int,
    ) -> None:
        self._data, self._batches, self._config = data, batches, config
        self._known, self._seed = known, seed

    @property
    def steps(self) -> int:
        """Number of optimiser steps of an epoch, a pass of all ranks together over the training nodes."""
        return self._batches.steps

    def __iter__(self) -> Iterator[SharedNodeBatch]:
        return prefetch(self._shares(), self._config.prefetch, self._data.device)

    def _shares(self) -> Iterator[SharedNodeBatch]:
        data, peers = self._data, self._data.peers
        count, size = self._known.numel(), self._config.batch_size
        for first, batches in shuffled_epochs(data, count, size, self._seed):
            parts = [ids.tensor_split(peers.ranks)[peers.rank] for ids in batches]
            own = [part if part.numel() else ids[:1] for part, ids in zip(parts, batches, strict=True)]
            counts = [
                (self._counted(part), self._counted(ids)) for part, ids in zip(parts, batches, strict=True)
            ]
            # All at once: for a copy of each batch's numbers the host would wait for a GPU.
            order = torch.cat(own).to(data.device).split([part.numel() for part in own])
            for step, (ids, (mine, all_ranks)) in enumerate(zip(order, counts, strict=True), first):
                batch = self._batches.batch(step, ids)
                yield SharedNodeBatch(batch.x, batch.adj, batch.y, batch.data, share=mine / all_ranks)

    def _counted(self, ids: torch.Tensor) -> int:
        """Returns how many numbers a loss of training nodes is a mean over."""
        return int(self._known[ids].sum())


class SampledNodeData(FullGraphData):
    """The data module of one rank whose training steps take samples; each rank has the whole graph.

    Args:
        dataset, values, precision, device, preprocess, sampler, seed: see FullGraphData. `sampler.batch_size`
            is the number of nodes that all ranks together take in a step.
        peers: the ranks.

    Attributes:
        peers: the ranks.
    """

    peers: Peers
    _samples: Any

    def __init__(
        self,
        dataset: NodeDataset,
        *,
        peers: Peers,
        sampler: SamplerConfig,
        values: str | None = "gcn",
        precision: Precision | str = "fp32",
        device: torch.device | str = "cpu",
        preprocess: PreprocessConfig | None = None,
        seed: int = 0,
    ) -> None:
        self.peers = peers
        super().__init__(
            dataset, values=values, precision=precision, device=device, preprocess=preprocess,
            sampler=sampler, seed=seed,
        )  # fmt: skip
        y = dataset.y[known_items(dataset.train_mask.nonzero().flatten(), dataset.y)]
        is_known = ~y.isnan() if y.is_floating_point() else torch.ones_like(y, dtype=torch.bool)
        known = is_known[:, None].flatten(1).sum(dim=1)
        self._samples = _SharedNodeBatches(self, self._samples, sampler, known, seed)

    def feed_obstacle(self, module: TaskModule) -> str | None:
        """Returns why steps can't be captured in CUDA graphs."""
        return "the samples of several devices differ from step to step"


class SampledNodeClassifier(SharedNodeClassifier):
    """Trains one model on the samples of all ranks; each rank has a copy of it, and all copies stay equal.

    The loss of a step is the mean over the nodes of all ranks, as if one process had taken them. Gradients
    are added up in the order of ranks. Rank 0 alone computes scores, on the whole graph, and the others get
    them from it. Batch normalisation takes its statistics over the rows of all ranks' samples, in which a
    node that two ranks have reached is counted twice.

    Args: see SharedNodeClassifier.
    """

    nodes_vary = True

    def training_step(self, batch: GraphBatch | NodeBatch) -> torch.Tensor:
        """Returns the mean loss of the step's nodes, with the gradient of those of this rank."""
        assert isinstance(batch, SharedNodeBatch)
        own = self._loss(self.outputs(batch), batch.y) * batch.share
        return total_of(own, self._peers.group)

    def validation_step(self, batch: GraphBatch | NodeBatch) -> dict[str, torch.Tensor]:
        """Returns "loss" and scores of the validation nodes, the same bits on each rank."""
        leads = self._peers.rank == 0
        found = NodeClassifier.validation_step(self, batch) if leads else None
        return self._told(found, ["loss", *self._scores])

    def test_step(self, batch: GraphBatch) -> None:
        """Logs the scores of all parts of the split as "part/score"."""
        outputs = self.outputs(batch) if self._peers.rank == 0 else None
        for name, part in batch.parts.items():
            found = None
            if outputs is not None:
                logits, y = self._scored(outputs, part)
                found = {key: score(logits, y) for key, score in self._scores.items()}
                if name == "test":
                    self.confusion = confusion_matrix(self._dataset, logits, y)
            scores = self._told(found, list(self._scores))
            self.log_scores({f"{name}/{key}": value for key, value in scores.items()})
