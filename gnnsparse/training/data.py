"""PreparedData, the base class of the tasks' data modules: an operand, prepared and put on a device."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import lightning.pytorch as pl
import torch

from gnnsparse.api import prepare
from gnnsparse.graph import SparseGraph
from gnnsparse.precision import Precision
from gnnsparse.training.config import PreprocessConfig

__all__ = ["PreparedData", "RepeatedBatch"]


class RepeatedBatch:
    """A data loader that yields one batch, which holds all of the data, one time or without end.

    Args:
        batch: the batch.
        endless: whether the batch is repeated without end.
    """

    def __init__(self, batch: Any, endless: bool) -> None:
        self._batch, self._endless = batch, endless

    def __iter__(self) -> Iterator[Any]:
        yield self._batch
        while self._endless:
            yield self._batch


class PreparedData(pl.LightningDataModule):
    """A Lightning data module with one operand, which is prepared and put on a device when it is made.

    Args:
        graph: the graph to prepare.
        values: weights of the operand: "gcn", "mean" or None (see `gnnsparse.prepare`).
        precision: precision of the operand's products.
        device: the device for the operand.
        preprocess: options of `gnnsparse.prepare`; None: their defaults.

    Attributes:
        dataset: the data set, which subclasses set.
        adj: the operand.
        precision: precision of the operand's products.
        device: the device of the operand.
        preprocess_seconds: wall time of preparing the operand, or of reading it from the cache.
        cache_hit: whether the operand was read from the cache.
    """

    dataset: Any

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

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimiser steps of an epoch."""
        return 1

    @property
    def fixed_batch(self) -> Any:
        """The batch of every training step and validation; None: batches differ."""
        return None

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Returns the batch itself, which is on the device already.

        Raises:
            ValueError: the trainer runs on another device than that of this data.
        """
        if device.type != self.device.type:
            raise ValueError(f"device: the trainer runs on {device}, the data was put on {self.device}")
        return batch
