"""`gnnsparse bench latency`: its checks of results, and what it says about them."""

from __future__ import annotations

import importlib.util
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.bench import latency_measure as measure
from gnnsparse.bench import latency_reference as reference
from gnnsparse.bench import latency_tasks as tasks
from gnnsparse.bench.latency_command import add_ratios, as_json, break_even, lost_cases
from gnnsparse.bench.latency_measure import LatencyBench, measure_backend
from gnnsparse.bench.latency_tasks import GRAPH_MODELS, MODELS, Backend, LatencySettings, variants_of
from gnnsparse.bench.workload import UnavailableError
from gnnsparse.nn import gcn_conv
from gnnsparse.precision import Precision
from gnnsparse.testing import in_float64, measure_errors
from tests.bench.runs import Run
from tests.bench.runs import latency_row as row
from tests.helpers import PRECISIONS

# torch warns when PyG is imported, and of CSR tensors.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore:Sparse:UserWarning")

CPU = torch.device("cpu")
QUICK = LatencySettings(seq_len=64, heads=2, hidden=16, calls=5, seconds=0.05, caches=("warm",))
#: Options of a run that takes a second.
SMALL = "latency --device cpu --hidden 8 --calls 5 --seconds 0.05"
needs_pyg = pytest.mark.skipif(
    importlib.util.find_spec("torch_geometric") is None, reason="PyG is not installed"
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a cold call finds no more is small, and throughputs are of a few calls."""
    monkeypatch.setattr("gnnsparse.runtime.timing.os.sysconf", lambda name: 2**16)
    monkeypatch.setattr(measure, "_OFFLINE_SECONDS", 0.02)


def task_of(model: str, precision: str = "fp32", settings: LatencySettings = QUICK) -> tasks.Task:
    if model == "transformer":
        return tasks.sequence_task(3, Precision(precision), settings)
    graph = tasks._random_graph("small", 120, 700, 24, 5, settings.device)
    return tasks.graph_task(model, graph, Precision(precision), settings)


@needs_pyg
@pytest.mark.parametrize("model", GRAPH_MODELS)
def test_the_reference_is_the_model(model: str) -> None:
    """PyG's layers in float64 and the reference are two implementations of the same formulas."""
    task = task_of(model)
    (make,) = variants_of("pyg", task)
    peer = make()
    edges = peer.prepare()
    for conv in peer.module.convs:  # type: ignore[union-attr]
        if hasattr(conv, "_cached_edge_index"):
            conv._cached_edge_index = None
    with torch.no_grad(), in_float64(peer.module) as module:
        want = module(task.x.double(), edges)
    got = reference.answers_of(task).exact
    assert measure_errors(got, want, want, floor=1e-12).ok
    assert got.dtype == torch.float64


def test_the_reference_of_the_encoder_is_torchs_encoder() -> None:
    task = task_of("transformer")
    who = variants_of("dense", task)[0]()
    with torch.no_grad(), in_float64(who.module) as module:
        want = module(task.x.double(), None)
    answers = reference.answers_of(task, dense=True)
    assert task.checked == (0, 2)
    assert measure_errors(answers.exact, want[[0, 2]], want[[0, 2]], floor=1e-12).ok
    # A full pattern and no pattern are one thing; a sparse one is another.
    full = replace(task, csr=gnnsparse.masks.full(64).csr)
    assert measure_errors(reference.answers_of(full).exact, want[[0, 2]], want[[0, 2]], floor=1e-12).ok
    sparse = reference.answers_of(task).exact
    assert not measure_errors(sparse, want[[0, 2]], want[[0, 2]], floor=1e-3).ok


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_ours_is_right_and_a_wrong_result_is_seen(model: str, precision: str, device: str) -> None:
    task = task_of(model, precision, replace(QUICK, device=device))
    answers = reference.answers_of(task)
    (make,) = variants_of("gnnsparse", task)
    who = make()
    with torch.inference_mode():
        right = who.module(task.x, who.prepare())
    assert reference.judge(right, task, answers).ok
    assert not reference.judge(1.05 * right, task, answers).ok
    assert not reference.judge(right[..., :-1], task, answers).ok
    missing = right.clone()
    missing.view(-1)[-1] = float("nan")
    assert reference.judge(missing, task, answers).problem == "1 elements are NaN or were not written"


def test_what_overflows_in_a_plain_run_is_not_judged_right() -> None:
    task = task_of("gcn", "fp16")
    task = replace(task, x=torch.full_like(task.x, 6e4))
    answers = reference.answers_of(task)
    assert not answers.plain.isfinite().all()
    verdict = reference.judge(answers.plain, task, answers)
    assert (verdict.ok, verdict.problem) == (False, "a plain run in its precision overflows")
    json.dumps(verdict.allowed, allow_nan=False)


@pytest.mark.parametrize(
    ("name", "model"),
    [("gnnsparse", m) for m in MODELS]
    + [("dense", "gcn"), ("dense", "transformer")]
    + [pytest.param("pyg", m, marks=needs_pyg) for m in GRAPH_MODELS]
    + [pytest.param("pyg-csr", "gcn", marks=needs_pyg)],
)
def test_every_backend_computes_the_task(name: str, model: str) -> None:
    found = measure_backend(name, task_of(model), QUICK, {})
    (r,) = found.rows
    assert r["ok"], r["problem"]
    assert found.problems == []
    assert (r["backend"], r["mode"], r["calls"] <= 5) == (name, "eager", True)
    assert r["min_ms"] <= r["p50_ms"] <= r["p90_ms"] <= r["p99_ms"] <= r["max_ms"]
    assert r["first_result_ms"] == pytest.approx(r["prepare_ms"] + r["first_call_ms"])
    assert r["prepare_ms"] <= r["preprocess_ms"] <= r["first_result_ms"]
    assert r["samples_per_s"] > 0
    assert r["peak_bytes"] is None
    if (name, model) == ("dense", "transformer"):
        assert len(r["variants"]) == 5
        right = [v for v in r["variants"] if v["ok"]]
        assert r["variant"] == min(right, key=lambda v: v["p50_ms"])["name"]


@needs_pyg
def test_what_a_backend_lacks_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "free_bytes", lambda device: 1000)
    for name, model, says in (
        ("pyg-csr", "agnn", "CSR adjacency"), ("pyg", "transformer", "no transformer"),
        ("dense", "gat", "no dense GAT"), ("dense", "gcn", "would need"),
    ):  # fmt: skip
        with pytest.raises(UnavailableError, match=says):
            measure_backend(name, task_of(model), QUICK, {})
    with pytest.raises(ValueError, match="accepted: gnnsparse"):
        variants_of("magic", task_of("gcn"))


