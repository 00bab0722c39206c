"""Multi-head attention over a sparse pattern."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_type, bad_value, check_flag, check_integer, check_share, check_tensor
from gnnsparse.nn.inputs import MOST_FEATURES, check_features
from gnnsparse.operand import SparseOperand
from gnnsparse.ops import attention

__all__ = ["SparseAttention", "edge_bias"]

_MASK_DTYPES = (torch.bool, torch.float32, torch.float16, torch.bfloat16)


def edge_bias(pattern: SparseOperand, key_padding_mask: torch.Tensor) -> torch.Tensor:
    """Makes the argument `bias` of `gnnsparse.attention` by which padded keys are masked.

    It has a value for each sequence and edge, 4 bytes x batch x nnz, which all heads and layers can share.

    Args:
        pattern: operand of shape [L, S].
        key_padding_mask: [S] or [batch, S], bool, True for keys that are padding; or floating-point, added to
            the scores.

    Returns:
        float32 [1, nnz] or [batch, 1, nnz], in the pattern's own order.

    Raises:
        TypeError: the mask is of another type or dtype.
        ValueError: the mask has another shape or device.
    """
    keys = pattern.shape[1]
    accepted = f"a tensor [{keys}] or [batch, {keys}] of bool or of a floating dtype"
    mask = check_tensor("key_padding_mask", key_padding_mask, dtypes=_MASK_DTYPES)
    if mask.dim() not in (1, 2) or mask.shape[-1] != keys:
        bad_value("key_padding_mask", f"has shape {tuple(mask.shape)}; accepted: {accepted}")
    if mask.device != pattern.device:
        bad_value("key_padding_mask", f"is on {mask.device}; accepted: {pattern.device}, as the pattern")
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=torch.float32).masked_fill(mask, float("-inf"))
    return mask.float().index_select(-1, pattern.kernels.csr.indices).unsqueeze(-2)


class SparseAttention(torch.nn.Module):
    """Multi-head attention (Vaswani et al. 2017) over the edges of a pattern.

    Parameters and `state_dict` (`in_proj_weight`, `in_proj_bias`, `out_proj.weight`, `out_proj.bias`) are
    those of torch.nn.MultiheadAttention, and outputs agree with it if the pattern has all pairs. A query all
    of whose keys are masked gets the output projection's bias, whereas torch returns NaN.

    Args:
        embed_dim: features of a token.
        num_heads: number of heads; each has embed_dim / num_heads features.
        dropout: probability with which training sets an attention weight to 0, in [0, 1).
        bias: whether the projections have biases.
        batch_first: layout of the inputs: True: [batch, length, features]; False: [length, batch, features].
        fused: None: the plan decides; False: scores, softmax and output are computed by three operations;
            True: a fused kernel runs, or an error is raised if none can.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        *,
        fused: bool | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim = check_integer("embed_dim", embed_dim, most=MOST_FEATURES)
        self.num_heads = check_integer("num_heads", num_heads, most=MOST_FEATURES)
        if embed_dim % num_heads:
            bad_value("num_heads", f"got {num_heads}; accepted: a divisor of embed_dim, {embed_dim}")
        self.dropout = check_share("dropout", dropout)
        self.batch_first = check_flag("batch_first", batch_first)
        self.fused = None if fused is None else check_flag("fused", fused)
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.in_proj_weight = torch.nn.Parameter(torch.empty(3 * embed_dim, embed_dim, **options))
        if check_flag("bias", bias):
            self.in_proj_bias = torch.nn.Parameter(torch.empty(3 * embed_dim, **options))
        else:
            self.register_parameter("in_proj_bias", None)
        self.out_proj = torch.nn.Linear(embed_dim, embed_dim, bias=bias, **options)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws the weights and sets the biases to 0, in the way of torch.nn.MultiheadAttention."""
        torch.nn.init.xavier_uniform_(self.in_proj_weight)
        self.out_proj.reset_parameters()
        if self.in_proj_bias is not None:
            torch.nn.init.zeros_(self.in_proj_bias)
            torch.nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        pattern: SparseOperand,
        key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        *,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Computes the layer's output. For self-attention pass one tensor as query, key and value.

        Args:
            query: [L, E], or [batch, L, E] with batch_first, or [L, batch, E] without.
            key: [S, E], or [batch, S, E] with batch_first, or [S, batch, E] without.
            value: as key.
            pattern: operand of shape [L, S] made by `gnnsparse.prepare`, for example from a pattern of
                `gnnsparse.masks`. All sequences and heads share it.
            key_padding_mask: [S] or [batch, S], the argument of `edge_bias`; None: no key is padding.
            is_causal: whether edges to later keys are masked. torch's argument of this name is a hint only.
            bias: added to the scores: [nnz], [heads, nnz] or [batch, heads or 1, nnz] in the pattern's own
                order; `edge_bias` makes one of a padding mask. None: no bias.

        Returns:
            A tensor of query's shape, in the dtype of the output projection.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: an argument has another shape or device.
        """
        if not isinstance(pattern, SparseOperand):
            bad_type("pattern", pattern, "a SparseOperand, from gnnsparse.prepare")
        itself = query is key and key is value
        inputs = [
            self._batch_first(name, x, pattern.shape[side])
            for name, x, side in (("query", query, 0), ("key", key, 1), ("value", value, 1))
        ]
        sizes = [tuple(x.shape[:-2]) for x in inputs]
        if len(set(sizes)) > 1:
            bad_value("key", f"the batches differ: {sizes}; accepted: one for query, key and value")
        if key_padding_mask is not None:
            padding = edge_bias(pattern, key_padding_mask)
            bias = padding if bias is None else bias + padding
        q, k, v = (self._split(x) for x in self._project(inputs, itself))
        out = attention(
            pattern, q, k, v,
            bias=bias,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=is_causal,
            fused=self.fused,
        )  # fmt: skip
        out = self.out_proj(out.transpose(-3, -2).flatten(-2))
        return out.transpose(0, 1) if self._turned(out) else out

    def _turned(self, x: torch.Tensor) -> bool:
        return x.dim() == 3 and not self.batch_first

    def _batch_first(self, name: str, x: Any, length: int) -> torch.Tensor:
        """Checks an input, and returns it as [..., length, E]."""
        check_features(name, x, self.embed_dim, self.in_proj_weight, dim=None)
        turned = x.transpose(0, 1) if self._turned(x) else x
        if x.dim() not in (2, 3) or turned.shape[-2:] != (length, self.embed_dim):
            of_batch = "batch, length" if self.batch_first else "length, batch"
            accepted = f"(length, {self.embed_dim}) or ({of_batch}, {self.embed_dim})"
            bad_value(name, f"has shape {tuple(x.shape)}; accepted: {accepted}, length {length} here")
        return turned

    def _project(self, inputs: list[torch.Tensor], itself: bool) -> tuple[torch.Tensor, ...]:
        """Computes queries, keys and values, [..., tokens, E]: of one input tensor in one product."""
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if itself:
            return F.linear(inputs[0], weight, bias).chunk(3, dim=-1)
        biases = (None, None, None) if bias is None else bias.chunk(3)
        parts = zip(inputs, weight.chunk(3), biases, strict=True)
        return tuple(F.linear(x, w, b) for x, w, b in parts)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """Returns [..., tokens, E] as a view [..., heads, tokens, E / heads]."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(-3, -2)

    def extra_repr(self) -> str:
        """Returns the text that repr() shows."""
        return f"{self.embed_dim}, {self.num_heads}, dropout={self.dropout}, batch_first={self.batch_first}"
