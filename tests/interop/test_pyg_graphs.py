"""Graphs are known again by their edge_index, are forgotten with it, and are converted when it pays."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch

import gnnsparse
from gnnsparse.interop.models import IdentityMemo
from gnnsparse.interop.pyg import aggregate, functions, graphs
from gnnsparse.interop.pyg.graphs import Settings, decide
from gnnsparse.nn.adjacency import Preparation
from gnnsparse.nn.aggregation import Aggregation
from gnnsparse.precision import Precision
from tests.interop.pyg_cases import both, interop, pyg, used
from tests.interop.pyg_cases import edges_of as random_edges
from tests.together import run_together

NODES = 50


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Each test starts with nothing kept, and leaves nothing."""
    graphs.memo.clear()
    yield
    graphs.memo.clear()


@pytest.fixture
def prepared() -> Iterator[mock.Mock]:
    """Sees each operand that layers make."""
    with mock.patch("gnnsparse.nn.adjacency.prepare", wraps=gnnsparse.prepare) as calls:
        yield calls


def edges_of(count: int = 200, seed: int = 0) -> torch.Tensor:
    return random_edges(seed, count, nodes=NODES)


def model(name: str = "GCNConv", **options: Any) -> Any:
    layers = [getattr(pyg, name)(8, 8) for _ in range(3)]
    return interop.accelerate(
        pyg.Sequential("x, e", [(layer, "x, e -> x") for layer in layers]), **{"convert": "always", **options}
    )


@pytest.mark.parametrize("name", ["GCNConv", "SAGEConv", "GATConv", "ClusterGCNConv", "SGConv", "LEConv"])
def test_layers_and_steps_share_one_operand(name: str, prepared: mock.Mock) -> None:
    """Without edge weights GCN stores no value for an edge."""
    net, x, edges = model(name), torch.randn(NODES, 8), edges_of()
    for _ in range(3):
        net(x, edges).sum().backward()
    assert prepared.call_count == 1
    if name == "GCNConv":
        interop.accelerate(pyg.GCNConv(8, 8), convert="always")(x, edges, torch.rand(200))
        assert [call.kwargs["values"] for call in prepared.call_args_list] == ["gcn", None]


@pytest.mark.parametrize("name", ["GCNConv", "SAGEConv", "GATConv"])
def test_changes_in_place_are_noticed(name: str) -> None:
    net, x, edges = model(name), torch.randn(NODES, 8), edges_of()
    plain = interop.restore(copy.deepcopy(net))
    for change in (
        lambda: None,
        lambda: edges[:, 3].copy_(torch.tensor([7, 9])),
        lambda: edges[1][:20].fill_(4),
        lambda: edges.set_(edges_of(seed=4)),
    ):
        change()
        torch.testing.assert_close(net(x, edges), plain(x, edges))


@pytest.mark.parametrize("reorder", ["none", "degree"])
def test_changes_of_weights_are_noticed(reorder: str) -> None:
    layer, ours = both(pyg.GraphConv(8, 8))
    interop.accelerate(ours, reorder=reorder, cache=False, convert="always")
    x, edges, weight = torch.randn(NODES, 8), edges_of(), torch.rand(200)
    for _ in range(8):
        torch.testing.assert_close(ours(x, edges, weight), layer(x, edges, weight))
        weight.mul_(1.5)


def test_results_that_somebody_changes_are_made_again() -> None:
    edges = edges_of()
    kept = functions.MEMOISED[functions.gcn_norm]
    index, weight = kept(edges, None, NODES)
    assert kept(edges, None, NODES)[1] is weight
    weight.mul_(3)
    assert torch.equal(kept(edges, None, NODES)[1], functions.gcn_norm(edges, None, NODES)[1])
    assert not graphs.memo.graph(index).is_gcn(weight, NODES)
    index, weight = kept(edges, None, NODES)
    assert graphs.memo.graph(index).is_gcn(weight, NODES)
    assert not graphs.memo.graph(index).is_gcn(weight, NODES + 1)  # which would have more self-loops


