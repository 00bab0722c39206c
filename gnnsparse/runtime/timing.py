"""Timing of work on GPUs and CPUs."""

from __future__ import annotations

import contextlib
import gc
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

#: A CUDA graph is filled with calls for about this many milliseconds, and with at most this many calls.
_GRAPH_MS = 1.0
_GRAPH_CALLS = 20


@dataclass(frozen=True)
class Timing:
    """Milliseconds that one call took, over many repeats: their median, extremes and quartiles.

    `method`: by "clock" (of the CPU), "events" (CUDA events around each call) or "graph" (such events around
    a CUDA graph of several calls); `problem`: why not "graph" although it was asked for.
    """

    median: float
    fastest: float
    slowest: float
    repeats: int
    lower_quartile: float
    upper_quartile: float
    method: str = "clock"
    problem: str | None = None

    @classmethod
    def of(cls, samples: list[float], method: str = "clock", problem: str | None = None) -> Timing:
        """Compute the statistics of one or more samples, in milliseconds."""
        fastest, lower, median, upper, slowest = np.quantile(samples, (0, 0.25, 0.5, 0.75, 1)).tolist()
        return cls(median, fastest, slowest, len(samples), lower, upper, method, problem)


class CaptureError(Exception):
    """A call can't be captured in a CUDA graph; the message says why, in one line."""


def capture(
    call: Callable[[], object], calls: int, stream: torch.cuda.Stream | None = None
) -> Callable[[], None]:
    """Capture a CUDA graph of a call made `calls` times, and return its replay on the current stream.

    The call runs once before the capture, on a stream of its own, unless `stream` is one on which it has run.
    What a capture forbids is a CaptureError, after which the device and torch's random numbers can be used.
    """
    enabled = gc.isenabled()
    gc.disable()  # what is freed on a GPU would end a capture
    try:
        try:
            return _capture(call, calls, stream)
        except CaptureError as error:
            if not isinstance(error.__cause__, torch.OutOfMemoryError):
                raise
        # torch frees the memory of destroyed graphs only outside of a capture.
        torch.cuda.empty_cache()
        return _capture(call, calls, stream)
    finally:
        if enabled:
            gc.enable()


def _capture(call: Callable[[], object], calls: int, stream: torch.cuda.Stream | None) -> Callable[[], None]:
    graph, pool, side = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle(), stream or torch.cuda.Stream()
    try:
        # Libraries allocate handles and workspaces in their first call on a stream: before the capture, then.
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            if stream is None:
                call()
            torch.cuda.synchronize()
            numbers = torch.cuda.get_rng_state()
            # Not torch.cuda.graph, which also collects garbage and empties torch's memory cache.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                for _ in range(calls):
                    call()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # the error being raised says why
                    _end(graph, numbers)
                raise
            _end(graph, numbers)
        torch.cuda.current_stream().wait_stream(side)
    # Libraries raise errors of any type in a capture; their calls can still be timed without a graph.
    except Exception as error:
        _abandon(pool)
        text = str(error).strip() or type(error).__name__
        raise CaptureError(text.splitlines()[0][:200]) from error
    return graph.replay


def _end(graph: torch.cuda.CUDAGraph, numbers: torch.Tensor) -> None:
    """End a capture; if that fails, free torch's generator of it, which keeps the numbers that it had."""
    try:
        graph.capture_end()
    except RuntimeError:
        _renew_generator(numbers)
        raise


def _renew_generator(numbers: torch.Tensor) -> None:
    device = torch.cuda.current_device()
    fresh = torch.Generator(device=f"cuda:{device}")
    fresh.set_state(numbers)
    torch.cuda.default_generators[device].graphsafe_set_state(fresh.graphsafe_get_state())


def _abandon(pool: tuple[int, int]) -> None:
    """Clean up after a failed capture: torch would go on allocating from the graph's memory pool."""
    with contextlib.suppress(RuntimeError, AttributeError):
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
    with contextlib.suppress(RuntimeError):  # it may report the error of the capture again
        torch.cuda.synchronize()


def _cuda_samples(call: Callable[[], object], repeats: int, before: Callable[[], object]) -> list[float]:
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for begin, end in events:
        before()
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in events]


def _graph_samples(call: Callable[[], object], repeats: int, warmup: int) -> list[float]:
    once = min(_cuda_samples(call, 3, lambda: None))
    calls = min(_GRAPH_CALLS, max(1, round(_GRAPH_MS / max(once, 1e-6))))
    replay = capture(call, calls)
    # No wait between warm-up and repeats, so that the GPU is busy while the next replay is launched.
    for _ in range(max(warmup, 1)):
        replay()
    return [ms / calls for ms in _cuda_samples(replay, repeats, lambda: None)]


def _cpu_samples(call: Callable[[], object], repeats: int, before: Callable[[], object]) -> list[float]:
    samples = []
    for _ in range(repeats):
        before()
        begin = time.perf_counter()
        call()
        samples.append(1e3 * (time.perf_counter() - begin))
    return samples


def cache_flusher(device: torch.device | str) -> Callable[[], None]:
    """Return a function that queues a write of four times the last-level cache, evicting earlier data."""
    device = torch.device(device)
    if device.type == "cuda":
        size = torch.cuda.get_device_properties(device).L2_cache_size
    else:
        known = "SC_LEVEL3_CACHE_SIZE" in os.sysconf_names
        # On servers the size is the sum of caches, of which a core uses one: no single one is above 128 MB.
        size = min(os.sysconf("SC_LEVEL3_CACHE_SIZE") if known else 0, 2**27)
    # Some systems report no size: few have a cache of more than 64 MB.
    scratch = torch.zeros(4 * (size if size > 0 else 2**26), dtype=torch.uint8, device=device)

    def flush() -> None:
        scratch.fill_(1)

    return flush


def measure(
    call: Callable[[], object],
    device: torch.device | str,
    *,
    warmup: int = 3,
    repeats: int = 20,
    before: Callable[[], object] = lambda: None,
    seconds: float = math.inf,
    graph: bool = False,
) -> Timing:
    """Time a call, which queues its work on the current stream of a device, and return a call's statistics.

    Args:
        call, device: the call, timed by CUDA events on a GPU, by the wall clock on a CPU.
        warmup, repeats: number of calls before the timed ones, and of these.
        before: called before each timed call and not timed, such as `cache_flusher(device)`.
        seconds: time that the repeats should take together at most. Of a slow call there are fewer repeats
            (at least 3, or `repeats` if that is less) and one warm-up call.
        graph: replays a CUDA graph of about 1 ms of calls (at most 20), which leaves the time spent in Python
            out, and `before` too. `Timing.problem` says why if the call can't be captured.
    """
    if repeats < 1:
        raise ValueError(f"repeats: got {repeats}; accepted: at least 1")
    cuda = torch.device(device).type == "cuda"
    if graph and not cuda:
        raise ValueError(f"graph: there are no CUDA graphs on {device}")
    wait = torch.cuda.synchronize if cuda else lambda: None
    if seconds < math.inf:
        wait()  # for work that was queued before
        begin = time.perf_counter()
        call()
        wait()
        once = time.perf_counter() - begin
        if once * repeats > seconds:
            warmup, repeats = 0, min(repeats, max(3, int(seconds / once)))
    for _ in range(warmup):
        call()
    wait()
    if not cuda:
        return Timing.of(_cpu_samples(call, repeats, before))
    problem = None
    if graph:
        try:
            return Timing.of(_graph_samples(call, repeats, warmup), "graph")
        except CaptureError as error:
            problem = str(error)
    return Timing.of(_cuda_samples(call, repeats, before), "events", problem)
