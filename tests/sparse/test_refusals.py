"""Arguments that are no arrays, devices, sizes or features are refused by name, wherever they are passed."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph, masks
from gnnsparse import nn as layers
from gnnsparse.testing import random_graph

GRAPH = random_graph(6, 6, 0.5, seed=1)
A = gnnsparse.prepare(GRAPH, values="gcn", cache=False)
X = torch.randn(6, 4)
EDGES = torch.randint(6, (2, 9))
#: What NumPy makes no array of that torch has too.
NO_ARRAYS = {
    "ragged": [[0, 1], [1]],
    "ragged tensors": (torch.zeros(2), torch.zeros(3)),
    "meta": [torch.zeros(2, device="meta")] * 2,
    "sparse": [torch.eye(2).to_sparse()] * 2,
    "grad": [torch.ones(2, requires_grad=True)] * 2,
    "bfloat16": [torch.ones(2, dtype=torch.bfloat16)] * 2,
    "text": np.array(["a", "b"]),
    "objects": np.array([None, 1]),
    "mixed": [1, "a"],
    "huge": [2**70, 1],
}


@pytest.mark.parametrize("value", NO_ARRAYS.values(), ids=NO_ARRAYS.keys())
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("edge_index", lambda v: SparseGraph.from_edge_index(v)),
        ("values", lambda v: SparseGraph.from_edge_index(EDGES, 6, v)),
        ("indptr", lambda v: SparseGraph.from_csr(v, [0])),
        ("indices", lambda v: SparseGraph.from_csr([0, 2], v)),
        ("values", lambda v: SparseGraph.from_csr([0, 2], [0, 0], v)),
        ("values", lambda v: gnnsparse.prepare(EDGES, values=v, cache=False)),
        ("indices", lambda v: gnnsparse.prepare(([0, 2], v), cache=False)),
        ("values", lambda v: gnnsparse.prepare(EDGES, values="gcn", edge_weight=v, cache=False)),
        ("tokens", lambda v: masks.global_tokens(6, v)),
    ],
)
def test_what_is_no_array_is_named(name: str, call: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(TypeError, match=f"^{name}: .*accepted: "):
        call(value)


@pytest.mark.parametrize("layout", ["sparse", "csr"])
def test_a_sparse_tensor_in_place_of_an_array_is_named(layout: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls CSR tensors a beta
        sparse = torch.eye(2).to_sparse() if layout == "sparse" else torch.eye(2).to_sparse_csr()
    with pytest.raises(TypeError, match=r"^edge_index: .*accepted: "):
        SparseGraph.from_edge_index(sparse)
    with pytest.raises(TypeError, match=r"^values: .*accepted: "):
        gnnsparse.prepare(EDGES, values=sparse, cache=False)
    with pytest.raises(TypeError, match=r"^indices: .*accepted: "):
        gnnsparse.prepare((torch.tensor([0, 2]), sparse), cache=False)
    with pytest.raises(TypeError, match=r"^key_padding_mask: .*accepted: "):
        layers.edge_bias(A, sparse)


@pytest.mark.parametrize("of", [A, GRAPH], ids=["operand", "graph"])
@pytest.mark.parametrize("device", ["x", "meta", "cuda:99", "cpu:x", 3, None, object(), torch.device("meta")])
def test_a_device_that_is_none_is_named(of: Any, device: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"^device: .*accepted: "):
        of.to(device)


@pytest.mark.parametrize("number", [2**63, 2**70, 10**400])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("radius", lambda n: masks.window(6, n)),
        ("dilation", lambda n: masks.window(6, 1, n)),
        ("segment", lambda n: masks.dilated(6, n, 1)),
        ("per_row", lambda n: masks.random(6, n, seed=1)),
        ("block_size", lambda n: masks.bigbird(6, n, seed=1)),
        ("width", lambda n: A.plan(n)),
        ("width", lambda n: A.stats(n)),
        ("in_channels", lambda n: layers.GCNConv(n, 1)),
        ("out_channels", lambda n: layers.GCNConv(1, n)),
        ("embed_dim", lambda n: layers.SparseAttention(n, 1)),
        ("num_heads", lambda n: layers.SparseAttention(4, n)),
        ("embed_dim", lambda n: layers.TransformerEncoderLayer(n, 1)),
        ("dim_feedforward", lambda n: layers.TransformerEncoderLayer(4, 2, n)),
        ("resolution", lambda n: gnnsparse.reorder(GRAPH, "community", resolution=-n)),
        ("resolution", lambda n: gnnsparse.reorder(GRAPH, "community", resolution=10**400 + n)),
        ("rounds", lambda n: gnnsparse.reorder(GRAPH, "community", rounds=10**400 + n)),
    ],
)
def test_a_number_beyond_64_bits_is_named(name: str, call: Callable[[int], Any], number: int) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{name}: .*accepted: "):
        call(number)


@pytest.mark.parametrize(
    ("name", "values", "calls"),
    [
        ("width", [2.0, np.eye(2), "8", None, [1]], [lambda v: A.stats(v)]),
        (
            "panel",
            [[16], np.eye(2), "16", 16.0, {}],
            [lambda v: gnnsparse.prepare(GRAPH, format="hrpb", panel=v, cache=False)],
        ),
        (
            "impl",
            [np.eye(2), np.zeros(0), [1], None, 3],
            [
                lambda v: gnnsparse.spmm(A, X, impl=v),
                lambda v: gnnsparse.sddmm(A, X, X, impl=v),
                lambda v: gnnsparse.edge_softmax(A, torch.zeros(A.nnz), impl=v),
                lambda v: gnnsparse.attention(A, X, X, X, impl=v),
            ],
        ),
        (
            "plan",
            [np.eye(2), [1], "csr", 3, {}],
            [
                lambda v: gnnsparse.spmm(A, X, plan=v),
                lambda v: gnnsparse.sddmm(A, X, X, plan=v),
                lambda v: gnnsparse.attention(A, X, X, X, plan=v),
            ],
        ),
        ("edge_weight", ["x", np.ones(9), [1.0] * 9, 3], [lambda v: layers.GCNConv(4, 3)(X, EDGES, v)]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_of_another_type_is_named(
    name: str, values: list[Any], calls: list[Callable[[Any], Any]]
) -> None:
    for call, value in itertools.product(calls, values):
        with pytest.raises(TypeError, match=f"^{name}: .*accepted: "):
            call(value)


LAYERS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "GCNConv": ("x", lambda x: layers.GCNConv(4, 3)(x, A)),
    "GCNConv of edges": ("x", lambda x: layers.GCNConv(4, 3)(x, EDGES)),
    "AGNNConv": ("x", lambda x: layers.AGNNConv()(x, A)),
    "SparseLinear": ("x", lambda x: layers.SparseLinear(random_graph(3, 4, 0.9))(x)),
    "SparseAttention": ("query", lambda x: layers.SparseAttention(4, 2)(x, x, x, A)),
    "TransformerEncoderLayer": ("src", lambda x: layers.TransformerEncoderLayer(4, 2, 8)(x, A)),
}


@pytest.mark.parametrize(("name", "call"), LAYERS.values(), ids=LAYERS.keys())
@pytest.mark.parametrize(
    "x",
    [
        None, 3, "x", [[1.0]], np.eye(6, 4), X.tolist(), X.int(), X.to_sparse(), X.to("meta"), X[0, 0],
        X.to(torch.complex64),
    ],
    ids=lambda x: str(type(x).__name__),
)  # fmt: skip
def test_features_that_are_none_are_named(name: str, call: Callable[[Any], Any], x: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=rf"^{name}: .*accepted: "):
        call(x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    "layer", ["GCNConv", "GCNConv of edges", "SparseAttention", "TransformerEncoderLayer"]
)
def test_a_dtype_that_parameters_do_not_have_is_named(layer: str, dtype: torch.dtype) -> None:
    name, call = LAYERS[layer]
    with pytest.raises(TypeError, match=rf"^{name}: .*accepted: a tensor of dtype float32"):
        call(X.to(dtype))


@pytest.mark.parametrize("edges", [EDGES.float(), EDGES.to(torch.complex64), EDGES.bool(), EDGES.to_sparse()])
@pytest.mark.parametrize("layer", [layers.GCNConv(4, 3), layers.AGNNConv()], ids=["GCNConv", "AGNNConv"])
def test_edges_of_another_dtype_are_named(layer: torch.nn.Module, edges: torch.Tensor) -> None:
    with pytest.raises(TypeError, match=r"^edge_index: .*accepted: .*int64"):
        layer(X, edges)
