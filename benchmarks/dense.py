"""The encoder with torch's dense attention in place of sparse attention, for comparisons."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse import SparseOperand
from gnnsparse.nn import SparseAttention


class DenseAttention(SparseAttention):
    """SparseAttention's projections around torch's scaled_dot_product_attention.

    Attributes:
        masked: True: pairs that are no edge of the pattern are masked, and the bias of the edges is added, so
            that outputs agree with sparse attention. False: all pairs attend, and the pattern is ignored.
    """

    masked = True

    def forward(self, query, key, value, pattern, key_padding_mask=None, is_causal=False, *, bias=None):  # type: ignore[no-untyped-def]
        if key_padding_mask is not None or is_causal or not self.batch_first:
            raise NotImplementedError("masks come as bias, the batch first")
        q, k, v = self._project([query, key, value], query is key is value)
        mask = dense_bias(pattern, bias, q.dtype) if self.masked else None
        p = self.dropout if self.training else 0.0
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=p)
        return self.out_proj(out.transpose(-3, -2).flatten(-2))


def dense_bias(pattern: SparseOperand, bias: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """Make the mask to add to a dense matrix of scores: -inf for pairs without an edge, the bias for edges.

    Some of torch's kernels return NaN for rows that are all -inf, which belong to queries all of whose keys
    are padding. These rows are set to 0, so that the queries, which are padding themselves, attend to all
    keys.
    """
    row, col = pattern.indices()
    edges = torch.zeros(pattern.nnz, device=pattern.device) if bias is None else bias
    dense = edges.new_full((*edges.shape[:-1], *pattern.shape), float("-inf"))
    dense[..., row, col] = edges
    nothing = (dense == float("-inf")).all(dim=-1, keepdim=True)
    return dense.masked_fill(nothing, 0.0).to(dtype)


def make_dense(model: torch.nn.Module, masked: bool) -> torch.nn.Module:
    """Replace the attention of a model in place, without changing its parameters."""
    for module in model.modules():
        if type(module) is SparseAttention:
            module.__class__ = DenseAttention
            module.masked = masked  # type: ignore[assignment]
    return model
