"""GCNConv against PyG's: the same numbers, gradients, parameters and training."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
from gnnsparse.data.optional import import_optional
from gnnsparse.nn import GCNConv, dropout
from models import GCN

try:
    PygGCNConv: Any = import_optional("torch_geometric.nn", "this comparison").GCNConv
except ImportError as missing:
    pytest.skip(str(missing), allow_module_level=True)

NODES = 40
#: (normalize, add_self_loops)
MODES = [(True, None), (True, True), (True, False), (False, None), (False, False)]


def edges(seed: int = 0) -> torch.Tensor:
    """Random edges with repeats, self-loops (one a node at most), and nodes without any."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(0, NODES - 6, (2, 220), generator=generator)
    index = index[:, index[0] != index[1]]
    loops = torch.randperm(NODES - 6, generator=generator)[:7].expand(2, -1)
    index = torch.cat([index, index[:, :25], loops], dim=1)
    return index[:, torch.randperm(index.shape[1], generator=generator)]


def pair(in_channels: int, out_channels: int, **options: Any) -> tuple[GCNConv, Any]:
    """Our layer and PyG's, with the same parameters."""
    sizes = in_channels, out_channels
    ours, theirs = GCNConv(*sizes, **options), PygGCNConv(*sizes, **options)
    if options.get("bias", True):
        torch.nn.init.normal_(theirs.bias)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    """Equal but for the order of float32 sums of a few dozen terms."""
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    got, want = got.detach(), want.detach()
    if want.numel():
        assert float((got - want).abs().max()) <= 1e-5 * (float(want.abs().max()) or 1.0)


def run(layer: Any, x: torch.Tensor, index: torch.Tensor, weight: torch.Tensor | None) -> list[torch.Tensor]:
    """Output and gradients of all that has one."""
    leaves = [x.clone().requires_grad_()]
    if weight is not None:
        leaves.append(weight.clone().requires_grad_())
    y = layer(leaves[0], index, *leaves[1:])
    probe = torch.randn(y.shape, generator=torch.Generator().manual_seed(3))
    return [y, *torch.autograd.grad(y, [*leaves, *layer.parameters()], probe)]


