"""A layer of models.GPS beside PyG's GPSConv with equal parameters, and attention over all pairs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.testing import assert_all_accurate, in_float64, with_gradients
from models import GPS
from tests.nn.pyg_layers import FLOOR, pyg

NODES, WIDTH = 30, 8


def twin_of(block: Any, attention: Any, conv: str, norm: str) -> Any:
    """PyG's layer with the parameters of ours."""
    if conv == "gcn":
        local = pyg.GCNConv(WIDTH, WIDTH)
    else:
        linears = torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)
        local = pyg.GINConv(torch.nn.Sequential(*linears))
    # PyG's "layer_norm" is over the nodes of a graph too, ours and the paper's over the features of a node.
    theirs = pyg.GPSConv(WIDTH, local, heads=2, norm="batch_norm" if norm == "batch" else None)
    theirs.conv.load_state_dict(block.conv.state_dict())
    theirs.attn.load_state_dict(attention.state_dict())
    theirs.mlp[0].load_state_dict(block.linear1.state_dict())
    theirs.mlp[3].load_state_dict(block.linear2.state_dict())
    for number in (1, 2, 3):
        ours = getattr(block, f"norm{number}")
        if norm == "batch":
            getattr(theirs, f"norm{number}").module.load_state_dict(ours.state_dict())
        elif norm == "layer":
            setattr(theirs, f"norm{number}", torch.nn.LayerNorm(WIDTH))
            getattr(theirs, f"norm{number}").load_state_dict(ours.state_dict())
    return theirs


@pytest.mark.parametrize("conv", ["gcn", "gin"])
@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
def test_a_layer_is_pygs(conv: str, norm: str) -> None:
    model = GPS(WIDTH, WIDTH, 3, num_layers=1, heads=2, conv=conv, attention="full", dropout=0.0, norm=norm)
    (block,), (attention,) = model.blocks, model.attentions
    for parameter in [*block.parameters(), *attention.parameters()]:
        if parameter.dim() == 1:
            torch.nn.init.normal_(parameter)  # those that are 0 or 1 at first
    theirs = twin_of(block, attention, conv, norm)
    index = torch.randint(0, NODES, (2, 90)).unique(dim=1)
    index = index[:, index[0] != index[1]]
    values = "gcn" if conv == "gcn" else None
    adj = gnnsparse.prepare(index, num_nodes=NODES, values=values, cache=False)
    pairs = gnnsparse.prepare(gnnsparse.masks.full(NODES), cache=False)
    x = torch.randn(NODES, WIDTH)
    got = with_gradients(lambda x: block(x, adj, attention(x, x, x, pairs)), [x])
    plain = with_gradients(lambda x: theirs(x, index), [x])
    with in_float64(theirs):
        exact = with_gradients(lambda x: theirs(x, index), [x.double()])
    assert_all_accurate(got, plain, exact, floor=FLOOR)
    # The model is this layer between two linear layers.
    y = model.lin2(block(model.lin1(x), adj, attention(*[model.lin1(x)] * 3, pairs)))
    assert torch.equal(model(x, adj), y)
