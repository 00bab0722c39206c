"""Every run gives the same bits, whatever the number of threads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import SparseOperand
from gnnsparse.testing import assert_accurate, random_graph, with_gradients
from tests.helpers import FORMATS, dense_matrix, make, precision_for
from tests.ops.quantized import EIGHT_BITS


def calls(a: SparseOperand) -> list[tuple[Callable[..., torch.Tensor], list[torch.Tensor]]]:
    """Every product, with heads and without, and its arguments."""

    def of(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device=a.device)

    (rows, cols), values = a.shape, of(a.nnz)
    products = [
        (partial(gnnsparse.spmm, a, reduce=reduce), [of(cols, 96), values])
        for reduce in ("sum", "mean", "max", "min")
    ]
    return [
        (lambda x: a @ x, [of(cols, 96)]),
        *products,
        *((function, [of(cols, 5, 12), of(a.nnz, 5)]) for function, _ in products),
        (partial(gnnsparse.sddmm, a), [of(rows, 96), of(cols, 96)]),
        (partial(gnnsparse.sddmm, a), [of(rows, 5, 12), of(cols, 5, 12)]),
        (partial(gnnsparse.edge_softmax, a), [values]),
        (partial(gnnsparse.edge_softmax, a), [of(a.nnz, 5)]),
    ]


def test_twenty_runs_are_bitwise_equal(device: str, precision: str) -> None:
    """With their gradients."""
    a = make(random_graph(300, 300, 0.05, hubs=4), device, precision=precision)
    for function, inputs in calls(a):
        first = with_gradients(function, inputs)
        for _ in range(20):
            assert all(map(torch.equal, with_gradients(function, inputs), first))


@pytest.mark.usefixtures("poisoned", "any_threads")
@pytest.mark.parametrize(
    ("shape", "density", "options"),
    [
        ((3000, 3000), 0.01, {"hubs": 2}),
        ((20_000, 3000), 1e-5, {}),  # hardly a row has a nonzero
        ((1, 3000), 0.5, {}),
        ((500, 3000), 0.2, {"empty_rows": 0.9}),
        *(((900, 400), 0.03, {"hubs": 3, "format": name}) for name in FORMATS if name != "csr"),
        *(((300, 300), 0.05, {"hubs": 3, "precision": name}) for name in EIGHT_BITS),
    ],
)
def test_number_of_threads_does_not_matter(
    shape: tuple[int, int], density: float, options: dict[str, Any]
) -> None:
    """Each row is computed once, whichever rows a thread takes at a time."""
    name = options.pop("format", "csr")
    precision = options.pop("precision", precision_for(name) if name != "csr" else "fp32")
    graph = random_graph(*shape, density, weighted=True, **options)
    a = make(graph, "cpu", format=name, precision=precision)
    x, q = torch.randn(shape[1], 40), torch.randn(shape[0], 40)

    def results() -> list[torch.Tensor]:
        if name != "csr":
            return [a @ x]
        scores = gnnsparse.sddmm(a, q, x)
        return [a @ x, scores, gnnsparse.edge_softmax(a, scores)]

    torch.set_num_threads(1)
    one = results()
    for count in (2, 3, 16):
        torch.set_num_threads(count)
        assert all(map(torch.equal, results(), one))
    if precision == "fp32":
        plain = gnnsparse.spmm(a, x, impl="reference")
        assert_accurate(one[0], plain, dense_matrix(graph, None) @ x.double())
