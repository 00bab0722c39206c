"""The CUDA kernels of graph attention against float64: emulated on the CPU, and on a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import masks
from gnnsparse.ops.attention import cuda_rows
from gnnsparse.ops.attention.arguments import AttentionCall
from gnnsparse.plan import CsrAttentionPlan
from gnnsparse.testing import assert_all_accurate, random_graph
from tests import emulated
from tests.helpers import PRECISIONS, ROUNDING, make
from tests.ops import attention_oracle
from tests.ops.graph_attention_oracle import Case, exact, few_roundings, make_case, plain, run, term_sizes
from tests.ops.test_attention import OPTIONS as ATTENTION_OPTIONS
from tests.ops.test_graph_attention_cpu import OPTIONS, TERMS, draw_case, mask_some


@pytest.fixture(
    params=[pytest.param("emulated", marks=pytest.mark.slow), pytest.param("cuda", marks=pytest.mark.gpu)]
)
def where(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device of the operands: a GPU, or the CPU on the path of one, with copies that come late."""
    if request.param == "cuda":
        yield "cuda"
        return
    with emulated.running(request.getfixturevalue("late")):
        yield "cpu"


def check(a: gnnsparse.SparseOperand, case: Case) -> list[torch.Tensor]:
    results = run(cuda_rows, a, case)
    leaves = [x for x in case.arrays if x is not None]
    for grad, leaf in zip(results[-len(leaves) :], leaves, strict=True):
        assert (grad.dtype, grad.shape) == (leaf.dtype, leaf.shape)
    floor = few_roundings(a, case)
    assert_all_accurate(
        results, plain(a, case), lambda: exact(a, case), floor=floor, scales=term_sizes(a, case)
    )
    return results


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("terms", TERMS, ids=str)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options(where: str, terms: dict[str, Any], options: dict[str, Any]) -> None:
    a = make(random_graph(31, 43, 0.2, hubs=1, empty_rows=0.2), where, precision="fp16", reorder="degree")
    case = make_case(a, 12, **terms, **options)
    if "bias" in terms:
        mask_some(a, case)
    check(a, case)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("sizes", [(1, 1), (1, 64), (2, 33), (5, 8), (8, 16), (16, 7), (3, 128)], ids=str)
@pytest.mark.parametrize(
    "terms", [{"gate": 1, "bias": 1}, {"score": "gatv2"}, {"score": "additive"}], ids=str
)
def test_head_dimensions(where: str, precision: str, sizes: tuple[int, int], terms: dict[str, Any]) -> None:
    a = make(random_graph(30, 41, 0.15, hubs=1), where, precision=precision)
    check(a, make_case(a, sizes[1], heads=sizes[0], **terms))


@pytest.mark.parametrize("score", ["dot", "additive"])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
def test_biases_of_any_size_leave_the_weights_of_a_row(where: str, precision: str, score: str) -> None:
    """All edges of a row are masked by a large finite number, as some models do: they weigh the same."""
    a = make(random_graph(30, 41, 0.3, empty_rows=0.1), where, precision=precision)
    case = make_case(a, 8, score=score, bias=1, grad_weights=True)
    zero = {name: torch.zeros_like(getattr(case.arrays, name)) for name in ("q", "k")}
    if score == "dot":
        del zero["q"]
    check(a, case.with_arrays(**zero, bias=torch.full_like(case.arrays.bias, -1e9)))


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_scores_of_any_size_leave_the_weights_of_tiles(where: str, score: str) -> None:
    """Equal scores of 2^20, of which the logarithm of a row's sum would leave 1 / 16."""
    a = make(random_graph(30, 41, 0.3, empty_rows=0.1), where, precision="fp16")
    case = make_case(a, 16, heads=8, score=score, scale=1.0)
    shape = case.arrays.q.shape
    large = {"q": torch.full(shape, 256.0), "k": torch.full((41, *shape[1:]), 256.0)}
    if score == "additive":
        large = {name: 2048.0 * x for name, x in large.items()}
    check(a, case.with_arrays(**large))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("score", ["dot", "additive", "gatv2"])
