"""What attention in the precisions of 8 bits is compared with: float64 over K and V as they are stored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import gnnsparse
from gnnsparse.testing import assert_all_accurate
from tests.attention_oracle import Case, exact, plain, run
from tests.quantized import stored

#: What the error of one element may be: a few roundings, of which a row with few edges shows the largest.
#: With dropout a gradient of the bias was 2.51 float16 steps off on a GPU, whose two passes round Q
#: differently.
FLOOR = 4 * torch.finfo(torch.float16).eps


def dequantized(x: torch.Tensor, precision: str) -> torch.Tensor:
    """[B, H, n, d] rounded to 8 bits and back in float32, every head by itself."""
    heads = [numbers * scale for numbers, scale in (stored(h.float(), precision) for h in x.flatten(0, 1))]
    return torch.stack(heads).view(x.shape)


def stored_case(a: gnnsparse.SparseOperand, case: Case) -> Case:
    """The case with K and V as the operand's precision stores them."""
    k, v = (dequantized(x, a.precision.value) for x in (case.k, case.v))
    return replace(case, k=k, v=v)


def kernel_products(a: gnnsparse.SparseOperand, case: Case) -> torch.Tensor:
    """The scaled products of q and k that a kernel for bytes makes, [B, H, L, S].

    Numbers are operands as they are, and their scales are multiplied into q before that is rounded.
    """
    products = []
    for q, k in zip(case.q.flatten(0, 1), case.k.flatten(0, 1), strict=True):
        numbers, scale = stored(k.float(), a.precision.value)
        products.append((q.float() * (scale * case.factor)).half().float() @ numbers.mT)
    return torch.stack(products).view(*case.q.shape[:3], -1)


def check(
    a: gnnsparse.SparseOperand, case: Case, *, in_bytes: bool, floor: float = FLOOR, **how: Any
) -> None:
    """Compares the result and all gradients, which pass the rounding unchanged, by the accuracy rule.

    `in_bytes`: whether a kernel for bytes computes the forward pass.
    """
    results, rounded = run(a, case, **how), stored_case(a, case)
    for got, leaf in zip(results, [case.q, *case.leaves], strict=True):
        assert got.dtype == leaf.dtype
    like = plain(a, rounded, kernel_products(a, case) if in_bytes else None)
    assert_all_accurate(results, like, exact(a, rounded), floor=floor)
