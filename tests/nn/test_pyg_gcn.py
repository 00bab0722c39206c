"""GCNConv against PyG's: the same numbers, gradients, parameters and training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import gnnsparse
from gnnsparse.data.optional import import_optional
from gnnsparse.nn import GCNConv, dropout
from gnnsparse.testing import assert_accurate, assert_all_accurate, in_float64, with_gradients
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


def inputs_for(index: torch.Tensor, width: int, weighted: bool = False) -> list[torch.Tensor]:
    """x, and with `weighted` weights of the edges."""
    weights = [torch.rand(index.shape[1]) + 0.1] if weighted else []
    return [torch.randn(NODES, width), *weights]


def assert_as_pyg(
    ours: Any, theirs: Any, inputs: list[torch.Tensor], index: torch.Tensor, adj: Any = None
) -> None:
    """Output and gradients of all that has one are those of PyG's layer, which float64 judges beside ours.

    Args:
        inputs: x, or x and the weights of the edges.
        index: PyG's edge_index, and ours where `adj` is None.
    """

    def run(layer: Any, inputs: list[torch.Tensor], adj: Any = index) -> list[torch.Tensor]:
        return with_gradients(lambda x, *weight: layer(x, adj, *weight), inputs, layer.parameters())

    got, plain = run(ours, inputs, index if adj is None else adj), run(theirs, inputs)
    with in_float64(theirs):
        exact = run(theirs, [x.double() for x in inputs])
    assert [x.dtype for x in got] == [x.dtype for x in plain]
    assert_all_accurate(got, plain, exact)


@pytest.mark.parametrize("sizes", [(5, 12), (12, 5), (7, 7)], ids=str)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("mode", MODES, ids=str)
def test_output_and_gradients(
    mode: tuple[bool, bool | None], bias: bool, weighted: bool, sizes: tuple[int, int]
) -> None:
    normalize, loops = mode
    index = edges()
    ours, theirs = pair(*sizes, normalize=normalize, add_self_loops=loops, bias=bias)
    assert_as_pyg(ours, theirs, inputs_for(index, sizes[0], weighted), index)


@pytest.mark.parametrize("weighted", [False, True])
def test_improved(weighted: bool) -> None:
    index = edges(1)
    ours, theirs = pair(6, 4, improved=True)
    assert_as_pyg(ours, theirs, inputs_for(index, 6, weighted), index)


@pytest.mark.parametrize("weighted", [False, True])
def test_repeated_self_loops_count_once(weighted: bool) -> None:
    index = torch.cat([edges(2), torch.tensor([[3, 3, 3, 8], [3, 3, 3, 8]])], dim=1)
    ours, theirs = pair(6, 4)
    inputs = inputs_for(index, 6, weighted)
    got, plain = ours(inputs[0], index, *inputs[1:]), theirs(inputs[0], index, *inputs[1:])
    with in_float64(theirs):
        x, *weights = (t.double() for t in inputs)
        assert_accurate(got, plain, theirs(x, index, *weights))


@pytest.mark.parametrize("weighted", [False, True])
def test_no_edges(weighted: bool) -> None:
    index = torch.empty(2, 0, dtype=torch.int64)
    ours, theirs = pair(6, 4)
    assert_as_pyg(ours, theirs, inputs_for(index, 6, weighted), index)


def test_pygs_edge_index_class() -> None:
    kind = import_optional("torch_geometric", "this comparison").EdgeIndex
    index = edges()
    ours, theirs = pair(6, 4)
    adj = kind(index, sparse_size=(NODES, NODES))
    assert_as_pyg(ours, theirs, inputs_for(index, 6), index, adj)


def test_an_operand_gives_the_same_as_its_edges() -> None:
    """Without repeats of self-loops, which the operand would sum."""
    index = edges()
    ours, theirs = pair(6, 4)
    operand = gnnsparse.prepare(index, num_nodes=NODES, values="gcn", cache=False)
    assert_as_pyg(ours, theirs, inputs_for(index, 6), index, operand)


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


def losses(model: torch.nn.Module, x: torch.Tensor, index: Any, y: torch.Tensor) -> torch.Tensor:
    """The loss curve of 20 steps, with the same dropout for every model and dtype."""
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
        curve.append(loss.detach())
    return torch.stack(curve)


@pytest.mark.parametrize("prepared", [False, True])
def test_the_loss_curve_is_pygs(prepared: bool) -> None:
    index, x, y = edges(4), torch.randn(NODES, 24), torch.randint(0, 5, (NODES,))
    model = GCN(24, 16, 5, num_layers=2, dropout=0.5)
    theirs = PygGCN(model)
    operand = gnnsparse.prepare(index, num_nodes=NODES, values="gcn", cache=False)
    exact = losses(PygGCN(model).double(), x.double(), index, y)
    got = losses(model, x, operand if prepared else index, y)
    assert_accurate(got, losses(theirs, x, index, y), exact)
    assert got.min() < 0.9 * got[0]
    assert (got.diff() != 0).all()  # it moves