def test_equal_calls_are_decided_once() -> None:
    """What follows from the forms of arguments is found again when one of them is another."""
    layer, x, edges, weight = pyg.GraphConv(8, 8), torch.randn(NODES, 8), edges_of(), torch.rand(200)
    plain, ours = both(layer)
    ours(x, edges), ours(x, edges, weight)
    changes: list[tuple[int, Any]] = [
        (0, lambda: None),
        (0, lambda: edges.copy_(edges_of(seed=3))),
        (2, lambda: (plain.train(False), ours.train(False))),
        (2, lambda: (setattr(plain, "aggr_module", pyg.aggr.MeanAggregation()),
                     setattr(ours, "aggr_module", pyg.aggr.MeanAggregation()))),
        (2, lambda: interop.accelerate(ours, cache=False, convert="always")),
        (2, lambda: x.resize_(NODES + 1, 8).fill_(1.0)),
    ]  # fmt: skip
    for times, change in changes:
        change()
        with mock.patch("gnnsparse.interop.pyg.aggregate._call", wraps=aggregate._call) as decided:
            for _ in range(2):
                torch.testing.assert_close(ours(x, edges), plain(x, edges))
                torch.testing.assert_close(ours(x, edges, weight), plain(x, edges, weight))
        assert decided.call_count == times
    with torch.autocast("cpu", torch.bfloat16):
        assert ours(x, edges).dtype == plain(x, edges).dtype
    assert used(ours)["spmm, mean, bf16"] == 1


def test_tensors_of_inference_mode() -> None:
    """They have no version: their content is compared."""
    net, x = model("SAGEConv"), torch.randn(NODES, 8)
    plain = interop.restore(copy.deepcopy(net))
    with torch.inference_mode():
        edges = edges_of()
        torch.testing.assert_close(net(x, edges), plain(x, edges))
        edges[0, :50] = 3
        torch.testing.assert_close(net(x, edges), plain(x, edges))
    other = edges_of(seed=2)
    with torch.inference_mode():
        net(x, other)
    net(x, other).sum().backward()  # what was made in inference mode trains


def test_a_value_is_not_that_of_an_object_that_had_the_address() -> None:
    memo: IdentityMemo[int] = IdentityMemo()
    gone, later = torch.zeros(1), torch.zeros(1)
    memo.put(gone, 3)
    memo._values[id(later)] = memo._values[id(gone)]
    assert (memo.get(gone), memo.get(later)) == (3, None)


@pytest.mark.parametrize("name", ["GCNConv", "SAGEConv", "GATConv", "ChebConv", "TransformerConv"])
def test_many_graphs_leave_nothing(name: str) -> None:
    layer = pyg.ChebConv(8, 8, 2) if name == "ChebConv" else getattr(pyg, name)(8, 8)
    interop.accelerate(layer, convert="always")
    x = torch.randn(NODES, 8)
    layer(x, edges_of())
    operands: list[Any] = []
    gc.collect()
    for seed in range(100):
        edges = edges_of(60, seed)
        layer(x, edges).sum().backward()
        if seed % 10 == 0:
            known = graphs.memo.known(edges)
            assert known is not None
            operands.append(weakref.ref(known))
    assert len(graphs.memo._graphs) < 8
    del edges, known
    gc.collect()
    assert len(graphs.memo._graphs) == 0
    assert all(ref() is None for ref in operands)


def test_threads() -> None:
    net, x = model("GATConv"), torch.randn(NODES, 8)
    shared = [edges_of(seed=i) for i in range(4)]
    plain = interop.restore(copy.deepcopy(net))
    want = [plain(x, edges) for edges in shared]

    def work(start: int, barrier: threading.Barrier) -> None:
        barrier.wait()
        for step in range(12):
            place = (start + step) % 4
            torch.testing.assert_close(net(x, shared[place]), want[place], rtol=1e-4, atol=1e-5)

    run_together(4, work)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of fork, from Python 3.12
