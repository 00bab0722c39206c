"""attention and its gradients against float64 with every option; how it is called, dropout, mistakes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint

import gnnsparse
from gnnsparse import Precision, _native, masks
from gnnsparse.ops.attention import unfused
from gnnsparse.ops.attention.arguments import AttentionCall, to_edges, to_heads
from gnnsparse.ops.attention.philox import draw_seed, dropout_threshold, keeps, philox4x32
from gnnsparse.ops.attention.schema import run_backward, run_forward
from gnnsparse.plan import AttentionGradPlan, AttentionPlan, CsrAttentionPlan, Plan, UnfusedPlan
from gnnsparse.plan import attention as attention_plan
from gnnsparse.plan.gpu_records import record_for, save_record
from gnnsparse.runtime import device as device_module
from gnnsparse.runtime.device import Device, path
from gnnsparse.sparse.kernel_cache import Product
from gnnsparse.testing import assert_accurate, assert_all_accurate, random_graph
from tests import emulated
from tests.gpu_paths import H200, StandInPath
from tests.helpers import PRECISIONS, ROUNDING, make
from tests.ops.attention_oracle import (
    SEED,
    Case,
    exact,
    exact_scores,
    few_roundings,
    log_sum_exp,
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


def rounding_of(a: gnnsparse.SparseOperand) -> float:
    """What one element may be off: scores' gradients are rounded once more."""
    return max(1.5 * torch.finfo(a.precision.storage).eps, 2e-6)


def floor_in_parts(a: gnnsparse.SparseOperand, *widths: int) -> float | None:
    """The `floor` of what the fused kernels take in fp32, as sums of two tf32 parts; None of all else."""
    fused = max(widths) <= 32 and a.precision == Precision.FP32 and path().takes(a.device)
    return rounding_of(a) if fused else None


def plans(device: str) -> list[Plan | None]:
    """Plans of each fused kernel of a device for any pattern; which of a GPU's runs depends on strides."""
    if not device.startswith("cuda"):
        return [None]
    return [AttentionPlan(backward=AttentionGradPlan()), CsrAttentionPlan()]


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


#: Features of keys and of values where they differ.
OTHER_WIDTHS = [(3, 70), (40, 1), (0, 8), (8, 0)]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("sizes", [*((d, d) for d in (1, 5, 16, 32, 33, 64, 100, 128, 160)), *OTHER_WIDTHS])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_head_dimensions(device: str, sizes: tuple[int, int], precision: str) -> None:
    graph = random_graph(75, 75, 0.1, hubs=1, symmetric=sizes[0] % 3 == 1)
    a = make(graph, device, precision=precision)
    check(a, make_case(a, *sizes, bias=(3,), dropout_p=0.2))


#: Rows that share few columns; strips of 8 that share all, whose transpose shares few, with enough of them
#: for tiles of dK and dV and with fewer; and patterns whose rows share nearly all: of those a panel has 64.
PATTERNS = {
    "graph": lambda: random_graph(75, 90, 0.1, hubs=1, empty_rows=0.1),
    "strips": lambda: masks.vector_wise(300, 0.95, 8, seed=3, keys=1200),
    "thin strips": lambda: masks.vector_wise(300, 0.98, 8, seed=3, keys=1200),
    "window": lambda: masks.window(300, 128),
    "blocks": lambda: masks.block(
        torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]]) != 0, 64, 150, 230
    ),
    "long": lambda: masks.full(120, 3000),
}


def test_heads_that_lie_apart_cost_kernels_over_rows_more() -> None:
    """The model knows from strides whether an edge's heads are read together."""
    a = make(random_graph(400, 300, 0.03), "cpu", precision="fp16")

    def product(*shape: int, beside: bool = False, dtype: torch.dtype = torch.float16) -> Product:
        batch, heads, d = shape
        if beside:
            q, k = (torch.zeros(batch, n, heads, d, dtype=dtype).transpose(1, 2) for n in a.shape)
        else:
            q, k = (torch.zeros(batch, heads, n, d, dtype=dtype) for n in a.shape)
        return AttentionCall(a, q, k, k, None, None, 1.0, 0.0, False).product("attention")

    assert product(2, 3, 16).head_places == product(1, 6, 16).head_places == 6
    # Heads of two batch entries are put into one dimension by a copy of each head.
    assert product(2, 3, 16, beside=True).head_places == 6
    assert product(1, 3, 16, beside=True).head_places == product(1, 1, 16).head_places == 1
    # Copies that kernels ask for lie node by node.
    assert product(2, 3, 9).head_places == product(2, 3, 16, dtype=torch.float32).head_places == 1
    with device_module.use(StandInPath(None)):
        apart, beside = (
            attention_plan._rows_us(a.kernels.problem(of))  # type: ignore[arg-type]
            for of in (product(1, 8, 16), product(1, 8, 16, beside=True))
        )
    assert apart > 1.2 * beside


