"""Accelerated PyG layers that are given a sparse adjacency matrix of torch in place of an edge_index."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from gnnsparse.data.optional import import_optional
from gnnsparse.interop.pyg.graphs import memo
from tests.interop.pyg_cases import both, interop, judge, left, pyg, used

pyg_utils: Any = import_optional("torch_geometric.utils", "these tests")
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*[Ss]parse.*:UserWarning"),
    pytest.mark.filterwarnings("ignore:The usage of `scatter:UserWarning"),
]

NODES, WIDTH = 40, 8
LAYERS: dict[str, Callable[[], Any]] = {
    "APPNP": lambda: pyg.APPNP(3, 0.1),
    "GCNConv": lambda: pyg.GCNConv(WIDTH, 4),
    "GCN2Conv": lambda: _With(pyg.GCN2Conv(WIDTH, 0.1)),
    "GINConv": lambda: pyg.GINConv(torch.nn.Linear(WIDTH, 4)),
    "GatedGraphConv": lambda: pyg.GatedGraphConv(WIDTH, 2),
    "GraphConv": lambda: pyg.GraphConv(WIDTH, 4),
    "LGConv": lambda: pyg.LGConv(),
    "SAGEConv": lambda: pyg.SAGEConv(WIDTH, 4),
    "SGConv": lambda: pyg.SGConv(WIDTH, 4, K=2),
    "SSGConv": lambda: pyg.SSGConv(WIDTH, 4, alpha=0.1, K=2),
    "TAGConv": lambda: pyg.TAGConv(WIDTH, 4),
}


class _With(torch.nn.Module):
    """A layer that also takes the features of the first layer."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, adj: torch.Tensor) -> torch.Tensor:
        return self.layer(x, x, adj)


# PyG writes a layer's `propagate` once in a process, for what the first of its class can do: a first one that
# aggregates by an LSTM leaves out the product with a sparse matrix for all that come after it.
for _make in LAYERS.values():
    _make()


def matrix(layout: str = "csr", *, ones: bool = False, device: str = "cpu", **options: Any) -> torch.Tensor:
    """A sparse matrix [targets, sources], some rows of which are empty."""
    generator = torch.Generator().manual_seed(3)
    dense = torch.rand(NODES, NODES, generator=generator)
    dense = dense * (torch.rand(NODES, NODES, generator=generator) < 0.1)
    dense[:4] = 0
    dense = (dense > 0).float() if ones else dense
    return getattr(dense.to(device), f"to_sparse_{layout}")(**options)


#: Layers that do not normalise their matrix, which PyG does not do in CSC.
AS_GIVEN = ("GINConv", "GatedGraphConv", "GraphConv", "SAGEConv")
CASES = [(name, layout) for name in LAYERS for layout in ("csr", "csc", "coo")]
CASES = [case for case in CASES if case[0] in AS_GIVEN or case[1] != "csc"]


@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize(("name", "layout"), CASES)
def test_same_numbers(name: str, layout: str, ones: bool, device: str) -> None:
    plain, ours = both(LAYERS[name]().to(device))
    adj = matrix(layout, ones=ones, device=device)
    x = torch.randn(NODES, WIDTH, device=device)
    judge(plain, ours, x, adj)
    assert "spmm" in str(used(ours))
    assert "layout" not in left(ours)


def test_the_operand_is_kept_and_follows_changes() -> None:
    layer = interop.accelerate(pyg.SAGEConv(WIDTH, 4), convert="always")
    plain = interop.restore(copy.deepcopy(layer))
    adj, x = matrix(), torch.randn(NODES, WIDTH)
    for _ in range(3):
        torch.testing.assert_close(layer(x, adj), plain(x, adj), rtol=1e-4, atol=1e-5)
    graphs = len(memo._graphs)
    adj.values().mul_(-2.0)
    torch.testing.assert_close(layer(x, adj), plain(x, adj), rtol=1e-4, atol=1e-5)
    assert interop.report(layer).rows[0].calls == {"spmm, mean, fp32": 4}
    del adj
    gc.collect()
    assert len(memo._graphs) < graphs


