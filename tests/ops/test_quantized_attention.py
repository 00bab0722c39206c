"""Attention in the precisions of 8 bits: the function, its gradients and its transforms, on every device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse.nn import AGNNConv, SparseAttention
from gnnsparse.plan import AttentionPlan
from gnnsparse.testing import assert_all_accurate, random_graph
from tests.helpers import make
from tests.ops.attention_oracle import Case, exact, make_case, plain, run
from tests.ops.quantized import EIGHT_BITS, rounding_bound, stored
from tests.ops.test_attention import OPTIONS

PRECISIONS = tuple(EIGHT_BITS)

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
    """The scaled products of q and k that a kernel for bytes makes, [B, H, L, S].

    Numbers are operands as they are, and their scales are multiplied into q before that is rounded.
    """
    products = []
    for q, k in zip(case.q.flatten(0, 1), case.k.flatten(0, 1), strict=True):
        numbers, scale = stored(k.float(), a.precision.value)
        products.append((q.float() * (scale * case.factor)).half().float() @ numbers.mT)
    return torch.stack(products).view(*case.q.shape[:3], -1)


def check(
    a: gnnsparse.SparseOperand, case: Case, *, in_bytes: bool, floor: float = FLOOR, **how: Any
) -> None:
    """Compares the result and all gradients, which pass the rounding unchanged, by the accuracy rule.

    `in_bytes`: whether a kernel for bytes computes the forward pass.
    """
    results, rounded = run(a, case, **how), stored_case(a, case)
    for got, leaf in zip(results, [case.q, *case.leaves], strict=True):
        assert got.dtype == leaf.dtype
    like = plain(a, rounded, kernel_products(a, case) if in_bytes else None)
    assert_all_accurate(results, like, exact(a, rounded), floor=floor)


def _how(device: str) -> dict[str, Any]:
    """The plan by which a GPU runs the kernel for bytes, whatever would be faster on so small a graph."""
    return {"plan": AttentionPlan()} if device == "cuda" else {}


def _operand(device: str, precision: str, **how: Any) -> gnnsparse.SparseOperand:
    return make(random_graph(61, 83, 0.1, hubs=2, empty_rows=0.2), device, precision=precision, **how)


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("reorder", ["none", "degree"])
def test_options(device: str, options: dict[str, Any], precision: str, reorder: str) -> None:
    a = _operand(device, precision, reorder=reorder)
    check(a, make_case(a, 16, 24, **options), in_bytes=device == "cuda", **_how(device))


@pytest.mark.usefixtures("poisoned")
@pytest.mark.parametrize("d", [1, 5, 16, 32, 33, 64, 100])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_head_dimensions(device: str, d: int, precision: str) -> None:
    a = _operand(device, precision)
    case = make_case(a, d, d)
    case.v.mul_(torch.logspace(-2, 2, d))
    check(a, case, in_bytes=device == "cuda" and d <= 64, **_how(device))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("nodes_first", [False, True])
def test_dtypes_and_layouts(device: str, precision: str, dtype: torch.dtype, nodes_first: bool) -> None:
    """Results and gradients have the dtypes and memory orders of the arguments."""
    a = _operand(device, precision)
    case = make_case(a, 20, 12, dtype=dtype)
    if nodes_first:
        turned = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (case.q, case.k, case.v))
        case = replace(case, **dict(zip("qkv", turned, strict=True)))
    floor = max(FLOOR, 2 * torch.finfo(dtype).eps)
    check(a, case, in_bytes=device == "cuda", floor=floor, **_how(device))
    leaves = [x.to(a.device).requires_grad_() for x in (case.q, case.k, case.v)]
    out = gnnsparse.attention(a, *leaves, **_how(device))
    grads = torch.autograd.grad(out.sum(), leaves)
    assert [g.stride() for g in grads] == [x.stride() for x in leaves]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_rounding_is_what_makes_the_difference(device: str, precision: str) -> None:
    """V comes out as it is stored where each row has one edge; it differs from V within the bound."""
    index = torch.arange(50)
    graph = gnnsparse.SparseGraph.from_edge_index(torch.stack([index.flip(0), index]), 50)
    a = make(graph, device, precision=precision)
    q, k, v = (torch.randn(2, 50, 24) for _ in range(3))
    out = gnnsparse.attention(a, *(x.to(device) for x in (q, k, v)), **_how(device)).cpu()
    rounded = dequantized(v[None], precision)[0].flip(1)
    assert (out - rounded).abs().max() <= 2**-10 * rounded.abs().max()
    assert (out - v.flip(1)).abs().max() > 2**-8 * v.abs().max() * (0.3 if precision == "int8" else 1)
    for head in range(2):
        bound = rounding_bound(v[head], precision).flip(0) * (1 + 2e-3) + 2**-10 * rounded.abs().max()
        assert ((out - v.flip(1))[head].abs() <= bound).all()


@pytest.mark.parametrize("precision", PRECISIONS)
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


@pytest.mark.parametrize("precision", PRECISIONS)
def test_float64_reference_is_exact(device: str, precision: str) -> None:
    """The specification in float64 rounds nothing, as that of spmm."""
    a = _operand(device, precision)
    case = make_case(a, 8, 12)
    out = gnnsparse.attention(a, *(x.double().to(device) for x in (case.q, case.k, case.v)), impl="reference")
    assert torch.allclose(out.cpu(), exact(a, case)[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("precision", PRECISIONS)
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


@pytest.mark.parametrize("precision", PRECISIONS)
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


@pytest.mark.parametrize("precision", PRECISIONS)
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


@pytest.mark.parametrize("precision", PRECISIONS)
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


@pytest.mark.parametrize("precision", PRECISIONS)
def test_empty_patterns(device: str, precision: str) -> None:
    for shape in ((0, 5), (5, 0), (6, 7)):
        a = make(random_graph(*shape, 0.0), device, precision=precision)
        out, *grads = run(a, make_case(a, 4, 6))
        assert out.shape == (2, 3, shape[0], 6)
        assert all((x == 0).all() for x in (out, *grads))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_graph_attention_stays_in_float16(device: str, precision: str) -> None:
    """Whatever kernels it runs on, and whatever calls it."""
    graph = random_graph(60, 60, 0.1, hubs=1, empty_rows=0.1)
    a, fp16 = make(graph, device, precision=precision), make(graph, device, precision="fp16")
    q, k, v = (torch.randn(60, 2, 16, device=device) for _ in range(3))
    assert torch.equal(gnnsparse.graph_attention(a, q, k, v), gnnsparse.graph_attention(fp16, q, k, v))
    compiled = torch.compile(gnnsparse.graph_attention, fullgraph=True, backend="aot_eager")
    # By other kernels, whose weights are rounded elsewhere.
    assert torch.allclose(compiled(a, q, k, v), gnnsparse.graph_attention(fp16, q, k, v), rtol=0, atol=2e-3)


@pytest.mark.parametrize("precision", PRECISIONS)
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
