"""SDDMM in the precisions of 8 bits: K is rounded with scales of features, gradients are those of fp16."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.plan import Plan
from gnnsparse.testing import assert_accurate, random_graph
from tests.gpu_paths import RunningPath
from tests.helpers import make
from tests.quantized import EIGHT_BITS, stored

PRECISIONS = tuple(EIGHT_BITS)
KERNEL = "cuda_sddmm_quantized"
#: What the error of one score may be, relative to the largest: a few roundings of an operand.
FLOOR = 1.5 * torch.finfo(torch.float16).eps


def _operand(device: str, precision: str, **how: Any) -> gnnsparse.SparseOperand:
    return make(random_graph(70, 90, 0.1, hubs=2, empty_rows=0.2), device, precision=precision, **how)


def check(a: gnnsparse.SparseOperand, q: torch.Tensor, k: torch.Tensor, **how: Any) -> None:
    """Compares scores [nnz] or [nnz, heads] with float64 products of Q and what 8 bits hold of K."""
    got = gnnsparse.sddmm(a, q.to(a.device), k.to(a.device), **how).cpu()
    assert got.dtype == q.dtype
    numbers, scale = stored(k.flatten(1).float(), a.precision.value)
    rounded = (numbers * scale).view(k.shape)
    row, column = a.indices().cpu()
    plain = (q.half().float()[row] * rounded.half().float()[column]).sum(-1).to(q.dtype)
    exact = (q.double()[row] * rounded.double()[column]).sum(-1)
    assert_accurate(got, plain, exact, floor=max(FLOOR, 2 * torch.finfo(q.dtype).eps))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("d", [1, 16, 45, 64, 72, 128, 136, 200, 300])
@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_panels(native: RunningPath, precision: str, d: int, limit: int) -> None:
    """Q in registers, one slice and two, and in shared memory; an odd number of its slices; cut panels."""
    a = _operand("cpu", precision, reorder="degree")
    plan = Plan("panel", height=16, tile_limit=limit, longest_first=limit == 3)
    for dtype in (torch.float32, torch.float16):
        check(a, torch.randn(70, d).to(dtype), torch.randn(90, d).to(dtype), plan=plan)
    # Features of very different sizes, and rows that are not contiguous.
    sizes = torch.logspace(-3, 3, d)
    check(a, torch.randn(70, d) / sizes, torch.randn(90, d) * sizes, plan=plan)
    check(a, torch.randn(d, 70).T, torch.randn(90, d + 3)[:, :d], plan=plan)
    assert KERNEL in native.called
    assert "cuda_sddmm_panel" not in native.called


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", [1e-30, 1e4])
def test_keys_of_any_size(native: RunningPath, precision: str, size: float) -> None:
    """Scales leave the range of float16; what Q gets of them does not."""
    plan = Plan("panel", height=16, tile_limit=1000)
    a, q, k = _operand("cpu", precision), torch.randn(70, 40), torch.randn(90, 40)
    scores, wanted = gnnsparse.sddmm(a, q, k * size, plan=plan), gnnsparse.sddmm(a, q, k, plan=plan)
    assert torch.allclose(scores / size, wanted, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_other_kernels_compute_the_same_function(native: RunningPath, precision: str) -> None:
    """The csr kernel, and values for each head."""
    a = _operand("cpu", precision)
    check(a, torch.randn(70, 24), torch.randn(90, 24), plan=Plan("csr"))
    check(a, torch.randn(70, 3, 8), torch.randn(90, 3, 8))
    assert KERNEL not in native.called


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("d", [1, 24, 64, 136])
@pytest.mark.parametrize("impl", ["auto", "reference"])
def test_every_device(device: str, precision: str, d: int, impl: str) -> None:
    a = _operand(device, precision, reorder="degree")
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        check(a, torch.randn(70, d).to(dtype), torch.randn(90, d).to(dtype), impl=impl)
    check(a, torch.randn(70, 2, d), torch.randn(90, 2, d), impl=impl)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_gpu_takes_its_kernel_for_bytes(device: str, precision: str) -> None:
    plan = {"plan": Plan("panel", height=16, tile_limit=3)} if device == "cuda" else {}
    check(_operand(device, precision), torch.randn(70, 96), torch.randn(90, 96), **plan)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's forward mode warns about itself
@pytest.mark.parametrize("precision", PRECISIONS)
def test_gradients_are_those_of_sixteen_bits(device: str, precision: str) -> None:
    """Backward and forward mode, compiled or not; of the scores themselves nothing is equal."""
    graph = random_graph(70, 90, 0.1, hubs=2, empty_rows=0.2)
    a, half = (make(graph, device, precision=p) for p in (precision, "fp16"))
    q, k, dk = (torch.randn(n, 16, device=device) for n in (70, 90, 90))
    probe = torch.randn(a.nnz, device=device)
    compiled = torch.compile(lambda q, k: gnnsparse.sddmm(a, q, k) * 1, fullgraph=True, backend="aot_eager")
    found = []
    for call in (lambda q, k: gnnsparse.sddmm(half, q, k), lambda q, k: gnnsparse.sddmm(a, q, k), compiled):
        inputs = [t.clone().requires_grad_() for t in (q, k)]
        scores = call(*inputs)
        found.append((scores.detach(), *torch.autograd.grad((scores * probe).sum(), inputs)))
    for grads in found[1:]:
        assert all(map(torch.equal, grads[1:], found[0][1:]))
        assert not torch.equal(grads[0], found[0][0])
    assert torch.equal(found[1][0], found[2][0])
    moved = [torch.func.jvp(lambda k, o=o: gnnsparse.sddmm(o, q, k), (k,), (dk,))[1] for o in (a, half)]
    assert torch.equal(*moved)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_empty_operands(device: str, precision: str) -> None:
    for rows, cols, d in ((0, 5, 4), (5, 0, 4), (6, 7, 4), (6, 7, 0)):
        a = make(random_graph(rows, cols, 0.3 if d == 0 else 0.0), device, precision=precision)
        scores = gnnsparse.sddmm(a, torch.randn(rows, d, device=device), torch.randn(cols, d, device=device))
        assert torch.equal(scores, torch.zeros(a.nnz, device=device))
