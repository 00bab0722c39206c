"""models.GAT, GATv2, GraphSAGE and GIN: what they compute, training, options, configurations."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
import train
from gnnsparse.train import (
    FullGraphData,
    NodeClassifier,
    OptimizerConfig,
    PreprocessConfig,
    TrainerConfig,
    fit,
)
from models import GAT, GIN, MODELS, GATv2, GraphSAGE
from tests.configs import composed
from tests.tasks import toy_task

NODES = 20
KINDS: dict[str, Any] = {"gat": GAT, "gatv2": GATv2, "graphsage": GraphSAGE, "gin": GIN}


def graph(values: str | None) -> gnnsparse.SparseOperand:
    index = torch.randint(0, NODES, (2, 60), generator=torch.Generator().manual_seed(0))
    return gnnsparse.prepare(index, num_nodes=NODES, values=values, cache=False)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("layers", "norm", "residual"),
    list(itertools.product((1, 3), ("none", "batch", "layer"), (False, True))),
)
def test_shapes_and_gradients(name: str, layers: int, norm: str, residual: bool) -> None:
    model = KINDS[name](6, 8, 3, num_layers=layers, norm=norm, residual=residual)
    y = model(torch.randn(NODES, 6), graph(MODELS[name].values))
    y.square().sum().backward()
    assert y.shape == (NODES, 3)
    assert len(model.convs) == layers
    assert model.first_layer is model.convs[0]
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())


@pytest.mark.parametrize("name", KINDS)
def test_an_edge_index_gives_the_same_as_its_operand(name: str) -> None:
    """Without repeats and self-loops, which attention layers replace."""
    index = torch.randint(0, NODES, (2, 60)).unique(dim=1)
    index = index[:, index[0] != index[1]]
    a = gnnsparse.prepare(index, num_nodes=NODES, values=MODELS[name].values, cache=False)
    model, x = KINDS[name](6, 8, 3).eval(), torch.randn(NODES, 6)
    assert torch.equal(model(x, a), model(x, index))


@pytest.mark.parametrize("name", KINDS)
def test_dropout_in_training_alone(name: str) -> None:
    model, a, x = KINDS[name](6, 8, 3), graph(MODELS[name].values), torch.randn(NODES, 6)
    assert not torch.equal(model(x, a), model(x, a))
    model.eval()
    assert torch.equal(model(x, a), model(x, a))


@pytest.mark.parametrize("kind", [GAT, GATv2])
def test_two_layers_are_velickovics(kind: Any) -> None:
    """8 heads of 8 features, ELU, and the mean of the last layer's heads."""
    model, a, x = kind(6, 64, 3, out_heads=2).eval(), graph("gcn"), torch.randn(NODES, 6)
    first, second = model.convs
    assert (first.heads, first.out_channels, first.concat, first.dropout) == (8, 8, True, 0.6)
    assert (second.heads, second.out_channels, second.concat) == (2, 3, False)
    assert torch.equal(model(x, a), second(F.elu(first(x, a)), a))


@pytest.mark.parametrize("name", ["gat", "gatv2", "graphsage"])
def test_residual_adds_the_input_of_hidden_layers(name: str) -> None:
    model = KINDS[name](6, 8, 3, num_layers=3, residual=True).eval()
    a, x = graph(MODELS[name].values), torch.randn(NODES, 6)
    first, second, third = model.convs
    act = F.relu if name == "graphsage" else F.elu
    hidden = act(first(x, a))
    assert torch.equal(model(x, a), third(act(second(hidden, a)) + hidden, a))


def test_gin_classifies_the_sums() -> None:
    model, a, x = GIN(6, 8, 3, residual=True, train_eps=True).eval(), graph(None), torch.randn(NODES, 6)
    first, second = model.convs
    hidden = first(x, a)
    assert torch.equal(model(x, a), model.lin(second(hidden, a) + hidden))
    assert [name for name, _ in model.named_parameters() if "eps" in name] == ["convs.0.eps", "convs.1.eps"]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_small_task_is_learned(name: str, precision: str) -> None:
    task = toy_task()
    torch.manual_seed(0)
    model = KINDS[name](task.num_features, 16, task.num_classes, dropout=0.2)
    data = FullGraphData(
        task, values=MODELS[name].values, precision=precision, preprocess=PreprocessConfig(cache=False)
    )
    module = NodeClassifier(model, task, OptimizerConfig(lr=0.01), 30)
    before = module.training_step(data.batch).item()
    result = fit(module, data, TrainerConfig(max_epochs=30, progress=False))
    assert module.training_step(data.batch).item() < 0.7 * before
    assert result.metrics["test"]["accuracy"] > 0.6  # chance is a third


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("dataset", ["cora", "citeseer", "pubmed", "amazon_photo", "tolokers"])
def test_configurations_compose(name: str, dataset: str) -> None:
    cfg = composed(f"model={name}", f"dataset={dataset}")
    settings = train.read_settings(cfg)
    model = train.build_model(cfg, 10, 3)
    assert type(model) is KINDS[name]
    assert settings.values == MODELS[name].values
    assert set(train.options_of(cfg.model)) == set(MODELS[name].options)
    if name in ("gat", "gatv2") and dataset == "cora":
        assert (model.convs[0].heads, model.convs[0].out_channels, model.dropout) == (8, 8, 0.6)
        assert (settings.optimizer.lr, settings.optimizer.decay) == (0.005, "all")


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (GAT, {"heads": 3}, "heads: got 3; accepted: a divisor of hidden_channels, 8"),
        (GATv2, {"out_heads": 0}, "out_heads: got 0"),
        (GAT, {"dropout": 1.0}, "dropout: got 1.0; accepted: a number in [0, 1)"),
        (GAT, {"residual": 1}, "residual: got int"),
        (GraphSAGE, {"num_layers": 0}, "num_layers: got 0"),
        (GraphSAGE, {"norm": "group"}, "norm: got 'group'; accepted: none, batch, layer"),
        (GIN, {"hidden_channels": 0}, "hidden_channels: got 0"),
        (GIN, {"train_eps": 1}, "train_eps: got int"),
    ],
)
def test_bad_options(kind: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        kind(**{"in_channels": 6, "hidden_channels": 8, "out_channels": 3, **options})
