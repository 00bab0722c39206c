"""Attention by dense matrices and graph attention by single edges: exact in float64, plain in a precision.

Autograd differentiates all but plain dense attention, which has formulas.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

import gnnsparse
from gnnsparse import Precision, SparseOperand
from gnnsparse.ops.attention.arguments import Arrays, GraphCall
from gnnsparse.ops.attention.philox import draw_seed, keeps
from gnnsparse.plan import attention as attention_plan
from gnnsparse.precision import round_operand
from gnnsparse.runtime import device as device_module
from gnnsparse.sparse.kernel_cache import Product
from tests.gpu_paths import StandInPath
from tests.helpers import ROUNDING

SEED = 7


@dataclass(frozen=True)
class Case:
    """A call of attention; q [B, H, L, D] and so on, on the CPU."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    grad: torch.Tensor
    bias: torch.Tensor | None = None
    scale: float | None = None
    dropout_p: float = 0.0
    is_causal: bool = False

    @property
    def leaves(self) -> list[torch.Tensor]:
        return [x for x in (self.q, self.k, self.v, self.bias) if x is not None]

    @property
    def factor(self) -> float:
        return max(self.q.shape[-1], 1) ** -0.5 if self.scale is None else self.scale


def make_case(
    a: SparseOperand, d: int, dv: int, *, lead: tuple[int, ...] = (2, 3), bias: tuple[int, ...] | None = None,
    dtype: torch.dtype = torch.float32, **options: Any,
) -> Case:  # fmt: skip
    rows, cols = a.shape
    q, k, v, grad = (torch.randn(*lead, *s).to(dtype) for s in ((rows, d), (cols, d), (cols, dv), (rows, dv)))
    values = None if bias is None else torch.randn(*bias, a.nnz)
    return Case(q, k, v, grad, values, **options)


def run(a: SparseOperand, case: Case, **how: Any) -> list[torch.Tensor]:
    """Out and the gradients of q, k, v and bias, on the CPU; dropout draws its seed after SEED."""
    leaves = [x.detach().to(a.device).requires_grad_() for x in case.leaves]
    torch.manual_seed(SEED)
    out = gnnsparse.attention(
        a, *leaves[:3], bias=leaves[3] if case.bias is not None else None, scale=case.scale,
        dropout_p=case.dropout_p, is_causal=case.is_causal, **how,
    )  # fmt: skip
    grads = torch.autograd.grad(out, leaves, case.grad.to(a.device))
    return [x.detach().cpu() for x in (out, *grads)]


def kept_factors(a: SparseOperand, case: Case) -> torch.Tensor:
    """What dropout multiplies the weights with, float64 [B, H, nnz]."""
    lead = case.q.shape[:-2]
    if not case.dropout_p:
        return torch.ones(*lead, a.nnz, dtype=torch.float64)
    torch.manual_seed(SEED)
    seed = draw_seed(a.device)
    masks = [keeps(seed, a.indices(), head, case.dropout_p) for head in range(lead.numel())]
    return torch.stack(masks).view(*lead, a.nnz).cpu().double() / (1 - case.dropout_p)


def _dense(a: SparseOperand, values: torch.Tensor) -> torch.Tensor:
    """Edge values [.., nnz] as matrices [.., L, S]."""
    row, col = a.indices().cpu()
    flat = (row * a.shape[1] + col).expand(values.shape)
    empty = values.new_zeros(*values.shape[:-1], a.shape[0] * a.shape[1])
    return empty.scatter(-1, flat, values).unflatten(-1, a.shape)


def _masked(a: SparseOperand, case: Case, scores: torch.Tensor) -> torch.Tensor:
    """Dense scores with -inf where there is no edge, or none that counts."""
    row, col = a.indices().cpu()
    counts = torch.zeros(a.shape, dtype=torch.bool)
    counts[row, col] = True
    if case.is_causal:
        counts &= torch.ones(a.shape, dtype=torch.bool).tril()
    return scores.masked_fill(~counts, float("-inf"))


def _softmax(a: SparseOperand, case: Case, scores: torch.Tensor) -> torch.Tensor:
    scores = _masked(a, case, scores)
    top = scores.detach().amax(-1, keepdim=True) if a.shape[1] else scores.new_zeros(*scores.shape[:-1], 1)
    weights = (scores - torch.where(torch.isinf(top), 0.0, top)).exp()
    total = weights.sum(-1, keepdim=True)
    return weights / torch.where(total == 0, 1.0, total)


