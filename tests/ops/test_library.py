"""The registered operators: opcheck, torch.compile, CUDA graphs, streams."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
import torch

import gnnsparse
import gnnsparse.ops
from gnnsparse.testing import random_graph, with_gradients
from tests.helpers import WARNINGS_OF_TORCH, capture, make

pytestmark = WARNINGS_OF_TORCH


@pytest.fixture
def operand(device: str) -> gnnsparse.SparseOperand:
    return make(random_graph(40, 40, 0.15, weighted=False, hubs=1), device, values="gcn", precision="fp16")


def products(
    a: gnnsparse.SparseOperand, reductions: tuple[str, ...], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """One product after another, with weights of edges and heads, of edges, and of the matrix."""
    weights = gnnsparse.edge_softmax(a, gnnsparse.sddmm(a, q, k))
    for reduce in reductions:
        v = gnnsparse.spmm(a, gnnsparse.spmm(a, v, weights, reduce=reduce), reduce=reduce)
        if len(reductions) > 1:
            v = gnnsparse.spmm(a, v, weights.reshape(a.nnz, -1)[:, 0], reduce=reduce)
    return v


@pytest.mark.parametrize(
    ("backend", "reductions", "shape"),
    [
        ("aot_eager", ("sum", "mean", "max", "min"), (16,)),
        ("aot_eager", ("sum", "mean", "max", "min"), (3, 5)),
        # Where nothing is left to fuse, no C++ is compiled, which takes long and is the same for all.
        pytest.param("inductor", ("sum",), (16,), marks=pytest.mark.slow),
    ],
)
def test_compiles_without_graph_breaks(
    operand: gnnsparse.SparseOperand, backend: str, reductions: tuple[str, ...], shape: tuple[int, ...]
) -> None:
    inputs = [torch.randn(40, *shape, device=operand.device) for _ in range(3)]
    torch._dynamo.reset()
    function = partial(products, operand, reductions)
    compiled = torch.compile(function, fullgraph=True, backend=backend)
    assert all(map(torch.equal, with_gradients(compiled, inputs), with_gradients(function, inputs)))


def test_compile_sees_a_new_operand(operand: gnnsparse.SparseOperand) -> None:
    other = make(random_graph(25, 40, 0.2, seed=5), str(operand.device))
    x = torch.randn(40, 8, device=operand.device)
    torch._dynamo.reset()
    compiled = torch.compile(lambda a, x: a @ x, fullgraph=True, backend="aot_eager")
    for a in (operand, other, operand):
        assert torch.equal(compiled(a, x), a @ x)


def test_the_schema_of_an_operator() -> None:
    arguments = "Tensor x, Tensor? values, int operand, bool mean=False, int? seed=None"
    assert str(torch.ops.gnnsparse.spmm.default._schema) == f"gnnsparse::spmm({arguments}) -> Tensor"


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
@pytest.mark.parametrize("name", ["csr", "window"])
def test_cuda_graph_replays_with_new_input(precision: str, name: str) -> None:
    a = make(random_graph(300, 300, 0.05, hubs=3), "cuda", precision=precision, format=name)
    static = [torch.randn(300, 64, device="cuda", requires_grad=True) for _ in range(2)]

    def step() -> tuple[torch.Tensor, ...]:
        x, k = static
        y = gnnsparse.spmm(a, x, gnnsparse.edge_softmax(a, gnnsparse.sddmm(a, x, k))) + a @ k
        return y, *torch.autograd.grad(y.square().sum(), static)

    graph, captured = capture(step, runs=3)
    for _ in range(2):
        with torch.no_grad():
            for tensor in static:
                tensor.copy_(torch.randn_like(tensor))
        graph.replay()
        for got, want in zip(captured, step(), strict=True):
            assert torch.equal(got, want)


@pytest.mark.gpu
def test_capture_before_the_plan_is_made_is_an_error() -> None:
    a = make(random_graph(50, 50, 0.1), "cuda", precision="fp16")
    x = torch.randn(50, 16, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError, match="run it once before capturing"), torch.cuda.graph(graph):
        a @ x


@pytest.mark.gpu
def test_runs_on_the_current_stream() -> None:
    a = make(random_graph(2000, 2000, 0.02), "cuda", precision="fp16")
    x = torch.randn(2000, 256, device="cuda")
    want = a @ x
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)  # the kernel below must wait for this
        filled = torch.zeros_like(x)
        torch.cuda._sleep(50_000_000)
        filled.copy_(x)
        got = a @ filled
    stream.synchronize()
    assert torch.equal(got, want)


def test_fp16_under_autocast(device: str) -> None:
    a = make(random_graph(60, 60, 0.1), device, precision="fp16")
    linear = torch.nn.Linear(16, 16).to(device)
    with torch.autocast(device, dtype=torch.bfloat16 if device == "cpu" else torch.float16):
        y = a @ linear(torch.randn(60, 16, device=device))
    assert y.dtype == (torch.bfloat16 if device == "cpu" else torch.float16)


# Operations are found by their folders.


def test_every_folder_is_an_operation_and_exports_it() -> None:
    folders = [path.parent for path in Path(gnnsparse.ops.__file__).parent.glob("*/api.py")]
    for folder in folders:
        for name in sys.modules[f"gnnsparse.ops.{folder.name}.api"].__all__:
            assert callable(getattr(gnnsparse.ops, name))
            assert name in gnnsparse.ops.__all__
            assert hasattr(gnnsparse, name)


def test_two_operations_of_one_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "api.py").write_text('__all__ = ["spmm"]\n\n\ndef spmm():\n    pass\n')
    monkeypatch.setattr(gnnsparse.ops, "__path__", [*gnnsparse.ops.__path__, str(tmp_path)])
    before = gnnsparse.ops.spmm
    try:
        with pytest.raises(
            ValueError, match=r"operation: got 'spmm' in gnnsparse.ops.other.api; accepted: a name"
        ):
            gnnsparse.ops.find_operations()
    finally:
        for name in ("gnnsparse.ops.other", "gnnsparse.ops.other.api"):
            sys.modules.pop(name, None)
        del gnnsparse.ops.other
    assert gnnsparse.ops.spmm is before
