"""What could make a launch wrong that was bound before: another state of torch, other views, freed memory."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

import pytest
import torch

import gnnsparse
from tests import emulated
from tests.gpu_paths import RunningPath
from tests.ops.test_launches import launch_of, operand, ready


@pytest.fixture
def path(late: ModuleType) -> Any:
    with emulated.running(late) as running:
        yield running


@contextmanager
def _deterministic() -> Any:
    """Lets torch fill new memory with NaN, so that what a launch does not write shows."""
    before = torch.are_deterministic_algorithms_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True  # type: ignore[misc]
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[misc]


@contextmanager
def _float64() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "deterministic": _deterministic,
    "default dtype": _float64,
    "default device": lambda: torch.device("meta"),
    "no grad": torch.no_grad,
    "inference": torch.inference_mode,
    "anomaly": lambda: torch.autograd.detect_anomaly(check_nan=True),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("bound_inside", [False, True])
def test_states_of_torch_change_nothing(
    path: RunningPath, state: str, dtype: torch.dtype, bound_inside: bool
) -> None:
    """Also where the first call, which binds the launch, runs in the state, and later ones do not."""
    right_operand, a = operand("fp16"), operand("fp16")
    x = torch.randn(60, 16).to(dtype)
    right = right_operand @ x
    with STATES[state]() if bound_inside else nullcontext():
        _ = a @ x
    with nullcontext() if bound_inside else STATES[state]():
        y = launch_of(a)(x)
        assert y is not None
        assert torch.equal(y, right)
        assert (y.dtype, y.device, y.is_contiguous()) == (dtype, x.device, True)
        assert y.is_inference() == (state == "inference" and not bound_inside)
    leaf = x.clone().requires_grad_()
    for _ in range(2):  # the first one binds the transpose
        (grad,) = torch.autograd.grad((a @ leaf).sum(), leaf)
        assert torch.equal(grad, right_operand.T @ torch.ones_like(right))


def test_gradients_are_recorded_by_what_x_asks_for_in_the_call(path: RunningPath) -> None:
    a = operand("fp32")
    x = ready(a)
    assert not (a @ x).requires_grad
    x.requires_grad_(True)
    y = a @ x
    assert y.requires_grad
    with torch.no_grad():
        assert not (a @ x).requires_grad
        with torch.enable_grad():
            assert (a @ x).requires_grad
    x.requires_grad_(False)
    assert not (a @ x).requires_grad
    assert torch.equal(y.detach(), a @ x)


def test_views_of_one_memory_are_told_apart(path: RunningPath) -> None:
    """Square, so that a view and its transpose have one address, one shape and one dtype."""
    a = operand("fp16")
    memory = torch.randn(60 * 120).half()
    strides = [(60, 1), (1, 60), (120, 1), (61, 1), (64, 1), (0, 1), (1, 0), (60, 2)]
    for turn in range(2):
        for stride in strides:
            x = memory.as_strided((60, 60), stride)
            assert x.data_ptr() == memory.data_ptr()
            right = gnnsparse.spmm(a, x.clone(memory_format=torch.contiguous_format), plan=a.plan(60))
            assert torch.equal(a @ x, right)
            if turn:
                assert torch.equal(launch_of(a)(x), right)
    other = memory.view(torch.bfloat16)[: 60 * 60].view(60, 60)
    assert launch_of(a)(other) is None
    assert torch.equal(a @ other, gnnsparse.spmm(a, other, plan=a.plan(60)))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:Sparse CSR tensor support")
def test_tensors_without_one_block_of_memory_are_refused_by_their_layout(path: RunningPath) -> None:
    a = operand("fp32")
    x = ready(a)
    nested = [torch.nested.nested_tensor([x, x], layout=kind) for kind in (torch.strided, torch.jagged)]
    for odd, kind in (
        (x.to_sparse(), "dtype torch.float32 and layout torch.sparse_coo"),
        (x.to_sparse_csr(), "dtype torch.float32 and layout torch.sparse_csr"),
        (x.to_mkldnn(), "dtype torch.float32 and layout torch._mkldnn"),
        (nested[0], "a nested tensor of dtype torch.float32"),
        (nested[1], "a nested tensor of dtype torch.float32"),
    ):
        assert launch_of(a)(odd) is None
        for call in (lambda odd: a @ odd, lambda odd: gnnsparse.spmm(a, odd, reduce="mean")):
            with pytest.raises(TypeError, match=rf"^x: got .*{kind}; accepted: a dense tensor of dtype"):
                call(odd)


def test_x_may_change_and_move_between_calls(path: RunningPath) -> None:
    a = operand("fp32")
    x = ready(a)
    for _ in range(3):
        x.normal_()
        assert torch.equal(a @ x, gnnsparse.spmm(a, x.clone(), plan=a.plan(16)))
    x.data = torch.randn(60, 16)  # as optimisers and loaders of weights do
    assert torch.equal(a @ x, gnnsparse.spmm(a, x.clone(), plan=a.plan(16)))
    x.untyped_storage().resize_(0)  # as sharded training does with what it gathers again later
    assert launch_of(a)(x) is None
    with pytest.raises(ValueError, match=r"^x: has no memory"):
        _ = a @ x


def test_a_launch_keeps_what_it_reads_and_not_the_operand(path: RunningPath) -> None:
    """Another thread may hold the function while the operand is freed."""
    a = operand("fp16")
    x = ready(a)
    right, launch, freed = a @ x, launch_of(a), weakref.ref(a)
    arrays = [weakref.ref(a.kernels.csr.indices), weakref.ref(a.kernels.csr.indptr)]
    del a
    gc.collect()
    assert freed() is None
    others = [operand("fp16") for _ in range(3)]  # which would take the memory
    for other in others:
        ready(other)
    assert torch.equal(launch(x), right)
    del launch
    gc.collect()
    assert [array() for array in arrays] == [None, None]


def test_an_operand_that_was_used_is_freed_without_the_collector(path: RunningPath) -> None:
    gc.disable()
    try:
        a = operand("fp32")
        x = ready(a).requires_grad_()
        for _ in range(2):
            (a @ x).sum().backward()
        freed = weakref.ref(a)
        del a
        assert freed() is None
    finally:
        gc.enable()


def test_each_thread_launches_on_its_own_stream(late: ModuleType) -> None:
    """Two threads call by turns, so that the stream changes between any two calls of the launch."""

    class Path(RunningPath):
        own = threading.local()

        def queue(self, device: torch.device) -> Any:
            return lambda: 0, 0, lambda: self.own.stream

        def stream(self, device: torch.device) -> int:
            return self.own.stream

    running = Path(late)
    with gnnsparse.runtime.device.use(running):
        running.own.stream = 3
        a = operand("fp32")
        x = ready(a)
        right, turns, wrong = a @ x, threading.Barrier(2, timeout=60), []

        def call(stream: int) -> None:
            running.own.stream = stream
            for _ in range(20):
                turns.wait()
                if not torch.equal(a @ x, right):
                    wrong.append(stream)

        threads = [threading.Thread(target=call, args=(stream,)) for stream in (7, 11)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert a.kernels.streams._used == {3, 7, 11}


def test_the_backward_pass_runs_on_the_thread_of_autograd(path: RunningPath) -> None:
    """Several backward passes at a time through one operand, each with a gradient of its own."""
    a = operand("fp32")
    leaves = [torch.randn(60, 16, requires_grad=True) for _ in range(4)]
    weights = [torch.randn(60, 16) for _ in leaves]
    ready(a.T)
    right = [gnnsparse.spmm(a.T, weight, plan=a.T.plan(16)) for weight in weights]

    def step(i: int) -> None:
        for _ in range(10):
            leaves[i].grad = None
            ((a @ leaves[i]) * weights[i]).sum().backward()

    threads = [threading.Thread(target=step, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for leaf, expected in zip(leaves, right, strict=True):
        assert leaf.grad is not None
        assert torch.equal(leaf.grad, expected)
