"""Graphs, operands and layers that are saved, copied, and trained by several processes."""

from __future__ import annotations

import contextlib
import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph, SparseOperand, handles
from gnnsparse.formats import operations
from gnnsparse.nn import GATConv, GCNConv
from gnnsparse.testing import random_graph
from tests.helpers import FORMAT_PRECISIONS, PRECISIONS
from tests.together import in_two_processes


def by_file(thing: Any, path: Path) -> Any:
    torch.save(thing, path)
    return torch.load(path, weights_only=False)


def by_pickle(thing: Any, path: Path) -> Any:
    return pickle.loads(pickle.dumps(thing))


def by_copy(thing: Any, path: Path) -> Any:
    return copy.deepcopy(thing)


WAYS = (by_file, by_pickle, by_copy)


@given(
    size=st.tuples(st.integers(0, 12), st.integers(0, 12)), weighted=st.booleans(), way=st.sampled_from(WAYS),
    repeats=st.booleans(),
)  # fmt: skip
def test_a_graph_comes_back(
    tmp_path_factory: pytest.TempPathFactory, size: tuple[int, int], weighted: bool,
    way: Callable[..., Any], repeats: bool,
) -> None:  # fmt: skip
    graph = random_graph(*size, 0.3, weighted=weighted)
    if repeats:
        ends = torch.stack([graph.csr.indices.long(), graph.csr.row_index()]).repeat(1, 2)
        graph = SparseGraph.from_edge_index(ends, (graph.num_cols, graph.num_rows))
    found = way(graph, tmp_path_factory.mktemp("graph") / "graph.pt")
    assert found.fingerprint == graph.fingerprint
    assert found.num_edges == graph.num_edges
    if graph.nnz_index_of_edge is None:
        assert found.nnz_index_of_edge is None
    else:
        assert torch.equal(found.nnz_index_of_edge, graph.nnz_index_of_edge)


def results(a: SparseOperand) -> list[torch.Tensor]:
    """Products, their gradients, and everything that is in the order of edges."""
    torch.manual_seed(0)
    x, y = torch.randn(a.shape[1], 8, requires_grad=True), torch.randn(a.shape[0], 8)
    edges = torch.randn(a.num_edges)
    found = [a @ x, a.T @ y, a.to_coo_order(torch.randn(a.nnz)), a.from_coo_order(edges), a.to_dense()]
    if "sddmm" not in operations(a.kernels.format_name):
        (gradient,) = torch.autograd.grad(found[0].square().sum(), [x])
        return [*found, gradient, a.indices()]
    found.insert(2, gnnsparse.spmm(a, x, a.from_coo_order(edges)))
    scores = gnnsparse.sddmm(a, y, x)
    found += [scores, gnnsparse.edge_softmax(a, scores), gnnsparse.attention(a, y, x, x)]
    (gradient,) = torch.autograd.grad(found[0].sum() + found[2].square().sum() + found[-1].sum(), [x])
    return [*found, gradient, a.indices()]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("options", "precision"), [
    *itertools.product([
        {}, {"values": "gcn", "reorder": "rcm"}, {"values": "mean", "reorder": "degree"}, {"autotune": True},
    ], PRECISIONS),
    *(({"format": name}, precision) for name, precision in FORMAT_PRECISIONS if name != "csr"),
], ids=str)  # fmt: skip
def test_an_operand_gives_the_same_bits(
    options: dict[str, Any], precision: str, way: Callable[..., Any], tmp_path: Path
) -> None:
    ends = torch.randint(0, 30, (2, 200))  # with repeats
    a = gnnsparse.prepare(ends, num_nodes=30, precision=precision, cache=False, **options)
    for of in (a, a.T):
        with contextlib.nullcontext() if way is by_copy else forgotten():
            found = way(of, tmp_path / "operand.pt")
            got = results(found)
        assert (found is of) == (way is by_copy)
        assert all(torch.equal(mine, right) for mine, right in zip(got, results(of), strict=True))
        assert (found.precision, found.normalization) == (of.precision, of.normalization)
        assert (found.num_edges, found.added_loops) == (of.num_edges, of.added_loops)


@contextlib.contextmanager
def forgotten() -> Iterator[None]:
    """No operand is known in here, as in another process."""
    known = dict(handles._held)
    handles._held.clear()
    try:
        yield
    finally:
        handles._held.update(known)


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


@pytest.mark.parametrize("way", WAYS)
def test_a_model_with_its_operand(way: Callable[..., Any], tmp_path: Path) -> None:
    a, x = gnnsparse.prepare(random_graph(20, 20, 0.2), values="gcn", cache=False), torch.randn(20, 8)
    model = torch.nn.ModuleList([GCNConv(8, 4), GATConv(8, 4, heads=2)])
    index = torch.randint(0, 20, (2, 60))
    right = [layer(x, graph) for layer in model for graph in (a, index)]
    found, operand = way((model, a), tmp_path / "model.pt")
    assert all(
        torch.equal(got, wanted)
        for got, wanted in zip([layer(x, g) for layer in found for g in (operand, index)], right, strict=True)
    )


class Net(torch.nn.Module):
    """Two layers; the operand is an argument of `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = GCNConv(8, 16), GATConv(16, 4, heads=2)

    def forward(self, x: torch.Tensor, adj: SparseOperand) -> torch.Tensor:
        return self.last(self.first(x, adj).relu(), adj)


def _losses(model: torch.nn.Module, a: SparseOperand, x: torch.Tensor, steps: int = 3) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x, a).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return found


def _train(rank: int, folder: str) -> None:
    a, xs, model = torch.load(f"{folder}/given.pt", weights_only=False)
    model = torch.nn.parallel.DistributedDataParallel(model)
    losses = _losses(model, a, xs[rank])
    state = {name: value.detach() for name, value in model.module.state_dict().items()}
    torch.save((losses, state), f"{folder}/found{rank}.pt")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_two_processes_train_one_model(tmp_path: Path) -> None:
    """The gradient of DDP is the mean of those of the processes."""
    a = gnnsparse.prepare(random_graph(30, 30, 0.2, weighted=False), values="gcn", cache=False)
    xs, model = [torch.randn(30, 8), torch.randn(30, 8)], Net()
    torch.save((a, xs, model), tmp_path / "given.pt")
    in_two_processes(_train, str(tmp_path))
    (first, state), (second, other) = (torch.load(tmp_path / f"found{rank}.pt") for rank in range(2))
    assert all(torch.equal(state[name], other[name]) for name in state)

    class Both(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, xs: Any, a: SparseOperand) -> torch.Tensor:
            return torch.stack([self.model(x, a) for x in xs])

    alone = _losses(Both(), a, xs)  # type: ignore[arg-type]
    torch.testing.assert_close(torch.stack(alone), (torch.stack(first) + torch.stack(second)) / 2)
    for name, value in model.state_dict().items():
        torch.testing.assert_close(state[name], value)
