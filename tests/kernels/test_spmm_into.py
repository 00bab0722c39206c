"""SpMM into memory that the caller has: columns of a wider result, in a dtype of its own."""

from __future__ import annotations

import pytest
import torch

import gnnsparse
from gnnsparse import SparseOperand
from gnnsparse.kernel_keys import Product
from gnnsparse.ops.spmm.into import spmm_into
from gnnsparse.plan import Plan
from gnnsparse.testing import random_graph
from tests.gpu_paths import RunningPath
from tests.helpers import make


def check_columns(a: SparseOperand, dtype: torch.dtype) -> None:
    """Products of 40 and 24 features side by side, with the bits of products of their own."""
    rows, columns = a.shape
    for given in dict.fromkeys((a.precision.storage, torch.float32)):
        x = torch.randn(columns, 64).to(given)
        y = torch.full((rows, 72), 7.0, dtype=dtype)
        for part in (slice(0, 40), slice(40, 64)):
            spmm_into(a, x[:, part], y[:, part])
            expected = gnnsparse.spmm(a, x[:, part].to(a.precision.storage).float())
            assert torch.equal(y[:, part], expected.to(dtype))
        assert (y[:, 64:] == 7).all()  # what lies behind is left alone


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("format", ["auto", "window", "me-bcrs"])
def test_on_the_cpu(precision: str, format: str) -> None:
    if format == "me-bcrs" and precision == "fp32":
        pytest.skip("the format has no fp32")
    graph = random_graph(60, 60, 0.1, seed=3, weighted=False, empty_rows=0.2)
    a = gnnsparse.prepare(graph, precision=precision, values="mean", format=format, cache=False)
    for dtype in (torch.float32, torch.float16):
        check_columns(a, dtype)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("kernel", ["panel", "csr", "window"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_on_the_path_of_a_gpu(native: RunningPath, kernel: str, precision: str) -> None:
    if kernel == "window" and precision == "fp32":
        pytest.skip("the window kernel has no fp32")
    graph = random_graph(70, 90, 0.06, weighted=False, hubs=2, empty_rows=0.2)
    a = make(graph, "cpu", precision=precision)
    for width in (40, 24):
        a.kernels.use_plan(Product("spmm", width), Plan(kernel))
    for dtype in (torch.float32, torch.float16):
        check_columns(a, dtype)
    assert f"cuda_spmm_{kernel}" in native.called


def test_an_empty_matrix_gives_zeros(native: RunningPath) -> None:
    a = make(random_graph(5, 6, 0.0), "cpu")
    y = torch.ones(5, 8)
    spmm_into(a, torch.randn(6, 4), y[:, :4])
    assert torch.equal(y, torch.tensor([0.0] * 4 + [1.0] * 4).expand(5, 8))
