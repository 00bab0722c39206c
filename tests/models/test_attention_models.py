"""models.AGNN, GraphTransformer and Transformer: what they compute, dropout, options."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import masks
from gnnsparse.testing import assert_accurate, in_float64, measure_errors
from models import AGNN, MODELS, GraphTransformer, Transformer
from models.transformer import sinusoids
from tests.helpers import reference_layers

NODES, LENGTH = 20, 14


def graph(values: str | None = "gcn") -> gnnsparse.SparseOperand:
    index = torch.randint(0, NODES, (2, 60), generator=torch.Generator().manual_seed(0))
    return gnnsparse.prepare(index, num_nodes=NODES, values=values, cache=False)


def pattern(radius: int = 3) -> gnnsparse.SparseOperand:
    return gnnsparse.prepare(masks.window(LENGTH, radius), cache=False)


@pytest.mark.parametrize("kind", [AGNN, GraphTransformer])
@pytest.mark.parametrize(
    ("layers", "norm", "residual"),
    list(itertools.product((1, 3), ("none", "batch", "layer"), (False, True))),
)
def test_shapes_and_gradients(kind: type[Any], layers: int, norm: str, residual: bool) -> None:
    model = kind(6, 8, 3, num_layers=layers, norm=norm, residual=residual)
    y = model(torch.randn(NODES, 6), graph())
    y.square().sum().backward()
    assert y.shape == (NODES, 3)
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())
    assert model.first_layer is model.lin1


def test_the_agnn_is_thekumparampils() -> None:
    model, a, x = AGNN(6, 8, 3).eval(), graph(), torch.randn(NODES, 6)
    first, second = model.convs
    assert [name for name, _ in first.named_parameters()] == []
    assert [name for name, _ in second.named_parameters()] == ["beta"]
    with torch.no_grad():
        second.beta.fill_(2.5)
    linked = torch.zeros(NODES, NODES, dtype=torch.bool)
    linked[tuple(a.indices())] = True

    def formula(x: torch.Tensor) -> torch.Tensor:
        hidden = model.lin1(x).relu()
        for beta in (1.0, 2.5):
            unit = torch.nn.functional.normalize(hidden)
            hidden = (beta * unit @ unit.T).masked_fill(~linked, float("-inf")).softmax(dim=1) @ hidden
        return model.lin2(hidden)

    got, plain = model(x, a), formula(x)
    with in_float64(model):
        assert_accurate(got, plain, formula(x.double()))


def test_nodes_attend_to_their_neighbours_alone() -> None:
    """The gradient of one layer's output with respect to the input is zero where there is no edge."""
    model, a = GraphTransformer(6, 8, 3, num_layers=1).eval(), graph()
    x = torch.randn(NODES, 6, requires_grad=True)
    linked = torch.zeros(NODES, NODES, dtype=torch.bool)
    linked[tuple(a.indices())] = True
    for node in range(NODES):
        (grad,) = torch.autograd.grad(model(x, a)[node].sum(), x)
        assert torch.equal(grad.abs().sum(dim=1) > 0, linked[node])


@pytest.mark.parametrize("kind", [AGNN, GraphTransformer])
def test_dropout_in_training_alone(kind: type[Any]) -> None:
    model, a, x = kind(6, 8, 3), graph(), torch.randn(NODES, 6)
    assert not torch.equal(model(x, a), model(x, a))
    model.eval()
    assert torch.equal(model(x, a), model(x, a))


def transformer(**options: Any) -> Transformer:
    return Transformer(7, 8, 3, **{"num_layers": 2, "heads": 2, "feed_forward": 12, **options})


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("pool", ["mean", "first"])
@pytest.mark.parametrize("padded", [True, False])
def test_transformer(norm_first: bool, pool: str, padded: bool) -> None:
    model = transformer(norm_first=norm_first, pool=pool)
    tokens = torch.randint(1, 7, (4, LENGTH), dtype=torch.int16)
    tokens[:, 10:] = 0
    y = model(tokens, pattern(), tokens == 0 if padded else None)
    y.square().sum().backward()
    assert y.shape == (4, 3)
    assert all(p.grad is not None and bool(torch.isfinite(p.grad).all()) for p in model.parameters())
    assert model.first_layer is model.embedding