#: Head widths, precisions and patterns: all of a GPU's kernels; on a CPU one kernel takes every pattern.
WIDTHS, FEW_BITS = (8, 32, 33, 64, 100, 128), ("fp16", "bf16", "tf32")
ON_CPU = [("cpu", WIDTHS[i % 6], FEW_BITS[i % 3], p) for i, p in enumerate([*PATTERNS] * 3)]
ON_GPU = [
    pytest.param("cuda", *case, marks=pytest.mark.gpu)
    for case in itertools.product(WIDTHS, FEW_BITS, PATTERNS)
]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("device", "d", "precision", "pattern"), [*ON_CPU, *ON_GPU])
def test_patterns(device: str, d: int, precision: str, pattern: str) -> None:
    a = make(PATTERNS[pattern](), device, precision=precision)
    assert shares_rows(a) == (pattern not in ("graph", "strips", "thin strips"))
    lead = (1, 2) if device == "cpu" else (2, 1) if pattern == "long" else (2, 3)
    case = make_case(a, d, d, lead=lead, scale=-0.2 if d == 8 else None)
    check(a, case, floor=rounding_of(a) if device == "cuda" else None)


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


@pytest.mark.parametrize("d", [7, 16, 33, 100])
def test_large_scores(device: str, d: int) -> None:
    """None overflows, and columns have the weights of rows: in the gradient of v, 1 has to stay 1."""
    a = make(random_graph(40, 40, 0.2), device)
    case = make_case(a, d, 8, lead=(1, 1), scale=100.0)
    floor = None
    if device == "cuda":
        # What a score is off by, a weight is off by: roundings of q and k, and the product that is left out.
        scores = exact_scores(a, case)
        floor = 3 * ROUNDING["fp32"] * float(scores[scores.isfinite()].abs().max())
    assert_all_accurate(run(a, case), plain(a, case), lambda: exact(a, case), floor=floor)


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


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_biases_of_any_size_leave_the_weights_of_a_row(device: str, precision: str) -> None:
    """All edges of a row are masked by a large finite number, as some models do: they weigh the same."""
    a = make(random_graph(40, 50, 0.3, empty_rows=0.1), device, precision=precision)
    case = make_case(a, 8, 8, bias=())
    case = replace(case, k=torch.zeros_like(case.k), bias=torch.full_like(case.bias, -1e9))
    for plan in plans(device):
        check(a, case, floor_in_parts(a, 8), plan=plan)


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
@pytest.mark.parametrize("precision", ["fp32", *EIGHT_BITS])
@pytest.mark.parametrize("fused", [True, False])
def test_nothing_to_attend_to(device: str, precision: str, fused: bool) -> None:
    """Patterns without edges, and no heads."""
    for *shape, density, batches in [(0, 5, 0, 2), (5, 0, 0, 2), (1, 1, 0, 2), (6, 7, 0, 2), (6, 7, 0.5, 0)]:
        a = make(random_graph(*shape, density), device, precision=precision)
        case = make_case(a, 4, 6, lead=(batches, 3), bias=(), dropout_p=0.5)
        out, *grads = run(a, case, fused=fused)
        assert out.shape == (batches, 3, shape[0], 6)
        assert all((x == 0).all() for x in (out, *grads))


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


# How it is called: shapes and strides, weights, repeatability.


@pytest.fixture
def operand(device: str) -> gnnsparse.SparseOperand:
    graph = random_graph(37, 52, 0.2, hubs=1, empty_rows=0.1)
    return make(graph, device, reorder="degree")


