"""Named ranges, `gnnsparse.runtime.profiler`, `gnnsparse profile` and `trainer.profile`."""

from __future__ import annotations

import gzip
import io
import json
import os
import runpy
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from rich.console import Console

import gnnsparse
from gnnsparse.cli.main import main
from gnnsparse.cli.profile import MODELS
from gnnsparse.runtime import nvtx
from gnnsparse.runtime.profiler import OpCost, StepProfile, _busy_ms, _in_ranges, print_profile, profile_steps

OPERATIONS = ("spmm", "sddmm", "edge_softmax", "attention", "graph_attention")
#: Uses every operation, forward and backward, and prints the names of the ranges.
EVERY_RANGE = """
import torch, gnnsparse
from gnnsparse.testing import random_graph
device = "DEVICE"
A = gnnsparse.prepare(random_graph(30, 30, 0.2).to(device), cache=False)
x = torch.randn(30, 8, device=device, requires_grad=True)
h = torch.randn(30, 2, 8, device=device, requires_grad=True)
def step():
    y = gnnsparse.spmm(A, x, gnnsparse.edge_softmax(A, gnnsparse.sddmm(A, x, x)))
    z = gnnsparse.attention(A, y, y, y)
    s = h[..., 0]
    # With dropout, as a CPU computes it by other operations without.
    y = gnnsparse.graph_attention(A, s, s, h, score="additive", dropout_p=0.5)
    (z.sum() + y.sum()).backward()
    gnnsparse.spmm(A, x, reduce="max").sum().backward()
step()
with torch.profiler.profile() as profiler:
    step()
print(" ".join(sorted({e.key for e in profiler.key_averages() if e.key.startswith("gnnsparse.")})))
"""
#: A compiled function forward and backward; its operators have ranges, too.
COMPILED = """
import torch, gnnsparse
from gnnsparse.testing import random_graph
A = gnnsparse.prepare(random_graph(30, 30, 0.2), cache=False)
x = torch.randn(30, 8, requires_grad=True)
step = torch.compile(lambda x: gnnsparse.spmm(A, x).square().sum(), fullgraph=True, backend="aot_eager")
step(x).backward()
expected, x.grad = x.grad, None
with torch.profiler.profile() as profiler:
    step(x).backward()
assert torch.equal(x.grad, expected)
print(sum(e.count for e in profiler.key_averages() if e.key == "gnnsparse.spmm"))
"""


@pytest.mark.skipif(nvtx.ranges_are_on(), reason="ranges are on")
def test_without_ranges_functions_are_what_they_were(capsys: pytest.CaptureFixture[str]) -> None:
    def function() -> None:
        pass

    assert nvtx.ranged("name")(function) is function
    for name in OPERATIONS:
        assert not hasattr(getattr(gnnsparse, name), "__wrapped__")
    exec(EVERY_RANGE.replace("DEVICE", "cpu"), {})
    assert capsys.readouterr().out.strip() == ""