def test_batches_of_a_loader(workers: int) -> None:
    from torch_geometric.data import Data
    from torch_geometric.loader import DataLoader

    data = [Data(torch.randn(NODES, 8), edges_of(40 + i, i)) for i in range(12)]
    net = model("SAGEConv")
    plain = interop.restore(copy.deepcopy(net))
    for batch in DataLoader(data, batch_size=4, num_workers=workers):
        torch.testing.assert_close(net(batch.x, batch.edge_index), plain(batch.x, batch.edge_index))


def test_policy() -> None:
    quick, auto = Preparation(format="csr"), Settings()
    none, short, long = None, 2.0, 1000.0  # products that earlier graphs were used for
    big = decide(auto, "cpu", 1_000_000, 64, 0, none)
    assert big.preparation == quick
    small = [decide(auto, "cpu", 1000, 16, products, none).preparation for products in range(20)]
    assert small[0] is None
    assert small[-1] == quick  # paid by now
    assert decide(auto, "cpu", 1000, 16, 0, short).preparation is None
    assert decide(auto, "cpu", 1000, 16, 0, long).preparation == quick
    assert decide(auto, "cpu", 1000, 16, 500, short).preparation == quick  # outlives the others
    assert decide(Settings(convert="always"), "cpu", 10, 1, 0, none).preparation == quick
    full = Preparation("degree", "auto", True)
    assert decide(Settings(reorder="degree"), "cpu", 10, 1, 50, none).preparation == full
    assert decide(auto, "cuda", 10, 1, 50, none).preparation == Preparation("none", "auto", True)
    assert "pays after" in decide(auto, "cpu", 1000, 16, 0, short).why


def test_report_says_what_the_policy_decides() -> None:
    layer = interop.accelerate(pyg.SAGEConv(8, 8))
    layer(torch.randn(NODES, 8), edges_of(20))
    report = interop.report(layer)
    assert report.accelerated == report.ready == ()
    first, layers, advice, _ = str(report).splitlines()
    assert first == "0 of 1 layers accelerated"
    assert layers.startswith("(model)  SAGEConv  PyG: converting the graph pays after")
    assert advice.endswith("it: call it more often on this graph, or accelerate(model, convert='always')")


def test_long_used_graphs_are_reordered_and_stored(own_cache: Any) -> None:
    net, x, edges = model("SAGEConv", reorder="degree"), torch.randn(NODES, 8), edges_of()
    want = net(x, edges)
    assert not own_cache.exists()
    for _ in range(6):
        torch.testing.assert_close(net(x, edges), want)
    assert any(own_cache.rglob("*.safetensors"))


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("heads", [None, 3])
def test_gradient_of_weights_by_head(reduce: str, heads: int | None) -> None:
    """Repeated edges get the gradient of the nonzero that they were merged into, a mean's share of it."""
    edges = torch.cat([edges_of(80), edges_of(80)[:, :20]], dim=1)
    made = Aggregation(reduce, Precision.FP32).make(edges, (NODES, NODES), True)
    weight = torch.rand((100,) if heads is None else (100, heads)).requires_grad_()
    values = made.values(weight)
    probe = torch.randn_like(values)
    torch.testing.assert_close(made.values_grad(probe), torch.autograd.grad(values, weight, probe)[0])
    x = torch.randn((NODES, 8) if heads is None else (NODES, heads, 8))
    want = torch.zeros_like(x).index_add(0, edges[1], weight.detach()[..., None] * x[edges[0]])
    if reduce == "mean":
        counts = torch.bincount(edges[1], minlength=NODES).clamp(min=1)
        want = want / counts.view(-1, *[1] * (x.dim() - 1))
    torch.testing.assert_close(gnnsparse.spmm(made.operand, x, values.detach()), want)


def test_a_converted_graph_is_not_decided_on_in_each_call() -> None:
    """Graphs were used for 100 products in the mean: more work pays from 200 on."""
    layer = interop.accelerate(pyg.GraphConv(8, 8), reorder="degree", cache=False, convert="always")
    x, edges = torch.randn(NODES, 8), edges_of()
    graphs.memo.usual = 100
    layer(x, edges)
    with mock.patch.object(graphs, "decide", wraps=decide) as asked:
        for _ in range(199):
            layer(x, edges)
        assert not asked.called
        layer(x, edges)
        assert asked.call_count == 1
