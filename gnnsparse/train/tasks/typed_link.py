"""The task "typed_link": which targets of a relation a source will have, in a graph with types."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.data.splits import split_generator
from gnnsparse.data.typed import TypedLinkDataset
from gnnsparse.errors import bad_value
from gnnsparse.formats.csr import are_in
from gnnsparse.runtime.memo import cached_property
from gnnsparse.train.data import MiniBatchData
from gnnsparse.train.device import numerics
from gnnsparse.train.module import TaskModule
from gnnsparse.train.settings import PreprocessConfig, SamplerConfig
from gnnsparse.train.tasks import RunOptions, register_task, texts_of
from gnnsparse.train.tasks.link import LinkPredictor, LinkTask, link_loss
from gnnsparse.train.tasks.typed_node import (
    features_on,
    inputs_of_sample,
    make_typed_sampler,
    prepare_typed,
    sizes_of,
)
from gnnsparse.train.trained import LoadedModel, set_precision

__all__ = ["TypedLinkBatch", "TypedLinkData", "TypedLinkPredictor", "TypedLinkTask", "ranks_of"]

#: Pairs of a source and a target that are scored at a time, and ends that neighbours are drawn for.
_CHUNK, _ROOTS = 2**16, 2**13
#: Targets that an edge is ranked among where scores are of samples, unless the data set says how many.
_DRAWN = 100


def ranks_of(positive: torch.Tensor, negative: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """Return the rank of each edge among its own negatives, from 1 on, float32 [edges].

    It is 1 plus the number of negatives with a larger score, plus half the number of those with the same
    score, as the Open Graph Benchmark counts (Hu et al. 2020). The scores are [edges] and [edges, negatives],
    and `counts`, bool [edges, negatives], says which of these count.
    """
    larger = ((negative > positive[:, None]) & counts).sum(1)
    equal = ((negative == positive[:, None]) & counts).sum(1)
    return 1 + larger + 0.5 * equal


@dataclass(frozen=True, eq=False)
class TypedLinkBatch:
    """Edges of the predicted relation, each with other targets, and the graph that a model sees of them.

    Attributes:
        x: features of the nodes by type, or of types without them the nodes, if the graph is a sample.
        graph: the whole graph, or what was drawn for the ends.
        positive: int64 [k, 2], sources and targets by their places in the graph.
        others: int64 [k, n], targets that each source is scored with as well.
        data: the data module.
    """

    x: dict[str, torch.Tensor]
    graph: Any
    positive: torch.Tensor
    others: torch.Tensor
    data: TypedLinkData


class TypedLinkData(MiniBatchData):
    """Lightning data module of a graph with types, and of links of one relation.

    A training batch has edges, and for each a target that its source has no edge to, which is drawn anew by
    `seed` and the edges of the batch alone. With a sampler the neighbours of all ends are drawn by `seed` and
    the number of the step. Edges whose source has all targets are left out, as they can't be ranked. If edges
    have times, these are older than the edge that they are drawn for, also in scores and predictions; else
    scores are of the whole graph.

    Args:
        dataset: the graph and its links.
        batch_size: edges of a training step; the last step of an epoch may have fewer.
        seed: seed of the order of the edges, and of what is drawn.
        values: that of TypedNodeData.
        sampler: which neighbours a training step takes; None: all. Its `batch_size` is not used.
        options: precision, device and preprocess, see MiniBatchData.

    Attributes:
        dataset: the data set.
        adj: the graph, a TypedGraph on the device.
        x: features of the nodes by type, on the device.
        draws_scores: whether scores are of samples; edges are ranked among 100 drawn targets then, unless the
            data set has `negatives`.
        precision, device, preprocess_seconds, cache_hit: see PreparedData.

    Raises:
        ValueError: an argument is out of range, or all sources of a part have all targets.
    """

    def __init__(
        self,
        dataset: TypedLinkDataset,
        *,
        batch_size: int = 2**16,
        seed: int = 0,
        values: str | None = None,
        sampler: SamplerConfig | None = None,
        **options: Any,
    ) -> None:
        graph: Any = dataset.graph
        super().__init__(graph, values, batch_size=batch_size, seed=seed, **options)
        self.dataset, self.x = dataset, features_on(self, dataset.x)
        self._known, self._sampler, free = dataset.known_keys, None, ~dataset.joined_to_all
        self._edges: dict[str, tuple[torch.Tensor, torch.Tensor | None]] = {}
        for part, edges in dataset.edges.items():
            rows, times = free[edges[:, 0]].nonzero().flatten(), dataset.times[part]
            if len(rows) == 0:
                problem = f"joins all sources of the {part} part to all targets"
                bad_value("dataset", f"{dataset.name} {problem}; accepted: some that are not")
            self._edges[part] = edges[rows], None if times is None else times[rows]
        draws = sampler is not None and sampler.draws
        self.draws_scores = draws and dataset.has_times
        self._negatives = dataset.negatives or (_DRAWN if self.draws_scores else None)
        if sampler is not None and draws:
            self._sampler = make_typed_sampler(
                sampler, graph, seed, device=self.device, edge_time=dataset.edge_times
            )
            self.prefetch = sampler.prefetch

    def _prepare(self, graph: Any, values: str | None, preprocess: PreprocessConfig) -> Any:
        return prepare_typed(self, graph, values, preprocess)

    @property
    def train_items(self) -> int:
        """Number of edges to train on."""
        return len(self._edges["train"][0])

    @cached_property
    def sees_test(self) -> bool:
        """Whether messages pass over the edges of the test, as with split="all"."""
        return torch.equal(self.dataset.train_edges, self.dataset.test_edges)

    @cached_property
    def known(self) -> torch.Tensor:
        """The data set's `known_keys` on the device."""
        return self._known.to(self.device)

    def whole(self, positive: torch.Tensor, others: torch.Tensor) -> TypedLinkBatch:
        """Return pairs, int64 [k, 2] and [k, n], as a batch on the whole graph."""
        return TypedLinkBatch(self.x, self.adj, positive.to(self.device), others.to(self.device), self)

    def sample(
        self, step: int, positive: torch.Tensor, others: torch.Tensor, times: torch.Tensor | None
    ) -> TypedLinkBatch:
        """Return pairs as `whole` takes them with the neighbours that are drawn for their ends.

        `times`, int64 [k], are those of the edges, None if edges have none: neighbours are older.
        """
        assert self._sampler is not None
        source, _, target = self.dataset.relation
        count, more = others.shape
        sources = positive[:, 0].to(self.device)
        targets = torch.cat([positive[:, 1], others.flatten()]).to(self.device)
        is_one = source == target
        seeds = {source: torch.cat([sources, targets])} if is_one else {source: sources, target: targets}
        time = None
        if times is not None:
            before = times.to(self.device) - 1
            of_targets = torch.cat([before, before.repeat_interleave(more)])
            time = (
                {source: torch.cat([before, of_targets])} if is_one else {source: before, target: of_targets}
            )
        if self._sampler.disjoint:  # each end is the root of a tree of its own
            places = {kind: torch.arange(len(of), device=self.device) for kind, of in seeds.items()}
        else:
            found = {kind: of.unique(return_inverse=True) for kind, of in seeds.items()}
            seeds, places = ({kind: of[at] for kind, of in found.items()} for at in (0, 1))
        drawn = self._sampler.sample(seeds, step % 2**32, time)
        ends = places[target][count:] if is_one else places[target]
        pairs = torch.stack([places[source][:count], ends[:count]], dim=1)
        x = inputs_of_sample(self.x, drawn.nodes)
        return TypedLinkBatch(x, drawn.graph, pairs, ends[count:].view(count, more), self)

    def _drawn(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return training edges, and a target without an edge for each, int64 [batch, 1], on the CPU."""
        draw, edges = split_generator(int(ids.sum()) % 2**31, self.seed), self._edges["train"][0][ids]
        return edges, self.dataset.draw_targets(edges[:, 0], 1, draw, self._known)

    def gather(self, part: str, ids: torch.Tensor) -> TypedLinkBatch:
        """Return the training edges with the indices `ids`, int64 [batch], on the whole graph."""
        return self.whole(*self._drawn(ids))

    def training_batches(self, first: int, batches: Sequence[torch.Tensor]) -> Iterator[TypedLinkBatch]:
        """Yield the batches of training steps, see MiniBatchData; with a sampler what it draws for them."""
        if self.sees_test:
            accepted = "another split, as 'all' is for predictions"
            bad_value("split", f"the edges to train on are those of the test; accepted: {accepted}")
        if self._sampler is None:
            yield from super().training_batches(first, batches)
            return
        _, times = self._edges["train"]
        for step, ids in enumerate(batches, first):
            yield self.sample(step, *self._drawn(ids), None if times is None else times[ids])

    def chunks(self, part: str) -> Iterator[TypedLinkBatch]:
        """Yield the edges of a part in their order, with the targets that each is ranked among.

        These are all, or so many as the data set says, the same in each call. Of the part "train" as many
        edges are taken as the validation part has.
        """
        of, (edges, times) = self.dataset, self._edges[part]
        if part == "train":
            count = len(self._edges["val"][0])
            some = slice(None, count * max(1, len(edges) // count), max(1, len(edges) // count))
            edges, times = edges[some], None if times is None else times[some]
        if self._negatives is None:
            everyone = torch.arange(of.sizes[1], dtype=torch.int64, device="cpu")
            others = everyone.expand(len(edges), -1)
        else:
            draw = split_generator(list(of.edges).index(part), self.seed)
            others = of.draw_targets(edges[:, 0], self._negatives, draw, self._known)
        most = _ROOTS if self.draws_scores else _CHUNK
        size = max(1, most // (2 + others.shape[1]))
        for step, ids in enumerate(torch.arange(len(edges), dtype=torch.int64, device="cpu").split(size)):
            given = edges[ids], others[ids]
            if not self.draws_scores:
                yield self.whole(*given)
            else:
                yield self.sample(step, *given, None if times is None else times[ids])

    def counts(self, batch: TypedLinkBatch) -> torch.Tensor:
        """Return which of a batch's other targets count as negatives, bool [k, n]: those without an edge."""
        if self._negatives is not None:
            return torch.ones_like(batch.others, dtype=torch.bool)
        sources, targets = batch.positive[:, :1], self.dataset.sizes[1]
        counts = ~are_in(self.known, sources * targets + batch.others)
        if self.dataset.relation[0] == self.dataset.relation[2]:
            counts &= batch.others != sources
        return counts & (batch.others != batch.positive[:, 1:])


class TypedLinkPredictor(LinkPredictor):
    """Trains a model to tell edges of a relation from other targets of their sources, see LinkPredictor.

    The scores are means over the edges of a part: the reciprocal of an edge's rank among the targets that its
    source has no edge to ("mrr"), and whether it is at most K (hits@K).

    Args:
        model: maps features by type and a TypedGraph to what `model.score` takes beside pairs [k, 2] of a
            source and a target, of which it returns logits [k].
        dataset: the data set.
        optimizer: learning rate, weight decay, schedule.
        max_steps: the step at which a schedule ends, see TaskModule.
    """

    def training_step(self, batch: Any) -> torch.Tensor:
        """Return the loss of the batch, a scalar on the device."""
        model: Any = self.model
        features = model(batch.x, batch.graph)
        positive, others = scores_of(model, features, batch)
        return link_loss(positive, others.flatten())

    def scored(self, batch: Any) -> Any:
        """Return the data module, and what the model makes of the whole graph; None if scores are drawn."""
        data: TypedLinkData = batch.data
        model: Any = self.model
        return data, None if data.draws_scores else model(data.x, data.adj)

    def score(self, part: str, scored: Any) -> dict[str, torch.Tensor]:
        """Return "loss" and the scores of a part, scalars on the device."""
        return part_scores(self.model, part, *scored)


def scores_of(model: Any, features: Any, batch: TypedLinkBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logits of the edges of a batch [k], and of their sources with other targets [k, n]."""
    sources = batch.positive[:, :1].expand_as(batch.others)
    pairs = torch.stack([sources.flatten(), batch.others.flatten()], dim=1)
    both = model.score(features, torch.cat([batch.positive, pairs])).float()
    positive, others = both.split([len(batch.positive), len(pairs)])
    return positive, others.view_as(batch.others)


def part_scores(model: Any, part: str, data: TypedLinkData, features: Any) -> dict[str, torch.Tensor]:
    """Return "loss" and the scores of a part; `features` are those of the whole graph, or None."""
    ranks, losses = [], []
    for batch in data.chunks(part):
        made = model(batch.x, batch.graph) if features is None else features
        positive, others = scores_of(model, made, batch)
        counts = data.counts(batch)
        ranks.append(ranks_of(positive, others, counts))
        wrong = (F.softplus(others) * counts).sum(1) / counts.sum(1).clamp(min=1)
        losses.append(F.softplus(-positive) + wrong)
    rank, k = torch.cat(ranks), data.dataset.hits_at
    hits = (rank <= k).float().mean()
    return {"loss": torch.cat(losses).mean(), "mrr": rank.reciprocal().mean(), f"hits@{k}": hits}


class TypedLinkTask(LinkTask):
    """The task "typed_link": prediction of the links of a relation, ranked for each source."""

    name = "typed_link"
    samples_graphs = True
    dataset: ClassVar[Any] = TypedLinkDataset
    data: ClassVar[Any] = TypedLinkData
    module = TypedLinkPredictor

    def model_sizes(self, dataset: Any) -> tuple[int, int]:
        """Return the number of features of a source, 0 if it has none, and 1, a pair's score."""
        return dataset.types["features"].get(dataset.relation[0], 0), 1

    def model_options(self, dataset: Any) -> dict[str, Any]:
        """Return the types and relations of the graph, and the types of both ends of a link."""
        return {"types": {**dataset.types, "target": None, "link": list(dataset.relation[::2])}}

    def names(self, dataset: Any) -> dict[str, np.ndarray]:
        """Return "source" and "target", the names of the pairs that are predicted, if nodes have names."""
        found = {}
        for end, kind, nodes in zip(
            ("source", "target"), dataset.relation[::2], _asked(dataset).T, strict=True
        ):
            names = (dataset.node_ids or {}).get(kind)
            found[end] = None if names is None else [names[node] for node in nodes.tolist()]
        return texts_of(**found)

    def found_options(self, dataset: Any) -> dict[str, Any]:
        """Return the task, K of hits@K, the predicted relation, and what the features are made of."""
        found = {"task": self.name, "hits_at": dataset.hits_at, "edges": "__".join(dataset.relation)}
        made = dataset.feature_transform
        return found if made is None else {**found, "transform": dict(made)}

    def make_module(self, model: torch.nn.Module, data: Any, run: RunOptions) -> TaskModule:
        """Make the Lightning module, whose layers compute in the precision of the run."""
        set_precision(model, data.precision)
        return super().make_module(model, data, run)

    def predict(self, model: LoadedModel, data: Any) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Return "source" and "target" of the pairs that are asked for or of the test part, and its scores.

        "probability" is that of an edge, and "is_edge" says whether it is one of any part. There are no
        scores where messages pass over the test part.
        """
        of: Any = model.module
        set_precision(of, data.precision)
        pairs, logits = _asked(data.dataset), []
        with torch.no_grad(), numerics(data.precision, data.device):
            features = None if data.draws_scores else of(data.x, data.adj)
            scores = {} if data.sees_test else part_scores(of, "test", data, features)
            everyone = torch.arange(len(pairs), dtype=torch.int64, device="cpu")
            for step, ids in enumerate(everyone.split(_ROOTS // 2)):
                nothing = torch.empty(len(ids), 0, dtype=torch.int64, device="cpu")
                if features is not None:
                    batch, made = data.whole(pairs[ids], nothing), features
                else:
                    batch = data.sample(step, pairs[ids], nothing, _asked_times(data.dataset)[ids])
                    made = of(batch.x, batch.graph)
                logits.append(scores_of(of, made, batch)[0])
        ends = dict(zip(("source", "target"), pairs.T, strict=True))
        arrays = {**ends, "probability": torch.cat(logits).sigmoid().cpu()}
        arrays["is_edge"] = data.dataset.are_known(pairs)
        return arrays, {"test": {name: float(of) for name, of in scores.items() if name != "loss"}}

    def describe(self, data: Any, run: RunOptions) -> dict[str, Any]:
        """Return the numbers of nodes of each type, of edges of each relation, and of edges to train on."""
        return {**sizes_of(data.dataset.graph), "train_edges": data.train_items}


def _asked(dataset: TypedLinkDataset) -> torch.Tensor:
    return dataset.test_edges if dataset.pairs is None else dataset.pairs


def _asked_times(dataset: TypedLinkDataset) -> torch.Tensor:
    """Return the times of the pairs to predict for: those of the test part, or later than all of them."""
    assert dataset.test_times is not None
    if dataset.pairs is None:
        return dataset.test_times
    return (dataset.test_times.max() + 1).expand(len(dataset.pairs))


register_task(TypedLinkTask())
