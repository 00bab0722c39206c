"""attention and its gradients against float64, in every precision and with every option."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import Precision, masks
from gnnsparse.plan import AttentionGradPlan, AttentionPlan, UnfusedPlan
from gnnsparse.plan.gpu_records import record_for, save_record
from gnnsparse.runtime.device import path
from gnnsparse.testing import assert_all_accurate, random_graph
from tests import emulated
from tests.gpu_paths import H200
from tests.helpers import PRECISIONS, ROUNDING, make
from tests.ops.attention_oracle import (
    Case,
    exact,
    exact_scores,
    few_roundings,
    make_case,
    plain,
    run,
    shares_rows,
)
from tests.ops.conftest import Place
from tests.ops.quantized import EIGHT_BITS

#: (shape of the bias before the edges, other options), for 2 batches of 3 heads.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"scale": 0.7},
    {"is_causal": True},
    {"bias": ()},
    {"bias": (3,), "is_causal": True},
    {"bias": (2, 1), "dropout_p": 0.3},
    {"bias": (1, 3), "scale": -1.5},
    {"bias": (2, 3), "dropout_p": 0.6, "is_causal": True},
    {"dropout_p": 0.3},
]


def rounding_of(a: gnnsparse.SparseOperand, dkv_partials: bool = False) -> float:
    """What one element may be off: scores' gradients and partial sums of dK, dV are rounded once more."""
    return max((2 if dkv_partials else 1.5) * torch.finfo(a.precision.storage).eps, 2e-6)


def floor_in_parts(a: gnnsparse.SparseOperand, *widths: int) -> float | None:
    """The `floor` of what the fused kernels take in fp32, as sums of two tf32 parts; None of all else."""
    fused = max(widths) <= 32 and a.precision == Precision.FP32 and path().takes(a.device)
    return rounding_of(a) if fused else None


def has_fused_kernel(a: gnnsparse.SparseOperand, case: Case) -> bool:
    plan = a.plan(
        case.q.shape[-1], "attention", heads=math.prod(case.q.shape[:-2]), value_width=case.v.shape[-1],
        has_score_terms=case.bias is not None or case.is_causal,
    )  # fmt: skip
    return not isinstance(plan, UnfusedPlan)


def check(a: gnnsparse.SparseOperand, case: Case, floor: float | None = None, **how: Any) -> None:
    results = run(a, case, **how)
    for got, leaf in zip(results, [case.q, *case.leaves], strict=True):
        assert got.dtype == leaf.dtype
    if floor is None and not how:
        floor = floor_in_parts(a, case.q.shape[-1], case.v.shape[-1])
    assert_all_accurate(results, plain(a, case), lambda: exact(a, case), floor=floor)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_options(place: Place, options: dict[str, Any], precision: str) -> None:
    graph = random_graph(61, 83, 0.1, hubs=2, empty_rows=0.2)
    for reorder in ("none", "degree"):
        a = make(graph, place.device, precision=precision, reorder=reorder)
        check(a, make_case(a, 16, 24, **options))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("d", [1, 5, 16, 32, 33, 64, 100, 128, 160])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("symmetric", [False, True])
def test_head_dimensions(device: str, d: int, precision: str, symmetric: bool) -> None:
    a = make(random_graph(75, 75, 0.1, hubs=1, symmetric=symmetric), device, precision=precision)
    check(a, make_case(a, d, d, bias=(3,), dropout_p=0.2))


