"""AGNNConv against PyG's: the same numbers, gradients, parameter and training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
from gnnsparse.data.optional import import_optional
from gnnsparse.nn import AGNNConv
from gnnsparse.testing import assert_all_accurate, in_float64, with_gradients
from tests.helpers import agnn_beta_scale
from tests.nn.test_pyg_gcn import NODES, assert_as_pyg, edges

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
    return with_gradients(lambda x: layer(x, adj), [x], layer.parameters())


@pytest.mark.parametrize("beta", [1.0, -2.5, 8.0])
@pytest.mark.parametrize("width", [1, 7, 16])
@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("loops", [True, False])
def test_output_and_gradients(loops: bool, requires_grad: bool, width: int, beta: float) -> None:
    """Edges with repeats, which count as often as they are given, and nodes without any."""
    ours, theirs = pair(beta, requires_grad=requires_grad, add_self_loops=loops)
    x, index = torch.randn(NODES, width), edges()
    got, plain = run(ours, x, index), run(theirs, x, index)
    assert len(got) == (3 if requires_grad else 2)

    def exact() -> list[torch.Tensor]:
        with in_float64(theirs):
            return run(theirs, x.double(), index)

    counts = torch.zeros(NODES, NODES).index_put((index[1], index[0]), torch.ones(()), accumulate=True)
    if loops:
        counts.fill_diagonal_(1)
    scales = [None, None, agnn_beta_scale(x, beta, counts)]
    assert_all_accurate(got, plain, exact, scales=scales[: len(got)])


def test_no_edges() -> None:
    index = torch.empty(2, 0, dtype=torch.int64)
    for loops in (True, False):
        ours, theirs = pair(add_self_loops=loops)
        assert_as_pyg(ours, theirs, [torch.randn(NODES, 5)], index)


def test_rows_of_zeros() -> None:
    """The same output as PyG's, and a gradient that is finite and small where PyG's is not."""
    ours, theirs = pair(3.0)
    x, index = torch.randn(NODES, 6), edges()
    x[::3] = 0
    got, plain = run(ours, x, index), run(theirs, x, index)
    with in_float64(theirs):
        exact = run(theirs, x.double(), index)
    assert float(got[1].abs().max()) < 100
    rest = torch.ones(NODES, dtype=torch.bool)
    rest[::3] = False
    for results in (got, plain, exact):
        results[1] = results[1][rest]
    assert_all_accurate(got, plain, exact)


def test_an_operand_with_gcn_weights_gives_the_same_as_its_edges() -> None:
    """Without repeats: the weights play no part, the self-loops are there."""
    index = edges().unique(dim=1)
    ours, theirs = pair()
    operand = gnnsparse.prepare(index, num_nodes=NODES, values="gcn", cache=False)
    assert_as_pyg(ours, theirs, [torch.randn(NODES, 6)], index, operand)


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


def learned(conv: Any, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss curve of 60 steps, and the beta that is learned."""
    generator = torch.Generator().manual_seed(0)
    index, x = edges(), torch.randn(NODES, 12, generator=generator).to(dtype)
    y = torch.randint(0, 4, (NODES,), generator=generator)
    torch.manual_seed(0)
    model = Model(conv, 12, 16, 4).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, index), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses), model.convs[1].beta.detach()


def test_the_same_loss_curve() -> None:
    losses, beta = got = learned(AGNNConv)
    assert_all_accurate(got, learned(PygAGNNConv), learned(PygAGNNConv, torch.float64))
    assert losses[-1] < 0.8 * losses[0]
    assert abs(beta - 1) > 0.01, "beta is learned"
