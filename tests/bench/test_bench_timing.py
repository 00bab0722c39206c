"""`--timing graph`: what is captured and timed, and what happens to a call that can't be captured.

There is a stand-in for the GPU here whose clock the calls move on; on a real one, the same is run.
"""

from __future__ import annotations

import contextlib
import types
from typing import Any
from unittest import mock

import pytest
import torch
from rich.console import Console

from gnnsparse.bench.kernels import Bench, Settings
from gnnsparse.bench.kernels_command import print_report
from gnnsparse.runtime.timing import CaptureError, capture, measure
from gnnsparse.testing import assert_accurate
from tests.bench.runs import SPEC


class FakeGpu:
    """Calls take `kernel_ms` on the GPU and, outside a graph, `python_ms` more."""

    def __init__(
        self, patch: pytest.MonkeyPatch, kernel_ms: float, python_ms: float, capturable: bool = True
    ) -> None:
        self.kernel_ms, self.python_ms, self.capturable = kernel_ms, python_ms, capturable
        self.now, self.calls, self.replays = 0.0, 0, 0
        self.recording: list[float] | None = None
        self.abandoned: list[Any] = []
        self.renewed: list[torch.Tensor] = []
        self._install(patch)

    def call(self) -> None:
        self.calls += 1
        if self.recording is None:
            self.now += self.kernel_ms + self.python_ms
        elif self.capturable:
            self.recording.append(self.kernel_ms)
        else:
            raise RuntimeError("operation not permitted when stream is capturing\nand a trace")

    def _install(self, patch: pytest.MonkeyPatch) -> None:
        gpu = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self) -> None:
                self.at = gpu.now

            def elapsed_time(self, end: Event) -> float:
                return end.at - self.at

        class Graph:
            def __init__(self) -> None:
                self.kernels: list[float] = []

            def capture_begin(self, pool: Any, capture_error_mode: str) -> None:
                assert capture_error_mode == "thread_local"
                gpu.recording = self.kernels

            def capture_end(self) -> None:
                gpu.recording = None
                if not gpu.capturable:
                    raise RuntimeError("capture is over")

            def replay(self) -> None:
                gpu.replays += 1
                gpu.now += sum(self.kernels)

        stream = types.SimpleNamespace(wait_stream=lambda other: None)
        for name, fake in {
            "Event": Event, "CUDAGraph": Graph, "graph_pool_handle": lambda: (0, 7),
            "Stream": lambda: stream, "current_stream": lambda: stream, "synchronize": lambda: None,
            "stream": lambda s: contextlib.nullcontext(), "current_device": lambda: 0,
            "get_rng_state": lambda: torch.tensor([7], dtype=torch.uint8),
        }.items():  # fmt: skip
            patch.setattr(torch.cuda, name, fake)
        patch.setattr("gnnsparse.runtime.timing._renew_generator", gpu.renewed.append)
        patch.setattr(
            torch._C, "_cuda_endAllocateToPool", lambda d, pool: gpu.abandoned.append(pool), raising=False
        )


def test_a_graph_times_what_the_gpu_does(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, kernel_ms=0.01, python_ms=0.03)
    by_events = measure(gpu.call, "cuda", repeats=5)
    assert (by_events.median, by_events.method) == (pytest.approx(0.04), "events")
    timing = measure(gpu.call, "cuda", repeats=5, warmup=2, graph=True)
    assert timing.median == pytest.approx(0.01)
    assert (timing.method, timing.problem, timing.repeats) == ("graph", None, 5)
    assert gpu.replays == 2 + 5
    assert gpu.abandoned == []


@pytest.mark.parametrize(("ms", "calls"), [(0.001, 20), (0.1, 10), (0.3, 3), (2.0, 1)])
def test_a_graph_holds_a_millisecond_of_calls(ms: float, calls: int, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, kernel_ms=ms, python_ms=0.0)
    captured: list[int] = []
    monkeypatch.setattr(
        "gnnsparse.runtime.timing.capture", lambda call, n: (captured.append(n), capture(call, n))[1]
    )
    assert measure(gpu.call, "cuda", repeats=3, graph=True).median == pytest.approx(ms)
    assert captured == [calls]


def test_a_call_that_can_not_be_captured_is_timed_by_events(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch, kernel_ms=0.01, python_ms=0.03, capturable=False)
    timing = measure(gpu.call, "cuda", repeats=5, graph=True)
    assert (timing.median, timing.method) == (pytest.approx(0.04), "events")
    assert timing.problem == "operation not permitted when stream is capturing"
    assert [int(state) for state in gpu.renewed] == [
        7
    ]  # or torch's generator would refuse every draw: it is still in the capture
    assert gpu.abandoned == [(0, 7)]  # or torch would send all new memory to the pool of the graph
    with pytest.raises(CaptureError, match="not permitted"):
        capture(gpu.call, 1)


def test_memory_of_graphs_that_are_gone_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fills the GPU after some hundred captures of large results, and a capture can't free it."""
    gpu = FakeGpu(monkeypatch, kernel_ms=0.01, python_ms=0.03)
    emptied: list[int] = []
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: emptied.append(len(gpu.abandoned)))

    def greedy() -> None:
        if gpu.recording is not None and not emptied:
            raise torch.OutOfMemoryError("CUDA out of memory")
        gpu.call()

    timing = measure(greedy, "cuda", repeats=5, graph=True)
    assert (timing.method, timing.median) == ("graph", pytest.approx(0.01))
    assert emptied == [1]  # after the first capture was given up


def test_what_is_no_matter_of_a_capture_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="no CUDA graphs on cpu"):
        measure(lambda: None, "cpu", graph=True)
    FakeGpu(monkeypatch, kernel_ms=0.01, python_ms=0.0)
    with pytest.raises(ValueError, match="broken"):
        measure(mock.Mock(side_effect=ValueError("broken")), "cuda", repeats=2, graph=True)


def test_rows_and_report_say_how_they_were_timed(capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(Settings((SPEC,), precisions=("fp32",), widths=(8,), peers=("sparse_mm",), repeats=1))
    bench.run()
    assert {(r["timing"], r["timing_problem"]) for r in bench.rows} == {("clock", None)}
    for r in bench.rows:
        r |= {"over_baseline": None, "over_torch": None, "baseline": None, "baseline_variant": None}
        if r["kernel"] == "sparse_mm":
            r["timing_problem"] = "it waits"
    print_report(bench, Console(width=200))
    assert capsys.readouterr().out.count("timed without a CUDA graph: sparse_mm: it waits") == 1


@pytest.mark.gpu
def test_on_a_gpu() -> None:
    x = torch.randn(256, 256, device="cuda")
    assert measure(lambda: x @ x, "cuda", graph=True).method == "graph"
    waits = measure(lambda: float((x @ x)[0, 0]), "cuda", graph=True)
    assert waits.method == "events"
    assert waits.problem
    # The device, its allocator and later captures are as before.
    torch.cuda.empty_cache()
    assert_accurate(x @ x, x @ x, x.double() @ x.double())
    again = measure(lambda: x @ x, "cuda", graph=True)
    assert (again.method, again.problem) == ("graph", None)
