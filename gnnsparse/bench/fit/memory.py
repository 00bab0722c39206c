"""Measures the rates of a GPU's memory: copies, passes over X, and random rows read through L2."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch

from gnnsparse.ops.dense import CudaLoader
from gnnsparse.plan.gpu_records.record import MemoryRates
from gnnsparse.precision import Precision, dense_view
from gnnsparse.runtime.device import GATHER_FLOOR_WORDS, SLICE_BYTES, describe_device, path
from gnnsparse.runtime.timing import measure

__all__ = ["measure_memory"]

#: Sizes in bytes of an X whose random rows are read.
_SIZES = (4e6, 15e6, 30e6, 45e6, 60e6, 90e6, 120e6, 240e6, 640e6)
#: Number of rows that are read, bytes of the large copy, and bytes of X in the two passes.
_GATHERED, _COPY, _PASSES = 2**24, 2**30, (2**20, 2**28)
#: A slice of X counts as resident in L2 if its rows are read at this share of the rate of a small one.
_RESIDENT = 0.92
#: Features of a slice of 16-bit rows.
_FEATURES = SLICE_BYTES // 2
_REPEATS = 10


def _seconds(call: Callable[[], object], device: torch.device, graph: bool = True) -> float:
    return measure(call, device, repeats=_REPEATS, graph=graph).median / 1e3


def _copy_rate(device: torch.device) -> float:
    """Measures TB/s of a large copy, counting bytes read and written."""
    # Not in a CUDA graph: a copy that is a node of one ran at 0.6 of the rate on an H200.
    source = torch.randint(2**31 - 1, (_COPY // 4,), dtype=torch.int32, device=device)
    target = torch.empty_like(source)
    return 2 * _COPY / _seconds(lambda: target.copy_(source), device, graph=False) / 1e12


def _gather_rate(size: float, device: torch.device, features: int = _FEATURES) -> float:
    """Measures TB/s of random rows read from an X of `size` bytes."""
    x = torch.randn(int(size) // (2 * features), features, device=device).half()
    columns = torch.randint(x.shape[0], (_GATHERED,), dtype=torch.int32, device=device)
    processors = describe_device(device).multiprocessors
    out = torch.empty(processors, GATHER_FLOOR_WORDS, dtype=torch.int32, device=device)
    gpu, view = path(), dense_view(x)

    def call() -> None:
        gpu.native.cuda_gather_floor(columns, view, features, out, gpu.stream(device))

    return 2 * features * _GATHERED / _seconds(call, device) / 1e12


def _pass_costs(device: torch.device) -> tuple[float, float]:
    """Measures a pass that reads X, scales its rows and writes them: microseconds of its start, and TB/s."""
    times = []
    for size in _PASSES:
        x = torch.randn(size // SLICE_BYTES, _FEATURES, device=device).half()
        load = CudaLoader(Precision.FP16, _FEATURES, torch.ones(x.shape[0], device=device))
        times.append(_seconds(lambda load=load, x=x: load(x), device))  # type: ignore[misc]
    rate = 2 * (_PASSES[1] - _PASSES[0]) / (times[1] - times[0]) / 1e12
    start = max(times[0] - 2 * _PASSES[0] / rate / 1e12, 0.0)
    return 1e6 * start, rate


def _resident_bytes(rates: list[tuple[float, float]]) -> int:
    """Interpolates the bytes of the largest X whose rows are read nearly as fast as those of a small one."""
    least = _RESIDENT * rates[0][1]
    for (small, fast), (large, slow) in pairwise(rates):
        if slow < least:
            return int(small + (large - small) * (fast - least) / max(fast - slow, 1e-9))
    return int(rates[-1][0])


def measure_memory(device: torch.device) -> MemoryRates:
    """Measures the rates of a GPU's memory, which takes a few seconds and 3 GB of it.

    Raises:
        RuntimeError: the GPU's memory does not suffice.
    """
    rates = [(size, _gather_rate(size, device)) for size in _SIZES]
    start, rate = _pass_costs(device)
    # Rates can't rise with the size of X: where they seem to, it is noise.
    falling = [(size, min(r for _, r in rates[: i + 1])) for i, (size, r) in enumerate(rates)]
    return MemoryRates(
        l2=((0.0, falling[0][1]), *falling[1:]),
        resident_bytes=_resident_bytes(falling),
        pass_start_us=start,
        pass_tbs=rate,
        dram_tbs=_copy_rate(device),
        gather_tbs=_gather_rate(45e6, device, 2 * _FEATURES),
    )