def exact(a: SparseOperand, case: Case, dtype: torch.dtype = torch.float64) -> list[torch.Tensor]:
    """What `run` gives, in float64 or another dtype by autograd."""
    leaves = [x.to(dtype).detach().requires_grad_() for x in case.leaves]
    q, k, v = leaves[:3]
    scores = q @ k.mT * case.factor
    if case.bias is not None:
        scores = scores + _dense(a, leaves[3])
    out = (_softmax(a, case, scores) * _dense(a, kept_factors(a, case).to(dtype))) @ v
    return [out.detach(), *torch.autograd.grad(out, leaves, case.grad.to(dtype))]


def few_roundings(a: SparseOperand, case: Case | GraphCase) -> float:
    """The error that is allowed where there are few edges: eight roundings, which may cancel in a plain run.

    On a GPU sums of the two tf32 parts of an fp32 operand are cut off, which is an error of twice the size.
    """
    dense = isinstance(case, Case)
    cut_off = 2 if dense and a.precision is Precision.FP32 and a.device.type == "cuda" else 1
    dtype = case.q.dtype if isinstance(case, Case) else case.grad_out.dtype
    return 8 * max(cut_off * ROUNDING[a.precision], torch.finfo(dtype).eps)


def exact_scores(a: SparseOperand, case: Case) -> torch.Tensor:
    """The scores, float64 [B, H, L, S]; -inf where there is no edge, or none that counts."""
    scores = case.q.double() @ case.k.double().mT * case.factor
    if case.bias is not None:
        scores = scores + _dense(a, case.bias.double())
    return _masked(a, case, scores)


def log_sum_exp(a: SparseOperand, stats: torch.Tensor) -> torch.Tensor:
    """The logarithm of the sum of exp(score) of each row, by what the backward pass is given: [B, H, L]."""
    shift, scale = stats.unbind(-1)
    shift = shift * math.log(2) if device_module.path().takes(a.device) else shift
    return torch.where(scale == 0, float("-inf"), shift - scale.log())


def plain(a: SparseOperand, case: Case, products: torch.Tensor | None = None) -> list[torch.Tensor]:
    """What `run` gives, in float32 with the operands of every product rounded to A's precision.

    As in FlashAttention the backward pass has the output in its own dtype and each row's statistics.
    `products` are the forward pass's scaled products of q and k, if it rounds others than the backward pass.
    """

    def r(x: torch.Tensor) -> torch.Tensor:
        return round_operand(x.float(), Precision.parse(a.precision)).float()

    q, k, v, grad = (r(x) for x in (case.q, case.k, case.v, case.grad))
    scores = q @ k.mT * case.factor
    first = scores if products is None else products
    if case.bias is not None:
        bias = _dense(a, case.bias.float())
        scores, first = scores + bias, first + bias
    p, kept = _softmax(a, case, first), _dense(a, kept_factors(a, case).float())
    out = (r(p * kept) @ v).to(case.q.dtype)
    shift = first.masked_fill(p == 0, float("-inf")).amax(-1, keepdim=True) if p.shape[-1] else 0.0
    total = torch.where(p == 0, 0.0, (first - shift).exp()).sum(-1, keepdim=True)
    p = torch.where(p == 0, 0.0, (scores - shift).exp() / total)
    dp = grad @ v.mT * kept
    ds = p * (dp - (grad * out).sum(-1, keepdim=True))
    results = [out, r(ds) @ k * case.factor, r(ds).mT @ q * case.factor, r(p * kept).mT @ grad]
    results = [x.to(case.q.dtype) for x in results]
    if case.bias is not None:
        row, col = a.indices().cpu()
        results.append(ds[..., row, col].sum_to_size(case.bias.shape).to(case.bias.dtype))
    return results


def shares_rows(a: SparseOperand) -> bool:
    """Whether an H200 would take the operand in panels of 64 rows, where nothing else forbids it."""
    with device_module.use(StandInPath(None)):
        return attention_plan.shares_rows(a.kernels.problem(Product("attention", 64, value_width=64)))


# Graph attention.


@dataclass(frozen=True)
class GraphCase:
    """The arguments of a GraphCall and the gradients of its results, on the CPU; options are without seed."""

    arrays: Arrays
    grad_out: torch.Tensor
    grad_mapped: torch.Tensor | None
    grad_weights: torch.Tensor | None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """What has a gradient, in the order of `Arrays`."""
        return [name for name, x in self.arrays._asdict().items() if x is not None]

    def call(self, a: SparseOperand) -> GraphCall:
        seed = torch.tensor([SEED], device=a.device) if self.options.get("dropout_p") else None
        arrays = Arrays(*(None if x is None else x.to(a.device) for x in self.arrays))
        return GraphCall(a, arrays, seed=seed, **self.options)

    def with_arrays(self, **arrays: torch.Tensor | None) -> GraphCase:
        return replace(self, arrays=self.arrays._replace(**arrays))


