"""A data set as one batch: the whole graph, prepared once and kept on the device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import lightning.pytorch as pl
import torch

from gnnsparse.api import prepare
from gnnsparse.data import NodeDataset
from gnnsparse.graph import SparseGraph
from gnnsparse.operand import SparseOperand
from gnnsparse.precision import Precision
from gnnsparse.training.config import PreprocessConfig

__all__ = ["FullGraphData", "GraphBatch", "Part", "PreparedData"]


@dataclass(frozen=True, eq=False)
class Part:
    """Nodes of one part of a split.

    Attributes:
        nodes: int64 [n], their numbers: a mask would have to be counted on the host in each step.
        y: their labels, int64 [n] or float32 [n, labels].
    """

    nodes: torch.Tensor
    y: torch.Tensor


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """The whole graph, on one device.

    Attributes:
        x: features [nodes, features].
        adj: the prepared graph.
        train, val, test: the split.
    """

    x: torch.Tensor
    adj: SparseOperand
    train: Part
    val: Part
    test: Part

    @property
    def parts(self) -> dict[str, Part]:
        """The split by name."""
        return {"train": self.train, "val": self.val, "test": self.test}


class _Repeated:
    """A data loader of one batch, once or without end. A pass costs nothing: the batch is the graph."""

    def __init__(self, batch: GraphBatch, endless: bool) -> None:
        self._batch, self._endless = batch, endless

    def __iter__(self) -> Iterator[GraphBatch]:
        yield self._batch
        while self._endless:
            yield self._batch


class PreparedData(pl.LightningDataModule):
    """Data around one operand, which is prepared and put on a device once.

    Args:
        graph: what to prepare.
        values: weights of the operand, as in `gnnsparse.prepare`.
        precision: of the operand.
        device: where everything goes.
        preprocess: how the operand is prepared.

    Attributes:
        adj: the operand.
        precision: of the operand.
        device: where everything is.
        preprocess_seconds: what preparing took, reading it from the cache included.
        cache_hit: whether it came from the cache.
    """

    def __init__(
        self,
        graph: SparseGraph,
        values: str | None,
        precision: Precision | str,
        device: torch.device | str,
        preprocess: PreprocessConfig | None,
    ) -> None:
        super().__init__()
        preprocess = preprocess or PreprocessConfig()
        self.precision = Precision.parse(precision)
        self.device = torch.empty(0, device=device).device  # "cuda" -> "cuda:0"
        start = time.perf_counter()
        self.adj = prepare(
            graph.to(self.device),  # a GPU sorts the edges of a large graph much faster
            values=values,
            precision=self.precision,
            reorder=preprocess.reorder,
            format=preprocess.format,
            cache=preprocess.cache,
        ).to(self.device)
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.preprocess_seconds = time.perf_counter() - start
        self.cache_hit = self.adj.cache_hit

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """The batch as it is: it is there already.

        Raises:
            ValueError: the trainer runs on another device than this data was made for.
        """
        if device.type != self.device.type:
            raise ValueError(f"device: the trainer runs on {device}, the data was put on {self.device}")
        return batch


class FullGraphData(PreparedData):
    """Prepares the graph of a data set and puts graph, features and labels on a device, once.

    On a GPU in fp16 or bf16 the features are stored in that type: the first layer would round them
    to it anyway, in each step.

    Args:
        dataset: the task.
        values: weights of the operand, as in `gnnsparse.prepare`: "gcn", "mean" or None.
        precision: of the operand.
        device: where everything goes.
        preprocess: how the operand is prepared.

    Attributes:
        dataset: the task.
        adj, precision, device, preprocess_seconds, cache_hit: as in PreparedData.
    """

    def __init__(
        self,
        dataset: NodeDataset,
        *,
        values: str | None = "gcn",
        precision: Precision | str = "fp32",
        device: torch.device | str = "cpu",
        preprocess: PreprocessConfig | None = None,
    ) -> None:
        super().__init__(dataset.graph, values, precision, device, preprocess)
        self.dataset = dataset
        self._batch = self._on_device(self.adj)

    def _on_device(self, adj: SparseOperand) -> GraphBatch:
        dataset = self.dataset

        def part(mask: torch.Tensor) -> Part:
            nodes = mask.nonzero().flatten()
            return Part(nodes.to(self.device), dataset.y[nodes].to(self.device))

        dtype = self.precision.storage if self.device.type == "cuda" else torch.float32
        parts = [part(mask) for mask in (dataset.train_mask, dataset.val_mask, dataset.test_mask)]
        return GraphBatch(dataset.x.to(self.device, dtype), adj, *parts)

    @property
    def batch(self) -> GraphBatch:
        """The whole graph."""
        return self._batch

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of an epoch: one, on the whole graph."""
        return 1

    def train_dataloader(self) -> Any:
        """The graph without end: the trainer counts the steps."""
        return _Repeated(self._batch, endless=True)

    def val_dataloader(self) -> Any:
        """The graph once."""
        return _Repeated(self._batch, endless=False)

    def test_dataloader(self) -> Any:
        """The graph once."""
        return _Repeated(self._batch, endless=False)
