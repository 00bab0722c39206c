"""The pairs over which a call of attention attends, and what is added to their scores.

A pattern, a padding mask, a mask of all pairs and a causal one become an operand and a bias of its edges.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from gnnsparse.errors import bad_type, bad_value, check_flag, check_tensor
from gnnsparse.nn.adjacency import Fingerprint
from gnnsparse.ops.arguments import FLOATS
from gnnsparse.ops.attention.api import check_bias
from gnnsparse.patterns import masks
from gnnsparse.patterns.operands import Patterns, dense_weights, pair_terms, shared_patterns
from gnnsparse.patterns.read import Named, read_own_pattern
from gnnsparse.precision import PRECISIONS, Precision
from gnnsparse.preprocess.api import prepare
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import is_eager, outside, unwrapped
from gnnsparse.runtime.memo import ForkLock
from gnnsparse.sparse.operand import SparseOperand

#: The order of positional arguments after query, key and value, if the first of them is a pattern, ...
_OURS = ("pattern", "key_padding_mask", "is_causal")
#: ... and else, as in torch.nn.MultiheadAttention.
_TORCHS = ("key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")


class Given(NamedTuple):
    """The arguments of SparseAttention's call but query, key and value."""

    pattern: SparseOperand | None = None
    key_padding_mask: torch.Tensor | None = None
    need_weights: Any = None
    attn_mask: torch.Tensor | None = None
    average_attn_weights: bool = True
    is_causal: bool = False
    bias: torch.Tensor | None = None

    @property
    def as_pair(self) -> bool:
        """Whether the result is a pair of the output and the weights, as torch's."""
        return self.pattern is None or self.need_weights is not None

    @property
    def weights(self) -> Any:
        """What is wanted of the weights: False, True (matrices) or "sparse"."""
        return self.pattern is None if self.need_weights is None else self.need_weights


def read_call(positional: tuple[Any, ...], named: Given) -> Given:
    """Return the arguments of a call whose order is that of `_OURS` or of `_TORCHS`, checked."""
    if positional:
        first = positional[0]
        order = _TORCHS if first is None or isinstance(first, torch.Tensor) else _OURS
        if len(positional) > len(order):
            bad_type("forward", positional, f"query, key, value and at most {', '.join(order)} by position")
        for name, value in zip(order, positional, strict=False):
            default = Given._field_defaults[name]
            if getattr(named, name) is not default and value is not default:
                bad_type(name, value, "one value; this argument was given by position and by name")
            if value is not default:
                named = named._replace(**{name: value})
    if named.pattern is not None and not isinstance(named.pattern, SparseOperand):
        bad_type("pattern", named.pattern, "a SparseOperand, from gnnsparse.prepare")
    check_flag("is_causal", named.is_causal)
    check_flag("average_attn_weights", named.average_attn_weights)
    if isinstance(named.need_weights, str):
        if named.need_weights != "sparse":
            bad_value("need_weights", f"got {named.need_weights!r}; accepted: True, False, 'sparse'")
    elif named.need_weights is not None:
        check_flag("need_weights", named.need_weights)
    return named


def edge_bias(pattern: SparseOperand, key_padding_mask: torch.Tensor) -> torch.Tensor:
    """Make the argument `bias` of `gnnsparse.attention` by which padded keys are masked.

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
    mask = check_tensor("key_padding_mask", key_padding_mask, dtypes=(torch.bool, *FLOATS))
    if mask.dim() not in (1, 2) or mask.shape[-1] != keys:
        bad_value("key_padding_mask", f"has shape {tuple(mask.shape)}; accepted: {accepted}")
    if mask.device != pattern.device:
        bad_value("key_padding_mask", f"is on {mask.device}; accepted: {pattern.device}, as the pattern")
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=torch.float32).masked_fill(mask, float("-inf"))
    return mask.float().index_select(-1, pattern.kernels.csr.indices).unsqueeze(-2)


class AttentionEdges(NamedTuple):
    """The pattern [L, S] of a call, the `bias` of its edges, and whether later keys are left out."""

    operand: SparseOperand
    bias: torch.Tensor | None
    is_causal: bool


class LayerPatterns:
    """The pattern of a layer by the length of its input (None: all keys), in the dtype of the queries."""

    def __init__(self, pattern: Any, options: Any, precision: Precision | None) -> None:
        self.precision = precision
        self.own: Patterns | None = None
        if pattern is not None:
            self.own = shared_patterns(read_own_pattern("pattern", pattern, options), precision)
        elif options is not None:
            bad_value("pattern_options", "go with the name of a pattern, but pattern is None")
        self._all = shared_patterns(Named("full", ()), precision)
        self._earlier = shared_patterns(Named("causal", ()), precision)

    def get(self, is_causal: bool) -> Patterns:
        """Return the layer's patterns; without any those of all keys, or of all keys up to the query."""
        return self.own or (self._earlier if is_causal else self._all)

    def edges(
        self, given: Given, lengths: tuple[int, int], heads: torch.Size, like: torch.Tensor
    ) -> AttentionEdges:
        """Return the edges of a call with `lengths` (queries, keys); `like` are the queries."""
        mask, is_causal, bias = given.attn_mask, given.is_causal, given.bias
        if mask is not None:
            _check_mask(mask, lengths, heads, like)
        if given.pattern is not None:
            operand = given.pattern
        elif self.own is None and mask is not None and not torch.compiler.is_compiling():
            operand, is_whole = pattern_of_mask(mask, self.precision or _precision(like))
            mask = None if is_whole else mask
        else:
            operand = self.get(is_causal).operand(*lengths, like, is_causal=is_causal)
            is_causal = False
        if bias is not None and (mask is not None or given.key_padding_mask is not None):
            check_bias(operand, bias, tuple(heads), FLOATS)  # the sum would hide whose shape is wrong
        if (padding := given.key_padding_mask) is not None:
            of_keys, batch = edge_bias(operand, padding), heads[:-1]
            if padding.dim() == 2 and padding.shape[:1] not in (batch, (1,) if batch else ()):
                known = " or ".join(str((*sizes, lengths[1])) for sizes in dict.fromkeys([(), tuple(batch)]))
                shape = tuple(padding.shape)
                bad_value("key_padding_mask", f"has shape {shape}; accepted: {known}, a row a sequence")
            bias = of_keys if bias is None else bias + of_keys
        if mask is not None:
            if mask.dim() == 3:
                mask = mask.unflatten(0, heads)
            terms = pair_terms(operand, "attn_mask", mask, blocks=True)
            bias = terms if bias is None else bias + terms
        return AttentionEdges(operand, bias, is_causal)

    def edges_of_nested(
        self, given: Given, queries: tuple[int, ...], keys: tuple[int, ...], like: torch.Tensor
    ) -> AttentionEdges:
        """Return the edges of nested tensors by their lengths; beside these a call has `is_causal` alone."""
        for name in ("pattern", "key_padding_mask", "attn_mask", "bias", "need_weights"):
            if getattr(given, name) is not None and getattr(given, name) is not False:
                bad_value(name, "was given with nested tensors; accepted: the layer's own pattern alone")
        operand = self.get(given.is_causal).operand(queries, keys, like, is_causal=given.is_causal)
        return AttentionEdges(operand, None, False)


