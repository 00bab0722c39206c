"""Batches of small graphs on the path of a GPU: the kernels' results, of parts of one packed batch."""

from __future__ import annotations

import pytest
import torch

import gnnsparse
from gnnsparse.data import BlockBatches, block_diagonal
from gnnsparse.testing import assert_accurate, random_graph
from tests.gpu_paths import RunningPath
from tests.helpers import ROUNDING, plain_product, product_scale


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("values", [None, "gcn"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_products_of_batches(copyless: RunningPath, precision: str, values: str | None) -> None:
    sizes = (3, 7, 1, 15, 9)
    blocks = [random_graph(n, n, 0.4, seed=n, weighted=values is None) for n in sizes]
    whole, ptr = block_diagonal(blocks)
    operand = gnnsparse.prepare(whole, values=values, precision=precision, format="csr", cache=False)
    batches = BlockBatches(operand, ptr)
    for batch in batches.split(torch.tensor([4, 0, 1, 3, 3, 2, 1]), [2, 1, 4]):
        for adj in (batch.adj, batch.adj.T):
            matrix, x = adj.to_dense().double(), torch.randn(adj.shape[1], 16)
            floor, scale = max(ROUNDING[precision], 1e-6), product_scale(matrix, x)
            plain, exact = plain_product(matrix, x, precision), matrix @ x.double()
            assert_accurate(adj @ x, plain, exact, floor=floor, scale=scale)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("values", [None, "gcn"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_products_of_padded_batches(copyless: RunningPath, precision: str, values: str | None) -> None:
    """One after another in the same arrays, with a row that is longer than those that plans split."""
    sizes = (3, 7, 1, 15, 9, 300)
    blocks = [random_graph(n, n, 0.4, seed=n, weighted=values is None) for n in sizes[:-1]]
    star = torch.stack([torch.arange(300), torch.zeros(300, dtype=torch.int64)])
    blocks.append(gnnsparse.SparseGraph.from_edge_index(star, num_nodes=300))
    whole, ptr = block_diagonal(blocks)
    operand = gnnsparse.prepare(whole, values=values, precision=precision, format="csr", cache=False)
    batches = BlockBatches(operand, ptr)
    padded = batches.padded(3, 384, 1024)
    for graphs in ([4, 0, 5], [1, 3, 3], [5, 2, 1]):
        padded.chosen[:-1].copy_(torch.tensor(graphs))
        padded.assemble()
        batch = batches.select(torch.tensor(graphs))
        nodes = batch.adj.shape[0]
        for adj, alone in ((padded.adj, batch.adj), (padded.adj.T, batch.adj.T)):
            matrix, x = alone.to_dense().double(), torch.randn(384, 16)
            floor, own = max(ROUNDING[precision], 1e-6), x[:nodes]
            found = adj @ x
            plain, exact = plain_product(matrix, own, precision), matrix @ own.double()
            assert_accurate(found[:nodes], plain, exact, floor=floor, scale=product_scale(matrix, own))
            assert not found[nodes:].any()
