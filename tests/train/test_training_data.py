"""FullGraphData: one batch, prepared once, on the device once; and our modules in a user's own Trainer."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from gnnsparse.testing import assert_accurate
from gnnsparse.train import FullGraphData, OptimizerConfig, PreprocessConfig
from gnnsparse.train.tasks.graph import GraphData, GraphPredictor
from models import MODELS
from tests.helpers import PRECISIONS, dense_matrix, plain_product
from tests.tasks import classifier, prepared, toy_task, train_toy
from tests.tu_files import graph_dataset


def test_the_batch_is_the_data_set(device: str) -> None:
    task = toy_task()
    batch = prepared(task, device=device).batch
    masks = {"train": task.train_mask, "val": task.val_mask, "test": task.test_mask}
    assert torch.equal(batch.x.cpu(), task.x)
    for name, part in batch.parts.items():
        assert torch.equal(part.nodes.cpu(), masks[name].nonzero().flatten())
        assert torch.equal(part.y.cpu(), task.y[masks[name]])
        assert part.nodes.device.type == device
    x = torch.randn(task.num_nodes, 5, device=device)
    dense = dense_matrix(task.graph, "gcn")
    assert_accurate(batch.adj @ x, plain_product(dense, x.cpu(), "fp32"), dense @ x.double().cpu())


@pytest.mark.parametrize("precision", PRECISIONS)
def test_precision(device: str, precision: str) -> None:
    """Features in 16 bits on a GPU alone: the CPU's dense layers stay float32."""
    data = prepared(toy_task(), precision=precision, device=device)
    assert data.batch.adj.precision == precision
    want = data.precision.storage if device == "cuda" else torch.float32
    assert data.batch.x.dtype == want


def test_the_second_time_comes_from_the_cache_wherever_it_is(own_cache: Path, tmp_path: Path) -> None:
    for folder, cache in ((tmp_path / "elsewhere", str(tmp_path / "elsewhere")), (own_cache, True)):
        FullGraphData(toy_task(), preprocess=PreprocessConfig(cache=False))
        assert not own_cache.exists()
        options = PreprocessConfig(cache=cache)
        first, second = (FullGraphData(toy_task(), precision=p, preprocess=options) for p in ("fp32", "fp16"))
        assert (first.cache_hit, second.cache_hit) == (False, True)
        assert first.preprocess_seconds > 0
        assert len(list(folder.glob("*.safetensors"))) == 1


@pytest.mark.parametrize(
    "options",
    [{"reorder": "degree"}, {"reorder": "rcm"}, {"format": "hrpb"}, {"format": "hrpb", "balance": "wave"}],
    ids=str,
)
def test_preprocessing_does_not_change_results(options: dict[str, str]) -> None:
    task, x = toy_task(), torch.randn(60, 4)
    precision = "tf32" if "format" in options else "fp32"  # that of cuTeSpMM's paper
    data = FullGraphData(task, precision=precision, preprocess=PreprocessConfig(cache=False, **options))
    stats = data.batch.adj.stats()
    assert options.get("format", "csr") == stats["format"]
    assert options.get("balance", "auto") == stats["balance"]
    assert options.get("reorder", "none") == stats["reorder"]["method"]
    dense = dense_matrix(task.graph, "gcn")
    assert_accurate(data.batch.adj @ x, plain_product(dense, x, precision), dense @ x.double())


def test_loaders_hand_out_the_batch_itself() -> None:
    data = prepared(toy_task())
    batch = data.batch
    assert all(item is batch for item in itertools.islice(data.train_dataloader(), 50))
    for loader in (data.val_dataloader(), data.test_dataloader()):
        assert [item is batch for item in loader] == [True]
    assert data.transfer_batch_to_device(batch, torch.device("cpu"), 0) is batch
    with pytest.raises(ValueError, match="device: the trainer runs on meta, the data was put on cpu"):
        data.transfer_batch_to_device(data.batch, torch.device("meta"), 0)


# In a Trainer of the user's own, which counts epochs and not steps.


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
