"""SAGEConv, GINConv and GraphConv against PyG's: the same numbers, gradients, parameters and training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from tests.nn.pyg_layers import SQUARE, TALL, WIDE, assert_as_pyg, edges, named, pair, pyg

SIZES = st.sampled_from([SQUARE, WIDE, TALL])
AGGREGATIONS = ["mean", "sum", "add", "max", "min"]


def features(size: tuple[int, int], widths: tuple[int, int]) -> list[torch.Tensor]:
    return [torch.randn(count, width) for count, width in zip(size, widths, strict=True)]


@given(
    size=SIZES,
    out=st.sampled_from([3, 12]),
    aggr=st.sampled_from(AGGREGATIONS),
    normalize=st.booleans(),
    root_weight=st.booleans(),
    project=st.booleans(),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_sage(
    size: tuple[int, int], out: int, aggr: str, normalize: bool, root_weight: bool, project: bool, bias: bool,
    seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    options = {"aggr": aggr, "normalize": normalize, "root_weight": root_weight, "project": project}
    widths: Any = 6 if size == SQUARE else (6, 4)
    ours, theirs = pair("SAGEConv", widths, out, bias=bias, **options)
    index = edges(size, seed)
    if size == SQUARE:
        assert_as_pyg(ours, theirs, lambda layer, x: layer(x, index), [torch.randn(size[0], 6)])
    else:
        inputs = features(size, (6, 4))[: 1 + root_weight]
        rest = [] if root_weight else [torch.randn(size[1], 4)]
        assert_as_pyg(ours, theirs, lambda layer, *x: layer((*x, *(t.to(x[0]) for t in rest)), index), inputs)


@given(
    size=SIZES,
    out=st.sampled_from([3, 12]),
    aggr=st.sampled_from(AGGREGATIONS),
    weighted=st.booleans(),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_graph_conv(
    size: tuple[int, int], out: int, aggr: str, weighted: bool, bias: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    ours, theirs = pair("GraphConv", (6, 4), out, aggr=aggr, bias=bias)
    index = edges(size, seed)
    if weighted and aggr in ("max", "min"):
        index = index.unique(dim=1)  # the weights of repeats would have to be kept apart
    weights = [torch.rand(index.shape[1]) + 0.1] if weighted else []

    def call(layer: Any, source: torch.Tensor, target: torch.Tensor, *weight: torch.Tensor) -> torch.Tensor:
        return layer((source, target), index, *weight)

    assert_as_pyg(ours, theirs, call, [*features(size, (6, 4)), *weights])


@given(size=SIZES, train_eps=st.booleans(), eps=st.sampled_from([0.0, 0.3, -2.0]), seed=st.integers(0, 99))
def test_gin(size: tuple[int, int], train_eps: bool, eps: float, seed: int) -> None:
    torch.manual_seed(seed)
    layers = []
    for kinds in (gnnsparse.nn, pyg):
        torch.manual_seed(seed)
        network = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        layers.append(kinds.GINConv(network, eps=eps, train_eps=train_eps))
    ours, theirs = layers
    state = theirs.state_dict()
    assert list(ours.state_dict()) == list(state) == ["eps", *(f"nn.{key}" for key in network.state_dict())]
    assert all(torch.equal(ours.state_dict()[key], state[key]) for key in state)
    assert repr(ours) == repr(theirs)
    index = edges(size, seed)

    def call(layer: Any, *x: torch.Tensor) -> torch.Tensor:
        return layer(x, index)

    assert_as_pyg(ours, theirs, call, features(size, (6, 6)))


@pytest.mark.parametrize("size", [None, (25, 40), (25, 60)], ids=str)
@pytest.mark.parametrize("name", ["SAGEConv", "GraphConv"])
def test_without_features_of_targets(name: str, size: tuple[int, int] | None) -> None:
    ours, theirs = pair(name, (6, 4), 5)
    index = edges((25, 25) if size is None else TALL)

    def call(layer: Any, x: torch.Tensor) -> torch.Tensor:
        return layer((x, None), index, size=size)

    used = ("lin_l", "lin_rel")
    assert_as_pyg(
        ours,
        theirs,
        call,
        [torch.randn(25, 6)],
        parameters=lambda layer: {n: p for n, p in named(layer).items() if n.startswith(used)},
    )
    network = torch.nn.Linear(6, 3)
    gin = [kinds.GINConv(network) for kinds in (gnnsparse.nn, pyg)]
    assert_as_pyg(*gin, call, [torch.randn(25, 6)])


def test_operands_give_the_same_as_their_edges() -> None:
    index, x = edges(), torch.randn(SQUARE[0], 6)
    operand = {
        values: gnnsparse.prepare(index, num_nodes=SQUARE[0], values=values, cache=False)
        for values in (None, "mean")
    }
    for name, aggr, values in (
        ("SAGEConv", "mean", "mean"),
        ("SAGEConv", "sum", None),
        ("GraphConv", "mean", "mean"),
        ("GraphConv", "add", None),
    ):
        ours, theirs = pair(name, 6, 4, aggr=aggr)
        assert_as_pyg(
            ours,
            theirs,
            lambda layer, x: layer(x, operand[values] if layer is ours else index),  # noqa: B023
            [x],
        )


@pytest.mark.parametrize("name", ["SAGEConv", "GraphConv"])
def test_no_edges(name: str) -> None:
    index = torch.empty(2, 0, dtype=torch.int64)
    for aggr in AGGREGATIONS:
        ours, theirs = pair(name, 6, 4, aggr=aggr)
        assert_as_pyg(ours, theirs, lambda layer, x: layer(x, index), [torch.randn(9, 6)])