@pytest.mark.slow
def test_every_operation_has_a_range_and_compiled_functions_have_equal_results(device: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EVERY_RANGE.replace("DEVICE", device) + COMPILED],
        env={**os.environ, "GNNSPARSE_NVTX": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found, compiled = done.stdout.splitlines()
    backward = ("spmm_backward", "sddmm_backward", "edge_softmax_backward", "attention_backward")
    names = {*OPERATIONS, *backward, "graph_attention_backward"}
    assert {f"gnnsparse.{name}" for name in names} <= set(found.split())
    assert device == "cuda" or compiled == "2"  # where there is a GPU the profiler counts ranges on it, too


def test_a_senseless_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNSPARSE_NVTX", "yes")
    with pytest.raises(ValueError, match="GNNSPARSE_NVTX: got 'yes'; accepted: 0 or 1"):
        runpy.run_path(nvtx.__file__)  # as it is imported


def test_a_range_ends_where_its_function_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    ranges = mock.Mock()
    monkeypatch.setattr(nvtx, "_on", True)
    monkeypatch.setattr(nvtx, "_nvtx", lambda: torch.cuda.nvtx.range)
    monkeypatch.setattr(torch.cuda.nvtx, "range_push", ranges.range_push)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", ranges.range_pop)
    with pytest.raises(ValueError, match="no"):
        nvtx.ranged("op")(mock.Mock(side_effect=ValueError("no"), __name__="op"))()
    assert ranges.mock_calls == [mock.call.range_push("gnnsparse.op"), mock.call.range_pop()]


def test_overlapping_intervals_count_once() -> None:
    assert _busy_ms([(0, 1000), (500, 1500), (3000, 4000), (3100, 3200)]) == 2.5
    assert _busy_ms([]) == 0


def test_a_range_on_a_gpu_has_the_time_of_the_kernels_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    def event(name: str, begin: float, end: float) -> Any:
        return types.SimpleNamespace(name=name, time_range=types.SimpleNamespace(
            start=begin, end=end, elapsed_us=lambda: end - begin
        ))  # fmt: skip

    kernels = [event("k", 12, 15), event("k", 0, 9), event("k", 10, 11), event("k", 19, 25)]
    shadows = [event("gnnsparse.spmm", 10, 20), event("gnnsparse.sddmm", 30, 40)]
    assert list(_in_ranges(shadows, kernels)) == [("gnnsparse.spmm", 4), ("gnnsparse.sddmm", 0)]


def test_a_profile_counts_operations_and_writes_a_trace(tmp_path: Path) -> None:
    x = torch.ones(64, 64)
    step, trace = mock.Mock(side_effect=lambda: (x @ x).relu().relu()), tmp_path / "deep" / "trace.json.gz"
    profile = profile_steps(step, "cpu", steps=4, warmup=2, trace=trace)
    assert step.call_count == 2 + 4 + 4
    counts = {op.name: op.calls for op in profile.ops}
    assert (counts["aten::mm"], counts["aten::relu"]) == (1, 2)
    assert sum(op.host_ms for op in profile.ops) <= profile.profiled_ms
    assert profile.wall_ms is not None
    assert profile.gpu_busy_ms == 0
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert sum(event.get("name") == "aten::mm" for event in events) == 4


def test_a_failing_step_leaves_no_profiler_and_a_refused_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = iter([None] * 4)
    with pytest.raises(StopIteration):
        profile_steps(lambda: next(steps), "cpu", steps=3, warmup=1)
    assert profile_steps(lambda: torch.ones(2).sum(), "cpu", steps=1, warmup=1).ops
    refuse = mock.Mock(side_effect=RuntimeError("another profiler runs\nand more"))
    monkeypatch.setattr(torch.profiler.profile, "start", refuse)
    with pytest.raises(ValueError, match=r"profile: torch\.profiler can't start: another profiler runs$"):
        profile_steps(lambda: None, "cpu", steps=1, warmup=1)


@pytest.mark.parametrize(
    ("busy", "text"),
    [(0.9, "busy for 90% of a step: kernels bind it"), (0.2, "waits for the host for the rest")],
)
def test_the_advice_follows_from_the_share(busy: float, text: str) -> None:
    assert text in StepProfile("cuda", 1, 1.0, 2.0, busy).advice()
    assert StepProfile("cpu", 1, 1.0, 2.0, 0.0).advice() == ""
    assert StepProfile("cuda", 1, None, 2.0, busy).advice() == ""


def test_the_tables_have_host_and_gpu_times(tmp_path: Path) -> None:
    ops = (
        OpCost("aten::mm", "host", 2, 0.5, 1.25),
        OpCost("[red]void kernel" + "x" * 100, "kernel", 1, 0.0, 1.5),
    )
    console = Console(width=160, record=True, file=io.StringIO())
    print_profile(StepProfile("cuda", 1, 2.0, 3.0, 1.5, ops, tmp_path / "t.json"), console)
    text = console.export_text()
    for part in ("aten::mm", "0.500", "1.250", "[red]void kernel", "1.500", "2.000 ms a step", "t.json"):
        assert part in text


# That it runs again in a process with ranges shows the story of docs/stories.md on it.


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command takes ranges for on, and starts no process in which they are."""
    monkeypatch.setattr("gnnsparse.cli.profile.ranges_are_on", lambda: True)


@pytest.mark.usefixtures("ranges")
@pytest.mark.parametrize("model", list(MODELS))
def test_every_model_is_profiled(model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    options = ["--matrix", "arxiv_like:scale=0.01", "--width", "8", "--features", "8", "--layers", "2"]
    words = ["profile", "--model", model, *options, "--device", "cpu", "--steps", "2", "--out", str(trace)]
    assert main(words) == 0
    assert "ms a step" in capfd.readouterr().out
    events = json.loads(trace.read_text())["traceEvents"]
    assert any(event.get("name", "").startswith("aten::") for event in events)


CALLABLE = """
import torch
x = torch.ones(8, 8)
number = 3
def step():
    return x @ x
"""


@pytest.mark.usefixtures("ranges")
def test_a_function_of_a_file_is_profiled(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.py").write_text(CALLABLE)
    call, out = f"{tmp_path}/mine.py:step", str(tmp_path / "t.json")
    assert main(["profile", "--call", call, "--device", "cpu", "--out", out, "--top", "3"]) == 0
    assert "aten::mm" in capfd.readouterr().out


@pytest.mark.usefixtures("ranges")
@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("mine.py:number", "has no function 'number'"),
        ("mine.py:missing", "has no function 'missing'"),
        ("absent.py:step", "there is no file absent.py"),
        ("absent_module:step", "there is no module 'absent_module'"),
    ],
)
def test_what_is_no_function_is_refused(
    call: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    (tmp_path / "mine.py").write_text(CALLABLE)
    monkeypatch.chdir(tmp_path)
    assert problem in refused(f"profile --call {call} --device cpu")
    assert not (tmp_path / "trace.json").exists()


@pytest.mark.gpu
def test_a_profile_of_a_gpu_has_kernels(tmp_path: Path) -> None:
    x = torch.ones(2048, 2048, device="cuda")
    profile = profile_steps(lambda: x @ x, "cuda", steps=3, trace=tmp_path / "t.json")
    kernels = [op for op in profile.ops if op.kind == "kernel"]
    assert sum(op.calls for op in kernels) >= 1
    assert profile.wall_ms is not None
    assert 0 < profile.gpu_busy_ms <= 1.1 * profile.profiled_ms
    (mm,) = [op for op in profile.ops if op.name == "aten::mm"]
    assert mm.gpu_ms == pytest.approx(sum(op.gpu_ms for op in kernels), rel=0.2)


@pytest.mark.gpu
def test_a_profiled_step_on_a_gpu_names_our_ranges(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "t.json")
    assert main(["profile", "--precision", "fp16", "--device", "cuda", "--top", "40", "--out", out]) == 0
    printed: Any = capfd.readouterr().out
    assert "gnnsparse.spmm" in printed
    assert "Work of the GPU" in printed
    (line,) = [line for line in printed.splitlines() if "gnnsparse.spmm " in line]
    assert float(line.split("│")[4]) > 0  # milliseconds of the GPU
    assert "of a step" in printed
