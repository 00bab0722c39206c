"""Attention by a pattern through the registries of transformers. Alone: nothing else calls that package.

A model whose layers look their attention up in `transformers.AttentionInterface` computes it by the function
below once its configuration says "gnnsparse". Masks come from the function of that name in
`transformers.AttentionMaskInterface`.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Iterator
from typing import Any

import torch

from gnnsparse.errors import bad_value
from gnnsparse.nn import edge_bias
from gnnsparse.patterns.operands import Patterns, attend, dense_weights, pair_terms
from gnnsparse.runtime.device import path
from gnnsparse.sparse.operand import SparseOperand

#: The name of this implementation of attention in configurations.
NAME = "gnnsparse"

#: Arguments of a layer's forward pass by which it attends to tokens of another sequence.
_OTHER_SEQUENCE = {"encoder_hidden_states", "key_value_states", "cross_attention_states"}
#: Arguments of an attention function that change the scores or the keys in ways that it does not know.
_REFUSED = ("softcap", "position_bias", "s_aux", "cache")


class RegisteredPatterns(Patterns):
    """Patterns of layers of transformers, which register the functions of this module, unpickled ones too."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        _register()


def _register() -> None:
    """Put the functions of this module into the registries of transformers, unless its release is too old."""
    import transformers
    from transformers import AttentionInterface, AttentionMaskInterface, masking_utils

    if not {"q_length", "q_offset"} <= set(inspect.signature(masking_utils.sdpa_mask).parameters):
        raise ImportError(f"transformers {transformers.__version__} is too old; accepted: 5.23 or newer")
    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, _mask)


def models_of(model: torch.nn.Module) -> Iterator[Any]:
    """Yield the models of transformers in a model, itself included, outer ones first."""
    library = sys.modules.get("transformers.modeling_utils")  # without it there is no such model
    if library is not None:
        yield from (module for module in model.modules() if isinstance(module, library.PreTrainedModel))


def look_up(model: Any) -> None:
    """Make a model look up our attention, in copies of its configurations, which other models may share."""
    _register()
    copies: dict[int, Any] = {}
    for module in model.modules():
        config = module.__dict__.get("config")
        if hasattr(config, "_attn_implementation"):
            module.config = copy.deepcopy(config, copies)
    for inner in models_of(model):
        inner.__dict__["gnnsparse_attention_before"] = inner.config._attn_implementation
    model.set_attn_implementation(NAME)


def attention_layers(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module, Any]]:
    """Yield the name, the layer and its outermost model for each layer that looks its attention up."""
    inside: dict[int, Any] = {}
    for outer in models_of(model):
        for module in outer.modules():
            inside.setdefault(id(module), outer)
    for name, module in model.named_modules():
        if id(module) in inside:
            code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
            if "ALL_ATTENTION_FUNCTIONS" in getattr(code, "co_names", ()):
                yield name, module, inside[id(module)]


def problem_of(layer: torch.nn.Module, model: Any) -> str:
    """Return why a layer of a model can't attend by a pattern, or an empty string."""
    arguments = inspect.signature(inspect.unwrap(type(layer).forward)).parameters
    if arguments.keys() & _OTHER_SEQUENCE and getattr(layer, "is_cross_attention", True):
        return "it attends, or can attend, to another sequence"
    if not hasattr(getattr(layer, "config", None), "_attn_implementation"):
        return "it has no configuration that names its attention"
    if not getattr(model, "_supports_sdpa", False):
        return f"{type(model).__name__} has scores that scaled_dot_product_attention does not compute either"
    return ""


def overruled(layer: Any) -> str:
    """Return why a layer with a pattern does not use it, or an empty string."""
    name = layer.config._attn_implementation
    return "" if name == NAME else f"its configuration asks for attention by {name!r}"


