"""Sizes past 2^31: nonzeros, elements of X, bytes."""

from __future__ import annotations

import gc

import pytest
import torch

import gnnsparse
from gnnsparse.testing import measure_errors

pytestmark = [pytest.mark.gpu, pytest.mark.slow]


def needs(gigabytes: int) -> None:
    free = torch.cuda.mem_get_info()[0]
    if free < gigabytes * 1e9:
        pytest.skip(f"needs {gigabytes} GB of free GPU memory, there are {free / 1e9:.0f}")


@pytest.fixture(autouse=True)
def own_memory() -> object:
    gc.collect()
    torch.cuda.empty_cache()
    yield
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("name", ["csr", "window"])
def test_more_than_2_to_31_nonzeros(name: str) -> None:
    """A matrix of ones: every row of the product is the sum of the rows of x."""
    needs(142)  # 112 GB in arrays, and what torch keeps between them
    rows, cols = 70_000, 32_768
    indptr = torch.arange(0, rows + 1, device="cuda") * cols
    indices = torch.arange(cols, dtype=torch.int32, device="cuda").repeat(rows)
    assert indices.numel() > 2**31
    a = gnnsparse.prepare((indptr, indices), num_cols=cols, precision="fp16", format=name, cache=False)
    del indices
    x = torch.randint(-3, 4, (cols, 8), device="cuda").half()
    want = x.float().sum(0)
    y = a @ x.float()
    assert torch.equal(y, want.expand(rows, 8))
    back = a.T @ torch.ones(rows, 8, device="cuda")
    assert torch.equal(back, torch.full((cols, 8), float(rows), device="cuda"))


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_more_than_2_to_31_elements_of_x(precision: str) -> None:
    """A permutation matrix moves rows that lie more than 2^31 elements apart."""
    needs(60)
    n, width = 17_000_000, 128
    permutation = torch.randperm(n, device="cuda")
    a = gnnsparse.prepare((torch.arange(n + 1, device="cuda"), permutation), precision=precision, cache=False)
    x = torch.randn(n, width, device="cuda", dtype=a.precision.storage)
    assert x.numel() > 2**31
    y = a @ x
    for begin in range(0, n, 1_000_000):
        part = slice(begin, begin + 1_000_000)
        moved = x[permutation[part]]
        # Not bit for bit: in fp32 a Tensor Core kernel multiplies two parts of each element.
        assert measure_errors(y[part], moved.to(y.dtype), moved.double()).ok