@pytest.mark.parametrize("sizes", [(3, 70), (40, 1)])
def test_values_of_another_width(where: str, score: str, sizes: tuple[int, int]) -> None:
    a = make(random_graph(30, 41, 0.15), where, precision="bf16")
    check(a, make_case(a, *sizes, score=score))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_long_rows(where: str, terms: dict[str, Any]) -> None:
    """Rows that are cut, between others that the same warp takes, and their columns."""
    rows, cols = (40, 700) if where == "cuda" else (12, 300)
    a = make(random_graph(rows, cols, 0.02, hubs=3, empty_rows=0.3), where, precision="fp32")
    check(a, make_case(a, 8, **terms))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1), (6, 7)])
@pytest.mark.parametrize("terms", TERMS, ids=str)
def test_empty_patterns(where: str, shape: tuple[int, int], terms: dict[str, Any]) -> None:
    a = make(random_graph(*shape, 0.0), where)
    for x in run(cuda_rows, a, make_case(a, 4, dropout_p=0.5, **terms)):
        assert (x == 0).all()


def test_heads_that_no_warp_holds_run_unfused(where: str) -> None:
    a = make(random_graph(20, 30, 0.2), where, precision="fp32")
    check(a, make_case(a, 150, heads=2))


@pytest.mark.parametrize("terms", TERMS[::3], ids=str)
def test_results_repeat(where: str, terms: dict[str, Any]) -> None:
    rows = 3000 if where == "cuda" else 40
    a = make(random_graph(rows, rows, 30 / rows, hubs=1), where, precision="fp16")
    case = make_case(a, 16, dropout_p=0.2, **terms)
    first = run(cuda_rows, a, case)
    assert all(torch.equal(x, y) for x, y in zip(first, run(cuda_rows, a, case), strict=True))


def test_what_is_masked_is_not_read(where: str) -> None:
    """Edges that do not count may lead to infinite keys and values."""
    a = make(masks.full(6, 6), where, precision="fp16")
    case = make_case(a, 8, is_causal=True)
    for x in (case.arrays.k, case.arrays.v):
        assert x is not None
        x[5] = float("inf")
    out, *_ = run(cuda_rows, a, case)
    assert torch.isfinite(out[:5]).all()


#: Heads and their features: whole blocks of heads of the kernels of tiles, and parts of one.
TILES = [
    (8, 8),
    (16, 8),
    (4, 8),
    (8, 16),
    (5, 16),
    (12, 16),
    (4, 32),
    (3, 32),
    (6, 32),
    (2, 64),
    (1, 64),
    (3, 64),
]


@pytest.fixture
def takes_tiles(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, bool]]:
    """For each pass whether it is forward, and whether it runs over tiles."""
    taken: list[tuple[bool, bool]] = []
    decide = cuda_rows._takes_tiles

    def spy(call: Any, forward: bool) -> bool:
        taken.append((forward, decide(call, forward)))
        return taken[-1][1]

    monkeypatch.setattr(cuda_rows, "_takes_tiles", spy)
    return taken


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("score", ["dot", "additive"])
@pytest.mark.parametrize("sizes", TILES, ids=str)
def test_tiles(
    where: str, takes_tiles: list[tuple[bool, bool]], monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, int],
    score: str, precision: str,
) -> None:  # fmt: skip
    """Tensor Core products of sixteen edges: rows of any length, cut ones, empty ones, and their columns."""
    monkeypatch.setattr(cuda_rows, "tiles_are_faster", lambda *_: True)
    a = make(random_graph(43, 390, 0.05, hubs=2, empty_rows=0.2), where, precision=precision)
    check(a, make_case(a, sizes[1], heads=sizes[0], score=score, dtype=a.precision.storage))
    assert takes_tiles == [(True, score == "additive"), (False, True)]


