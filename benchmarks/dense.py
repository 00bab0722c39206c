"""The encoder with torch's dense attention in place of ours: what the sparse one is compared with."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse import SparseOperand
from gnnsparse.nn import SparseAttention


class DenseAttention(SparseAttention):
    """The same projections around torch's scaled_dot_product_attention.

    `masked`: what is no edge of the pattern is masked, and a bias of the edges added, so that the
    numbers are those of sparse attention; otherwise all pairs count and the pattern plays no part.
    """

    masked = True

    def forward(self, query, key, value, pattern, key_padding_mask=None, is_causal=False, *, bias=None):  # type: ignore[no-untyped-def]
        if key_padding_mask is not None or is_causal or not self.batch_first:
            raise NotImplementedError("masks come as bias, the batch first")
        q, k, v = (self._split(x) for x in self._project([query, key, value], query is key is value))
        mask = dense_bias(pattern, bias, q.dtype) if self.masked else None
        p = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return self.out_proj(out.transpose(-3, -2).flatten(-2))


def dense_bias(pattern: SparseOperand, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """What is added to a dense matrix of scores: -inf where there is no edge, the edges' bias elsewhere.

    A row of -inf alone would give NaN in some of torch's kernels: such a query, all of whose keys are
    padding, attends to all keys, and is padding itself.
    """
    row, col = pattern.indices()
    edges = torch.zeros(pattern.nnz, device=pattern.device) if bias is None else bias
    dense = edges.new_full((*edges.shape[:-1], *pattern.shape), float("-inf"))
    dense[..., row, col] = edges
    nothing = (dense == float("-inf")).all(dim=-1, keepdim=True)
    return dense.masked_fill(nothing, 0.0).to(dtype)


def make_dense(model: torch.nn.Module, masked: bool) -> torch.nn.Module:
    """Exchanges the attention of a model in place; the parameters stay."""
    for module in model.modules():
        if type(module) is SparseAttention:
            module.__class__ = DenseAttention
            module.masked = masked  # type: ignore[assignment]
    return model
