"""A @ X with leading dimensions, as torch.matmul has them, on every device and in every precision."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnsparse
from gnnsparse.testing import assert_accurate, random_graph
from tests.helpers import ROUNDING, dense_matrix, make, plain_product, product_scale


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("lead", [(1,), (3,), (2, 3), (0,), (2, 0, 3), (110,)])
def test_matches_float64(device: str, precision: str, lead: tuple[int, ...]) -> None:
    graph = random_graph(70, 110, 0.1, weighted=False, hubs=1, empty_rows=0.1)
    a, matrix = make(graph, device, values="mean", precision=precision), dense_matrix(graph, "mean")
    x = torch.randn(*lead, 110, 12)
    y = a @ x.to(device)
    assert (y.shape, y.dtype) == ((*lead, 70, 12), x.dtype)
    assert y.is_contiguous()
    if y.numel() == 0:
        return
    plain, exact = plain_product(matrix, x, precision), matrix @ x.double()
    floor = max(ROUNDING[precision], 1e-6)
    assert_accurate(y, plain, exact, floor=floor, scale=product_scale(matrix, x))
    assert torch.equal(y, torch.matmul(a, x.to(device)))
    assert torch.equal(y, a @ x.to(device)), "the same in every run"


@given(
    lead=st.lists(st.integers(0, 3), min_size=1, max_size=3), rows=st.integers(0, 9), cols=st.integers(0, 9),
    width=st.integers(0, 5), density=st.sampled_from([0.0, 0.3, 1.0]),
    order=st.permutations(range(5)), dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)  # fmt: skip
@settings(deadline=None, max_examples=30)
def test_any_shape_and_strides(
    lead: list[int], rows: int, cols: int, width: int, density: float, order: list[int], dtype: torch.dtype
) -> None:
    """Each matrix of the batch is multiplied as it is by itself, whatever the strides."""
    a = gnnsparse.prepare(random_graph(rows, cols, density), cache=False)
    shape = (*lead, cols, width)
    kept = [d for d in order if d < len(shape)]
    back = [kept.index(d) for d in range(len(shape))]
    x = torch.randn([shape[d] for d in kept]).to(dtype).permute(back)
    y = a @ x
    assert (y.shape, y.dtype) == ((*lead, rows, width), dtype)
    for mine, one in zip(y.flatten(0, -3), x.flatten(0, -3), strict=True):
        assert torch.equal(mine, a @ one)


@pytest.mark.parametrize(
    ("write", "shape"),
    [(lambda a, x: a @ x, (20, 30)), (torch.matmul, (20, 30)), (torch.matmul, (6, 6))],
    ids=["@", "torch.matmul", "square"],
)
def test_compiled(device: str, write: Any, shape: tuple[int, int]) -> None:
    """Where X has as many columns as A has rows, `A @ X` looks like `X @ A` to TorchDynamo."""
    a = make(random_graph(*shape, 0.3), device)
    x = torch.randn(4, shape[1], 6, device=device, requires_grad=True)
    run = torch.compile(partial(write, a), fullgraph=True, backend="aot_eager")
    assert torch.equal(run(x), a @ x)
    (gradient,) = torch.autograd.grad(run(x).square().sum(), x)
    torch.testing.assert_close(gradient, 2 * (a.T @ (a @ x.detach())))
