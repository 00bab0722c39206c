"""The task "node": its one batch, numbers and several labels, missing ones; and in a user's own Trainer."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import lightning.pytorch as pl
import pytest
import torch

from gnnsparse.data import NodeDataset
from gnnsparse.inference import Prediction, load
from gnnsparse.ops.dense import has_padded_rows
from gnnsparse.testing import assert_accurate
from gnnsparse.train import FullGraphData, NodeClassifier, OptimizerConfig, PreprocessConfig
from gnnsparse.train.tasks import TASKS, node
from gnnsparse.train.tasks.graph import GraphData, GraphPredictor
from gnnsparse.train.trained import ModelRecipe
from models import MODELS
from tests.helpers import PRECISIONS, dense_matrix, plain_product
from tests.tasks import classifier, prepared, rows_of, toy_task, train_toy
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


def test_features_have_16_bits_on_a_gpu_alone(device: str) -> None:
    for precision in PRECISIONS:
        data = prepared(toy_task(), precision=precision, device=device)
        assert data.batch.adj.precision == precision
        assert data.batch.x.dtype == (data.precision.storage if device == "cuda" else torch.float32)


@pytest.mark.parametrize("name", ["gcn", "graphsage", "gin", "gat"])
def test_features_have_whole_rows_where_a_gpu_multiplies(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    task = toy_task()
    task = replace(task, x=torch.cat([task.x, task.x[:, :1]], dim=1))
    values = MODELS[name].values
    plain = prepared(task, values=values).batch
    monkeypatch.setattr(node, "path", lambda: mock.Mock(takes=lambda device: True))
    batch = prepared(task, values=values).batch
    assert has_padded_rows(batch.x)
    assert torch.equal(batch.x, plain.x)
    torch.manual_seed(0)
    model = (
        MODELS[name].build(task.num_features, hidden_channels=16, out_channels=3).eval()
    )  # dropout would draw anew
    losses = [torch.nn.functional.cross_entropy(model(of.x, plain.adj), task.y) for of in (plain, batch)]
    found, right = (torch.autograd.grad(loss, [*model.parameters()]) for loss in losses)
    torch.testing.assert_close(found, right)


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


# Numbers to predict, several labels, and labels that are missing.


def regression(columns: int = 1, metric: str = "mae") -> NodeDataset:
    """The target of a node is a linear function of its own features, and of noise."""
    base = toy_task(nodes=200)
    weights = torch.randn(base.num_features, columns, generator=torch.Generator().manual_seed(1))
    y = base.x @ weights / 4
    return replace(base, y=y[:, 0] if columns == 1 else y, num_classes=columns, metric=metric)


def made(dataset: NodeDataset, epochs: int, lr: float = 0.02) -> NodeClassifier:
    return classifier(dataset, epochs, options={"dropout": 0.0}, lr=lr, weight_decay=0.0)


def train(dataset: NodeDataset, epochs: int = 120, **more: Any) -> tuple[Any, NodeClassifier]:
    folder = more.pop("folder", None)
    return train_toy(folder, dataset, epochs, module=made(dataset, epochs), given=more, logger="none")


@pytest.mark.parametrize(("metric", "columns"), [("mae", 1), ("r2", 3)])
def test_numbers_are_learned(metric: str, columns: int) -> None:
    dataset = regression(columns, metric)
    before, _ = train(dataset, epochs=1)
    result, module = train(dataset)
    assert list(result.metrics["test"]) == list(module._scores)
    assert module.score_name == metric
    assert module.smaller_is_better == (metric == "mae")
    if metric == "mae":
        assert result.metrics["val"]["mae"] < 0.9 * before.metrics["val"]["mae"]
    else:
        assert result.metrics["val"]["r2"] > 0.15 > before.metrics["val"]["r2"]


def test_the_best_epoch_has_the_smallest_error() -> None:
    dataset, rows = regression(), []
    result, _ = train_toy(task=dataset, epochs=30, module=made(dataset, 30, lr=0.5), given={"curves": rows})
    errors = [row["val/mae"] for _, row in rows]
    assert result.best_epoch == 1 + errors.index(min(errors))
    assert result.metrics["val"]["mae"] == pytest.approx(min(errors), rel=1e-6)


def test_missing_targets_change_nothing_but_their_count() -> None:
    """A run with missing targets is the run whose masks leave these nodes out."""
    base = toy_task()
    gone = torch.rand(base.num_nodes, generator=torch.Generator().manual_seed(2)) < 0.3
    masks = {name: getattr(base, name) & ~gone for name in ("train_mask", "val_mask", "test_mask")}
    with_gaps = replace(base, y=torch.where(gone, -1, base.y))
    found, _ = train(with_gaps, epochs=20)
    want, _ = train(replace(base, **masks), epochs=20)
    assert found.metrics == want.metrics


def test_several_labels_with_gaps() -> None:
    base = toy_task(classes=4, metric="micro_f1")
    y = base.y.clone()
    y[torch.rand(y.shape, generator=torch.Generator().manual_seed(3)) < 0.3] = torch.nan
    result, module = train(replace(base, y=y, metric="mean_roc_auc"), epochs=60)
    assert set(result.metrics["test"]) == {"mean_roc_auc", "micro_f1", "macro_f1"}
    assert result.metrics["test"]["mean_roc_auc"] > 0.6
    assert module.confusion is None


def test_predictions_of_numbers(tmp_path: Path) -> None:
    dataset = regression(2)
    recipe = ModelRecipe(
        "models:MODELS", "gcn", {"hidden_channels": 16, "dropout": 0.0}, dataset.num_features, 2,
        values="gcn", regression=True,
    )  # fmt: skip
    result, _ = train(dataset, epochs=10, folder=tmp_path / "run", recipe=recipe)
    model = load(tmp_path / "run", device="cpu")
    arrays, scores = TASKS["node"].predict(model, prepared(dataset))
    assert set(arrays) == {"nodes", "values"}
    assert arrays["values"].shape == (dataset.num_nodes, 2)
    assert scores["test"]["mae"] == pytest.approx(result.metrics["test"]["mae"], rel=1e-5)
    for name in ("classes", "probabilities"):
        with pytest.raises(ValueError, match=rf"{name}: the model predicts numbers; accepted: \.values"):
            getattr(model.predict(dataset.x, dataset.graph), name)
    with pytest.raises(ValueError, match="values: the model predicts classes"):
        _ = Prediction(torch.zeros(1, 2)).values


@pytest.mark.parametrize(
    ("y", "metric", "message"),
    [
        (torch.full((60,), torch.inf), "mae", "y: holds an infinite number"),
        (torch.zeros(60, 2), "mae", r"y: has shape \(60, 2\); accepted: \(60,\) or \(60, 1\)"),
        (torch.full((60, 1), 0.5), "micro_f1", "y: holds other numbers than 0 and 1; .*metric='mae'"),
        (torch.full((60,), -2), "accuracy", "y: holds classes -2 to -2; accepted: 0 to 0, and -1"),
    ],
)
def test_targets_that_are_refused(y: torch.Tensor, metric: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(toy_task(), y=y, num_classes=1, metric=metric)


# In a Trainer of the user's own, which counts epochs and not steps.


EPOCHS = 5


def own_trainer(folder: Path) -> pl.Trainer:
    return pl.Trainer(
        max_epochs=EPOCHS, accelerator="cpu", logger=pl.loggers.CSVLogger(folder / "logs", "csv"),
        log_every_n_steps=1, enable_progress_bar=False, enable_model_summary=False,
        enable_checkpointing=False,
    )  # fmt: skip


def column(folder: Path, name: str) -> list[float]:
    return [float(row[name]) for row in rows_of(folder) if row[name]]


@pytest.mark.filterwarnings("ignore:.*")
def test_an_epoch_is_one_step_on_a_graph_and_a_pass_over_all_graphs(tmp_path: Path) -> None:
    """Losses and scores are logged, and are those of `fit`."""
    task = toy_task()
    data = prepared(task)
    trainer, mine = own_trainer(tmp_path / "node"), classifier(task, EPOCHS)
    trainer.fit(mine, data)
    assert (trainer.current_epoch, trainer.global_step) == (EPOCHS, EPOCHS)
    curves: list[tuple[int, dict[str, float]]] = []
    train_toy(task=task, epochs=EPOCHS, given={"curves": curves})
    for name in ("train/loss", "val/accuracy"):
        logged = column(tmp_path / "node", name)
        assert logged == pytest.approx([row[name] for _, row in curves], abs=0)
    (scores,) = trainer.test(mine, data, verbose=False)
    assert set(scores) == {
        f"{part}/{name}" for part in ("train", "val", "test") for name in ("accuracy", "macro_f1")
    }
    dataset = graph_dataset()
    graphs = GraphData(dataset, batch_size=8)
    entry = MODELS["gin"].for_task("graph")
    model = entry.build(dataset.num_features, hidden_channels=8, out_channels=dataset.num_classes)
    optimizer = OptimizerConfig(weight_decay=0.0, decay="all")
    trainer = own_trainer(tmp_path / "graph")
    trainer.fit(GraphPredictor(model, dataset, optimizer, EPOCHS * graphs.steps_per_epoch), graphs)
    assert (trainer.current_epoch, trainer.global_step) == (EPOCHS, 3 * EPOCHS)
    assert len(column(tmp_path / "graph", "train/loss")) == 3 * EPOCHS
    assert len(column(tmp_path / "graph", "val/accuracy")) == EPOCHS
