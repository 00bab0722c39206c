"""Attention as a chain of three operations for each head: sddmm, edge_softmax, spmm.

`chain` is differentiable by autograd and stores a weight for each edge and head. `forward` and `backward` run
the chain with the arguments and results of the fused kernels, and store weights of one head at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from gnnsparse.ops.attention.call import AttentionCall, Grads, Needs
from gnnsparse.ops.attention.layout import empty_grads, empty_heads
from gnnsparse.ops.attention.philox import keeps
from gnnsparse.ops.attention.quantized import differentiable
from gnnsparse.ops.sddmm.api import sddmm
from gnnsparse.ops.softmax.api import edge_softmax
from gnnsparse.ops.softmax.schema import backend as softmax_backend
from gnnsparse.ops.softmax.schema import times_jacobian
from gnnsparse.ops.spmm.api import spmm
from gnnsparse.runtime.device import path
from gnnsparse.sparse.kernel_cache import KernelCache

__all__ = ["backward", "chain", "forward", "tangent"]


def _exact(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


@dataclass(frozen=True, eq=False)
class _Head:
    """One head of one batch entry.

    Attributes:
        at: (batch entry, head).
        number: index of the head among those of all batch entries.
        q, k, v: [L, D], [S, D], [S, Dv].
        bias: [nnz], or None.
    """

    at: tuple[int, int]
    number: int
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    bias: torch.Tensor | None


def _shared(x: torch.Tensor, b: int, h: int) -> tuple[int, int]:
    """Returns the first two indices of the values of batch entry `b`, head `h` in [B or 1, H or 1, nnz]."""
    return b if x.shape[0] > 1 else 0, h if x.shape[1] > 1 else 0


@dataclass(frozen=True, eq=False)
class _Chain:
    """The operations on one head, and the tensors that all heads share.

    Attributes:
        call: the arguments of attention.
        impl: the argument `impl` of the operations.
        index: (row, column) of each nonzero, int64 [2, nnz]; None without dropout and causal mask.
        masked: True for edges above the diagonal, bool [nnz]; None without causal mask.
    """

    call: AttentionCall
    impl: str
    index: torch.Tensor | None
    masked: torch.Tensor | None

    @classmethod
    def of(cls, call: AttentionCall, impl: str = "auto") -> _Chain:
        """Makes the chain of a call. `index` is no cached property: torch.compile can't trace those."""
        if not call.is_causal and call.seed is None:
            return cls(call, impl, None, None)
        index = call.operand.indices()
        return cls(call, impl, index, index[1] > index[0] if call.is_causal else None)

    def heads(self) -> Iterator[_Head]:
        """Yields all heads of all batch entries, in order."""
        call, bias = self.call, self.call.bias
        batches, heads = call.q.shape[:2]
        for b in range(batches):
            for h in range(heads):
                own = (
                    None
                    if bias is None
                    else bias[b if bias.shape[0] > 1 else 0, h if bias.shape[1] > 1 else 0]
                )
                yield _Head((b, h), b * heads + h, call.q[b, h], call.k[b, h], call.v[b, h], own)

    def scores(self, head: _Head) -> torch.Tensor:
        """Computes the scores of a head, scaled, biased and masked: float32 [nnz], float64 for float64 q."""
        a, q, k = self.call.operand, _exact(head.q), _exact(head.k)
        scores = sddmm(a, q, k, impl=self.impl) * self.call.scale
        if head.bias is not None:
            scores = scores + head.bias.to(scores.dtype)
        return scores if self.masked is None else scores.masked_fill(self.masked, float("-inf"))

    def factors(self, head: _Head, dtype: torch.dtype) -> torch.Tensor | None:
        """Returns the factors by which dropout multiplies the weights, [nnz]: 0 or 1 / (1 - p)."""
        seed, p = self.call.seed, self.call.dropout_p
        if seed is None or self.index is None:
            return None
        return keeps(seed, self.index, head.number, p).to(dtype) / (1 - p)


