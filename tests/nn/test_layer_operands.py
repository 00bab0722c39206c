"""An operand says what it is, and layers refuse one to which their options could not be applied."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.nn import AGNNConv, GCNConv
from gnnsparse.testing import assert_accurate, in_float64, random_graph

NODES = 30
X = torch.randn(NODES, 4, generator=torch.Generator().manual_seed(3))


def edges(loops: bool = False) -> torch.Tensor:
    index = torch.randint(0, NODES, (2, 120), generator=torch.Generator().manual_seed(0)).unique(dim=1)
    index = index[:, index[0] != index[1]]
    return torch.cat([index, torch.arange(NODES).expand(2, -1)], dim=1) if loops else index


def operand(loops: bool = False, **options: Any) -> gnnsparse.SparseOperand:
    return gnnsparse.prepare(edges(loops), num_nodes=NODES, **{"cache": False, **options})


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, (None, None, False)),
        ({"loops": True}, (None, None, True)),
        ({"values": "mean"}, ("mean", None, False)),
        ({"values": "mean", "loops": True}, ("mean", None, True)),
        ({"values": "gcn"}, ("gcn", 1.0, True)),
        ({"values": "gcn", "self_loop_weight": 2.0}, ("gcn", 2.0, True)),
        ({"values": "gcn", "loops": True}, ("gcn", 1.0, True)),
        ({"values": torch.ones(len(edges()[0]))}, (None, None, False)),
    ],
)
@pytest.mark.parametrize("reorder", ["none", "rcm", "degree"])
def test_what_an_operand_says(
    options: dict[str, Any], want: tuple[Any, ...], reorder: str, tmp_path: Path
) -> None:
    """The same after each way in which it is handed on, and on a cache hit."""

    def said(a: gnnsparse.SparseOperand) -> tuple[Any, ...]:
        return a.normalization, a.added_loops, a.has_self_loops

    made = operand(**options, reorder=reorder, cache=tmp_path)
    again = operand(**options, reorder=reorder, cache=tmp_path)
    assert (made.cache_hit, again.cache_hit) == (False, True)
    for a in (made, again, made.T, again.T, pickle.loads(pickle.dumps(made)), made.to("cpu"), made.T.T):
        assert said(a) == want


def test_the_diagonal_of_a_matrix() -> None:
    eye = torch.eye(4).to_sparse()
    assert gnnsparse.prepare(eye, cache=False).has_self_loops
    assert gnnsparse.prepare(torch.eye(0).to_sparse(), cache=False).has_self_loops
    assert not gnnsparse.prepare(eye.to_dense().flip(0).to_sparse(), cache=False).has_self_loops
    assert not gnnsparse.prepare(random_graph(4, 5, 1.0), cache=False).has_self_loops


@pytest.mark.parametrize(
    ("layer", "options", "message"),
    [
        ({}, {}, "adj: an operand prepared with weights of its own; accepted: values='gcn', an edge"),
        ({}, {"values": "mean"}, "adj: an operand prepared with values='mean'; accepted: values='gcn'"),
        ({"add_self_loops": True}, {"loops": True}, "adj: an operand prepared with weights of its own"),
        ({"add_self_loops": False}, {"values": "gcn"}, "add_self_loops: got False with an operand"),
        ({"add_self_loops": False}, {}, "adj: an operand prepared with weights of its own"),
        ({"improved": True}, {"values": "gcn"},
         "improved: got True, the operand was prepared with self_loop_weight=1.0; accepted: 2.0"),
        ({}, {"values": "gcn", "self_loop_weight": 2.0},
         "improved: got False, the operand was prepared with self_loop_weight=2.0; accepted: 1.0"),
        ({"cached": True}, {"values": "gcn"}, "cached: got True with an operand"),
        ({"precision": "fp16"}, {"values": "gcn"}, "precision: got 'fp16', the operand has 'fp32'"),
        ({"precision": "fp32", "normalize": False}, {"precision": "bf16"}, "precision: got 'fp32'"),
    ],
)  # fmt: skip
def test_gcn_conv_refuses(layer: dict[str, Any], options: dict[str, Any], message: str) -> None:
    for adj in (operand(**options), operand(**options).T):
        with pytest.raises(ValueError, match=re.escape(message)):
            GCNConv(4, 4, **layer)(X, adj)


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        ({"normalize": False}, {}),
        ({"normalize": False}, {"values": "mean"}),
        ({"normalize": False}, {"values": "gcn", "self_loop_weight": 3.0}),
        ({"improved": True}, {"values": "gcn", "self_loop_weight": 2.0}),
        ({"add_self_loops": True, "precision": "fp32"}, {"values": "gcn"}),
    ],
)
def test_gcn_conv_uses_the_weights_of_the_operand(layer: dict[str, Any], options: dict[str, Any]) -> None:
    conv, a = GCNConv(4, 6, **layer), operand(**options)
    torch.nn.init.normal_(conv.bias)
    got, plain = conv(X, a), a @ conv.lin(X) + conv.bias
    with in_float64(conv):
        exact = gnnsparse.spmm(a, conv.lin(X.double()), impl="reference") + conv.bias
    assert_accurate(got, plain, exact)


def test_options_that_would_do_nothing_are_refused_when_a_layer_is_made() -> None:
    for options in ({"normalize": False}, {"add_self_loops": False}):
        with pytest.raises(ValueError, match="improved: goes with add_self_loops=True only"):
            GCNConv(4, 4, improved=True, **options)


@pytest.mark.parametrize("values", [None, "mean"])
def test_agnn_conv_wants_self_loops(values: str | None) -> None:
    message = (
        "adj: an operand of which nodes lack self-loops; accepted: one prepared with values='gcn', an edge"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        AGNNConv()(X, operand(values=values))
    complete = AGNNConv()(X, operand(loops=True, values=values))
    assert torch.equal(complete, AGNNConv()(X, operand(values="gcn")))
    assert not torch.equal(complete, AGNNConv(add_self_loops=False)(X, operand(values=values)))
    with pytest.raises(ValueError, match="precision: got 'bf16', the operand has 'fp32'"):
        AGNNConv(precision="bf16")(X, operand(values="gcn"))


@pytest.mark.parametrize("layer", [GCNConv(4, 4), AGNNConv()], ids=lambda layer: type(layer).__name__)
def test_compiled_layers_refuse_too(layer: torch.nn.Module) -> None:
    good, bad = operand(values="gcn"), operand()
    assert not bad.has_self_loops  # found by reading the indices, which can't be traced
    _ = good.T
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(X, good), layer(X, good))
    with pytest.raises(Exception, match="adj: an operand"):
        compiled(X, bad)
