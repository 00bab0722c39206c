"""Profiles of repeated steps by torch.profiler: a trace file, and what each operation costs host and GPU."""

from __future__ import annotations

import bisect
import contextlib
import errno
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch.autograd import DeviceType  # type: ignore[attr-defined]

from gnnsparse.errors import bad_value
from gnnsparse.runtime.nvtx import PREFIX

__all__ = ["OpCost", "Recorder", "StepProfile", "print_profile", "profile_steps", "wide_console"]

#: A step whose GPU is busy for less than this share of its time waits for the host.
_BUSY = 0.7
#: Characters of a name in a table; those of kernels can have hundreds.
_NAME = 80
#: Characters of a line if the output is no terminal.
_LINE = 120
#: Names of the profiler's own events, which are no work of the step.
_OWN = ("ProfilerStep", "Activity Buffer Request", "Command Buffer Full")


@dataclass(frozen=True)
class OpCost:
    """What the operations of one name cost in a step.

    Attributes:
        name: name of an operation, of a range (`gnnsparse.spmm`), or of a GPU kernel.
        kind: "host" for operations and ranges, "kernel" for work of the GPU.
        calls: calls in a step.
        host_ms: milliseconds of host time in a step, without the operations that it calls; 0 for kernels.
        gpu_ms: milliseconds of GPU time in a step: of a kernel itself; of the kernels that an operation
            launched, without those of the operations that it calls; or of all kernels inside a range.
    """

    name: str
    kind: str
    calls: float
    host_ms: float
    gpu_ms: float


@dataclass(frozen=True)
class StepProfile:
    """The profile of a few steps.

    Attributes:
        device: "cpu" or "cuda".
        steps: number of steps that were profiled.
        wall_ms: milliseconds of a step without the profiler, or None if only profiled steps were run.
        profiled_ms: milliseconds of a step under the profiler, which is slower.
        gpu_busy_ms: milliseconds of a step in which the GPU worked; overlapping kernels count once.
        ops: what each operation costs, the most costly first: by host time, kernels by GPU time.
        trace: the trace file, or None.
    """

    device: str
    steps: int
    wall_ms: float | None
    profiled_ms: float
    gpu_busy_ms: float
    ops: tuple[OpCost, ...] = field(default=(), repr=False)
    trace: Path | None = None

    def advice(self) -> str:
        """Return a sentence on what binds the step; "" on a CPU, or if the wall time is unknown."""
        if self.device != "cuda" or not self.wall_ms:
            return ""
        fraction = self.gpu_busy_ms / self.wall_ms
        if fraction >= _BUSY:
            return f"The GPU is busy for {fraction:.0%} of a step: kernels bind it."
        return (
            f"The GPU is busy for {fraction:.0%} of a step and waits for the host for the rest: capture the "
            "step in a CUDA graph (gnnsparse.runtime.timing.capture), or give it larger batches."
        )


def _busy_ms(intervals: Iterable[tuple[float, float]]) -> float:
    """Return the milliseconds that intervals in microseconds cover; what overlaps counts once."""
    total, end = 0.0, float("-inf")
    for begin, finish in sorted(intervals):
        total += max(0.0, finish - max(begin, end))
        end = max(end, finish)
    return total / 1000