def make_graph_case(
    a: SparseOperand, d: int, dv: int | None = None, *, heads: int = 3, score: str = "dot",
    bias: int | None = None, features: int | None = None, gate: int | None = None, mapped: int | None = None,
    in_scores: bool = True, grad_weights: bool = False, dtype: torch.dtype = torch.float32, **options: Any,
) -> GraphCase:  # fmt: skip
    """Random arguments with heads of d keys and dv values; edge terms have 1 or `heads` heads, or None."""
    (rows, cols), dv = a.shape, d if dv is None else dv
    additive = score == "additive"

    def draw(*shape: int | None, size: float = 1.0) -> torch.Tensor | None:
        return None if None in shape else (size * torch.randn(*shape)).to(dtype)  # type: ignore[arg-type]

    inner = () if additive else (d,)
    arrays = Arrays(
        draw(rows, heads, *inner), draw(cols, heads, *inner), draw(cols, heads, dv),
        draw(heads, d, size=d**-0.5) if score == "gatv2" else None, draw(a.nnz, bias),
        draw(a.nnz, features, *inner), draw(a.nnz, gate, d), draw(a.nnz, mapped),
        draw(rows, heads, mapped) if in_scores else None,
    )  # fmt: skip
    options = {"score": score, "scale": max(d, 1) ** -0.5, "to_values": dv == d and not additive, **options}
    out = draw(rows, heads, dv)
    assert out is not None
    has_mapped = mapped is not None and options["to_values"]
    return GraphCase(
        arrays, out, draw(rows, heads, mapped) if has_mapped else None,
        torch.randn(a.nnz, heads) if grad_weights else None, options,
    )  # fmt: skip


def run_graph(backend: Any, a: SparseOperand, case: GraphCase) -> list[torch.Tensor]:
    """The results of a backend's module and the gradient of every tensor, on the CPU."""
    call = case.call(a)
    result = backend.graph_forward(call)
    given = (case.grad_out, case.grad_mapped, case.grad_weights)
    needs = tuple(x is not None for x in call.arrays)
    grads = backend.graph_backward(
        call, result, *(None if x is None else x.to(a.device) for x in given), needs
    )
    results = [result.out, result.mapped, backend.graph_weights(call, result)]
    assert (result.mapped is not None) == (case.grad_mapped is not None)
    assert [name for name, x in grads._asdict().items() if x is not None] == case.names
    return [x.detach().cpu() for x in (*results, *grads) if x is not None]


def _scores(call: GraphCall, x: Arrays, row: torch.Tensor, column: torch.Tensor) -> torch.Tensor:
    """Finished scores [nnz, H]; -inf for masked edges."""
    own, key = x.q[row], x.k[column]
    if x.gate is not None:
        key = key * x.gate
    if x.features is not None and (call.to_keys or call.score == "additive"):
        key = key + x.features
    if call.score == "dot":
        scores = (own * key).sum(2)
        if x.mapped is not None and x.mapped_q is not None:
            scores = scores + (x.mapped_q[row] * x.mapped[:, None]).sum(2)
        scores = scores * call.scale
    else:
        scores = torch.nn.functional.leaky_relu(own + key, call.negative_slope)
        if x.att is not None:
            scores = (scores * x.att).sum(2)
    if call.clamp:
        scores = scores.clamp(-call.clamp, call.clamp)
    if x.bias is not None:
        scores = scores + x.bias
    masked = (column > row) if call.is_causal else torch.zeros_like(row, dtype=torch.bool)
    return scores.masked_fill(masked[:, None], float("-inf"))


def _edge_softmax(scores: torch.Tensor, row: torch.Tensor, rows: int) -> torch.Tensor:
    """The softmax over rows, [nnz, H]."""
    sizes = rows, scores.shape[1]
    places = row[:, None].expand_as(scores)
    top = scores.new_full(sizes, float("-inf")).scatter_reduce(0, places, scores.detach(), "amax")
    top = torch.where(torch.isinf(top), 0.0, top)
    shifted = (scores - top[row]).exp()
    total = scores.new_zeros(sizes).index_add(0, row, shifted)
    total = torch.where(total == 0, 1.0, total)
    return shifted / total[row]


