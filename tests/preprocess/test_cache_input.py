"""What is accepted, and what is refused, does not depend on the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.runtime.hashing import digest, fingerprint
from gnnsparse.testing import random_graph

EDGE = torch.tensor([[0], [1]])
EDGES = torch.tensor([[0, 1, 2, 2], [1, 2, 0, 0]])


def both(call: Callable[..., gnnsparse.SparseOperand]) -> gnnsparse.SparseOperand:
    """Prepares without the cache, with an empty cache and with a full one; the results are equal."""
    plain, first, second = call(cache=False), call(cache=True), call(cache=True)
    assert second.cache_hit
    x = torch.randn(plain.shape[1], 3)
    for other in (first, second):
        assert torch.equal(other @ x, plain @ x)
        assert torch.equal(other.indices(), plain.indices())
    return second


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.setflags(write=False)
    return array


def refused(call: Callable[..., object], error: type[Exception], message: str) -> None:
    """The same error without the cache, and with one that has what the other arguments ask for."""
    for cache in (False, True, True):
        with pytest.raises(error, match=message):
            call(cache=cache)


@pytest.mark.parametrize("make", [scipy.sparse.csr_matrix, scipy.sparse.csr_array, scipy.sparse.coo_array,
                                  scipy.sparse.csc_array, scipy.sparse.dok_array])  # fmt: skip
@pytest.mark.parametrize("shape", [(3, 3), (1, 1), (2, 5)])
def test_matrices_without_nonzeros(make: Any, shape: tuple[int, int]) -> None:
    """Their arrays have no elements, and strides of 0."""
    a = both(lambda cache: gnnsparse.prepare(make(shape), cache=cache))
    assert (a.shape, a.nnz) == (shape, 0)


EVERY_EDGES = [
    EDGES.T.contiguous().T, EDGES[:, ::2], EDGES[:, 4:], EDGES[:, :1], EDGES.int(), EDGES.numpy()[:, ::-1],
    np.broadcast_to(EDGE.numpy(), (2, 5)), EDGES.repeat(2, 3)[::2, ::3], EDGES.numpy().astype("<i8"),
    EDGES.numpy().astype(">i8"), read_only(EDGES.numpy()),
]  # fmt: skip
EVERY_VALUES = [
    np.ones(4, ">f4"), np.ones(4, "<f8"), np.arange(4, dtype=np.uint16), np.arange(4, dtype=">i8"),
    np.ones(8)[::-2], np.array([True] * 4), [1, 2.5, 3, 4], (True, False, True, True), torch.ones(8)[1::2],
    torch._neg_view(torch.ones(4)), torch.ones(4, requires_grad=True), np.float16([1, 2, 3, 4]),
    read_only(np.ones(4)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("edges", "values"),
    [*((edges, None) for edges in EVERY_EDGES), *((EDGES, values) for values in EVERY_VALUES)],
)
def test_edges_and_values_of_every_kind(edges: Any, values: Any) -> None:
    for options in ({"values": values}, {"values": "mean", "edge_weight": values}):
        both(lambda cache, options=options: gnnsparse.prepare(edges, num_nodes=5, **options, cache=cache))


BAD_VALUES = [
    (["a", "b", "c", "d"], TypeError, "values: got dtype <U1; accepted: 4 real numbers"),
    ({}, TypeError, "values: got dict; accepted: 4 real numbers"),
    ([[1], [1, 2]], TypeError, "values: got a list that is no array"),
    (torch.ones(4, dtype=torch.complex64), TypeError, "values: got a tensor of dtype torch.complex64"),
    (torch.ones(4).to_sparse(), TypeError, "values: got a tensor"),
    (torch.ones(3), ValueError, r"values: has shape \(3,\); accepted: \(4,\)"),
    (torch.ones(4, device="meta"), ValueError, "values: is on meta"),
    ([1, 2, 3, float("nan")], ValueError, "values: element 3 is nan"),
    ([1, 2, 3, 1e39], ValueError, "values: element 3 is 1e"),
]


@pytest.mark.parametrize(("values", "error", "message"), BAD_VALUES, ids=range(len(BAD_VALUES)))
@pytest.mark.parametrize("form", ["edge_index", "csr", "graph"])
def test_bad_values_on_a_hit(form: str, values: Any, error: type[Exception], message: str) -> None:
    """The graph without values is in the cache, and would be found by a key that leaves them out."""
    csr = torch.tensor([0, 1, 2, 3, 4]), torch.tensor([1, 0, 3, 2])
    graph: Any = {"edge_index": EDGES, "csr": csr, "graph": SparseGraph.from_edge_index(EDGES)}[form]
    for given in ({"values": values}, {"values": "mean", "edge_weight": values}):
        gnnsparse.prepare(graph, values=None if given["values"] is values else "mean")
        refused(lambda cache, given=given: gnnsparse.prepare(graph, **given, cache=cache), error, message)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_nodes": True}, TypeError, "num_nodes: got bool"),
        ({"num_nodes": 3.0}, TypeError, "num_nodes: got float"),
        ({"num_nodes": (3, 3, 3)}, ValueError, "num_nodes: accepted"),
        ({"num_nodes": 2}, ValueError, "edge_index: element 2 is 2"),
        ({"reorder_options": {"parts": 1}}, ValueError, "unknown options for 'none': parts"),
        ({"reorder_options": [1]}, TypeError, "reorder_options: got list"),
    ],
)
def test_bad_options_on_a_hit(options: dict[str, Any], error: type[Exception], message: str) -> None:
    gnnsparse.prepare(EDGES)
    gnnsparse.prepare(EDGES, num_nodes=3)
    refused(lambda cache: gnnsparse.prepare(EDGES, **options, cache=cache), error, message)


def test_equal_options_share_a_file(own_cache: Path) -> None:
    graph = random_graph(20, 20, 0.2, seed=1)
    gnnsparse.prepare(graph, reorder="community")
    given = {"resolution": 1, "rounds": 10}
    assert gnnsparse.prepare(graph, reorder="community", reorder_options=given).cache_hit
    gnnsparse.prepare(EDGES, num_nodes=3)
    assert gnnsparse.prepare(EDGES, num_nodes=(np.int64(3), 3)).cache_hit
    assert gnnsparse.prepare(EDGES.numpy(), num_nodes=[3, 3]).cache_hit


def test_bad_graphs_have_one_error() -> None:
    for graph, error, message in (
        (np.array([[0, "a"], [1, None]], dtype=object), TypeError, "edge_index: got dtype object"),
        (([0, 1], [[1], [1, 2]]), TypeError, "indices: got a list that is no array"),
        (EDGES.float(), TypeError, "edge_index: got a tensor of dtype torch.float32"),
        (EDGES[0], ValueError, "edge_index: has 1 dimensions"),
    ):
        refused(lambda cache, graph=graph: gnnsparse.prepare(graph, cache=cache), error, message)


# SciPy's compiled code does not check indices


@pytest.mark.parametrize("value", [10**9, -1, -(2**31)])
@pytest.mark.parametrize(
    ("form", "part", "message"),
    [
        ("csr", "indices", "indices: element 3"), ("csr", "indptr", "indptr: decreases"),
        ("csc", "indices", "edge_index: element 3"), ("csc", "indptr", "indptr: decreases"),
        ("coo", "row", "edge_index: element 3"), ("coo", "col", "edge_index: element 3"),
    ],
)  # fmt: skip
def test_scipy_matrices_with_garbled_indices(form: str, part: str, message: str, value: int) -> None:
    matrix = random_graph(30, 20, 0.2, seed=2).to_scipy().asformat(form)
    getattr(matrix, part)[3] = value
    refused(lambda cache: gnnsparse.prepare(matrix, cache=cache), ValueError, message)
    with pytest.raises(ValueError, match=message):
        SparseGraph.from_scipy(matrix)


@pytest.mark.parametrize("form", ["csr", "csc"])
@pytest.mark.parametrize("rows", [5, 100])
def test_scipy_matrices_with_another_shape_than_they_say(form: str, rows: int) -> None:
    matrix = random_graph(30, 30, 0.2, seed=2).to_scipy().asformat(form)
    matrix._shape = (rows, rows)
    refused(lambda cache: gnnsparse.prepare(matrix, cache=cache), ValueError, "graph.indptr: has 31 offsets")


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "bsr", "dia", "lil", "dok"])
def test_every_form_of_scipy_is_one_matrix(form: str) -> None:
    dense = random_graph(30, 20, 0.2, seed=2).to_scipy()
    expected = SparseGraph.from_scipy(dense)
    made = SparseGraph.from_scipy(dense.asformat(form))
    both(lambda cache: gnnsparse.prepare(dense.asformat(form), cache=cache))
    assert torch.equal(torch.from_numpy(made.to_scipy().toarray()), torch.from_numpy(dense.toarray()))
    if form not in ("bsr", "dia"):  # which store zeros
        assert torch.equal(made.csr.indices, expected.csr.indices)


@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support")
def test_torch_matrices_with_garbled_offsets() -> None:
    good = torch.eye(4).to_sparse_csc()
    offsets = good.ccol_indices().clone()
    offsets[2] = -7
    matrix = torch.sparse_csc_tensor(
        offsets, good.row_indices(), good.values(), (4, 4), check_invariants=False
    )
    refused(lambda cache: gnnsparse.prepare(matrix, cache=cache), ValueError, "indptr: decreases")


# Hashes


def test_hashes_depend_on_the_elements_alone() -> None:
    x = torch.arange(24.0).reshape(4, 6)
    assert digest(x.T) == digest(x.T.contiguous())
    assert digest(x[:, ::2]) == digest(x[:, ::2].clone())
    for empty in (x[:0], x[:, :0], torch.from_numpy(np.empty(0, np.float32)), x[0, ::4][:0]):
        assert digest(empty) == digest(torch.empty(0))
    for one in (x[0, ::4][:1], torch.tensor(0.0), x[:1, :1], torch.from_numpy(np.zeros(9, np.float32)[::9])):
        assert digest(one) == digest(torch.zeros(1))
    assert digest(torch._neg_view(x)) == digest(-x)
    assert digest(torch.view_as_complex(torch.ones(3, 2)).conj()) == digest(torch.full((3,), 1 - 1j))
    assert fingerprint([x]) != fingerprint([x.T])