def tensors(a: gnnsparse.SparseOperand, *lead: int, d: int = 8) -> list[torch.Tensor]:
    rows, cols = a.shape
    return [torch.randn(*lead, n, d, device=a.device) for n in (rows, cols, cols)]


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3), (2, 1, 2, 3)])
@pytest.mark.parametrize("fused", [True, False])
def test_leading_dimensions(operand: gnnsparse.SparseOperand, lead: tuple[int, ...], fused: bool) -> None:
    """Each head on its own gives what all give together."""
    q, k, v = tensors(operand, *lead)
    bias = torch.randn(*lead, operand.nnz, device=operand.device)
    out = gnnsparse.attention(operand, q, k, v, bias=bias, fused=fused)
    assert out.shape == (*lead, 37, 8)
    count = max(1, out.shape[:-2].numel())
    parts = [x.reshape(count, *x.shape[-2:]) for x in (q, k, v, out)]
    for i, b in enumerate(bias.reshape(count, -1)):
        alone = gnnsparse.attention(operand, *(x[i] for x in parts[:3]), bias=b, fused=fused)
        # One head may run by another kernel than many, which adds in another order.
        torch.testing.assert_close(alone, parts[3][i], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("leads", "bias"),
    [
        (((2, 3), (1, 3), (2, 1)), None),
        (((1, 1), (2, 3), (2, 3)), None),
        (((3,), (2, 3), (2, 1)), None),
        (((2, 3), (), ()), None),
        *(
            (((2, 2, 2, 3),) * 3, bias)
            for bias in [(), (3,), (1,), (2, 1, 1, 3), (2, 2, 1, 3), (1, 2, 3), (1, 1, 1, 1), (2, 1, 3)]
        ),
    ],
)
def test_leading_sizes_are_broadcast(
    operand: gnnsparse.SparseOperand, leads: tuple[tuple[int, ...], ...], bias: tuple[int, ...] | None
) -> None:
    """q, k, v and a bias give what they give when expanded, and get the sums of gradients."""

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *bias: torch.Tensor, **how: Any) -> Any:
        return gnnsparse.attention(operand, q, k, v, bias=bias[0] if bias else None, **how)

    whole = leads[0] if bias is not None else (2, 3)
    sizes = [x.shape for x in tensors(operand)]
    if bias is not None:
        leads, sizes = (*leads, bias), [*sizes, torch.Size([operand.nnz])]
    leaves = [
        torch.randn(*lead, *size, device=operand.device, requires_grad=True)
        for lead, size in zip(leads, sizes, strict=True)
    ]
    expanded = [x.expand(*whole, *size).contiguous() for x, size in zip(leaves, sizes, strict=True)]
    wide = [x.detach().double().requires_grad_() for x in leaves]
    exact = torch.autograd.grad(attend(*wide, impl="reference").sin().sum(), wide)
    for plan in plans(str(operand.device)):
        got, want = attend(*leaves, plan=plan), attend(*expanded, plan=plan)
        assert torch.equal(got, want)
        grads, plain = (torch.autograd.grad(x.sin().sum(), leaves) for x in (got, want))
        assert_all_accurate(grads, plain, exact, floor=floor_in_parts(operand, 8))


def test_folding_copies_nothing_that_need_not_be() -> None:
    x = torch.randn(2, 7, 3, 5).transpose(1, 2)
    for view, lead in ((x, (2, 3)), (x[0], (3,)), (x[0, 0], ())):
        folded = to_heads(view, lead)
        assert folded.dim() == 4
        assert folded.data_ptr() == view.data_ptr()
    many = torch.randn(2, 4, 7, 3, 5).transpose(2, 3)
    assert to_heads(many, (2, 4, 3)).data_ptr() == many.data_ptr()
    assert to_edges(torch.randn(9), (4, 2, 3)).shape == (1, 1, 9)
    assert to_edges(torch.randn(2, 1, 3, 9), (2, 4, 3)).shape == (8, 3, 9)
    assert to_edges(torch.randn(1, 1, 3, 9), (2, 4, 3)).shape == (1, 3, 9)


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "heads inside rows": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "every second row": lambda x: x.repeat_interleave(2, 2)[:, :, ::2],
    "every second feature": lambda x: x.repeat_interleave(2, 3)[..., ::2],
    "columns first": lambda x: x.mT.contiguous().mT,
    "from the middle": lambda x: torch.cat([x, x, x], 3)[..., x.shape[3] : 2 * x.shape[3]],
    "one number": lambda x: x[..., :1, :1].expand_as(x),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_strides(device: str, layout: str, precision: str) -> None:
    a = make(random_graph(30, 40, 0.2, hubs=1), device, precision=precision)
    case = make_case(a, 7, 9, bias=(2, 3), dtype=torch.float16 if precision == "fp16" else torch.float32)
    other = {name: LAYOUTS[layout](getattr(case, name)) for name in ("q", "k", "v", "grad")}
    wide = torch.stack([case.bias, torch.zeros_like(case.bias)], -1)[..., 0]
    for plan in plans(device):
        got = run(a, replace(case, **other, bias=wide), plan=plan)
        same = run(a, replace(case, **{name: x.contiguous() for name, x in other.items()}), plan=plan)
        assert all(map(torch.equal, got, same))
        assert got[0].transpose(1, 2).is_contiguous() == (layout == "heads inside rows")


