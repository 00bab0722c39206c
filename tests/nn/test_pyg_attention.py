"""GATConv, GATv2Conv and TransformerConv against PyG's: the same numbers, gradients and weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse.testing import assert_accurate, in_float64
from tests.nn.pyg_layers import FLOOR, SQUARE, TALL, WIDE, assert_as_pyg, edges, named, pair

SIZES = st.sampled_from([SQUARE, WIDE, TALL])
NAMES = ["GATConv", "GATv2Conv", "TransformerConv"]
EDGE_DIM = 3


def compare(ours: Any, theirs: Any, index: Any, inputs: list[torch.Tensor], adj: Any = None) -> None:
    """Outputs, weights, gradients. The inputs are x, or x of sources and of targets; then edge_attr if any.

    Args:
        index: PyG's edge_index, and ours where `adj` is None.
    """
    bipartite = not isinstance(theirs.in_channels, int)
    nodes = 2 if bipartite else 1

    def call(layer: Any, *given: torch.Tensor, **options: Any) -> Any:
        x = given[:2] if bipartite else given[0]
        edge = index if adj is None or layer is theirs else adj
        return layer(x, edge, *given[nodes:], **options)

    unused = () if theirs.__dict__.get("root_weight", True) else ("lin_skip",)

    def used(layer: Any) -> dict[str, torch.Tensor]:
        return {name: p for name, p in named(layer).items() if not name.startswith(unused or "-")}

    assert_as_pyg(ours, theirs, call, inputs, parameters=used)
    out, (pairs, weights) = call(ours, *inputs, return_attention_weights=True)
    # Returned weights take another kernel, which may add in another order.
    torch.testing.assert_close(out, call(ours, *inputs), rtol=1e-4, atol=1e-5)
    _, (their_pairs, their_weights) = call(theirs, *inputs, return_attention_weights=True)
    if adj is None:
        assert torch.equal(pairs, their_pairs)
        with in_float64(theirs):
            exact = call(theirs, *(x.double() for x in inputs), return_attention_weights=True)[1][1]
        assert_accurate(weights, their_weights, exact, floor=FLOOR)


def inputs_for(
    size: tuple[int, int], widths: Any, index: torch.Tensor, edge_dim: int | None
) -> list[torch.Tensor]:
    if isinstance(widths, int):
        x = [torch.randn(size[0], widths)]
    else:
        x = [torch.randn(count, width) for count, width in zip(size, widths, strict=True)]
    return x if edge_dim is None else [*x, torch.randn(index.shape[1], edge_dim)]


@given(
    name=st.sampled_from(NAMES),
    size=SIZES,
    heads=st.sampled_from([1, 2, 4]),
    concat=st.booleans(),
    bias=st.booleans(),
    edge_dim=st.sampled_from([None, EDGE_DIM]),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_output_weights_and_gradients(
    name: str, size: tuple[int, int], heads: int, concat: bool, bias: bool, edge_dim: int | None, seed: int,
    data: st.DataObject,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    options: dict[str, Any] = {"heads": heads, "concat": concat, "bias": bias, "edge_dim": edge_dim}
    if name == "TransformerConv":
        options |= {"beta": data.draw(st.booleans()), "root_weight": data.draw(st.booleans())}
    else:
        options["residual"] = data.draw(st.booleans())
        options["negative_slope"] = data.draw(st.sampled_from([0.2, 0.0, -0.3]))
        # PyG's reductions of edge features need a source for each target.
        fills = [0.5, torch.linspace(-1, 1, EDGE_DIM)]
        names = [] if size == TALL else ["mean", "add", "min", "max", "mul"]
        options["fill_value"] = data.draw(st.sampled_from([*fills, *names]))
        options["add_self_loops"] = data.draw(st.booleans())
    if name == "GATv2Conv" and size == SQUARE:
        options["share_weights"] = data.draw(st.booleans())
    widths: Any = 6 if size == SQUARE and data.draw(st.booleans()) else (6, 6 if size == SQUARE else 4)
    ours, theirs = pair(name, widths, 5, **options)
    index = edges(size, seed, repeats=edge_dim is None)
    compare(ours, theirs, index, inputs_for(size, widths, index, edge_dim))


@pytest.mark.parametrize("name", NAMES)
def test_operands_give_the_same_as_their_edges(name: str) -> None:
    """Those of edges without repeats; self-loops by values="gcn", whose weights are ignored."""
    index = edges(repeats=False)
    apart = index[:, index[0] != index[1]]
    operand = gnnsparse.prepare(apart, num_nodes=SQUARE[0], values="gcn", cache=False)
    ours, theirs = pair(name, 6, 5, heads=2)
    if name == "TransformerConv":
        apart = torch.cat([apart, torch.arange(SQUARE[0]).expand(2, -1)], dim=1)
    compare(ours, theirs, apart, [torch.randn(SQUARE[0], 6)], operand)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [SQUARE, WIDE, TALL], ids=str)
def test_operands_with_edge_features(name: str, size: tuple[int, int]) -> None:
    """The features are in the order of the edges that the operand was prepared from."""
    index = edges(size, repeats=False)
    operand = gnnsparse.prepare(index, num_nodes=size, reorder="none", cache=False)
    options = {} if name == "TransformerConv" else {"add_self_loops": False}
    ours, theirs = pair(name, (6, 4), 5, heads=2, edge_dim=EDGE_DIM, **options)
    inputs = inputs_for(size, (6, 4), index, EDGE_DIM)
    compare(ours, theirs, index, inputs, operand)
    _, (pairs, weights) = ours(tuple(inputs[:2]), operand, inputs[2], return_attention_weights=True)
    _, (_, in_coo) = ours(tuple(inputs[:2]), index, inputs[2], return_attention_weights=True)
    assert torch.equal(pairs, operand.indices().flip(0))
    assert torch.equal(operand.to_coo_order(weights), in_coo)


@pytest.mark.parametrize("size", [None, (25, 40), (25, 60)], ids=str)
def test_gat_without_features_of_targets(size: tuple[int, int] | None) -> None:
    ours, theirs = pair("GATConv", (6, 4), 5, heads=2, residual=True)
    index = edges((25, 25) if size is None else TALL)

    def call(layer: Any, x: torch.Tensor) -> torch.Tensor:
        return layer((x, None), index, size=size)

    names = "lin_src.weight", "att_src", "bias"
    assert_as_pyg(
        ours,
        theirs,
        call,
        [torch.randn(25, 6)],
        parameters=lambda layer: {name: named(layer)[name] for name in names},
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loops", [True, False])
def test_no_edges(name: str, loops: bool) -> None:
    index = torch.empty(2, 0, dtype=torch.int64)
    options = {} if name == "TransformerConv" else {"add_self_loops": loops}
    ours, theirs = pair(name, 6, 5, heads=2, **options)
    x = torch.randn(9, 6)
    out, (pairs, weights) = ours(x, index, return_attention_weights=True)
    theirs_out, (their_pairs, their_weights) = theirs(x, index, return_attention_weights=True)
    with in_float64(theirs):
        assert_accurate(out, theirs_out, theirs(x.double(), index))
    assert torch.equal(pairs, their_pairs)
    assert weights.shape == their_weights.shape


def test_features_of_edges_in_one_dimension() -> None:
    index = edges(repeats=False)
    for name in NAMES[:2]:
        ours, theirs = pair(name, 6, 5, edge_dim=1)
        compare(ours, theirs, index, [torch.randn(SQUARE[0], 6), torch.randn(index.shape[1])])


@pytest.mark.parametrize("name", NAMES)
def test_dropout_drops_as_many_weights_as_pyg(name: str) -> None:
    """A weight is 0 with probability p, or divided by 1 - p; TransformerConv returns those before dropout."""
    index = torch.cartesian_prod(torch.arange(60), torch.arange(60)).T.contiguous()
    ours, theirs = pair(name, 6, 5, heads=2, dropout=0.4)
    x = torch.randn(60, 6)
    _, (pairs, kept) = ours(x, index, return_attention_weights=True)
    _, (their_pairs, their_kept) = theirs(x, index, return_attention_weights=True)
    _, (_, all_of_them) = ours.eval()(x, index, return_attention_weights=True)
    assert torch.equal(pairs, their_pairs)
    dropped = [(weights == 0).float().mean() for weights in (kept, their_kept)]
    if name == "TransformerConv":
        assert dropped == [0, 0]
        assert torch.equal(kept, all_of_them)
        return
    # 7200 draws: five standard deviations of their mean.
    assert all(abs(share - 0.4) < 5 * (0.4 * 0.6 / 7200) ** 0.5 for share in dropped)
    scaled = torch.where(kept == 0, 0.0, all_of_them / 0.6)
    assert_accurate(kept, scaled, scaled.double())