@pytest.mark.parametrize(
    ("sizes", "score", "forward", "backward"),
    [
        ((8, 16), "dot", False, True),
        ((8, 16), "additive", True, True),
        ((8, 16), "gatv2", False, False),
        ((8, 8), "additive", False, True),
        ((4, 8), "additive", False, False),
        ((16, 16), "dot", False, False),
        ((5, 16), "additive", True, True),
        ((2, 64), "additive", True, True),
        ((8, 12), "dot", False, False),
    ],
)
def test_which_calls_take_tiles(
    where: str, sizes: tuple[int, int], score: str, forward: bool, backward: bool
) -> None:
    a = make(random_graph(20, 30, 0.2), where, precision="fp16")
    call = make_case(a, sizes[1], heads=sizes[0], score=score, dtype=torch.float16).call(a)
    assert (cuda_rows._takes_tiles(call, True), cuda_rows._takes_tiles(call, False)) == (forward, backward)
    single = make(random_graph(20, 30, 0.2), where, precision="fp32")
    call = make_case(single, sizes[1], heads=sizes[0], score=score).call(single)
    assert not cuda_rows._takes_tiles(call, False)


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_tiles_give_results_in_any_dtype(
    where: str, takes_tiles: list[tuple[bool, bool]], score: str
) -> None:
    """Results of float32 tensors are float32 in the operand's precision."""
    a = make(random_graph(40, 60, 0.2), where, precision="fp16")
    results = check(a, make_case(a, 16, heads=8, score=score))
    assert all(x.dtype == torch.float32 for x in results)
    assert takes_tiles == [(True, score == "additive"), (False, True)]


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_tiles_repeat(where: str, takes_tiles: list[tuple[bool, bool]], score: str) -> None:
    rows = 3000 if where == "cuda" else 60
    a = make(random_graph(rows, rows, 30 / rows, hubs=1), where, precision="fp16")
    case = make_case(a, 16, heads=8, score=score)
    first = run(cuda_rows, a, case)
    assert all(torch.equal(x, y) for x, y in zip(first, run(cuda_rows, a, case), strict=True))
    assert all(taken for forward, taken in takes_tiles if not forward)


@pytest.mark.parametrize(
    "options", [{"is_causal": True}, {"clamp": 0.5}, {"normalize": False}, {"dropout_p": 0.3}], ids=str
)
def test_what_tiles_do_not_have_runs_edge_by_edge(
    where: str, takes_tiles: list[tuple[bool, bool]], options: dict[str, Any]
) -> None:
    a = make(random_graph(40, 60, 0.2), where, precision="fp16")
    check(a, make_case(a, 16, heads=8, **options))
    assert takes_tiles == [(True, False), (False, False)]


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_an_infinite_value_stays_in_its_rows(where: str, score: str) -> None:
    """Rows of other edges in the same warp and memory are finite."""
    graph = random_graph(40, 60, 0.1, hubs=1)
    a = make(graph, where, precision="fp16")
    case = make_case(a, 16, heads=8, score=score)
    assert case.arrays.v is not None
    case.arrays.v[7] = float("inf")
    out, *_ = run(cuda_rows, a, case)
    has_it = torch.from_numpy(graph.to_scipy().toarray()[:, 7] != 0).to(out.device)
    assert has_it.any()
    assert torch.isfinite(out[~has_it]).all()
    assert not torch.isfinite(out[has_it]).any()


@settings(max_examples=25)
@given(data=st.data())
def test_property(where: str, data: st.DataObject) -> None:
    """Any shape, density, option, term and precision agrees with float64."""
    a, case = draw_case(data.draw, where)
    check(a, case)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("options", ATTENTION_OPTIONS, ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_attention_over_rows(where: str, options: dict[str, Any], precision: str) -> None:
    """gnnsparse.attention by these kernels, for batches of heads."""
    a = make(random_graph(31, 43, 0.2, hubs=1, empty_rows=0.2), where, precision=precision)
    case = attention_oracle.make_case(a, 12, 20, lead=(2, 3), **options)
    results = attention_oracle.run(a, case, plan=CsrAttentionPlan())
    floor = max(2 * ROUNDING[precision], 2e-6)
    assert_all_accurate(
        results, attention_oracle.plain(a, case), attention_oracle.exact(a, case), floor=floor
    )


@pytest.mark.parametrize("interleaved", [False, True])
def test_attention_over_rows_has_the_strides_that_compiled_programs_expect(
    where: str, interleaved: bool
) -> None:
    a = make(random_graph(31, 43, 0.2), where, precision="fp32")

    def draw(n: int) -> torch.Tensor:
        if interleaved:
            return torch.randn(2, n, 3, 8, device=a.device).transpose(1, 2)
        return torch.randn(2, 3, n, 8, device=a.device)

    q = draw(31)
    out, stats = cuda_rows.forward(AttentionCall(a, q, draw(43), draw(43), None, None, 1.0, 0.0, False))
    assert out.stride() == q.stride()
    assert stats.is_contiguous()
