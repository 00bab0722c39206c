"""Any number of threads gives the same bits. The other tests run on one: see tests/conftest.py.

The products are in tests/ops, what is made of edge lists in tests/sparse, orders in tests/preprocess.
"""

from __future__ import annotations

import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.formats import format_spec
from gnnsparse.formats.convert import convert
from gnnsparse.precision import Precision, round_operand
from gnnsparse.testing import random_graph
from tests.helpers import assert_same_by_threads, make

#: Name, precision, panel.
KINDS = [
    ("window", "fp16", None), ("me-bcrs", "tf32", None), ("cvse", "fp16", None), ("tiled-csr", "fp16", None),
    ("hrpb", "fp16", 32), ("rs-tile", "fp16", None), ("panel", "fp16", 16), ("panel", "fp16", 64),
    ("panel-values", "fp16", 32), ("panel-values", "tf32", 32),
]  # fmt: skip


pytestmark = pytest.mark.usefixtures("any_threads")


@pytest.fixture(scope="module")
def graph() -> SparseGraph:
    return random_graph(2000, 1500, 0.01, hubs=3, empty_rows=0.2)


@pytest.mark.parametrize(("name", "precision", "panel"), KINDS)
def test_conversion(graph: SparseGraph, name: str, precision: str, panel: int | None) -> None:
    assert graph.values is not None
    spec, values = (
        format_spec(name, precision, panel=panel),
        round_operand(graph.values, Precision(precision)),
    )
    given = values if spec.stores_values else None
    assert_same_by_threads(lambda: list(convert(graph.csr, spec, given).arrays.values()))


@pytest.mark.parametrize("weights", ["gcn", "mean"])
def test_weights(weights: str) -> None:
    square = random_graph(1500, 1500, 0.01, weighted=False, hubs=2, empty_rows=0.1)
    x = torch.randn(1500, 8)

    def results() -> list[torch.Tensor]:
        a = make(square, "cpu", values=weights)
        return [a @ x, a.T @ x, a.indices()]

    assert_same_by_threads(results)


def test_counts_of_columns(graph: SparseGraph) -> None:
    assert_same_by_threads(lambda: [graph.csr.count_columns(height) for height in (8, 16, 100)])


def test_rounding() -> None:
    x = torch.randn(100_003)
    assert_same_by_threads(lambda: [round_operand(x, Precision.TF32)])


def test_gradient_of_the_softmax(graph: SparseGraph) -> None:
    a, scores = make(graph, "cpu"), torch.randn(graph.nnz)

    def results() -> list[torch.Tensor]:
        leaf = scores.clone().requires_grad_()
        p = gnnsparse.edge_softmax(a, leaf)
        return [p.detach(), *torch.autograd.grad(p, leaf, scores)]

    assert_same_by_threads(results)


@pytest.mark.parametrize("reduce", ["sum", "mean", "max"])
def test_heads(graph: SparseGraph, reduce: str) -> None:
    a = make(graph, "cpu", precision="fp16")
    q, x, values = torch.randn(2000, 3, 20), torch.randn(1500, 3, 20), torch.randn(a.nnz, 3)

    def results() -> list[torch.Tensor]:
        leaves = [t.clone().requires_grad_() for t in (q, x, values)]
        y = gnnsparse.spmm(a, leaves[1], leaves[2], reduce=reduce)
        p = gnnsparse.edge_softmax(a, gnnsparse.sddmm(a, leaves[0], leaves[1]))
        return [y, p, *torch.autograd.grad(y.square().sum() + p.square().sum(), leaves)]

    assert_same_by_threads(results)


def test_errors_are_found_by_every_thread() -> None:
    indptr, indices = torch.arange(0, 100_001, 10), torch.arange(100_000) % 7_000
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        wrong = indices.clone()
        wrong[77_777] = 9_000
        with pytest.raises(ValueError, match=r"indices.* 9000"):
            SparseGraph.from_csr(indptr, wrong, num_cols=7_000)
        wrong = indptr.clone()
        wrong[8_888] = 0
        with pytest.raises(ValueError, match="indptr: decreases after element 8887"):
            SparseGraph.from_csr(wrong, indices, num_cols=7_000)
