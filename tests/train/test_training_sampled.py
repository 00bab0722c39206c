"""Training on samples: what steps take, what is learned, resuming, links, prefetching, options."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse.data import NodeDataset
from gnnsparse.sampling import prefetch
from gnnsparse.train import (
    CheckpointError,
    FitResult,
    OptimizerConfig,
    PreprocessConfig,
    SamplerConfig,
    TrainerConfig,
    fit,
)
from gnnsparse.train.sampled import NodeBatch
from gnnsparse.train.tasks import TASKS, RunOptions
from gnnsparse.train.tasks.node import FullGraphData, NodeClassifier
from models import MODELS
from tests.tasks import toy_task
from tests.train.test_task_link import link_dataset


def sampler_of(**options: Any) -> SamplerConfig:
    return SamplerConfig(**{"name": "neighbor", "fanouts": [5, 5], "batch_size": 16, **options})


def data_of(dataset: NodeDataset, values: str | None, sampler: SamplerConfig | None, **options: Any) -> Any:
    preprocess = PreprocessConfig(cache=False)
    return FullGraphData(dataset, values=values, preprocess=preprocess, sampler=sampler, **options)


def train(
    dataset: NodeDataset,
    name: str,
    epochs: int,
    sampler: SamplerConfig | None,
    folder: Path | None = None,
    device: str = "cpu",
    last: int | None = None,
    **options: Any,
) -> tuple[FitResult, dict[str, Any]]:
    """Trains as train.py does; `last` is the epoch at which a schedule would end."""
    torch.manual_seed(0)
    data = data_of(dataset, MODELS[name].values, sampler, device=device)
    model = MODELS[name].build(
        dataset.num_features, out_channels=dataset.num_classes, hidden_channels=16, dropout=0.3
    )
    optimizer = OptimizerConfig(schedule="cosine")
    module = NodeClassifier(model, dataset, optimizer, (last or epochs) * data.steps_per_epoch)
    config = TrainerConfig(max_epochs=epochs, progress=False, logger="none")
    result = fit(module, data, config, folder=folder, **options)
    return result, {key: tensor.clone() for key, tensor in module.model.state_dict().items()}


def test_an_epoch_takes_every_training_node_once(device: str) -> None:
    dataset = toy_task(200)
    data = data_of(dataset, "mean", sampler_of(), device=device)
    train_nodes = dataset.train_mask.nonzero().flatten()
    assert data.steps_per_epoch == -(-len(train_nodes) // 16)
    assert data.fixed_batch is None
    batches = list(itertools.islice(iter(data.train_dataloader()), data.steps_per_epoch))
    assert all(isinstance(batch, NodeBatch) for batch in batches)
    assert [batch.adj[-1].shape[0] for batch in batches] == [16] * (len(batches) - 1) + [
        len(train_nodes) % 16
    ]
    y = torch.cat([batch.y for batch in batches]).cpu()
    assert torch.equal(y.sort().values, dataset.y[train_nodes].sort().values)
    for batch in batches:
        assert batch.x.shape[0] == batch.adj[0].shape[1]
        # The first sources are the targets: the nodes of the batch, whose classes are y.
        rows = (dataset.x[:, None] == batch.x[None, : len(batch.y)].cpu().float()).all(-1).int().argmax(0)
        assert torch.equal(dataset.y[rows], batch.y.cpu())


@pytest.mark.parametrize("name", ["graphsage", "gcn", "gat", "gin"])
def test_it_learns_what_the_whole_graph_teaches(device: str, name: str) -> None:
    dataset = toy_task(900, classes=4)
    whole, _ = train(dataset, name, 60, None, device=device)
    assert whole.metrics["test"]["accuracy"] > 0.75
    ways = [{}, {"method": "labor"}, {"replace": True}] if name == "graphsage" else [{}]
    for way in ways:
        sampled, _ = train(dataset, name, 12, sampler_of(batch_size=60, **way), device=device)
        # Of 300 nodes: three standard deviations of the difference of two such accuracies are 0.1.
        assert sampled.metrics["test"]["accuracy"] > whole.metrics["test"]["accuracy"] - 0.06
        assert sampled.epochs == 12


def test_a_run_goes_on_with_the_sampler_it_began_with(tmp_path: Path) -> None:
    dataset, task = toy_task(150), TASKS["node"]

    def identity(sampler: SamplerConfig) -> dict[str, Any]:
        return task.identity(RunOptions(torch.device("cpu"), sampler=sampler))

    train(dataset, "gcn", 2, sampler_of(), tmp_path / "run", identity=identity(sampler_of()))
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    for other in (sampler_of(fanouts=[5, 4]), SamplerConfig()):
        with pytest.raises(CheckpointError, match=r"is of a run with sampler=name=neighbor,fanouts=\(5, 5\)"):
            train(dataset, "gcn", 6, other, identity=identity(other), resume=last)
    assert identity(sampler_of(prefetch=0)) == identity(sampler_of())
    assert identity(sampler_of(features="host", cache_share=0.5)) == identity(sampler_of())
    assert task.known_steps(RunOptions(torch.device("cpu"), sampler=sampler_of())) is None
    assert task.known_steps(RunOptions(torch.device("cpu"))) == 1


def test_how_batches_are_made_changes_nothing(device: str, tmp_path: Path) -> None:
    dataset = toy_task(150)
    places = ["device", "host"] if device == "cpu" else ["device", "pinned", "host"]
    samplers = [*(sampler_of(features=place) for place in places), sampler_of(prefetch=0)]
    runs = [train(dataset, "graphsage", 4, sampler, device=device) for sampler in samplers]
    for result, weights in runs:
        assert result.metrics == runs[0][0].metrics
        torch.testing.assert_close(weights, runs[0][1], rtol=0.0, atol=0.0)
    # A run that was begun with features in one place goes on with features in another.
    train(dataset, "graphsage", 2, sampler_of(features=places[-1]), tmp_path, device=device, last=4)
    last = tmp_path / "checkpoints" / "last.ckpt"
    _, resumed = train(dataset, "graphsage", 4, sampler_of(), device=device, resume=last)
    torch.testing.assert_close(resumed, runs[0][1], rtol=0.0, atol=0.0)


def test_the_whole_graph_is_brought_to_the_device_when_it_is_asked_for() -> None:
    dataset = toy_task(60)
    data = data_of(dataset, "mean", sampler_of(features="host"))
    assert data.store is not None
    assert data.store.placement == "host"
    for batch in (data.batch, *data.val_dataloader(), *data.test_dataloader()):
        assert torch.equal(batch.x, dataset.x)
    task = TASKS["node"]
    said = task.describe(data, RunOptions(torch.device("cpu"), sampler=sampler_of(features="host")))
    assert said["features"].endswith("placement: host, as it was asked for")
    assert "features" not in task.describe(data_of(dataset, "mean", None), RunOptions(torch.device("cpu")))


def test_places_and_models_that_do_not_go_with_samples_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^sampler\.features: got 'pinned' on the CPU; accepted: auto, device"
    ):
        data_of(toy_task(60), "mean", sampler_of(features="pinned"))

    def refuse(task: str, name: str, dataset: Any, sampler: SamplerConfig, message: str) -> None:
        uncached = PreprocessConfig(cache=False)
        run = RunOptions(torch.device("cpu"), values="mean", sampler=sampler, preprocess=uncached)
        sizes = TASKS[task].model_sizes(dataset)
        model = MODELS[name].for_task(task).build(sizes[0], out_channels=sizes[1], hidden_channels=4)
        with pytest.raises(ValueError, match=f"^sampler{message}"):
            TASKS[task].make_module(model, TASKS[task].make_data(dataset, run), run)

    links, three = link_dataset(hits_at=5), sampler_of(fanouts=[5, 5, 5])
    refuse("link", "graphsage", links, sampler_of(features="host"), r"\.features: plays no part for links")
    refuse("node", "graphsage", toy_task(60), three, r"\.fanouts: has 3 numbers for a model of 2 layers")
    refuse("node", "gps", toy_task(60), three, ": GPS takes the whole graph alone; accepted: none")
    with pytest.raises(ValueError, match="sampler: got 'neighbor' for a graph task; accepted: none"):
        TASKS["graph"].check(RunOptions(torch.device("cpu"), sampler=three))


def test_prefetch_keeps_the_order_and_stays_few_ahead() -> None:
    made: list[int] = []

    def count() -> Iterator[int]:
        for number in range(20):
            made.append(number)
            yield number
        raise FloatingPointError("the last")

    batches = prefetch(count(), 3)
    for place, number in enumerate(itertools.islice(batches, 20)):
        time.sleep(0.002)
        assert number == place
        assert len(made) <= number + 5  # three that are ready, the one being put, the one in use
    with pytest.raises(FloatingPointError, match="the last"):
        next(batches)
    assert list(prefetch(iter([1, 2]), 0)) == [1, 2]
    assert list(prefetch([], 2)) == []
    for depth, error in ((-1, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="depth: got"):
            prefetch([1], depth)  # type: ignore[arg-type]
    batches = prefetch(itertools.count(), 2)
    assert next(batches) == 0
    batches.close()  # type: ignore[attr-defined]
    assert not any(thread.name == "gnnsparse-prefetch" for thread in threading.enumerate())