def chain(call: AttentionCall, impl: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes attention by the three operations, which autograd differentiates.

    Args:
        call: the arguments of attention.
        impl: the argument `impl` of the operations.

    Returns:
        The output [B, H, L, Dv] and the weights after dropout [B, H, nnz], both in the dtype of q.
    """
    call = differentiable(call)
    a, q, steps = call.operand.unquantized, call.q, _Chain.of(call, impl)
    batches, heads = q.shape[:2]
    outs, weights = [], []
    for head in steps.heads():
        p = edge_softmax(a, steps.scores(head), impl=impl)
        factors = steps.factors(head, p.dtype)
        p = p if factors is None else p * factors
        outs.append(spmm(a, _exact(head.v), p, impl=impl).to(q.dtype))
        weights.append(p.to(q.dtype))
    if not outs:
        empty = q.new_zeros(batches, heads, a.shape[0], call.v.shape[-1])
        return empty, q.new_zeros(batches, heads, a.nnz)
    with torch.autocast(q.device.type, enabled=False):  # which would not stack float16 on a CPU
        return (
            torch.stack(outs).view(batches, heads, a.shape[0], call.v.shape[-1]),
            torch.stack(weights).view(batches, heads, a.nnz),
        )


def tangent(
    call: AttentionCall, dq: torch.Tensor | None, dk: torch.Tensor | None, dv: torch.Tensor | None,
    dbias: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """Computes the change of attention's output for changes of its arguments, head by head.

    Args:
        call: the arguments of attention.
        dq, dk, dv, dbias: their changes, in their shapes; None: no change.

    Returns:
        [B, H, L, Dv] in the dtype of q.
    """
    call = differentiable(call)
    a, q, steps = call.operand.unquantized, call.q, _Chain.of(call)
    # Scores are bilinear in q and k, so that their change is a sum of scores. What is masked has weight 0.
    plain = replace(call, bias=None, is_causal=False)
    changed = [] if dq is None else [replace(plain, q=dq)]
    changed += [] if dk is None else [replace(plain, k=dk)]
    moves = [_Chain.of(term) for term in changed]
    outs = []
    for head, *moved in zip(steps.heads(), *(m.heads() for m in moves), strict=True):
        p = edge_softmax(a, steps.scores(head))
        factors = steps.factors(head, p.dtype)
        change = torch.zeros_like(p)
        for m, h in zip(moves, moved, strict=True):
            change = change + m.scores(h)
        if dbias is not None:
            change = change + dbias[_shared(dbias, *head.at)].to(p.dtype)
        dp = times_jacobian(a, p, change)
        dropped, dp = (p, dp) if factors is None else (p * factors, dp * factors)
        out = spmm(a, _exact(head.v), dp)
        if dv is not None:
            out = out + spmm(a, _exact(dv[head.at]), dropped)
        outs.append(out.to(q.dtype))
    shape = *q.shape[:2], a.shape[0], call.v.shape[-1]
    return torch.stack(outs).view(shape) if outs else q.new_zeros(shape)


def _stats(kernels: KernelCache, scores: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Returns the statistics of each row's softmax as the kernels of the device have them, float32 [rows, 2].

    They are the largest score and its weight. This takes no sum whose order could vary, so every run gives
    equal bits. Kernels of a GPU compute powers of two, and lower exponents by whole numbers.
    """

    def largest(x: torch.Tensor) -> torch.Tensor:
        low = float("-inf")  # the value of rows without edges
        return torch.segment_reduce(x, "max", offsets=kernels.csr.indptr, initial=low, unsafe=True)

    shift, scale = largest(scores), largest(weights)
    if path().takes(scores.device):
        exponent = shift.double() / math.log(2)
        shift = exponent.floor()
        scale = scale * (shift - exponent).exp2()
    stats = torch.stack([shift, scale], -1).float()
    stats = stats.masked_fill(shift[:, None] == float("-inf"), 0.0)
    ids = kernels.row_ids
    return stats if ids is None else torch.empty_like(stats).index_copy(0, ids.long(), stats)


@torch.no_grad()
def forward(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes attention head by head.

    Returns:
        The output, [B, H, L, Dv] in the dtype and memory order of q; and the statistics of each row's
        softmax, float32 [B, H, L, 2]. Rows are in the caller's numbering.
    """
    a, q, steps = call.operand.unquantized, call.q, _Chain.of(call)
    out = empty_heads(q, call.v.shape[-1])
    stats = torch.empty(*q.shape[:3], 2, dtype=torch.float32, device=q.device)
    for head in steps.heads():
        scores = steps.scores(head)
        p = edge_softmax(a, scores)
        stats[head.at] = _stats(a.kernels, scores, p)
        factors = steps.factors(head, p.dtype)
        out[head.at] = spmm(a, head.v.float(), p if factors is None else p * factors)
    return out, stats


@torch.no_grad()
def backward(
    call: AttentionCall, out: torch.Tensor, stats: torch.Tensor, grad_out: torch.Tensor, needs: Needs
) -> Grads:
    """Computes the gradients of q, k, v and bias head by head.

    Args:
        call: the arguments of `forward`.
        out, stats: not used: the softmax is computed again.
        grad_out: gradient of `out`, [B, H, L, Dv], any strides.
        needs: which gradients are needed; the others are None.

    Returns:
        Gradients in the shapes and dtypes of the arguments; those of q, k and v in their memory orders.
    """
    a, bias, steps = call.operand.unquantized, call.bias, _Chain.of(call)
    dq, dk, dv = empty_grads((call.q, call.k, call.v), needs)
    dbias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and needs[3] else None
    softmax_grad = softmax_backend(call.q.device).edge_softmax_grad
    for head in steps.heads():
        p = edge_softmax(a, steps.scores(head))
        factors = steps.factors(head, p.dtype)
        grad = grad_out[head.at].float()
        if dv is not None:
            dropped = p if factors is None else p * factors
            dv[head.at] = spmm(a.T, grad, a.transpose_values(dropped))
        dp = sddmm(a, grad, head.v.float())
        ds = softmax_grad(a.kernels, p, dp if factors is None else dp * factors)
        if dq is not None:
            dq[head.at] = spmm(a, head.k.float(), ds) * call.scale
        if dk is not None:
            dk[head.at] = spmm(a.T, head.q.float(), a.transpose_values(ds)) * call.scale
        if dbias is not None:
            dbias[_shared(dbias, *head.at)] += ds
    return dq, dk, dv, None if bias is None or dbias is None else dbias.to(bias.dtype)
