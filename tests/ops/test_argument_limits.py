"""Arguments at the ends of what is accepted: huge numbers, wide matrices, graphs without edges or nodes."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import scipy.sparse
import torch

import gnnsparse
from gnnsparse import SparseOperand
from gnnsparse.nn import AGNNConv, GATConv, GATv2Conv, GCNConv, GINConv, GraphConv, SAGEConv, TransformerConv
from gnnsparse.testing import random_graph
from tests.helpers import make
from tests.ops.quantized import EIGHT_BITS

EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])
HUGE = {
    "1e300": 1e300, "-1e300": -1e300, "3.5e38": 3.5e38, "nan": float("nan"), "inf": float("inf"),
    "10^400": 10**400, "-10^5000": -(10**5000),
}  # fmt: skip


@pytest.fixture
def a() -> SparseOperand:
    return make(random_graph(30, 20, 0.2, seed=1), "cpu")


def test_what_products_refuse(a: SparseOperand) -> None:
    """Also after calls with arguments that fit."""
    x, q, many, queries = (torch.randn(shape) for shape in ((20, 4), (30, 4), (20, 3, 4), (30, 3, 4)))
    nnz, values, by_head = a.nnz, torch.randn(a.nnz), torch.randn(a.nnz, 3)
    spmm, sddmm, softmax = (partial(f, a) for f in (gnnsparse.spmm, gnnsparse.sddmm, gnnsparse.edge_softmax))
    graph, of_heads = random_graph(30, 20, 0.2), "; features of heads [k, heads, d] go to"
    int8, fp8 = (partial(gnnsparse.spmm, make(graph, "cpu", precision=p)) for p in EIGHT_BITS)
    own = ({"format": name, "precision": "int8"} for name in ("window", "me-bcrs", "hrpb"))
    in_int8 = [partial(make, graph, "cpu", **options) for options in own]
    attend = partial(gnnsparse.attention, a, q, x, x)
    reorders = [(n, partial(a.transpose_values, torch.ones(n))) for n in (nnz - 1, nnz + 1)]
    for _ in range(2):
        _ = a @ x, spmm(x, values), sddmm(q, x), spmm(many, by_head), sddmm(queries, many), softmax(by_head)
    refused: dict[type[Exception], list[tuple[str, Callable[[], Any]]]] = {
        ValueError: [
            ("x: has shape (19, 4); accepted: (", lambda: a @ x[1:]),
            ("x: has shape (20, 4, 1, 1)", lambda: a @ x[..., None, None]),
            ("x: has shape (2, 11, 4); accepted: (..., 20, any)", lambda: a @ torch.randn(2, 11, 4)),
            (f"x: has shape (20, 3, 4); accepted: (..., 20, any){of_heads}", lambda: a @ many),
            (f"x: has shape (20, 1, 3, 4); accepted: (..., 20, any){of_heads}", lambda: a @ many[:, None]),
            ("x: is on meta", lambda: a @ x.to("meta")),
            ("x: has shape (19, 3, 4); accepted: (20, any, any)", lambda: spmm(many[1:], by_head)),
            ("values: has shape", lambda: spmm(x, values[1:])),
            (f"values: has shape ({nnz}, 2); accepted: ({nnz}, 3)", lambda: spmm(many, by_head[:, 1:])),
            (f"values: has shape ({nnz}, 3); accepted: ({nnz})", lambda: spmm(x, by_head)),
            ("k: has 3 columns", lambda: sddmm(q, x[:, :3])),
            ("k: has shape (20, 2, 4); accepted: (20, 3, 4), as q", lambda: sddmm(queries, many[:, :2])),
            ("k: has shape (20, 4); accepted: (20, 3, 4), as q", lambda: sddmm(queries, x)),
            (f"scores: has shape ({nnz}, 3, 1)", lambda: softmax(by_head[..., None])),
            (f"scores: has shape ({nnz - 1}, 3)", lambda: softmax(by_head[1:])),
            *((f"values: has {n} elements; accepted: {nnz}", reorder) for n, reorder in reorders),
            ("values: has", lambda: torch.ops.gnnsparse.transpose_values(values[1:], a.handle)),
            # Integers of thousands of digits have a name in errors.
            ("dropout_p: got about 10^5000", lambda: attend(dropout_p=10**5000)),
            ("width: got -about 10^5000", lambda: a.stats(-(10**5000))),
            *(("precision: got 'int8' with the format", prepared) for prepared in in_int8),
            ("impl: got", lambda: spmm(x, impl="magic")),
            ("reduce: got 'add'; accepted: sum, mean, max, min", lambda: spmm(x, reduce="add")),
            ("seed: got -1", lambda: int8(x, seed=-1)),
            ("seed: got 9223372036854775808", lambda: int8(x, seed=2**63)),
            ("seed: got 1, and an operand in fp32; accepted: None, or", lambda: spmm(x, seed=1)),
            ("seed: got 1 with reduce='max'", lambda: fp8(x, seed=1, reduce="max")),
        ],
        TypeError: [
            *(("x: got", partial(spmm, wrong)) for wrong in (x.double(), x.to_sparse(), [[1.0]], None)),
            ("x: got a tensor of dtype", lambda: a @ torch.ones(2, 20, 3, dtype=torch.int64)),
            ("x @ A is not defined", lambda: torch.randn(2, 20, 30) @ a),
            ("values: got a tensor of dtype torch.float64", lambda: spmm(x, values.double())),
            ("values: got a tensor of dtype torch.float64", lambda: spmm(many, by_head.double())),
            ("values: got", lambda: spmm(x, False)),
            ("values: got list", lambda: a.transpose_values([1.0] * nnz)),
            ("A: got", lambda: gnnsparse.spmm(a.kernels, x)),
            ("reduce: got list; accepted: one of sum, mean, max, min", lambda: spmm(x, reduce=["sum"])),
            ("seed: got float", lambda: int8(x, seed=1.5)),
        ],
    }
    for error, calls in refused.items():
        for message, call in calls:
            with pytest.raises(error, match=f"^{re.escape(message)}"):
                call()


@pytest.mark.parametrize("name", HUGE)
def test_numbers_that_no_float32_holds(a: SparseOperand, name: str) -> None:
    q, k = torch.randn(30, 4), torch.randn(20, 4)
    for cache in (False, True):
        with pytest.raises(ValueError, match=r"^self_loop_weight: got .*; accepted: a finite number"):
            gnnsparse.prepare(EDGES, values="gcn", self_loop_weight=HUGE[name], cache=cache)
    with pytest.raises(ValueError, match=r"^scale: got .*; accepted: a finite number"):
        gnnsparse.attention(a, q, k, k, scale=HUGE[name])


def test_operands_that_are_too_wide_for_the_machine(a: SparseOperand) -> None:
    q, k = torch.zeros(30, 1), torch.zeros(20, 1)
    wide_q, wide_k = (t.expand(-1, 1 << 42) for t in (q, k))
    tall, empty = (
        gnnsparse.prepare(scipy.sparse.csr_matrix(shape), cache=False) for shape in ((2**20, 1), (3, 0))
    )
    calls: list[tuple[str, Callable[[], Any]]] = [
        ("x", lambda: a @ wide_k),
        ("x", lambda: gnnsparse.spmm(a, wide_k, torch.ones(a.nnz))),
        ("q", lambda: gnnsparse.sddmm(a, wide_q, wide_k)),
        ("v", lambda: gnnsparse.attention(a, q, k, wide_k)),
        ("q", lambda: gnnsparse.attention(a, q.expand(1 << 42, 30, 1), k, k)),
        ("v", lambda: gnnsparse.graph_attention(a, q, k, wide_k[:, None], score="additive")),
        ("x", lambda: tall @ torch.zeros(1, 2**24)),
        ("x", lambda: empty @ torch.empty(0, 1 << 42)),
    ]
    for name, call in calls:
        with pytest.raises(MemoryError, match=rf"^{name}: {name} of shape .* needs .* GB, and .* leaves"):
            call()


def test_attention_over_many_nodes_fits() -> None:
    """Rows are counted once, of sources or of targets."""
    edges = gnnsparse.prepare(torch.tensor([[0, 1], [1, 199_999]]), num_nodes=200_000, cache=False)
    scores, values = torch.zeros(200_000, 1), torch.ones(200_000, 1, 16)
    out = gnnsparse.graph_attention(edges, scores, scores, values, score="additive")
    assert out.sum() == 2 * 16


@pytest.mark.parametrize("nodes", [0, 1, 3])
@pytest.mark.parametrize("weight", [1.0, 2.0])
@pytest.mark.parametrize("values", ["gcn", "mean", None])
def test_graphs_without_edges(nodes: int, weight: float, values: str | None) -> None:
    none = torch.empty(2, 0, dtype=torch.int64)
    weights = (None,) if values is None else (None, torch.empty(0))
    for edge_weight in weights:
        options = {"values": values, "edge_weight": edge_weight, "self_loop_weight": weight}
        a = gnnsparse.prepare(none, num_nodes=nodes, cache=False, **options)
        x = torch.randn(nodes, 4)
        # Only the self-loops of "gcn" are left, and they are normalised to 1.
        torch.testing.assert_close(a @ x, x if values == "gcn" else torch.zeros_like(x))
    layers = [GCNConv(4, 2), AGNNConv(), SAGEConv(4, 2), SAGEConv(4, 2, "max"), GraphConv(4, 2, "mean")]
    for layer in (*layers, GINConv(torch.nn.Linear(4, 2)), GATConv(4, 2, heads=3)):
        assert layer(x, none).shape[0] == nodes
    for kind in (GATConv, GATv2Conv, TransformerConv):
        layer, features = kind(4, 2, edge_dim=5), torch.empty(0, 5)
        y, (edges, found) = layer(x, none, features, return_attention_weights=True)
        assert y.shape == (nodes, 2)
        assert len(found) == edges.shape[1] == (0 if kind is TransformerConv else nodes)
    assert GCNConv(4, 2)(x, none, torch.empty(0)).shape == (nodes, 2)
