"""Where the time of a training step goes: sums over kernels, by torch.profiler."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

__all__ = ["KernelSums"]

#: Steps before those that are profiled, as many as `scaling_steps.WARMUP`, and one in which the profiler
#: itself starts; steps that are profiled; kernels that are named.
_BEFORE, _STEPS, _MOST = 4, 5, 15
#: Characters of a kernel's name that are kept.
_NAME = 160


class KernelSums:
    """Profiles some steps of a training, as `Waits` times waits: each is told when a step begins.

    On a GPU the sums are of kernels, copies and fills, those of NCCL among them, which run beside others and
    whose time includes waiting for other ranks. On a CPU they are of torch's operations.

    Args:
        device: the device of the rank.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._begun = device, 0
        self._on_gpu = device.type == "cuda"
        activity = ProfilerActivity.CUDA if self._on_gpu else ProfilerActivity.CPU
        self._profiler = torch.profiler.profile(activities=[activity], acc_events=True)
        self._running = False
        self._rows: list[dict[str, Any]] = []

    def begin_step(self) -> None:
        if self._begun == _BEFORE:
            self._finish()
            self._profiler.start()
            self._running = True
        if self._begun == _BEFORE + _STEPS:
            self._stop()
        self._begun += 1

    def end(self) -> None:
        """Ends the last step: what comes is validation."""
        if self._running:
            self._stop()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Ends the profile with a `with` block, however that ends."""
        try:
            yield
        finally:
            self.end()

    def _finish(self) -> None:
        if self._on_gpu:
            torch.cuda.synchronize(self._device)

    def _stop(self) -> None:
        self._finish()
        self._profiler.stop()
        self._running = False
        steps = min(self._begun - _BEFORE, _STEPS)
        for event in self._profiler.key_averages():
            if event.device_type != (DeviceType.CUDA if self._on_gpu else DeviceType.CPU):
                continue
            if getattr(event, "is_user_annotation", False):  # a range, whose kernels are counted too
                continue
            microseconds = event.self_device_time_total if self._on_gpu else event.self_cpu_time_total
            self._rows.append(
                {
                    "kernel": event.key[:_NAME],
                    "ms": microseconds / 1e3 / steps,
                    "calls": event.count / steps,
                }
            )

    def found(self) -> dict[str, Any]:
        """Returns milliseconds and calls of a step, of all kernels and of those that take the most time."""
        rows = sorted(self._rows, key=lambda row: -row["ms"])
        top = [row for row in rows if row["ms"] > 0][:_MOST]
        return {
            "ms": sum(row["ms"] for row in rows), "calls": sum(row["calls"] for row in rows), "top": top
        }  # fmt: skip
