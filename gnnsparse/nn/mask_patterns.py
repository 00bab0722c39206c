"""Patterns of dense masks: the pairs that a mask does not block."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gnnsparse.nn.unchanged import Seen
from gnnsparse.patterns import masks
from gnnsparse.precision import Precision
from gnnsparse.preprocess.api import prepare
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import is_direct, outside, unwrapped
from gnnsparse.runtime.memo import ForkLock
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["MOST_MASKS", "MaskPattern", "pattern_of_mask"]

#: Masks of which the operands are kept at most. The one that was not used for longest is dropped first.
MOST_MASKS = 4


@dataclass(frozen=True)
class MaskPattern:
    """The pattern of a mask.

    Attributes:
        operand: the pairs that some head may attend to, [L, S].
        is_whole: whether the mask adds nothing to the scores of these pairs, in no head.
    """

    operand: SparseOperand
    is_whole: bool


#: What was made of masks, the one that was used last at the end.
_kept: list[tuple[Seen, tuple[Precision, bool], MaskPattern]] = []
_lock = ForkLock()


def pattern_of_mask(mask: torch.Tensor, precision: Precision) -> MaskPattern:
    """Returns the pattern of a mask, which is made once while the mask does not change.

    On the CPU a mask is known by its contents, which takes a pass over it, on a GPU by the tensor object.

    Args:
        mask: [L, S] or [any, L, S], bool, True for pairs that are blocked; or floating-point, -inf for those.
        precision: precision of the operand.

    Raises:
        RuntimeError: the pattern would have to be made while a CUDA graph is captured.
    """
    plain = unwrapped("attn_mask", mask)
    can_change = mask.is_floating_point() and (mask.requires_grad or not is_direct())
    with outside():
        seen, options = Seen(plain if plain.device.type == "cpu" else mask), (precision, can_change)
    with _lock:
        for place, (other, its_options, found) in enumerate(_kept):
            if its_options == options and other.equals(seen):
                _kept.append(_kept.pop(place))
                return found
        if path().takes(plain.device) and path().is_capturing():
            raise RuntimeError(
                "the pattern of attn_mask is not prepared yet: run the model once before capturing a CUDA "
                "graph, with the same tensor"
            )
        with outside():
            made = _made(plain, precision, can_change)
        _kept[:] = [entry for entry in _kept if not entry[0].is_gone][1 - MOST_MASKS :]
        _kept.append((seen, options, made))
        return made


def _made(mask: torch.Tensor, precision: Precision, can_change: bool) -> MaskPattern:
    allowed = ~mask if mask.dtype == torch.bool else mask != float("-inf")
    some = allowed.any(0) if mask.dim() == 3 else allowed
    operand = prepare(masks.from_dense(some), precision=precision, cache=False)
    is_whole = not can_change and bool((allowed == some).all())
    if is_whole and mask.is_floating_point():
        is_whole = not bool(mask.masked_fill(~allowed, 0).any())
    return MaskPattern(operand, is_whole)
