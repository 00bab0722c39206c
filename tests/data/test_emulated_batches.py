"""Batches of small graphs on the path of a GPU: the kernels' results, of parts of one packed batch."""

from __future__ import annotations

import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph, SparseOperand
from gnnsparse.data import BlockBatches, block_diagonal
from gnnsparse.testing import assert_accurate, random_graph
from tests.helpers import ROUNDING, plain_product, product_scale


def whole_of(blocks: list[SparseGraph], precision: str, values: str | None) -> BlockBatches:
    whole, ptr = block_diagonal(blocks)
    options = {"values": values, "precision": precision, "format": "csr", "cache": False}
    return BlockBatches(gnnsparse.prepare(whole, **options), ptr)


def check(found: torch.Tensor, alone: SparseOperand, x: torch.Tensor, precision: str) -> None:
    matrix = alone.to_dense().double()
    floor, scale = max(ROUNDING[precision], 1e-6), product_scale(matrix, x)
    assert_accurate(found, plain_product(matrix, x, precision), matrix @ x.double(), floor=floor, scale=scale)


@pytest.mark.usefixtures("poisoned", "copyless")
@pytest.mark.parametrize("values", [None, "gcn"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_products_of_batches(precision: str, values: str | None) -> None:
    """Packed ones, and padded ones one after another in the same arrays, with a row that plans split."""
    sizes = (3, 7, 1, 15, 9, 300)
    blocks = [random_graph(n, n, 0.4, seed=n, weighted=values is None) for n in sizes[:-1]]
    star = torch.stack([torch.arange(300), torch.zeros(300, dtype=torch.int64)])
    packed = whole_of(blocks, precision, values)
    for batch in packed.split(torch.tensor([4, 0, 1, 3, 3, 2, 1]), [2, 1, 4]):
        for adj in (batch.adj, batch.adj.T):
            x = torch.randn(adj.shape[1], 16)
            check(adj @ x, adj, x, precision)
    batches = whole_of([*blocks, SparseGraph.from_edge_index(star, num_nodes=300)], precision, values)
    padded = batches.padded(3, 384, 1024)
    for graphs in ([4, 0, 5], [1, 3, 3], [5, 2, 1]):
        padded.chosen[:-1].copy_(torch.tensor(graphs))
        padded.assemble()
        batch = batches.select(torch.tensor(graphs))
        nodes = batch.adj.shape[0]
        for adj, alone in ((padded.adj, batch.adj), (padded.adj.T, batch.adj.T)):
            x = torch.randn(384, 16)
            found = adj @ x
            check(found[:nodes], alone, x[:nodes], precision)
            assert not found[nodes:].any()
