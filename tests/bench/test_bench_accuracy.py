"""`gnnsparse bench accuracy`: its rows against known truths, and kernels planted that are wrong."""

from __future__ import annotations

import functools
import itertools
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse import prepare, spmm
from gnnsparse.bench import accuracy_command as accuracy
from gnnsparse.precision import ROUNDED_PRECISIONS
from tests.bench.runs import Run
from tests.helpers import dense_matrix

PRECISIONS = tuple(p.value for p in ROUNDED_PRECISIONS)


def rows_of(
    device: str, *ops: str, ranges: Any = ("normal",), precisions: Any = PRECISIONS
) -> list[dict[str, Any]]:
    return list(accuracy.operation_rows(ops, tuple(ranges), precisions, 0, device))


@pytest.mark.parametrize("op", accuracy.OPERATIONS)
def test_every_result_is_as_exact_as_its_precision(op: str, device: str) -> None:
    rows = rows_of(device, op, ranges=accuracy.RANGES)
    assert len(rows) == 6 * len(accuracy.RANGES)
    assert [row["problem"] for row in rows] == [""] * len(rows)
    for row in rows:
        if row["range"] == "normal" and row["output"] == "float32":  # sums of random roundings
            rounding = max(accuracy.ROUNDING[row["precision"]], 2.0**-24)
            assert 0.1 * rounding < row["error"] < 10 * rounding, row


def test_errors_by_range() -> None:
    rows = rows_of("cpu", "spmm", ranges=accuracy.RANGES)
    of = {(row["range"], row["precision"], row["output"]): row for row in rows}
    half, wide = of["wide", "fp16", "float16"], of["wide", "bf16", "bfloat16"]
    assert half["lost"] > 0 == wide["lost"]  # features of 2^-24 are 0 in float16
    assert half["elements"] > wide["elements"]
    for precision in ("tf32", "fp16", "bf16"):
        row = of["cancellation", precision, "float32"]
        assert row["error"] > 50 * of["normal", precision, "float32"]["error"]
        assert row["of_terms"] < 2 * accuracy.ROUNDING[precision]  # relative to the terms it is one rounding


#: A precision that is promised, and a worse one: all of them for a product, and one for each other operation.
PLANTED = (("fp32", "tf32"), ("tf32", "bf16"), ("fp16", "bf16"))
OTHERS = [op for op in accuracy.OPERATIONS if op != "spmm"]


