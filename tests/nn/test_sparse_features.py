"""Features whose nonzeros alone are stored: linear layers, dropout, every other operation, and training."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.nn import dropout
from gnnsparse.nn.sparse_features import SparseFeatures
from gnnsparse.testing import assert_accurate, with_gradients
from gnnsparse.train import TrainerConfig
from gnnsparse.train.tasks import TASKS, RunOptions
from models import MODELS
from tests.tasks import classifier, prepared, toy_task, train_toy

NODES, FEATURES = 60, 40
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def features(device: str = "cpu") -> torch.Tensor:
    """Features of which a tenth are not 0, and a node without any."""
    x = torch.randn(NODES, FEATURES) * (torch.rand(NODES, FEATURES) < 0.1)
    x[3] = 0.0
    return x.to(device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_and_its_gradients(device: str, bias: bool) -> None:
    x, linear = features(device), torch.nn.Linear(FEATURES, 24, bias=bias).to(device)
    sparse, weights = SparseFeatures.of(x), list(linear.parameters())
    exact = with_gradients(lambda *w: F.linear(x.double(), *w), [w.double() for w in weights])
    plain, found = (with_gradients(lambda *w, x=x: F.linear(x, *w), weights) for x in (x, sparse))
    for y, of_plain, right in zip(found, plain, exact, strict=True):
        assert_accurate(y, of_plain, right)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("drop", [F.dropout, dropout])
def test_dropout_drops_nonzeros_and_scales_the_others(drop: Any, device: str) -> None:
    x = features(device)
    sparse = SparseFeatures.of(x)
    assert drop(sparse, 0.4, False) is sparse
    assert drop(sparse, 0.0, True) is sparse
    dropped = drop(sparse, 0.4, True)
    dense = dropped + 0
    left = dense != 0
    torch.testing.assert_close(dense[left], x[left] / 0.6)
    assert 0.4 < int(left.sum()) / int((x != 0).sum()) < 0.8
    weight = torch.randn(8, FEATURES, device=device)
    torch.testing.assert_close(F.linear(dropped, weight), F.linear(dense, weight), rtol=1e-4, atol=1e-4)


def test_every_other_operation_takes_the_dense_tensor() -> None:
    x = features()
    sparse = SparseFeatures.of(x)
    assert (sparse.shape, sparse.dtype, sparse.device) == (x.shape, x.dtype, x.device)
    for run in (
        lambda x: x + 1, lambda x: x[2:5], lambda x: x.sum(0), lambda x: torch.cat([x, x], 1),
        lambda x: x @ x.t(), lambda x: F.linear(torch.ones(2, FEATURES), x), lambda x: x.half(),
    ):  # fmt: skip
        found = run(sparse)
        assert type(found) is torch.Tensor
        torch.testing.assert_close(found, run(x), rtol=0.0, atol=0.0)


@pytest.mark.parametrize(
    "name", [name for name, of in MODELS.items() if of.task == "node" and of.edge_features == "none"]
)
def test_models_compute_the_same(name: str) -> None:
    task = replace(toy_task(NODES), x=features())
    data = prepared(task, values=MODELS[name].values, sparse_features="on")
    model = MODELS[name].build(FEATURES, hidden_channels=16, out_channels=3).eval()
    assert data.batch.sparse_x is not None
    x, sparse_x, adj = data.batch.x, data.batch.sparse_x, data.batch.adj
    torch.testing.assert_close(model(sparse_x, adj), model(x, adj), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("choice", "fraction", "kept"),
    [
        ("auto", 0.12, True),
        ("auto", 0.13, False),
        ("auto", 0.0, False),
        ("on", 0.9, True),
        ("off", 0.1, False),
    ],
)  # fmt: skip
def test_when_features_are_sparse(choice: str, fraction: float, kept: bool) -> None:
    x = torch.zeros(NODES, FEATURES)
    x.flatten()[: round(fraction * x.numel())] = 1.0
    data = prepared(replace(toy_task(NODES), x=x), sparse_features=choice)
    assert (data.batch.sparse_x is not None) == kept


@pytest.mark.parametrize("device", DEVICES)
def test_training_multiplies_nonzeros(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without dropout the same is learned; models that do not say that they take them get dense features."""
    task = replace(toy_task(NODES), x=features())
    seen = []
    call = SparseFeatures.__torch_function__
    monkeypatch.setattr(
        SparseFeatures, "__torch_function__",
        classmethod(lambda cls, func, *rest: seen.append(func) or call(func, *rest)),
    )  # fmt: skip
    scores = []
    for choice in ("on", "off"):
        module = classifier(task, options={"dropout": 0.0})
        data = {"sparse_features": choice, "device": device}
        train_toy(task=task, module=module, data=data, capture="off", logger="none")
        assert (F.linear in seen) == (choice == "on")
        scores.append(module.to(device).outputs(prepared(task, **data).batch))  # Lightning has moved it
        seen.clear()
    torch.testing.assert_close(*scores, rtol=1e-3, atol=1e-3)
    monkeypatch.setattr(type(module.model), "takes_sparse_features", False)
    module.outputs(prepared(task, sparse_features="on", device=device).batch)
    assert seen == []


def test_where_they_can_not_be_sparse() -> None:
    def options(**trainer: Any) -> RunOptions:
        return RunOptions("cpu", trainer=TrainerConfig(sparse_features="on", **trainer))

    with pytest.raises(ValueError, match="got 'on' for a graph task; accepted: auto, off"):
        TASKS["graph"].check(options())
    with pytest.raises(ValueError, match="got 'on'; accepted with sampler=neighbor"):
        TASKS["node"].check(options(devices=2))
    with pytest.raises(ValueError, match="Linear does not say that it takes them"):
        TASKS["node"].make_module(torch.nn.Linear(8, 3), prepared(toy_task()), options())
