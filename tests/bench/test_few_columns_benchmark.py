"""The benchmark of plans for few columns, at a tiny size on a CPU, which ignores their parameters."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import few_columns

TINY = ["--device", "cpu", "--scale", "0.01", "--graphs", "dd_like", "--precisions", "fp32", "--repeats", "1"]


def test_every_plan_and_kernel_is_timed(tmp_path: Path) -> None:
    out = tmp_path / "few.json"
    few_columns.main([*TINY, "--values", "random", "--widths", "3", "7", "--out", str(out)])
    content = json.loads(out.read_text())
    assert content["scale"] == 0.01
    for row, width in zip(content["rows"], (3, 7), strict=True):
        assert (row["graph"], row["values"], row["width"]) == ("dd_like", "random", width)
        assert row["auto"]["ms"] > 0
        assert all(plan["ms"] > 0 for plan in row["plans"])
        assert any(plan["narrow"] for plan in row["plans"]) is (width <= few_columns.MOST_NARROW)
    few_columns.main([*TINY, "--values", "gcn", "--widths", "4", "--kernels", "--out", str(out)])
    (row,) = json.loads(out.read_text())["rows"]
    assert [plan["kernel"] for plan in row["plans"]] == ["csr"]


@pytest.mark.parametrize(("width", "itemsize", "lanes"), [(3, 4, 1), (7, 4, 2), (16, 2, 2), (16, 4, 4)])
def test_lanes_have_room_for_a_row(width: int, itemsize: int, lanes: int) -> None:
    plans = list(few_columns.csr_plans(width, itemsize))
    assert len(set(plans)) == len(plans)
    vectors = [plan for plan in plans if not plan.narrow]
    assert {plan.lanes for plan in vectors} == {lanes}
    assert {plan.row_lanes for plan in vectors if not plan.group} == {
        n for n in (1, 2, 4, 8, 16, 32) if n >= lanes
    }
