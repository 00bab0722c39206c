"""Attention in the precisions of 8 bits: the function, its gradients and its transforms, on every device.

What the CUDA kernel for bytes alone has is run by its source on the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import Precision, _native
from gnnsparse.nn import AGNNConv, SparseAttention
from gnnsparse.ops.attention.arguments import AttentionCall
from gnnsparse.ops.attention.schema import run_forward
from gnnsparse.ops.quantization import quantize, store_heads
from gnnsparse.plan import AttentionPlan, CsrAttentionPlan
from gnnsparse.testing import assert_all_accurate, random_graph
from tests import emulated
from tests.gpu_paths import RunningPath
from tests.helpers import make
from tests.ops.attention_oracle import Case, exact, exact_scores, log_sum_exp, make_case, plain, run
from tests.ops.conftest import Place
from tests.ops.quantized import EIGHT_BITS, rounding_bound, stored
from tests.ops.test_attention import OPTIONS

PRECISIONS = tuple(EIGHT_BITS)
KERNEL = "cuda_attention_quantized"
pytestmark = pytest.mark.parametrize("precision", PRECISIONS)

#: What the error of one element may be: a few roundings, of which a row with few edges shows the largest.
#: With dropout a gradient of the bias was 2.51 float16 steps off on a GPU, whose two passes round Q
#: differently.
FLOOR = 4 * torch.finfo(torch.float16).eps


def dequantized(x: torch.Tensor, precision: str) -> torch.Tensor:
    """[B, H, n, d] rounded to 8 bits and back in float32, every head by itself."""
    heads = [numbers * scale for numbers, scale in (stored(h.float(), precision) for h in x.flatten(0, 1))]
    return torch.stack(heads).view(x.shape)


def stored_case(a: gnnsparse.SparseOperand, case: Case) -> Case:
    """The case with K and V as the operand's precision stores them."""
    k, v = (dequantized(x, a.precision.value) for x in (case.k, case.v))
    return replace(case, k=k, v=v)


def kernel_products(a: gnnsparse.SparseOperand, case: Case) -> torch.Tensor:
    """The scaled products [B, H, L, S] of a kernel for bytes, which rounds q times the scales of k."""
    products = []
    for q, k in zip(case.q.flatten(0, 1), case.k.flatten(0, 1), strict=True):
        numbers, scale = stored(k.float(), a.precision.value)
        products.append((q.float() * (scale * case.factor)).half().float() @ numbers.mT)
    return torch.stack(products).view(*case.q.shape[:3], -1)


def check(
    a: gnnsparse.SparseOperand, case: Case, *, in_bytes: bool, floor: float = FLOOR, **how: Any
) -> None:
    """The result and all gradients by the accuracy rule; `in_bytes`: a kernel for bytes computes forward."""
    results, rounded = run(a, case, **how), stored_case(a, case)
    for got, leaf in zip(results, [case.q, *case.leaves], strict=True):
        assert got.dtype == leaf.dtype
    like = plain(a, rounded, kernel_products(a, case) if in_bytes else None)
    assert_all_accurate(results, like, exact(a, rounded), floor=floor)


@dataclass(frozen=True)
class Where:
    """A device, and the plans by which a GPU runs the kernel for bytes, whatever would be faster there."""

    device: str
    plans: tuple[AttentionPlan, ...] = ()
    running: RunningPath | None = None

    def check(self, a: gnnsparse.SparseOperand, case: Case, floor: float = FLOOR) -> None:
        """Checks every plan, and that the kernel for bytes runs where heads are not too wide for it."""
        in_bytes = bool(self.plans) and max(case.q.shape[-1], case.v.shape[-1]) <= 64
        for plan in self.plans or (None,):
            check(a, case, in_bytes=in_bytes, floor=floor, plan=plan)
        if self.running is not None:
            assert (KERNEL in self.running.called) == in_bytes
            assert ("cuda_attention_panel" in self.running.called) != in_bytes


@pytest.fixture
def where(place: Place) -> Where:
    if place.path is None:
        return Where(place.device, (AttentionPlan(),) if place.device == "cuda" else ())
    return Where("cpu", tuple(emulated.attention_plan(False, limit) for limit in (1, 2, 3, 1000)), place.path)