def test_normalised_matrices_are_kept() -> None:
    """GCN normalises its matrix in each call, and still has one operand of it."""
    memo.clear()  # how long other tests' graphs were used decides whether this one is converted
    layer = interop.accelerate(pyg.GCNConv(WIDTH, 4))
    adj, x = matrix(), torch.randn(NODES, WIDTH)
    plain = interop.restore(copy.deepcopy(layer))
    for _ in range(60):
        out = layer(x, adj)
    torch.testing.assert_close(out, plain(x, adj), rtol=1e-4, atol=1e-5)
    assert "spmm, sum, fp32" in used(layer)


_DEGREES = torch.tensor([4, 8, 16, 8])
#: Layers that multiply by no matrix, and the numbers that a nonzero has.
BY_EDGES: dict[str, tuple[Callable[[], Any], int]] = {
    "GATConv": (lambda: pyg.GATConv(WIDTH, 4, heads=2, add_self_loops=False), 0),
    "LEConv": (lambda: pyg.LEConv(WIDTH, 4), 0),
    "GENConv": (lambda: pyg.GENConv(WIDTH, 4, "softmax", edge_dim=3), 3),
    "PNAConv": (lambda: pyg.PNAConv(WIDTH, 4, ["mean", "std"], ["identity"], _DEGREES, edge_dim=3), 3),
    "ResGatedGraphConv": (lambda: pyg.ResGatedGraphConv(WIDTH, 4), 0),
}


@pytest.mark.parametrize("layout", ["csr", "coo"])
@pytest.mark.parametrize("name", BY_EDGES)
def test_layers_that_multiply_by_no_matrix(name: str, layout: str) -> None:
    """They take its edges, with its values for weights or features."""
    make, numbers = BY_EDGES[name]
    plain, ours = both(make())
    adj, x = matrix(layout), torch.randn(NODES, WIDTH)
    if numbers:
        coo = adj.to_sparse_coo().coalesce()
        values = torch.randn(coo._nnz(), numbers)
        adj = torch.sparse_coo_tensor(coo.indices(), values, (NODES, NODES, numbers), is_coalesced=True)
        adj = adj if layout == "coo" else adj.to_sparse_csr()
    judge(plain, ours, x, adj)
    out = ours(x, adj)
    assert sum(used(ours).values()) == 2
    assert left(ours) == ""
    assert len(memo.graph(adj).results) == 1, "the edges are made in each call"
    if name not in ("GATConv", "PNAConv"):  # which with an edge_index are computed as a whole
        edges, given = pyg_utils.to_edge_index(adj)
        assert torch.equal(out, ours(x, edges.flip(0), *(() if name == "ResGatedGraphConv" else (given,))))


def test_matrices_of_other_sizes_and_changed_values() -> None:
    """Sources and targets are other nodes; values that change in place are seen."""
    plain, ours = both(pyg.LEConv((WIDTH, WIDTH), 4))
    adj = matrix().to_dense()[:9].to_sparse_csr()
    pair = torch.randn(NODES, WIDTH), torch.randn(9, WIDTH)
    for _ in range(2):
        torch.testing.assert_close(ours(pair, adj), plain(pair, adj), rtol=1e-4, atol=1e-5)
        adj.values().mul_(-2.0)
    assert used(ours) == {"aggregate_edges, sum, fp32": 2}


@pytest.mark.parametrize("aggr", ["max", "min"])
def test_what_is_left_to_pyg(aggr: str) -> None:
    plain, ours = both(pyg.SAGEConv(WIDTH, 4, aggr=aggr))
    adj, x = matrix(), torch.randn(NODES, WIDTH)
    torch.testing.assert_close(ours(x, adj), plain(x, adj))
    assert "reduction" in left(ours)


@pytest.mark.parametrize("kind", [pyg.GraphConv, pyg.LEConv])
def test_gradients_of_the_matrix_are_torchs(kind: Any) -> None:
    layer = interop.accelerate(kind(WIDTH, 4), convert="always")
    adj = matrix().requires_grad_()
    layer(torch.randn(NODES, WIDTH), adj).square().sum().backward()
    assert adj.grad is not None
    assert "gradient" in left(layer)


def test_what_pyg_refuses_raises_as_before() -> None:
    for kind, layout, nodes in (
        ("GraphConv", "csr", NODES - 1),
        ("LEConv", "csr", NODES - 1),
        ("LEConv", "csc", NODES),
    ):
        for model in both(getattr(pyg, kind)(WIDTH, 4)):
            with pytest.raises((RuntimeError, ValueError)):
                model(torch.randn(nodes, WIDTH), matrix(layout))