@pytest.mark.parametrize(
    ("op", "promised", "planted"),
    [("spmm", *pair) for pair in PLANTED]
    + [(op, *pair) for op, pair in zip(OTHERS, itertools.cycle(PLANTED))],
)
def test_a_planted_wrong_precision_is_seen(
    op: str, promised: str, planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = accuracy.OPERATIONS[op]

    def wrong(a: Any, x: Any) -> torch.Tensor:
        return right(prepare(x.graph, precision=planted, cache=False), x)

    monkeypatch.setitem(accuracy.OPERATIONS, op, wrong)
    for row in rows_of("cpu", op, ranges=accuracy.RANGES, precisions=(promised,)):
        hidden = row["output"] != "float32" and row["range"] == "degree"  # rounding the result hides it
        assert row["ok"] == hidden, row


def test_planted_faults_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    right = accuracy.OPERATIONS["spmm"]

    def rows_by(operation: Any) -> list[dict[str, Any]]:
        monkeypatch.setitem(accuracy.OPERATIONS, "spmm", operation)
        return rows_of("cpu", "spmm")

    def lossy(a: Any, x: Any) -> torch.Tensor:
        out = right(a, x)
        out[3, 5] = float("nan")
        return out

    def raising(a: Any, x: Any) -> torch.Tensor:
        raise RuntimeError("no such kernel")

    rows = rows_by(lossy)
    assert {row["problem"] for row in rows} == {"1 elements are finite in it or in a plain run only"}
    rows = rows_by(raising)
    assert {row["problem"] for row in rows} == {"RuntimeError: no such kernel"}
    assert {row["error"] for row in rows} == {None}
    lines = accuracy.problems({"operations": rows})
    assert lines[0] == "WRONG: operations: spmm, normal, fp32, float32: RuntimeError: no such kernel"
    rows = rows_by(lambda a, x: right(a, x).T)
    assert all("the result is" in row["problem"] for row in rows)


def test_the_exact_product_is_that_of_dense_matrices() -> None:
    operands = accuracy.RANGES["normal"]("spmm", 1)
    graph = operands.graph
    assert graph.values is not None
    index = torch.stack([graph.csr.row_index(), graph.csr.indices.long()])
    plain = accuracy.PlainOperations(operands, index, graph.values, None)
    dense = dense_matrix(graph, None)
    mask = dense != 0
    v = operands.v.double()
    torch.testing.assert_close(plain.run("spmm"), dense @ v)
    torch.testing.assert_close(plain.sizes("spmm"), (dense.square() @ v.square()).sqrt())
    scores = operands.q.double() @ operands.k.double().T
    torch.testing.assert_close(plain.run("sddmm"), scores[index[0], index[1]])
    masked = (scores / operands.q.shape[1] ** 0.5).masked_fill(~mask, float("-inf"))
    torch.testing.assert_close(plain.run("attention"), masked.softmax(1) @ v)


def test_errors_of_known_results() -> None:
    exact = torch.tensor([3.0, 4.0, 0.0], dtype=torch.float64)
    actual = torch.tensor([3.0, 4.5, 0.0])
    found = accuracy.judge(actual, exact.float(), exact, exact.abs())
    assert (found["error"], found["largest"], found["elements"]) == (0.1, 0.125, 0.125)
    assert (found["lost"], found["infinite"], found["ok"]) == (0.0, 0, False)
    lost = accuracy.judge(torch.tensor([0.0, 4.0, 0.0]), exact.float(), exact, exact.abs())
    assert lost["lost"] == pytest.approx(1 / 3)
    infinite = accuracy.judge(torch.tensor([3.0, float("inf"), 0.0]), exact.float(), exact, exact.abs())
    assert (infinite["infinite"], infinite["ok"]) == (1, False)


def test_float16_stops_counting_at_2048() -> None:
    ones = torch.ones(5000, 2, dtype=torch.float16)
    assert accuracy.half_sums(ones).tolist() == [2048.0, 2048.0]
    assert accuracy.half_sums(ones, 16).tolist() == [5000.0, 5000.0]  # in blocks at 32,768
    assert accuracy.half_sums(torch.ones(40000, 1, dtype=torch.float16), 16).item() == 32768.0
    assert accuracy.half_sums(torch.full((3, 1), 30000.0, dtype=torch.float16)).isinf().all()
    terms = torch.randn(300, 8).half()
    assert torch.equal(accuracy.half_sums(terms), functools.reduce(torch.add, terms))


def test_sums_are_float32(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "TERMS", (256, 4096))
    rows = list(accuracy.accumulation_rows(device, 0))
    for row in rows:
        assert row["ok"]
        assert row["kernel"] < 1e-5
        if row["series"] != "ones":
            assert row["kernel"] < row["half_blocks"] < row["half"]
    counted = [row for row in rows if (row["series"], row["terms"]) == ("ones", 4096)]
    assert [(row["kernel"], row["half_blocks"], row["half"]) for row in counted] == [(0.0, 0.0, 0.5)]


def test_scaling_saves_what_float16_loses(device: str) -> None:
    of = {(row["magnitude"], row["way"]): row for row in accuracy.scaling_rows(device, 0, ("fp16",))}
    assert all(row["ok"] for row in of.values())
    assert of[-28, "unscaled"]["lost"] == 1.0  # all gradients are below 2^-25
    assert of[-28, "unscaled"]["error"] == 1.0
    assert of[-28, "scaled"]["lost"] == 0.0
    assert of[-28, "scaled"]["error"] == pytest.approx(of[0, "unscaled"]["error"], rel=1e-2)
    assert of[4, "scaled"]["error"] is None
    assert of[4, "scaled"]["infinite"] > 0.5
    for magnitude in (4, 0):  # the factor is halved until nothing overflows
        row = of[magnitude, "dynamic"]
        assert row["scale"] == 2.0 ** (16 - row["skipped"])
        assert (row["infinite"], row["lost"]) == (0.0, 0.0)
    assert of[-32, "dynamic"]["scale"] > 2.0**16
    bf16 = list(accuracy.scaling_rows(device, 0, ("fp32", "bf16")))
    assert {(row["precision"], row["way"], row["lost"]) for row in bf16} == {("bf16", "unscaled", 0.0)}


def test_overflow(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "DEGREES", (8187, 8192))
    rows = list(accuracy.overflow_rows(device, PRECISIONS))
    assert all(row["ok"] for row in rows)
    infinite = [row for row in rows if row["infinite"]]
    assert [(r["precision"], r["output"], r["reduce"], r["degree"]) for r in infinite] == [
        ("fp16", "float16", "sum", 8192)
    ]
    assert infinite[0]["infinite"] == infinite[0]["elements"]
    assert infinite[0]["result"] is None


def test_the_command_prints_and_writes_all_parts(bench: Run, tmp_path: Path) -> None:
    figure = tmp_path / "new" / "a.png"
    options = f"--precision fp32 fp16 --op spmm --range normal wide --seed 3 --plot {figure}"
    printed, result = bench("accuracy --device cpu", options)
    assert figure.read_bytes().startswith(b"\x89PNG")
    for title in ("spmm: error", "Sums of products", "Gradients of a product", "Overflow of results"):
        assert title in printed
    assert set(result["settings"]) == {"parts", "ops", "ranges", "precisions", "device", "seed"}
    assert result["settings"]["seed"] == 3
    assert {row["op"] for row in result["operations"]} == {"spmm"}
    assert {row["precision"] for row in result["overflow"]} == {"fp32", "fp16"}
    assert {"device_name", "versions", "commit", "date", *accuracy.PARTS} <= set(result)


def test_one_seed_gives_equal_rows() -> None:
    first, again, other = (
        list(accuracy.operation_rows(["spmm"], accuracy.RANGES, ["fp16"], seed, "cpu")) for seed in (5, 5, 6)
    )
    assert first == again
    assert other[0]["error"] != first[0]["error"]


def test_a_wrong_result_ends_the_command_with_1(bench: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(accuracy.OPERATIONS, "spmm", lambda a, x: spmm(a, x.v.bfloat16()).to(x.v.dtype))
    printed, _ = bench("accuracy --device cpu --part operations --op spmm", status=1)
    assert "WRONG: operations: spmm, normal, fp32, float32: error" in printed
    assert re.search(r"WRONG \d\.\de-", printed)
    assert "normal, bf16, bfloat16" not in printed.partition("WRONG: ")[2]
