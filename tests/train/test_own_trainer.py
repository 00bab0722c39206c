"""Our Lightning modules and data in a Trainer of the user's own, which counts epochs and not steps."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest

from gnnsparse.train import OptimizerConfig
from gnnsparse.train.tasks.graph import GraphData, GraphPredictor
from models import MODELS
from tests.tasks import classifier, prepared, toy_task, train_toy
from tests.tu_files import graph_dataset

EPOCHS = 5


def own_trainer(folder: Path, **options: Any) -> pl.Trainer:
    return pl.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=pl.loggers.CSVLogger(folder), log_every_n_steps=1,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False, **options,
    )  # fmt: skip


def column(folder: Path, name: str) -> list[float]:
    (file,) = folder.rglob("metrics.csv")
    with file.open(newline="") as lines:
        return [float(row[name]) for row in csv.DictReader(lines) if row[name]]


@pytest.mark.filterwarnings("ignore:.*")
def test_an_epoch_is_one_step_on_a_graph(tmp_path: Path) -> None:
    """Losses and scores are logged, and are those of `fit`."""
    task = toy_task()
    data = prepared(task)
    trainer, mine = own_trainer(tmp_path), classifier(task, EPOCHS)
    trainer.fit(mine, data)
    assert (trainer.current_epoch, trainer.global_step) == (EPOCHS, EPOCHS)
    curves: list[tuple[int, dict[str, float]]] = []
    train_toy(task=task, epochs=EPOCHS, given={"curves": curves})
    for name in ("train/loss", "val/accuracy"):
        assert column(tmp_path, name) == pytest.approx([row[name] for _, row in curves], abs=0)
    (scores,) = trainer.test(mine, data, verbose=False)
    assert set(scores) == {"train/accuracy", "val/accuracy", "test/accuracy"}


@pytest.mark.filterwarnings("ignore:.*")
def test_an_epoch_is_a_pass_over_all_graphs(tmp_path: Path) -> None:
    dataset = graph_dataset()
    data = GraphData(dataset, batch_size=8)
    entry = MODELS["gin"].for_task("graph")
    model = entry.build(dataset.num_features, hidden_channels=8, out_channels=dataset.num_classes)
    optimizer = OptimizerConfig(weight_decay=0.0, decay="all")
    module = GraphPredictor(model, dataset, optimizer, EPOCHS * data.steps_per_epoch)
    trainer = own_trainer(tmp_path)
    trainer.fit(module, data)
    assert data.steps_per_epoch == 3
    assert (trainer.current_epoch, trainer.global_step) == (EPOCHS, 3 * EPOCHS)
    assert len(column(tmp_path, "train/loss")) == 3 * EPOCHS
    assert len(column(tmp_path, "val/accuracy")) == EPOCHS