def test_expanded_gradient(operand: gnnsparse.SparseOperand) -> None:
    q, k, v = (x.requires_grad_() for x in tensors(operand, 3))
    out = gnnsparse.attention(operand, q, k, v)
    got = torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True)
    assert all(map(torch.equal, got, torch.autograd.grad(out, (q, k, v), torch.ones_like(out))))


@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (3,), (0, 2), (1, 3)])
def test_only_the_gradients_that_are_asked_for(
    operand: gnnsparse.SparseOperand, wanted: tuple[int, ...]
) -> None:
    arguments = [*tensors(operand, 2), torch.randn(operand.nnz, device=operand.device)]

    def grads(leaves: tuple[int, ...]) -> list[torch.Tensor]:
        mine = [x.clone().requires_grad_(i in leaves) for i, x in enumerate(arguments)]
        out = gnnsparse.attention(operand, *mine[:3], bias=mine[3])
        out.sin().sum().backward()
        assert all((x.grad is not None) == (i in leaves) for i, x in enumerate(mine))
        return [mine[i].grad for i in wanted]

    for got, want in zip(grads(wanted), grads((0, 1, 2, 3)), strict=True):
        assert torch.equal(got, want)


def test_nothing_of_the_size_of_edges_times_heads_is_kept(device: str) -> None:
    a = make(random_graph(60, 60, 0.9), device)
    q, k, v = (torch.randn(8, 60, 4, device=device, requires_grad=True) for _ in range(3))
    kept: list[int] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        kept.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        gnnsparse.attention(a, q, k, v, dropout_p=0.1)
    assert kept
    assert sum(kept) <= 5 * q.numel()
    assert a.nnz > 5 * q.numel() // 8


@pytest.mark.usefixtures("any_threads")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("options", [{}, {"bias": (), "dropout_p": 0.3, "is_causal": True}], ids=str)
@pytest.mark.parametrize("pattern", ["graph", "strips", "window"])
def test_same_bits_in_every_run(device: str, precision: str, options: dict[str, Any], pattern: str) -> None:
    a = make(PATTERNS[pattern](), device, precision=precision)
    case = make_case(a, 32, 32, **options)
    first = run(a, case)
    for count in (torch.get_num_threads(), 1, 3):
        torch.set_num_threads(count)
        for got, want in zip(run(a, case), first, strict=True):
            assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_weights(operand: gnnsparse.SparseOperand, dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype).requires_grad_() for x in tensors(operand, 2, 3))
    out, weights = gnnsparse.attention(operand, q, k, v, return_weights=True)
    assert weights.shape == (2, 3, operand.nnz)
    assert weights.dtype == out.dtype == dtype
    plain, plain_weights = gnnsparse.attention(operand, q, k, v, return_weights=True, impl="reference")
    wide = [x.detach().double() for x in (q, k, v)]
    exact, exact_weights = gnnsparse.attention(operand, *wide, return_weights=True, impl="reference")
    assert_accurate(weights, plain_weights, exact_weights)
    assert_accurate(out, plain, exact)
    sums = exact_weights.new_zeros(6, 37).index_add(1, operand.indices()[0], weights.flatten(0, 1).double())
    has_edges = operand.indices()[0].bincount(minlength=37) > 0
    assert torch.allclose(sums, has_edges.double(), atol=1e-5 if dtype == torch.float32 else 2e-3)
    (grad,) = torch.autograd.grad(weights.square().sum(), q)
    assert torch.isfinite(grad).all()
    assert float(grad.abs().max()) > 0


def test_weights_of_the_operand_play_no_part(device: str) -> None:
    graph = random_graph(40, 40, 0.2, weighted=False)
    q, k, v = (torch.randn(40, 8, device=device) for _ in range(3))
    outs = [
        gnnsparse.attention(make(graph, device, values=values), q, k, v)
        for values in (None, torch.rand(graph.nnz, device=device), "mean")
    ]
    assert torch.equal(outs[0], outs[1])
    assert torch.equal(outs[0], outs[2])


