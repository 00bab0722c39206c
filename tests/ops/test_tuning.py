"""Plans by measuring: which candidates there are, which one is taken, and where the choice is kept.

The GPU is a recording here, and its timer a table.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import CacheWarning, Plan, Precision
from gnnsparse.ops import tuning
from gnnsparse.plan import Device, Problem, candidates, choose_plan
from gnnsparse.plan.store import PlanStore
from gnnsparse.runtime.cache import GraphCache
from gnnsparse.runtime.timing import Timing
from gnnsparse.sparse.kernel_cache import Product
from gnnsparse.testing import assert_accurate, random_graph
from tests.gpu_paths import RecordingPath
from tests.helpers import panel_counts

HOPPER = Device("cuda", (9, 0), 132)


def problem(**changes: Any) -> Problem:
    counts = {"rows": 8000, "cols": 8000, "nnz": 10**6, "width": 128, "format": "window", "slots": 500_000}
    base = {
        "op": "spmm",
        "device": HOPPER,
        "precision": Precision.FP16,
        "panels": panel_counts(400_000, 300_000),
    }
    return Problem(**{**base, **counts, **changes})  # type: ignore[arg-type]


class Timer:
    """Stands for `measure`: each plan takes what the rule says."""

    def __init__(self, patch: pytest.MonkeyPatch, rule: Callable[[Plan], float]) -> None:
        self.rule, self.plans, self.now = rule, [], None  # type: list[Plan], Any
        self._runner = tuning.runner
        patch.setattr(tuning, "runner", self._watch)
        patch.setattr(tuning, "measure", self._measure)
        patch.setattr(tuning, "device_name", lambda device: "NVIDIA H200")

    def _watch(self, *arguments: Any) -> Callable[[Plan], object]:
        run = self._runner(*arguments)

        def watched(plan: Plan) -> object:
            self.now = plan
            return run(plan)

        return watched

    def _measure(self, call: Callable[[], object], device: Any, **options: Any) -> Timing:
        call()
        self.plans.append(self.now)
        ms = self.rule(self.now)
        return Timing(ms, ms, ms, options["repeats"], ms, ms)


def fast(kernel: str) -> Callable[[Plan], float]:
    return lambda plan: 0.1 if plan.label == kernel else 0.13


def prepared(**options: Any) -> gnnsparse.SparseOperand:
    graph = random_graph(200, 200, 0.05, weighted=False)
    return gnnsparse.prepare(graph, **{"values": "gcn", "precision": "fp16", "autotune": True, **options})


# Candidates


def test_candidates_are_distinct_and_begin_with_the_model() -> None:
    cases: list[dict[str, Any]] = [
        {},
        {"op": "sddmm", "panels": panel_counts(400_000)},
        {"weighted": True},
        {"edge_values": True, "panels": ()},
        {"format": "", "precision": Precision.FP32},
        {"format": "me-bcrs", "panels": ()},
        {"width": 1},
    ]
    for changes in cases:
        case = problem(**changes)
        plans = candidates(case)
        assert plans[0] == choose_plan(case)
        bare = [replace(plan, reasons=()) for plan in plans]
        assert len(set(bare)) == len(bare) > 1
        kernels = {plan.kernel for plan in plans}
        assert kernels == {"window"} if case.format == "me-bcrs" else "csr" in kernels


def test_candidates_of_spmm() -> None:
    plans = candidates(problem())
    assert {plan.label for plan in plans} == {"csr", "window", "panel 16", "panel 32"}
    for label in ("csr", "panel 16", "panel 32"):
        assert {plan.prescale for plan in plans if plan.label == label} == {True, False}
    panels = [plan for plan in plans if plan.label == "panel 16"]
    assert {plan.slices for plan in panels} == {1, 2}
    assert len({plan.tile_limit for plan in panels}) == 2
    for precision in (Precision.FP16, Precision.BF16, Precision.TF32, Precision.FP32):
        labels = {plan.label for plan in candidates(problem(weighted=True, precision=precision))}
        assert {"csr", "panel 16", "panel 32"} <= labels
    assert not [p for p in candidates(problem(edge_values=True, panels=())) if p.kernel == "panel"]


def test_candidates_of_sddmm_and_of_a_cpu() -> None:
    labels = {plan.label for plan in candidates(problem(op="sddmm", panels=panel_counts(400_000)))}
    assert labels == {"csr", "window", "panel 16"}
    assert "panel 16" not in {p.label for p in candidates(problem(op="sddmm", width=8))}
    assert candidates(problem(device=Device("cpu"))) == (choose_plan(problem(device=Device("cpu"))),)


# The choice


@pytest.mark.parametrize("kernel", ["csr", "window", "panel 16", "panel 32"])
def test_the_fastest_is_used_and_says_so(
    kernel: str, recorded: RecordingPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = Timer(monkeypatch, fast(kernel))
    a = prepared(cache=False)
    plan = a.tune(64)
    assert plan.label == kernel
    assert plan.reasons[0].startswith(f"autotuned on NVIDIA H200: {kernel} 0.100 ms, ")
    assert plan.reasons[0].count("0.130 ms") == 3
    assert a.plan(64) == plan
    assert "autotuned on" in str(plan)
    measured = {replace(p, reasons=()) for p in timer.plans}
    assert measured == {replace(p, reasons=()) for p in candidates(a.kernels.problem(Product("spmm", 64)))}
    recorded.calls.clear()
    before = len(timer.plans)
    _ = a @ torch.randn(200, 64).half()
    assert recorded.names()[-1] == f"cuda_spmm_{plan.kernel}"
    assert len(timer.plans) == before


def test_noise_does_not_move_the_model(recorded: RecordingPath, monkeypatch: pytest.MonkeyPatch) -> None:
    model = choose_plan(prepared(autotune=False, cache=False).kernels.problem(Product("spmm", 64)))
    other = "csr" if model.label != "csr" else "window"
    Timer(monkeypatch, lambda plan: 0.1 if plan.label == other else 0.101)
    assert prepared(cache=False).plan(64).label == model.label
    Timer(monkeypatch, lambda plan: 0.1 if plan.label == other else 0.103)
    assert prepared(cache=False).plan(64).label == other


def test_a_candidate_that_fails_is_left_out(recorded: RecordingPath, monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(plan: Plan) -> float:
        if plan.kernel != "csr":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 1.0

    Timer(monkeypatch, rule)
    plan = prepared(cache=False).plan(64)
    assert (plan.kernel, plan.reasons[0]) == ("csr", "autotuned on NVIDIA H200: csr 1.000 ms")

    def none(plan: Plan) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    Timer(monkeypatch, none)
    plan = prepared(cache=False).plan(64)
    assert "no candidate could run" in plan.reasons[-1]


def test_products_tune_themselves_once(recorded: RecordingPath, monkeypatch: pytest.MonkeyPatch) -> None:
    timer = Timer(monkeypatch, fast("window"))
    a, x = prepared(cache=False), torch.randn(200, 64).half()
    _ = a @ x
    first = len(timer.plans)
    assert first > 4
    _, _ = a @ x, a.T @ x  # symmetric or not, the transpose may be measured on its own
    second = len(timer.plans)
    _, _ = a @ x, a.T @ x
    assert len(timer.plans) == second
    gnnsparse.sddmm(a, x, x)
    assert len(timer.plans) > second
    third = len(timer.plans)
    gnnsparse.spmm(a, x, torch.randn(a.nnz).half())
    assert len(timer.plans) > third


def test_formats_of_the_losers_are_given_back(
    recorded: RecordingPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    Timer(monkeypatch, fast("csr"))
    a = prepared(cache=False)
    a.tune(64)
    assert a.kernels.panel_bytes == 0
    _ = a @ torch.randn(200, 64).half()
    assert a.kernels.panel_bytes == 0


def test_tuning_after_use_takes_effect(recorded: RecordingPath, monkeypatch: pytest.MonkeyPatch) -> None:
    a, x = prepared(cache=False, autotune=False), torch.randn(200, 64).half()
    _ = a @ x
    before = recorded.names()[-1]
    other = "window" if before != "cuda_spmm_window" else "csr"
    Timer(monkeypatch, fast(other))
    a.tune(64)
    _ = a @ x
    assert recorded.names()[-1] == f"cuda_spmm_{other}"


def test_the_random_state_of_the_user_stays(recorded: RecordingPath, monkeypatch: pytest.MonkeyPatch) -> None:
    Timer(monkeypatch, fast("csr"))
    before = torch.get_rng_state()
    prepared(cache=False).tune(64)
    assert torch.equal(torch.get_rng_state(), before)


# The cache


def test_the_choice_is_kept_for_the_next_process(
    recorded: RecordingPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    timer = Timer(monkeypatch, fast("panel 16"))
    plan = prepared().plan(64)
    first = len(timer.plans)
    assert prepared().plan(64) == plan
    assert prepared().tune(64) == plan
    assert len(timer.plans) == first
    for change in ({"precision": "bf16"}, {"values": "mean"}, {"reorder": "degree"}):
        before = len(timer.plans)
        prepared(**change).plan(64)
        assert len(timer.plans) > before, change
    before = len(timer.plans)
    prepared().plan(96)
    assert len(timer.plans) > before
    monkeypatch.setattr("gnnsparse.plan.store.device_name", lambda device: "another GPU")
    before = len(timer.plans)
    prepared().plan(64)
    assert len(timer.plans) > before


def test_another_version_measures_anew(recorded: RecordingPath, monkeypatch: pytest.MonkeyPatch) -> None:
    timer = Timer(monkeypatch, fast("csr"))
    prepared().plan(64)
    first = len(timer.plans)
    monkeypatch.setattr(gnnsparse, "__version__", "99.0")
    prepared().plan(64)
    assert len(timer.plans) > first


def plan_file(folder: Path) -> Path:
    (found,) = (e.path for e in GraphCache(folder).entries() if e.metadata and "plan" in e.metadata)
    return found


def test_a_damaged_file_is_told_and_measured_anew(
    recorded: RecordingPath, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    timer = Timer(monkeypatch, fast("csr"))
    prepared().plan(64)
    first, file = len(timer.plans), plan_file(own_cache)
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])
    with pytest.warns(CacheWarning, match="damaged"):
        assert prepared().plan(64).kernel == "csr"
    assert len(timer.plans) > first
    assert prepared().plan(64).kernel == "csr"
    assert plan_file(own_cache) == file


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "magic"}, {"kernel": ["csr"]}, {"lanes": 10**400},
        {"height": 64}, {"lanes": "32"}, {"prescale": 1}, {"reasons": [1]}, {"more": 1},
        {"row_limit": -1}, None,
    ],
)  # fmt: skip
def test_a_foreign_plan_is_told_and_measured_anew(
    change: Any, recorded: RecordingPath, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:
    timer = Timer(monkeypatch, fast("csr"))
    prepared().plan(64)
    first, cache = len(timer.plans), GraphCache(own_cache)
    key = plan_file(own_cache).stem
    metadata = cache.load(key, lambda _, found: found)
    assert metadata is not None
    metadata["plan"] = None if change is None else {**metadata["plan"], **change}
    cache.store(key, {}, metadata)
    with pytest.warns(CacheWarning, match="no plan that can run here"):
        assert prepared().plan(64).kernel == "csr"
    assert len(timer.plans) > first
    again = cache.load(key, lambda _, found: found)
    assert again is not None
    assert again["plan"]["kernel"] == "csr"


def test_ls_names_plans(
    recorded: RecordingPath, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gnnsparse.cli.main import main

    Timer(monkeypatch, fast("csr"))
    monkeypatch.setenv("COLUMNS", "200")
    prepared().plan(64)
    assert main(["cache", "ls"]) == 0
    assert "plan: spmm N = 64, csr" in capsys.readouterr().out
    assert main(["cache", "verify"]) == 0


def test_operands_keep_their_tuner(recorded: RecordingPath, monkeypatch: pytest.MonkeyPatch) -> None:
    timer = Timer(monkeypatch, fast("csr"))
    a = prepared(cache=False)
    other = pickle.loads(pickle.dumps(a))
    other.plan(64)
    assert timer.plans


# The CPU, and bad arguments


def test_a_cpu_has_nothing_to_measure(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    def never(*arguments: Any, **options: Any) -> Timing:
        raise AssertionError("measured")

    monkeypatch.setattr(tuning, "measure", never)
    a = prepared()
    _ = a @ torch.randn(200, 8)
    for plan in (a.plan(8), a.tune(8), a.T.tune(8, "sddmm")):
        assert plan.kernel == "csr"
        assert "there is one candidate" in str(plan)
    assert not [e for e in GraphCache(own_cache).entries() if e.metadata and "plan" in e.metadata]


def test_bad_arguments() -> None:
    a = prepared(autotune=False, cache=False)
    for call in (a.tune, a.plan):
        with pytest.raises(ValueError, match="width"):
            call(0)
        with pytest.raises(TypeError, match="width"):
            call(2.5)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="op: got"):
            call(8, "spmv")
        with pytest.raises(ValueError, match="edge_values: play no part"):
            call(8, "sddmm", True)
        with pytest.raises(TypeError, match="edge_values"):
            call(8, "spmm", 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="autotune"):
        prepared(autotune="yes")


def test_a_store_without_a_cache_remembers() -> None:
    store, case = PlanStore("", None), problem()
    key = store.key(case, "A", torch.device("cpu"))
    assert store.find(key, candidates(case)) is None
    store.keep(key, case, choose_plan(case))
    assert store.find(key, ()) == choose_plan(case)
    assert key != store.key(case, "T", torch.device("cpu"))
    assert key != store.key(replace(case, width=64), "A", torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16", "bf16"])
def test_on_a_gpu(precision: str) -> None:
    graph = random_graph(3000, 3000, 0.01, weighted=False).to("cuda")
    a = gnnsparse.prepare(graph, values="gcn", precision=precision, autotune=True)
    x = torch.randn(3000, 128, device="cuda", requires_grad=True)
    y = a @ x
    y.sum().backward()
    plain, exact = (gnnsparse.spmm(a, t.detach(), impl="reference") for t in (x, x.double()))
    assert_accurate(y, plain, exact)
    gnnsparse.sddmm(a, x.detach(), x.detach())
    for op in ("spmm", "sddmm"):
        assert a.plan(128, op).reasons[0].startswith("autotuned on NVIDIA")
    again = gnnsparse.prepare(graph, values="gcn", precision=precision, autotune=True)
    assert again.plan(128) == a.plan(128)
