"""The forward pass of torch.nn.MultiheadAttention over a pattern."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_value
from gnnsparse.nn.attention_edges import padding_bias
from gnnsparse.patterns.operands import Patterns, attend, dense_weights, pair_terms, total
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["SparsifiedMultiheadAttention", "problem_of"]


def problem_of(layer: torch.nn.MultiheadAttention) -> str:
    """Returns why a layer can't attend by a pattern, or an empty string."""
    if type(layer) not in (torch.nn.MultiheadAttention, SparsifiedMultiheadAttention):
        return "it is a subclass of torch.nn.MultiheadAttention, which may compute something else"
    if layer.bias_k is not None or layer.bias_v is not None:
        return "bias_k and bias_v are a key and a value that no pattern has (add_bias_kv=True)"
    if layer.add_zero_attn:
        return "add_zero_attn=True adds a key that no pattern has"
    return ""


class SparsifiedMultiheadAttention(torch.nn.MultiheadAttention):
    """A torch.nn.MultiheadAttention that attends by a pattern: what `sparsify` makes of one.

    The class of the layer is exchanged and nothing else, so that it has the same parameters and hooks.
    """

    gnnsparse_patterns: Patterns

    @property
    def _qkv_same_embed_dim(self) -> bool:
        """False: torch's encoder layer then calls this layer in evaluation too.

        Else it would compute the whole layer by one operator (its fast path), which knows no pattern.
        """
        return False

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Computes the layer's output; arguments and results are those of torch.nn.MultiheadAttention.

        A query attends to the keys that the pattern names and no mask blocks. `is_causal` blocks later keys;
        as in torch it then stands for `attn_mask`, which is not read. A query without keys gets zeros from
        the attention, where torch gives NaN.

        Raises:
            TypeError: a tensor is of a dtype that no kernel has.
            ValueError: a shape or a device does not go with the layer, the pattern or another argument.
        """
        itself = query is key and key is value
        q, k, v = (self._batch_first(x) for x in (query, key, value))
        self._check(q, k, v)
        lengths = q.shape[-2], k.shape[-2]
        q, k, v = (self._split(x) for x in self._projected(q, k, v, itself))
        with_mask = attn_mask is not None and not is_causal
        operand = self.gnnsparse_patterns.operand(
            *lengths, q, is_causal=is_causal, with_pairs=with_mask or need_weights
        )
        bias = None if key_padding_mask is None else padding_bias(operand, key_padding_mask, q.shape[:-3])
        if attn_mask is not None and not is_causal:
            bias = total(bias, self._mask_terms(operand, attn_mask, q))
        dropout_p = self.dropout if self.training else 0.0
        out, weights = attend(operand, q, k, v, bias, dropout_p, None, need_weights)
        out = F.linear(out.transpose(-3, -2).flatten(-2), self.out_proj.weight, self.out_proj.bias)
        out = out.transpose(0, 1) if self._turned(query) else out
        if weights is None:
            return out, None
        return out, dense_weights(operand, weights.mean(-2) if average_attn_weights else weights)

    def _turned(self, x: torch.Tensor) -> bool:
        return x.dim() == 3 and not self.batch_first

    def _batch_first(self, x: torch.Tensor) -> torch.Tensor:
        return x.transpose(0, 1) if self._turned(x) else x

    def _check(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Raises unless the inputs, [..., length, features], go together."""
        for name, x, width in (("query", q, self.embed_dim), ("key", k, self.kdim), ("value", v, self.vdim)):
            if x.is_nested:
                bad_value(name, "got a nested tensor; accepted in a sparse layer: padded sequences")
            if x.dim() not in (2, 3) or x.shape[-1] != width:
                shape = f"(length, {width}), or of three dimensions with a batch"
                bad_value(name, f"has shape {tuple(x.shape)} (batch first); accepted: {shape}")
        if not q.dim() == k.dim() == v.dim() or not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
            bad_value("key", "the batches of query, key and value differ; accepted: one batch for all")
        if k.shape[-2] != v.shape[-2]:
            bad_value("value", f"has length {v.shape[-2]}; accepted: {k.shape[-2]}, as key")

    def _projected(self, q: Any, k: Any, v: Any, itself: bool) -> tuple[torch.Tensor, ...]:
        """Computes queries, keys and values, [..., tokens, embed_dim]: of one input tensor in one product."""
        weight, bias = self.in_proj_weight, self.in_proj_bias
        biases = (None, None, None) if bias is None else bias.chunk(3)
        if weight is None:
            weights = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        elif itself:
            return F.linear(q, weight, bias).chunk(3, dim=-1)
        else:
            weights = weight.chunk(3)
        return tuple(F.linear(x, w, b) for x, w, b in zip((q, k, v), weights, biases, strict=True))

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [..., tokens, embed_dim] as a view [..., heads, tokens, head_dim]."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)

    def _mask_terms(self, operand: SparseOperand, mask: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        """Returns what `attn_mask` adds to the scores of the edges, [nnz] or [(batch,) heads, nnz]."""
        heads = q.shape[:-2]
        if mask.shape == operand.shape:
            return pair_terms(operand, "attn_mask", mask, blocks=True)
        if mask.dim() != 3 or mask.shape != (heads.numel(), *operand.shape):
            wanted = f"{tuple(operand.shape)} or {(heads.numel(), *operand.shape)}"
            bad_value("attn_mask", f"has shape {tuple(mask.shape)}; accepted: {wanted}")
        return pair_terms(operand, "attn_mask", mask.unflatten(0, heads), blocks=True)
