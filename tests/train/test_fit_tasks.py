"""`gnnsparse.fit` with the data sets of every task: it takes the steps that train.py takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import gnnsparse
from gnnsparse.inference import load
from gnnsparse.train import CheckpointError, OptimizerConfig, SamplerConfig, TrainerConfig
from gnnsparse.train import fit as train
from gnnsparse.train.tasks import TASKS, RunOptions
from models import GCN, MODELS
from tests.tasks import toy_sequences, toy_task
from tests.together import in_two_processes
from tests.train.test_task_link import link_dataset
from tests.tu_files import graph_dataset

PATTERN = {"name": "window", "radius": 3}
CASES: dict[str, tuple[Any, str, dict[str, Any]]] = {
    "graph": (graph_dataset, "gin", {}),
    "link": (link_dataset, "gcn", {}),
    "sequence": (toy_sequences, "transformer", {"pattern": PATTERN}),
}


def model_for(task: str, name: str, dataset: Any) -> torch.nn.Module:
    torch.manual_seed(1)
    sizes = TASKS[task].model_sizes(dataset)
    model: torch.nn.Module = (
        MODELS[name].for_task(task).build(sizes[0], hidden_channels=8, out_channels=sizes[1])
    )
    return model


@pytest.mark.parametrize("name", CASES)
def test_every_task(name: str, tmp_path: Path) -> None:
    make, model_name, options = CASES[name]
    dataset, task = make(), TASKS[name]
    model = model_for(name, model_name, dataset)
    result = gnnsparse.fit(
        model, dataset, epochs=2, batch_size=16, device="cpu", seed=5, folder=tmp_path / "run", **options
    )
    other = model_for(name, model_name, dataset)
    run = RunOptions(
        torch.device("cpu"),
        seed=5,
        values=load(tmp_path / "run", device="cpu").recipe.values,
        trainer=TrainerConfig(max_epochs=2, batch_size=16, progress=False),
        optimizer=OptimizerConfig(decay="all"),
        groups=options,
    )
    torch.manual_seed(5)
    data = task.make_data(dataset, run)
    expected = train(task.make_module(other, data, run), data, run.trainer)
    assert result.metrics == expected.metrics
    assert [row["epoch"] for row in result.history] == [1.0, 2.0]
    loaded = load(tmp_path / "run", device="cpu")
    assert loaded.recipe.task == name
    torch.testing.assert_close(loaded.module.state_dict(), other.state_dict(), rtol=0.0, atol=0.0)
    with pytest.raises(ValueError, match=r"data: are no nodes of a graph; accepted: gnnsparse\.load"):
        result.predict()


@pytest.mark.parametrize("name", [*CASES, "node"])
def test_resumed_as_uninterrupted(name: str, tmp_path: Path) -> None:
    """With the batches, the samples and the dropped numbers of a run that was not interrupted."""
    sampler = SamplerConfig("neighbor", fanouts=(5, 5), batch_size=16)
    own = {**CASES, "node": (lambda: toy_task(150), "gcn", {"sampler": sampler})}
    make, model_name, options = own[name]
    dataset = make()

    def run(epochs: int, folder: str, resume: Path | None = None) -> tuple[Any, dict[str, torch.Tensor]]:
        model = model_for(name, model_name, dataset)
        result = gnnsparse.fit(
            model, dataset, epochs=epochs, batch_size=16, device="cpu", folder=tmp_path / folder,
            resume=resume, **options,
        )  # fmt: skip
        return result, model.state_dict()

    whole, weights = run(5, "whole")
    run(2, "first")
    rest, resumed = run(5, "second", tmp_path / "first" / "checkpoints" / "last.ckpt")
    assert (rest.epochs, rest.best_epoch, rest.metrics) == (5, whole.best_epoch, whole.metrics)
    assert rest.history == whole.history[2:]
    torch.testing.assert_close(resumed, weights, rtol=0.0, atol=0.0)
    with pytest.raises(CheckpointError, match=r"trainer.max_epochs: got 1; accepted: at least 2"):
        run(1, "third", tmp_path / "first" / "checkpoints" / "last.ckpt")


def test_a_row_of_the_history_is_an_epoch() -> None:
    dataset = toy_sequences()
    result = gnnsparse.fit(
        model_for("sequence", "transformer", dataset), dataset, epochs=3, val_every=2, batch_size=20,
        device="cpu", pattern=PATTERN,
    )  # fmt: skip
    assert ["val/loss" in row for row in result.history] == [False, True, True]
    assert all(row["train/loss"] > 0 for row in result.history)


def test_what_goes_with_nodes_alone() -> None:
    for name, options, message in (
        ("graph", {"inputs": "none"}, "inputs: got 'none' for a graph task; accepted: auto, operand"),
        ("sequence", {}, "pattern: got nothing; accepted: "),
        ("graph", {"split": "random"}, "split: got 'random' for a GraphDataset, which has its split"),
    ):
        make, model_name, _ = CASES[name]
        dataset = make()
        with pytest.raises(ValueError, match=message):
            gnnsparse.fit(model_for(name, model_name, dataset), dataset, device="cpu", **options)


def test_samples_of_neighbours() -> None:
    """That they are drawn anew alike, and what `predict` says of all nodes."""
    dataset, sampler = toy_task(), SamplerConfig("neighbor", fanouts=(3, 3), batch_size=8)
    losses = []
    for _ in range(2):
        model = model_for("node", "gcn", dataset)
        result = gnnsparse.fit(model, dataset, epochs=3, sampler=sampler, device="cpu", seed=2)
        losses.append([row["train/loss"] for row in result.history])
        assert result.predict().logits.shape == (60, 3)
    assert losses[0] == losses[1]
    with pytest.raises(ValueError, match="sampler: Linear takes the whole graph alone; accepted: none"):
        gnnsparse.fit(torch.nn.Linear(8, 3), dataset.without_weights(), sampler=sampler, device="cpu")


def _fit_together(rank: int, folder: str) -> None:
    torch.manual_seed(0)
    own = Path(folder) / "run" if rank == 0 else None
    model, group = GCN(8, 8, 3, dropout=0.0), dist.group.WORLD
    result = gnnsparse.fit(model, toy_task(), epochs=4, device="cpu", group=group, folder=own)
    found = {"metrics": result.metrics, "logits": result.predict().logits, "history": result.history}
    torch.save(found, Path(folder) / f"result{rank}")


@pytest.mark.slow
def test_two_processes_train_one_model(tmp_path: Path) -> None:
    in_two_processes(_fit_together, str(tmp_path))
    first, second = (torch.load(tmp_path / f"result{rank}", weights_only=True) for rank in range(2))
    assert first["metrics"] == second["metrics"]
    assert torch.equal(first["logits"], second["logits"])
    torch.manual_seed(0)
    alone = gnnsparse.fit(GCN(8, 8, 3, dropout=0.0), toy_task(), epochs=4, device="cpu")
    for row, expected in zip(first["history"], alone.history, strict=True):
        assert row["train/loss"] == pytest.approx(expected["train/loss"], rel=1e-5)
    assert load(tmp_path / "run", device="cpu").recipe.name == "gcn"
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/alone", rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="group: goes with models that take an operand"):
            gnnsparse.fit(
                torch.nn.Linear(8, 3), toy_task().without_weights(), device="cpu", group=dist.group.WORLD
            )
    finally:
        dist.destroy_process_group()
