"""The CUDA source of attention with a K and a V of 8 bits, run on the CPU, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import Precision, _native
from gnnsparse.ops.attention.arguments import AttentionCall
from gnnsparse.ops.attention.schema import run_forward
from gnnsparse.ops.quantization import quantize, store_heads
from gnnsparse.testing import random_graph
from tests import emulated
from tests.gpu_paths import RunningPath
from tests.helpers import make
from tests.ops.attention_oracle import exact, exact_scores, log_sum_exp, make_case
from tests.ops.quantized import EIGHT_BITS
from tests.ops.test_attention import OPTIONS
from tests.ops.test_quantized_attention import FLOOR, check, stored_case

PRECISIONS = tuple(EIGHT_BITS)
KERNEL = "cuda_attention_quantized"


def _graph(rows: int = 61, cols: int = 83) -> gnnsparse.SparseGraph:
    return random_graph(rows, cols, 0.1, hubs=2, empty_rows=0.2)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("d", "dv"), [(8, 8), (1, 3), (16, 40), (33, 17), (5, 64), (63, 16), (64, 64)])
@pytest.mark.parametrize("limit", [1, 3, 1000])
def test_head_dimensions(native: RunningPath, precision: str, d: int, dv: int, limit: int) -> None:
    """Rows of every width, empty rows, panels whole and cut; values of very different sizes."""
    a = make(_graph(), "cpu", precision=precision, reorder="degree")
    case = make_case(a, d, dv, lead=(1, 2))
    case.v.mul_(torch.logspace(-3, 2, dv))
    check(a, case, in_bytes=True, plan=emulated.attention_plan(False, limit))
    assert KERNEL in native.called
    assert "cuda_attention_panel" not in native.called


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("limit", [2, 1000])
def test_options(native: RunningPath, precision: str, options: dict[str, Any], limit: int) -> None:
    """Biases, masks, dropout, and scales of either sign, for 2 batches of 3 heads."""
    a = make(_graph(), "cpu", precision=precision)
    check(a, make_case(a, 16, 24, **options), in_bytes=True, plan=emulated.attention_plan(False, limit))
    assert KERNEL in native.called


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dtypes(native: RunningPath, precision: str, dtype: torch.dtype) -> None:
    a = make(_graph(), "cpu", precision=precision)
    case, floor = make_case(a, 20, 32, dtype=dtype), max(FLOOR, 2 * torch.finfo(dtype).eps)
    check(a, case, in_bytes=True, floor=floor, plan=emulated.attention_plan(False, 2))
    assert KERNEL in native.called


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("size", [1e-12, 1e4])
def test_scales_of_any_size(native: RunningPath, precision: str, size: float) -> None:
    """Scores are of one size: neither their factors nor what Q gets of them leaves the range of float16."""
    a = make(_graph(), "cpu", precision=precision)
    case = make_case(a, 32, 32, lead=(1, 1), scale=0.2 / size)
    case.k.mul_(size)
    rounded, plan = stored_case(a, case), emulated.attention_plan(False, 1000)
    with torch.no_grad():
        out = gnnsparse.attention(a, case.q, case.k, case.v, scale=case.scale, plan=plan)
    exact_out, scores = exact(a, rounded)[0], exact_scores(a, rounded)
    assert scores[scores.isfinite()].abs().max() > 1
    assert (out - exact_out).norm() < 2e-3 * exact_out.norm()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_log_sum_exp(native: RunningPath, precision: str) -> None:
    """Of each row's scores, as its statistics have it, and -inf where a row has no edges."""
    a = make(_graph(), "cpu", precision=precision, reorder="degree")
    case = make_case(a, 24, 24)
    call = AttentionCall(a, case.q, case.k, case.v, None, None, case.factor, 0.0, False)
    for plan in (emulated.attention_plan(False, limit) for limit in (1, 1000)):
        lse = log_sum_exp(a, run_forward(call, plan)[1])
        wanted = exact_scores(a, stored_case(a, case)).logsumexp(-1)
        assert torch.equal(lse == float("-inf"), wanted == float("-inf"))
        real = wanted.isfinite()
        assert (lse[real] - wanted[real]).abs().max() < 2e-3


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("layout", ["nodes first", "transposed", "sliced", "heads shared", "all shared"])
def test_layouts(native: RunningPath, precision: str, layout: str) -> None:
    """Strides of every kind give what contiguous heads give, bit for bit."""
    a, plan = make(_graph(), "cpu", precision=precision), emulated.attention_plan(False, 1000)
    q, k, v = (torch.randn(2, 3, n, 24) for n in (61, 83, 83))
    if layout in ("heads shared", "all shared"):
        k, v = k[:, :1], v[:, :1] if layout == "all shared" else v
    given = {
        "nodes first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
        "transposed": lambda x: x.mT.contiguous().mT,
        "sliced": lambda x: torch.cat([x, x], dim=3)[..., :24],
    }.get(layout, lambda x: x)
    whole = [x.expand(2, 3, -1, -1).contiguous() for x in (k, v)]
    wanted = gnnsparse.attention(a, q, *whole, plan=plan)
    assert torch.equal(gnnsparse.attention(a, given(q), given(k), given(v), plan=plan), wanted)
    assert native.called >= {KERNEL, "cuda_quantize_heads"}


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("nodes_first", [False, True])
def test_numbers_of_heads(native: RunningPath, precision: str, dtype: torch.dtype, nodes_first: bool) -> None:
    """What is stored of each head is what is stored of it alone, in any place."""
    for shape in ((2, 3, 50, 37), (1, 2, 33, 16), (3, 1, 9, 64), (2, 2, 1, 5), (1, 1, 70, 8)):
        x = (torch.randn(shape) * 3).to(dtype)
        x = x.transpose(1, 2).contiguous().transpose(1, 2) if nodes_first else x
        padded = -(-shape[3] // 16) * 16
        room = torch.full((*shape[:3], padded + 32), 99, dtype=torch.uint8)
        numbers = room[..., 16:-16]
        scale = store_heads(x, Precision(precision), numbers)
        for b in range(shape[0]):
            for h in range(shape[1]):
                wanted, by = quantize(x[b, h], Precision(precision))
                found = numbers[b, h].contiguous()
                # 128 is added to integers.
                found = (
                    found.float() - 128 if precision == "int8" else found.view(torch.float8_e4m3fn).float()
                )
                assert torch.equal(found[:, : shape[3]], wanted)
                assert (found[:, shape[3] :] == 0).all()
                assert torch.equal(scale[b, h, : shape[3]], by)
        assert (room[..., :16] == 99).all()
        assert (room[..., -16:] == 99).all()
    assert native.called == {"cuda_quantize_heads"}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_other_kernels_compute_the_same_function(native: RunningPath, precision: str) -> None:
    """Wide heads, panels of 64 rows, kernels over rows and unfused attention round K and V to 8 bits."""
    a = make(_graph(), "cpu", precision=precision)
    for d, how in (
        (72, {"plan": emulated.attention_plan(False, 1000)}),
        (32, {"plan": emulated.attention_plan(True, 1000)}),
        (32, {"plan": gnnsparse.plan.CsrAttentionPlan()}),
        (32, {"fused": False}),
    ):
        check(a, make_case(a, d, d, lead=(1, 2)), in_bytes=False, **how)
    assert KERNEL not in native.called


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_not_finite_stays_in_its_feature(native: RunningPath, precision: str) -> None:
    a, plan = make(_graph(), "cpu", precision=precision), emulated.attention_plan(False, 1000)
    q, k, v = (torch.randn(1, 1, n, 20) for n in (61, 83, 83))
    out = gnnsparse.attention(a, q, k, v, plan=plan)
    v[0, 0, 17, 5] = float("nan")
    with_bad = gnnsparse.attention(a, q, k, v, plan=plan)
    has_edges = torch.zeros(61, dtype=torch.bool).index_fill(0, a.indices()[0], True)
    others = torch.arange(20) != 5
    assert with_bad[0, 0, has_edges, 5].isnan().all()
    assert (with_bad[0, 0, ~has_edges] == 0).all()
    assert torch.equal(with_bad[..., others], out[..., others])


def test_native_arguments_are_checked(native: RunningPath) -> None:
    """Numbers that are no bytes, rows that are not padded, and scales that are too short."""
    x, numbers = torch.randn(1, 2, 4, 20), torch.zeros(1, 2, 4, 32, dtype=torch.uint8)
    scale, peaks = torch.zeros(64), torch.zeros(64, dtype=torch.int32)
    good = {"x": x, "out": numbers, "scale": scale, "peaks": peaks, "parts": 1}
    for name, wrong, message in (
        ("out", numbers.to(torch.int32), "out: accepted: uint8"),
        ("out", numbers[..., :16], "out: accepted: the shape of x"),
        ("out", torch.zeros(1, 2, 4, 40, dtype=torch.uint8)[..., :32], "out: accepted: the shape of x"),
        ("scale", scale[:20], "scale"),
        ("peaks", peaks[:20], "peaks"),
        ("parts", 0, "parts"),
    ):
        with pytest.raises(ValueError, match=message):
            native.native.cuda_quantize_heads(**{**good, name: wrong}, number_type=0, stream=0)
    no_bias, q = _native.EdgeValues(), _native.Heads(torch.zeros(1, 2, 6, 24, dtype=torch.float16))
    rest = (0, no_bias, 1.0, False, 0.0, None)
    for k, message in ((numbers.float(), "k: accepted: uint8"), (numbers.mT, "k: has rows")):
        with pytest.raises(ValueError, match=message):
            _native.QuantizedAttention(q, k, numbers, torch.zeros(1, 2, 32), *rest)
    with pytest.raises(ValueError, match="number_type"):
        _native.QuantizedAttention(q, numbers, numbers, torch.zeros(1, 2, 32), 2, *rest[1:])
