"""Dense attention: exact in float64 by autograd, and plain in a precision by the formulas."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

import gnnsparse
from gnnsparse import Precision, SparseOperand
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


def few_roundings(a: SparseOperand, case: Case) -> float:
    """What error is allowed in any case where there are few edges: eight roundings of an operand.

    A plain run of a handful of them may be exact by luck. On a GPU the Tensor Cores cut sums of the two tf32
    parts of an fp32 operand off where float32 rounds, which is an error of twice the size.
    """
    cut_off = 2 if a.precision is Precision.FP32 and a.device.type == "cuda" else 1
    return 8 * max(cut_off * ROUNDING[a.precision], torch.finfo(case.q.dtype).eps)


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

    As in FlashAttention the backward pass has of the forward pass the output, in its own dtype, and what each
    row's scores were lowered by and its weights divided by, in float32. `products` are what the forward pass
    has in place of its own scaled products of q and k, [B, H, L, S], if it rounds others than the backward
    pass.
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
