"""The CPU kernels of graph attention and its gradients against float64, with every score, term and option."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import _native, masks
from gnnsparse.ops.attention import cpu
from gnnsparse.ops.attention.arguments import Arrays, GraphCall
from gnnsparse.testing import assert_all_accurate, random_graph
from tests.helpers import PRECISIONS, make
from tests.ops.graph_attention_oracle import Case, exact, few_roundings, make_case, plain, run, term_sizes

#: Scores with the terms that go with them, for 3 heads.
TERMS: list[dict[str, Any]] = [
    {},
    {"bias": 1},
    {"features": 3},
    {"features": 1, "to_values": False},
    {"features": 3, "to_keys": False, "bias": 3},
    {"gate": 3, "features": 1},
    {"gate": 1, "bias": 3},
    {"mapped": 5},
    {"mapped": 18, "to_values": False, "bias": 1},
    {"mapped": 3, "in_scores": False},
    {"score": "additive"},
    {"score": "additive", "features": 3, "bias": 1},
    {"score": "additive", "features": 1},
    {"score": "gatv2"},
    {"score": "gatv2", "features": 3, "bias": 3},
    {"score": "gatv2", "features": 1, "to_values": False, "negative_slope": 0.0},
    {"score": "gatv2", "features": 3, "to_keys": False, "negative_slope": -0.3},
]
#: Scores that stay small where they are not divided by their sum.
OPTIONS: list[dict[str, Any]] = [
    {},
    {"clamp": 0.4},
    {"normalize": False, "clamp": 1.5},
    {"is_causal": True, "dropout_p": 0.4, "grad_weights": True},
    {"normalize": False, "scale": 0.1, "dropout_p": 0.3, "grad_weights": True},
]


def check(a: gnnsparse.SparseOperand, case: Case, floor: float | None = None) -> list[torch.Tensor]:
    results = run(cpu, a, case)
    leaves = [x for x in case.arrays if x is not None]
    for grad, leaf in zip(results[-len(leaves) :], leaves, strict=True):
        assert grad.dtype == leaf.dtype
        assert grad.shape == leaf.shape
    assert_all_accurate(results, plain(a, case), lambda: exact(a, case), floor=floor)
    return results


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("terms", TERMS, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options(terms: dict[str, Any], options: dict[str, Any]) -> None:
    a = make(random_graph(61, 83, 0.1, hubs=2, empty_rows=0.2), "cpu", reorder="degree")
    check(a, make_case(a, 19, **{**terms, **options}))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("terms", TERMS, ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_precisions(terms: dict[str, Any], precision: str) -> None:
    a = make(random_graph(50, 45, 0.2, hubs=1, empty_rows=0.1), "cpu", precision=precision)
    check(a, make_case(a, 24, **terms), floor=few_roundings(a, make_case(a, 24)))


@pytest.mark.parametrize("terms", TERMS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_dtypes(terms: dict[str, Any], dtype: torch.dtype, precision: str) -> None:
    a = make(random_graph(50, 45, 0.2, hubs=1, empty_rows=0.1), "cpu", precision=precision)
    case = make_case(a, 12, dtype=dtype, grad_weights=True, **terms)
    check(a, case, floor=few_roundings(a, case))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("d", [1, 3, 8, 15, 16, 17, 33, 64, 100, 128, 200])
@pytest.mark.parametrize("heads", [1, 2, 5, 16])
@pytest.mark.parametrize("terms", [{"gate": 1, "bias": 1}, {"score": "gatv2", "features": 1}], ids=str)
def test_head_dimensions(d: int, heads: int, terms: dict[str, Any]) -> None:
    a = make(random_graph(70, 40, 0.1, hubs=1), "cpu")
    check(a, make_case(a, d, heads=heads, dropout_p=0.2, **terms))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("score", ["dot", "additive", "gatv2"])
@pytest.mark.parametrize("sizes", [(3, 70), (40, 1), (8, 0)])
def test_values_of_another_width(score: str, sizes: tuple[int, int]) -> None:
    a = make(random_graph(30, 40, 0.2), "cpu")
    check(a, make_case(a, *sizes, score=score, bias=3))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("terms", TERMS, ids=str)
@pytest.mark.parametrize("normalize", [True, False])
def test_long_rows(terms: dict[str, Any], normalize: bool) -> None:
    """Of many blocks, in which larger scores come later."""
    a = make(random_graph(6, 1100, 0.02, hubs=3), "cpu")
    case = make_case(a, 10, normalize=normalize, dropout_p=0.1, **terms)
    if "bias" in terms:
        rising = a.indices()[1][:, None] / 400 - 1.0
        case = case.with_arrays(bias=case.arrays.bias + rising)
    check(a, case, floor=few_roundings(a, case))


def test_large_scores_do_not_overflow() -> None:
    """What a score is off by, a weight is off by."""
    a = make(random_graph(40, 40, 0.2), "cpu")
    case = make_case(a, 16, 4, scale=100.0)
    row, column = a.indices()
    largest = 100 * (case.arrays.q[row] * case.arrays.k[column]).sum(2).abs().max().item()
    assert largest > 1000
    check(a, case, floor=largest * torch.finfo(torch.float32).eps)


@pytest.mark.parametrize("columns", [64, 300])
@pytest.mark.parametrize("options", [{}, {"dropout_p": 0.3, "grad_weights": True}], ids=str)
def test_gradients_of_large_scores_are_as_exact_as_in_torch(columns: int, options: dict[str, Any]) -> None:
    """Of scores of about 900 that float32 holds, in rows of one block and of several."""
    a = make(masks.full(64, columns), "cpu")
    case = make_case(a, 32, scale=0.25, **options)
    arrays = {"q": (30 * case.arrays.q).round(), "k": (30 * case.arrays.k).round()}
    case = case.with_arrays(**arrays)
    results = run(cpu, a, case)
    assert_all_accurate(results, plain(a, case), lambda: exact(a, case))
    if not options:
        sums = torch.zeros(64, 3).index_add(0, a.indices()[0], results[1])
        assert (sums - 1).abs().max() < 1e-5


def test_biases_of_any_size_leave_the_weights_of_a_row() -> None:
    """All edges of a row are masked by a large finite number, as some models do: they weigh the same."""
    a = make(random_graph(40, 50, 0.3, empty_rows=0.1), "cpu")
    case = make_case(a, 8, bias=1, grad_weights=True)
    case = case.with_arrays(k=torch.zeros_like(case.arrays.k), bias=torch.full_like(case.arrays.bias, -1e9))
    check(a, case)


def test_large_weights_without_softmax() -> None:
    """What a score is off by, its weight is off by, in relation to its size."""
    a = make(random_graph(40, 40, 0.2), "cpu")
    case = make_case(a, 16, 4, scale=20.0, clamp=60.0, normalize=False)
    check(a, case, floor=60 * few_roundings(a, case) / 8)


def test_weights_end_where_floats_do() -> None:
    one = make(random_graph(1, 1, 1.0), "cpu")

    def weight(score: float) -> float:
        ones = torch.ones(1, 1, 1)
        arrays = Arrays(torch.tensor([[score]]), torch.zeros(1, 1), ones)
        call = GraphCall(one, arrays, score="additive", negative_slope=1.0, normalize=False)
        return cpu.graph_forward(call).out.item()

    for score in (88.7, 88.3, 1.0, 0.0, -1.0, -87.0):
        assert weight(score) == pytest.approx(math.exp(torch.tensor(score).item()), rel=1e-6)
    assert [weight(score) for score in (89.0, 1e30, math.inf)] == [math.inf] * 3
    assert [weight(score) for score in (-90.0, -1e30, -math.inf)] == [0.0] * 3
    assert math.isnan(weight(math.nan))


@pytest.mark.parametrize(
    "terms", [{"clamp": 2.0}, {"score": "additive", "clamp": 1.0}, {"score": "gatv2"}], ids=str
)
def test_derivatives_where_functions_have_a_kink(terms: dict[str, Any]) -> None:
    """At 0 leaky_relu has the derivative that it has below; at its bounds the clamp has that of inside."""
    a = make(random_graph(40, 40, 0.3), "cpu")
    case = make_case(a, 4, scale=1.0, **terms)
    whole = {name: torch.randint(-1, 2, getattr(case.arrays, name).shape).float() for name in ("q", "k")}
    case = case.with_arrays(**whole)
    row, column = a.indices()
    scores = (whole["q"][row] * whole["k"][column]).sum(-1) if "score" not in terms else None
    assert scores is None or (scores.abs() == 2).any()
    check(a, case)


def mask_some(a: gnnsparse.SparseOperand, case: Case) -> torch.Tensor:
    """Masks a third of the edges of each head by the bias, and all of rows 0 to 2; returns the mask."""
    assert case.arrays.bias is not None
    masked = torch.rand(a.nnz, case.arrays.bias.shape[1]) < 0.3
    masked |= (a.indices()[0].cpu() < 3)[:, None]
    case.arrays.bias.masked_fill_(masked, float("-inf"))
    return masked


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("terms", [x for x in TERMS if "bias" in x], ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_masked_edges(terms: dict[str, Any], options: dict[str, Any]) -> None:
    a = make(random_graph(50, 60, 0.2, hubs=1, empty_rows=0.1), "cpu", reorder="degree")
    case = make_case(a, 12, **{**terms, **options})
    masked = mask_some(a, case)
    results = check(a, case)
    dbias = results[case.names.index("bias") - len(case.names)]
    assert (results[0][:3] == 0).all()
    assert (dbias[masked] == 0).all()


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("terms", TERMS, ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_what_is_masked_is_not_read(terms: dict[str, Any], is_causal: bool) -> None:
    """NaN and infinity of sources that no edge may see change nothing, in results and gradients."""
    a = make(random_graph(40, 40, 0.3), "cpu")
    terms = {**terms, "bias": 1}
    case = make_case(a, 9, is_causal=is_causal, **terms)
    row, column = a.indices()
    hidden = (column > row) if is_causal else (column % 4 == 1)
    sources = torch.arange(40) == 39 if is_causal else torch.arange(40) % 4 == 1
    if is_causal:
        hidden |= column == 39
    case.arrays.bias.masked_fill_(((column == 39) if is_causal else hidden)[:, None], float("-inf"))
    broken = {}
    for name, where in (
        ("k", sources),
        ("v", sources),
        ("features", hidden),
        ("gate", hidden),
        ("mapped", hidden),
    ):
        x = getattr(case.arrays, name)
        if x is not None:
            broken[name] = x.clone()
            broken[name][where] = float("nan") if name != "v" else float("inf")
    for clean, got in zip(run(cpu, a, case), run(cpu, a, case.with_arrays(**broken)), strict=True):
        assert torch.equal(clean, got)


def test_masked_rows_may_hold_nan() -> None:
    """A query whose edges are all masked gives zeros, whatever it and its gradient are."""
    a = make(random_graph(30, 20, 0.4), "cpu")
    for terms in ({"mapped": 4}, {"score": "gatv2", "features": 3}, {"gate": 3}):
        case = make_case(a, 6, bias=1, **terms)
        case.arrays.bias[a.indices()[0] == 4] = float("-inf")
        broken = {"q": case.arrays.q.clone()}
        broken["q"][4] = float("nan")
        if case.arrays.mapped_q is not None:
            broken["mapped_q"] = case.arrays.mapped_q.clone()
            broken["mapped_q"][4] = float("nan")
        for clean, got in zip(run(cpu, a, case), run(cpu, a, case.with_arrays(**broken)), strict=True):
            assert torch.equal(clean, got)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (6, 7)])
@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_empty_patterns(shape: tuple[int, int], terms: dict[str, Any]) -> None:
    a = make(random_graph(*shape, 0.0), "cpu")
    for x in run(cpu, a, make_case(a, 4, dropout_p=0.5, **terms)):
        assert (x == 0).all()


def test_results_do_not_depend_on_the_number_of_threads(threads: None) -> None:
    a = make(random_graph(700, 500, 0.05, hubs=3, empty_rows=0.1), "cpu", reorder="degree")
    for terms in (
        {"gate": 1, "features": 3, "bias": 3},
        {"score": "gatv2", "features": 1},
        {"score": "additive"},
    ):
        case = make_case(a, 20, dropout_p=0.2, **terms)
        torch.set_num_threads(1)
        first = run(cpu, a, case)
        for count in (1, 2, 5):
            torch.set_num_threads(count)
            assert all(torch.equal(x, y) for x, y in zip(first, run(cpu, a, case), strict=True))


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_strides(terms: dict[str, Any]) -> None:
    """Tensors of any strides give the same, bit for bit."""
    a = make(random_graph(40, 50, 0.2), "cpu", precision="fp16")
    case = make_case(a, 12, grad_weights=True, **terms)

    def strided(x: torch.Tensor | None) -> torch.Tensor | None:
        if x is None:
            return None
        wide = torch.full((*x.shape[:-1], 2 * x.shape[-1] + 1), float("nan"), dtype=x.dtype)
        wide[..., 1::2] = x
        return wide[..., 1::2]

    other = Case(
        Arrays(*(strided(x) for x in case.arrays)), strided(case.grad_out), strided(case.grad_mapped),
        strided(case.grad_weights), case.options,
    )  # fmt: skip
    first_heads = [None if x is None or x.dim() < 3 else x.mT.contiguous().mT for x in case.arrays]
    turned = case.with_arrays(
        **{n: x for n, x in zip(Arrays._fields, first_heads, strict=True) if x is not None}
    )
    for same in (other, turned):
        for x, y in zip(run(cpu, a, case), run(cpu, a, same), strict=True):
            assert torch.equal(x, y)


@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_gradients_that_are_not_needed(terms: dict[str, Any]) -> None:
    """Each alone is what it is among all, and the others are None."""
    a = make(random_graph(30, 40, 0.2), "cpu")
    case = make_case(a, 8, **terms)
    call = case.call(a)
    result = cpu.graph_forward(call)
    given = (case.grad_out, case.grad_mapped, case.grad_weights)
    full = cpu.graph_backward(call, result, *given, (True,) * len(Arrays._fields))
    for name in Arrays._fields:
        needs = tuple(field == name for field in Arrays._fields)
        for field, x in cpu.graph_backward(call, result, *given, needs)._asdict().items():
            if field == name and getattr(full, name) is not None:
                assert torch.equal(x, getattr(full, name))
            else:
                assert x is None


@pytest.mark.parametrize("isa", ["portable", "avx2", "avx512"])
@pytest.mark.parametrize("terms", TERMS, ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_instruction_sets(isa: str, terms: dict[str, Any], precision: str) -> None:
    if not _native.set_cpu_isa(isa):
        pytest.skip(f"this machine has no {isa}")
    try:
        a = make(random_graph(40, 60, 0.3, hubs=1, empty_rows=0.1), "cpu", precision=precision)
        for d in (5, 37):
            case = make_case(a, d, dropout_p=0.3, clamp=0.9, **terms)
            check(a, case, floor=few_roundings(a, case))
            check(a, replace(case, options={**case.options, "normalize": False}), few_roundings(a, case))
    finally:
        _native.set_cpu_isa("auto")


def draw_case(draw: Any, device: str) -> tuple[gnnsparse.SparseOperand, Case]:
    """A random operand, of any shape and density, and arguments with any options and terms."""
    rows, cols = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    graph = random_graph(
        rows, cols, draw(st.floats(0, 1)), seed=draw(st.integers(0, 99)), hubs=draw(st.integers(0, 2)),
        empty_rows=draw(st.sampled_from([0.0, 0.5])),
    )  # fmt: skip
    precision = draw(st.sampled_from(PRECISIONS))
    a = make(graph, device, precision=precision, reorder=draw(st.sampled_from(["none", "degree"])))
    heads = draw(st.integers(1, 16))
    shared = st.sampled_from([None, 1, heads])
    score = draw(st.sampled_from(["dot", "additive", "gatv2"]))
    options: dict[str, Any] = {"score": score, "bias": draw(shared), "heads": heads}
    if score == "dot" and draw(st.booleans()):
        options |= {"mapped": draw(st.integers(1, 20)), "in_scores": draw(st.booleans())}
    else:
        options |= {"features": draw(shared), "gate": draw(shared) if score == "dot" else None}
    options |= {
        "clamp": draw(st.sampled_from([0.0, 0.5])),
        "is_causal": draw(st.booleans()),
        "dropout_p": draw(st.sampled_from([0.0, 0.4])),
        "grad_weights": draw(st.booleans()),
    }
    options["normalize"] = options["clamp"] == 0.0 or draw(st.booleans())
    case = make_case(a, draw(st.integers(1, 128)), **options)
    if options["bias"] is not None and draw(st.booleans()):
        mask_some(a, case)
    return a, case


@given(data=st.data())
def test_property(data: st.DataObject) -> None:
    """Any shape, density, option, term and precision agrees with float64."""
    a, case = draw_case(data.draw, "cpu")
    results = plain(a, case), lambda: exact(a, case)
    assert_all_accurate(run(cpu, a, case), *results, floor=few_roundings(a, case), scales=term_sizes(a, case))
