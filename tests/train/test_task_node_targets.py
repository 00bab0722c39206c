"""The task "node" with numbers to predict, several labels, and labels that are missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse.data import NodeDataset
from gnnsparse.inference import Prediction, load
from gnnsparse.train import NodeClassifier
from gnnsparse.train.tasks import TASKS
from gnnsparse.train.trained import ModelRecipe
from tests.tasks import classifier, prepared, toy_task, train_toy


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


@pytest.mark.parametrize("columns", [1, 3])
@pytest.mark.parametrize("metric", ["mae", "r2"])
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
    assert set(result.metrics["test"]) == {"mean_roc_auc", "micro_f1"}
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