def _mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: Any = 0,
    mask_function: Any = None,
    attention_mask: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor | None:
    """Make the mask of a call: no matrix of all pairs where the pattern and the padding say everything.

    It is None: no token is padding; bool [batch, keys]: True for tokens that are none, in a mask that else is
    causal or has all pairs, as the layer says; or, for any other mask, bool [batch, 1, queries, keys].
    """
    from transformers import masking_utils

    known = masking_utils.causal_mask_function, masking_utils.bidirectional_mask_function
    has_gaps = isinstance(q_offset, torch.Tensor) or isinstance(kv_offset, torch.Tensor) or kv_offset != 0
    if has_gaps or (mask_function is not known[1] and q_offset + q_length != kv_length):
        bad_value(
            "cache (past_key_values before transformers 5.24)",
            "got a cache of a fixed size, or of a sliding window; accepted in a model with sparse attention: "
            "one that grows with the sequence (DynamicCache), or none",
        )
    if mask_function not in known:
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return masking_utils.sdpa_mask(
            batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask, **options
        )
    if attention_mask is None:
        return None
    padding: Any = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    padding = padding[:, :kv_length]
    if torch.compiler.is_compiling() or (path().takes(padding.device) and path().is_capturing()):
        return padding
    return None if bool(padding.all()) else padding


def _attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute the attention of a layer, by its pattern if it has one.

    Queries are [batch, heads, queries, d], and keys and values [batch, key heads, keys, d or dv], where key
    heads divides heads. The mask is what `_mask` returns, or one of all pairs that the caller of the model
    has given, for which `is_causal` (None: as in the layer) is not read. The result is [batch, queries,
    heads, dv], and None, or with output_attentions the weights [batch, heads, queries, keys].
    """
    if is_causal is None:
        is_causal = bool(getattr(module, "is_causal", True))
    patterns: Patterns | None = getattr(module, "gnnsparse_patterns", None)
    if patterns is None:
        return _dense(
            module, query, key, value, attention_mask,
            dropout=dropout, scaling=scaling, is_causal=is_causal, **options,
        )  # fmt: skip
    for name in _REFUSED:
        if options.get(name) is not None:
            bad_value(name, "is not computed in a sparse layer; accepted: None, or no pattern for the layer")
    of_pairs = attention_mask is not None and attention_mask.dim() == 4
    need_weights = bool(options.get("output_attentions", False))
    queries, keys = query.shape[2], key.shape[2]
    if keys < queries or (keys > queries and (of_pairs or not is_causal)):
        bad_value(
            "key",
            f"got {keys} keys for {queries} queries; accepted in a sparse layer: as many, or the cache of a "
            "causal model without a mask of all pairs",
        )
    operand = patterns.operand(
        queries, keys, query, before=keys - queries, is_causal=is_causal and not of_pairs
    )
    bias = _bias(operand, attention_mask)
    out, weights = attend(
        operand, query, key, value, need_weights, bias=bias, dropout_p=dropout, scale=scaling
    )
    out = out.transpose(1, 2).contiguous()
    return out, None if weights is None else dense_weights(operand, weights)


def _bias(operand: SparseOperand, mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return what a mask adds to the scores, [batch or 1, heads or 1, nnz]."""
    if mask is None:
        return None
    if mask.dim() == 2:
        return edge_bias(operand, ~mask)
    if mask.dim() != 4 or mask.shape[2:] != operand.shape:
        wanted = f"(batch, keys), or (batch, heads or 1, {operand.shape[0]}, {operand.shape[1]})"
        bad_value("attention_mask", f"has shape {tuple(mask.shape)}; accepted: {wanted}")
    return pair_terms(operand, "attention_mask", mask, blocks=False)


def _dense(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor,
    mask: torch.Tensor | None, *, is_causal: bool, **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """Compute the attention of a layer without a pattern, in a model of which other layers have one."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    queries, keys = query.shape[2], key.shape[2]
    of_keys = mask is not None and mask.dim() == 2
    if mask is not None and of_keys:
        mask = mask[:, None, None, :].expand(-1, -1, queries, -1)
    if is_causal and queries > 1 and (of_keys or (mask is None and queries < keys)):
        # torch's causal mask counts from the first key, and goes with no other mask.
        earlier = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
        mask = earlier if mask is None else mask & earlier
    return sdpa_attention_forward(module, query, key, value, mask, is_causal=is_causal, **options)
