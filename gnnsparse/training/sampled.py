"""Training steps on sampled neighbourhoods of nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from gnnsparse.cuda_path import path
from gnnsparse.errors import bad_value
from gnnsparse.operand import SparseOperand
from gnnsparse.precision import PRECISIONS
from gnnsparse.sampling import FeatureStore, NeighborSampler, prefetch
from gnnsparse.training.config import SamplerConfig
from gnnsparse.training.data import shuffled_epochs
from gnnsparse.training.task import text_of

if TYPE_CHECKING:
    from gnnsparse.graph import SparseGraph
    from gnnsparse.training.data import PreparedData
    from gnnsparse.training.task import RunOptions

__all__ = ["NodeBatch", "NodeBatches", "check_blocks", "make_sampler", "make_store", "sampler_identity"]


@dataclass(frozen=True, eq=False)
class NodeBatch:
    """Nodes to train on, with neighbours that were drawn.

    Attributes:
        x: [nodes, features], features of the sources of the first layer.
        adj: the operands of the layers' blocks, in their order; the targets of the last one are the nodes.
        y: the targets of the nodes, in their order, as in gnnsparse.tasks.node.Part.
        data: the data module of the batch, from which validation gets the whole graph.
    """

    x: torch.Tensor
    adj: list[SparseOperand]
    y: torch.Tensor
    data: Any


def make_sampler(
    config: SamplerConfig, graph: SparseGraph, values: str | None, data: PreparedData, seed: int
) -> NeighborSampler:
    """Makes the sampler of a run.

    Args:
        config: the options.
        graph: the graph.
        values: weights of the operands, "gcn", "mean" or None.
        data: the data module, which has the precision and the device.
        seed: seed of all draws.
    """
    return NeighborSampler(
        graph,
        list(config.fanouts),
        method=config.method,
        replace=config.replace,
        values=values,
        precision=data.precision,
        seed=seed,
        device=data.device,
    )


def make_store(
    config: SamplerConfig, x: torch.Tensor, sampler: NeighborSampler, data: PreparedData
) -> FeatureStore:
    """Makes the store of a run's features.

    Args:
        config: the options.
        x: [nodes, features], where they are.
        sampler: the run's sampler, whose graph says which nodes are used most.
        data: the data module, which has the precision and the device.

    Raises:
        ValueError: the placement does not go with the device.
    """
    on_gpu = path().takes(data.device)
    if config.features == "pinned" and not on_gpu:
        bad_value("sampler.features", "got 'pinned' on the CPU; accepted: auto, device, host")
    stored = data.precision.storage if data.device.type == "cuda" else torch.float32
    return FeatureStore(
        x,
        config.features,
        device=data.device,
        dtype=PRECISIONS[stored].value,
        uses=sampler.source_degrees if on_gpu and config.features in ("auto", "pinned") else None,
        cache_share=config.cache_share,
    )


def sampler_identity(run: RunOptions) -> dict[str, Any]:
    """Returns what decides which neighbours a step takes, for Task.identity; None: it takes all."""
    options = dataclasses.asdict(run.sampler)
    for name in ("prefetch", "features", "cache_share"):  # they change no number
        del options[name]
    return {"sampler": text_of(options | {"seed": run.seed}) if run.sampler.draws else None}


def check_blocks(model: Any, config: SamplerConfig) -> None:
    """Raises a ValueError unless a model takes as many sampled blocks as there are fan-outs.

    Args:
        model: the model; one that takes blocks says how many in its attribute `num_convolutions`.
        config: the options of the sampler.
    """
    layers = getattr(model, "num_convolutions", None)
    if layers is None:
        bad_value("sampler", f"{type(model).__name__} takes the whole graph alone; accepted: none")
    if layers != len(config.fanouts):
        bad_value(
            "sampler.fanouts",
            f"has {len(config.fanouts)} numbers for a model of {layers} layers; accepted: {layers}",
        )


class NodeBatches:
    """A loader of the training nodes without end, each batch with neighbours that are drawn anew.

    Which nodes and neighbours a step takes depends on the seed and the number of the step alone, so that a
    resumed run goes on with what it would have taken.

    Args:
        data: the data module.
        sampler: draws the neighbours.
        config: the options.
        store: the features of the graph's nodes.
        nodes: int64 [n], the nodes to train on.
        y: their targets.
        seed: seed of the order.
    """

    def __init__(
        self,
        data: PreparedData,
        sampler: NeighborSampler,
        config: SamplerConfig,
        store: FeatureStore,
        nodes: torch.Tensor,
        y: torch.Tensor,
        seed: int,
    ) -> None:
        self._data, self._sampler, self._config, self._seed = data, sampler, config, seed
        self._store, self._nodes, self._y = store, nodes, y

    @property
    def steps(self) -> int:
        """Number of optimiser steps of an epoch, a pass over all nodes to train on."""
        return -(-self._nodes.numel() // self._config.batch_size)

    def __iter__(self) -> Iterator[NodeBatch]:
        return prefetch(self._batches(), self._config.prefetch, self._data.device)

    def _batches(self) -> Iterator[NodeBatch]:
        count, size = self._nodes.numel(), self._config.batch_size
        for first, batches in shuffled_epochs(self._data, count, size, self._seed):
            sizes = [len(batch) for batch in batches]
            # All at once: for a copy of each batch's numbers the host would wait for a GPU.
            order = torch.cat(list(batches)).to(self._data.device)
            for step, ids in enumerate(order.split(sizes), first):
                yield self.batch(step, ids)

    def batch(self, step: int, ids: torch.Tensor) -> NodeBatch:
        """Returns the batch of a step.

        Args:
            step: number of the step.
            ids: int64 [batch] on the device, indices of its nodes in `nodes`.
        """
        sample = self._sampler.sample(self._nodes[ids], step % 2**32)
        return NodeBatch(self._store.gather(sample.nodes), sample.adjs, self._y[ids], self._data)
