"""The CUDA sources of attention and its gradients, run on the CPU, against float64."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from gnnsparse import masks
from gnnsparse.plan import AttentionGradPlan, AttentionPlan
from gnnsparse.plan.gpu_records import record_for, save_record
from gnnsparse.testing import random_graph
from tests import emulated
from tests.gpu_paths import H200
from tests.helpers import make
from tests.ops.attention_oracle import make_case, shares_rows
from tests.ops.test_attention import OPTIONS, PATTERNS, check, rounding_of

TWO_PASSES = {f"cuda_attention_panel{name}" for name in ("", "_rows", "_columns")}
ONE_PASS = {f"cuda_attention_panel{name}" for name in ("", "_fused_backward")}


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("d", "precision"),
    [
        (8, "fp16"),
        (32, "fp16"),
        (33, "bf16"),
        (64, "fp16"),
        (128, "bf16"),
        (5, "tf32"),
        (32, "fp32"),
        (64, "tf32"),
    ],
)
@pytest.mark.parametrize("pattern", [*PATTERNS, "cut"])
def test_patterns(module: ModuleType, d: int, precision: str, pattern: str) -> None:
    """Rows of every width, panels of 16 and of 64 rows, whole and cut."""
    if pattern == "long":
        graph = masks.full(120, 600)  # what takes a GPU microseconds takes seconds here
    elif pattern == "strips":
        graph = masks.vector_wise(60, 0.9, 8, seed=3, keys=500)
    elif pattern == "cut":
        graph = random_graph(20, 1500, 0.01, hubs=2)
    else:
        graph = PATTERNS[pattern]()
    a = make(graph, "cpu", precision=precision)
    with emulated.running(module) as native:
        assert shares_rows(a) == (pattern in ("window", "blocks", "long"))
        scale = -0.2 if d == 8 else None
        case = make_case(a, d, d, lead=(1, 1) if pattern in ("long", "cut") else (1, 2), scale=scale)
        # By itself the plan would take kernels over rows where panels hold few edges.
        how = {"plan": AttentionPlan(backward=AttentionGradPlan())} if pattern == "cut" else {}
        check(a, case, floor=rounding_of(a, pattern == "strips"), **how)
    in_16_bits = a.precision.storage.itemsize == 2
    assert native.called == (ONE_PASS if pattern == "strips" and in_16_bits and d <= 64 else TWO_PASSES)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(
    ("precision", "reorder"), [("fp16", "none"), ("fp16", "degree"), ("tf32", "none"), ("fp32", "none")]
)
def test_options(late: ModuleType, options: dict[str, Any], precision: str, reorder: str) -> None:
    a = make(random_graph(61, 83, 0.1, hubs=2, empty_rows=0.2), "cpu", precision=precision, reorder=reorder)
    with emulated.running(late):
        check(a, make_case(a, 16, 24, **options), floor=rounding_of(a) if precision == "fp32" else None)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("d", "dv"), [(16, 24), (64, 5)])
def test_one_pass(
    late: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: dict[str, Any],
    d: int,
    dv: int,
) -> None:
    """Both passes in one: cut panels, empty columns, a few heads at a time."""
    a = make(random_graph(61, 83, 0.1, hubs=2, empty_rows=0.2), "cpu", precision="fp16", reorder="degree")
    # A GPU that always takes one pass, and has room for the partial sums of a few heads.
    rates = replace(
        record_for(H200).attention, fused_backward_slots=0, partials_memory=5 * 90 * d * dv / 2**30
    )
    save_record(replace(record_for(H200), name="small", attention=rates), tmp_path / "small.json")
    monkeypatch.setenv("GNNSPARSE_GPU_RECORDS", str(tmp_path))
    with emulated.running(late, replace(H200, name="small", memory=2**30)) as native:
        check(a, make_case(a, d, dv, **options), floor=rounding_of(a, dkv_partials=True))
    assert native.called == ONE_PASS


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("tall", [False, True])
@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
@pytest.mark.parametrize(("d", "dv"), [(8, 64), (64, 24), (33, 40)])
def test_panels_cut_anywhere(
    module: ModuleType, precision: str, tall: bool, limit: int, d: int, dv: int
) -> None:
    """Panels of 16 and of 64 rows that share few columns, in another order than the caller's rows."""
    a = make(random_graph(75, 130, 0.2, hubs=2, empty_rows=0.2), "cpu", precision=precision, reorder="degree")
    plan = emulated.attention_plan(tall, limit)
    with emulated.running(module) as native:
        check(a, make_case(a, d, dv, lead=(1, 1), scale=0.3), floor=rounding_of(a), plan=plan)
    assert native.called == TWO_PASSES


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(("d", "dv", "limit"), [(8, 128, 1000), (72, 100, 3), (100, 72, 1), (128, 128, 2)])
def test_wide_heads_of_other_widths(module: ModuleType, precision: str, d: int, dv: int, limit: int) -> None:
    a = make(random_graph(75, 130, 0.2, hubs=2, empty_rows=0.2), "cpu", precision=precision, reorder="degree")
    plan = emulated.attention_plan(False, limit)
    with emulated.running(module):
        check(a, make_case(a, d, dv, lead=(1, 1), scale=0.3), floor=rounding_of(a), plan=plan)
