"""`gnnsparse bench kernels --format ... --ablate`: what it measures, and the counts of its model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import gnnsparse
from gnnsparse.bench.candidates import UnavailableError
from gnnsparse.bench.counters import Run, count
from gnnsparse.bench.kernels import format_plans, has_tall, modelled_counts, tall_plans
from gnnsparse.bench.matrices import parse_matrix
from gnnsparse.cli.main import main
from gnnsparse.formats import WindowPolicy
from gnnsparse.plan import Plan
from gnnsparse.precision import Precision
from gnnsparse.testing import random_graph

SMALL = ["bench", "kernels", "--matrix", "arxiv_like:scale=0.015", "--width", "8", "--repeats", "2"]


def dense_windows(cols: int) -> gnnsparse.SparseOperand:
    """A full matrix of two windows of 8 rows, in me-bcrs."""
    graph = random_graph(16, cols, 1.0)
    return gnnsparse.prepare(graph, precision="fp16", format="me-bcrs", cache=False)


def test_transactions_are_those_of_flashsparse_figure_7() -> None:
    """16 direct ones of 32 bytes for 8 columns by 16 features, of which half is waste; 8 if coalesced."""
    blocked, fp16 = dense_windows(8).kernels.blocked, Precision.FP16
    plain = WindowPolicy(k=8, x_load="plain", shuffle=False)
    coalesced = WindowPolicy(k=8, x_load="coalesced", shuffle=False)
    pieces = 2 * 64 // 16  # of 16 features, in two windows
    assert modelled_counts(blocked, plain, fp16, 64).x_sectors == 16 * pieces
    assert modelled_counts(blocked, coalesced, fp16, 64).x_sectors == 8 * pieces
    for policy in (plain, coalesced):
        counts = modelled_counts(blocked, policy, fp16, 64)
        assert counts.mma == pieces
        assert counts.gathered_bytes == 2 * 8 * 64 * 2


@pytest.mark.parametrize(("k", "mma"), [(8, 3), (16, 2)])
def test_the_shallow_mma_ends_after_the_last_column(k: int, mma: int) -> None:
    """20 columns are 3 times 8, or 2 times 16."""
    counts = modelled_counts(dense_windows(20).kernels.blocked, WindowPolicy(k=k), Precision.FP16, 100)
    windows, tiles, products = 2, 2, 4  # two feature tiles of 64, each of 4 pairs of features
    assert counts.mma == mma * windows * tiles * products


def test_windows_of_16_rows_for_comparison() -> None:
    assert has_tall("me-bcrs")
    assert not has_tall("hrpb")
    graph = random_graph(40, 30, 0.3)
    a = gnnsparse.prepare(graph, precision="fp16", format="me-bcrs", panel=16, cache=False)
    a.kernels.use_plan(gnnsparse.sparse.kernel_cache.Product("spmm", 64), Plan("window"))
    plans = tall_plans(a, 64)
    assert [plan.policy.swapped for plan in plans.values()] == [True, False]  # type: ignore[attr-defined]


def test_an_ablation_changes_one_switch_at_a_time() -> None:
    a = dense_windows(8)
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
    assert "no profiler" in capsys.readouterr().out


#: The table of ncu 2025.3: messages, then a line for each kernel and metric; larger numbers have commas.
TABLE = """==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Metric Name","Metric Unit","Metric Value"
"0","7","policy_direct_kernel","dram__sectors_read.sum","sector","1,234"
"0","7","policy_direct_kernel","lts__t_sectors_op_read.sum","sector","5,678,901"
"0","7","policy_direct_kernel","smsp__inst_executed.sum","inst","42"
"1","7","policy_staged_kernel","dram__sectors_read.sum","sector","9"
"1","7","policy_staged_kernel","lts__t_sectors_op_read.sum","sector","8"
"1","7","policy_staged_kernel","smsp__inst_executed.sum","inst","7"
"""


def profiler(folder: Path, text: str, status: int = 0) -> str:
    """A program that answers as ncu does, once it has seen that it was given what to run."""
    (folder / "answer").write_text(text)
    program = folder / "ncu"
    check = 'for last in "$@"; do :; done\ntest -f "$last" || exit 9\n'
    program.write_text(f"#!/bin/sh\n{check}cat {folder}/answer\nexit {status}\n")
    program.chmod(0o755)
    return str(program)


def profiled(plans: int) -> Run:
    (matrix,) = parse_matrix("dd_like")
    return Run(matrix, "none", "fp16", 64, "none", "me-bcrs", None, (Plan("window"),) * plans)


def test_counters_are_those_of_the_plans_in_order(tmp_path: Path) -> None:
    assert count(profiled(2), profiler(tmp_path, TABLE)) == [
        {"dram_sectors": 1234, "l2_sectors": 5678901, "instructions": 42},
        {"dram_sectors": 9, "l2_sectors": 8, "instructions": 7},
    ]


@pytest.mark.parametrize(
    ("text", "status", "plans", "message"),
    [
        (TABLE, 0, 3, "ncu saw 2 kernels of 3 plans"),
        ("==ERROR== ERR_NVGPUCTRPERM - no permission\n", 1, 2, "ncu: ERR_NVGPUCTRPERM - no permission"),
        ("", 3, 2, "ncu: it ended with 3"),
    ],
)
def test_why_counters_can_not_be_read(
    tmp_path: Path, text: str, status: int, plans: int, message: str
) -> None:
    with pytest.raises(UnavailableError, match=message):
        count(profiled(plans), profiler(tmp_path, text, status))
