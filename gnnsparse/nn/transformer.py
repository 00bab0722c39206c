"""The Transformer encoder over a pattern, with the interface of torch's, found by `gnnsparse.nn`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_type, bad_value, check_choice, check_flag, check_integer, check_share
from gnnsparse.nn.attention_edges import AttentionEdges, Given, read_call
from gnnsparse.nn.functional import dropout as drop
from gnnsparse.nn.inputs import MOST_FEATURES, check_features
from gnnsparse.nn.key_value_cache import KeyValueCache
from gnnsparse.nn.linear import activated_linear
from gnnsparse.nn.sparse_attention import Sequences, SparseAttention, is_nested
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["ACTIVATIONS", "TransformerEncoder", "TransformerEncoderLayer"]

Activation = Callable[[torch.Tensor], torch.Tensor]

#: The functions that `activation` accepts by name.
ACTIVATIONS: dict[str, Activation] = {"relu": F.relu, "gelu": F.gelu}


class TransformerEncoderLayer(torch.nn.Module):
    """Self-attention over a pattern and a feed-forward network (Vaswani et al. 2017).

    Arguments, parameters and `state_dict` are those of torch.nn.TransformerEncoderLayer, whose weights can be
    loaded, and outputs agree with it if the pattern has all pairs. torch.nn.TransformerEncoder takes it as
    its layer.

    The pattern is given to the layer, and follows the length of the input; or to a call, as an operand. A
    call without either attends to what `src_mask` does not block, as `SparseAttention` does. `fused`,
    `pattern`, `pattern_options`, `precision` and `num_kv_heads` are the arguments of SparseAttention.

    Args:
        d_model: features of a token.
        nhead: number of heads.
        dim_feedforward: features between the two layers of the feed-forward network.
        dropout: probability of dropout, in [0, 1), for the attention weights, the outputs of both blocks, and
            between the two layers of the feed-forward network.
        activation: "relu", "gelu" or a function.
        layer_norm_eps: epsilon of the layer norms.
        batch_first: layout of the inputs: True: [batch, length, features]; False: [length, batch, features].
        norm_first: whether layer norms come before each block (Xiong et al. 2020) instead of after it.
        bias: whether linear layers and layer norms have biases.
        device: device of the parameters.
        dtype: dtype of the parameters.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        fused: bool | None = None,
        pattern: Any = None,
        pattern_options: Any = None,
        precision: Precision | str | None = None,
        num_kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.dropout = check_share("dropout", dropout)
        self.norm_first = check_flag("norm_first", norm_first)
        if not callable(activation):
            activation = ACTIVATIONS[check_choice("activation", activation, tuple(ACTIVATIONS))]
        self.activation = activation
        self.self_attn = SparseAttention(
            d_model, nhead, dropout, bias, batch_first, num_kv_heads=num_kv_heads, pattern=pattern,
            pattern_options=pattern_options, precision=precision, fused=fused, **options,
        )  # fmt: skip
        check_integer("dim_feedforward", dim_feedforward, most=MOST_FEATURES)
        self.linear1 = torch.nn.Linear(d_model, dim_feedforward, bias=bias, **options)
        self.linear2 = torch.nn.Linear(dim_feedforward, d_model, bias=bias, **options)
        self.norm1 = torch.nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **options)
        self.norm2 = torch.nn.LayerNorm(d_model, eps=layer_norm_eps, bias=bias, **options)

    def reset_parameters(self) -> None:
        """Draw all parameters."""
        for module in (self.self_attn, self.linear1, self.linear2, self.norm1, self.norm2):
            module.reset_parameters()

    def forward(
        self,
        src: torch.Tensor,
        pattern: SparseOperand | torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool = False,
        *,
        src_mask: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the layer's output.

        Args:
            src: [length, batch, d_model], [batch, length, d_model] with batch_first, or [length, d_model]; or
                a nested tensor of layout torch.jagged, [batch, length of the sequence, d_model], each of
                whose sequences has the pattern of its own length.
            pattern: operand of shape [length, length] made by `gnnsparse.prepare`, which replaces the layer's
                own pattern; or, in its place by position, torch's `src_mask`.
            src_key_padding_mask: [batch, length] or [length], the argument `key_padding_mask` of
                SparseAttention.forward.
            is_causal: the argument of SparseAttention.forward.
            src_mask: a mask of all pairs, the argument `attn_mask` of SparseAttention.forward.
            bias: the argument of SparseAttention.forward.

        Returns:
            A tensor of the shape of src.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: an argument has another shape or device.
        """
        given = _given(pattern, src_mask, "src_mask", src_key_padding_mask, is_causal, bias)
        if is_nested(src):
            sequences = Sequences.of("src", src)
            edges = _edges(self.self_attn, sequences, given)
            return sequences.nested(self(sequences.values, edges.operand))
        check_features("src", src, self.self_attn.embed_dim, self.linear1.weight, dim=None)
        edges = _edges(self.self_attn, src, given)
        given_edges = edges.operand, None, edges.is_causal
        return self._blocks(src, lambda x: self.self_attn(x, x, x, *given_edges, bias=edges.bias))

    def make_cache(self, max_length: int | None = None) -> KeyValueCache:
        """Return an empty cache for `decode`; see SparseAttention.make_cache."""
        return self.self_attn.make_cache(max_length)

    def decode(self, src: torch.Tensor, cache: KeyValueCache, *, lengths: Any = None) -> torch.Tensor:
        """Compute the output for tokens that follow those in a cache, and add them to it.

        The numbers are those of the whole sequence with `is_causal=True`. Arguments, result and errors are
        those of SparseAttention.decode.
        """
        with torch.no_grad():
            return self._blocks(src, lambda x: self.self_attn.decode(x, cache, lengths=lengths))

    def _blocks(self, src: torch.Tensor, attend: Activation) -> torch.Tensor:
        if self.norm_first:
            x = src + drop(attend(self.norm1(src)), self.dropout, self.training)
            return x + self._feed_forward(self.norm2(x))
        x = self.norm1(src + drop(attend(src), self.dropout, self.training))
        return self.norm2(x + self._feed_forward(x))

    def _feed_forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = drop(activated_linear(x, self.linear1, self.activation), self.dropout, self.training)
        return drop(self.linear2(hidden), self.dropout, self.training)


class TransformerEncoder(torch.nn.Module):
    """A stack of encoder layers, with the interface of torch.nn.TransformerEncoder.

    Args:
        encoder_layer: the layer of which copies are stacked. As in torch they start with equal parameters;
            `reset_parameters` draws them for each layer.
        num_layers: number of layers.
        norm: a module applied to the output of the last layer, or None.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """

    layers: Any

    def __init__(
        self, encoder_layer: TransformerEncoderLayer, num_layers: int, norm: torch.nn.Module | None = None
    ) -> None:
        super().__init__()
        if not isinstance(encoder_layer, TransformerEncoderLayer):
            bad_type("encoder_layer", encoder_layer, "a gnnsparse.nn.TransformerEncoderLayer")
        self.num_layers = check_integer("num_layers", num_layers)
        self.layers = torch.nn.ModuleList(copy.deepcopy(encoder_layer) for _ in range(num_layers))
        self.norm = norm

    def reset_parameters(self) -> None:
        """Draw the parameters of all layers."""
        for module in (*self.layers, self.norm):
            if hasattr(module, "reset_parameters"):
                module.reset_parameters()

    def forward(
        self,
        src: torch.Tensor,
        pattern: SparseOperand | torch.Tensor | None = None,
        src_key_padding_mask: torch.Tensor | None = None,
        is_causal: bool | None = False,
        *,
        mask: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Compute the output of the last layer.

        Masks are converted one time for all layers that have the same pattern.

        Args:
            src: the argument of TransformerEncoderLayer.forward, as are src_key_padding_mask and bias.
            pattern: operand of shape [length, length] made by `gnnsparse.prepare`, which replaces the layers'
                own patterns; or, in its place by position, torch's `mask`.
            is_causal: whether edges to later tokens are masked; None: no, they are if `mask` does it.
            mask: a mask of all pairs, the argument `attn_mask` of SparseAttention.

        The result and the errors are those of TransformerEncoderLayer.forward.
        """
        is_causal = False if is_causal is None else is_causal
        given = _given(pattern, mask, "mask", src_key_padding_mask, is_causal, bias)
        sequences = Sequences.of("src", src) if is_nested(src) else None
        x = src if sequences is None else sequences.values
        found: dict[int, AttentionEdges] = {}
        for layer in self.layers:
            key = id(layer.self_attn.patterns.get(is_causal))
            if key not in found:
                found[key] = _edges(layer.self_attn, sequences or x, given)
            edges = found[key]
            x = layer(x, edges.operand, None, edges.is_causal, bias=edges.bias)
        x = x if self.norm is None else self.norm(x)
        return x if sequences is None else sequences.nested(x)

    def make_cache(self, max_length: int | None = None) -> list[KeyValueCache]:
        """Return empty caches for `decode`, one for each layer; see SparseAttention.make_cache."""
        return [layer.make_cache(max_length) for layer in self.layers]

    def decode(
        self, src: torch.Tensor, caches: Sequence[KeyValueCache], *, lengths: Any = None
    ) -> torch.Tensor:
        """Compute the output for tokens that follow those in the caches, and add them to these.

        `caches` is what `make_cache` returned, for the same sequences; the rest is as in
        TransformerEncoderLayer.decode.
        """
        if len(caches) != len(self.layers):
            bad_value("caches", f"are {len(caches)}; accepted: {len(self.layers)}, as there are layers")
        for layer, cache in zip(self.layers, caches, strict=True):
            src = layer.decode(src, cache, lengths=lengths)
        with torch.no_grad():
            return src if self.norm is None else self.norm(src)


def _given(
    pattern: Any, mask: Any, name: str, padding: torch.Tensor | None, is_causal: bool, bias: Any
) -> Given:
    """Return the arguments of a call as SparseAttention has them; `pattern` by position may be a mask."""
    if isinstance(pattern, torch.Tensor):
        if mask is not None:
            bad_type(name, mask, "one mask; this argument was given by position and by name")
        pattern, mask = None, pattern
    return read_call((), Given(pattern, padding, False, mask, True, is_causal, bias))


def _like(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor with the device and the dtype of the queries that a layer makes of `x`."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        return x.new_empty(0, dtype=torch.get_autocast_dtype(kind))
    return x


def _edges(attn: SparseAttention, src: Sequences | torch.Tensor, given: Given) -> AttentionEdges:
    if isinstance(src, Sequences):
        return attn.patterns.edges_of_nested(given, src.lengths, src.lengths, _like(src.values))
    if given.pattern is not None and given.key_padding_mask is None and given.attn_mask is None:
        return AttentionEdges(given.pattern, given.bias, given.is_causal)
    check_features("src", src, attn.embed_dim, attn.out_proj.weight, dim=None)
    if src.dim() not in (2, 3):
        bad_value("src", f"has shape {tuple(src.shape)}; accepted: two or three dimensions")
    length = src.shape[1 if attn.batch_first and src.dim() == 3 else 0]
    batch = () if src.dim() == 2 else (src.shape[0 if attn.batch_first else 1],)
    return attn.patterns.edges(given, (length, length), torch.Size((*batch, attn.num_heads)), _like(src))
