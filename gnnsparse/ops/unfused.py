"""Attention as a chain of products, head by head: sddmm, edge_softmax, spmm.

`chain` is differentiable by autograd and stores a weight for each edge and head. `attention` and
`attention_grad` are the same chain behind the interface of the fused kernels: they keep what one head
needs. In all of them q is [B, H, L, D], k [B, H, S, D], v [B, H, S, Dv], bias None or [B or 1, H or 1, nnz].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.operand import SparseOperand
from gnnsparse.ops.backend import backend_of
from gnnsparse.ops.layout import empty_grads, empty_heads
from gnnsparse.ops.philox import keeps
from gnnsparse.ops.products import edge_softmax, sddmm, spmm
from gnnsparse.side import Side

__all__ = ["attention", "attention_grad", "chain"]

_Grads = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def _exact(x: torch.Tensor) -> torch.Tensor:
    return x if x.dtype == torch.float64 else x.float()


@dataclass(frozen=True)
class _Chain:
    """The arguments that all heads share, and what is the same for all heads."""

    a: SparseOperand
    index: torch.Tensor | None  # of A's nonzeros, where dropout or the mask asks for it
    bias: torch.Tensor | None
    scale: float
    dropout_p: float
    seed: torch.Tensor | None
    is_causal: bool
    impl: str = "auto"

    def masked(self) -> torch.Tensor | None:
        """Edges above the diagonal, bool [nnz]."""
        return self.index[1] > self.index[0] if self.is_causal and self.index is not None else None

    def bias_of(self, b: int, h: int) -> torch.Tensor | None:
        """The bias of one head, [nnz]."""
        if self.bias is None:
            return None
        return self.bias[b if self.bias.shape[0] > 1 else 0, h if self.bias.shape[1] > 1 else 0]

    def scores(
        self, q: torch.Tensor, k: torch.Tensor, bias: torch.Tensor | None, masked: torch.Tensor | None
    ) -> torch.Tensor:
        """Scores of one head, float32 [nnz]: rows of q and k are [L, D] and [S, D]."""
        scores = sddmm(self.a, _exact(q), _exact(k), impl=self.impl) * self.scale
        if bias is not None:
            scores = scores + bias.to(scores.dtype)
        return scores if masked is None else scores.masked_fill(masked, float("-inf"))

    def factors(self, head: int, dtype: torch.dtype) -> torch.Tensor | None:
        """What dropout multiplies the weights of one head with, [nnz]: 0 or 1 / (1 - p)."""
        if self.seed is None or self.index is None:
            return None
        return keeps(self.seed, self.index, head, self.dropout_p).to(dtype) / (1 - self.dropout_p)


def chain(
    a: SparseOperand, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    scale: float, dropout_p: float, seed: torch.Tensor | None, is_causal: bool, impl: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attention by the differentiable products.

    Returns:
        [B, H, L, Dv] and the weights after dropout [B, H, nnz], both in the dtype of q.
    """
    index = a.indices() if is_causal or seed is not None else None
    shared = _Chain(a, index, bias, scale, dropout_p, seed, is_causal, impl)
    masked = shared.masked()
    batches, heads = q.shape[:2]
    outs, weights = [], []
    for b in range(batches):
        for h in range(heads):
            scores = shared.scores(q[b, h], k[b, h], shared.bias_of(b, h), masked)
            p = edge_softmax(a, scores, impl=impl)
            factors = shared.factors(b * heads + h, p.dtype)
            p = p if factors is None else p * factors
            outs.append(spmm(a, _exact(v[b, h]), p, impl=impl).to(q.dtype))
            weights.append(p.to(q.dtype))
    if not outs:
        return q.new_zeros(batches, heads, a.shape[0], v.shape[-1]), q.new_zeros(batches, heads, a.nnz)
    return (
        torch.stack(outs).view(batches, heads, a.shape[0], v.shape[-1]),
        torch.stack(weights).view(batches, heads, a.nnz),
    )


def _logsumexp(side: Side, scores: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Of each row, float32 [rows]; from the largest score, whose weight can't be 0. No sums: bitwise."""

    def largest(x: torch.Tensor) -> torch.Tensor:
        low = float("-inf")  # of rows without edges
        return torch.segment_reduce(x, "max", offsets=side.csr.indptr, initial=low, unsafe=True)

    top = largest(scores)
    lse = torch.where(top == float("-inf"), top, top - largest(weights).log())
    return lse if side.row_ids is None else torch.empty_like(lse).index_copy(0, side.row_ids.long(), lse)


@torch.no_grad()
def attention(
    operand: SparseOperand, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    scale: float, dropout_p: float, seed: torch.Tensor | None, is_causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """See gnnsparse.ops.cpu_attention.attention."""
    index = operand.indices() if is_causal or seed is not None else None
    shared = _Chain(operand, index, bias, scale, dropout_p, seed, is_causal)
    masked = shared.masked()
    batches, heads, rows = q.shape[:3]
    out = empty_heads(q, v.shape[-1])
    lse = torch.empty(batches, heads, rows, dtype=torch.float32, device=q.device)
    for b in range(batches):
        for h in range(heads):
            scores = shared.scores(q[b, h], k[b, h], shared.bias_of(b, h), masked)
            p = edge_softmax(operand, scores)
            lse[b, h] = _logsumexp(operand.side, scores, p)
            factors = shared.factors(b * heads + h, p.dtype)
            out[b, h] = spmm(operand, v[b, h].float(), p if factors is None else p * factors)
    return out, lse


@torch.no_grad()
def attention_grad(
    operand: SparseOperand, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None,
    out: torch.Tensor, lse: torch.Tensor, grad_out: torch.Tensor, scale: float, dropout_p: float,
    seed: torch.Tensor | None, is_causal: bool, needs: tuple[bool, bool, bool, bool],
) -> _Grads:  # fmt: skip
    """See gnnsparse.ops.cpu_attention.attention_grad. Makes the softmax anew instead of reading lse."""
    index = operand.indices() if is_causal or seed is not None else None
    shared = _Chain(operand, index, bias, scale, dropout_p, seed, is_causal)
    masked = shared.masked()
    batches, heads = q.shape[:2]
    dq, dk, dv = empty_grads((q, k, v), needs)
    dbias = torch.zeros_like(bias, dtype=torch.float32) if bias is not None and needs[3] else None
    softmax_grad = backend_of(q.device).edge_softmax_grad
    for b in range(batches):
        for h in range(heads):
            own = shared.bias_of(b, h)
            p = edge_softmax(operand, shared.scores(q[b, h], k[b, h], own, masked))
            factors = shared.factors(b * heads + h, p.dtype)
            grad = grad_out[b, h].float()
            if dv is not None:
                dropped = p if factors is None else p * factors
                dv[b, h] = spmm(operand.T, grad, operand.transpose_values(dropped))
            dp = sddmm(operand, grad, v[b, h].float())
            ds = softmax_grad(operand.side, p, dp if factors is None else dp * factors)
            if dq is not None:
                dq[b, h] = spmm(operand, k[b, h].float(), ds) * scale
            if dk is not None:
                dk[b, h] = spmm(operand.T, q[b, h].float(), operand.transpose_values(ds)) * scale
            if dbias is not None:
                dbias[b if dbias.shape[0] > 1 else 0, h if dbias.shape[1] > 1 else 0] += ds
    return dq, dk, dv, None if bias is None or dbias is None else dbias.to(bias.dtype)
