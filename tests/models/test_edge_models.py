"""The models that take features of edges, on the edges of one graph and of batches of graphs."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.data import GraphDataset, block_diagonal
from gnnsparse.data.datasets import EdgeFeatures
from gnnsparse.testing import assert_all_accurate, in_float64, with_gradients
from gnnsparse.train import PreprocessConfig
from gnnsparse.train.tasks.graph import GraphData
from models import MODELS

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import torch_geometric.nn as pyg

NODES, EDGES, COLUMNS = 20, 60, 3
NAMES = [name for name, model in MODELS.items() if model.edge_features != "none"]
WITHOUT = [name for name in NAMES if MODELS[name].edge_features == "optional"]
of_each = pytest.mark.parametrize("name", NAMES)


def edges(seed: int = 0) -> torch.Tensor:
    """Random edges, of which the first three are there twice, and self-loops; the last nodes have none."""
    found = torch.randint(0, NODES - 2, (2, EDGES), generator=torch.Generator().manual_seed(seed))
    return torch.cat([found, found[:, :3]], dim=1)


def operand(index: torch.Tensor, nodes: int = NODES) -> gnnsparse.SparseOperand:
    return gnnsparse.prepare(index, num_nodes=nodes, cache=False)


def model_of(name: str, **options: Any) -> Any:
    torch.manual_seed(1)
    if name == "meshgraphnet":  # whose blocks always add to what they get
        options.pop("residual", None)
    options = {"hidden_channels": 8, "out_channels": 3, "edge_channels": COLUMNS, **options}
    return MODELS[name].build(5, **options)


@of_each
@pytest.mark.parametrize(
    ("layers", "norm", "residual"), [(1, "none", False), (3, "batch", True), (3, "none", True)]
)
def test_shapes_and_gradients(name: str, layers: int, norm: str, residual: bool) -> None:
    model = model_of(name, num_layers=layers, norm=norm, residual=residual, dropout=0.3)
    index, x, attr = edges(), torch.randn(NODES, 5), torch.randn(EDGES + 3, COLUMNS, requires_grad=True)
    y = model(x, operand(index), attr)
    y.square().sum().backward()
    assert y.shape == (NODES, 3)
    unused = {
        parameter for parameter, tensor in model.named_parameters()
        if tensor.grad is None or not bool(tensor.grad.isfinite().all())
    }  # fmt: skip
    assert not unused, unused
    assert attr.grad is not None
    assert bool((attr.grad != 0).any(dim=1).all())
    assert (model.first_layer, model.takes_edge_features) == (model.lin1, True)
    assert not torch.equal(model(x, operand(index), attr), y)  # dropout
    model.eval()
    assert torch.equal(model(x, operand(index), attr), model(x, operand(index), attr))
    torch.testing.assert_close(model(x, operand(index), attr), model(x, index, attr))


@of_each
def test_rows_of_features_belong_to_their_edges(name: str) -> None:
    model, index, attr = model_of(name).eval(), edges(), torch.randn(EDGES + 3, COLUMNS)
    x, order = torch.randn(NODES, 5), torch.randperm(EDGES + 3)
    want = model(x, operand(index), attr)
    torch.testing.assert_close(model(x, operand(index[:, order]), attr[order]), want)
    assert not torch.allclose(model(x, operand(index), attr[order]), want)


@of_each
def test_outputs_of_a_batch_are_those_of_its_graphs(name: str) -> None:
    """In whatever order their edges are given, some of them twice; one graph has none."""
    generator = torch.Generator().manual_seed(3)
    sizes, pieces, graphs = [4, 1, 6, 3, 5, 2, 4, 3], [], []
    for at, nodes in enumerate(sizes):
        index = torch.randint(0, nodes, (2, 0 if at == 1 else 3 * nodes), generator=generator)
        pieces.append((index, torch.randn(index.shape[1], COLUMNS, generator=generator)))
        graphs.append(gnnsparse.SparseGraph(gnnsparse.SparseGraph.from_edge_index(index, nodes).csr))
    whole, ptr = block_diagonal(graphs)
    index = torch.cat([index + first for (index, _), first in zip(pieces, ptr, strict=False)], dim=1)
    attr, order = torch.cat([attr for _, attr in pieces]), torch.randperm(index.shape[1], generator=generator)
    more = EdgeFeatures(index[:, order], attr[order], None, {})
    mask = torch.arange(8) < 6
    x, y = torch.randn(int(ptr[-1]), 5, generator=generator), torch.arange(8) % 2
    parts = mask, torch.arange(8) == 6, torch.arange(8) == 7
    dataset = GraphDataset("toy", whole, ptr, x, y, *parts, 2, edge_features=more)
    data = GraphData(dataset, batch_size=4, preprocess=PreprocessConfig(cache=False))
    torch.manual_seed(1)
    model: Any = MODELS[name].for_task("graph").build(5, 8, 3, edge_channels=COLUMNS, pool="sum")
    model.eval()
    batch = data.gather("train", torch.tensor([4, 0, 1, 2]))
    got = model(batch.x, batch.adj, batch.graph_ptr, batch.edge_attr)
    one_by_one = []
    for at in (4, 0, 1, 2):
        own = x[ptr[at] : ptr[at + 1]]
        adj = operand(pieces[at][0], sizes[at])
        one_by_one.append(model(own, adj, torch.tensor([0, sizes[at]]), pieces[at][1]))
    torch.testing.assert_close(got, torch.cat(one_by_one))
    assert model.takes_edge_features
    with pytest.raises(ValueError, match="edge_features: are of other edges than the graph has"):
        GraphData(
            GraphDataset(
                "toy", whole, ptr, x, y, *parts, 2,
                edge_features=EdgeFeatures(index[:, :2], attr[:2], None, {}),
            ),
            batch_size=4,
        )  # fmt: skip


def compare(model: Any, theirs: Any) -> None:
    """Judge outputs and gradients of a model by those of another in float64."""
    index, inputs = edges(), [torch.randn(NODES, 5), torch.randn(EDGES + 3, COLUMNS)]
    a = operand(index)
    got = with_gradients(lambda x, attr: model(x, a, attr), inputs)
    plain = with_gradients(lambda x, attr: theirs(x, index, attr), inputs)
    with in_float64(theirs):
        exact = with_gradients(lambda x, attr: theirs(x, index, attr), [t.double() for t in inputs])
    assert_all_accurate(got, plain, exact)


def test_gine_is_that_of_pygs_layers() -> None:
    model = model_of("gine", num_layers=2, train_eps=True).eval()
    theirs = copy.deepcopy(model)
    theirs.convs = torch.nn.ModuleList(
        pyg.GINEConv(copy.deepcopy(conv.nn), train_eps=True, edge_dim=COLUMNS) for conv in model.convs
    )
    theirs.load_state_dict(model.state_dict())
    compare(model, theirs)


class PygMeshGraphNet(pyg.MessagePassing):
    """The network as PyG would have it: rows of all edges, and a sum at targets."""

    def __init__(self, model: Any) -> None:
        super().__init__(aggr="sum")
        self.model = model

    def forward(self, x: torch.Tensor, index: torch.Tensor, attr: torch.Tensor) -> torch.Tensor:
        x, edges = self.model.encode(self.model.lin1(x)), self.model.encode_edges(attr)
        for block, norm in zip(self.model.convs, self.model.norms, strict=True):
            edges = edges + block.edge_mlp(torch.cat([edges, x[index[1]], x[index[0]]], dim=1))
            total = self.propagate(index, edges=edges, size=(len(x), len(x)))
            x = norm(x + block.node_mlp(torch.cat([x, total], dim=1)))
        return self.model.lin(self.model.decode(x))

    def message(self, edges: torch.Tensor) -> torch.Tensor:
        return edges


@pytest.mark.parametrize("norm", ["none", "batch", "layer"])
def test_meshgraphnet_is_that_of_rows_of_edges(norm: str) -> None:
    model = model_of("meshgraphnet", num_layers=2, norm=norm).eval()
    theirs = PygMeshGraphNet(copy.deepcopy(model))
    compare(model, theirs)


def test_pna_scales_by_the_degrees_it_was_told() -> None:
    """As PyG's layers with the histogram of the same degrees do."""
    index = edges()
    degrees = index[1].bincount(minlength=NODES)
    model = model_of("pna", num_layers=2).eval()
    model.measure_degrees(degrees)
    theirs = copy.deepcopy(model)
    first = model.convs[0]
    theirs.convs = torch.nn.ModuleList(
        pyg.PNAConv(8, 8, ["mean", "max", "min", "std"], ["identity", "amplification", "attenuation"],
                    degrees.bincount(), edge_dim=COLUMNS)
        for _ in model.convs
    )  # fmt: skip
    for name in ("avg_deg_lin", "avg_deg_log"):
        told, counted = (getattr(conv.aggr_module, name) for conv in (first, theirs.convs[0]))
        torch.testing.assert_close(told, counted.reshape(1))
    theirs.load_state_dict(model.state_dict())
    x, attr = torch.randn(NODES, 5), torch.randn(EDGES + 3, COLUMNS)
    got, plain = model(x, operand(index), attr), theirs(x, index, attr)
    torch.testing.assert_close(got, plain, rtol=1e-4, atol=1e-4)
    model.measure_degrees(torch.zeros(4, dtype=torch.int64))
    assert bool(model(x, operand(index), attr).isfinite().all())


@pytest.mark.parametrize("name", WITHOUT)
def test_those_that_need_no_features_of_edges(name: str) -> None:
    model, index = model_of(name, edge_channels=0), edges()
    y = model(torch.randn(NODES, 5), operand(index))
    y.sum().backward()
    assert (y.shape, model.takes_edge_features) == ((NODES, 3), False)


def test_refusals() -> None:
    for name in ("gine", "meshgraphnet"):
        with pytest.raises(ValueError, match="edge_channels: got 0; accepted"):
            model_of(name, edge_channels=0)
    model, x = model_of("gine"), torch.randn(NODES, 5)
    for attr in (torch.randn(EDGES, COLUMNS), torch.randn(EDGES + 3, 2)):
        with pytest.raises(ValueError, match="edge_attr: "):
            model(x, operand(edges()), attr)
    for name, norm, known in (
        ("gine", "group", "none, batch, layer"), ("gatedgcn", "layer", "none, batch"),
        ("meshgraphnet", "group", "none, batch, layer"),
    ):  # fmt: skip
        with pytest.raises(
            ValueError, match=f"norm: got '{norm}'; accepted: one of {known}|accepted: {known}"
        ):
            MODELS[name].build(5, 8, 3, COLUMNS, norm=norm)
