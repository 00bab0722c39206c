"""What goes into a reordering is checked in one place, and so is what comes out of it."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.formats.csr import Csr
from gnnsparse.preprocess.reorder import METHODS, register_reordering, reorder
from gnnsparse.testing import random_graph

pytestmark = pytest.mark.usefixtures("registrations")


@pytest.mark.parametrize(
    ("order", "error", "message"),
    [
        (list(range(12)), TypeError, "reorder: got list; accepted: an integer tensor"),
        (torch.arange(12).numpy(), TypeError, "reorder: got ndarray"),
        (None, TypeError, "reorder: got NoneType"),
        (torch.arange(12.0) + 0.5, TypeError, "reorder: got a tensor of dtype torch.float32"),
        (torch.ones(12, dtype=torch.bool), TypeError, "reorder: got a tensor of dtype torch.bool"),
        (torch.arange(12, device="meta"), TypeError, "reorder: got a tensor"),
        (torch.eye(12, dtype=torch.int64).to_sparse(), TypeError, "reorder: got a tensor"),
        (torch.arange(12).reshape(3, 4), ValueError, r"but a tensor of shape \(3, 4\)"),
        (torch.tensor([2**32, *range(1, 12)]), ValueError, "order: element 0 is 4294967296"),
        (torch.zeros(12, dtype=torch.int64), ValueError, "order: repeats an element"),
        (torch.arange(11), ValueError, r"but a tensor of shape \(11,\)"),
        (torch.arange(1, 13), ValueError, "order: element 11 is 12"),
        (torch.arange(-1, 11), ValueError, "order: element 0 is -1"),
    ],
)
def test_what_a_registered_function_returns_is_checked(
    order: Any, error: type[Exception], message: str
) -> None:
    wrong = register_reordering("wrong")(lambda csr: order)
    csr = random_graph(12, 12, 0.3).csr
    for call in (wrong, METHODS["wrong"].order):
        with pytest.raises(error, match=message):
            call(csr)
    with pytest.raises(error, match="'wrong' returned no permutation of the 12 rows"):
        gnnsparse.prepare(random_graph(12, 12, 0.3), reorder="wrong")


@pytest.mark.parametrize(
    "order", [torch.arange(24).flip(0)[::2] // 2, torch.arange(12).to(torch.uint8)], ids=str
)
def test_orders_of_any_stride_and_width(order: torch.Tensor) -> None:
    register_reordering("wide")(lambda csr: order)
    found = METHODS["wide"].order(random_graph(12, 12, 0.3).csr)
    assert (found.dtype, found.tolist()) == (torch.int32, order.tolist())


@pytest.mark.parametrize("method", list(METHODS))
def test_functions_of_reorderings_are_checked_when_called_directly(method: str) -> None:
    """SciPy and METIS read beyond the arrays of matrices that are not square or garbled."""
    entry = METHODS[method]
    module = importlib.import_module(entry.function.__module__)
    named = getattr(module, entry.function.__name__)
    good = random_graph(300, 300, 0.02, weighted=False).csr
    bad = Csr(good.indptr, good.indices.clone(), 300)
    bad.indices[7] = 10**9
    falling = Csr(good.indptr.clone(), good.indices, 300)
    falling.indptr[5] = 2**40
    for call in (entry.order, named):
        assert torch.equal(call(good).long().sort().values, torch.arange(300))
        with pytest.raises(ValueError, match=r"graph\.indices: element 7 is 1000000000"):
            call(bad)
        with pytest.raises(ValueError, match=r"graph\.indptr: "):
            call(falling)
        with pytest.raises(ValueError, match="unknown options"):
            call(good, no_such_option=1)
        if entry.square:
            with pytest.raises(ValueError, match=f"reorder: '{method}' needs a square matrix, got 300 x 500"):
                call(random_graph(300, 500, 0.02).csr)


def test_limits_and_undirected_matrices() -> None:
    seen: list[Csr] = []

    def keep(csr: Csr) -> torch.Tensor:
        seen.append(csr)
        return torch.arange(csr.rows)

    register_reordering("small", square=True, undirected=True, most_nnz=8)(keep)
    with pytest.raises(ValueError, match="undirected: got True"):
        register_reordering("other", undirected=True)(keep)
    line = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 4]])
    reorder(gnnsparse.SparseGraph.from_edge_index(line), "small")
    dense = seen[0].row_index().new_zeros(5, 5)
    dense[seen[0].row_index(), seen[0].indices.long()] = 1
    assert torch.equal(dense, dense.T)
    assert dense.diagonal().sum() == 0
    assert seen[0].nnz == 8
    longer = torch.cat([line, torch.tensor([[0], [3]])], 1)
    with pytest.raises(ValueError, match=r"reorder: 'small' takes at most 8 nonzeros; A \+ A\^T has 10"):
        reorder(gnnsparse.SparseGraph.from_edge_index(longer), "small")
    with pytest.raises(ValueError, match="takes at most 8 nonzeros; the matrix has 25"):
        reorder(random_graph(5, 5, 1.0), "small")
    assert len(seen) == 1
    assert {METHODS[name].most_nnz for name in ("rcm", "metis")} == {2**31 - 1}
