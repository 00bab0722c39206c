"""What tests of training on samples run on each of several ranks, and in one process for comparison."""

from __future__ import annotations

import dataclasses
import itertools
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from gnnsparse.data import NodeDataset
from gnnsparse.distributed import share_batch_norm
from gnnsparse.distributed.training import Peers
from gnnsparse.train import OptimizerConfig, PreprocessConfig, SamplerConfig, TrainerConfig, fit
from gnnsparse.train.tasks import RunOptions
from gnnsparse.train.tasks.node import NodeTask
from models import MODELS
from tests.distributed.trainings import peers_of, recorded, same
from tests.tasks import toy_task


def dataset_of(missing: bool) -> NodeDataset:
    """100 training nodes; with `missing` nodes have several labels, of which every third is not known."""
    if not missing:
        return toy_task(nodes=300)
    dataset = toy_task(nodes=300, metric="micro_f1")
    y = dataset.y.clone()
    y.view(-1)[::7] = torch.nan
    return dataclasses.replace(dataset, y=y)


def run_of(peers: Peers | None, batch_size: int = 32, device: str = "cpu", **options: Any) -> RunOptions:
    trainer = {"max_epochs": 3, "logger": "none", "progress": False, "checkpoint": False, **options}
    return RunOptions(
        device=torch.device(device), values="mean", seed=7, trainer=TrainerConfig(**trainer),
        optimizer=OptimizerConfig(lr=0.01, schedule="cosine"), preprocess=PreprocessConfig(cache=False),
        sampler=SamplerConfig(name="neighbor", fanouts=[4, 3], batch_size=batch_size), peers=peers,
    )  # fmt: skip


def task() -> NodeTask:
    return NodeTask()


def train(
    peers: Peers | None, *, batch_size: int = 32, missing: bool = False, folder: Path | None = None,
    resume: Path | None = None, norm: str = "none", **options: Any,
) -> dict[str, Any]:  # fmt: skip
    """A run of GraphSAGE without dropout."""
    dataset = dataset_of(missing)
    run = run_of(peers, batch_size, checkpoint=folder is not None, **options)
    data = task().make_data(dataset, run)
    torch.manual_seed(0)
    model = MODELS["graphsage"].build(
        dataset.num_features, out_channels=dataset.num_classes, hidden_channels=16, dropout=0.0, norm=norm
    )
    curves: list[tuple[int, dict[str, float]]] = []
    module = task().make_module(model, data, run)
    module._max_steps = 3 * data.steps_per_epoch  # also of a run that ends earlier, to be resumed
    result = fit(module, data, run.trainer, curves=curves, folder=folder, resume=resume)
    return {
        "losses": [row["train/loss"] for _, row in curves], "rows": curves, "metrics": result.metrics,
        "weights": {name: tensor.to("cpu", copy=True) for name, tensor in module.model.state_dict().items()},
        "described": task().describe(data, run), "capture": result.capture,
    }  # fmt: skip


def shared(group: dist.ProcessGroup, options: dict[str, Any]) -> dict[str, Any]:
    """Trains twice, and returns the first run if the second one has computed the same bits."""
    control = dist.new_group(backend="gloo") if dist.get_backend(group) == "nccl" else None
    first, again = (train(peers_of(group, control), **options) for _ in range(2))
    same(first, again)
    return first


def in_blocks(group: dist.ProcessGroup, options: dict[str, Any], tight: bool = False) -> dict[str, Any]:
    """Trains step by step, and in blocks of steps.

    With `tight` arrays have room for what rank 0 has drawn, and on other ranks for some samples alone.
    """
    peers = peers_of(group)
    single = train(peers, **options, capture="off")
    room = {"_DEVIATIONS": 0, "_MORE": 0, "_MULTIPLE": 4, "_LOOKED_AT": 2}
    is_tight = tight and peers.rank > 0
    smaller: Any = mock.patch.multiple("gnnsparse.train.sampled", **room) if is_tight else nullcontext()
    with recorded(lambda module, data: data.capture_obstacle(module)) as made, smaller:
        blocks, again = (train(peers, **options, capture="on") for _ in range(2))
    assert (single["capture"], blocks["capture"]) == ("off", "on")
    torch.testing.assert_close(blocks["losses"], single["losses"], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(blocks["weights"], single["weights"], rtol=2e-3, atol=2e-4)
    for name in ("losses", "rows", "metrics"):
        assert again[name] == blocks[name]
    return {"counts": made[0].counts, "losses": blocks["losses"], "weights": blocks["weights"]}


def captured(group: dist.ProcessGroup, options: dict[str, Any]) -> None:
    """Trains on GPUs step by step, and by CUDA graphs with NCCL's kernels in them."""
    peers = peers_of(group, dist.new_group(backend="gloo"))
    options = {"device": "cuda", **options}
    single, graphs, again = (train(peers, **options, capture=capture) for capture in ("off", "on", "on"))
    assert (single["capture"], graphs["capture"]) == ("off", "on")
    torch.testing.assert_close(graphs["losses"], single["losses"], rtol=1e-3, atol=1e-4)
    same(graphs, again)


def taken(group: dist.ProcessGroup, batch_size: int) -> list[tuple[list[int], float]]:
    """The features, which tell nodes apart, and the share of each step of an epoch."""
    data: Any = task().make_data(dataset_of(False), run_of(peers_of(group), batch_size))
    batches = itertools.islice(iter(data.train_dataloader()), data.steps_per_epoch)
    found = []
    for batch in batches:
        own = batch.x[: batch.adj[-1].shape[0]]
        found.append(((data.dataset.x[:, None] == own).all(-1).int().argmax(0).tolist(), batch.fraction))
    return found


def begun(group: dist.ProcessGroup, folder: str) -> None:
    """Trains for one of three epochs; rank 0 writes checkpoints."""
    peers = peers_of(group)
    found = train(peers, max_epochs=1, folder=Path(folder) if peers.rank == 0 else None)
    assert len(found["losses"]) == 4


def resumed(group: dist.ProcessGroup, folder: str) -> list[float]:
    """Goes on to three epochs."""
    return train(peers_of(group), resume=Path(folder) / "checkpoints" / "last.ckpt")["losses"]


def batch_norms(group: dist.ProcessGroup) -> None:
    """Batch normalisation of numbers of nodes that change on some ranks alone, against one of all nodes."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    torch.manual_seed(3)
    one = torch.nn.BatchNorm1d(4)
    mine = torch.nn.Sequential(torch.nn.BatchNorm1d(4))
    assert share_batch_norm(mine, group, nodes_vary=True) == 1
    for sizes in ((5, 3, 4), (5, 6, 1), (1, 1, 1), (2, 6, 1)):
        x = torch.randn(sum(sizes[:ranks]), 4)
        parts = x.split(sizes[:ranks])
        leaf, own = x.clone().requires_grad_(), parts[rank].clone().requires_grad_()
        weight = torch.randn_like(x)
        (one(leaf) * weight).sum().backward()
        y = mine(own)
        (y * weight.split(sizes[:ranks])[rank]).sum().backward()
        torch.testing.assert_close(own.grad, leaf.grad.split(sizes[:ranks])[rank], rtol=1e-4, atol=1e-5)
    for name, buffer in one.named_buffers():
        torch.testing.assert_close(mine[0].get_buffer(name), buffer)
