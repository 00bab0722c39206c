"""Attention that is not fused: the three operations for each head, and graph attention in torch alone.

`by_operations` (sddmm, edge_softmax and spmm), `by_products` and `graph_forward` (which stores a row of
features for each edge and head) are differentiable by autograd, the first and last also inside transforms of
torch.func. `forward` and `backward` run the three operations with the arguments and results of the fused
kernels, and store weights of one head at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.ops.attention import arguments
from gnnsparse.ops.attention.arguments import Arrays, AttentionCall, Grads, GraphCall, Needs, Result
from gnnsparse.ops.attention.philox import keeps
from gnnsparse.ops.attention.quantized import differentiable
from gnnsparse.ops.products import sddmm, spmm
from gnnsparse.ops.quantization import exact_rounded
from gnnsparse.ops.softmax import edge_softmax, softmax_grad
from gnnsparse.runtime.device import path
from gnnsparse.sparse.kernel_cache import KernelCache

_MASKED = float("-inf")


def _exact(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


# Attention by three operations.


class _Head(NamedTuple):
    """One head of one batch entry: its place `at`, that of its bias, tensors, and masked scores [nnz].

    `factors` are what dropout multiplies the weights with, 0 or 1 / (1 - p), or None.
    """

    at: tuple[int, int]
    of_bias: tuple[int, int]
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    scores: torch.Tensor
    factors: torch.Tensor | None

    def dropped(self, weights: torch.Tensor) -> torch.Tensor:
        """Apply dropout to weights, or to their gradients."""
        return weights if self.factors is None else weights * self.factors


def _heads(call: AttentionCall, impl: str = "auto") -> Iterator[_Head]:
    a, bias, seed, index = call.operand.unquantized, call.bias, call.seed, None
    if call.is_causal or seed is not None:
        index = call.operand.indices()
    masked = index[1] > index[0] if index is not None and call.is_causal else None
    batches, heads = call.q.shape[:2]
    for b in range(batches):
        for h in range(heads):
            q, k, v = call.q[b, h], call.k[b, h], call.v[b, h]
            scores = sddmm(a, _exact(q), _exact(k), impl=impl) * call.scale
            of_bias = (0, 0)
            if bias is not None:
                of_bias = b if bias.shape[0] > 1 else 0, h if bias.shape[1] > 1 else 0
                scores = scores + bias[of_bias].to(scores.dtype)
            scores = scores if masked is None else scores.masked_fill(masked, _MASKED)
            factors = None
            if seed is not None and index is not None:
                kept = keeps(seed, index, b * heads + h, call.dropout_p)
                factors = kept.to(scores.dtype) / (1 - call.dropout_p)
            yield _Head((b, h), of_bias, q, k, v, scores, factors)


def by_operations(call: AttentionCall, impl: str = "auto") -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the output and the weights [B, H, nnz] by three operations, which autograd follows."""
    call = differentiable(call)
    a, q = call.operand.unquantized, call.q
    outs, weights = [], []
    for head in _heads(call, impl):
        p = head.dropped(edge_softmax(a, head.scores, impl=impl))
        outs.append(spmm(a, _exact(head.v), p, impl=impl).to(q.dtype))
        weights.append(p.to(q.dtype))
    shape = *q.shape[:2], a.shape[0], call.v.shape[-1]
    if not outs:  # autograd sees what nothing was computed from
        nothing = sum(x[:0].sum() for x in (q, call.k, call.v, call.bias) if x is not None)
        return q.new_zeros(shape) + nothing, q.new_zeros(*q.shape[:2], a.nnz) + nothing
    with torch.autocast(q.device.type, enabled=False):  # which would not stack float16 on a CPU
        return torch.stack(outs).view(shape), torch.stack(weights).view(*q.shape[:2], a.nnz)


