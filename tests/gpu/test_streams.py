"""Threads that share one operand, each on a CUDA stream of its own."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable

import pytest
import torch

import gnnsparse
from gnnsparse import SparseOperand
from gnnsparse.runtime.device import path
from gnnsparse.testing import random_graph
from tests.together import run_together

pytestmark = pytest.mark.gpu

NODES, WIDTH = 4000, 64
Operation = Callable[[SparseOperand], list[torch.Tensor]]


def prepared(precision: str = "fp16", values: str | None = None) -> SparseOperand:
    graph = random_graph(NODES, NODES, 0.005, hubs=3, empty_rows=0.1, seed=7).to("cuda")
    return gnnsparse.prepare(graph, precision=precision, values=values, cache=False)


def operations(a: SparseOperand) -> dict[str, tuple[Operation, int]]:
    """The operations by name, each with how often a thread calls it."""
    generator = torch.Generator("cuda").manual_seed(3)
    x = torch.randn(NODES, WIDTH, device="cuda", generator=generator).to(a.precision.storage)
    weights = torch.randn(a.nnz, device="cuda", generator=generator)
    heads = torch.randn(4, NODES, WIDTH, device="cuda", generator=generator).to(a.precision.storage)

    def gradients(a: SparseOperand) -> list[torch.Tensor]:
        leaves = [heads.detach().clone().requires_grad_() for _ in range(3)]
        out = gnnsparse.attention(a, *leaves)
        return [out.detach(), *torch.autograd.grad(out.sum(), leaves)]

    return {
        "spmm": (lambda a: [a @ x], 10_000),
        "transpose": (lambda a: [a.T @ x], 2_000),
        "edge values": (lambda a: [gnnsparse.spmm(a, x, weights)], 2_000),
        "sddmm": (lambda a: [gnnsparse.sddmm(a, x, x)], 2_000),
        "softmax": (lambda a: [gnnsparse.edge_softmax(a, weights)], 2_000),
        "attention": (lambda a: [gnnsparse.attention(a, heads, heads, heads)], 1_000),
        "gradients": (gradients, 200),
    }


@pytest.mark.parametrize(
    "name", ["spmm", "transpose", "edge values", "sddmm", "softmax", "attention", "gradients"]
)
def test_two_streams_share_an_operand(name: str) -> None:
    """The first product is made by both at once; every result has the bits of one stream alone."""
    right_operand, shared = prepared(), prepared()
    operation, count = operations(right_operand)[name]
    right = operation(right_operand)
    torch.cuda.synchronize()
    wrong = torch.zeros(2, dtype=torch.int64, device="cuda")

    def work(thread: int, start: threading.Barrier) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            bad = torch.zeros((), dtype=torch.int64, device="cuda")
            start.wait()
            for _ in range(count):
                # Compared on the stream: a copy to the host for each product would keep the streams apart.
                for one, other in zip(operation(shared), right, strict=True):
                    bad += (one != other).any()
            wrong[thread] = bad
            torch.cuda.current_stream().synchronize()

    run_together(2, work)
    torch.cuda.synchronize()
    assert wrong.tolist() == [0, 0]


@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32", "fp32"])
@pytest.mark.parametrize("values", [None, "gcn"])
def test_the_first_product_of_fresh_operands(precision: str, values: str | None) -> None:
    """What it computes is complete on one stream before another one reads it."""
    operand = prepared(precision, values)
    operation, _ = operations(operand)["spmm"]
    right = operation(operand)
    operands = [prepared(precision, values) for _ in range(50)]
    torch.cuda.synchronize()

    def work(thread: int, start: threading.Barrier) -> None:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for fresh in operands:
                start.wait()
                got = operation(fresh)
                stream.synchronize()
                assert torch.equal(got[0], right[0])

    run_together(4, work)


def test_an_operand_is_freed_while_another_stream_computes() -> None:
    """Its memory is not given to other tensors before the kernels that were queued have read it."""
    operation, _ = operations(prepared())["spmm"]
    right = operation(prepared())[0]
    side = torch.cuda.Stream()
    results = []
    for _ in range(20):
        fresh = prepared()
        sizes = [fresh.kernels.csr.nbytes // 4, fresh.nnz // 2, fresh.nnz]
        operation(fresh)  # what the first product makes belongs to this stream
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            results.append(operation(fresh)[0])
        del fresh
        gc.collect()
        _ = [torch.full((size,), 3, dtype=torch.int32, device="cuda") for size in sizes for _ in range(20)]
    torch.cuda.synchronize()
    assert all(torch.equal(y, right) for y in results)


def test_memory_that_the_default_stream_uses_is_not_given_back_to_its_own_stream() -> None:
    """The handle of the default stream is 0, which torch takes for no stream."""
    side, size = torch.cuda.Stream(), 2**20
    with torch.cuda.stream(side):
        used = torch.empty(size, device="cuda")
    torch.cuda.synchronize()
    place = used.data_ptr()
    torch.cuda._sleep(50_000_000)
    path().record_use([used], torch.cuda.current_stream().cuda_stream)
    del used
    with torch.cuda.stream(side):
        other = torch.empty(size, device="cuda")
    assert other.data_ptr() != place
    torch.cuda.synchronize()