@pytest.mark.parametrize("sizes", [(5, 12), (12, 5), (7, 7)], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_output_and_gradients(
    mode: tuple[bool, bool | None], bias: bool, weighted: bool, sizes: tuple[int, int]
) -> None:
    normalize, loops = mode
    index = edges()
    weight = torch.rand(index.shape[1]) + 0.1 if weighted else None
    ours, theirs = pair(*sizes, normalize=normalize, add_self_loops=loops, bias=bias)
    x = torch.randn(NODES, sizes[0])
    for got, want in zip(run(ours, x, index, weight), run(theirs, x, index, weight), strict=True):
        assert_close(got, want)


@pytest.mark.parametrize("weighted", [False, True])
def test_improved(weighted: bool) -> None:
    index = edges(1)
    weight = torch.rand(index.shape[1]) + 0.1 if weighted else None
    ours, theirs = pair(6, 4, improved=True)
    x = torch.randn(NODES, 6)
    for got, want in zip(run(ours, x, index, weight), run(theirs, x, index, weight), strict=True):
        assert_close(got, want)


@pytest.mark.parametrize("weighted", [False, True])
def test_repeated_self_loops_count_once(weighted: bool) -> None:
    index = torch.cat([edges(2), torch.tensor([[3, 3, 3, 8], [3, 3, 3, 8]])], dim=1)
    weight = torch.rand(index.shape[1]) + 0.1 if weighted else None
    ours, theirs = pair(6, 4)
    x = torch.randn(NODES, 6)
    assert_close(ours(x, index, weight), theirs(x, index, weight))


@pytest.mark.parametrize("weighted", [False, True])
def test_no_edges(weighted: bool) -> None:
    index, weight = torch.empty(2, 0, dtype=torch.int64), torch.empty(0) if weighted else None
    ours, theirs = pair(6, 4)
    x = torch.randn(NODES, 6)
    for got, want in zip(run(ours, x, index, weight), run(theirs, x, index, weight), strict=True):
        assert_close(got, want)


def test_pygs_edge_index_class() -> None:
    kind = import_optional("torch_geometric", "this comparison").EdgeIndex
    index = edges()
    ours, theirs = pair(6, 4)
    x = torch.randn(NODES, 6)
    assert_close(ours(x, kind(index, sparse_size=(NODES, NODES))), theirs(x, index))


def test_an_operand_gives_the_same_as_its_edges() -> None:
    """Without repeats of self-loops, which the operand would sum."""
    index = edges()
    ours, theirs = pair(6, 4)
    operand = gnnsparse.prepare(index, num_nodes=NODES, values="gcn", cache=False)
    x = torch.randn(NODES, 6)
    assert_close(ours(x, operand), theirs(x, index))


def test_state_dicts_load_both_ways() -> None:
    for bias in (True, False):
        ours, theirs = GCNConv(6, 4, bias=bias), PygGCNConv(6, 4, bias=bias)
        shapes = {name: value.shape for name, value in ours.state_dict().items()}
        assert shapes == {name: value.shape for name, value in theirs.state_dict().items()}
        theirs.load_state_dict(ours.state_dict())
        assert torch.equal(theirs.lin.weight, ours.lin.weight)
        theirs.reset_parameters()
        ours.load_state_dict(theirs.state_dict())
        assert torch.equal(theirs.lin.weight, ours.lin.weight)


def test_the_same_seed_draws_the_same_parameters() -> None:
    torch.manual_seed(5)
    theirs = PygGCNConv(30, 20)
    torch.manual_seed(5)
    ours = GCNConv(30, 20)
    assert torch.equal(ours.lin.weight, theirs.lin.weight)
    assert torch.equal(ours.bias, theirs.bias)
    assert repr(ours) == repr(theirs) == "GCNConv(30, 20)"


def test_both_refuse_self_loops_without_normalisation() -> None:
    for layer in (GCNConv, PygGCNConv):
        with pytest.raises(ValueError, match="self"):
            layer(3, 3, add_self_loops=True, normalize=False)


class PygGCN(torch.nn.Module):
    """models.GCN with two of PyG's layers."""

    def __init__(self, model: GCN) -> None:
        super().__init__()
        first, second = model.convs
        self.convs = torch.nn.ModuleList(
            PygGCNConv(conv.in_channels, conv.out_channels) for conv in (first, second)
        )
        self.load_state_dict(model.state_dict())

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        x = self.convs[0](dropout(x, 0.5, True), index).relu()
        return self.convs[1](dropout(x, 0.5, True), index)


def losses(model: torch.nn.Module, x: torch.Tensor, index: Any, y: torch.Tensor) -> list[float]:
    """The loss curve of 20 steps, with the same dropout for every model."""
    torch.manual_seed(11)
    first, second = (conv.parameters() for conv in model.convs)
    groups = [{"params": first, "weight_decay": 5e-4}, {"params": second}]
    optimizer = torch.optim.Adam(groups, lr=0.01)
    curve = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, index), y)
        loss.backward()
        optimizer.step()
        curve.append(loss.item())
    return curve


@pytest.mark.parametrize("prepared", [False, True])
def test_the_loss_curve_is_pygs(prepared: bool) -> None:
    index, x, y = edges(4), torch.randn(NODES, 24), torch.randint(0, 5, (NODES,))
    model = GCN(24, 16, 5, num_layers=2, dropout=0.5)
    theirs = PygGCN(model)
    operand = gnnsparse.prepare(index, num_nodes=NODES, values="gcn", cache=False)
    got = losses(model, x, operand if prepared else index, y)
    want = losses(theirs, x, index, y)
    assert all(abs(a - b) <= 1e-4 * b for a, b in zip(got, want, strict=True))
    assert min(got) < 0.9 * got[0]
    assert len(set(itertools.pairwise(got))) == 19  # it moves