@pytest.mark.parametrize("pool", ["mean", "first"])
def test_padding_does_not_matter(pool: str) -> None:
    """The logits are those of the shorter sequence."""
    model = transformer(pool=pool).eval()
    tokens = torch.randint(1, 7, (4, LENGTH), dtype=torch.int16)
    tokens[:, 9:] = 0
    short = gnnsparse.prepare(masks.window(9, 3), cache=False)
    got, plain = model(tokens, pattern(), tokens == 0), model(tokens[:, :9], short)
    with reference_layers(), in_float64(model):
        assert_accurate(got, plain, model(tokens[:, :9], short))
    empty = torch.zeros(2, LENGTH, dtype=torch.int16)
    assert torch.isfinite(model(empty, pattern(), empty == 0)).all()


def test_the_order_of_tokens_matters() -> None:
    model = transformer().eval()
    tokens = torch.randint(1, 7, (1, LENGTH))
    everything = gnnsparse.prepare(masks.full(LENGTH), cache=False)
    one, other = model(tokens, everything), model(tokens.flip(1), everything)
    with reference_layers(), in_float64(model):
        exact = model(tokens, everything)
    assert not measure_errors(other, one, exact).ok


def losses(dtype: torch.dtype = torch.float32, **options: Any) -> torch.Tensor:
    """The loss curve of 15 steps."""
    torch.manual_seed(0)
    model, curve = transformer(dropout=0.2, **options).to(dtype), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    tokens = torch.randint(1, 7, (8, LENGTH), generator=torch.Generator().manual_seed(1))
    y = tokens.sum(dim=1) % 3
    for _ in range(15):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(tokens, pattern()), y)
        loss.backward()
        optimizer.step()
        curve.append(loss.detach())
    return torch.stack(curve)


def test_fused_and_unfused_have_the_same_loss_curve() -> None:
    fused, unfused = losses(), losses(fused=False)
    with reference_layers():
        plain, exact = losses(), losses(torch.float64)
    for curve in (fused, unfused):
        assert_accurate(curve, plain, exact)
    assert fused[-1] < 0.9 * fused[0]


def test_sinusoids() -> None:
    table = sinusoids(50, 8)
    assert table.shape == (50, 8)

    def formula(dtype: torch.dtype) -> torch.Tensor:
        angles = 7 * torch.tensor([10_000 ** (-2 * i / 8) for i in range(4)], dtype=dtype)
        return torch.cat([angles.sin(), angles.cos()])

    assert_accurate(table[7], formula(torch.float32), formula(torch.float64))


def test_registry() -> None:
    assert list(MODELS)[:4] == ["gcn", "agnn", "graph_transformer", "transformer"]
    for name, model in MODELS.items():
        inputs = {
            "node": (torch.randn(NODES, 6), graph(model.values)),
            "sequence": (torch.ones(1, LENGTH, dtype=torch.int64), pattern()),
        }
        if model.task in inputs:
            built = model.build(6, out_channels=3, hidden_channels=8)
            assert built(*inputs[model.task]).shape[1] == 3, name


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (AGNN, {"dropout": 1.0}, "dropout: got 1.0; accepted: a number in [0, 1)"),
        (AGNN, {"num_layers": 0}, "num_layers: got 0"),
        (AGNN, {"norm": "group"}, "norm: got 'group'; accepted: none, batch, layer"),
        (AGNN, {"hidden_channels": 0}, "hidden_channels: got 0"),
        (AGNN, {"residual": 1}, "residual: got int"),
        (GraphTransformer, {"heads": 3}, "heads: got 3; accepted: a divisor of hidden_channels, 8"),
        (Transformer, {"heads": 5}, "heads: got 5; accepted: a divisor of hidden_channels, 8"),
        (GraphTransformer, {"norm": 1}, "norm: got int"),
        (Transformer, {"hidden_channels": 7}, "hidden_channels: got 7; accepted: an even number"),
        (Transformer, {"pool": "max"}, "pool: got 'max'; accepted: mean, first"),
        (Transformer, {"activation": "tanh"}, "activation: got 'tanh'; accepted: relu, gelu"),
        (Transformer, {"fused": "yes"}, "fused: got str"),
    ],
)
def test_bad_options(kind: type[Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        kind(**{"in_channels": 6, "hidden_channels": 8, "out_channels": 3, **options})
