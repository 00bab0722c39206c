"""Products that are one native call, bound before: equal to those that Python queues, and as few steps."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.autograd import forward_ad

import gnnsparse
from benchmarks import host_path
from gnnsparse import SparseOperand
from gnnsparse.formats.policy import WindowPolicy
from gnnsparse.nn import GCNConv
from gnnsparse.ops.products import _LaunchedSpmm
from gnnsparse.plan import Plan
from gnnsparse.plan.work import WorkList
from gnnsparse.sparse.kernel_cache import Product
from gnnsparse.testing import random_graph
from tests import emulated
from tests.gpu_paths import RunningPath
from tests.helpers import PRECISIONS, make
from tests.together import run_together

PLANS: dict[str, Callable[[], Plan]] = {
    "csr": lambda: Plan("csr", prescale=False),
    "csr, cut rows": lambda: Plan("csr", prescale=False, row_limit=8),
    "csr, prescaled": lambda: Plan("csr", prescale=True),
    "panel": lambda: Plan("panel", prescale=False),
    "panel, cut, prescaled": lambda: Plan("panel", prescale=True, tile_limit=1),
    "window": lambda: Plan("window"),
    "window, cut": lambda: Plan("window", tile_limit=1),
    "policy": lambda: Plan("window", policy=WindowPolicy(swapped=True, stage_a="single", stage_x=False)),
}

FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "ready": lambda x: x,
    "transposed": lambda x: x.T.contiguous().T,
    "offset": lambda x: torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape),
    "of a wider one": lambda x: torch.cat([x, x], dim=1)[:, : x.shape[1]],
    "every other column": lambda x: x.repeat_interleave(2, dim=1)[:, ::2],
    "expanded": lambda x: x[:1, :1].expand(x.shape),
    "parameter": lambda x: torch.nn.Parameter(x, requires_grad=False),
}


@pytest.fixture
def path(late: ModuleType) -> Any:
    with emulated.running(late) as running:
        yield running


def operand(precision: str = "fp16", weights: Any = "gcn", **options: Any) -> SparseOperand:
    graph = random_graph(60, 60, 0.15, weighted=weights == "random", hubs=2, empty_rows=0.1)
    values = None if weights == "random" else weights
    return make(graph, "cpu", **{"precision": precision, "values": values, "format": "window", **options})


def launch_of(a: SparseOperand, mean: bool = False) -> Callable[[Any], Any]:
    return a.kernels.dispatch_cache.multiply[mean]


def ready(a: SparseOperand, width: int = 16, dtype: torch.dtype | None = None) -> torch.Tensor:
    """An X whose form was accepted in a call before."""
    x = torch.randn(a.shape[1], width).to(dtype or a.dtype)
    _ = a @ x
    return x


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("plan", "precision"),
    # There is no window kernel of full float32, and a policy takes the precisions of its format's paper.
    [
        (plan, p)
        for plan in PLANS
        for p in (("tf32", "fp16") if plan == "policy" else PRECISIONS)
        if not (p == "fp32" and plan.startswith("window"))
    ],
)
@pytest.mark.parametrize("weights", ["gcn", None, "random"])
def test_equal_to_the_calls_of_python(
    path: RunningPath, plan: str, precision: str, weights: str | None
) -> None:
    format = "me-bcrs" if plan == "policy" else "window"
    a, chosen = operand(precision, weights, format=format), PLANS[plan]()
    for width in (7, 16, 72):
        a.kernels.use_plan(Product("spmm", width), chosen)
        for dtype in dict.fromkeys((a.dtype, torch.float32)):
            for reduce in ("sum", "mean"):
                x = torch.randn(60, width).to(dtype)
                first = gnnsparse.spmm(a, x, reduce=reduce)
                again = launch_of(a, reduce == "mean")(x)
                assert again is not None
                assert torch.equal(first, again)
                assert (again.shape, again.dtype, again.is_contiguous()) == (first.shape, dtype, True)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("precision", ["fp16", "tf32"])
def test_any_strides(path: RunningPath, form: str, precision: str) -> None:
    a = operand(precision)
    for width in (16, 61):
        for dtype in (a.dtype, torch.float32):
            x = FORMS[form](ready(a, width, dtype))
            y = launch_of(a)(x)
            assert torch.equal(y, gnnsparse.spmm(a, x.detach().clone(), plan=a.plan(width)))
            assert torch.equal(a @ x, y)


@pytest.mark.parametrize("width", [7, 61])
@pytest.mark.parametrize("plan", ["csr, cut rows", "panel, cut, prescaled"])
def test_a_converted_x_and_partial_sums_share_memory(path: RunningPath, plan: str, width: int) -> None:
    """Torch's quick function allocates here, and where tests fill memory with NaN its usual one."""
    a = operand("fp16", "random" if plan.startswith("csr") else "gcn")
    a.kernels.use_plan(Product("spmm", width), PLANS[plan]())
    x = torch.randn(60, width)
    want = gnnsparse.spmm(a, x)
    assert any(work.partials > 0 for work in a.kernels.memo.values_of(WorkList))
    for _ in range(3):  # memory of a call before is handed out again
        assert torch.equal(launch_of(a)(x * 2), want * 2)
        assert torch.equal(launch_of(a)(x), want)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_what_is_not_plain_goes_the_long_way(path: RunningPath) -> None:
    a = operand("fp32")
    x = ready(a)
    right = launch_of(a)(x)
    negative = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert negative.is_neg()
    for odd in (
        negative,
        x.as_subclass(type("Sub", (torch.Tensor,), {})),
        torch._efficientzerotensor(60, 16),
    ):
        assert launch_of(a)(odd) is None
        assert torch.equal(a @ odd, right if odd.count_nonzero() else torch.zeros_like(right))
    for wrong in (x.double(), x[:, :15], x[:-1], x[None], x.to("meta"), x.to_sparse(), [[1.0]], None, 3):
        assert launch_of(a)(wrong) is None
    with emulated.NotingWaits():  # a mode that sees each operation
        assert launch_of(a)(x) is None
        assert torch.equal(a @ x, right)
    with forward_ad.dual_level():
        assert launch_of(a)(x) is None
        with pytest.raises(NotImplementedError, match=r"^gnnsparse\.spmm: got a tensor with a tangent"):
            _ = a @ forward_ad.make_dual(x, x)
    seen = []
    mapped = torch.vmap(lambda x: (seen.append(launch_of(a)(x)), a @ x)[1])(torch.stack([x, x]))
    assert torch.equal(mapped, torch.stack([right, right]))
    slope = torch.func.grad(lambda x: (seen.append(launch_of(a)(x)), (a @ x).sum())[1])(x)
    assert torch.equal(slope, a.T @ torch.ones_like(right))
    assert seen == [None, None]
    with torch.inference_mode():
        assert (a @ x).is_inference()
    _ = a.T @ torch.randn(60, 16)
    leaf = x.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match=r"^gnnsparse\.spmm: got a batch of gradients"):
        torch.autograd.grad(a @ leaf, leaf, torch.randn(3, 60, 16), is_grads_batched=True)