class _TermsOfSoftmax(torch.autograd.Function):
    """A softmax whose gradient is the size of its two terms: the weight's gradient, and the row's sum."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, row: torch.Tensor, rows: int) -> torch.Tensor:
        weights = _edge_softmax(scores, row, rows)
        ctx.save_for_backward(weights, row)
        ctx.rows = rows
        return weights

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:  # type: ignore[override]
        weights, row = ctx.saved_tensors
        inner = grad.new_zeros(ctx.rows, grad.shape[1]).index_add(0, row, weights * grad)
        return weights * grad.hypot(inner[row]), None, None


def _weighed(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """The values [nnz, H, n] or [nnz, 1, n], times the weights [nnz, H]."""
    return weights[:, :, None] * values


class _TermsOfWeights(torch.autograd.Function):
    """Weighed values, whose gradient of a weight is the size of its terms: what cancels leaves errors."""

    @staticmethod
    def forward(ctx: Any, weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(weights, values)
        return _weighed(weights, values)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # type: ignore[override]
        weights, values = ctx.saved_tensors
        return (grad * values).norm(dim=2), (weights[:, :, None] * grad).sum_to_size(values.shape)


Softmax = Callable[[torch.Tensor, torch.Tensor, int], torch.Tensor]
Weigh = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _attend(call: GraphCall, x: Arrays, softmax: Softmax, weigh: Weigh = _weighed) -> list[torch.Tensor]:
    """Out, mapped if there is any, and the weights after dropout, in the dtype of `x`."""
    row, column = call.operand.indices().cpu()
    scores = _scores(call, x, row, column)
    weights = softmax(scores, row, call.operand.shape[0]) if call.normalize else scores.exp()
    if call.seed is not None:
        index = torch.stack([row, column])
        kept = [keeps(call.seed.cpu(), index, head, call.dropout_p) for head in range(call.heads)]
        weights = weights * (torch.stack(kept, 1).to(weights) / (1 - call.dropout_p))
    values = x.v[column]
    if x.features is not None and call.to_values and call.score != "additive":
        values = values + x.features
    sizes = call.operand.shape[0], call.heads
    results = [weights.new_zeros(*sizes, values.shape[2]).index_add(0, row, weigh(weights, values))]
    if x.mapped is not None and call.to_values:
        terms = weigh(weights, x.mapped[:, None])
        results.append(weights.new_zeros(*sizes, x.mapped.shape[1]).index_add(0, row, terms))
    return [*results, weights]


def _differentiate(
    call: GraphCall, leaves: Arrays, grads: list[Any], softmax: Softmax, weigh: Weigh = _weighed
) -> list[torch.Tensor]:
    """The results, and the gradients of the tensors."""
    given = [x.requires_grad_() for x in leaves if x is not None]
    results = _attend(call, leaves, softmax, weigh)
    total = sum((x * grad).sum() for x, grad in zip(results, grads, strict=True) if grad is not None)
    computed = torch.autograd.grad(total, given, allow_unused=True)
    shaped = [torch.zeros_like(x) if g is None else g for g, x in zip(computed, given, strict=True)]
    return [*(x.detach() for x in results), *shaped]


def _grads(case: GraphCase) -> list[torch.Tensor | None]:
    own = [case.grad_out] if case.grad_mapped is None else [case.grad_out, case.grad_mapped]
    return [*own, case.grad_weights]


def exact_graph(
    a: SparseOperand, case: GraphCase, softmax: Softmax = _edge_softmax, weigh: Weigh = _weighed
) -> list[torch.Tensor]:
    """What `run_graph` gives, in float64."""
    leaves = Arrays(*(None if x is None else x.double() for x in case.arrays))
    grads = [None if x is None else x.double() for x in _grads(case)]
    return _differentiate(case.call(a), leaves, grads, softmax, weigh)


def term_sizes(a: SparseOperand, case: GraphCase) -> list[torch.Tensor | None]:
    """How large the terms of gradients are, the `scales` of gnnsparse.testing; None for the results."""
    found = exact_graph(a, case, _TermsOfSoftmax.apply, _TermsOfWeights.apply)
    return [*[None] * (len(found) - len(case.names)), *found[-len(case.names) :]]


def plain_graph(a: SparseOperand, case: GraphCase) -> list[torch.Tensor]:
    """What `run_graph` gives, in float32 with operands rounded to A's precision, in the arguments' dtypes."""
    precision, additive = Precision.parse(a.precision), case.options["score"] == "additive"
    unrounded = {"att", "bias", *(("q", "k", "features") if additive else ())}

    def r(x: torch.Tensor | None, name: str = "") -> torch.Tensor | None:
        if x is None:
            return None
        return x.float().clone() if name in unrounded else round_operand(x, precision).float().clone()

    leaves = Arrays(*(r(x, name) for name, x in case.arrays._asdict().items()))
    *grads, of_weights = _grads(case)
    given = [*(r(x) for x in grads), of_weights]
    results = _differentiate(case.call(a), leaves, given, _edge_softmax)
    dtypes = [case.grad_out.dtype] * len(grads) + [torch.float32]
    dtypes += [x.dtype for x in case.arrays if x is not None]
    return [x.to(dtype) for x, dtype in zip(results, dtypes, strict=True)]