#: Rows that share few columns; strips of 8 that share all, whose transpose shares few; and patterns whose
#: rows share nearly all: of those a panel has 64.
PATTERNS = {
    "graph": lambda: random_graph(75, 90, 0.1, hubs=1, empty_rows=0.1),
    "strips": lambda: masks.vector_wise(300, 0.95, 8, seed=3, keys=1200),
    "window": lambda: masks.window(300, 128),
    "blocks": lambda: masks.block(
        torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]]) != 0, 64, 150, 230
    ),
    "long": lambda: masks.full(120, 3000),
}


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("d", [8, 32, 33, 64, 100, 128])
@pytest.mark.parametrize("precision", ["fp16", "bf16", "tf32"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(device: str, d: int, precision: str, pattern: str) -> None:
    a = make(PATTERNS[pattern](), device, precision=precision)
    assert shares_rows(a) == (pattern not in ("graph", "strips"))
    lead = (1, 2) if device == "cpu" else (2, 1) if pattern == "long" else (2, 3)
    case = make_case(a, d, d, lead=lead, scale=-0.2 if d == 8 else None)
    check(a, case, floor=rounding_of(a, pattern == "strips") if device == "cuda" else None)


@pytest.mark.parametrize("sizes", [(3, 70), (40, 1), (0, 8), (8, 0)])
def test_values_of_another_width(device: str, sizes: tuple[int, int]) -> None:
    a = make(random_graph(30, 40, 0.2), device)
    check(a, make_case(a, *sizes))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fused", [True, False])
def test_dtypes(device: str, precision: str, dtype: torch.dtype, fused: bool) -> None:
    a = make(random_graph(50, 45, 0.2, hubs=1, empty_rows=0.1), device, precision=precision)
    check(a, make_case(a, 20, 12, dtype=dtype, bias=(1, 3)), fused=fused)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_unfused(device: str, options: dict[str, Any]) -> None:
    a = make(random_graph(40, 50, 0.15, hubs=1, empty_rows=0.2), device, reorder="degree")
    check(a, make_case(a, 8, 12, **options), fused=False)
    check(a, make_case(a, 8, 12, **options), impl="reference")


@pytest.mark.usefixtures("poisoned")
def test_long_rows(device: str) -> None:
    a = make(random_graph(12, 9000, 0.002, hubs=3), device)
    check(a, make_case(a, 16, 16, lead=(1, 1), bias=(), dropout_p=0.1))


def test_large_scores_do_not_overflow(device: str) -> None:
    a = make(random_graph(40, 40, 0.2), device)
    case = make_case(a, 16, 16, lead=(1, 1), scale=100.0)
    floor = floor_in_parts(a, 16)
    if floor is not None:
        # What a score is off by, a weight is off by: roundings of q and k, and the product that is left out.
        scores = exact_scores(a, case)
        floor = 3 * ROUNDING["fp32"] * float(scores[scores.isfinite()].abs().max())
    assert_all_accurate(run(a, case), plain(a, case), lambda: exact(a, case), floor=floor)


@pytest.mark.parametrize("d", [7, 33, 100])
def test_rows_and_columns_have_the_same_weights(d: int) -> None:
    """The gradient of v has them from a pass over columns, in which one that is 1 has to stay 1."""
    a = make(random_graph(40, 40, 0.2), "cpu")
    case = make_case(a, d, 8, lead=(1, 1), scale=100.0)
    assert_all_accurate(run(a, case), plain(a, case), lambda: exact(a, case))


#: Of a pattern that is full, as rows of few edges and of many are.
LARGE_SCORES: list[dict[str, Any]] = [{}, {"bias": (3,)}, {"dropout_p": 0.3}, {"is_causal": True}]


@pytest.mark.parametrize("options", LARGE_SCORES, ids=str)
@pytest.mark.parametrize("size", [1.0, 10.0, 30.0])
def test_gradients_of_large_scores_are_as_exact_as_in_torch(size: float, options: dict[str, Any]) -> None:
    """Of scores of thousands that float32 holds: where one edge has all the weight, terms have to cancel."""
    a = make(masks.full(64, 64), "cpu")
    case = make_case(a, 32, 32, lead=(1, 3), scale=0.25, **options)
    bias = None if case.bias is None else (size * case.bias).round()
    case = replace(case, q=(size * case.q).round(), k=(size * case.k).round(), bias=bias)
    assert_all_accurate(run(a, case), exact(a, case, torch.float32), lambda: exact(a, case))


def equal_weights(a: gnnsparse.SparseOperand) -> Case:
    """A case whose every edge has a bias of -1e9, so that all edges of a row weigh the same."""
    case = make_case(a, 8, 8, bias=())
    return replace(case, k=torch.zeros_like(case.k), bias=torch.full_like(case.bias, -1e9))


def test_biases_of_any_size_leave_the_weights_of_a_row(device: str) -> None:
    """All edges of a row are masked by a large finite number, as some models do: they weigh the same."""
    a = make(random_graph(40, 50, 0.3, empty_rows=0.1), device)
    check(a, equal_weights(a))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("fused", [True, False])
def test_rows_without_edges(device: str, fused: bool) -> None:
    """No edges, all above the diagonal, or all masked: zeros, and no NaN in any gradient."""
    mask = torch.rand(30, 30) < 0.3
    mask[:5] = torch.ones(30, 30, dtype=torch.bool).triu(1)[:5]
    mask[5] = False
    row, col = mask.nonzero(as_tuple=True)
    a = make(gnnsparse.SparseGraph.from_edge_index(torch.stack([col, row]), 30), device, reorder="degree")
    case = make_case(a, 8, 8, bias=(), is_causal=True)
    masked = a.indices()[0].cpu() == 7
    assert masked.any()
    case.bias.masked_fill_(masked, float("-inf"))
    results = run(a, case, fused=fused)
    out, dq, _, _, dbias = results
    empty = [0, 1, 2, 3, 4, 5, 7]
    assert (out[:, :, empty] == 0).all()
    assert (dq[:, :, empty] == 0).all()
    assert (dbias[masked] == 0).all()
    assert_all_accurate(results, plain(a, case), lambda: exact(a, case), floor=floor_in_parts(a, 8))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (6, 7)])
