"""AGNNConv against PyG's: the same numbers, gradients, parameter and training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
from gnnsparse.data.optional import import_optional
from gnnsparse.nn import AGNNConv
from tests.parity.test_pyg_gcn import NODES, assert_close, edges

try:
    PygAGNNConv: Any = import_optional("torch_geometric.nn", "this comparison").AGNNConv
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)


def pair(beta: float = 1.0, **options: Any) -> tuple[AGNNConv, Any]:
    """Our layer and PyG's, with the same parameter."""
    ours, theirs = AGNNConv(**options), PygAGNNConv(**options)
    theirs.beta.data.fill_(beta)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def run(layer: Any, x: torch.Tensor, adj: Any) -> list[torch.Tensor]:
    """Output and gradients of all that has one."""
    x = x.clone().requires_grad_()
    y = layer(x, adj)
    probe = torch.randn(y.shape, generator=torch.Generator().manual_seed(3))
    return [y, *torch.autograd.grad(y, [x, *layer.parameters()], probe)]


@pytest.mark.parametrize("beta", [1.0, -2.5, 8.0])
@pytest.mark.parametrize("width", [1, 7, 16])
@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("loops", [True, False])
def test_output_and_gradients(loops: bool, requires_grad: bool, width: int, beta: float) -> None:
    """Edges with repeats, which count as often as they are given, and nodes without any."""
    ours, theirs = pair(beta, requires_grad=requires_grad, add_self_loops=loops)
    x, index = torch.randn(NODES, width), edges()
    got, want = run(ours, x, index), run(theirs, x, index)
    assert len(got) == len(want) == (3 if requires_grad else 2)
    for mine, its in zip(got[:2], want[:2], strict=True):
        assert_close(mine, its)
    for mine, its in zip(got[2:], want[2:], strict=True):
        # A sum over all nodes of terms of size 1 that cancel.
        assert float((mine - its).abs()) <= 1e-6 * NODES


def test_no_edges() -> None:
    index = torch.empty(2, 0, dtype=torch.int64)
    x = torch.randn(NODES, 5)
    for loops in (True, False):
        ours, theirs = pair(add_self_loops=loops)
        assert_close(ours(x, index), theirs(x, index))


def test_rows_of_zeros() -> None:
    """The same output as PyG's, and a gradient that is finite and small where PyG's is not."""
    ours, theirs = pair(3.0)
    x, index = torch.randn(NODES, 6), edges()
    x[::3] = 0
    got, want = run(ours, x, index), run(theirs, x, index)
    assert_close(got[0], want[0])
    assert_close(got[2], want[2])
    rest = torch.ones(NODES, dtype=torch.bool)
    rest[::3] = False
    assert_close(got[1][rest], want[1][rest])
    assert float(got[1].abs().max()) < 100


def test_an_operand_with_gcn_weights_gives_the_same_as_its_edges() -> None:
    """Without repeats: the weights play no part, the self-loops are there."""
    index = edges().unique(dim=1)
    layer, x = AGNNConv(), torch.randn(NODES, 6)
    operand = gnnsparse.prepare(index, num_nodes=NODES, values="gcn", cache=False)
    for a, b in zip(run(layer, x, index), run(layer, x, operand), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


class Model(torch.nn.Module):
    """The AGNN of PyG's example: linear, two propagation layers, linear."""

    def __init__(self, conv: Any, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.lin1 = torch.nn.Linear(features, hidden)
        self.convs = torch.nn.ModuleList([conv(requires_grad=False), conv(requires_grad=True)])
        self.lin2 = torch.nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor, adj: Any) -> torch.Tensor:
        x = F.relu(self.lin1(x))
        for conv in self.convs:
            x = conv(x, adj)
        return self.lin2(x)


def test_the_same_loss_curve() -> None:
    index, x = edges(), torch.randn(NODES, 12)
    y = torch.randint(0, 4, (NODES,))
    curves, betas = [], []
    for conv in (AGNNConv, PygAGNNConv):
        torch.manual_seed(0)
        model = Model(conv, 12, 16, 4)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses = []
        for _ in range(60):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x, index), y)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        curves.append(torch.tensor(losses))
        betas.append(float(model.convs[1].beta.detach()))
    assert float(curves[0][-1]) < 0.8 * float(curves[0][0])
    assert torch.allclose(curves[0], curves[1], rtol=1e-3)
    assert abs(betas[0] - betas[1]) < 1e-3
    assert abs(betas[0] - 1) > 1e-2, "beta is learned"
