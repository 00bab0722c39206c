"""The statistics of `gnnsparse bench latency`: percentiles, warm-up, throughput, break-even and ratios."""

from __future__ import annotations

import time

import pytest
import torch

from gnnsparse.bench import latency_measure as measure
from gnnsparse.bench.latency_command import add_ratios, break_even, lost_cases
from gnnsparse.bench.latency_measure import Latency, collect, warm_up
from tests.bench.runs import latency_row as row

CPU = torch.device("cpu")


def test_percentiles_are_by_the_nearest_rank() -> None:
    samples = [float(n) for n in range(200, 0, -1)]
    found = Latency.of(samples)
    assert (found.p50, found.p90, found.p99, found.max) == (100.0, 180.0, 198.0, 200.0)
    assert (found.spread, Latency.of([3.0]).p50, Latency.of([3.0]).p99) == ((150.0 - 50.0) / 100.0, 3.0, 3.0)
    assert Latency.of([1.0, 2.0]).p50 == 1.0
    found = Latency.of([4.0, 1.0, 2.0, 3.0])
    assert found == Latency(p50=2.0, p90=4.0, p99=4.0, max=4.0, min=1.0, mean=2.5, calls=4, spread=1.0)


def test_calls_follow_one_another_and_slow_ones_are_fewer() -> None:
    order: list[str] = []
    found = collect(
        lambda: order.append("call"), CPU, calls=3, seconds=9.0, before=lambda: order.append("flush")
    )
    assert order == ["flush", "call"] * 3
    assert found.calls == 3
    slow = collect(lambda: time.sleep(0.01), CPU, calls=200, seconds=0.08)
    assert measure.LEAST_CALLS <= slow.calls <= 9
    assert slow.p50 >= 10.0
    assert collect(lambda: time.sleep(0.01), CPU, calls=200, seconds=0.0).calls == measure.LEAST_CALLS


def test_the_warm_up_ends_when_the_time_is_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [9.0] * 10 + [5.0] * 10 + [4.0] * 10 + [4.05] * 10 + [1.0] * 10
    monkeypatch.setattr(measure, "_timed", lambda call, wait: times.pop(0))
    assert warm_up(lambda: None, CPU, seconds=9.0) == (40, True)
    times[:] = [float(n) for n in range(1, 500)]
    assert warm_up(lambda: None, CPU, seconds=9.0)[0] > 40
    times[:] = [1.0] * 500
    assert warm_up(lambda: None, CPU, seconds=0.0) == (1, False)


def test_throughput_and_gpu_time_on_a_cpu() -> None:
    assert 60 < measure.throughput(lambda: time.sleep(0.01), CPU, 10.0) < 100
    assert measure.gpu_time(lambda: None, CPU, 1.0) is None


def test_break_even_by_hand() -> None:
    peer = row("pyg", 3.0, preprocess_ms=1.0)
    # 9 ms more before the first call, and 2 ms less in each.
    assert break_even(row("gnnsparse", 1.0, preprocess_ms=10.0), peer) == 5
    assert break_even(row("gnnsparse", 1.0, preprocess_ms=1.0), peer) == 1
    assert break_even(row("gnnsparse", 1.0, preprocess_ms=3.0), peer) == 2  # equal after one
    assert break_even(row("gnnsparse", 4.0, preprocess_ms=10.0), peer) is None
    assert break_even(row("gnnsparse", 3.0, preprocess_ms=1.0), peer) is None


def test_ratios_are_to_the_fastest_right_peer() -> None:
    rows = [
        row("gnnsparse", 1.0), row("pyg", 6.0), row("pyg-csr", 4.0), row("dense", 0.1, ok=False),
        row("pyg-compile", 2.0, mode="captured"), row("gnnsparse", 0.5, mode="captured"),
        row("gnnsparse", 0.5, precision="fp16"), row("pyg", 5.0, precision="fp16"),
        row("pyg", 0.2, dataset="other"), row("gnnsparse", 9.0, ok=False),
    ]  # fmt: skip
    add_ratios(rows)
    ours = [r for r in rows if r["ours"]]
    assert [r["baseline"] for r in ours] == [
        "pyg-csr fp32 eager", "pyg-compile fp32 captured", "pyg-csr fp32 eager", None,
    ]  # fmt: skip
    assert [r["over_baseline"] for r in ours] == [4.0, 4.0, 8.0, None]
    assert [r["over_pyg"] for r in ours] == [6.0, 12.0, 10.0, None]
    assert [r["break_even"] for r in ours] == [1, 1, 1, None]
    assert rows[1]["break_even"] is None
    rows = [row("gnnsparse", 2.0, spread=0.5), row("pyg", 1.0), row("gnnsparse", 1.02, cache="cold"),
            row("pyg", 1.0, cache="cold")]  # fmt: skip
    add_ratios(rows)
    (lost,) = lost_cases(rows)
    assert (lost["speed"], lost["baseline"], lost["noisy"]) == (0.5, "pyg fp32 eager", True)
    add_ratios(rows := [row("gnnsparse", 1.25), row("pyg", 1.0)])
    assert [lost_cases(rows, drift)[0]["noisy"] for drift in (0.0, 0.2, 0.3)] == [False, False, True]