def test_tf32_products_are_for_tf32_alone() -> None:
    before = torch.get_float32_matmul_precision()
    for precision, mode in ((Precision.TF32, "high"), (Precision.FP32, "highest")):
        with measure.matmul_precision(precision):
            assert torch.get_float32_matmul_precision() == mode
    assert torch.get_float32_matmul_precision() == before


@pytest.mark.parametrize("fault", ["wrong", "slow"])
def test_a_planted_fault_is_told(fault: str, bench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    spmm, wrong = gcn_conv.spmm, fault == "wrong"
    plant = (lambda *a: 1.01 * spmm(*a)) if wrong else (lambda *a: (time.sleep(0.02), spmm(*a))[1])
    monkeypatch.setattr(gcn_conv, "spmm", plant)
    monkeypatch.setattr(tasks, "_CORA_NODES", 200)
    options = "--features 16 --backend gnnsparse,dense --cache warm"
    printed, result = bench(SMALL, options, status=int(wrong))
    told, _, lost = printed.partition("Where we lose:\n")
    ours, peer = result["rows"]
    assert (ours["ok"], ours["over_baseline"] is None, peer["ok"]) == (not wrong, wrong, True)
    assert len(result["lost"]) == (not wrong)
    if wrong:
        assert "WRONG, and not compared: gcn, cora_like, fp32, eager, warm, gnnsparse" in told
        assert lost.startswith("  nothing was compared: no right results stand side by side\n")
    else:
        assert "gcn, cora_like, fp32, eager, warm" in lost
        assert "dense fp32 eager" in lost


def test_a_peer_that_fails_does_not_end_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(task: tasks.Task) -> Any:
        raise TypeError("no such kernel\nand a trace")

    monkeypatch.setattr("gnnsparse.bench.latency_tasks._dense", broken)
    bench = LatencyBench(replace(QUICK, backends=("dense", "gnnsparse")))
    bench.run_task(task_of("gcn"))
    assert [r["backend"] for r in bench.rows] == ["gnnsparse"]
    (skipped,) = bench.skipped
    assert [skipped[key] for key in ("backend", "reason", "failed")] == [
        "dense", "TypeError: no such kernel", True
    ]  # fmt: skip


def test_a_variant_that_fails_or_is_wrong_is_not_chosen() -> None:
    task = task_of("gcn")
    ours = variants_of("gnnsparse", task)[0]()

    class Fails(torch.nn.Module):
        def forward(self, x: torch.Tensor, adj: Any) -> torch.Tensor:
            raise RuntimeError("no kernel")

    class Zeros(torch.nn.Module):
        def forward(self, x: torch.Tensor, adj: Any) -> torch.Tensor:
            return torch.zeros(120, 5)

    def variant(name: str, module: torch.nn.Module) -> Any:
        return lambda: Backend("several", module, ours.prepare, name)

    makes = [variant("fails", Fails()), variant("wrong", Zeros()), variant("right", ours.module)]
    chosen, tried = measure._fastest(makes, task, {})
    assert chosen().variant == "right"
    assert [(t["name"], t["ok"]) for t in tried] == [("fails", None), ("wrong", False), ("right", True)]
    with pytest.raises(UnavailableError, match="no kernel"):
        measure._fastest(makes[:1], task, {})


@pytest.mark.slow
def test_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    task = task_of("gcn")
    answers = {False: reference.answers_of(task)}
    found = measure.measure_isolated("gnnsparse", task, QUICK, answers)
    assert [r["ok"] for r in found.rows] == [True]
    found = measure.measure_isolated("gnnsparse", task, replace(QUICK, timeout=0.01), answers)
    assert found.problems == ["took more than 0.01 s"]
    failing = tmp_path / "python"
    failing.write_text("#!/bin/sh\necho 'a trace\nno kernel' >&2\nexit 3\n")
    failing.chmod(0o700)
    monkeypatch.setattr("sys.executable", str(failing))
    found = measure.measure_isolated("gnnsparse", task, QUICK, answers)
    assert (found.rows, found.problems) == ([], ["its process ended with status 3: no kernel"])


@pytest.mark.slow
@needs_pyg
def test_a_small_run_writes_every_measurement(bench: Run) -> None:
    options = "--model gcn,transformer --precision fp32 fp16 --batch 1,2 --seq-len 64 --heads 2"
    more = "--backend gnnsparse,pyg dense --dataset dd_like --scale 0.0018"
    printed, result = bench(SMALL, options, more)
    assert {"device_name", "versions", "commit", "date", "noise", "skipped", "lost"} <= set(result)
    assert "root" not in result["settings"]
    rows = result["rows"]
    cases = {(r["model"], r["precision"], r["batch"], r["cache"]) for r in rows if r["ours"]}
    assert cases == {
        *(("gcn", p, 1, c) for p in ("fp32", "fp16") for c in ("warm", "cold")),
        *(("transformer", p, b, c) for p in ("fp32", "fp16") for b in (1, 2) for c in ("warm", "cold")),
    }
    assert all(r["ok"] for r in rows if r["ours"] or r["precision"] == "fp32")
    assert {(r["dataset"], r["nodes"]) for r in rows if r["model"] == "gcn"} == {("dd_like", 603)}
    assert all(r["samples_per_s"] is None for r in rows if r["cache"] == "cold")
    assert "single stream of MLPerf" in printed
    assert "Where we lose:" in printed
    assert "rows" in printed


def test_graphs_that_need_no_files() -> None:
    cora = tasks.load_graph("cora_like", QUICK)
    assert cora.x.shape == (2708, 1433)
    assert cora.classes == 7
    assert 10_000 < cora.csr.nnz <= 10_556
    rows, cols = cora.csr.row_index().tolist(), cora.csr.indices.tolist()
    assert all(a != b for a, b in zip(rows, cols, strict=True))
    assert set(zip(rows, cols, strict=True)) == set(zip(cols, rows, strict=True))
    assert tasks.load_graph("cora_like", replace(QUICK, features=8)).x.shape == (2708, 8)
    few = replace(QUICK, scale=0.0018)
    assert tasks.load_graph("dd_like", few).x.shape == (603, 128)
    assert tasks.load_graph("dd_like", replace(few, features=8)).x.shape == (603, 8)


def test_files_that_are_missing_are_told_without_their_path(bench: Run, tmp_path: Path) -> None:
    printed, _ = bench(SMALL, f"--dataset cora --root {tmp_path}", status=1)
    assert "failed: cora" in printed
    assert "Where we lose:\n  nothing was measured\n" in printed
    assert "samples/s" not in printed


def test_percentiles_are_by_the_nearest_rank() -> None:
    found = measure.statistics_of([float(n) for n in range(200, 0, -1)])
    assert [found[f"{name}_ms"] for name in ("p50", "p90", "p99", "max")] == [100.0, 180.0, 198.0, 200.0]
    assert found["spread"] == (150.0 - 50.0) / 100.0
    assert [measure.statistics_of([3.0])[key] for key in ("p50_ms", "p99_ms")] == [3.0, 3.0]
    assert measure.statistics_of([1.0, 2.0])["p50_ms"] == 1.0
    times = {"p50_ms": 2.0, "p90_ms": 4.0, "p99_ms": 4.0, "max_ms": 4.0, "min_ms": 1.0, "mean_ms": 2.5}
    assert measure.statistics_of([4.0, 1.0, 2.0, 3.0]) == {**times, "calls": 4, "spread": 1.0}


def test_calls_follow_one_another_and_slow_ones_are_fewer() -> None:
    order: list[str] = []
    found = measure.collect(
        lambda: order.append("call"), CPU, calls=3, seconds=9.0, before=lambda: order.append("flush")
    )
    assert order == ["flush", "call"] * 3
    assert found["calls"] == 3
    slow = measure.collect(lambda: time.sleep(0.01), CPU, calls=200, seconds=0.08)
    assert measure.LEAST_CALLS <= slow["calls"] <= 9
    assert slow["p50_ms"] >= 10.0
    least = measure.collect(lambda: time.sleep(0.01), CPU, calls=200, seconds=0.0)
    assert least["calls"] == measure.LEAST_CALLS


def test_the_warm_up_ends_when_the_time_is_stable(monkeypatch: pytest.MonkeyPatch) -> None:
    times = [9.0] * 10 + [5.0] * 10 + [4.0] * 10 + [4.05] * 10 + [1.0] * 10
    monkeypatch.setattr(measure, "_timed", lambda call, wait: times.pop(0))
    assert measure.warm_up(lambda: None, CPU, seconds=9.0) == (40, True)
    times[:] = [float(n) for n in range(1, 500)]
    assert measure.warm_up(lambda: None, CPU, seconds=9.0)[0] > 40
    times[:] = [1.0] * 500
    assert measure.warm_up(lambda: None, CPU, seconds=0.0) == (1, False)


def test_throughput_and_gpu_time_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    with monkeypatch.context() as patched:
        patched.setattr(time, "perf_counter", lambda: 0.01 * len(calls))  # so long each call takes
        assert measure.throughput(lambda: calls.append(None), CPU, 10.0) == pytest.approx(100)
    assert len(calls) >= 3
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


@pytest.mark.gpu
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_eager_and_captured_on_a_gpu(model: str, precision: str) -> None:
    settings = replace(QUICK, device="cuda", caches=("warm", "cold"))
    found = measure_backend("gnnsparse", task_of(model, precision, settings), settings, {})
    assert found.problems == []
    assert [(r["mode"], r["cache"]) for r in found.rows] == [
        (mode, cache) for mode in ("eager", "captured") for cache in ("warm", "cold")
    ]
    assert all(r["ok"] for r in found.rows)
    warm = [r for r in found.rows if r["cache"] == "warm"]
    assert all(r["gpu_ms"] > 0 and r["peak_bytes"] > 0 for r in warm)
    assert warm[1]["capture_ms"] > 0 == warm[0]["capture_ms"]


@pytest.mark.gpu
def test_a_result_that_a_graph_does_not_write_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(QUICK, device="cuda")
    monkeypatch.setattr(measure, "capture", lambda call, calls: (call(), lambda: None)[1])
    found = measure_backend("gnnsparse", task_of("gcn", settings=settings), settings, {})
    eager, captured = found.rows
    assert eager["ok"]
    assert "are NaN" in captured["problem"]


@pytest.mark.gpu
@needs_pyg
@pytest.mark.parametrize("model", GRAPH_MODELS)
def test_peers_on_a_gpu(model: str) -> None:
    settings = replace(QUICK, device="cuda")
    bench = LatencyBench(replace(settings, backends=("gnnsparse", "pyg", "pyg-csr", "dense")))
    bench.run_task(task_of(model, settings=settings))
    found = as_json(bench)
    assert all(r["ok"] for r in found["rows"])
    assert {(r["backend"], r["mode"]) for r in found["rows"]} >= {
        (backend, mode) for backend in ("gnnsparse", "pyg") for mode in ("eager", "captured")
    }
