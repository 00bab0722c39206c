"""Timing of GPU and CPU work."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

__all__ = ["Timing", "measure"]


@dataclass(frozen=True)
class Timing:
    """Milliseconds of one call over many repeats."""

    median: float
    fastest: float
    slowest: float
    repeats: int


def _cuda_samples(call: Callable[[], object], repeats: int) -> list[float]:
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for begin, end in events:
        begin.record()
        call()
        end.record()
    torch.cuda.synchronize()
    return [begin.elapsed_time(end) for begin, end in events]


def _cpu_samples(call: Callable[[], object], repeats: int) -> list[float]:
    samples = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        samples.append(1e3 * (time.perf_counter() - begin))
    return samples


def measure(
    call: Callable[[], object], device: torch.device | str, *, warmup: int = 3, repeats: int = 20
) -> Timing:
    """Times a call.

    Args:
        call: queues its work on the current stream.
        device: where the work runs: CUDA events or the wall clock.
        warmup: calls before the first that counts.
        repeats: calls that count.

    Raises:
        ValueError: repeats is below 1.
    """
    if repeats < 1:
        raise ValueError(f"repeats: got {repeats}; accepted: at least 1")
    for _ in range(warmup):
        call()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        samples = _cuda_samples(call, repeats)
    else:
        samples = _cpu_samples(call, repeats)
    return Timing(statistics.median(samples), min(samples), max(samples), repeats)
