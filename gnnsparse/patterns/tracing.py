"""Operands that are made while torch.compile traces a model."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse.patterns.operands import patterns_of
from gnnsparse.patterns.terms import make_pairs
from gnnsparse.sparse.operand import operand_of

__all__ = ["make_pairs_while_tracing", "make_while_tracing"]


@torch.compiler.assume_constant_result
def make_while_tracing(number: int, with_pairs: bool, *key: Any) -> bool:
    """Makes an operand of the patterns with a number, which torch.compile runs and does not look into.

    The traced code then reads the operand from the patterns, so that it is compiled anew for other ones. The
    operand is not dropped while its patterns live, since compiled code carries its handle.
    """
    patterns = patterns_of(number)
    operand = patterns.keep_for_good(key)
    if with_pairs:
        make_pairs(operand)
    return True


@torch.compiler.assume_constant_result
def make_pairs_while_tracing(handle: int) -> bool:
    """Makes the places of the edges of an operand in the matrix of all pairs, which the operand keeps."""
    make_pairs(operand_of(handle))
    return True
