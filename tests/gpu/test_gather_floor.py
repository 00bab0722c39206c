"""The gather that floors are measured with: every listed row is really loaded."""

from __future__ import annotations

import pytest
import torch

from gnnsparse import _native
from gnnsparse.precision import dense_view
from gnnsparse.runtime.device import path

WORDS = 1024


def words(x: torch.Tensor, width: int) -> torch.Tensor:
    """Rows as int64 numbers of 32 bits, whole 16-byte vectors."""
    size = -(-width * x.element_size() // 16) * 4
    return x.contiguous().view(torch.int32)[:, :size].long() & 0xFFFFFFFF


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 8, 40, 64, 128, 500, 1100])
@pytest.mark.parametrize("count", [0, 1, 31, 33, 1000, 200_001])
def test_it_adds_up_every_row(dtype: torch.dtype, width: int, count: int) -> None:
    per_vector = 16 // dtype.itemsize
    padded = -(-width // per_vector) * per_vector + per_vector  # rows that lie apart
    x = torch.randn(700, padded, device="cuda").to(dtype)
    columns = torch.randint(-1, 700, (count,), dtype=torch.int32, device="cuda")
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    out = torch.full((processors, WORDS), -1, dtype=torch.int32, device="cuda")
    stream = path().stream(x.device)
    _native.cuda_gather_floor(columns, dense_view(x), width, out, stream)
    got = (out.long() & 0xFFFFFFFF).sum(0) % 2**32
    rows = words(x, width)
    counts = torch.bincount(columns[columns >= 0].long(), minlength=700)
    total = (rows * counts[:, None]).sum(0)  # below 2^32 * 2^18
    expected = torch.zeros(WORDS, dtype=torch.int64, device="cuda")
    expected.index_add_(0, torch.arange(total.numel(), device="cuda") % WORDS, total)
    assert torch.equal(got, expected % 2**32)


@pytest.mark.gpu
def test_bad_arguments_are_refused() -> None:
    x = torch.zeros(10, 12, device="cuda", dtype=torch.float16)  # 24 bytes a row
    columns = torch.zeros(4, dtype=torch.int32, device="cuda")
    out = torch.zeros(1000, WORDS, dtype=torch.int32, device="cuda")
    stream = path().stream(x.device)
    with pytest.raises(ValueError, match="x: rows must be 16-byte aligned"):
        _native.cuda_gather_floor(columns, dense_view(x), 12, out, stream)
    rows = dense_view(x[:, :8].contiguous())
    with pytest.raises(ValueError, match="columns: is not on a GPU"):
        _native.cuda_gather_floor(columns.cpu(), rows, 8, out, stream)
    with pytest.raises(ValueError, match="out: must have a row for each of"):
        _native.cuda_gather_floor(columns, rows, 8, out[:1], stream)


@pytest.mark.gpu
def test_the_benchmark_measures_it() -> None:
    import gnnsparse
    from gnnsparse.bench.candidates import our_kernel
    from gnnsparse.bench.kernels import floor_measured
    from gnnsparse.bench.workload import Workload, make_subject
    from gnnsparse.precision import Precision
    from gnnsparse.testing import random_graph

    graph = random_graph(5000, 5000, 0.01, weighted=False).to("cuda")
    for width in (12, 64):  # 12 columns of fp16 are no whole vectors
        work = Workload(make_subject("random", graph, "none"), "spmm", Precision.FP16, width)
        a = gnnsparse.prepare(graph, precision="fp16", cache=False)
        who = our_kernel("auto", a.kernels.plan("spmm", width, False), a, work)
        for graphs in (False, True):
            floor = floor_measured(work, who, 5, graphs)
            assert floor is not None
            assert floor > 0