def _stats(kernels: KernelCache, scores: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return each row's largest score and its weight, float32 [rows, 2]: no sum whose order varies."""

    def largest(x: torch.Tensor) -> torch.Tensor:
        low = _MASKED  # the value of rows without edges
        return torch.segment_reduce(x, "max", offsets=kernels.csr.indptr, initial=low, unsafe=True)

    shift, scale = largest(scores), largest(weights)
    if path().takes(scores.device):
        exponent = shift.double() / math.log(2)
        shift = exponent.floor()
        scale = scale * (shift - exponent).exp2()
    stats = torch.stack([shift, scale], -1).float()
    stats = stats.masked_fill(shift[:, None] == _MASKED, 0.0)
    ids = kernels.row_ids
    return stats if ids is None else torch.empty_like(stats).index_copy(0, ids.long(), stats)


@torch.no_grad()
def forward(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the results of `schema.run_forward` head by head."""
    a, q = call.operand.unquantized, call.q
    out = arguments.empty_heads(q, call.v.shape[-1])
    stats = torch.empty(*q.shape[:3], 2, dtype=torch.float32, device=q.device)
    for head in _heads(call):
        p = edge_softmax(a, head.scores)
        stats[head.at] = _stats(a.kernels, head.scores, p)
        out[head.at] = spmm(a, head.v.float(), head.dropped(p))
    return out, stats


@torch.no_grad()
def backward(call: AttentionCall, grad_out: torch.Tensor, needs: Needs) -> Grads:
    """Compute the gradients of `schema.run_backward` head by head, that of the bias in float32."""
    a = call.operand.unquantized
    dq, dk, dv, dbias = arguments.empty_grads(call, needs)
    for head in _heads(call):
        p = edge_softmax(a, head.scores)
        grad = grad_out[head.at].float()
        if dv is not None:
            dv[head.at] = spmm(a.T, grad, a.transpose_values(head.dropped(p)))
        ds = softmax_grad(a.kernels, p, head.dropped(sddmm(a, grad, head.v.float())))
        if dq is not None:
            dq[head.at] = spmm(a, head.k.float(), ds) * call.scale
        if dk is not None:
            dk[head.at] = spmm(a.T, head.q.float(), a.transpose_values(ds)) * call.scale
        if dbias is not None:
            dbias[head.of_bias] += ds
    return dq, dk, dv, dbias


def by_products(call: GraphCall) -> torch.Tensor:
    """Compute graph attention with additive scores, all heads side by side, with weights that are stored."""
    a, (row, column) = call.arrays, call.operand.indices()
    scores = a.q.index_select(0, row) + a.k.index_select(0, column)
    scores = scores if a.features is None else scores + a.features
    weights = edge_softmax(call.operand, F.leaky_relu(scores, call.negative_slope))
    return spmm(call.operand, a.v, weights)


# Graph attention: the readable specification, in plain torch.


def graph_forward(call: GraphCall) -> tuple[Result, torch.Tensor]:
    """Compute the results, and the weights after dropout, float32 or float64 [nnz, H]."""
    a, rows, additive = call.arrays, call.operand.shape[0], call.score == "additive"
    index = call.operand.indices()
    row, column = index
    counts = None if a.bias is None else a.bias.detach() > _MASKED  # the edges that count, [nnz, 1 or H]
    if call.is_causal:
        below = (column <= row)[:, None]
        counts = below if counts is None else counts & below

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return exact_rounded(x, call.operand.precision)

    def scored(x: torch.Tensor) -> torch.Tensor:
        return _exact(x) if additive else rounded(x)

    def without_masked(x: torch.Tensor) -> torch.Tensor:
        """Return `x` [nnz, H or 1, ...] with zeros for edges that do not count, infinite as they may be."""
        return x if counts is None else torch.where(counts[(..., *(None,) * (x.dim() - 2))], x, 0.0)

    def sums(x: torch.Tensor) -> torch.Tensor:
        """Add up edge values [nnz, ...] over the edges of each row: [rows, ...]."""
        return x.new_zeros(rows, *x.shape[1:]).index_add(0, row, x)

    keys = scored(a.k).index_select(0, column)
    if a.gate is not None:
        keys = keys * rounded(a.gate)
    if a.features is not None and call.to_keys:
        keys = keys + scored(a.features)
    keys, queries = without_masked(keys), scored(a.q).index_select(0, row)
    mapped = None if a.mapped is None else without_masked(rounded(a.mapped)[:, None])
    if call.score == "dot":
        scores = (queries * keys).sum(-1)
    else:
        scores = F.leaky_relu(queries + keys, call.negative_slope)
        scores = scores if a.att is None else (scores * _exact(a.att)).sum(-1)
    mapped_q = a.mapped_q
    if a.map is not None and call.to_keys:
        mapped_q = torch.einsum("nhd,hde->nhe", rounded(a.q), rounded(a.map))
    if mapped_q is not None and mapped is not None:
        scores = scores + (rounded(mapped_q).index_select(0, row) * mapped).sum(-1)
    if call.score == "dot":
        scores = scores * call.scale
    if call.clamp:
        scores = scores.clamp(-call.clamp, call.clamp)
    if a.bias is not None:
        scores = scores + without_masked(_exact(a.bias))
    if counts is not None:
        scores = scores.masked_fill(~counts, _MASKED)

    if call.normalize:
        top = scores.new_full((rows, call.heads), _MASKED)
        top = top.scatter_reduce(0, row[:, None].expand_as(scores), scores.detach(), "amax")
        top = torch.where(top == _MASKED, 0.0, top)
        exponentials = (scores - top[row]).exp()
        total = sums(exponentials)
        weights = exponentials / torch.where(total == 0, 1.0, total)[row]
        stats = torch.stack([top, torch.where(total == 0, 0.0, 1 / total)], -1).detach()
    else:
        weights = scores.exp()
        stats = scores.new_tensor([0.0, 1.0]).expand(rows, call.heads, 2).contiguous()
    if call.seed is not None:
        kept = [keeps(call.seed, index, head, call.dropout_p) for head in range(call.heads)]
        weights = torch.where(torch.stack(kept, 1), weights / (1 - call.dropout_p), 0.0)

    values = rounded(a.v).index_select(0, column)
    if a.features is not None and call.to_values:
        values = values + rounded(a.features)
    out, of_mapped = sums(weights[..., None] * without_masked(values)), None
    if mapped is not None and call.to_values:
        of_mapped = sums(weights[..., None] * mapped).to(a.v.dtype)
        if a.map is not None:
            out = out + torch.einsum("nhe,hde->nhd", rounded(of_mapped), rounded(a.map))
    return Result(out.to(a.v.dtype), of_mapped, stats), weights


def graph_backward(
    call: GraphCall, grad_out: torch.Tensor, grad_mapped: torch.Tensor | None,
    grad_weights: torch.Tensor | None, needs: tuple[bool, ...],
) -> Arrays:  # fmt: skip
    """Compute the gradients that are needed; the others are None."""
    with torch.enable_grad():
        pairs = zip(call.arrays, needs, strict=True)
        leaves = Arrays(*(None if x is None else x.detach().requires_grad_(need) for x, need in pairs))
        again, dropped = graph_forward(call._replace(arrays=leaves))
    results = [(again.out, grad_out), (again.mapped, grad_mapped), (dropped, grad_weights)]
    outputs = [y for y, g in results if y is not None and g is not None]
    given = [g for _, g in results if g is not None]
    wanted = [x for x in leaves if x is not None and x.requires_grad]
    found = iter(torch.autograd.grad(outputs, wanted, given, allow_unused=True))
    return Arrays(*(next(found) if need else None for need in needs))
