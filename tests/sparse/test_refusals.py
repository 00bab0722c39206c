"""Arguments that are no arrays, devices, sizes or features are refused by name, wherever they are passed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph, masks
from gnnsparse import nn as layers
from gnnsparse.sparse.kernel_cache import KernelCache
from gnnsparse.testing import random_graph

GRAPH = random_graph(6, 6, 0.5, seed=1)
A = gnnsparse.prepare(GRAPH, values="gcn", cache=False)
X = torch.randn(6, 4)
EDGES = torch.randint(6, (2, 9))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch calls CSR tensors a beta
    SPARSE = torch.eye(2).to_sparse_csr()
#: What NumPy makes no array of that torch has too, and sparse tensors.
NO_ARRAYS = [
    [[0, 1], [1]], (torch.zeros(2), torch.zeros(3)), [torch.zeros(2, device="meta")] * 2,
    [torch.eye(2).to_sparse()] * 2, [torch.ones(2, requires_grad=True)] * 2,
    [torch.ones(2, dtype=torch.bfloat16)] * 2, np.array(["a", "b"]), np.array([None, 1]), [1, "a"],
    [2**70, 1], torch.eye(2).to_sparse(), SPARSE,
]  # fmt: skip
HUGE = [2**63, 2**70, 10**400]
NO_FEATURES = [
    None, 3, "x", [[1.0]], np.eye(6, 4), X.tolist(), X.int(), X.to_sparse(), X.to("meta"), X[0, 0],
    X.to(torch.complex64),
]  # fmt: skip
NO_DEVICES = ["x", "meta", "cuda:99", "cpu:x", 3, None, object(), torch.device("meta")]
NO_EDGES = [EDGES.float(), EDGES.to(torch.complex64), EDGES.bool(), EDGES.to_sparse()]
OTHER_DTYPES = [X.to(dtype) for dtype in (torch.float16, torch.bfloat16, torch.float64)]
NO_IMPL, NO_PLAN = [np.eye(2), np.zeros(0), [1], None, 3], [np.eye(2), [1], "csr", 3, {}]
ANY = (TypeError, ValueError)


def prepare(graph: Any = EDGES, **options: Any) -> Any:
    return gnnsparse.prepare(graph, **options, cache=False)


def community(**options: Any) -> Any:
    return gnnsparse.reorder(GRAPH, "community", **options)


#: The name in the error, its type, the values, and what gets them.
CASES: list[tuple[str, Any, list[Any], Callable[[Any], Any]]] = [
    ("edge_index", TypeError, NO_ARRAYS, SparseGraph.from_edge_index),
    ("values", TypeError, NO_ARRAYS, lambda v: SparseGraph.from_edge_index(EDGES, 6, v)),
    ("indptr", TypeError, NO_ARRAYS, lambda v: SparseGraph.from_csr(v, [0])),
    ("indices", TypeError, NO_ARRAYS, lambda v: SparseGraph.from_csr([0, 2], v)),
    ("values", TypeError, NO_ARRAYS, lambda v: SparseGraph.from_csr([0, 2], [0, 0], v)),
    ("values", TypeError, NO_ARRAYS, lambda v: prepare(values=v)),
    ("indices", TypeError, NO_ARRAYS, lambda v: prepare(([0, 2], v))),
    ("values", TypeError, NO_ARRAYS, lambda v: prepare(values="gcn", edge_weight=v)),
    ("tokens", TypeError, NO_ARRAYS, lambda v: masks.global_tokens(6, v)),
    ("key_padding_mask", TypeError, NO_ARRAYS[-2:], lambda v: layers.edge_bias(A, v)),
    ("device", ANY, NO_DEVICES, A.to),
    ("device", ANY, NO_DEVICES, GRAPH.to),
    ("radius", ANY, HUGE, lambda n: masks.window(6, n)),
    ("dilation", ANY, HUGE, lambda n: masks.window(6, 1, n)),
    ("segment", ANY, HUGE, lambda n: masks.dilated(6, n, 1)),
    ("per_row", ANY, HUGE, lambda n: masks.random(6, n, seed=1)),
    ("block_size", ANY, HUGE, lambda n: masks.bigbird(6, n, seed=1)),
    ("width", ANY, HUGE, A.plan),
    ("width", ANY, HUGE, A.stats),
    ("in_channels", ANY, HUGE, lambda n: layers.GCNConv(n, 1)),
    ("out_channels", ANY, HUGE, lambda n: layers.GCNConv(1, n)),
    ("embed_dim", ANY, HUGE, lambda n: layers.SparseAttention(n, 1)),
    ("num_heads", ANY, HUGE, lambda n: layers.SparseAttention(4, n)),
    ("embed_dim", ANY, HUGE, lambda n: layers.TransformerEncoderLayer(n, 1)),
    ("dim_feedforward", ANY, HUGE, lambda n: layers.TransformerEncoderLayer(4, 2, n)),
    ("resolution", ANY, HUGE, lambda n: community(resolution=-n)),
    ("resolution", ANY, HUGE, lambda n: community(resolution=10**400 + n)),
    ("rounds", ANY, HUGE, lambda n: community(rounds=10**400 + n)),
    ("width", TypeError, [2.0, np.eye(2), "8", None, [1]], A.stats),
    ("panel", TypeError, [[16], np.eye(2), "16", 16.0, {}], lambda v: prepare(GRAPH, format="hrpb", panel=v)),
    ("impl", TypeError, NO_IMPL, lambda v: gnnsparse.spmm(A, X, impl=v)),
    ("impl", TypeError, NO_IMPL, lambda v: gnnsparse.sddmm(A, X, X, impl=v)),
    ("impl", TypeError, NO_IMPL, lambda v: gnnsparse.edge_softmax(A, torch.zeros(A.nnz), impl=v)),
    ("impl", TypeError, NO_IMPL, lambda v: gnnsparse.attention(A, X, X, X, impl=v)),
    ("plan", TypeError, NO_PLAN, lambda v: gnnsparse.spmm(A, X, plan=v)),
    ("plan", TypeError, NO_PLAN, lambda v: gnnsparse.sddmm(A, X, X, plan=v)),
    ("plan", TypeError, NO_PLAN, lambda v: gnnsparse.attention(A, X, X, X, plan=v)),
    ("edge_weight", TypeError, ["x", np.ones(9), [1.0] * 9, 3],
     lambda v: layers.GCNConv(4, 3)(X, EDGES, v)),
    ("x", ANY, NO_FEATURES, lambda x: layers.AGNNConv()(x, A)),
    ("x", ANY, NO_FEATURES, lambda x: layers.SparseLinear(random_graph(3, 4, 0.9))(x)),
    ("x", ANY, NO_FEATURES, lambda x: layers.GCNConv(4, 3)(x, A)),
    ("x", ANY, NO_FEATURES, lambda x: layers.GCNConv(4, 3)(x, EDGES)),
    ("query", ANY, NO_FEATURES, lambda x: layers.SparseAttention(4, 2)(x, x, x, A)),
    ("src", ANY, NO_FEATURES, lambda x: layers.TransformerEncoderLayer(4, 2, 8)(x, A)),
    ("x", TypeError, OTHER_DTYPES, lambda x: layers.GCNConv(4, 3)(x, A)),
    ("x", TypeError, OTHER_DTYPES, lambda x: layers.GCNConv(4, 3)(x, EDGES)),
    ("query", TypeError, OTHER_DTYPES, lambda x: layers.SparseAttention(4, 2)(x, x, x, A)),
    ("src", TypeError, OTHER_DTYPES, lambda x: layers.TransformerEncoderLayer(4, 2, 8)(x, A)),
    ("edge_index", TypeError, NO_EDGES, lambda edges: layers.GCNConv(4, 3)(X, edges)),
    ("edge_index", TypeError, NO_EDGES, lambda edges: layers.AGNNConv()(X, edges)),
]  # fmt: skip
#: What else is accepted is named.
ACCEPTED = {id(OTHER_DTYPES): "a tensor of dtype float32", id(NO_EDGES): ".*int64"}


@pytest.mark.parametrize("case", range(len(CASES)))
def test_what_is_not_accepted_is_named(case: int) -> None:
    name, error, values, call = CASES[case]
    for value in values:
        with pytest.raises(error, match=f"^{name}: .*accepted: {ACCEPTED.get(id(values), '')}"):
            call(value)


def test_a_matrix_has_values_or_factors() -> None:
    """The transpose of both would be without the factors."""
    csr, ones = GRAPH.csr, torch.ones(6)
    for factors in ({"given_row_scale": ones}, {"given_col_scale": ones}):
        KernelCache(csr, **factors)
        with pytest.raises(ValueError, match="given_values: go with factors"):
            KernelCache(csr, given_values=torch.ones(csr.nnz), **factors)
