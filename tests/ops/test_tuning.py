"""Plans by measuring, on a recorded GPU whose timer is a table: candidates, the choice, and its cache."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import CacheWarning, Plan, Precision
from gnnsparse.ops import tuning
from gnnsparse.plan import Problem, candidates, choose_plan
from gnnsparse.runtime.cache import GraphCache
from gnnsparse.runtime.device import Device
from gnnsparse.runtime.timing import Timing
from gnnsparse.sparse.kernel_cache import Product
from gnnsparse.testing import assert_accurate, random_graph
from tests.gpu_paths import RecordingPath
from tests.helpers import overwrite, panel_counts

HOPPER = Device("cuda", (9, 0), 132)


def problem(**changes: Any) -> Problem:
    counts = (8000, 8000, 10**6, 128, "window", 500_000)
    base = Problem("spmm", HOPPER, Precision.FP16, *counts, panels=panel_counts(400_000, 300_000))
    return replace(base, **changes)


class Timer:
    """Stands for `measure`: each plan takes what the rule says."""

    def __init__(self) -> None:
        self.rule: Callable[[Plan], float] = fast("csr")
        self.plans: list[Plan] = []
        self._seen = 0

    def measure(self, call: Callable[[], object], device: Any, **options: Any) -> Timing:
        call()
        self.plans.append(inspect.getclosurevars(call).nonlocals["plan"])
        ms = self.rule(self.plans[-1])
        return Timing(ms, ms, ms, options["repeats"], ms, ms)

    def has_measured(self) -> bool:
        """Whether a plan was measured since this was asked last."""
        before, self._seen = self._seen, len(self.plans)
        return self._seen > before


@pytest.fixture
def timer(recorded: RecordingPath, monkeypatch: pytest.MonkeyPatch) -> Timer:
    timer = Timer()
    monkeypatch.setattr(tuning, "measure", timer.measure)
    monkeypatch.setattr(tuning, "device_name", lambda device: "NVIDIA H200")
    return timer


def fast(kernel: str) -> Callable[[Plan], float]:
    return lambda plan: 0.1 if plan.label == kernel else 0.13


def prepared(**options: Any) -> gnnsparse.SparseOperand:
    graph = random_graph(200, 200, 0.05, weighted=False)
    return gnnsparse.prepare(graph, **{"values": "gcn", "precision": "fp16", "autotune": True, **options})


# Candidates


def bare(plans: Iterable[Plan]) -> set[Plan]:
    return {replace(plan, reasons=()) for plan in plans}


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        ({}, {"csr", "window", "panel 16", "panel 32"}),
        ({"op": "sddmm", "panels": panel_counts(400_000)}, {"csr", "window", "panel 16"}),
        ({"op": "sddmm", "width": 8}, {"csr", "window"}),
        *(
            ({"weighted": True, "precision": p}, {"csr", "panel 16", "panel 32"})
            for p in (Precision.FP16, Precision.BF16, Precision.TF32, Precision.FP32)
        ),
        ({"edge_values": True, "panels": ()}, {"csr", "window"}),
        ({"format": "", "precision": Precision.FP32}, {"csr", "panel 16", "panel 32"}),
        ({"format": "me-bcrs", "panels": ()}, {"window"}),
        ({"width": 1}, {"csr", "window", "panel 16", "panel 32"}),
        ({"device": Device("cpu")}, {"csr"}),
    ],
)
def test_candidates_are_distinct_and_begin_with_the_model(changes: dict[str, Any], labels: set[str]) -> None:
    case = problem(**changes)
    plans = candidates(case)
    assert plans[0] == choose_plan(case)
    assert len(bare(plans)) == len(plans)
    assert (len(plans) == 1) == (case.device.type == "cpu")
    assert {plan.label for plan in plans} - {"window"} == labels - {"window"}
    assert "window" not in labels or "window" in {plan.label for plan in plans}
    if not changes:
        for label in ("csr", "panel 16", "panel 32"):
            assert {plan.prescale for plan in plans if plan.label == label} == {True, False}
        panels = [plan for plan in plans if plan.label == "panel 16"]
        assert {plan.slices for plan in panels} == {1, 2}
        assert len({plan.tile_limit for plan in panels}) == 2


# The choice


@pytest.mark.parametrize("kernel", ["csr", "window", "panel 16", "panel 32"])
def test_the_fastest_is_used_and_says_so(kernel: str, recorded: RecordingPath, timer: Timer) -> None:
    timer.rule = fast(kernel)
    a = prepared(cache=False)
    plan = a.tune(64)
    assert plan.label == kernel
    assert plan.reasons[0].startswith(f"autotuned on NVIDIA H200: {kernel} 0.100 ms, ")
    assert plan.reasons[0].count("0.130 ms") == 3
    assert a.plan(64) == plan
    assert "autotuned on" in str(plan)
    assert bare(timer.plans) == bare(candidates(a.kernels.problem(Product("spmm", 64))))
    recorded.calls.clear()
    assert timer.has_measured()
    _ = a @ torch.randn(200, 64).half()
    assert recorded.names()[-1] == f"cuda_spmm_{plan.kernel}"
    assert not timer.has_measured()


def test_noise_does_not_move_the_model(timer: Timer) -> None:
    model = choose_plan(prepared(autotune=False, cache=False).kernels.problem(Product("spmm", 64)))
    other = "csr" if model.label != "csr" else "window"
    for ms, chosen in ((0.101, model.label), (0.103, other)):
        timer.rule = lambda plan, ms=ms: 0.1 if plan.label == other else ms
        assert prepared(cache=False).plan(64).label == chosen


def test_a_candidate_that_fails_is_left_out(timer: Timer) -> None:
    able = "csr"

    def rule(plan: Plan) -> float:
        if plan.kernel != able:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 1.0

    timer.rule = rule
    plan = prepared(cache=False).plan(64)
    assert (plan.kernel, plan.reasons[0]) == ("csr", "autotuned on NVIDIA H200: csr 1.000 ms")
    able = ""
    assert "no candidate could run" in prepared(cache=False).plan(64).reasons[-1]


def test_products_tune_themselves_once(timer: Timer) -> None:
    timer.rule = fast("window")
    a, x = prepared(cache=False), torch.randn(200, 64).half()
    _ = a @ x
    assert len(timer.plans) > 4
    _, _ = a @ x, a.T @ x  # symmetric or not, the transpose may be measured on its own
    assert timer.has_measured()
    _, _ = a @ x, a.T @ x
    assert not timer.has_measured()
    gnnsparse.sddmm(a, x, x)
    assert timer.has_measured()
    gnnsparse.spmm(a, x, torch.randn(a.nnz).half())
    assert timer.has_measured()


def test_tuning_leaves_no_trace_and_operands_keep_their_tuner(timer: Timer) -> None:
    """The formats of the losers are given back, and the random state of the user stays."""
    before, a = torch.get_rng_state(), prepared(cache=False)
    a.tune(64)
    assert torch.equal(torch.get_rng_state(), before)
    assert a.kernels.panel_bytes == 0
    _ = a @ torch.randn(200, 64).half()
    assert a.kernels.panel_bytes == 0
    assert timer.has_measured()
    pickle.loads(pickle.dumps(prepared(cache=False))).plan(64)
    assert timer.has_measured()


def test_tuning_after_use_takes_effect(recorded: RecordingPath, timer: Timer) -> None:
    a, x = prepared(cache=False, autotune=False), torch.randn(200, 64).half()
    _ = a @ x
    other = "window" if recorded.names()[-1] != "cuda_spmm_window" else "csr"
    timer.rule = fast(other)
    a.tune(64)
    _ = a @ x
    assert recorded.names()[-1] == f"cuda_spmm_{other}"


# The cache


def test_the_choice_is_kept_for_the_next_process(timer: Timer, monkeypatch: pytest.MonkeyPatch) -> None:
    timer.rule = fast("panel 16")
    plan = prepared().plan(64)
    assert timer.has_measured()
    assert prepared().plan(64) == plan
    assert prepared().tune(64) == plan
    assert not timer.has_measured()
    for change in ({"precision": "bf16"}, {"values": "mean"}, {"reorder": "degree"}):
        prepared(**change).plan(64)
        assert timer.has_measured(), change
    prepared().plan(96)
    assert timer.has_measured()
    for name, other in (
        ("gnnsparse.plan.store.device_name", lambda device: "another GPU"), ("gnnsparse.__version__", "99.0"),
    ):  # fmt: skip
        monkeypatch.setattr(name, other)
        prepared().plan(64)
        assert timer.has_measured(), name


def plan_file(folder: Path) -> Path:
    (found,) = (e.path for e in GraphCache(folder).entries() if e.metadata and "plan" in e.metadata)
    return found


@pytest.mark.parametrize(
    "change",
    [
        {"kernel": "magic"}, {"kernel": ["csr"]}, {"lanes": 10**400},
        {"height": 64}, {"lanes": "32"}, {"prescale": 1}, {"reasons": [1]}, {"more": 1},
        {"row_limit": -1}, None, "half",
    ],
)  # fmt: skip
def test_a_foreign_plan_or_half_a_file_is_told_and_measured_anew(
    change: Any, timer: Timer, own_cache: Path
) -> None:
    prepared().plan(64)
    assert timer.has_measured()
    cache, file = GraphCache(own_cache), plan_file(own_cache)
    message = "damaged" if change == "half" else "no plan that can run here"
    if change == "half":
        content = file.read_bytes()
        overwrite(file, content[: len(content) // 2])
    else:
        metadata = cache.load(file.stem, lambda _, found: found)
        assert metadata is not None
        metadata["plan"] = None if change is None else {**metadata["plan"], **change}
        cache.store(file.stem, {}, metadata)
    with pytest.warns(CacheWarning, match=message):
        assert prepared().plan(64).kernel == "csr"
    assert timer.has_measured()
    again = cache.load(plan_file(own_cache).stem, lambda _, found: found)
    assert again is not None
    assert again["plan"]["kernel"] == "csr"
    assert not timer.has_measured()


def test_ls_names_plans(
    timer: Timer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gnnsparse.cli.main import main

    monkeypatch.setenv("COLUMNS", "200")
    prepared().plan(64)
    assert main(["cache", "ls"]) == 0
    assert "plan: spmm N = 64, csr" in capsys.readouterr().out
    assert main(["cache", "verify"]) == 0


# The CPU, and bad arguments


def test_a_cpu_has_nothing_to_measure(monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:
    monkeypatch.delattr(tuning, "measure")
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
