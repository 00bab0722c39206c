"""Operands that several threads share: what they compute on demand, and what is alive while they use it."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from unittest import mock

import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph, SparseOperand
from gnnsparse.nn import SparseLinear
from gnnsparse.ops.edges.schema import rows_of
from gnnsparse.ops.spmm_kernels import bind_spmm
from gnnsparse.plan import CsrPlan
from gnnsparse.runtime import device as device_module
from gnnsparse.runtime.memo import Memo
from gnnsparse.sparse.kernel_cache import Product
from gnnsparse.testing import random_graph, with_gradients
from tests.gpu_paths import RecordingPath
from tests.helpers import same
from tests.together import run_together

THREADS, NODES = 8, 40
KINDS = (("fp32", None), ("tf32", "gcn"), ("fp16", None), ("bf16", "gcn"))
Operation = Callable[[SparseOperand], list[torch.Tensor]]


def operations(x: torch.Tensor, weights: torch.Tensor) -> list[Operation]:
    """Every operation and its gradients, each as what the first call of an operand may be."""
    heads = x.view(NODES, 2, -1).transpose(0, 1)
    return [
        lambda a: [a @ x],
        lambda a: [a.T @ x],
        lambda a: [gnnsparse.spmm(a, x, weights[: a.nnz])],
        lambda a: [gnnsparse.sddmm(a, x, x)],
        lambda a: [gnnsparse.edge_softmax(a, weights[: a.nnz])],
        lambda a: [gnnsparse.attention(a, heads, heads, heads)],
        lambda a: [a.to_coo_order(a.T.transpose_values(weights[: a.nnz]))],
        lambda a: [a.T.from_coo_order(weights[: a.num_edges])],
        lambda a: with_gradients(lambda x: a @ x, [x]),
        lambda a: with_gradients(lambda x, w: gnnsparse.spmm(a, x, w), [x, weights[: a.nnz]]),
        lambda a: with_gradients(lambda q, k: gnnsparse.sddmm(a, q, k), [x, x.flip(0)]),
        lambda a: with_gradients(lambda s: gnnsparse.edge_softmax(a, s), [weights[: a.nnz]]),
        lambda a: with_gradients(
            lambda q, k, v, b: gnnsparse.attention(a, q, k, v, bias=b), [*[heads] * 3, weights[: a.nnz]]
        ),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def graphs() -> list[SparseGraph]:
    return [random_graph(NODES, NODES, 0.1, hubs=1, empty_rows=0.1, seed=seed) for seed in range(4)]


@pytest.fixture(autouse=True)
def little_to_collect() -> Iterator[None]:
    """The collector looks at what a test makes, and not at all that was imported."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread is interrupted whenever it is about to compute a value, and when it has computed one."""
    get = Memo.get

    def slowly(make: Callable[[], object]) -> object:
        time.sleep(1e-5)
        made = make()
        time.sleep(1e-5)
        return made

    monkeypatch.setattr(Memo, "get", lambda kept, key, make: get(kept, key, lambda: slowly(make)))


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread", "interrupted")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_first_calls_of_400_operands(graphs: list[SparseGraph], kind: tuple[str, str | None]) -> None:
    """100 of each kind. All threads make the first call at once: half of them the same, half others."""
    x, weights = torch.randn(NODES, 16), torch.linspace(-1, 1, 4 * NODES * NODES)
    calls = operations(x, weights)
    options = dict(zip(("precision", "values"), kind, strict=True))

    def prepared(number: int) -> SparseOperand:
        return gnnsparse.prepare(graphs[number % len(graphs)], reorder="degree", cache=False, **options)

    expected = [[call(prepared(number)) for call in calls] for number in range(len(graphs))]
    operands = [prepared(number) for number in range(100)]

    def work(thread: int, start: threading.Barrier) -> None:
        for number, operand in enumerate(operands):
            start.wait()
            first = number + (thread // 2 if thread % 2 else 0)
            for turn in range(3):
                at = (first + turn) % len(calls)
                got = calls[at](operand)
                # Memory that was given back too early holds something else now.
                _ = [torch.full((size,), torch.nan) for size in (operand.nnz, operand.nnz // 2, NODES)]
                assert same(got, expected[number % len(graphs)][at]), f"operation {at} of operand {number}"

    run_together(THREADS, work)
    # What was made under contention stays right.
    for number, operand in enumerate(operands[:20]):
        found = [call(operand) for call in calls]
        assert all(same(*pair) for pair in zip(found, expected[number % len(graphs)], strict=True))


@pytest.mark.usefixtures("interrupted")
def test_a_value_is_made_once() -> None:
    kept, made, seen = Memo(threading.RLock(), torch.device("cpu")), list[int](), list[object]()

    def work(thread: int, start: threading.Barrier) -> None:
        for number in range(200):
            start.wait()
            seen.append((number, kept.get(number, lambda number=number: (made.append(number), object())[1])))

    run_together(THREADS, work)
    assert made == list(range(200))
    assert len(set(seen)) == 200


def test_on_a_gpu_a_value_is_complete_before_another_thread_sees_it() -> None:
    """The stream on which it is computed has finished: the thread that sees it may be on another stream."""

    class Path(RecordingPath):
        finished = False

        def finish(self, device: torch.device) -> None:
            assert key not in kept._values
            self.finished = True

    key, path = 1, Path()
    with device_module.use(path):
        kept = Memo(threading.RLock(), torch.device("cpu"))
        kept.get(key, object)
    assert path.finished


def test_threads_get_one_transpose(graphs: list[SparseGraph]) -> None:
    """Also of a transpose whose original was freed."""
    operands = [gnnsparse.prepare(graphs[0], cache=False).T for _ in range(100)]
    gc.collect()
    found: list[tuple[int, SparseOperand]] = []

    def work(thread: int, start: threading.Barrier) -> None:
        for number, operand in enumerate(operands):
            start.wait()
            found.append((number, operand.T))

    run_together(THREADS, work)
    assert len({(number, id(other)) for number, other in found}) == len(operands)
    assert all(other.T is operands[number] for number, other in found)


def test_operands_are_freed_while_their_products_run(graphs: list[SparseGraph]) -> None:
    """Each call is the last that knows its operand."""
    x = torch.randn(NODES, 16)
    right = [gnnsparse.prepare(graph, precision="fp16", cache=False) @ x for graph in graphs]
    calls = [
        deque(gnnsparse.prepare(graphs[i % 4], precision="fp16", cache=False).__matmul__ for i in range(50))
        for _ in range(4)
    ]

    def work(thread: int, start: threading.Barrier) -> None:
        start.wait()
        for number in range(50):
            if thread < 4:
                assert torch.equal(calls[thread].popleft()(x), right[number % 4])
            else:
                _ = [torch.full((size,), torch.nan) for size in range(100, 400)]

    run_together(THREADS, work)


@pytest.mark.parametrize("weights", ["gcn", None])
@pytest.mark.parametrize("kernel", ["cpu", "csr", "window", "panel"])
def test_a_bound_call_keeps_what_it_reads(kernel: str, weights: str | None) -> None:
    """Another thread may be inside of it when the operand is freed."""
    path = RecordingPath()
    with device_module.use(path if kernel != "cpu" else device_module.path()):
        graph = random_graph(200, 200, 0.05, weighted=False)
        a = gnnsparse.prepare(graph, values=weights, precision="fp16", cache=False)
        plan = None if kernel == "cpu" else gnnsparse.plan.Plan(kernel)
        x = torch.randn(200, 64).half()
        call = bind_spmm(a.kernels, x, None, plan)
        right = None if kernel != "cpu" else call(x, None)
        kept = [a.kernels.csr.indices, a.kernels.csr.indptr]
        if kernel in ("window", "panel"):
            matrix = a.kernels.require_blocked() if kernel == "window" else a.kernels.panel(plan.height)
            scales = [v for v in a.kernels.memo.values_of(torch.Tensor) if v.dtype == torch.float16]
            kept = [*matrix.arrays.values(), *(scales if weights else [])]
            del matrix, scales
        arrays = [weakref.ref(t) for t in kept]
        del a, graph, kept
        gc.collect()
        assert all(array() is not None for array in arrays)
        if right is not None:
            assert torch.equal(call(x, None), right)
        del call
        path.calls.clear()
        gc.collect()
        assert all(array() is None for array in arrays)


def test_a_plan_that_was_replaced_is_not_used_again(recorded: RecordingPath) -> None:
    """A thread may have bound a call by the former plan, and have yet to note that its arguments passed."""
    a = gnnsparse.prepare(random_graph(200, 200, 0.05), precision="fp16", cache=False)
    x = torch.randn(200, 64).half()
    _ = a @ x
    ((form, former),) = a.kernels.dispatch_cache.items()
    a.kernels.use_plan(Product("spmm", 64), CsrPlan())
    a.kernels.dispatch_cache[form] = former
    _ = a @ x
    assert recorded.names()[-1] == "cuda_spmm_csr"
    assert a.kernels.dispatch_cache[form] is not former


def test_memory_waits_for_every_stream_that_read_it() -> None:
    """Freed memory of a GPU belongs to one stream, which could use it for another tensor at once."""

    class Path(RecordingPath):
        def __init__(self) -> None:
            super().__init__()
            self.uses: dict[int, set[int]] = {}

        def record_use(self, tensors: Iterable[torch.Tensor], stream: int) -> None:
            self.uses.setdefault(stream, set()).update(tensor.data_ptr() for tensor in tensors)

    path = Path()
    with device_module.use(path):
        a = gnnsparse.prepare(random_graph(200, 200, 0.05), precision="fp16", cache=False)
        x = torch.randn(200, 64).half()
        calls: list[Callable[[SparseOperand], object]] = [
            lambda a: a @ x,
            lambda a: gnnsparse.sddmm(a, x, x),
            lambda a: gnnsparse.edge_softmax(a, torch.ones(a.nnz)),
            lambda a: gnnsparse.attention(a, x, x, x),
            lambda a: a.T @ x,
            lambda a: (rows_of(a, False), a @ x),  # what edge functions keep leads back to all that is kept
        ]
        for stream, call in enumerate(calls):
            path._stream = stream
            call(a)
        kernels = a.kernels
        work = next(v for v in kernels.memo.values_of(object) if type(v).__name__ == "WorkList")
        arrays = {t.data_ptr() for t in (kernels.csr.indices, kernels.values, work.items) if t is not None}
        del a, kernels, work
        gc.collect()
    assert set(path.uses) == set(range(6))
    assert all(arrays <= uses for uses in path.uses.values())


def test_a_layer_whose_state_is_loaded_meanwhile() -> None:
    layer = SparseLinear.from_dense(torch.nn.Linear(30, 20), sparsity=0.8)
    state, x = layer.state_dict(), torch.randn(4, 30)
    right = layer(x).detach()

    def work(thread: int, start: threading.Barrier) -> None:
        start.wait()
        for _ in range(50):
            if thread == 0:
                layer.load_state_dict(state)
            else:
                assert torch.equal(layer(x), right)

    run_together(4, work)


@pytest.mark.parametrize("handle", [0, 77])
def test_use_is_recorded_on_the_stream_of_a_handle(handle: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch makes a new stream of a handle that is 0, which is that of the default stream."""
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda stream, device: (stream, device))
    monkeypatch.setattr(torch.cuda, "default_stream", lambda device: ("default", device))
    tensor = mock.Mock(is_cuda=True)
    device_module.CudaPath().record_use([tensor], handle)
    tensor.record_stream.assert_called_once_with((handle or "default", tensor.device))
