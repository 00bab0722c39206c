"""Gradients of biases of many rows, which torch sums at a quarter of the memory's speed."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode

from gnnsparse.runtime.functorch import is_batch_of_gradients, is_eager

#: Rows from which the sum is taken in two stages, rows that the first one leaves, and the columns for which
#: it is faster on an H100 (169,343 rows of 128, fp32: .048 for .153 ms; of 40 .045 for .023, of 602 equal).
_MANY_ROWS, _LEFT_ROWS, _COLUMNS = 1 << 14, 512, range(65, 449)
_ADDITIONS = (torch.add, torch.Tensor.add, torch.Tensor.__add__)
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def column_sum(x: torch.Tensor) -> torch.Tensor:
    """Return the sums of the columns of a matrix, in its dtype."""
    is_many = x.is_cuda and x.shape[0] >= _MANY_ROWS and x.shape[1] in _COLUMNS
    if not is_many or is_batch_of_gradients(x) or not x.is_contiguous():
        return x.sum(0)
    return _in_two_stages(x)


def _in_two_stages(x: torch.Tensor) -> torch.Tensor:
    """Add every 512th row first, in float32 at least.

    The columns of all 512 sums are side by side in memory, where torch's kernel for the sum of a few long
    columns waits for memory most of the time.
    """
    groups = x.shape[0] // _LEFT_ROWS
    wide = torch.promote_types(x.dtype, torch.float32)
    whole = groups * _LEFT_ROWS
    first = x[:whole].view(groups, -1).sum(0, dtype=wide).view(_LEFT_ROWS, -1)
    if whole < x.shape[0]:
        first = torch.cat([first, x[whole:].to(wide)])
    return first.sum(0).to(x.dtype)


class _Added(torch.autograd.Function):
    """A matrix to which a bias has been added, which gets its gradient. The matrix itself is returned."""

    @staticmethod
    def forward(ctx: Any, out: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        ctx.dtype = bias.dtype
        ctx.mark_dirty(out)  # no view, which could not be changed in place
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return grad, column_sum(grad).to(ctx.dtype)


class FastBiases(TorchFunctionMode):
    """While it is entered, biases of many rows on a GPU have gradients by `column_sum`.

    Results are those of torch's own operations, bit by bit.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a function of torch; one that adds a bias without its gradient, which follows."""
        is_linear = func is F.linear
        if not kwargs and len(args) == (3 if is_linear else 2 if func in _ADDITIONS else -1):
            *first, bias = args
            is_added = _is_bias(bias) and has_many_rows(first[0])
            if is_added and (is_linear or first[0].shape[1:] == bias.shape):
                return _Added.apply(func(*first, bias.detach()), bias)
        return func(*args, **(kwargs or {}))


def _is_bias(x: Any) -> bool:
    is_vector = type(x) in _PLAIN and x.dim() == 1 and x.shape[0] in _COLUMNS
    return is_vector and x.requires_grad and torch.is_grad_enabled()


def has_many_rows(x: Any) -> bool:
    """Return whether x is a matrix on a GPU for which `FastBiases` is worth its time.

    Under autocast the host is what a step waits for.
    """
    is_matrix = type(x) in _PLAIN and x.is_cuda and x.dim() == 2 and x.shape[0] >= _MANY_ROWS
    return is_matrix and is_eager() and not torch.is_autocast_enabled("cuda")
