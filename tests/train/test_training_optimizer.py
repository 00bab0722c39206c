"""The optimizer of a training: what weight decay acts on, and the schedule of the learning rate."""

from __future__ import annotations

import itertools
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from gnnsparse.train import (
    NodeClassifier,
    OptimizerConfig,
    TrainerConfig,
    fit,
)
from gnnsparse.train.callbacks import BestEpoch
from tests.tasks import toy_task
from tests.train.test_training_fit import classifier, prepared


def test_weight_decay_of_the_first_layer() -> None:
    module = classifier(toy_task(), 5, weight_decay=0.25)
    first, rest = module.configure_optimizers().param_groups
    assert (first["weight_decay"], rest["weight_decay"]) == (0.25, 0.0)
    assert {id(p) for p in first["params"]} == {id(p) for p in module.model.convs[0].parameters()}
    assert {id(p) for p in rest["params"]} == {id(p) for p in module.model.convs[1].parameters()}


def test_weight_decay_of_all() -> None:
    module = classifier(toy_task(), 5, decay="all")
    (group,) = module.configure_optimizers().param_groups
    assert group["weight_decay"] == 5e-4
    assert len(group["params"]) == 4


def test_a_model_without_a_first_layer() -> None:
    with pytest.raises(ValueError, match=r"optimizer\.decay: 'first' needs a model with first_layer"):
        NodeClassifier(torch.nn.Linear(2, 2), toy_task(), OptimizerConfig(), 5)
    NodeClassifier(torch.nn.Linear(2, 2), toy_task(), OptimizerConfig(decay="all"), 5)


def test_cosine_goes_from_lr_to_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    rates: list[float] = []

    def note(self: Any, trainer: pl.Trainer, *_: Any) -> None:
        rates.append(trainer.optimizers[0].param_groups[0]["lr"])

    monkeypatch.setattr(BestEpoch, "on_train_batch_start", note, raising=False)
    task = toy_task()
    module = classifier(task, 10, schedule="cosine", lr=0.1)
    fit(module, prepared(task), TrainerConfig(max_epochs=10, progress=False))
    assert rates[0] == pytest.approx(0.1)
    assert rates[5] == pytest.approx(0.05)
    assert all(later < earlier for earlier, later in itertools.pairwise(rates))
    assert rates[-1] == pytest.approx(0.1 * 0.5 * (1 + torch.cos(torch.tensor(torch.pi * 0.9)).item()))