@pytest.mark.parametrize("reduce", ["sum", "mean"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_gradients(path: RunningPath, reduce: str, dtype: torch.dtype) -> None:
    a = operand("fp16")
    x = torch.randn(60, 16, dtype=dtype, requires_grad=True)
    weight, plans = torch.randn(60, 16, dtype=dtype), (a.plan(16), a.T.plan(16))
    found = []
    for given in (None, None, plans[0]):  # the first call binds, and the last one goes the way of Python
        y = gnnsparse.spmm(a, x, reduce=reduce, plan=given)
        found.append((y.detach(), *torch.autograd.grad(y, x, weight)))
    assert launch_of(a, reduce == "mean")(x) is NotImplemented
    assert launch_of(a.T)(weight) is not None
    for got in found[:2]:
        assert all(map(torch.equal, got, found[2]))
    with torch.no_grad():
        once = gnnsparse.spmm(a, x, reduce=reduce)
        assert torch.equal(once, found[0][0])
        assert not once.requires_grad
        with torch.enable_grad():
            assert gnnsparse.spmm(a, x, reduce=reduce).requires_grad
    # of a sum, whose gradient has strides of 0; again; and of a gradient
    for _ in range(2):
        (once,) = torch.autograd.grad(gnnsparse.spmm(a, x, reduce=reduce).sum(), x)
        (right,) = torch.autograd.grad(gnnsparse.spmm(a, x, reduce=reduce, plan=plans[0]).sum(), x)
        assert torch.equal(once, right)
    v, second = weight.clone().requires_grad_(), []
    for given in (None, plans[0]):
        y = gnnsparse.spmm(a, x, reduce=reduce, plan=given)
        (first,) = torch.autograd.grad(y, x, v, create_graph=True)
        second.append(torch.autograd.grad(first, v, x.detach())[0])
    assert torch.equal(*second)


def test_a_replaced_plan_is_not_launched_again(path: RunningPath) -> None:
    a = operand()
    x = ready(a)
    former = launch_of(a)
    assert former(x) is not None
    a.kernels.use_plan(Product("spmm", 16), Plan("csr", row_limit=8, prescale=False))
    assert launch_of(a)(x) is None
    path.called.clear()
    _ = a @ x
    assert "cuda_spmm_csr" in path.called
    assert torch.equal(launch_of(a)(x), gnnsparse.spmm(a, x, plan=a.plan(16)))
    assert former(x) is not None  # a call that runs meanwhile keeps what it was bound to


def test_more_forms_than_are_looked_through(path: RunningPath) -> None:
    a = operand()
    for width in range(1, 80):
        x = ready(a, width)
        assert torch.equal(launch_of(a)(x), gnnsparse.spmm(a, x, plan=a.plan(width)))


class Streams(RunningPath):
    """A GPU whose number, and whose current stream in each thread, a test sets."""

    def __init__(self, module: ModuleType) -> None:
        super().__init__(module)
        self.own, self.current_index, self.switched = threading.local(), 0, 0

    def queue(self, device: torch.device) -> Any:
        return lambda: self.current_index, 0, lambda: self.own.stream

    def stream(self, device: torch.device) -> int:
        return self.own.stream

    def current(self, device: torch.device) -> AbstractContextManager[None]:
        self.switched += 1
        return super().current(device)


def test_streams_and_gpus_are_those_of_the_call_and_its_thread(late: ModuleType) -> None:
    running = Streams(late)
    running.own.stream = 5
    with gnnsparse.runtime.device.use(running):
        a = operand()
        x = ready(a)
        running.switched, running.own.stream = 0, 9
        y = a @ x
        running.own.stream = 0  # the default stream
        assert torch.equal(a @ x, y)
        assert running.switched == 0
        assert a.kernels.streams._used == {5, 9, 0}
        running.current_index = 1
        assert launch_of(a)(x) is None
        assert torch.equal(a @ x, y)
        assert running.switched == 1
        running.current_index = 0

        def call(number: int, turns: threading.Barrier) -> None:
            """In two threads by turns, so that the stream changes between any two calls of the launch."""
            running.own.stream = (7, 11)[number]
            for _ in range(20):
                turns.wait(timeout=60)
                assert torch.equal(a @ x, y)

        run_together(2, call)
        assert a.kernels.streams._used == {5, 9, 0, 7, 11}


def calls_of(function: Callable[[], object]) -> int:
    """Counts the calls that the interpreter makes while a function runs, of Python's and of C's functions."""
    count = 0

    def note(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count - 2  # of `function`, and of sys.setprofile


def allocations_of(function: Callable[[], object]) -> int:
    """Counts the tensors whose memory a function allocates, those included that no operation makes."""
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        kept = function()
    events = profile.profiler.kineto_results.events()  # type: ignore[union-attr]
    del kept
    return sum(event.name() == "[memory]" and event.nbytes() > 0 for event in events)


def test_steps_of_a_call_are_few(path: RunningPath) -> None:
    """The bound of a call's time: `A @ x` makes 53 such calls where Python queues it."""
    a = operand("fp16")
    x, wide = ready(a), ready(a, dtype=torch.float32)
    leaf = x.clone().requires_grad_()
    seed = torch.randn_like(x)
    _ = a.T @ seed
    _ = a @ leaf
    made: Any = (a @ leaf).grad_fn
    backward = lambda: _LaunchedSpmm.backward(made, seed)  # noqa: E731
    assert calls_of(lambda: a @ x) <= 8
    assert calls_of(lambda: a @ wide) <= 8
    assert calls_of(lambda: gnnsparse.spmm(a, x)) <= 8
    for _ in range(2):  # the first binds, and the second notes the stream
        assert calls_of(lambda: gnnsparse.spmm(a, x, reduce="mean")) > 8
    assert calls_of(lambda: gnnsparse.spmm(a, x, reduce="mean")) <= 8
    assert calls_of(lambda: a @ leaf) <= 14
    assert calls_of(lambda: backward()) <= 16
    assert allocations_of(lambda: a @ x) == 1
    assert allocations_of(lambda: a @ wide) == 2
    a.kernels.use_plan(Product("spmm", 16), PLANS["panel, cut, prescaled"]())
    _ = a @ wide
    assert allocations_of(lambda: a @ wide) == 2  # partial sums are in the memory of the converted X
    assert calls_of(lambda: gnnsparse.spmm(a, x, plan=a.plan(16))) > 20


@pytest.mark.parametrize("width", [7, 16])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_a_layer_in_training_is_one_launch_each_way(path: RunningPath, precision: str, width: int) -> None:
    a, layer = operand(precision), GCNConv(24, width)
    x, seed = torch.randn(60, 24, requires_grad=True), torch.randn(60, width)
    wanted = (x, *layer.parameters())
    product = F.linear(x, layer.lin.weight)
    want = gnnsparse.spmm(a, product, plan=a.plan(width)) + layer.bias
    want_grads = torch.autograd.grad(want, wanted, seed)
    _ = a @ product.detach(), a.T @ seed
    for _ in range(2):
        out = layer(x, a)
        assert torch.equal(out, want)
        grads = torch.autograd.grad(out, wanted, seed, retain_graph=True)
        assert all(torch.equal(got, right) for got, right in zip(grads, want_grads, strict=True))
    # Checks, launch and steps of autograd; 38 where the operations are called one by one.
    assert calls_of(lambda: layer.forward(x, a)) <= 35


@pytest.mark.slow
def test_the_benchmark_runs_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **options: run([*command, "-O0"], **options))
    with gnnsparse.runtime.device.use(host_path.IdlePath(host_path.idle_native())):
        for call in host_path.product_calls("fp16", 16, "cpu").values():
            times = host_path.host_times(call, lambda: None, 2)
            assert 0 < times["fastest"] <= times["median"]
        host_path.make_step(64, "fp32", "cpu")()
        host_path.make_plain_step(64, "cpu")()


# What could make a launch wrong that was bound before: another state of torch, other views, freed memory.


@contextmanager
def setting(function: Callable[[Any], object], value: object, before: object) -> Any:
    function(value)
    try:
        yield
    finally:
        function(before)


STATES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    # Torch fills new memory with NaN then, so that what a launch does not write shows.
    "deterministic": lambda: setting(torch.use_deterministic_algorithms, True, False),
    "default dtype": lambda: setting(torch.set_default_dtype, torch.float64, torch.float32),
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


def test_the_backward_pass_runs_on_the_thread_of_autograd(path: RunningPath) -> None:
    """Several backward passes at a time through one operand, each with a gradient of its own."""
    a = operand("fp32")
    leaves = [torch.randn(60, 16, requires_grad=True) for _ in range(4)]
    weights = [torch.randn(60, 16) for _ in leaves]
    ready(a.T)
    right = [gnnsparse.spmm(a.T, weight, plan=a.T.plan(16)) for weight in weights]

    def step(i: int, _: threading.Barrier) -> None:
        for _ in range(10):
            leaves[i].grad = None
            ((a @ leaves[i]) * weights[i]).sum().backward()

    run_together(4, step)
    for leaf, expected in zip(leaves, right, strict=True):
        assert torch.equal(leaf.grad, expected)


def test_threads(path: RunningPath) -> None:
    """Plans are replaced while other threads multiply: each result has the bits of one of the plans."""
    a, widths = operand("tf32"), (4, 8, 16)
    xs = [ready(a, width) for width in widths]
    plans = [PLANS[name]() for name in ("csr", "panel", "window")]
    right = [[gnnsparse.spmm(a, x, plan=plan) for plan in plans] for x in xs]
    for x, results in zip(xs, right, strict=True):
        # Both factors of a product are rounded to TF32, by 2^-11 each; no value of A is negative.
        exact, bound = (gnnsparse.spmm(a, each, impl="reference") for each in (x, 2**-10 * x.abs()))
        for result in results:
            assert ((result - exact).abs() <= bound + 1e-6).all()
    for width in widths:
        a.kernels.use_plan(Product("spmm", width), plans[0])
    done = threading.Event()

    def work(i: int, _: threading.Barrier) -> None:
        if i == 3:
            try:
                for turn in range(30):
                    at, chosen = turn % 3, turn // 3 % 3
                    a.kernels.use_plan(Product("spmm", widths[at]), plans[chosen])
                    assert torch.equal(a @ xs[at], right[at][chosen])
            finally:
                done.set()
        while not done.is_set():
            for x, results in zip(xs[i:] + xs[:i], right[i:] + right[:i], strict=True):
                y = a @ x
                assert any(torch.equal(y, result) for result in results)

    run_together(4, work)