class Recorder:
    """Records steps with torch.profiler between `start` and `stop`.

    Args:
        device: the device that the steps run on.

    Raises:
        ValueError: another profiler of torch runs already.
    """

    def __init__(self, device: torch.device | str) -> None:
        self.device = torch.device(device)
        activities = [torch.profiler.ProfilerActivity.CPU]
        if self.device.type == "cuda":
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler = torch.profiler.profile(activities=activities, acc_events=True)
        self._begun = 0.0

    def start(self) -> None:
        """Wait for the device, and begin to record."""
        self.finish()
        try:
            self._profiler.start()
        except RuntimeError as error:
            bad_value("profile", f"torch.profiler can't start: {str(error).splitlines()[0]}")
        self._begun = time.perf_counter()

    def stop(self, steps: int, *, wall_ms: float | None = None, trace: Path | None = None) -> StepProfile:
        """Wait for the device, end the recording and return the costs of a step.

        Args:
            steps: number of steps since `start`.
            wall_ms: milliseconds of a step without the profiler, if known.
            trace: a file to write the trace to, as chrome://tracing and https://ui.perfetto.dev read it; its
                name ends in .json or .json.gz.

        Raises:
            OSError: the file can't be written.
        """
        self.finish()
        profiled = 1e3 * (time.perf_counter() - self._begun) / steps
        self._profiler.stop()
        if trace is not None:
            trace.parent.mkdir(parents=True, exist_ok=True)
            with trace.open("wb"):  # the exporter reports no error for a file that it can't write
                pass
            self._profiler.export_chrome_trace(str(trace))
            if not trace.stat().st_size:
                raise OSError(errno.ENOSPC, "nothing was written", str(trace))
        events = self._profiler.events() or []
        hosted = {event.name for event in events if event.device_type == DeviceType.CPU}
        on_gpu = [event for event in events if event.device_type == DeviceType.CUDA]
        # The GPU's timeline also has shadows of the ranges on the host, which are no work.
        kernels = [e for e in on_gpu if not getattr(e, "is_user_annotation", False) and e.name not in hosted]
        busy = _busy_ms((e.time_range.start, e.time_range.end) for e in kernels) / steps
        shadows = [e for e in on_gpu if e.name.startswith(PREFIX)]
        ops = _costs(events, kernels, shadows, steps)
        return StepProfile(self.device.type, steps, wall_ms, profiled, busy, ops, trace)

    def abandon(self) -> None:
        """End the recording without a result, after an error in a step."""
        with contextlib.suppress(RuntimeError):
            self._profiler.stop()

    def finish(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _in_ranges(shadows: list[Any], kernels: list[Any]) -> Iterator[tuple[str, float]]:
    """Yield each range on the GPU's timeline with the microseconds of the kernels inside it."""
    ordered = sorted(kernels, key=lambda kernel: kernel.time_range.start)
    starts = [kernel.time_range.start for kernel in ordered]
    for shadow in shadows:
        first = bisect.bisect_left(starts, shadow.time_range.start)
        last = bisect.bisect_right(starts, shadow.time_range.end)
        inside = (k for k in ordered[first:last] if k.time_range.end <= shadow.time_range.end)
        yield shadow.name, sum(kernel.time_range.elapsed_us() for kernel in inside)


def _costs(events: Any, kernels: list[Any], shadows: list[Any], steps: int) -> tuple[OpCost, ...]:
    sums: defaultdict[tuple[str, str], Any] = defaultdict(lambda: np.zeros(3))
    for event in events:
        if event.device_type == DeviceType.CPU and not event.name.startswith(_OWN):
            # The profiler gives a range the GPU time of no kernel: `shadows` do.
            gpu = 0.0 if event.name.startswith(PREFIX) else event.self_device_time_total
            sums[event.name, "host"] += (1, event.self_cpu_time_total, gpu)
    for name, gpu in _in_ranges(shadows, kernels):
        if (name, "host") in sums:
            sums[name, "host"] += (0, 0, gpu)
    for event in kernels:
        sums[event.name, "kernel"] += (1, 0, event.time_range.elapsed_us())
    found = [
        OpCost(*key, calls / steps, host / 1000 / steps, gpu / 1000 / steps)
        for key, (calls, host, gpu) in ((key, total.tolist()) for key, total in sums.items())
    ]
    return tuple(sorted(found, key=lambda op: -max(op.host_ms, op.gpu_ms)))


def profile_steps(
    step: Callable[[], object],
    device: torch.device | str,
    *,
    steps: int = 5,
    warmup: int = 3,
    trace: Path | None = None,
) -> StepProfile:
    """Run a step `warmup` times, `steps` times by the clock, and `steps` times under torch.profiler.

    Args:
        step: does one step; what it returns is ignored.
        device: the device that it runs on.
        steps: number of steps by the clock, and again under the profiler.
        warmup: number of steps before.
        trace: a file to write the trace to, see `Recorder.stop`.

    Raises:
        ValueError: another profiler of torch runs already.
        OSError: the trace can't be written.
    """
    recorder = Recorder(device)
    for _ in range(warmup):
        step()
    recorder.finish()
    begin = time.perf_counter()
    for _ in range(steps):
        step()
    recorder.finish()
    wall = 1e3 * (time.perf_counter() - begin) / steps
    recorder.start()
    try:
        for _ in range(steps):
            step()
    except BaseException:
        recorder.abandon()
        raise
    return recorder.stop(steps, wall_ms=wall, trace=trace)


def wide_console(width: int = _LINE) -> Console:
    """Return a console on which the tables fit, also where the output is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=max(width, console.width))


def print_profile(profile: StepProfile, console: Console, top: int = 15) -> None:
    """Print what the most costly operations of a step cost, and where the trace is.

    Args:
        profile: the profile.
        console: where to print.
        top: rows of a table.
    """
    hosted = [op for op in profile.ops if op.kind == "host"]
    by_time = sorted(hosted, key=lambda op: -(op.host_ms + op.gpu_ms))
    on_gpu = profile.device == "cuda"
    columns = {"host, ms": "host_ms", "GPU, ms": "gpu_ms"} if on_gpu else {"host, ms": "host_ms"}
    console.print(_table("Operations and ranges, for a step", by_time[:top], columns))
    kernels = [op for op in profile.ops if op.kind == "kernel"]
    if kernels:
        console.print(_table("Work of the GPU, for a step", kernels[:top], {"GPU, ms": "gpu_ms"}))
    parts = [] if profile.wall_ms is None else [f"{profile.wall_ms:.3f} ms a step"]
    parts.append(f"{profile.profiled_ms:.3f} ms under the profiler")
    if on_gpu:
        parts.append(f"the GPU busy for {profile.gpu_busy_ms:.3f} ms of it")
    lines = [", ".join(parts), profile.advice()]
    lines.append("" if profile.trace is None else f"{profile.trace}: open it at https://ui.perfetto.dev")
    console.print("\n".join(filter(None, lines)), markup=False, highlight=False, soft_wrap=True)


def _table(title: str, ops: list[OpCost], columns: dict[str, str]) -> Table:
    """Make a table of operations with some of their costs, the fields of an OpCost by their headings."""
    table = Table(title=title)
    table.add_column("name", overflow="fold")
    for name in ("calls", *columns):
        table.add_column(name, justify="right", no_wrap=True)
    for op in ops:
        cells = [f"{op.calls:g}", *(f"{getattr(op, cost):.3f}" for cost in columns.values())]
        name = op.name.removeprefix("void ").replace("(anonymous namespace)::", "")
        name = name if len(name) <= _NAME else f"{name[: _NAME - 3]}..."
        table.add_row(Text(name, style="bold" if op.name.startswith("gnnsparse") else ""), *cells)
    return table
