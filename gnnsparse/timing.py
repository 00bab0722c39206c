"""Timing of GPU and CPU work."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

__all__ = ["CaptureError", "Timing", "cache_flusher", "capture", "measure"]

#: A graph holds as many calls as take about so many milliseconds, and at most so many.
_GRAPH_MS = 1.0
_GRAPH_CALLS = 20


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call over many repeats.

    Attributes:
        median, fastest, slowest: of the repeats.
        repeats: how many there were.
        lower_quartile, upper_quartile: a quarter of the repeats is below, a quarter above.
        method: "clock" (of the CPU), "events" (CUDA events around a call) or "graph" (around a CUDA
            graph of several calls).
        problem: why it is "events" where a graph was asked for.
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
    def of(cls, samples: list[float]) -> Timing:
        """The statistics of one or more samples."""
        quartiles = [samples[0]] * 3
        if len(samples) > 1:
            quartiles = statistics.quantiles(samples, n=4, method="inclusive")
        median = statistics.median(samples)
        return cls(median, min(samples), max(samples), len(samples), quartiles[0], quartiles[2])


class CaptureError(Exception):
    """A call can't be captured in a CUDA graph; the message says why, in one line."""


def capture(call: Callable[[], object], calls: int) -> Callable[[], None]:
    """A CUDA graph of a call made `calls` times, one after the other.

    Args:
        call: queues its work on the current stream, and has run before on this device.

    Returns:
        A function that replays the graph on the current stream.

    Raises:
        CaptureError: the call does what a capture does not allow, waiting for the GPU for one. The
            device can be used as before.
    """
    try:
        return _capture(call, calls)
    except CaptureError as error:
        if not isinstance(error.__cause__, torch.OutOfMemoryError):
            raise
    # What graphs that are gone have used is given back outside of a capture alone.
    torch.cuda.empty_cache()
    return _capture(call, calls)


def _capture(call: Callable[[], object], calls: int) -> Callable[[], None]:
    graph, pool, side = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle(), torch.cuda.Stream()
    try:
        # What a library makes on its first call on a stream must be there before the capture.
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
            torch.cuda.synchronize()
            # torch.cuda.graph would also collect garbage and give the memory that torch keeps back.
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                for _ in range(calls):
                    call()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # told by the error in hand
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(side)
    # Whatever another library raises in a capture, it can still be timed without.
    except Exception as error:
        _abandon(pool)
        text = str(error).strip() or type(error).__name__
        raise CaptureError(text.splitlines()[0][:200]) from error
    return graph.replay


def _abandon(pool: tuple[int, int]) -> None:
    """Undoes what a failed capture leaves: torch would go on sending new memory to the graph's pool."""
    with contextlib.suppress(RuntimeError, AttributeError):
        torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
    with contextlib.suppress(RuntimeError):  # the error is told once more
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
    calls = _calls_of_a_graph(call)
    replay = capture(call, calls)
    # Nothing waits between these and the repeats: the GPU is then busy while the next is launched.
    for _ in range(max(warmup, 1)):
        replay()
    return [ms / calls for ms in _cuda_samples(replay, repeats, lambda: None)]


def _calls_of_a_graph(call: Callable[[], object]) -> int:
    once = min(_cuda_samples(call, 3, lambda: None))
    return min(_GRAPH_CALLS, max(1, round(_GRAPH_MS / max(once, 1e-6))))


def _cpu_samples(call: Callable[[], object], repeats: int, before: Callable[[], object]) -> list[float]:
    samples = []
    for _ in range(repeats):
        before()
        begin = time.perf_counter()
        call()
        samples.append(1e3 * (time.perf_counter() - begin))
    return samples


def cache_flusher(device: torch.device | str) -> Callable[[], None]:
    """A function that leaves nothing of earlier work in the device's last cache.

    It queues a write of four times the cache's size on the current stream. Call it before each
    repeat, outside what is timed.
    """
    device = torch.device(device)
    if device.type == "cuda":
        size = torch.cuda.get_device_properties(device).L2_cache_size
    else:
        known = "SC_LEVEL3_CACHE_SIZE" in os.sysconf_names
        # Of a server it is the sum over parts that a core can't reach: 128 MB is more than one part.
        size = min(os.sysconf("SC_LEVEL3_CACHE_SIZE") if known else 0, 2**27)
    # Some systems tell no size: 64 MB is more than the last cache of most.
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
    """Times a call.

    Args:
        call: queues its work on the current stream.
        device: where the work runs: CUDA events or the wall clock.
        warmup: calls before the first that counts.
        repeats: calls that count.
        before: called before each repeat and not timed, `cache_flusher(device)` for one.
        seconds: about as long as the repeats may take: there are fewer of a slow call, but at least 3
            (or `repeats`), and one warm-up call.
        graph: captures about 1 ms of calls (at most 20) in a CUDA graph and times its replays, so
            that what Python costs plays no part; of a call that can't be captured each repeat is
            timed on its own, and `problem` says why. `before` is not called: caches are warm.

    Raises:
        ValueError: repeats is below 1, or a graph is asked for on a CPU.
    """
    if repeats < 1:
        raise ValueError(f"repeats: got {repeats}; accepted: at least 1")
    cuda = torch.device(device).type == "cuda"
    if graph and not cuda:
        raise ValueError(f"graph: there are no CUDA graphs on {device}")
    wait = torch.cuda.synchronize if cuda else lambda: None
    if seconds < math.inf:
        wait()  # for what is queued already
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
            return replace(Timing.of(_graph_samples(call, repeats, warmup)), method="graph")
        except CaptureError as error:
            problem = str(error)
    return replace(Timing.of(_cuda_samples(call, repeats, before)), method="events", problem=problem)
