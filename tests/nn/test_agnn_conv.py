"""AGNNConv: precisions, dtypes, what it keeps, compilation, errors. test_pyg_agnn.py has PyG's numbers."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.nn import AGNNConv
from gnnsparse.testing import assert_accurate, assert_all_accurate, with_gradients
from tests.helpers import PRECISIONS, ROUNDING, agnn_beta_scale, reference_layers

NODES = 30


def edges(seed: int = 0, count: int = 120) -> torch.Tensor:
    return torch.randint(0, NODES, (2, count), generator=torch.Generator().manual_seed(seed))


def operand(**options: Any) -> gnnsparse.SparseOperand:
    return gnnsparse.prepare(edges(), num_nodes=NODES, values="gcn", cache=False, **options)


def dense(x: torch.Tensor, beta: torch.Tensor, linked: torch.Tensor) -> torch.Tensor:
    """The formula on all pairs, float64."""
    unit = torch.nn.functional.normalize(x)
    return (beta * unit @ unit.T).masked_fill(~linked, float("-inf")).softmax(dim=1) @ x


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("reorder", ["none", "degree"])
def test_precisions(device: str, precision: str, reorder: str) -> None:
    a = operand(precision=precision, reorder=reorder).to(device)
    linked = torch.zeros(NODES, NODES, dtype=torch.bool)
    linked[tuple(a.indices().cpu())] = True
    layer = AGNNConv().to(device)
    with torch.no_grad():
        layer.beta.fill_(2.0)
    x = torch.randn(NODES, 16, device=device)
    got = with_gradients(lambda x: layer(x, a), [x], [layer.beta])
    with reference_layers():
        plain = with_gradients(lambda x: layer(x, a), [x], [layer.beta])
    beta = torch.tensor([2.0], dtype=torch.float64)
    exact = with_gradients(lambda x, beta: dense(x, beta, linked), [x.double().cpu(), beta])
    scales = [None, None, agnn_beta_scale(x, 2.0, linked)]
    # Roundings of the operands of a product may cancel in the plain run and not in ours.
    floor = (8 if precision == "fp32" else 2) * ROUNDING[precision]
    assert_all_accurate(got, plain, exact, floor=floor, scales=scales)


def test_half_inputs_do_not_overflow() -> None:
    """Squares of 300 are beyond float16. The mean of equal rows is that row."""
    x = torch.full((NODES, 4), 300.0, dtype=torch.float16)
    y = AGNNConv()(x, operand())
    assert y.dtype == torch.float16
    assert torch.equal(y, x)


def test_the_state_is_pygs() -> None:
    assert list(AGNNConv().state_dict()) == ["beta"]
    fixed = AGNNConv(requires_grad=False)
    assert list(fixed.state_dict()) == ["beta"]
    assert list(fixed.parameters()) == []
    layer = AGNNConv()
    torch.nn.init.constant_(layer.beta, 3.0)
    layer.reset_parameters()
    assert layer.beta.tolist() == [1.0]
    assert layer.beta.requires_grad


def test_an_edge_index_is_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(*args: Any, **options: Any) -> gnnsparse.SparseOperand:
        calls.append(1)
        return gnnsparse.prepare(*args, **options)

    monkeypatch.setattr("gnnsparse.nn.adjacency.prepare", counted)
    layer, index, x = AGNNConv(), edges(), torch.randn(NODES, 4)
    first = layer(x, index)
    assert torch.equal(layer(x, index), first)
    assert len(calls) == 1
    assert not torch.equal(layer(x, edges(1)), first)
    assert len(calls) == 2


def test_edges_given_twice_count_twice() -> None:
    index = torch.tensor([[1, 1, 2], [0, 0, 0]])
    x = torch.eye(3)
    weights = AGNNConv(add_self_loops=False)(x, index)[0]
    exact = torch.tensor([0.0, 2 / 3, 1 / 3], dtype=torch.float64)
    assert_accurate(weights, exact.float(), exact)


def test_copies_and_pickles() -> None:
    layer, index, x = AGNNConv(), edges(), torch.randn(NODES, 4)
    want = layer(x, index)
    assert torch.equal(copy.deepcopy(layer)(x, index), want)
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x, index), want)


def test_compiles_without_graph_breaks() -> None:
    layer, a, x = AGNNConv(), operand(), torch.randn(NODES, 4, requires_grad=True)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    y = compiled(x, a)
    assert torch.equal(y, layer(x, a))
    y.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: AGNNConv(requires_grad=1), "requires_grad: got int; accepted: True or False"),
        (lambda: AGNNConv(add_self_loops=None), "add_self_loops: got NoneType"),
        (lambda: AGNNConv(precision="fp7"), "precision: got 'fp7'; accepted: fp32, tf32, fp16, bf16"),
        (lambda: AGNNConv()(torch.ones(3, 2), [[0], [1]]), "adj: got list; accepted: a SparseOperand"),
        (
            lambda: AGNNConv()(torch.ones(3, 2), torch.ones(3, 4)),
            "adj: has shape (3, 4); accepted: (2, edges)",
        ),
        (lambda: AGNNConv()(torch.ones(4, 2), operand()), "q: has shape (4, 2)"),
    ],
)
def test_bad_arguments(call: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        call()


def test_repr() -> None:
    assert repr(AGNNConv(requires_grad=False)) == "AGNNConv(requires_grad=False)"
