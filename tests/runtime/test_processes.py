"""Operands across processes: forks, data loaders, pickles, signals, and the end of the interpreter."""

from __future__ import annotations

import copy
import io
import multiprocessing
import multiprocessing.reduction
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import gnnsparse
from gnnsparse import SparseOperand
from gnnsparse.nn import SparseLinear
from gnnsparse.runtime.memo import ForkLock, cached_property
from gnnsparse.testing import random_graph
from tests.together import run_together

ROOT = Path(__file__).parents[2]


def _operand(precision: str = "fp32") -> SparseOperand:
    return gnnsparse.prepare(random_graph(40, 40, 0.2, seed=1), precision=precision, cache=False)


OPTIONS = [{}, {"format": "me-bcrs", "precision": "fp16", "reorder": "rcm"}, {"values": "gcn"}]


def _products(a: SparseOperand, x: torch.Tensor) -> list[torch.Tensor]:
    scores = gnnsparse.sddmm(a, x, x)
    weights = gnnsparse.edge_softmax(a, scores)
    return [a @ x, a.T @ x, scores, weights, gnnsparse.spmm(a, x, weights), gnnsparse.attention(a, x, x, x)]


def _same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return all(torch.equal(got, right) for got, right in zip(found, wanted, strict=True))


def _in_a_fork(function: Callable[[], bool], seconds: float = 60) -> bool:
    """Whether a function returns True in a forked process, which is killed after some time."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            torch.set_num_threads(1)  # as data loaders do; torch's own operations hang in forks without it
            code = 0 if function() else 1
        finally:
            os._exit(code)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status == 0
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return False


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("used", [True, False])
def test_a_fork_computes_with_its_parent_s_operand(precision: str, used: bool) -> None:
    a, x = _operand(precision), torch.randn(40, 8)
    wanted = _products(a if used else _operand(precision), x)
    assert _in_a_fork(lambda: _same(_products(a, x), wanted))
    assert _same(_products(a, x), wanted)


def test_a_fork_in_the_middle_of_a_product_of_another_thread() -> None:
    """Locks that a thread of the parent held are not held in the child."""
    a, x = _operand(), torch.randn(40, 8)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            b = _operand("fp16")
            b @ x
            b.T @ x

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        wanted = _products(_operand(), x)
        for _ in range(5):
            assert _in_a_fork(lambda: _same(_products(_operand(), x), wanted) and bool((a @ x).shape))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


class _Slow:
    """Has a value that takes as long to compute as somebody wants."""

    def __init__(self, begun: threading.Event, wait: threading.Event) -> None:
        self.begun, self.wait = begun, wait

    @cached_property
    def value(self) -> int:
        self.begun.set()
        assert self.wait.wait(60)
        return 1


@pytest.mark.parametrize("held", ["a lock", "a property"])
def test_a_fork_does_not_wait_for_what_another_thread_held(held: str) -> None:
    begun, wait, lock = threading.Event(), threading.Event(), ForkLock()
    slow = _Slow(begun, wait)

    def work() -> None:
        if held == "a property":
            assert slow.value == 1
            return
        with lock:
            begun.set()
            assert wait.wait(60)

    def child() -> bool:
        wait.set()
        with lock:
            return _Slow(begun, wait).value == 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(60)
        assert _in_a_fork(child, seconds=20)
    finally:
        wait.set()
        thread.join()


def test_a_fork_by_the_thread_that_holds_a_lock() -> None:
    lock = ForkLock()
    with lock:
        assert _in_a_fork(lambda: lock.acquire(timeout=10), seconds=20)


def test_a_kept_value_is_the_same_for_all_threads() -> None:
    class Made:
        @cached_property
        def value(self) -> object:
            return object()

    made, found = Made(), list[object]()

    def work(number: int, barrier: threading.Barrier) -> None:
        barrier.wait()
        found.append(made.value)

    run_together(8, work)
    assert len(set(map(id, found))) == 1
    assert isinstance(Made.value, cached_property)


class _Rows(Dataset):
    """Products computed in workers of a data loader."""

    def __init__(self, a: SparseOperand, x: torch.Tensor) -> None:
        self.a, self.x = a, x

    def __len__(self) -> int:
        return 6

    def __getitem__(self, at: int) -> torch.Tensor:
        return self.a @ (self.x * at)


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_workers_of_a_data_loader_hold_an_operand(start: str) -> None:
    a, x = _operand("fp16"), torch.randn(40, 8)
    a @ x
    workers = 2 if start == "fork" else 1  # which imports everything
    loader = DataLoader(
        _Rows(a, x), batch_size=2, num_workers=workers, multiprocessing_context=start, timeout=100
    )
    found = torch.cat(list(loader))
    assert torch.equal(found, torch.stack([a @ (x * i) for i in range(6)]))


@pytest.mark.parametrize("options", OPTIONS)
def test_torch_multiprocessing_leaves_an_operand_s_arrays_where_they_are(options: dict[str, Any]) -> None:
    """It moves the memory of tensors that it pickles, of which kernels hold the addresses."""
    graph = random_graph(40, 40, 0.2, seed=1)
    a, x = gnnsparse.prepare(graph, cache=False, **options), torch.randn(40, 8)
    wanted, layer = _products(a, x), SparseLinear(graph)
    of_layer = layer(x[:, :1].T)
    held = []
    for thing in (a, a.T, graph, layer, copy.deepcopy(graph)):
        buffer = io.BytesIO()
        multiprocessing.reduction.ForkingPickler(buffer).dump(thing)
        held.append(pickle.loads(buffer.getvalue()))
    layer.share_memory()
    fill = [torch.full((400,), -1) for _ in range(1000)]  # where freed memory would be
    assert _same(_products(a, x), wanted)
    assert _same(_products(held[0], x), wanted)
    assert _same(_products(gnnsparse.prepare(graph, cache=False, **options), x), wanted)
    assert torch.equal(layer(x[:, :1].T), of_layer)
    arrays = [a.kernels.csr.indptr, a.kernels.csr.indices, graph.csr.indptr, graph.csr.indices]
    assert not any(array.is_shared() for array in arrays)
    del fill


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what Python drops
def test_an_operand_is_usable_after_an_interrupt() -> None:
    """KeyboardInterrupt at any moment of preparing and computing leaves nothing half made, no lock held."""
    x = torch.randn(40, 8)
    wanted = _products(_operand("fp16"), x)
    interrupted = 0
    for attempt in range(30):
        a = _operand("fp16")
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            # Python drops an exception that comes while it frees an object: then another one follows.
            signal.setitimer(signal.ITIMER_REAL, 1e-5 * (attempt + 1), 1.0)
            while True:
                _products(a, x)
                _operand("fp16") @ x
        except KeyboardInterrupt:
            interrupted += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        done: list[bool] = []

        def check(a: SparseOperand = a, done: list[bool] = done) -> None:
            done.append(_same(_products(a, x), wanted))

        thread = threading.Thread(target=check)
        thread.start()
        thread.join(60)
        assert done == [True]
    assert interrupted == 30


EXIT = """
import threading
from concurrent.futures import ThreadPoolExecutor
import torch, gnnsparse
from gnnsparse.testing import random_graph
a = gnnsparse.prepare(random_graph(300, 300, 0.2, seed=1), precision="fp16", cache=False)
x = torch.randn(300, 64)
started = threading.Barrier(5)
def work():
    started.wait()
    for _ in range(50):
        b = gnnsparse.prepare(random_graph(30, 30, 0.2), cache=False)
        b @ x[:30]
        (a @ x, a.T @ x)
threading.Thread(target=work).start()
pool = ThreadPoolExecutor(3)
for _ in range(3):
    pool.submit(work)
started.wait()
print("main ends")
"""


@pytest.mark.slow
def test_the_interpreter_ends_while_threads_compute() -> None:
    """Python waits for threads that are no daemons; daemons abort inside torch's own functions, too."""
    for _ in range(3):
        run = subprocess.run(
            [sys.executable, "-c", EXIT], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False
        )
        assert (run.returncode, run.stderr, run.stdout) == (0, "", "main ends\n")


def test_results_do_not_depend_on_deterministic_mode() -> None:
    a, x = _operand(), torch.randn(40, 8)
    wanted = _products(a, x)
    torch.use_deterministic_algorithms(True)
    try:
        assert _same(_products(a, x), wanted)
        q = x.clone().requires_grad_()
        for y in _products(a, q):
            y.sum().backward(retain_graph=True)
    finally:
        torch.use_deterministic_algorithms(False)
