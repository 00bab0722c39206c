"""`gnnsparse bench kernels --format ... --ablate`: what it measures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gnnsparse
from gnnsparse.bench.kernels import format_plans, has_tall, tall_plans
from gnnsparse.cli.main import main
from gnnsparse.formats import WindowPolicy
from gnnsparse.plan import Plan
from gnnsparse.testing import random_graph

SMALL = ["bench", "kernels", "--matrix", "arxiv_like:scale=0.015", "--width", "8", "--repeats", "2"]


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


def test_formats_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "result.json"
    options = ["--device", "cpu", "--precision", "fp16", "--values", "none", "--peers", "none"]
    assert main([*SMALL, *options, "--format", "me-bcrs", "cvse", "--out", str(out)]) == 0
    rows = {row["kernel"]: row for row in json.loads(out.read_text())["rows"]}
    assert rows["me-bcrs"]["format"] == "me-bcrs"
    assert rows["me-bcrs"]["ok"]
    assert rows["cvse"]["ok"]
    assert "policies of formats" in capsys.readouterr().out
