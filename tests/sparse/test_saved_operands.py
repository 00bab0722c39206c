"""Graphs, operands and layers that are saved, copied, and trained by several processes."""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph, SparseOperand
from gnnsparse.nn import GATConv, GCNConv
from gnnsparse.plan import CsrPlan
from gnnsparse.plan.store import PlanStore
from gnnsparse.sparse import operand as operands
from gnnsparse.testing import random_graph
from tests.helpers import FORMAT_PRECISIONS, PRECISIONS, results, same
from tests.together import in_two_processes

WAYS = ("file", "safe file", "pickle", "copy")


def brought_back(way: str, thing: Any, path: Path) -> Any:
    if way == "copy":
        return copy.deepcopy(thing)
    if way == "pickle":
        return pickle.loads(pickle.dumps(thing))
    torch.save(thing, path)
    return torch.load(path, weights_only=way == "safe file")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [(0, 0), (0, 9), (9, 0), (1, 1), (12, 7)], ids=str)
@pytest.mark.parametrize("kind", ["plain", "weighted", "repeats"])
def test_a_graph_comes_back(tmp_path: Path, size: tuple[int, int], kind: str, way: str) -> None:
    graph = random_graph(*size, 0.3, weighted=kind == "weighted")
    if kind == "repeats":
        ends = torch.stack([graph.csr.indices.long(), graph.csr.row_index()]).repeat(1, 2)
        graph = SparseGraph.from_edge_index(ends, (graph.num_cols, graph.num_rows))
    found = brought_back(way, graph, tmp_path / "graph.pt")
    assert found.fingerprint == graph.fingerprint
    assert found.num_edges == graph.num_edges
    assert (found.nnz_index_of_edge is None) == (graph.nnz_index_of_edge is None)
    if graph.nnz_index_of_edge is not None:
        assert torch.equal(found.nnz_index_of_edge, graph.nnz_index_of_edge)


def assert_comes_back(way: str, a: SparseOperand, path: Path) -> SparseOperand:
    with contextlib.nullcontext() if way == "copy" else forgotten():
        found = brought_back(way, a, path)
        got = results(found)
    assert (found is a) == (way == "copy")
    assert same(got, results(a))
    return found


@pytest.mark.parametrize(("options", "precision", "way"), [
    *((*pair, way) for pair, way in zip(itertools.product([
        {}, {"values": "gcn", "reorder": "rcm"}, {"values": "mean", "reorder": "degree"}, {"autotune": True},
        {"reorder": "metis"},
    ], PRECISIONS), itertools.cycle([*WAYS, WAYS[0]]), strict=False)),
    *(({"format": name}, precision, way) for name, precision in FORMAT_PRECISIONS if name != "csr"
      for way in ("safe file", "copy")),
], ids=str)  # fmt: skip
def test_an_operand_gives_the_same_bits(
    options: dict[str, Any], precision: str, way: str, tmp_path: Path
) -> None:
    ends = torch.randint(0, 30, (2, 200))  # with repeats
    a = gnnsparse.prepare(ends, num_nodes=30, precision=precision, cache=False, **options)
    for of in (a, a.T):
        found = assert_comes_back(way, of, tmp_path / "operand.pt")
        assert (found.precision, found.normalization) == (of.precision, of.normalization)
        assert (found.num_edges, found.added_loops) == (of.num_edges, of.added_loops)


def test_a_part_comes_back(tmp_path: Path) -> None:
    graph = random_graph(20, 20, 0.3, weighted=False)
    a = gnnsparse.prepare(graph, values="gcn", precision="fp16", cache=False)
    found = assert_comes_back("safe file", a[torch.arange(20).flip(0)], tmp_path / "part.pt")
    assert not found.has_self_loops
    assert found.added_loops == 1.0


def test_measured_plans_come_along(tmp_path: Path) -> None:
    store = PlanStore("a graph", None)
    plan = CsrPlan()
    store._found["a product"] = plan
    again = PlanStore.from_plain(pickle.loads(pickle.dumps(store.to_plain())))
    assert again.find("a product", [plan]) == plan
    assert again.to_plain() == store.to_plain()
    with pytest.warns(gnnsparse.CacheWarning, match="what was saved with the operand holds no plan that can"):
        assert PlanStore.from_plain(store.to_plain()).find("a product", []) is None
    assert again.find("another", [plan]) is None


def saved_parts(a: SparseOperand) -> tuple[Callable[..., Any], list[Any]]:
    """What pickle calls, and with what; parts may be replaced."""
    function, parts = a.__reduce__()
    return function, [dict(part) if isinstance(part, dict) else part for part in parts]