def _operand(device: str, precision: str, **how: Any) -> gnnsparse.SparseOperand:
    return make(random_graph(61, 83, 0.1, hubs=2, empty_rows=0.2), device, precision=precision, **how)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("reorder", ["none", "degree"])
def test_options(where: Where, options: dict[str, Any], precision: str, reorder: str) -> None:
    """Biases, masks, dropout, and scales of either sign, for 2 batches of 3 heads; panels whole and cut."""
    a = _operand(where.device, precision, reorder=reorder)
    where.check(a, make_case(a, 16, 24, **options))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize(
    ("d", "dv"), [(1, 3), (5, 64), (8, 8), (16, 40), (32, 32), (33, 17), (63, 16), (64, 64), (100, 100)]
)
def test_head_dimensions(where: Where, d: int, dv: int, precision: str) -> None:
    """Rows of every width, empty rows, and values of very different sizes."""
    a = _operand(where.device, precision, reorder="degree")
    case = make_case(a, d, dv, lead=(1, 2))
    case.v.mul_(torch.logspace(-3, 2, dv))
    where.check(a, case)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("nodes_first", [False, True])
def test_dtypes_and_layouts(where: Where, precision: str, dtype: torch.dtype, nodes_first: bool) -> None:
    """Results and gradients have the dtypes and memory orders of the arguments."""
    a = _operand(where.device, precision)
    case = make_case(a, 20, 12, dtype=dtype)
    if nodes_first:
        turned = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (case.q, case.k, case.v))
        case = replace(case, **dict(zip("qkv", turned, strict=True)))
    where.check(a, case, floor=max(FLOOR, 2 * torch.finfo(dtype).eps))
    leaves = [x.to(a.device).requires_grad_() for x in (case.q, case.k, case.v)]
    out = gnnsparse.attention(a, *leaves, plan=where.plans[0] if where.plans else None)
    grads = torch.autograd.grad(out.sum(), leaves)
    assert [g.stride() for g in grads] == [x.stride() for x in leaves]


def test_rounding_is_what_makes_the_difference(device: str, precision: str) -> None:
    """V comes out as it is stored where each row has one edge; it differs from V within the bound."""
    index = torch.arange(50)
    graph = gnnsparse.SparseGraph.from_edge_index(torch.stack([index.flip(0), index]), 50)
    a = make(graph, device, precision=precision)
    q, k, v = (torch.randn(2, 50, 24) for _ in range(3))
    plan = AttentionPlan() if device == "cuda" else None
    out = gnnsparse.attention(a, *(x.to(device) for x in (q, k, v)), plan=plan).cpu()
    rounded = dequantized(v[None], precision)[0].flip(1)
    assert (out - rounded).abs().max() <= 2**-10 * rounded.abs().max()
    assert (out - v.flip(1)).abs().max() > 2**-8 * v.abs().max() * (0.3 if precision == "int8" else 1)
    for head in range(2):
        bound = rounding_bound(v[head], precision).flip(0) * (1 + 2e-3) + 2**-10 * rounded.abs().max()
        assert ((out - v.flip(1))[head].abs() <= bound).all()


@pytest.mark.parametrize("how", [{"fused": False}, {"impl": "reference"}, {"return_weights": True}], ids=str)
def test_unfused_and_reference(device: str, precision: str, how: dict[str, Any]) -> None:
    """The same function where a weight is stored for each edge, with its gradients."""
    a = _operand(device, precision, reorder="degree")
    case = make_case(a, 8, 12, bias=(1, 3), is_causal=True, dropout_p=0.2)
    if "return_weights" not in how:
        return check(a, case, in_bytes=False, **how)
    weights = gnnsparse.attention(a, *(x.to(device) for x in (case.q, case.k, case.v)), **how)[1]
    rounded = stored_case(a, case)
    scores = (rounded.q.double() @ rounded.k.double().mT * case.factor).to(device)
    row, column = a.indices()
    wanted = gnnsparse.edge_softmax(a.unquantized, scores[..., row, column].flatten(0, 1).T.float())
    assert torch.allclose(weights.flatten(0, 1).T, wanted, rtol=5e-3, atol=1e-6)
    return None


def test_float64_reference_is_exact(device: str, precision: str) -> None:
    """The specification in float64 rounds nothing, as that of spmm."""
    a = _operand(device, precision)
    case = make_case(a, 8, 12)
    out = gnnsparse.attention(a, *(x.double().to(device) for x in (case.q, case.k, case.v)), impl="reference")
    assert torch.allclose(out.cpu(), exact(a, case)[0], rtol=1e-12, atol=1e-12)