@pytest.mark.parametrize("symmetric", [False, True])
def test_gradients_of_gradients(device: str, symmetric: bool) -> None:
    a = make(random_graph(30, 30, 0.2, symmetric=symmetric), device)
    arguments = [*tensors(a, 2, d=5), torch.randn(a.nnz, device=device)]

    def second(impl: str, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
        leaves = [x.to(dtype, copy=True).requires_grad_() for x in arguments]
        torch.manual_seed(SEED)
        out = gnnsparse.attention(a, *leaves[:3], bias=leaves[3], dropout_p=0.2, impl=impl)
        first = torch.autograd.grad(out.square().sum(), leaves, create_graph=True)
        return torch.autograd.grad(sum(x.square().sum() for x in first), leaves)

    exact = second("reference", torch.float64)
    assert_all_accurate(second("auto"), second("reference"), exact, floor=floor_in_parts(a, 5))


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
def test_checkpoints_compute_the_same_bits(operand: gnnsparse.SparseOperand, dropout_p: float) -> None:
    """What is saved is computed again in the backward pass, and torch lets it be read one time."""
    leaves = [x.requires_grad_() for x in tensors(operand, 2, 3)]

    def attend(*leaves: torch.Tensor) -> torch.Tensor:
        return gnnsparse.attention(operand, *leaves, dropout_p=dropout_p)

    def grads(out: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(out.sin().sum(), leaves)

    torch.manual_seed(SEED)
    want = grads(attend(*leaves))
    torch.manual_seed(SEED)
    got = grads(checkpoint(attend, *leaves, use_reentrant=False))
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_transposed_operand(device: str) -> None:
    a = make(random_graph(30, 44, 0.2, hubs=1), device, reorder="degree")
    case = make_case(a.T, 8, 8, bias=(3,), dropout_p=0.2)
    assert_all_accurate(run(a.T, case), plain(a.T, case), exact(a.T, case), floor=few_roundings(a, case))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    "needs", [(True, True, True, True), (False, True, False, False), (True, False, False, False)]
)
@pytest.mark.parametrize("bias", [None, (1, 1), (1, 3), (2, 1), (2, 3)])
def test_backend_does_what_the_unfused_pair_does(
    device: str, bias: tuple[int, ...] | None, needs: tuple[bool, bool, bool, bool]
) -> None:
    """What a backend hands to autograd: outputs, statistics, memory orders, None for what is not needed."""
    a = make(random_graph(33, 47, 0.2, hubs=1, empty_rows=0.2), device, reorder="degree")
    case = make_case(a, 8, 12, bias=bias, scale=0.3, dropout_p=0.4, is_causal=True)
    q, k, v, grad = (
        x.to(device).transpose(1, 2).contiguous().transpose(1, 2) for x in (case.q, case.k, case.v, case.grad)
    )
    values = None if case.bias is None else case.bias.to(device)
    torch.manual_seed(SEED)
    call = AttentionCall(a, q, k, v, values, draw_seed(a.device), case.scale, case.dropout_p, case.is_causal)
    exact_out, *exact_grads = exact(a, case)
    out, stats = run_forward(call)
    want, want_stats = unfused.forward(call)
    assert out.stride() == want.stride()
    assert stats.dtype == torch.float32
    floor = floor_in_parts(a, 8, 12)
    assert_accurate(out, want, exact_out, floor=floor)
    lse, want_lse = log_sum_exp(a, stats), log_sum_exp(a, want_stats)
    empty = torch.isinf(want_lse)
    assert empty.any()
    assert not stats[empty].any()
    assert torch.equal(torch.isinf(lse), empty)
    exact_lse = exact_scores(a, case).logsumexp(-1)[~empty.cpu()]
    assert_accurate(lse[~empty], want_lse[~empty], exact_lse, floor=floor)
    needs = (*needs[:3], needs[3] and values is not None)
    grads = run_backward(call, want, want_stats, grad, needs)
    wanted = unfused.backward(call, grad, needs)
    if bias is None:
        exact_grads.append(torch.empty(0))
    for x, y, z, need in zip(grads, wanted, exact_grads, needs, strict=True):
        assert (x is not None) == (y is not None) == need
        if x is not None and y is not None:
            assert x.stride() == y.stride()
            assert_accurate(x, y, z, floor=floor)


def test_wide_transpose_map(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions of 64 bits, which matrices of 2^31 nonzeros have."""
    a = make(random_graph(30, 44, 0.2), device)
    case = make_case(a, 8, 8, bias=(3,))
    want = run(a, case)
    narrow = gnnsparse.SparseOperand.transpose_map.fget
    assert narrow(a).dtype == torch.int32
    wide = property(lambda self: narrow(self).long())
    monkeypatch.setattr(gnnsparse.SparseOperand, "transpose_map", wide)
    for got, same in zip(run(a, case), want, strict=True):
        assert torch.equal(got, same)


@pytest.mark.parametrize("fused", [None, False])
def test_mixed_dtypes(operand: gnnsparse.SparseOperand, fused: bool | None) -> None:
    q, k, v = tensors(operand, 3)
    dtypes = (torch.float16, torch.float32, torch.bfloat16)
    mixed = [x.to(d).requires_grad_() for x, d in zip((q, k, v), dtypes, strict=True)]
    out = gnnsparse.attention(operand, *mixed, fused=fused)
    assert out.dtype == torch.float16
    grads = torch.autograd.grad(out.sum(), mixed)
    assert tuple(g.dtype for g in grads) == dtypes
    exact = gnnsparse.attention(operand, *(x.double() for x in mixed), impl="reference")
    assert_accurate(out, gnnsparse.attention(operand, *mixed, impl="reference"), exact)


# Dropout.

#: (counter, key, words): the known answers that the generator's authors publish with Random123.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def seed_of(key: tuple[int, int]) -> int:
    seed = key[1] << 32 | key[0]
    return seed - 2**64 if seed >= 2**63 else seed


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(
    device: str, counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]
) -> None:
    assert _native.philox4x32(counter, seed_of(key)) == words
    got = philox4x32(*(tuple(torch.tensor([x], device=device) for x in part) for part in (counter, key)))
    assert tuple(int(x) for x in got) == words


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_generator_keeps_its_share(device: str, p: float) -> None:
    row, col = torch.arange(600, device=device), torch.arange(700, device=device)
    index = torch.cartesian_prod(row, col).T
    kept = [keeps(torch.tensor([seed], device=device), index, 3, p) for seed in (1, 2)]
    bound = 5 * (p * (1 - p) / index.shape[1]) ** 0.5
    for mask in kept:
        assert abs(float(mask.double().mean()) - (1 - p)) < bound
        for dim in (0, 1):  # no row and no column is favoured
            share = mask.view(600, 700).double().mean(dim)
            assert float((share - (1 - p)).abs().max()) < 6 * (p * (1 - p) / 600) ** 0.5
    both = float((kept[0] & kept[1]).double().mean())
    assert abs(both - (1 - p) ** 2) < bound


def test_threshold() -> None:
    assert dropout_threshold(0.0) == 0
    assert dropout_threshold(0.25) == 2**30
    assert dropout_threshold(1 - 2**-53) == 2**32 - 1


def test_dropped_edges_do_not_depend_on_how_it_is_computed(device: str) -> None:
    graph = random_graph(50, 50, 0.2, weighted=False)
    q, k, v = (torch.randn(3, 50, 4) for _ in range(3))
    by_edge = []
    for reorder in ("none", "degree"):
        a = make(graph, device, reorder=reorder)
        inputs = [x.to(device) for x in (q, k, v)]

        def attend(*inputs: torch.Tensor, a: gnnsparse.SparseOperand = a, **how: Any) -> Any:
            torch.manual_seed(SEED)
            return gnnsparse.attention(a, *inputs, dropout_p=0.4, **how)

        out, weights = attend(*inputs, return_weights=True)
        exact = attend(*(x.double() for x in inputs), impl="reference")
        for got in (out, attend(*inputs)):
            assert_accurate(got, attend(*inputs, impl="reference"), exact, floor=floor_in_parts(a, 4))
        by_edge.append(a.to_coo_order(weights.T) != 0)
        torch.manual_seed(SEED)
        seed = draw_seed(a.device)
        for head in range(3):
            assert torch.equal(weights[head] != 0, keeps(seed, a.indices(), head, 0.4))
    assert torch.equal(*by_edge)
    assert not torch.equal(by_edge[0][:, 0], by_edge[0][:, 1])


def test_dropout_follows_the_generator(operand: gnnsparse.SparseOperand) -> None:
    q, k, v = tensors(operand)
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(gnnsparse.attention(operand, q, k, v, dropout_p=0.5))
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
    assert not torch.equal(gnnsparse.attention(operand, q, k, v, dropout_p=0.5), outs[2])
    state = torch.get_rng_state()
    gnnsparse.attention(operand, q, k, v)
    assert torch.equal(state, torch.get_rng_state())


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"q": torch.randn(36, 8)}, ValueError, r"q: has shape \(36, 8\); accepted: \(.., 37, any\)"),
    ({"q": torch.randn(37)}, ValueError, "q: has shape"),
    ({"k": torch.randn(37, 8)}, ValueError, r"k: has shape \(37, 8\); accepted: \(.., 52, any\)"),
    ({"k": torch.randn(52, 9)}, ValueError, "k: has 9 features; accepted: 8, as q"),
    ({"v": torch.randn(3, 51, 8)}, ValueError, "v: has shape"),
    ({"q": torch.randn(2, 37, 8), "k": torch.randn(3, 52, 8)}, ValueError, r"k: has leading sizes \(3,\)"),
    ({"v": torch.randn(52, 8, dtype=torch.float64)}, TypeError, "v: got a tensor of dtype torch.float64"),
    ({"v": [1.0]}, TypeError, "v: got list"),
    ({"k": torch.randn(52, 8).to_sparse()}, TypeError, "k: got"),
    ({"bias": torch.randn(5)}, ValueError, r"bias: has shape \(5,\); accepted"),
    ({"bias": torch.randn(2, 1)}, ValueError, "bias: has shape"),
    ({"bias": torch.tensor(1.0)}, ValueError, "bias: has shape"),
    ({"bias": 1.0}, TypeError, "bias: got float"),
    (
        {"scale": "big"},
        TypeError,
        "scale: got str; accepted: a finite number in the range of float32, or None",
    ),
    ({"scale": torch.tensor(1.0)}, TypeError, "scale: got a tensor"),
    ({"dropout_p": 1.0}, ValueError, r"dropout_p: got 1.0; accepted: a number in \[0, 1\)"),
    ({"dropout_p": -0.1}, ValueError, "dropout_p: got -0.1"),
    ({"dropout_p": float("nan")}, ValueError, "dropout_p: got nan"),
    ({"dropout_p": None}, TypeError, "dropout_p: got NoneType"),
    ({"is_causal": 1}, TypeError, "is_causal: got int"),
    ({"return_weights": None}, TypeError, "return_weights: got NoneType"),
    ({"fused": "yes"}, TypeError, "fused: got str"),
    ({"impl": "gpu"}, ValueError, "impl: got 'gpu'"),
    ({"impl": "cuda"}, ValueError, "impl: 'cuda' can't run"),
    ({"A": torch.eye(3)}, TypeError, "A: got"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD, ids=[message[:40] for *_, message in BAD])
def test_mistakes(change: dict[str, Any], error: type[Exception], message: str) -> None:
    a = make(random_graph(37, 52, 0.2), "cpu")
    q, k, v = tensors(a)
    with pytest.raises(error, match=message):
        gnnsparse.attention(**{"A": a, "q": q, "k": k, "v": v, **change})


def test_bias_of_another_device_or_too_many_heads() -> None:
    a = make(random_graph(37, 52, 0.2), "cpu")
    q, k, v = tensors(a, 3)
    with pytest.raises(ValueError, match=r"bias: has shape \(2, \d+\); accepted"):
        gnnsparse.attention(a, q, k, v, bias=torch.randn(2, a.nnz))
    with pytest.raises(ValueError, match="bias: is on meta"):
        gnnsparse.attention(a, q, k, v, bias=torch.randn(a.nnz, device="meta"))


# The sources of the CUDA kernels over panels, run on the CPU.

TWO_PASSES = {f"cuda_attention_panel{name}" for name in ("", "_rows", "_columns")}
ONE_PASS = {f"cuda_attention_panel{name}" for name in ("", "_fused_backward")}


PANELS = [
    (8, "fp16"), (32, "fp16"), (33, "bf16"), (64, "fp16"), (128, "bf16"), (5, "tf32"), (32, "fp32"),
    (64, "tf32"),
]  # fmt: skip
#: Each kernel with panels of 16 rows and of 64 rows, and with ones that may take both passes in one.
OF_PANELS = [
    (*kernel, pattern)
    for i, kernel in enumerate(PANELS)
    for pattern in ("strips", ("graph", "cut")[i % 2], ("window", "blocks", "long")[i % 3])
]


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(("d", "precision", "pattern"), OF_PANELS)
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
        # By itself the plan would take kernels over rows for the first, and over tiles for the second.
        how = {"impl": "panels"} if pattern in ("cut", "window") else {}
        check(a, case, floor=rounding_of(a), **how)
    in_16_bits = a.precision.storage.itemsize == 2
    assert native.called == (ONE_PASS if pattern == "strips" and in_16_bits and d <= 64 else TWO_PASSES)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize(("d", "dv"), [(16, 24), (64, 5)])
@pytest.mark.parametrize("tiles", [False, True])
def test_one_pass(
    late: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: dict[str, Any],
    d: int,
    dv: int,
    tiles: bool,
) -> None:
    """Both passes in one: cut panels, empty columns, a few heads at a time; with and without warpgroups."""
    a = make(random_graph(61, 83, 0.1, hubs=2, empty_rows=0.2), "cpu", precision="fp16", reorder="degree")
    device = one_pass_device(monkeypatch, tmp_path, heads=4, slots=320)
    with emulated.running(late, replace(device, capability=(8 + tiles, 0))) as native:
        check(a, make_case(a, d, dv, **options), floor=rounding_of(a))
        assert a.plan(d, "attention_grad").tiles == tiles
    assert native.called == ONE_PASS


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_one_pass_of_full_panels(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, precision: str
) -> None:
    """Panels with more column slots in a range of columns than a step takes."""
    a = make(random_graph(37, 500, 0.4), "cpu", precision=precision)
    device = replace(one_pass_device(monkeypatch, tmp_path, heads=1, slots=2000), capability=(8, 0))
    with emulated.running(module, device) as native:
        check(a, make_case(a, 64, 40, lead=(1, 1)), floor=rounding_of(a))
    assert native.called == ONE_PASS


#: Fewer tiles than stages, with edges in few places; more, so that places are cleared; and full ones, whose
#: entries are more than a warp reads ahead.
TILED = {
    "few": lambda: random_graph(61, 83, 0.1, hubs=2, empty_rows=0.2),
    "strips": lambda: masks.vector_wise(330, 0.9, 8, seed=3, keys=210),
    "full": lambda: random_graph(290, 150, 0.4),
}


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("widths", [(64, 40), (20, 64)], ids=str)
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
@pytest.mark.parametrize("pattern", TILED)
def test_one_pass_over_tiles(
    late: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pattern: str, precision: str,
    widths: tuple[int, int],
) -> None:  # fmt: skip
    """DK and dV by products of warpgroups, whose barriers the emulator has; rows in an order of their own."""
    a = make(TILED[pattern](), "cpu", precision=precision, reorder="degree")
    device = one_pass_device(monkeypatch, tmp_path, heads=2, slots=8000)
    with emulated.running(late, device) as native:
        case = make_case(a, *widths, lead=(1, 3) if pattern == "few" else (1, 1))
        check(a, case, floor=rounding_of(a))
        assert a.plan(64, "attention_grad").tiles
    assert native.called == ONE_PASS


@pytest.mark.parametrize(
    ("change", "capability", "problem"),
    [
        ({"tiles": True}, (9, 0), "tiles: go with fused_heads, which is 0"),
        ({"tiles": True, "fused_heads": 1}, (8, 0), "tiles: are for GPUs of compute capability 9.0"),
    ],
)
def test_plans_of_tiles_that_can_not_run(
    module: ModuleType, change: dict[str, Any], capability: tuple[int, int], problem: str
) -> None:
    a = make(random_graph(30, 40, 0.2), "cpu", precision="fp16")
    with emulated.running(module, replace(H200, capability=capability)):
        plan = AttentionPlan(backward=replace(a.plan(16, "attention_grad"), **change))
        with pytest.raises(ValueError, match=f"plan: {problem}"):
            run(a, make_case(a, 16, 16), plan=plan)


def one_pass_device(monkeypatch: pytest.MonkeyPatch, folder: Path, heads: int, slots: int) -> Device:
    """Return a GPU that always takes one pass, and has room for the weights of so many heads."""
    memory = heads * slots * _native.DKV_SLOT_BYTES / 2**30
    rates = replace(record_for(H200).attention, fused_backward_slots=0, partials_memory=memory)
    save_record(replace(record_for(H200), name="small", attention=rates), folder / "small.json")
    monkeypatch.setenv("GNNSPARSE_GPU_RECORDS", str(folder))
    return replace(H200, name="small", memory=2**30)


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
