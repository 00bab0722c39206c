"""Senseless input ends in a ValueError or TypeError, never in a crash or in another exception."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.testing import random_graph

DTYPES = [torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool, torch.float32, torch.float16,
          torch.float64, torch.bfloat16, torch.complex64]  # fmt: skip
JUNK = st.sampled_from([None, 0, -1, 1.5, "gcn", "", b"x", [], [1], {}, (1, 2), object(), np.eye(2),
                        sp.eye(3), float("nan"), torch.tensor(3), 2**31 - 1, 2**70, True])  # fmt: skip
EXTREMES = [-(2**63), -(2**31), -1, 0, 1, 2, 5, 2**31 - 1, 2**31, 2**62]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 6), max_size=3))
    dtype = draw(st.sampled_from(DTYPES))
    if dtype in (torch.int64, torch.int32):
        values = draw(st.lists(st.sampled_from(EXTREMES) | st.integers(-2, 7), min_size=300, max_size=300))
        tensor = torch.tensor(values)[: int(np.prod(shape))].reshape(shape)
        tensor = tensor.clamp(-(2**31), 2**31 - 1).to(dtype) if dtype == torch.int32 else tensor
    else:
        tensor = torch.randint(-3, 3, shape).to(dtype)
    if tensor.dim() == 2 and draw(st.booleans()):
        tensor = tensor.T
    if tensor.dim() and tensor.shape[0] and draw(st.booleans()):
        tensor = tensor[:: draw(st.integers(1, 3))]
    if draw(st.integers(0, 9)) == 0:
        tensor = tensor.to("meta")
    return tensor


ANYTHING = JUNK | tensors()
SMALL = st.none() | st.integers(-2, 8) | JUNK


def tolerate(call: Any) -> Any:
    """The result, or None after an error of the accepted kinds."""
    try:
        return call()
    except (ValueError, TypeError, MemoryError):
        return None


@pytest.mark.slow
@settings(max_examples=300)
@given(
    graph=ANYTHING,
    num_nodes=SMALL,
    values=ANYTHING,
    reorder=st.sampled_from(["none", "metis", "community", "x"]),
    name=st.sampled_from(["auto", "window", "hrpb", "rs-tile", 3]),
    num_cols=SMALL,
    weight=ANYTHING,
)
@example(torch.tensor([[0], [2**31 - 2]]), None, None, "none", "auto", None, None)
@example(torch.tensor([[0], [1]]), 2**31 - 1, None, "none", "auto", None, None)
def test_prepare(
    graph: Any, num_nodes: Any, values: Any, reorder: str, name: Any, num_cols: Any, weight: Any
) -> None:
    a = tolerate(
        lambda: gnnsparse.prepare(
            graph, num_nodes=num_nodes, values=values, reorder=reorder, format=name, num_cols=num_cols,
            precision="tf32", edge_weight=weight, cache=False,
        )
    )  # fmt: skip
    if a is not None:
        y = a @ torch.ones(a.shape[1], 2)
        assert y.shape == (a.shape[0], 2)


@pytest.mark.slow
@settings(max_examples=200)
@given(indptr=ANYTHING, indices=ANYTHING, values=ANYTHING, num_cols=SMALL)
def test_csr(indptr: Any, indices: Any, values: Any, num_cols: Any) -> None:
    graph = tolerate(lambda: SparseGraph.from_csr(indptr, indices, values, num_cols))
    if graph is not None:
        graph.csr.transpose()
        assert graph.to_scipy().shape == (graph.num_rows, graph.num_cols)


A = gnnsparse.prepare(random_graph(6, 5, 0.5, seed=1), cache=False)


@pytest.mark.slow
@settings(max_examples=300)
@given(first=ANYTHING, second=ANYTHING, which=st.sampled_from([A, A.T]))
def test_operations(first: Any, second: Any, which: gnnsparse.SparseOperand) -> None:
    for result in (
        tolerate(lambda: gnnsparse.spmm(which, first, second)),
        tolerate(lambda: gnnsparse.sddmm(which, first, second)),
        tolerate(lambda: gnnsparse.edge_softmax(which, first)),
        tolerate(lambda: which.to_coo_order(first)),
        tolerate(lambda: which.from_coo_order(first)),
    ):
        assert result is None or isinstance(result, torch.Tensor)
