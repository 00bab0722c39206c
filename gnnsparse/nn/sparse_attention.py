"""Multi-head attention over a sparse pattern."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_type, bad_value, check_flag, check_integer, check_share
from gnnsparse.nn.attention_edges import AttentionEdges, Given, LayerPatterns, read_call, weights_of
from gnnsparse.nn.inputs import MOST_FEATURES, check_features
from gnnsparse.nn.key_value_cache import KeyValueCache
from gnnsparse.patterns.operands import attend
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["Sequences", "SparseAttention", "is_nested"]


def is_nested(x: Any) -> bool:
    """Return whether `x` is a nested tensor."""
    return isinstance(x, torch.Tensor) and x.is_nested


@dataclass(frozen=True)
class Sequences:
    """The tokens of sequences one after another: values [all tokens, features], int64 [sequences + 1].

    Offsets None: the older layout torch.strided, which torch's encoder makes of padded sequences in
    evaluation.
    """

    values: torch.Tensor
    lengths: tuple[int, ...]
    offsets: torch.Tensor | None

    @classmethod
    def of(cls, name: str, x: Any) -> Sequences:
        """Read the argument `name`, a nested tensor [batch, length, features]. A GPU is waited for."""
        if not is_nested(x):
            bad_type(name, x, "a nested tensor, as query, key and value all have to be")
        if x.dim() != 3 or (x.layout == torch.jagged and x._ragged_idx != 1):
            bad_value(name, f"has {x.dim()} dimensions; accepted: (batch, length of the sequence, features)")
        if x.layout != torch.jagged:
            parts = x.unbind()
            return cls(torch.cat(parts), tuple(part.shape[0] for part in parts), None)
        if x.lengths() is not None:
            bad_value(name, "has holes between its sequences; accepted: x.contiguous()")
        offsets = x.offsets()
        return cls(x.values(), tuple(offsets.diff().tolist()), offsets)

    def nested(self, values: torch.Tensor) -> torch.Tensor:
        """Return other values of the same tokens as a nested tensor, which can be added to the first."""
        if self.offsets is not None:
            return torch.nested.nested_tensor_from_jagged(values, self.offsets)
        return torch.nested.as_nested_tensor(list(values.split(list(self.lengths))))


_APART = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


class SparseAttention(torch.nn.Module):
    """Multi-head attention (Vaswani et al. 2017) over the edges of a pattern.

    Parameters and `state_dict` (`in_proj_weight`, `in_proj_bias`, `out_proj.weight`, `out_proj.bias`) are
    those of torch.nn.MultiheadAttention, whose place it can take in other modules, and outputs agree with it
    if the pattern has all pairs. A query all of whose keys are masked gets the output projection's bias,
    whereas torch returns NaN.

    The pattern is given to the layer, by name or in another way, and follows the length of the input; or to
    a call, as an operand. A call without either takes the pairs that `attn_mask` does not block; without
    a mask these are all pairs, which torch's layer computes faster.

    Operands of the layer's pattern are made when a length, device or dtype is first met. Layers of equal
    patterns share them, and at most 16 of each are kept. They are no part of the `state_dict`.

    Args:
        embed_dim: features of a token.
        num_heads: number of heads; each has embed_dim / num_heads features.
        dropout: probability with which training sets an attention weight to 0, in [0, 1).
        bias: whether the projections have biases.
        batch_first: layout of the inputs: True: [batch, length, features]; False: [length, batch, features].
        num_kv_heads: number of heads of keys and values, a divisor of num_heads; equally many heads of
            queries share each (grouped-query attention, Ainslie et al. 2023). None: num_heads. With fewer
            the projections of keys and values have fewer rows than torch's.
        kdim: features of a key token; None: embed_dim.
        vdim: features of a value token; None: embed_dim. If one of the two differs from embed_dim, the
            parameters are `q_proj_weight`, `k_proj_weight` and `v_proj_weight`, as in torch.
        pattern: the name of a pattern ("window", which is "sliding_window" too, "causal", "dilated",
            "global_tokens", "bigbird", "random", "expander", "vector_wise", "full"); a mapping of its "name"
            and options, such as {"name": "window", "radius": 64}; a function that makes a SparseGraph of the
            length, and for other numbers of keys than queries of (length, keys=); a SparseGraph or
            SparseOperand, for one length; or a list of these, of which the union is taken. None: calls say
            what is attended to.
        pattern_options: options of a pattern that is given by its name, those of its function in
            `gnnsparse.masks` but the length.
        precision: precision of the layer's operands; None: that of the dtype of the queries, which
            torch.autocast decides where it is active.
        fused: None: the plan decides; False: scores, softmax and output are computed by three operations;
            True: a fused kernel runs, or an error is raised if none can.
        add_bias_kv: accepted as False alone: it adds a key that no pattern has.
        add_zero_attn: accepted as False alone, for the same reason.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """

    in_proj_weight: torch.Tensor | None
    q_proj_weight: torch.Tensor
    k_proj_weight: torch.Tensor
    v_proj_weight: torch.Tensor
    in_proj_bias: torch.Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        batch_first: bool = False,
        *,
        num_kv_heads: int | None = None,
        kdim: int | None = None,
        vdim: int | None = None,
        pattern: Any = None,
        pattern_options: Any = None,
        precision: Precision | str | None = None,
        fused: bool | None = None,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.embed_dim = check_integer("embed_dim", embed_dim, most=MOST_FEATURES)
        self.num_heads = check_integer("num_heads", num_heads, most=MOST_FEATURES)
        if embed_dim % num_heads:
            bad_value("num_heads", f"got {num_heads}; accepted: a divisor of embed_dim, {embed_dim}")
        self.head_dim = embed_dim // num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else check_integer("num_kv_heads", num_kv_heads)
        if num_heads % self.num_kv_heads:
            bad_value("num_kv_heads", f"got {num_kv_heads}; accepted: a divisor of num_heads, {num_heads}")
        self.kdim = embed_dim if kdim is None else check_integer("kdim", kdim, most=MOST_FEATURES)
        self.vdim = embed_dim if vdim is None else check_integer("vdim", vdim, most=MOST_FEATURES)
        self.dropout = check_share("dropout", dropout)
        self.batch_first = check_flag("batch_first", batch_first)
        self.fused = None if fused is None else check_flag("fused", fused)
        for name, flag in (("add_bias_kv", add_bias_kv), ("add_zero_attn", add_zero_attn)):
            if check_flag(name, flag):
                bad_value(name, "got True, which adds a key that no pattern has; accepted: False")
        self.patterns = LayerPatterns(
            pattern, pattern_options, None if precision is None else Precision.parse(precision)
        )
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        widths = embed_dim, self.kdim, self.vdim
        together = len(set(widths)) == 1
        weight = torch.nn.Parameter(torch.empty(sum(self._rows), embed_dim, **options)) if together else None
        self.register_parameter("in_proj_weight", weight)
        for name, rows, width in zip(_APART, self._rows, widths, strict=True):
            apart = None if together else torch.nn.Parameter(torch.empty(rows, width, **options))
            self.register_parameter(name, apart)
        has_bias = check_flag("bias", bias)
        of_all = torch.nn.Parameter(torch.empty(sum(self._rows), **options)) if has_bias else None
        self.register_parameter("in_proj_bias", of_all)
        self.out_proj = torch.nn.Linear(embed_dim, embed_dim, bias=bias, **options)
        self.reset_parameters()

    @property
    def _qkv_same_embed_dim(self) -> bool:
        """False: else torch's encoder layer computes all by one operator, which knows no pattern."""
        return False

    def reset_parameters(self) -> None:
        """Draw the weights and set the biases to 0, in the way of torch.nn.MultiheadAttention."""
        weights = self._weights() if self.in_proj_weight is None else [self.in_proj_weight]
        for weight in weights:
            torch.nn.init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            torch.nn.init.zeros_(self.in_proj_bias)
        self.out_proj.reset_parameters()
        if self.out_proj.bias is not None:
            torch.nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        *given: Any,
        pattern: SparseOperand | None = None,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool | str | None = None,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        bias: torch.Tensor | None = None,
    ) -> Any:
        """Compute the layer's output. For self-attention pass one tensor as query, key and value.

        The call is torch.nn.MultiheadAttention's, and its result a pair, unless a pattern is given with it:
        `layer(query, key, value, pattern)` returns the output alone.

        Args:
            query: [L, E], or [batch, L, E] with batch_first, or [L, batch, E] without; or a nested tensor of
                layout torch.jagged, [batch, length of the sequence, E], with either.
            key: [S, kdim], or [batch, S, kdim] with batch_first, or [S, batch, kdim] without; or nested.
            value: as key, with vdim features.
            *given: further arguments by position, in the order `key_padding_mask, need_weights, attn_mask,
                average_attn_weights, is_causal`, which is torch's; or `pattern, key_padding_mask, is_causal`
                if the first of them is a SparseOperand.
            pattern: operand of shape [L, S] made by `gnnsparse.prepare`, for example from a pattern of
                `gnnsparse.masks`. All sequences and heads share it. It replaces the layer's own pattern.
            key_padding_mask: [S] or [batch, S], bool, True for keys that are padding; or floating-point,
                added to the scores. It is converted by `edge_bias`. None: no key is padding.
            need_weights: whether the weights are returned too: False; True: as dense matrices, which take
                the memory that sparse attention saves; "sparse": as a sparse COO tensor. Weights are
                computed for each edge and stored, so False is faster. None: True, as in torch; but in a call
                with `pattern` the result is no pair, and for nested tensors there are no weights.
            attn_mask: [L, S], or [batch x heads, L, S] ([heads, L, S] without a batch): bool, True where
                a query does not attend to a key; or floating-point, added to the scores, with a gradient.
                Where there is a pattern, it is read at the pattern's edges, which takes time for each edge
                in each call. Where there is none, its pairs that are not blocked become the pattern, which
                is made anew when the mask changes: in time that grows with L x S.
            average_attn_weights: whether the weights are averaged over the heads.
            is_causal: whether edges to later keys are masked. torch's argument of this name is a hint only,
                which needs `attn_mask`; here it needs none, and a mask that is given counts as well.
            bias: added to the scores: [nnz], [heads, nnz] or [batch, heads or 1, nnz] in the own order of
                `pattern`; `edge_bias` makes one of a padding mask. None: no bias.

        Returns:
            The output, of query's shape, in the dtype of the output projection; with torch's call, or where
            `need_weights` is given, a pair of the output and the weights after dropout, or None:
            [batch, L, S], or [batch, heads, L, S] unless averaged, without the first size if there is no
            batch.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: an argument has another shape or device.
        """
        call = read_call(
            given,
            Given(pattern, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal, bias),
        )
        itself = query is key and key is value
        if is_nested(query) or is_nested(key) or is_nested(value):
            out = self._of_sequences(query, key, value, call, itself)
            return (out, None) if call.as_pair else out
        inputs, lengths = self._batches(query, key, value, call.pattern)
        q, k, v = self._project(inputs, itself)
        edges = self.patterns.edges(call, lengths, q.shape[:-2], q)
        out, weights = self._attend(edges, q, k, v, bool(call.weights))
        if self._turned(query):
            out = out.transpose(0, 1)
        if weights is None:
            return (out, None) if call.as_pair else out
        return out, weights_of(edges.operand, weights, call)

    @property
    def _rows(self) -> list[int]:
        keys = self.num_kv_heads * self.head_dim
        return [self.embed_dim, keys, keys]

    def _weights(self) -> tuple[torch.Tensor, ...]:
        """The weights for queries, keys and values, views where they are one parameter."""
        if self.in_proj_weight is None:
            return self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        return self.in_proj_weight.split_with_sizes(self._rows)

    def _query_weight(self) -> torch.Tensor:
        """The parameter with the weights for queries, which may be one with those for keys and values."""
        return self.q_proj_weight if self.in_proj_weight is None else self.in_proj_weight

    def _project(self, inputs: list[torch.Tensor], itself: bool) -> list[torch.Tensor]:
        """Compute queries, keys and values [..., heads, tokens, head_dim], at once if the inputs are one."""
        bias, rows = self.in_proj_bias, self._rows
        if itself and (weight := self.in_proj_weight) is not None:
            # Not `split`, a function in Python that takes twice as long.
            parts = F.linear(inputs[0], weight, bias).split_with_sizes(rows, -1)
        else:
            biases = (None, None, None) if bias is None else bias.split_with_sizes(rows)
            parts = tuple(F.linear(x, w, b) for x, w, b in zip(inputs, self._weights(), biases, strict=True))
        return [x.unflatten(-1, (-1, self.head_dim)).transpose(-3, -2) for x in parts]

    def _attend(
        self, edges: AttentionEdges, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, need_weights: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Compute the output, [..., L, E], and if needed the weights, [..., heads, nnz]."""
        out, weights = attend(
            edges.operand, q, k, v, need_weights, bias=edges.bias, is_causal=edges.is_causal,
            dropout_p=self.dropout if self.training else 0.0, fused=self.fused,
        )  # fmt: skip
        return self.out_proj(out.transpose(-3, -2).flatten(-2)), weights

    def _of_sequences(self, query: Any, key: Any, value: Any, call: Given, itself: bool) -> torch.Tensor:
        """Compute the output of nested tensors: no query attends to another sequence."""
        of_query = Sequences.of("query", query)
        of_key = of_query if itself else Sequences.of("key", key)
        of_value = of_key if value is key else Sequences.of("value", value)
        if of_key.lengths != of_value.lengths or len(of_key.lengths) != len(of_query.lengths):
            bad_value("key", "the numbers of sequences, or the lengths of keys and values, differ")
        inputs, _ = self._batches(of_query.values, of_key.values, of_value.values, None)
        q, k, v = self._project(inputs, itself)
        edges = self.patterns.edges_of_nested(call, of_query.lengths, of_key.lengths, q)
        return of_query.nested(self._attend(edges, q, k, v, False)[0])

    def make_cache(self, max_length: int | None = None) -> KeyValueCache:
        """Return an empty cache for `decode`, of the layer's pattern; without one a token attends to all.

        Products with it are of the dtype of the input, and not of the layer's `precision`.

        Args:
            max_length: the argument of KeyValueCache.

        Raises:
            ValueError: the pattern needs `max_length`.
        """
        own = self.patterns.own
        return KeyValueCache("causal" if own is None else own.pattern, max_length=max_length)

    def decode(self, x: torch.Tensor, cache: KeyValueCache, *, lengths: Any = None) -> torch.Tensor:
        """Compute the causal self-attention of tokens that follow those in a cache, and add them to it.

        Without gradients and dropout.

        Args:
            x: [batch, n, E] with batch_first, or [n, batch, E] without: n new tokens, or whole prompts.
            cache: what `make_cache` returned, for the same sequences.
            lengths: the argument of KeyValueCache.attend: how many of the n tokens each sequence has.

        Returns:
            A tensor of the shape of x.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: a shape does not go with the layer or the cache, or the layer would use dropout.
        """
        if not isinstance(cache, KeyValueCache):
            bad_type("cache", cache, "a KeyValueCache, from make_cache")
        if self.training and self.dropout:
            bad_value("dropout", f"got {self.dropout} in training mode; accepted: layer.eval() before decode")
        check_features("x", x, self.embed_dim, self._query_weight(), dim=3)
        inputs, _ = self._batches(x, x, x, None)
        with torch.no_grad():
            q, k, v = self._project(inputs, True)
            out = self.out_proj(cache.attend(q, k, v, lengths=lengths).transpose(-3, -2).flatten(-2))
        return out.transpose(0, 1) if self._turned(x) else out

    def _turned(self, x: torch.Tensor) -> bool:
        return x.dim() == 3 and not self.batch_first

    def _batches(
        self, query: Any, key: Any, value: Any, pattern: SparseOperand | None
    ) -> tuple[list[torch.Tensor], tuple[int, int]]:
        """Check inputs; return them as [..., length, features], and the numbers of queries and keys."""
        queries, keys = (None, None) if pattern is None else pattern.shape
        weight = self._query_weight()
        q = self._batch("query", query, self.embed_dim, weight, queries)
        k = self._batch("key", key, self.kdim, weight, keys)
        v = self._batch("value", value, self.vdim, weight, k.shape[-2])
        sizes = [x.shape[:-2] for x in (q, k, v)]
        if not sizes[0] == sizes[1] == sizes[2]:
            shown = [tuple(size) for size in sizes]
            bad_value("key", f"the batches differ: {shown}; accepted: one for query, key and value")
        return [q, k, v], (q.shape[-2], k.shape[-2])

    def _batch(self, name: str, x: Any, width: int, weight: torch.Tensor, length: int | None) -> torch.Tensor:
        """Check an input, and return it as [..., length, features]; `length` None accepts any."""
        check_features(name, x, width, weight, dim=None)
        turned = x.transpose(0, 1) if self._turned(x) else x
        if x.dim() not in (2, 3) or (length is not None and turned.shape[-2] != length):
            of_batch = "batch, length" if self.batch_first else "length, batch"
            shapes = f"(length, {width}) or ({of_batch}, {width})"
            here = "" if length is None else f", length {length} here"
            bad_value(name, f"has shape {tuple(x.shape)}; accepted: {shapes}{here}")
        return turned

    def extra_repr(self) -> str:
        """Return the text that repr() shows."""
        text = f"{self.embed_dim}, {self.num_heads}, dropout={self.dropout}, batch_first={self.batch_first}"
        if self.num_kv_heads != self.num_heads:
            text += f", num_kv_heads={self.num_kv_heads}"
        return text if self.patterns.own is None else f"{text}, pattern={self.patterns.own}"
