"""Steps on sampled neighbours in `benchmarks.scaling`: each rank draws for nodes of its own."""

from __future__ import annotations

import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks.scaling_ranks import Place
from benchmarks.scaling_steps import SIZES, WARMUP, Case, Waits, peak, stored_graph, used
from gnnsparse.data import NodeDataset
from gnnsparse.distributed.functions import total_of
from gnnsparse.distributed.training import sum_gradients
from gnnsparse.precision import Precision
from gnnsparse.sampling import NeighborSampler, prefetch
from gnnsparse.training.device import numerics
from gnnsparse.training.sampled import NodeBatch
from models import MODELS

__all__ = ["sampled"]

FANOUTS, BATCH = [15, 10, 5], 1024


class _Batches:
    """The batches of a rank: of each step's nodes it takes those that come after the other ranks'."""

    def __init__(self, place: Place, case: Case, dataset: NodeDataset, batch: int) -> None:
        self._place, self._batch = place, batch
        precision, device = Precision.parse(case.precision), place.device
        self._sampler = NeighborSampler(
            dataset.graph, FANOUTS, values="mean", precision=precision, seed=0, device=device
        )
        self._x = dataset.x.to(device, precision.storage if device.type == "cuda" else torch.float32)
        self._y = dataset.y.to(device)
        train = dataset.train_mask.nonzero().flatten()
        self._order = train[torch.randperm(train.numel(), generator=torch.Generator().manual_seed(0))]
        self.nodes = train.numel()

    def take(self, steps: int) -> Iterator[NodeBatch]:
        def batches() -> Iterator[NodeBatch]:
            size, ranks = self._batch, self._place.ranks
            for step in range(steps):
                draw = step * ranks + self._place.rank
                places = (torch.arange(size) + draw * size) % self.nodes
                nodes = self._order[places].to(self._place.device)
                sample = self._sampler.sample(nodes, draw)
                yield NodeBatch(self._x.index_select(0, sample.nodes), sample.adjs, self._y[nodes], None)

        return prefetch(batches(), 2, self._place.device)


def _train(
    place: Place, case: Case, dataset: NodeDataset, batches: _Batches, steps: int, waits: Waits
) -> dict[str, Any]:
    torch.manual_seed(0)
    on_gpu, group = place.device.type == "cuda", None if place.peers is None else place.peers.group
    model = MODELS["graphsage"].build(
        dataset.num_features, out_channels=dataset.num_classes, **SIZES["graphsage"]
    )
    model.to(place.device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003, fused=True)
    precision = Precision.parse(case.precision)
    scaler = torch.amp.GradScaler(place.device.type, enabled=on_gpu and precision is Precision.FP16)
    losses, marks = [], []
    with waits.watching(), contextlib.ExitStack() as stack:
        stack.enter_context(numerics(precision, place.device))
        for batch in batches.take(steps):
            marks.append(_now(on_gpu))
            waits.begin_step()
            optimizer.zero_grad(set_to_none=True)
            loss = F.cross_entropy(model(batch.x, batch.adj).float(), batch.y) / place.ranks
            if place.peers is not None:
                loss = total_of(loss, group)
            scaler.scale(loss).backward()
            if place.peers is not None:
                sum_gradients(model.parameters(), group)
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
        marks.append(_now(on_gpu))
    return {"ms": _median(marks), "losses": torch.stack(losses).tolist()}


def _now(on_gpu: bool) -> Any:
    if not on_gpu:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _median(marks: list[Any]) -> float:
    """Returns the median time of a step in milliseconds: from one batch's arrival to the next one's."""
    if isinstance(marks[0], float):
        spans = [1e3 * (b - a) for a, b in itertools.pairwise(marks)]
    else:
        marks[-1].synchronize()
        spans = [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]
    return statistics.median(spans[WARMUP:])


def sampled(
    place: Place, folder: Path, case: Case, scale: float, steps: int, batch: int = BATCH
) -> dict[str, Any]:
    """Trains GraphSAGE on sampled neighbours twice; every rank has a copy of graph, features and model.

    A step takes `batch` nodes on each rank, and the ranks' gradients are added up: with more ranks an epoch
    has fewer steps. The features are on the GPU.
    """
    start = time.perf_counter()
    dataset, _ = stored_graph(folder, case.graph, scale)
    batches = _Batches(place, case, dataset, batch)
    prepared = time.perf_counter() - start
    if place.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place.device)
    first = _train(place, case, dataset, batches, steps, Waits(place.device))
    waits = Waits(place.device)
    again = _train(place, case, dataset, batches, steps, waits)
    per_epoch = -(-batches.nodes // (batch * place.ranks))
    return {
        **first, "again_ms": again["ms"], "bitwise_equal": first["losses"] == again["losses"],
        "unhidden_ms": waits.milliseconds() if place.ranks > 1 else 0.0,
        "capture": "the batches of this task differ from step to step",
        "peak_bytes": peak(place.device), "used_bytes": used(place.device), "prepare_seconds": prepared,
        "steps_of_epoch": per_epoch, "epoch_ms": per_epoch * first["ms"], "nodes": dataset.num_nodes,
    }  # fmt: skip