def test_second_derivatives(device: str, precision: str) -> None:
    a = _operand(device, precision)
    case = make_case(a, 6, 6, lead=(1, 2))

    def penalty(form: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
        grads = torch.autograd.grad(form(*leaves).square().sum(), leaves, create_graph=True)
        total = sum(g.square().sum() for g in grads)
        return torch.cat([g.flatten() for g in torch.autograd.grad(total, leaves)])

    given = [x.to(device) for x in (case.q, case.k, case.v)]
    rounded = stored_case(a, case)
    fine = a.unquantized
    got = penalty(lambda *x: gnnsparse.attention(a, *x), *given)
    wanted = penalty(
        lambda *x: gnnsparse.attention(fine, *x, impl="reference"),
        *(x.double().to(device) for x in (rounded.q, rounded.k, rounded.v)),
    )
    assert (got.double() - wanted).norm() < 1e-2 * wanted.norm()


def test_transforms(device: str, precision: str) -> None:
    """torch.func's gradients and batches are those of the plain call."""
    a = _operand(device, precision)
    case = make_case(a, 16, 12, lead=(2, 3))
    q, k, v = (x.to(device) for x in (case.q, case.k, case.v))
    rounded = stored_case(a, case)
    mapped = torch.vmap(lambda q, k, v: gnnsparse.attention(a, q, k, v))(q, k, v)
    assert_all_accurate([mapped.cpu()], plain(a, rounded)[:1], exact(a, rounded)[:1], floor=FLOOR)

    def total(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return (gnnsparse.attention(a, q, k, v) * case.grad.to(device)).sum()

    grads = torch.func.grad(total, argnums=(0, 1, 2))(q, k, v)
    like = plain(a, rounded)[1:4]
    assert_all_accurate([g.cpu() for g in grads], like, exact(a, rounded)[1:4], floor=FLOOR)


def test_compiled(device: str, precision: str) -> None:
    """Without graph breaks, and bit for bit what the plain call gives, gradients too."""
    a = _operand(device, precision)
    case = make_case(a, 16, 12)
    compiled = torch.compile(
        lambda q, k, v: gnnsparse.attention(a, q, k, v) * 2, fullgraph=True, backend="aot_eager"
    )
    found = []
    for call in (compiled, lambda q, k, v: gnnsparse.attention(a, q, k, v) * 2):
        leaves = [x.to(device).requires_grad_() for x in (case.q, case.k, case.v)]
        out = call(*leaves)
        found.append([out.detach(), *torch.autograd.grad(out.sum(), leaves)])
    assert all(map(torch.equal, *found))


def test_heads_that_share_keys(device: str, precision: str) -> None:
    """Keys and values of one head for all queries are rounded as one, and get the sum of the gradients."""
    a = _operand(device, precision)
    case = make_case(a, 16, 16, lead=(2, 3))
    shared = replace(case, k=case.k[:, :1], v=case.v[:, :1])
    whole = replace(case, k=shared.k.expand_as(case.k), v=shared.v.expand_as(case.v))
    found, apart = run(a, shared), run(a, whole)
    assert torch.equal(found[0], apart[0])
    for got, many in zip(found[2:], apart[2:], strict=True):
        assert torch.allclose(got, many.sum(1, keepdim=True), rtol=1e-3, atol=1e-3)


def test_graph_attention_stays_in_float16(device: str, precision: str) -> None:
    """Whatever kernels it runs on, and whatever calls it."""
    graph = random_graph(60, 60, 0.1, hubs=1, empty_rows=0.1)
    a, fp16 = make(graph, device, precision=precision), make(graph, device, precision="fp16")
    q, k, v = (torch.randn(60, 2, 16, device=device) for _ in range(3))
    assert torch.equal(gnnsparse.graph_attention(a, q, k, v), gnnsparse.graph_attention(fp16, q, k, v))
    compiled = torch.compile(gnnsparse.graph_attention, fullgraph=True, backend="aot_eager")
    # By other kernels, whose weights are rounded elsewhere.
    assert torch.allclose(compiled(a, q, k, v), gnnsparse.graph_attention(fp16, q, k, v), rtol=0, atol=2e-3)


def test_modules_take_part(device: str, precision: str) -> None:
    """AGNN and multi-head attention, which call `gnnsparse.attention`, are not what they are in fp16."""
    graph = random_graph(60, 60, 0.1, hubs=1)
    a, fp16 = (make(graph, device, values="gcn", precision=p) for p in (precision, "fp16"))
    x = torch.randn(60, 32, device=device)
    for layer, given in ((AGNNConv(), (x,)), (SparseAttention(32, 4), (x, x, x))):
        layer = layer.to(device)
        out, fine = layer(*given, a), layer(*given, fp16)
        error = (out - fine).norm() / fine.norm()
        assert 1e-4 < error < (2e-2 if precision == "int8" else 6e-2)


# The source of the CUDA kernel, run on the CPU.


@pytest.mark.parametrize("size", [1e-12, 1e4])
def test_scales_of_any_size(native: RunningPath, precision: str, size: float) -> None:
    """Scores are of one size: neither their factors nor what Q gets of them leaves the range of float16."""
    a = _operand("cpu", precision)
    case = make_case(a, 32, 32, lead=(1, 1), scale=0.2 / size)
    case.k.mul_(size)
    rounded, plan = stored_case(a, case), emulated.attention_plan(False, 1000)
    with torch.no_grad():
        out = gnnsparse.attention(a, case.q, case.k, case.v, scale=case.scale, plan=plan)
    exact_out, scores = exact(a, rounded)[0], exact_scores(a, rounded)
    assert scores[scores.isfinite()].abs().max() > 1
    assert (out - exact_out).norm() < 2e-3 * exact_out.norm()


def test_log_sum_exp(native: RunningPath, precision: str) -> None:
    """Of each row's scores, as its statistics have it, and -inf where a row has no edges."""
    a = _operand("cpu", precision, reorder="degree")
    case = make_case(a, 24, 24)
    call = AttentionCall(a, case.q, case.k, case.v, None, None, case.factor, 0.0, False)
    for plan in (emulated.attention_plan(False, limit) for limit in (1, 1000)):
        lse = log_sum_exp(a, run_forward(call, plan)[1])
        wanted = exact_scores(a, stored_case(a, case)).logsumexp(-1)
        assert torch.equal(lse == float("-inf"), wanted == float("-inf"))
        real = wanted.isfinite()
        assert (lse[real] - wanted[real]).abs().max() < 2e-3


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("layout", ["nodes first", "transposed", "sliced", "heads shared", "all shared"])
def test_layouts_of_the_kernel(native: RunningPath, precision: str, layout: str) -> None:
    """Strides of every kind give what contiguous heads give, bit for bit."""
    a, plan = _operand("cpu", precision), emulated.attention_plan(False, 1000)
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


def test_other_kernels_compute_the_same_function(native: RunningPath, precision: str) -> None:
    """Wide heads, panels of 64 rows, kernels over rows and unfused attention round K and V to 8 bits."""
    a = _operand("cpu", precision)
    for d, how in (
        (72, {"plan": emulated.attention_plan(False, 1000)}),
        (32, {"plan": emulated.attention_plan(True, 1000)}),
        (32, {"plan": CsrAttentionPlan()}),
        (32, {"fused": False}),
    ):
        check(a, make_case(a, d, d, lead=(1, 2)), in_bytes=False, **how)
    assert KERNEL not in native.called


def test_what_is_not_finite_stays_in_its_feature(native: RunningPath, precision: str) -> None:
    a, plan = _operand("cpu", precision), emulated.attention_plan(False, 1000)
    q, k, v = (torch.randn(1, 1, n, 20) for n in (61, 83, 83))
    out = gnnsparse.attention(a, q, k, v, plan=plan)
    v[0, 0, 17, 5] = float("nan")
    with_bad = gnnsparse.attention(a, q, k, v, plan=plan)
    has_edges = torch.zeros(61, dtype=torch.bool).index_fill(0, a.indices()[0], True)
    others = torch.arange(20) != 5
    assert with_bad[0, 0, has_edges, 5].isnan().all()
    assert (with_bad[0, 0, ~has_edges] == 0).all()
    assert torch.equal(with_bad[..., others], out[..., others])


def test_native_arguments_are_checked(native: RunningPath, precision: str) -> None:
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
