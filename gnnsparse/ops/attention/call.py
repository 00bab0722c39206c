"""The arguments of attention, as every implementation takes them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.kernel_cache import Product
from gnnsparse.operand import SparseOperand

__all__ = ["AttentionCall", "Grads", "Needs"]

#: Gradients of q, k, v and the bias, each None where it is not needed.
Grads = tuple["torch.Tensor | None", "torch.Tensor | None", "torch.Tensor | None", "torch.Tensor | None"]
#: Which of them to make.
Needs = tuple[bool, bool, bool, bool]


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """Attention over the nonzeros of an operand [L, S], in every head of every batch.

    Attributes:
        operand: the pattern.
        q, k, v: [B, H, L, D], [B, H, S, D], [B, H, S, Dv], any strides.
        bias: [B or 1, H or 1, nnz] in the nonzero order of the operand, or None.
        seed: int64 [1], where dropout_p > 0.
        scale: factor on the dot products.
        dropout_p: share of the weights that is dropped.
        is_causal: whether edges with column > row do not count.
    """

    operand: SparseOperand
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    bias: torch.Tensor | None
    seed: torch.Tensor | None
    scale: float
    dropout_p: float
    is_causal: bool

    @property
    def heads(self) -> int:
        """Heads of all batches together."""
        return self.q.shape[0] * self.q.shape[1]

    def product(self, op: str) -> Product:
        """What the plan of the forward ("attention") or backward pass ("attention_grad") is kept under."""
        extras = self.bias is not None or self.seed is not None or self.is_causal
        return Product(op, self.q.shape[3], False, self.v.shape[3], self.heads, extras)
