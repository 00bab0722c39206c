"""The data module that the tasks build on: an operand, prepared once and kept on the device."""

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
    """A data loader of one batch, once or without end. A pass costs nothing: the batch is all of the data."""

    def __init__(self, batch: Any, endless: bool) -> None:
        self._batch, self._endless = batch, endless

    def __iter__(self) -> Iterator[Any]:
        yield self._batch
        while self._endless:
            yield self._batch


class PreparedData(pl.LightningDataModule):
    """Data around one operand, which is prepared and put on a device once.

    Args:
        graph: the structure to prepare.
        values: weights of the operand, a choice of `gnnsparse.prepare`.
        precision: precision of the operand's products.
        device: where the operand goes.
        preprocess: how the operand is prepared.

    Attributes:
        adj: the operand.
        precision: precision of the operand's products.
        device: where the operand is.
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

    @property
    def steps_per_epoch(self) -> int:
        """Optimiser steps of an epoch."""
        return 1

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """The batch as it is: it is there already.

        Raises:
            ValueError: the trainer runs on another device than this data was made for.
        """
        if device.type != self.device.type:
            raise ValueError(f"device: the trainer runs on {device}, the data was put on {self.device}")
        return batch
