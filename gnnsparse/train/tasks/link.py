"""The task "link": which pairs of nodes of a graph are joined, in mini-batches of edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.data.datasets import LinkDataset, draw_negatives, edge_keys, has_edges
from gnnsparse.data.splits import split_generator
from gnnsparse.errors import bad_value, check_integer
from gnnsparse.sampling import NeighborSampler
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.train.data import MiniBatchData
from gnnsparse.train.device import numerics
from gnnsparse.train.module import ScoredModule, TaskModule
from gnnsparse.train.sampled import check_blocks, make_sampler, sampler_identity
from gnnsparse.train.settings import OptimizerConfig, SamplerConfig
from gnnsparse.train.tasks import MiniBatchTask, RunOptions, register_task, texts_of
from gnnsparse.train.trained import LoadedModel

__all__ = [
    "LinkData",
    "LinkPredictor",
    "area_under_curve",
    "hits_at",
    "mean_reciprocal_rank",
]

#: Training steps of an epoch and edges of a step, of large graphs, unless an option says how many.
_STEPS, _MOST_EDGES = 16, 2**16
#: Pairs that are scored at a time.
_CHUNK = 2**16
#: The columns of pairs in predictions.
_ENDS = ("source", "target")
#: Largest norm of the gradient of each part of the model, as in OGB's example.
_CLIP = 1.0


def hits_at(positive: torch.Tensor, negative: torch.Tensor, k: int) -> torch.Tensor:
    """Return hits@K, float32 []: the fraction of edges that score higher than the K-th best of all negatives.

    This is the definition of the Open Graph Benchmark (Hu et al. 2020), of scores [edges] and [negatives].
    With fewer than K negatives it is 1.
    """
    if negative.numel() < k:
        return positive.new_ones((), dtype=torch.float32)
    return (positive > negative.topk(k).values[-1]).float().mean()


def mean_reciprocal_rank(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """Return the mean over edges of 1 / rank among all negatives and the edge itself, float32 [].

    The rank of an edge is 1 plus the number of negatives with a larger score, plus half the number of those
    with the same score, as the Open Graph Benchmark counts. The scores are [edges] and [negatives].
    """
    ordered = negative.sort().values
    not_larger = torch.searchsorted(ordered, positive, right=True)
    smaller = torch.searchsorted(ordered, positive)
    rank = 1 + (negative.numel() - not_larger) + 0.5 * (not_larger - smaller)
    return rank.double().reciprocal().mean().float()


def area_under_curve(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """Return the area under the ROC curve, float32 []: how often an edge scores higher than a negative.

    Ties count half. The scores are [edges] and [negatives].
    """
    ordered = negative.sort().values
    not_larger = torch.searchsorted(ordered, positive, right=True)
    smaller = torch.searchsorted(ordered, positive)
    return ((not_larger + smaller).double() / (2 * negative.numel())).mean().float()


@dataclass(frozen=True, eq=False)
class LinkBatch:
    """Pairs of nodes on one device, int64 [k, 2]: edges, and such without an edge."""

    # `adj` is the prepared graph, or the operands of a sample's blocks; then `nodes` are the sources of the
    # first one, and pairs are positions among the last one's targets.

    adj: SparseOperand | list[SparseOperand]
    positive: torch.Tensor
    negative: torch.Tensor
    data: LinkData
    nodes: torch.Tensor | None = None


class LinkData(MiniBatchData):
    """Lightning data module of a graph and of pairs of nodes.

    A training batch has edges and as many pairs without an edge of the graph, which are drawn anew for each
    step by a generator that depends on `seed` and the edges of the batch alone. With a sampler, they and the
    neighbours of all ends are drawn by `seed` and the number of the step.

    Args:
        dataset: the graph and its pairs.
        batch_size: edges of a training step; the last step of an epoch may have fewer.
        seed: seed of the order of the edges, and of the pairs without an edge.
        values: weights of the operand: "gcn", "mean" or None (see `gnnsparse.prepare`).
        sampler: which neighbours a training step takes; None: all. Its `batch_size` is not used.
        options: precision, device and preprocess, see MiniBatchData.

    Attributes:
        dataset: the data set.
        adj, precision, device, preprocess_seconds, cache_hit: see PreparedData.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        dataset: LinkDataset,
        *,
        batch_size: int = 2**16,
        seed: int = 0,
        values: str | None = None,
        sampler: SamplerConfig | None = None,
        **options: Any,
    ) -> None:
        super().__init__(dataset.graph, values, batch_size=batch_size, seed=seed, **options)
        self._sampler: NeighborSampler | None = None
        if sampler is not None and sampler.draws:
            if dataset.x is not None or dataset.sides is not None or dataset.directed:
                what = "features" if dataset.x is not None else "two kinds of nodes or directed edges"
                bad_value("sampler", f"got {sampler.name!r} for links of nodes with {what}; accepted: none")
            self._sampler = make_sampler(sampler, dataset.graph, values, self, seed)
            self.prefetch = sampler.prefetch
        self.dataset = dataset
        self._keys = edge_keys(dataset.graph) if dataset.known is None else dataset.known
        self.x = None if dataset.x is None else dataset.x.to(self.device)
        edges = {"train": dataset.train_edges, "val": dataset.val_edges, "test": dataset.test_edges}
        negatives = {"val": dataset.val_negatives, "test": dataset.test_negatives}
        self._edges, self._negatives = (
            {part: pairs.to(self.device) for part, pairs in of.items()} for of in (edges, negatives)
        )

    @property
    def train_items(self) -> int:
        """Number of edges to train on."""
        return self.dataset.train_edges.shape[0]

    def gather(self, part: str, ids: torch.Tensor) -> LinkBatch:
        """Return the edges of a part with the indices `ids`, int64 [batch], and as many other pairs."""
        draw = split_generator(int(ids.sum()) % 2**31, self.seed)
        of, positive = self.dataset, self._edges[part][ids.to(self.device)]
        negative = draw_negatives(self._keys, of.num_nodes, positive.cpu(), draw, of.sides, of.directed)
        return LinkBatch(self.adj, positive, negative.to(self.device), self)

    def training_batches(self, first: int, batches: Sequence[torch.Tensor]) -> Iterator[LinkBatch]:
        """Yield the batches of training steps, see MiniBatchData; with a sampler what it draws for them."""
        if self._sampler is None:
            yield from super().training_batches(first, batches)
            return
        for step, ids in enumerate(batches, first):
            sample = self._sampler.sample_links(self._edges["train"][ids.to(self.device)], 1, step % 2**32)
            yield LinkBatch(sample.adjs, sample.positive, sample.negative, self, sample.nodes)

    def chunks(self, part: str) -> Iterator[LinkBatch]:
        """Yield the edges of a part with its own pairs without an edge, as one batch."""
        # The part "train" has those of the validation part, and as many of its edges as that one has.
        positive = self._edges[part]
        if part == "train":
            count = self._edges["val"].shape[0]
            positive = positive[:: max(1, positive.shape[0] // count)][:count]
        yield LinkBatch(self.adj, positive, self._negatives["val" if part == "train" else part], self)

    def features(self, model: Any) -> torch.Tensor:
        """Return what a model makes of all nodes, of their features if they have some."""
        return model(self.adj) if self.x is None else model(self.adj, x=self.x)

    def are_edges(self, pairs: torch.Tensor) -> torch.Tensor:
        """Return for pairs, int64 [k, 2] on the CPU, whether they are edges of any part, bool [k]."""
        return has_edges(self._keys, pairs, self.dataset.num_nodes)


class LinkPredictor(ScoredModule):
    """Trains a model to tell edges from pairs without an edge, by binary cross entropy.

    The scores are hits@K, the mean reciprocal rank ("mrr") among the negatives of a part, and the area under
    the ROC curve ("auc"); the data set's `metric` says by which of them the best epoch is chosen. The
    gradients of the embeddings, the encoder and the predictor are each clipped to a norm of 1.

    Args:
        model: maps an operand to features of the nodes [N, F], or the operands of sampled blocks and the
            nodes of the first one to those of the last one's targets; `model.score(features, pairs)` maps
            these and pairs [k, 2] to logits [k].
        dataset: the data set.
        optimizer: learning rate, weight decay, schedule.
        max_steps: the step at which a schedule ends, see TaskModule.
    """

    # A fused optimiser would leave gradients in a gradient scaler's units, in which they can't be clipped.
    fused = False

    def __init__(
        self, model: torch.nn.Module, dataset: LinkDataset, optimizer: OptimizerConfig, max_steps: int
    ) -> None:
        super().__init__(model, dataset, optimizer, max_steps)
        self._k = check_integer("hits_at", dataset.hits_at)
        self.score_name = f"hits@{self._k}" if dataset.metric == "hits" else dataset.metric

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradients of each part of the model."""
        for part in self.model.children():
            torch.nn.utils.clip_grad_norm_(part.parameters(), _CLIP)

    def training_step(self, batch: LinkBatch) -> torch.Tensor:
        """Return the loss of the batch, a scalar on the device."""
        model: Any = self.model
        sampled = batch.nodes is not None
        features = model(batch.adj, batch.nodes) if sampled else batch.data.features(model)
        return link_loss(model.score(features, batch.positive), model.score(features, batch.negative))

    def scored(self, batch: LinkBatch) -> tuple[LinkData, torch.Tensor]:
        """Return the data module, which has the pairs of all parts, and the features of the nodes."""
        return batch.data, batch.data.features(self.model)

    def score(self, part: str, scored: tuple[LinkData, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return "loss" and the scores of a part, scalars on the device."""
        data, features = scored
        positive, negative = _logits(self.model, features, next(data.chunks(part)))
        return {"loss": link_loss(positive, negative), **_scores(positive, negative, self._k)}


def _logits(model: Any, features: torch.Tensor, batch: LinkBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of the edges and of the other pairs of a batch, float32, a chunk at a time."""
    positive, negative = (
        torch.cat([model.score(features, chunk).float() for chunk in pairs.split(_CHUNK)])
        for pairs in (batch.positive, batch.negative)
    )
    return positive, negative


def _scores(positive: torch.Tensor, negative: torch.Tensor, k: int) -> dict[str, torch.Tensor]:
    hits, rank = hits_at(positive, negative, k), mean_reciprocal_rank(positive, negative)
    return {f"hits@{k}": hits, "mrr": rank, "auc": area_under_curve(positive, negative)}


def link_loss(positive: torch.Tensor, negative: torch.Tensor) -> torch.Tensor:
    """Return -mean(log p) of edges - mean(log(1 - p)) of other pairs, where p is the sigmoid of a logit."""
    return F.softplus(-positive.float()).mean() + F.softplus(negative.float()).mean()


def _asked(dataset: LinkDataset) -> torch.Tensor:
    """Return the pairs to predict for: those asked for, or the test edges and their negatives."""
    if dataset.pairs is not None:
        return dataset.pairs
    return torch.cat([dataset.test_edges, dataset.test_negatives])


class LinkTask(MiniBatchTask[LinkDataset, LinkData]):
    """The task "link": prediction of the links of one graph."""

    name = "link"
    dataset = LinkDataset
    data = LinkData
    module = LinkPredictor
    samples = True

    def batch_size(self, run: RunOptions) -> int:
        """Return the edges of a training step: those of the sampler, if there is one."""
        return run.sampler.batch_size if run.sampler.draws else super().batch_size(run)

    def identity(self, run: RunOptions) -> dict[str, Any]:
        """Return the numbers that the order of the edges and what is drawn of their neighbours depend on."""
        return super().identity(run) | sampler_identity(run)

    def model_sizes(self, dataset: LinkDataset) -> tuple[int, int]:
        """Return the number of features, or of nodes with an embedding each, and 1, a pair's score."""
        return dataset.num_nodes if dataset.x is None else dataset.x.shape[1], 1

    def model_options(self, dataset: LinkDataset) -> dict[str, Any]:
        """Return whether nodes have features and whether edges have a direction, where it is so."""
        found = {"features": dataset.x is not None, "directed": dataset.directed}
        return {name: True for name, so in found.items() if so}

    def names(self, dataset: LinkDataset) -> dict[str, np.ndarray]:
        """Return "source" and "target", the names of the pairs that are predicted, if nodes have names."""
        ids = dataset.node_ids
        if ids is None:
            return {}
        pairs = _asked(dataset)
        return texts_of(
            **{end: [ids[node] for node in pairs[:, at].tolist()] for at, end in enumerate(_ENDS)}
        )

    def found_options(self, dataset: LinkDataset) -> dict[str, Any]:
        """Return the task, directions, kinds, K of hits@K, and what features are made of."""
        if dataset.known is None:
            return {}
        found: dict[str, Any] = {"task": self.name, "directed": dataset.directed, "hits_at": dataset.hits_at}
        found["bipartite"] = dataset.sides is not None
        if dataset.feature_transform:
            found["transform"] = dict(dataset.feature_transform)
        return found

    def make_data(self, dataset: LinkDataset, run: RunOptions) -> LinkData:
        """Make the data module: the graph with the weights that the model needs, and the pairs."""
        size = self.batch_size(run)
        # Without a sampler each step multiplies with the whole graph, so that an epoch has few steps.
        if run.trainer.batch_size is None and not run.sampler.draws:
            size = min(max(size, len(dataset.train_edges) // _STEPS), _MOST_EDGES)
        return type(self).data(dataset, batch_size=size, sampler=run.sampler, **run.of_data)

    def make_module(self, model: torch.nn.Module, data: LinkData, run: RunOptions) -> TaskModule:
        """Make the Lightning module that trains the model; raise ValueError if it takes no such samples."""
        if run.sampler.features != "auto":
            problem = "plays no part for links; accepted: auto"
            bad_value("sampler.features", problem)
        if run.sampler.draws:
            check_blocks(model, run.sampler, self.samples_graphs)
        return super().make_module(model, data, run)

    def predict(self, model: LoadedModel, data: LinkData) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return the pairs that are asked for or of the test part, whether they are edges, and its scores.

        Of a user's own data the pairs are "source" and "target", and of others "pairs".
        """
        (batch,) = data.chunks("test")
        of: Any = model.module
        with torch.no_grad(), numerics(data.precision, data.device):
            features = data.features(of)
            positive, negative = _logits(of, features, batch)
            logits = torch.cat([positive, negative])
            if data.dataset.pairs is not None:
                asked = data.dataset.pairs.to(data.device)
                logits = torch.cat([of.score(features, chunk).float() for chunk in asked.split(_CHUNK)])
        scores = _scores(positive, negative, data.dataset.hits_at)
        pairs, probabilities = _asked(data.dataset), logits.sigmoid().cpu()
        if data.dataset.known is None:
            is_edge = torch.arange(pairs.shape[0], device="cpu") < positive.numel()
            arrays = {"pairs": pairs, "is_edge": is_edge, "probabilities": probabilities}
        else:
            ends = dict(zip(_ENDS, pairs.T, strict=True))
            given = pairs if data.dataset.directed or data.dataset.sides is not None else pairs.sort(1).values
            arrays = {**ends, "probability": probabilities, "is_edge": data.are_edges(given)}
        return arrays, {"test": {name: float(score) for name, score in scores.items()}}

    def describe(self, data: LinkData, run: RunOptions) -> dict[str, Any]:
        """Return the numbers of nodes, of edges to train on, and of the operand's nonzeros."""
        dataset = data.dataset
        return {"nodes": dataset.num_nodes, "train_edges": data.train_items, "nonzeros": data.adj.nnz}


register_task(LinkTask())