@pytest.mark.parametrize(("part", "name", "damage", "message"), [
    (0, "forward.indices", lambda t: t + 100, "forward.indices: "),
    (0, "forward.indptr", lambda t: t.flip(0), "forward.indptr: "),
    (0, "forward.indptr", lambda t: t.int(), "forward.indptr: got int32"),
    (0, "transpose_map", lambda t: t * 0, "transpose_map: "),
    (0, "values", lambda t: t[1:], "values: got float32"),
    (0, "values", lambda t: t * torch.inf, "values: are not finite"),
    (0, "values", lambda t: "text", "tensors: got dict; accepted: the arrays of a saved operand by name"),
    (1, "rows", lambda n: n + 1, "forward.indptr: "),
    (2, "version", lambda n: n + 1, "state: is no operand saved by this version"),
    (2, "precision", lambda n: "fp7", "state.precision: got 'fp7'; accepted: fp32, tf32, fp16, bf16"),
    (2, "balance", lambda n: "all", "state.balance: got 'all'"),
    (2, "normalization", lambda n: "sum", "state.normalization: got 'sum'"),
    (2, "handles", lambda n: n[:1], "state.handles: has 1 entries"),
    (2, "added_loops", lambda n: "many", "could not convert string to float"),
    (2, "plans", lambda n: {}, "plans: has no graph"),
])  # fmt: skip
def test_damaged_files(part: int, name: str, damage: Callable[[Any], Any], message: str) -> None:
    """Whatever a file holds, nothing but an error that names the part comes of it."""
    a = gnnsparse.prepare(random_graph(20, 30, 0.3), cache=False)
    function, parts = saved_parts(a)
    parts[part][name] = damage(parts[part][name])
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        function(*parts)


def test_damaged_graphs() -> None:
    graph = random_graph(4, 5, 0.6)
    function, parts = graph.__reduce__()
    indptr, indices, cols, values, _ = parts
    assert function(*parts).fingerprint == graph.fingerprint
    for damaged, message in (
        ((indptr, indices + 9, cols, values, None), "indices: element"),
        ((indptr, indices.flip(0), cols, values, None), "indices: do not ascend in each row"),
        ((indptr, indices, cols, values[1:], None), "values: has shape"),
        ((indptr, indices, cols, values, torch.tensor([graph.nnz])), "nnz_index_of_edge: element 0 is"),
        ((indptr[1:], indices, cols, values, None), "indptr: runs from"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            function(*damaged)


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"format": "window", "values": "gcn"}], ids=str)
def test_an_operand_is_loaded_where_map_location_says(options: dict[str, Any], tmp_path: Path) -> None:
    graph, x = random_graph(60, 60, 0.2), torch.randn(60, 16)
    for made, other in (("cpu", "cuda"), ("cuda", "cpu")):
        a = gnnsparse.prepare(graph, precision="fp16", cache=False, **options).to(made)
        torch.save(a, tmp_path / "a.pt")
        with forgotten():
            found = torch.load(tmp_path / "a.pt", map_location=other, weights_only=True)
            assert found.device.type == other
            assert torch.equal(found @ x.to(other), a.to(other) @ x.to(other))


@contextlib.contextmanager
def forgotten() -> Iterator[None]:
    """No operand is known in here, as in another process."""
    known = dict(operands._operands)
    operands._operands.clear()
    try:
        yield
    finally:
        operands._operands.update(known)


def test_an_operand_that_exists_is_not_made_again() -> None:
    a = gnnsparse.prepare(random_graph(9, 9, 0.3), cache=False)
    found, transposed = pickle.loads(pickle.dumps((a, a.T)))
    assert found is a
    assert transposed is a.T
    handle, content = a.handle, pickle.dumps(a)
    del a, found, transposed
    again = pickle.loads(content)
    assert again.handle == handle
    assert pickle.loads(content) is again


@pytest.mark.parametrize("way", [way for way in WAYS if way != "safe file"])
def test_a_model_with_its_operand(way: str, tmp_path: Path) -> None:
    a, x = gnnsparse.prepare(random_graph(20, 20, 0.2), values="gcn", cache=False), torch.randn(20, 8)
    model = torch.nn.ModuleList([GCNConv(8, 4), GATConv(8, 4, heads=2)])
    index = torch.randint(0, 20, (2, 60))
    right = [layer(x, graph) for layer in model for graph in (a, index)]
    found, operand = brought_back(way, (model, a), tmp_path / "model.pt")
    assert same([layer(x, graph) for layer in found for graph in (operand, index)], right)


class Net(torch.nn.Module):
    """Two layers; the operand is an argument of `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = GCNConv(8, 16), GATConv(16, 4, heads=2)

    def forward(self, adj: SparseOperand, *xs: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.last(self.first(x, adj).relu(), adj) for x in xs])


def _losses(model: torch.nn.Module, a: SparseOperand, *xs: torch.Tensor) -> torch.Tensor:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(3):
        optimizer.zero_grad()
        found.append(model(a, *xs).square().mean())
        found[-1].backward()
        optimizer.step()
    return torch.stack(found).detach()


def _train(rank: int, folder: str) -> None:
    a, xs, model = torch.load(f"{folder}/given.pt", weights_only=False)
    losses = _losses(torch.nn.parallel.DistributedDataParallel(model), a, xs[rank])
    torch.save((losses, model.state_dict()), f"{folder}/found{rank}.pt")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_processes_train_one_model(tmp_path: Path) -> None:
    """The gradient of DDP is the mean of those of the processes."""
    a = gnnsparse.prepare(random_graph(30, 30, 0.2, weighted=False), values="gcn", cache=False)
    xs, model = [torch.randn(30, 8), torch.randn(30, 8)], Net()
    torch.save((a, xs, model), tmp_path / "given.pt")
    in_two_processes(_train, str(tmp_path))
    (first, state), (second, other) = (torch.load(tmp_path / f"found{rank}.pt") for rank in range(2))
    torch.testing.assert_close(_losses(model, a, *xs), (first + second) / 2)
    for name, value in model.state_dict().items():
        assert torch.equal(state[name], other[name])
        torch.testing.assert_close(state[name], value)
