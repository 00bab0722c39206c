"""`gnnsparse bench kernels`: what it measures, how it checks, and what it says about it."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from unittest import mock

import pytest
import torch

import gnnsparse
from gnnsparse.bench import candidates
from gnnsparse.bench.candidates import KERNELS, X_ROUNDED, X_STORED, our_kernel, peer_candidates, same_run
from gnnsparse.bench.kernels import Bench, format_plans, has_tall, tall_plans
from gnnsparse.bench.workload import (
    PEER_FACTOR,
    VALUES,
    Reference,
    Sample,
    UnavailableError,
    Workload,
    make_subject,
    poisoned_call,
)
from gnnsparse.formats import WindowPolicy
from gnnsparse.plan import Plan, Problem, choose_plan
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import Device
from gnnsparse.testing import assert_accurate, random_graph, rounding_errors
from tests.bench.runs import SPEC, Run, run_with
from tests.helpers import PRECISIONS, dense_matrix, panel_counts

SMALL = "kernels --width 8 --repeats 2 --device cpu"
MTX = """%%MatrixMarket matrix coordinate real general
4 6 5
1 1 1.0
1 6 2.0
3 2 1.5
4 4 -1
4 1 3
"""


def workload(op: str = "spmm", kind: str = "random", precision: str = "fp32", **options: Any) -> Workload:
    graph = random_graph(700, 700, 0.02, hubs=2, empty_rows=0.1, **options)
    return Workload(make_subject("random", graph, kind), op, Precision(precision), 12)


def test_a_small_run_writes_every_measurement(bench: Run) -> None:
    options = "--matrix arxiv_like:scale=0.015 dd_like:scale=0.003 --op spmm sddmm"
    printed, result = bench(SMALL, options, "--values", *VALUES, "--precision", *PRECISIONS)
    assert {"device_name", "versions", "commit", "date", "threads"} <= set(result)
    assert result["settings"]["matrices"] == ["arxiv_like:scale=0.015", "dd_like:scale=0.003"]
    assert result["settings"]["cache"] == "warm"
    rows = result["rows"]
    peers = {"spmm": ("sparse_mm", "sparse_mm_reduce", "pyg"), "sddmm": ("sampled_addmm", "gather_dot")}
    found = {(r["op"], r["kernel"]) for r in rows if r["kernel"] != "dgl"}
    assert found == {(op, name) for op, of in peers.items() for name in ("auto", "csr", *of)}
    for r in rows:
        assert r["ok"], r
        assert 0 <= r["error"] <= r["allowed"]
        quartiles = [r[f"{name}_ms"] for name in ("fastest", "lower_quartile", "upper_quartile", "slowest")]
        assert sorted([*quartiles, r["ms"]]) == [*quartiles[:2], r["ms"], *quartiles[2:]]
        assert r["gflops"] == pytest.approx(2 * r["product_nnz"] * r["width"] / r["ms"] / 1e6)
        assert r["over_baseline"] > 0
        assert r["over_cusparse"] is None
    cases = {(r["graph"], r["op"], r["values"], r["precision"]) for r in rows if r["kernel"] == "auto"}
    assert len(cases) == 2 * len(PRECISIONS) * (len(VALUES) + 1)
    assert {r["same_as"] for r in rows if r["kernel"] == "csr"} == {"auto"}
    assert {r["kernel"] for r in rows if r["ours"]} == {"auto", "csr"}
    assert "window" not in printed
    assert "auto, spmm fp32" in printed
    mean = next(m for m in result["means"] if (m["op"], m["precision"]) == ("spmm", "fp32"))
    mine = [r for r in rows if (r["kernel"], r["op"], r["precision"]) == ("auto", "spmm", "fp32")]
    ratios = [r["over_baseline"] for r in mine]
    assert mean["matrices"] == 2
    assert mean["mean"] == pytest.approx(geometric_mean(ratios))


def test_eight_bits_have_x_stored_before_and_rounded_in_each_product(bench: Run, tmp_path: Path) -> None:
    options = "--matrix dd_like:scale=0.003 --values gcn --op spmm sddmm --precision fp16 int8 fp8 --plot"
    printed, result = bench(SMALL, options, str(tmp_path / "result.png"))
    assert "stored" in printed
    rows = [r for r in result["rows"] if r["kernel"] == "auto"]
    assert all(r["ok"] for r in rows)
    found = [(r["op"], r["precision"], r["variant"]) for r in rows]
    spmm = [("spmm", p, v) for p in ("int8", "fp8") for v in (X_STORED, X_ROUNDED)]
    sddmm = [("sddmm", p, "") for p in ("fp16", "int8", "fp8")]
    assert found == [("spmm", "fp16", ""), *spmm, *sddmm]
    by_way = {(r["precision"], r["variant"]): r["error"] for r in rows if r["op"] == "spmm"}
    assert by_way["int8", X_STORED] == by_way["int8", X_ROUNDED]


def test_files_of_a_folder_square_or_not_and_a_damaged_one(bench: Run, tmp_path: Path) -> None:
    folder = tmp_path / "matrices"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "a.mtx").write_text(MTX)
    (folder / "bad.mtx").write_text("nothing")
    (folder / "notes.txt").write_text("not a matrix")
    options = f"--matrix {folder} --values none gcn --precision fp32"
    printed, result = bench(SMALL, options, status=1)
    rows = result["rows"]
    assert {(r["graph"], r["nodes"], r["cols"], r["nnz"]) for r in rows} == {("inner/a.mtx", 4, 6, 5)}
    assert {r["values"] for r in rows} == {"none"}
    assert "'gcn' needs a square matrix" in printed
    assert "failed: bad.mtx: " in printed


def reordered(compute: Callable[[], torch.Tensor]) -> float:
    """By how much a computation in float64 may differ in another order, relative to its result.

    Both orders have rounding errors, of which five standard deviations are allowed: those of float32, times
    2^-29.
    """
    (errors,), exact = rounding_errors(lambda: [compute()]), compute()
    sizes = (float(errors.norm() / exact.norm()), float(errors.abs().max() / exact.abs().max()))
    return 2 * 5 * 2.0**-29 * max(sizes)


def test_the_reference_is_the_product() -> None:
    for kind in VALUES:
        work = workload(kind=kind, weighted=False)
        weights = "gcn" if kind == "gcn" else None
        dense, x = dense_matrix(work.subject.graph, weights), work.dense[0]
        sample = Sample.of(work.subject)
        exact = partial(torch.matmul, dense[sample.chosen], x.double())
        got = Reference(work, sample).results[0]
        assert_accurate(got, exact(), exact(), floor=reordered(exact))
    work = workload("sddmm")
    q, k = work.dense
    sample = Sample.of(work.subject)
    index = work.subject.csr.row_index(), work.subject.csr.indices.long()
    left, right = (x.double()[i[sample.nnz_index]] for x, i in zip((q, k), index, strict=True))
    exact = partial(torch.sum, left * right, 1)
    assert_accurate(Reference(work, sample).results[0], exact(), exact(), floor=reordered(exact))


def test_the_longest_rows_are_checked() -> None:
    subject = workload().subject
    assert subject.csr.rows > 520
    assert set(subject.csr.degrees.topk(20).indices.tolist()) <= set(Sample.of(subject).chosen.tolist())


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("reorder", ["none", "degree"])
def test_our_kernels_pass_and_wrong_results_are_flagged(op: str, precision: str, reorder: str) -> None:
    work = workload(op, precision=precision)
    reference = Reference(work, Sample.of(work.subject))
    a = gnnsparse.prepare(work.subject.graph, precision=precision, reorder=reorder, cache=False)
    who = our_kernel("auto", a.kernels.plan(op, 12, False), a, work)
    right = who.in_caller_order(poisoned_call(who.call, work, fill_all=True))
    assert reference.judge(right, 2.0).ok
    longest = int(work.subject.csr.degrees.argmax())
    at = longest if op == "spmm" else int(work.subject.csr.indptr[longest])
    wrong = right.clone()
    wrong[at] *= 1.5
    assert not reference.judge(wrong, PEER_FACTOR).ok
    assert not reference.judge(right[:-1], PEER_FACTOR).ok
    missing = right.clone()
    missing.view(-1)[-1] = float("nan")
    verdict = reference.judge(missing, PEER_FACTOR)
    assert not verdict.ok
    assert verdict.problem == "1 elements are NaN or were not written"


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_a_quantized_x_is_checked_with_its_column_weights(precision: str) -> None:
    """Hubs have small weights: their rows of X get a few steps only, as other rows decide on the scale."""
    graph = random_graph(600, 600, 0.005, weighted=False, hubs=30)
    subject = make_subject("m", graph, "gcn")
    work = Workload(subject, "spmm", Precision(precision), 40)
    reference = Reference(work, Sample.of(subject))
    a = gnnsparse.prepare(graph, values="gcn", precision=precision, cache=False)
    result = gnnsparse.spmm(a, work.dense[0])
    assert reference.judge(result, 2.0).ok
    plain = reference.results[1]
    assert_accurate(result[reference.sample.chosen], plain, plain.double(), floor=2e-3)
    verdict = reference.judge(result + 0.1 * result.abs().max(), 2.0)
    assert "largest error" in verdict.problem


def test_an_element_outside_the_sample_that_nobody_writes_is_seen() -> None:
    work = workload(kind="none")
    sample = Sample.of(work.subject)
    outside = next(r for r in range(work.subject.csr.rows) if r not in set(sample.chosen.tolist()))
    a = gnnsparse.prepare(work.subject.graph, cache=False)

    def lazy() -> torch.Tensor:
        result, full = torch.empty(work.output_shape), gnnsparse.spmm(a, *work.dense)
        keep = torch.arange(full.shape[0]) != outside
        result[keep] = full[keep]
        return result

    verdict = Reference(work, sample).judge(poisoned_call(lazy, work, fill_all=False), PEER_FACTOR)
    assert verdict.problem == "12 elements are NaN or were not written"
    assert not torch.are_deterministic_algorithms_enabled()


def test_a_wrong_peer_is_flagged_and_the_run_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = run_with(monkeypatch, "wrong", lambda work: lambda: torch.zeros(work.output_shape))
    by_name = {r["kernel"]: r for r in bench.rows}
    assert not by_name["wrong"]["ok"]
    assert by_name["wrong"]["error"] == 1.0
    assert "Frobenius error 1.0e+00, accepted" in by_name["wrong"]["problem"]
    assert by_name["auto"]["ok"]
    bench = run_with(monkeypatch, "unfinished", lambda work: lambda: torch.empty(work.output_shape))
    found = next(r for r in bench.rows if r["kernel"] == "unfinished")
    assert found["error"] is None  # JSON has no NaN
    assert "were not written" in found["problem"]


def test_a_wrong_kernel_of_ours_ends_with_1(bench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    spmm = gnnsparse.spmm
    monkeypatch.setattr(candidates.gnnsparse, "spmm", lambda *a, **k: 1.01 * spmm(*a, **k))
    printed, _ = bench(SMALL, "--matrix dd_like:scale=0.003 --precision fp32 --peers none", status=1)
    assert "WRONG: auto, dd_like:scale=0.003" in printed
    assert "nothing was compared: no right results stand side by side" in printed


def test_a_peer_that_fails_or_lacks_something_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, reason, failed in (
        (RuntimeError("no kernel image\nand a long trace"), "RuntimeError: no kernel image", True),
        (ModuleNotFoundError("No module named 'other'"), "not installed: No module named 'other'", False),
    ):
        skipped = run_with(monkeypatch, "bad", mock.Mock(side_effect=error)).skipped
        found = [(s["reason"], s["failed"]) for s in skipped if s["name"] == "bad"]
        assert found == [(reason, failed)]
    monkeypatch.setattr(candidates, "free_bytes", lambda device: 1000)
    with pytest.raises(UnavailableError, match="would need"):
        peer_candidates("pyg", workload())


@pytest.mark.parametrize("kind", VALUES)
def test_dgl_is_given_the_same_product(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """DGL has no wheel for every torch: a stand-in with its two functions shows what they are given."""

    def gather(block: Any, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        source, target, rows = block
        return torch.zeros(rows, x.shape[1]).index_add(0, target, x[source] * edges)

    ops = types.SimpleNamespace(
        copy_u_sum=lambda block, x: gather(block, x, torch.ones(1)), u_mul_e_sum=gather
    )
    block = lambda ends, num_src_nodes, num_dst_nodes: (*ends, num_dst_nodes)  # noqa: E731
    monkeypatch.setitem(sys.modules, "dgl", types.SimpleNamespace(ops=ops, create_block=block))
    work = workload(kind=kind)
    (make,) = peer_candidates("dgl", work)
    result = make().call()
    assert Reference(work, Sample.of(work.subject)).judge(result, PEER_FACTOR).ok


@pytest.mark.parametrize("op", ["spmm", "sddmm"])
def test_each_name_forces_its_kernel_on_a_gpu(op: str) -> None:
    def problem(precision: Precision, form: str) -> Problem:
        hopper = Device("cuda", (9, 0), 132)
        panels = panel_counts(400_000, 300_000) if form == "window" and op == "spmm" else ()
        counts = (8000, 8000, 10**6, 64, form, 500_000)
        return Problem(op, hopper, precision, *counts, panels=panels)

    fp16, fp32 = problem(Precision.FP16, "window"), problem(Precision.FP32, "")
    for name, make in KERNELS.items():
        plan = make(fp16)
        if name.startswith("panel") and op == "sddmm":
            assert plan is None
            continue
        assert plan is not None
        assert name in ("auto", plan.label.replace(" ", ""))
    for name in ("window", "panel16", "panel32"):
        assert KERNELS[name](fp32) is None
    stored = replace(fp16, weighted=True)
    for weighted in (stored, replace(stored, precision=Precision.TF32)):
        assert (KERNELS["panel32"](weighted) is None) == (op == "sddmm")
    auto, csr = choose_plan(fp16), KERNELS["csr"](fp16)
    assert csr is not None
    gpu, cpu = torch.device("cuda"), torch.device("cpu")
    assert same_run(auto, replace(auto, reasons=("another",)), gpu)
    assert not same_run(auto, csr, gpu)
    assert not same_run(csr, replace(csr, lanes=csr.lanes // 2), gpu)
    assert same_run(csr, replace(csr, lanes=csr.lanes // 2), cpu)


def test_windows_of_16_rows_for_comparison() -> None:
    assert has_tall("me-bcrs")
    assert not has_tall("hrpb")
    graph = random_graph(40, 30, 0.3)
    a = gnnsparse.prepare(graph, precision="fp16", format="me-bcrs", panel=16, cache=False)
    a.kernels.use_plan(gnnsparse.sparse.kernel_cache.Product("spmm", 64), Plan("window"))
    plans = tall_plans(a, 64)
    assert [plan.policy.swapped for plan in plans.values()] == [True, False]  # type: ignore[attr-defined]


def test_an_ablation_changes_one_switch_at_a_time() -> None:
    # A full matrix of two windows of 8 rows.
    graph = random_graph(16, 8, 1.0)
    a = gnnsparse.prepare(graph, precision="fp16", format="me-bcrs", cache=False)
    policy = WindowPolicy(k=8, x_load="coalesced", shuffle=False)
    a.kernels.use_plan(gnnsparse.sparse.kernel_cache.Product("spmm", 64), Plan("window", policy=policy))
    assert list(format_plans(a, "spmm", 64, ablate=False)) == ["me-bcrs"]
    names = set(format_plans(a, "spmm", 64, ablate=True))
    assert names == {
        "me-bcrs", "me-bcrs k=16", "me-bcrs x_load=vector", "me-bcrs x_load=plain", "me-bcrs shuffle=True",
        "me-bcrs stage_a=single", "me-bcrs stage_a=double", "me-bcrs stage_x=True", "me-bcrs coarsening=2",
        "me-bcrs grid=3d",
    }  # fmt: skip


def test_formats_and_widths_of_users_on_the_cpu(bench: Run) -> None:
    options = f"--matrix {SPEC.name} --precision fp16 --peers none --width users 8 --format me-bcrs cvse"
    printed, result = bench(SMALL, options)
    found = result["rows"]
    assert {r["width"] for r in found} == {41, 47, 100, 602, 8}
    assert {r["values"] for r in found} == {"gcn", "random"}  # rank-1 weights beside stored ones
    rows = {row["kernel"]: row for row in found}
    assert rows["me-bcrs"]["format"] == "me-bcrs"
    assert rows["me-bcrs"]["ok"]
    assert rows["cvse"]["ok"]
    assert "policies of formats" in printed


# --resume: a run that goes on with the file of another.

FIRST, SECOND = "arxiv_like:scale=0.01", "dd_like:scale=0.002"
OPTIONS = f"{SMALL} --precision fp32 --peers sparse_mm --matrix"


def times(found: dict[str, Any], graph: str) -> list[float]:
    return [row["ms"] for row in found["rows"] if row["graph"] == graph]


def test_runs_measure_what_the_file_lacks(
    bench: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, measured = tmp_path / "deep" / "result.json", []
    _, first = bench(OPTIONS, FIRST, "--resume")  # there is no file yet
    out.write_text(json.dumps({**first, "commits": ["before"]}))
    run = Bench.run_matrix
    monkeypatch.setattr(Bench, "run_matrix", lambda self, spec: (measured.append(spec.name), run(self, spec)))
    _, both = bench(OPTIONS, FIRST, SECOND, "--resume")
    assert measured == [SECOND]
    assert both["settings"]["matrices"] == [FIRST, SECOND]
    assert both["commits"] == ["before", first["commit"]]
    assert times(both, FIRST) == times(first, FIRST)
    assert len(times(both, SECOND)) == len(times(first, FIRST))
    assert len(both["noise"]["reference_ms"]) == len(first["noise"]["reference_ms"]) + 2
    assert {mean["matrices"] for mean in both["means"]} == {2}
    printed, again = bench(OPTIONS, SECOND, "--resume")
    assert measured == [SECOND]
    assert again == both  # nothing was measured, nothing written
    assert FIRST in printed  # the report is of all
    # A matrix that could not be read is tried again.
    matrix = tmp_path / "a.mtx"
    matrix.write_text("nothing")
    bench(OPTIONS, str(matrix), "--values none", status=1)
    matrix.write_text(MTX)
    _, found = bench(OPTIONS, str(matrix), "--values none --resume")
    assert times(found, "a.mtx")
    assert not any(case["failed"] for case in found["skipped"])


def test_another_runs_file_is_refused(bench: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, damaged = tmp_path / "deep" / "result.json", "no file that this benchmark wrote"
    _, right = bench(OPTIONS, FIRST)
    for change, options, says in (
        ({"commits": None}, "", damaged),
        ({"rows": None}, "", damaged),
        ({"skipped": [{"a": 1}]}, "", damaged),
        (None, "", damaged),
        ({"device_name": "another"}, "", "device_name"),
        ({"versions": {}}, "", "versions"),
        ({}, "--values none", "values"),
    ):
        text = "[" if change is None else json.dumps({**right, **change})
        out.write_text(text)
        with pytest.raises(SystemExit) as stopped:
            bench(OPTIONS, SECOND, "--resume", options)
        assert stopped.value.code == 2
        assert says in capsys.readouterr().err
        assert out.read_text() == text
