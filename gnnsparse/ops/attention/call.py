"""The arguments of attention in the form that every implementation takes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.sparse.kernel_keys import Product
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["AttentionCall", "Grads", "Needs"]

#: Gradients of q, k, v and the bias, each None if it is not needed.
Grads = tuple["torch.Tensor | None", "torch.Tensor | None", "torch.Tensor | None", "torch.Tensor | None"]
#: Whether the gradients of q, k, v and the bias are needed.
Needs = tuple[bool, bool, bool, bool]


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """Attention over the nonzeros of an operand [L, S], for H heads in each of B batch entries.

    Attributes:
        operand: the operand, whose nonzeros are the edges.
        q, k, v: [B, H, L, D], [B, H, S, D], [B, H, S, Dv], any strides.
        bias: [B or 1, H or 1, nnz] in the operand's own order, or None.
        seed: seed of dropout, int64 [1]; None if dropout_p is 0.
        scale: factor of the dot products.
        dropout_p: probability with which a weight is dropped.
        is_causal: whether edges with column > row are masked.
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
        """Number of heads, those of all batch entries together."""
        return self.q.shape[0] * self.q.shape[1]

    def product(self, op: str) -> Product:
        """Returns the key of the plan of the forward ("attention") or backward ("attention_grad") pass."""
        extras = self.bias is not None or self.seed is not None or self.is_causal
        return Product(op, self.q.shape[3], False, self.v.shape[3], self.heads, extras)
