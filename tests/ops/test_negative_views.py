"""Negative views as arguments of `prepare`, of layers and of products on the path of a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import gnnsparse
from gnnsparse import SparseOperand
from gnnsparse.nn import AGNNConv, GCNConv, SparseLinear
from gnnsparse.plan import Plan
from gnnsparse.testing import random_graph
from tests.gpu_paths import RecordingPath

ROWS, WIDTH = 30, 8


@pytest.mark.parametrize("kernel", ["csr", "window", "panel"])
def test_a_gpu_reads_computed_numbers(kernel: str, recorded: RecordingPath) -> None:
    a = gnnsparse.prepare(random_graph(ROWS, ROWS, 0.2, weighted=False), precision="fp16", cache=False)
    x = torch.randn(ROWS, 64).half()
    gnnsparse.spmm(a, torch._neg_view(x), plan=Plan(kernel))
    assert (read := recorded.views())
    tensors = [t for _, arguments in recorded.calls for t in arguments if isinstance(t, torch.Tensor)]
    assert x.data_ptr() not in [t.data_ptr() for t in (*tensors, *(view.tensor for view in read))]


@pytest.mark.filterwarnings("ignore:Sparse invariant checks:UserWarning")
def test_prepare_reads_values_and_indices() -> None:
    index, values = torch.randint(0, ROWS, (2, 90)), torch.rand(90)
    x = torch.randn(ROWS, WIDTH)
    want = gnnsparse.prepare(index, num_nodes=ROWS, values=-values, cache=False) @ x
    got = gnnsparse.prepare(index, num_nodes=ROWS, values=torch._neg_view(values), cache=False) @ x
    assert torch.equal(got, want)
    hidden = torch._neg_view(-index)
    assert torch.equal(gnnsparse.prepare(hidden, num_nodes=ROWS, values=-values, cache=False) @ x, want)
    index = index.flip(0)  # a matrix is not transposed
    sparse = torch.sparse_coo_tensor(index, torch._neg_view(values), (ROWS, ROWS))
    assert torch.equal(gnnsparse.prepare(sparse, cache=False) @ x, want)
    index = index.flip(0)
    with_weight = gnnsparse.prepare(
        index, num_nodes=ROWS, values="gcn", edge_weight=torch._neg_view(-values), cache=False
    )
    plain = gnnsparse.prepare(index, num_nodes=ROWS, values="gcn", edge_weight=values, cache=False)
    assert torch.equal(with_weight @ x, plain @ x)


def test_the_cache_tells_a_tensor_from_its_negative_view(tmp_path: Path) -> None:
    index, values, x = torch.randint(0, ROWS, (2, 90)), torch.rand(90), torch.randn(ROWS, WIDTH)

    def prepared(values: torch.Tensor) -> SparseOperand:
        return gnnsparse.prepare(index, num_nodes=ROWS, values=values, cache=tmp_path)

    plain, negative = prepared(values), prepared(torch._neg_view(values))
    assert not negative.cache_hit
    assert torch.equal(negative @ x, -(plain @ x))
    assert prepared(-values).cache_hit


def test_layers() -> None:
    index = torch.randint(0, ROWS, (2, 90))
    x, weight = torch.randn(ROWS, WIDTH), torch.rand(90)
    gcn, agnn = GCNConv(WIDTH, 4), AGNNConv()
    assert torch.equal(gcn(torch._neg_view(-x), index), gcn(x, index))
    assert torch.equal(gcn(x, index, torch._neg_view(-weight)), gcn(x, index, weight))
    assert torch.equal(agnn(torch._neg_view(-x), index), agnn(x, index))
    dense = torch.nn.Linear(16, 8)
    layer = SparseLinear.from_dense(dense, sparsity=0.5)
    y = torch.randn(3, 16)
    assert torch.equal(layer(torch._neg_view(-y)), layer(y))
    with torch.no_grad():
        dense.weight.set_(torch._neg_view(-dense.weight.detach()).resolve_neg())
    assert torch.equal(SparseLinear.from_dense(dense, sparsity=0.5).to_dense(), layer.to_dense())