@pytest.mark.parametrize("precision", ["fp32", *EIGHT_BITS])
@pytest.mark.parametrize("fused", [True, False])
def test_empty_patterns(device: str, shape: tuple[int, int], precision: str, fused: bool) -> None:
    a = make(random_graph(*shape, 0.0), device, precision=precision)
    case = make_case(a, 4, 6, bias=(), dropout_p=0.5)
    out, *grads = run(a, case, fused=fused)
    assert out.shape == (2, 3, shape[0], 6)
    assert all((x == 0).all() for x in (out, *grads))


def test_no_heads(device: str) -> None:
    a = make(random_graph(6, 7, 0.5), device)
    out, *grads = run(a, make_case(a, 4, 6, lead=(0, 3)))
    assert out.shape == (0, 3, 6, 6)
    assert all(x.numel() == 0 for x in grads)


@given(data=st.data())
def test_property(device: str, data: st.DataObject) -> None:
    """Any shape, density, option and dtype: fused (where a kernel is) and unfused agree with float64."""
    draw = data.draw
    seed = draw(st.integers(0, 2**20))
    rows, cols = draw(st.integers(1, 40)), draw(st.integers(1, 60))
    graph = random_graph(
        rows, cols, draw(st.sampled_from([0.0, 0.1, 0.9])), seed=seed, hubs=draw(st.integers(0, 1)),
        empty_rows=draw(st.sampled_from([0.0, 0.3])),
    )  # fmt: skip
    precision = draw(st.sampled_from(PRECISIONS))
    a = make(graph, device, precision=precision, reorder=draw(st.sampled_from(["none", "degree"])))
    torch.manual_seed(seed)
    case = make_case(
        a, draw(st.integers(1, 40)), draw(st.integers(1, 40)), lead=(2, 2),
        bias=draw(st.sampled_from([None, (), (2,), (2, 1), (2, 2)])),
        dtype=draw(st.sampled_from([torch.float32, torch.float16, torch.bfloat16])),
        is_causal=draw(st.booleans()), dropout_p=draw(st.sampled_from([0.0, 0.4])),
    )  # fmt: skip
    fused = draw(st.booleans())
    if fused and a.nnz and not has_fused_kernel(a, case):
        with pytest.raises(ValueError, match="fused: got True, but there is no fused kernel here"):
            run(a, case, fused=True)
    else:
        check(a, case, few_roundings(a, case), fused=fused)


# The sources of the CUDA kernels over panels, run on the CPU.

TWO_PASSES = {f"cuda_attention_panel{name}" for name in ("", "_rows", "_columns")}
ONE_PASS = {f"cuda_attention_panel{name}" for name in ("", "_fused_backward")}


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("d", "precision"),
    [
        (8, "fp16"), (32, "fp16"), (33, "bf16"), (64, "fp16"), (128, "bf16"), (5, "tf32"), (32, "fp32"),
        (64, "tf32"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("pattern", [*PATTERNS, "cut"])
def test_panels_of_patterns(module: ModuleType, d: int, precision: str, pattern: str) -> None:
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


#: Whether panels are tall, where they are cut, and widths of keys and values; tall ones take no wide heads.
CUTS = list(itertools.product((False, True), (1, 2, 3, 1000), [(8, 64), (64, 24), (33, 40)]))
WIDE_CUTS = [(1000, (8, 128)), (3, (72, 100)), (1, (100, 72)), (2, (128, 128))]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize(("tall", "limit", "widths"), [*CUTS, *((False, *cut) for cut in WIDE_CUTS)], ids=str)
def test_panels_cut_anywhere(
    module: ModuleType, precision: str, tall: bool, limit: int, widths: tuple[int, int]
) -> None:
    """Panels of 16 and of 64 rows that share few columns, in another order than the caller's rows."""
    a = make(random_graph(75, 130, 0.2, hubs=2, empty_rows=0.2), "cpu", precision=precision, reorder="degree")
    plan = emulated.attention_plan(tall, limit)
    with emulated.running(module) as native:
        check(a, make_case(a, *widths, lead=(1, 1), scale=0.3), floor=rounding_of(a), plan=plan)
    assert native.called == TWO_PASSES
