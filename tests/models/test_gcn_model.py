"""models.GCN: depth, norms, residuals, dropout, and the decayed layer."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.testing import assert_accurate, in_float64
from models import GCN, MODELS
from tests.helpers import dense_matrix

NODES = 20
EDGES = torch.randint(0, NODES, (2, 60), generator=torch.Generator().manual_seed(0))


def operand() -> gnnsparse.SparseOperand:
    return gnnsparse.prepare(EDGES, num_nodes=NODES, values="gcn", cache=False)


@pytest.mark.parametrize(
    ("layers", "norm", "residual"),
    list(itertools.product((1, 2, 4), ("none", "batch", "layer"), (False, True))),
)
def test_shapes_and_gradients(layers: int, norm: str, residual: bool) -> None:
    model = GCN(6, 8, 3, num_layers=layers, norm=norm, residual=residual)
    y = model(torch.randn(NODES, 6), operand())
    y.square().sum().backward()
    assert y.shape == (NODES, 3)
    assert len(model.convs) == layers
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())


def test_two_layers_are_kipf_and_wellings() -> None:
    model, a, x = GCN(6, 8, 3).eval(), operand(), torch.randn(NODES, 6)
    first, second = model.convs
    matrix = dense_matrix(gnnsparse.SparseGraph.from_edge_index(EDGES, NODES), "gcn")

    def formula(x: torch.Tensor) -> torch.Tensor:
        hidden = (matrix.to(x) @ first.lin(x) + first.bias).relu()
        return matrix.to(x) @ second.lin(hidden) + second.bias

    got, plain = model(x, a), formula(x)
    with in_float64(model):
        assert_accurate(got, plain, formula(x.double()))


def test_residual_adds_the_input_of_hidden_layers() -> None:
    model, a, x = GCN(6, 8, 3, num_layers=3, residual=True).eval(), operand(), torch.randn(NODES, 6)
    first, second, third = model.convs
    hidden = first(x, a).relu()
    assert torch.equal(model(x, a), third(second(hidden, a).relu() + hidden, a))


def test_dropout_acts_on_the_input_of_each_layer_in_training_alone() -> None:
    model, a, x = GCN(6, 8, 3, dropout=0.5), operand(), torch.randn(NODES, 6)
    seen: list[torch.Tensor] = []
    for conv in model.convs:
        conv.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(x, a)
    assert 0.3 < float((seen[0] == 0).float().mean()) < 0.7
    assert not torch.equal(model(x, a), model(x, a))
    model.eval()
    seen.clear()
    assert torch.equal(model(x, a), model(x, a))
    assert torch.equal(seen[0], x)


def test_first_layer() -> None:
    model = GCN(6, 8, 3)
    assert model.first_layer is model.convs[0]


def test_registry_builds() -> None:
    model = MODELS["gcn"].build(6, out_channels=3, hidden_channels=8)
    assert isinstance(model, GCN)
    assert MODELS["gcn"].values == "gcn"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dropout": 1.0}, "dropout: got 1.0; accepted: a number in [0, 1)"),
        ({"num_layers": 0}, "num_layers: got 0; accepted: a positive integer"),
        ({"hidden_channels": "8"}, "hidden_channels: got str; accepted: a positive integer"),
        ({"norm": "group"}, "norm: got 'group'; accepted: none, batch, layer"),
        ({"residual": 1}, "residual: got int; accepted: True or False"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        GCN(**{"in_channels": 6, "hidden_channels": 8, "out_channels": 3, **options})
