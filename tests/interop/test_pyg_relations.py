"""PyG's layers of relations, which are one product of ours for all relations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

import gnnsparse
from gnnsparse.interop.pyg import graphs
from tests.helpers import copies_of
from tests.interop.pyg_cases import both, close, edges_of, interop, judge, left, pyg, used

NODES, WIDTH, RELATIONS = 40, 6, 4
KINDS = ["RGCNConv", "FastRGCNConv"]
EVERY = pytest.mark.parametrize("kind", KINDS)


class Typed(torch.nn.Module):
    """A layer of relations, called with edges whose types are made of them."""

    def __init__(self, kind: str, *more: Any, **options: Any) -> None:
        super().__init__()
        self.conv = getattr(pyg, kind)(WIDTH, 5, RELATIONS, *more, **options)

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        return self.conv(x, edges, edges.sum(0) % (RELATIONS - 1))  # the last relation has no edge


def given() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    edges = edges_of(nodes=NODES - 3)
    edges = torch.cat([edges, edges[:, :9]], dim=1)
    return torch.randn(NODES, WIDTH), edges, edges.sum(0) % RELATIONS


def run_plain(layer: Any, change: Callable[[Any], None], *arguments: Any) -> None:
    """Compare a layer and its accelerated copy after a change, where both are PyG's."""
    plain, ours = both(layer)
    ours(*arguments)
    assert used(ours)
    change(plain), change(ours)
    before = used(ours)
    close(ours(*arguments), plain(*arguments))
    assert used(ours) == before
    assert left(ours)


@pytest.mark.parametrize("options", [{}, {"aggr": "add"}, {"num_bases": 2}, {"root_weight": False}], ids=str)
@pytest.mark.parametrize("count", [0, 1, 200])
@EVERY
def test_random_graphs(kind: str, count: int, options: dict[str, Any]) -> None:
    """With repeated edges, isolated nodes, and a relation without edges."""
    plain, ours = both(Typed(kind, **options))
    judge(plain, ours, torch.randn(NODES, WIDTH), edges_of(1, count, nodes=NODES - 3))
    assert used(ours) == ({"spmm, fp32": 1} if count else {})


@EVERY
def test_other_features(kind: str) -> None:
    """Nodes without features, and features of sources and of targets."""
    _, edges, types = given()
    edges = edges % torch.tensor([[25], [15]])
    plain, ours = both(getattr(pyg, kind)((25, 15), 5, RELATIONS))
    for x in [(torch.randn(25, 25), torch.randn(15, 15)), (torch.arange(25), torch.arange(15))]:
        close(ours(x, edges, types), plain(x, edges, types))
    assert used(ours) == {"spmm, fp32": 1 if kind == "FastRGCNConv" else 2}
    for options in ({}, {"num_bases": 2}):
        plain, ours = both(getattr(pyg, kind)(25, 5, RELATIONS, **options))
        close(ours(None, edges, types), plain(None, edges, types))
        assert used(ours) == {"spmm, fp32": 1}


@EVERY
def test_compiled(kind: str) -> None:
    """Forward and backward, with edges that are known by their content, and with few pairs."""
    for relations in (RELATIONS, 60):
        x, edges, types = given()
        plain, ours = both(getattr(pyg, kind)(WIDTH, 5, relations, num_bases=2))
        torch._dynamo.reset()
        compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
        for other in (edges, edges.flip(0).contiguous()):
            found = []
            for layer in (plain, compiled):
                y = layer(leaf := x.clone().requires_grad_(), other, types)
                found.append([y, *torch.autograd.grad(y.square().sum(), [leaf, *layer.parameters()])])
            for got, want in zip(*found, strict=True):
                close(got, want)
    torch._dynamo.reset()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@EVERY
def test_lower_precisions(kind: str, dtype: torch.dtype) -> None:
    """The dtype of the output is PyG's, under autocast and of a layer of this dtype."""
    x, edges, types = given()
    plain, ours = both(getattr(pyg, kind)(WIDTH, 5, RELATIONS))
    with torch.autocast("cpu", dtype):
        got, want = ours(x, edges, types), plain(x, edges, types)
    assert got.dtype == want.dtype
    assert (got - want).norm() < 0.02 * want.norm()
    if dtype == torch.bfloat16:
        got, want = (layer.to(dtype)(x.to(dtype), edges, types) for layer in (ours, plain))
        assert got.dtype == want.dtype
        assert (got - want).float().norm() < 0.03 * want.float().norm()
    assert len(used(ours)) == 1


@EVERY
def test_changes_of_types_are_noticed(kind: str) -> None:
    x, edges, types = given()
    plain, ours = both(getattr(pyg, kind)(WIDTH, 5, RELATIONS))
    with mock.patch("gnnsparse.nn.adjacency.prepare", wraps=gnnsparse.prepare) as prepared:
        for _ in range(3):
            close(ours(x, edges, types), plain(x, edges, types))
        assert prepared.call_count == 1
        types[:30] = 1
        close(ours(x, edges, types), plain(x, edges, types))
        types = types.flip(0)
        close(ours(x, edges, types), plain(x, edges, types))
        edges[0, :7] = 3
        close(ours(x, edges, types), plain(x, edges, types))
        assert prepared.call_count == 4


def test_what_pyg_is_left_with() -> None:
    x, edges, types = given()
    make = lambda **options: pyg.RGCNConv(WIDTH, 5, RELATIONS, **options)  # noqa: E731

    def replace(layer: Any) -> None:
        layer.message = lambda x_j, **_: 2 * x_j

    run_plain(make(), replace, x, edges, types)
    run_plain(make(), lambda layer: layer.register_propagate_forward_hook(lambda *_: None), x, edges, types)
    assert "MaxAggregation" in str(interop.report(interop.accelerate(make(aggr="max"))))


@EVERY
def test_copies_files_backend_and_restored_layers(kind: str) -> None:
    x, edges, types = given()
    plain, ours = both(getattr(pyg, kind)(WIDTH, 5, RELATIONS, num_bases=2))
    want = plain(x, edges, types)
    for other in copies_of(ours):
        close(other(x, edges, types), want)
        assert used(other) == {"spmm, fp32": 1}
    with interop.backend("fp16", convert="always"):
        assert 0 < (plain(x, edges, types) - want).abs().max() < 0.1
    assert type(plain) is getattr(pyg, kind)
    assert torch.equal(interop.restore(ours)(x, edges, types), want)
    assert set(vars(ours)) == set(vars(plain))


def test_graphs_that_do_not_pay_leave_no_others() -> None:
    """Edges of one relation, which PyG takes out anew in each call, do not count as graphs of their own."""
    x, edges, types = given()
    layer = interop.accelerate(pyg.RGCNConv(WIDTH, 5, RELATIONS))
    graphs.memo.clear()
    with mock.patch.object(graphs, "_OF_CPU", graphs.replace(graphs._OF_CPU, graph_us=1e9)):
        layer(x, edges, types)
    assert "pays after" in left(layer)
    assert graphs.memo.usual is None
