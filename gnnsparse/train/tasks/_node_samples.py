"""The task "node" on several ranks that train on samples: each draws for its share of a step's nodes."""

from __future__ import annotations

import torch

from gnnsparse.data import NodeDataset
from gnnsparse.distributed.exchange import total_of
from gnnsparse.distributed.training import Peers
from gnnsparse.precision import Precision
from gnnsparse.sampling import FeatureStore, NeighborSampler
from gnnsparse.train.config import PreprocessConfig, SamplerConfig
from gnnsparse.train.parallel import holds_everywhere
from gnnsparse.train.plots import confusion_matrix
from gnnsparse.train.sampled import DrawnBatch, NodeBatch, NodeBatches
from gnnsparse.train.tasks._node_shared import SharedNodeClassifier
from gnnsparse.train.tasks.node import FullGraphData, GraphBatch, NodeClassifier, Part

__all__ = ["SampledNodeClassifier", "SampledNodeData"]


class _SharedNodeBatches(NodeBatches):
    """A loader of a rank's shares of the batches that one process would take.

    Which nodes a step takes does not depend on the number of ranks, and neither does which neighbours are
    drawn for a node: the draws of all ranks have one seed. A rank that no node is left for takes the first
    one of the step with a share of 0, since its gradients are exchanged like those of the others.

    Args:
        data, sampler, config, store, nodes, y, seed: see NodeBatches; all ranks have the same.
        peers: the ranks.
    """

    def __init__(
        self,
        data: FullGraphData,
        sampler: NeighborSampler,
        config: SamplerConfig,
        store: FeatureStore,
        nodes: torch.Tensor,
        y: torch.Tensor,
        seed: int,
        peers: Peers,
    ) -> None:
        super().__init__(data, sampler, config, store, nodes, y, seed)
        is_known = ~y.isnan() if y.is_floating_point() else torch.ones_like(y, dtype=torch.bool)
        # How many known numbers the target of each node has.
        self._known, self._peers = is_known[:, None].flatten(1).sum(dim=1).cpu(), peers

    def _own(self, ids: torch.Tensor) -> tuple[torch.Tensor, float]:
        part = ids.tensor_split(self._peers.ranks)[self._peers.rank]
        share = int(self._known[part].sum()) / int(self._known[ids].sum())
        return (part if part.numel() else ids[:1]), share

    def _fits(self, drawn: DrawnBatch) -> bool:
        """Returns whether each rank has room for what it has drawn: all replay a step, or none does."""
        return holds_everywhere(super()._fits(drawn), self._peers)


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

    def _batches(
        self, draw: NeighborSampler, sampler: SamplerConfig, store: FeatureStore, train: Part, seed: int
    ) -> NodeBatches:
        return _SharedNodeBatches(self, draw, sampler, store, train.nodes, train.y, seed, self.peers)

    def _module_of_samples(self) -> type[NodeClassifier]:
        return SampledNodeClassifier


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
        assert isinstance(batch, NodeBatch)
        return total_of(self._sample_loss(batch) * batch.share, self._peers.group)

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
