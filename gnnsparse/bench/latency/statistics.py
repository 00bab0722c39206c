"""Latencies of single calls: warm-up until stable, percentiles, throughput, and the GPU's share."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from gnnsparse.bench.noise import spread_of

__all__ = ["LEAST_CALLS", "Latency", "collect", "gpu_time", "percentile", "throughput", "wait_for", "warm_up"]

#: The fewest calls of a measurement, however slow they are.
LEAST_CALLS = 5
#: Calls of a window of the warm-up, and the share by which the medians of two windows may differ at its end.
_WINDOW, _STABLE = 10, 0.02
#: Most windows of the warm-up.
_WINDOWS = 20
#: Seconds of queued calls by which the throughput is measured, and the most calls.
_OFFLINE_SECONDS, _OFFLINE_CALLS = 0.3, 500
#: Calls whose time on the GPU is measured, and how long the GPU is held back for the CPU to get ahead.
_GPU_CALLS, _HEAD_START = 20, 2.0
#: Most milliseconds that the GPU is held back.
_MOST_HELD_MS = 20.0


def percentile(samples: list[float], share: float) -> float:
    """Returns the smallest sample that at least `share` of the samples do not exceed (the nearest rank).

    Args:
        samples: one or more numbers.
        share: in (0, 1].
    """
    return sorted(samples)[max(math.ceil(share * len(samples)), 1) - 1]


@dataclass(frozen=True)
class Latency:
    """Milliseconds of single calls, each of which begins after the one before has ended.

    Attributes:
        p50, p90, p99, max, min, mean: percentiles by the nearest rank, the extremes and the mean.
        calls: number of timed calls.
        spread: how far the quartiles lie apart, as a share of the median.
    """

    p50: float
    p90: float
    p99: float
    max: float
    min: float
    mean: float
    calls: int
    spread: float

    @classmethod
    def of(cls, samples: list[float]) -> Latency:
        """Computes the statistics of one or more samples, in milliseconds."""
        p25, p50, p75, p90, p99 = (percentile(samples, share) for share in (0.25, 0.5, 0.75, 0.9, 0.99))
        mean = statistics.fmean(samples)
        spread = spread_of(p25, p50, p75)
        return cls(p50, p90, p99, max(samples), min(samples), mean, len(samples), spread)


def wait_for(device: torch.device) -> Callable[[], object]:
    """Returns a function that waits for all work on the device's current stream."""
    if device.type != "cuda":
        return lambda: None
    # Not torch.cuda.synchronize, which takes some microseconds of Python that no result waits for.
    wait: Callable[[], object] = torch.cuda.current_stream(device).synchronize
    return wait


def _timed(call: Callable[[], object], wait: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    wait()
    return 1e3 * (time.perf_counter() - begin)


def warm_up(call: Callable[[], object], device: torch.device, seconds: float) -> tuple[int, bool]:
    """Calls a function until its time is stable: the medians of two windows of 10 calls agree within 2 %.

    Args:
        call: queues its work on the current stream.
        device: where the work runs.
        seconds: time after which the warm-up ends in any case.

    Returns:
        The number of calls, and whether the time became stable.
    """
    wait, begin, calls, before = wait_for(device), time.perf_counter(), 0, math.inf
    for _ in range(_WINDOWS):
        window: list[float] = []
        while len(window) < _WINDOW:
            window.append(_timed(call, wait))
            calls += 1
            if time.perf_counter() - begin > seconds:
                return calls, False
        median = statistics.median(window)
        if abs(median - before) <= _STABLE * median:
            return calls, True
        before = median
    return calls, False


def collect(
    call: Callable[[], object],
    device: torch.device,
    *,
    calls: int,
    seconds: float,
    before: Callable[[], object] = lambda: None,
) -> Latency:
    """Times single calls by the clock, from the call to the end of its work ("single stream" of MLPerf).

    Args:
        call: queues its work on the current stream.
        device: where the work runs.
        calls: number of calls.
        seconds: time after which no further call begins, except for the first LEAST_CALLS.
        before: called before each call and not timed, such as `cache_flusher(device)`.
    """
    wait, samples, begin = wait_for(device), list[float](), time.perf_counter()
    while len(samples) < calls:
        if len(samples) >= LEAST_CALLS and time.perf_counter() - begin > seconds:
            break
        before()
        wait()
        samples.append(_timed(call, wait))
    return Latency.of(samples)


def throughput(call: Callable[[], object], device: torch.device, p50: float) -> float:
    """Returns how many calls end in a second when none waits for the one before ("offline" of MLPerf).

    Args:
        call: queues its work on the current stream.
        device: where the work runs.
        p50: median of its latency in milliseconds, from which the number of calls is chosen.
    """
    count = max(3, min(_OFFLINE_CALLS, round(1e3 * _OFFLINE_SECONDS / max(p50, 1e-3))))
    wait = wait_for(device)
    wait()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    wait()
    return count / (time.perf_counter() - begin)


def gpu_time(call: Callable[[], object], device: torch.device, p50: float) -> float | None:
    """Returns the milliseconds that the GPU takes for a call, without waiting for the CPU; None on a CPU.

    The GPU is held back while the CPU queues the call, so that the events around it enclose the work alone. A
    call that waits for the GPU itself, as those of layers that index by a mask do, is timed with its gaps.

    Args:
        call: queues its work on the current stream.
        device: where the work runs.
        p50: median of its latency in milliseconds.
    """
    if device.type != "cuda":
        return None
    held = min(_HEAD_START * p50 + 0.1, _MOST_HELD_MS)
    clock_khz = 1e6 * 2  # of no GPU is the clock much above 2 GHz, so that it is held at least that long
    samples = []
    for _ in range(_GPU_CALLS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(int(held * clock_khz))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize(device)
        samples.append(begin.elapsed_time(end))
    return statistics.median(samples)