def _precision(like: torch.Tensor) -> Precision:
    if like.dtype not in PRECISIONS:
        bad_type("query", like, "queries of dtype float32, float16 or bfloat16")
    return PRECISIONS[like.dtype]


def _check_mask(mask: Any, lengths: tuple[int, int], heads: torch.Size, like: torch.Tensor) -> None:
    is_dense = isinstance(mask, torch.Tensor) and mask.layout == torch.strided
    if not is_dense or not (mask.dtype == torch.bool or mask.is_floating_point()):
        bad_type("attn_mask", mask, "a dense tensor of bool or of a floating dtype")
    shapes = lengths, (heads.numel(), *lengths)
    if tuple(mask.shape) != shapes[0] and tuple(mask.shape) != shapes[1]:
        bad_value("attn_mask", f"has shape {tuple(mask.shape)}; accepted: {shapes[0]} or {shapes[1]}")
    if mask.device != like.device:
        bad_value("attn_mask", f"is on {mask.device}; accepted: {like.device}, as the queries")


def weights_of(operand: SparseOperand, weights: torch.Tensor, given: Given) -> torch.Tensor:
    """Return the weights as the caller wants them, [..., heads, nnz] or dense or COO. Differentiable."""
    if given.average_attn_weights:
        weights = weights.mean(-2)
    if given.weights != "sparse":
        return dense_weights(operand, weights)
    sizes = weights.shape[:-1]
    edges = operand.indices()
    places = [torch.arange(size, device=weights.device) for size in sizes]
    each = torch.cartesian_prod(*places).reshape(-1, len(sizes)).T if sizes else edges.new_zeros(0, 1)
    index = torch.cat([each.repeat_interleave(operand.nnz, dim=1), edges.repeat(1, each.shape[1])])
    shape = (*sizes, *operand.shape)
    return torch.sparse_coo_tensor(index, weights.flatten(), shape, check_invariants=False).coalesce()


#: Masks of which operands are cached at most. The one that was not used for longest is dropped first.
MOST_MASKS = 4


#: The pairs [L, S] that some head may attend to, and whether the mask adds nothing to their scores.
_MaskPattern = tuple[SparseOperand, bool]
#: What was made of masks, the one that was used last at the end.
_cached_masks: list[tuple[Fingerprint, tuple[Precision, bool], _MaskPattern]] = []
_lock = ForkLock()


def pattern_of_mask(mask: torch.Tensor, precision: Precision) -> _MaskPattern:
    """Return the pattern of a mask [L, S] or [any, L, S], made once while the mask does not change.

    On the CPU a mask is known by its contents, on a GPU by the tensor object. True and -inf block pairs. The
    pattern can't be made while a CUDA graph is captured.
    """
    dense = unwrapped("attn_mask", mask)
    can_change = mask.is_floating_point() and (mask.requires_grad or not is_eager())
    with outside():
        fingerprint = Fingerprint(dense if dense.device.type == "cpu" else mask)
    options = precision, can_change
    with _lock:
        for place, (other, its_options, found) in enumerate(_cached_masks):
            if its_options == options and other.equals(fingerprint):
                _cached_masks.append(_cached_masks.pop(place))
                return found
        if path().takes(dense.device) and path().is_capturing():
            raise RuntimeError(
                "the pattern of attn_mask is not prepared yet: run the model once before capturing a CUDA "
                "graph, with the same tensor"
            )
        with outside():
            made = _made(dense, precision, can_change)
        _cached_masks[:] = [entry for entry in _cached_masks if not entry[0].is_gone][1 - MOST_MASKS :]
        _cached_masks.append((fingerprint, options, made))
        return made


def _made(mask: torch.Tensor, precision: Precision, can_change: bool) -> _MaskPattern:
    allowed = ~mask if mask.dtype == torch.bool else mask != float("-inf")
    some = allowed.any(0) if mask.dim() == 3 else allowed
    operand = prepare(masks.from_dense(some), precision=precision, cache=False)
    is_whole = not can_change and bool((allowed == some).all())
    if is_whole and mask.is_floating_point():
        is_whole = not bool(mask.masked_fill(~allowed, 0).any())
    return operand, is_whole
