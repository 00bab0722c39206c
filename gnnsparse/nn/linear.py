"""Linear layers that do less than torch's, where nothing but their numbers is wanted, which stay the same.

In training a linear layer, its product with an operand and a bias are one step of autograd. On a GPU the rows
that a product reads begin at whole sectors. In inference activations are computed in place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.nn.bias import column_sum
from gnnsparse.nn.inputs import is_plain_linear
from gnnsparse.ops import spmm
from gnnsparse.ops.dense import empty_padded, has_padded_rows, padded_width
from gnnsparse.ops.dispatch import direct, refuse_batch
from gnnsparse.ops.products import transposed_product
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import is_eager
from gnnsparse.sparse.operand import SparseOperand

_PLAIN = (torch.Tensor, torch.nn.Parameter)
#: Rows from which on training makes them whole: of fewer, the host takes longer than the GPU gains.
MANY_ROWS = 1 << 14


class _Propagated(torch.autograd.Function):
    """A (x W^T) + b, whose numbers and gradients are those of the three operations one after the other."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, operand: SparseOperand
    ) -> torch.Tensor:
        ctx.operand = operand
        of_x, of_weight = ctx.needs_input_grad[:2]
        # What no gradient needs may be changed before the backward pass, as with torch's own operations.
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)
        ctx.padded = _needs_padding(x, weight.shape[0], weight.dtype, MANY_ROWS)
        product = padded_linear(x, weight) if ctx.padded else F.linear(x, weight)
        y: torch.Tensor | None = operand.kernels.dispatch_cache.multiply[0](product)
        if y is None:
            y = spmm(operand, product)
        return y if bias is None else y.add_(bias)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        of_x, of_weight, of_bias, _ = ctx.needs_input_grad
        grad_x = grad_weight = None
        if of_x or of_weight:
            x, weight = ctx.saved_tensors
            refuse_batch("spmm", grad)
            through = transposed_product(ctx.operand.unquantized.T, grad, ctx.padded)
            grad_x = through.mm(weight) if of_x else None
            grad_weight = through.t().mm(x) if of_weight else None
        return grad_x, grad_weight, column_sum(grad) if of_bias else None, None


#: A (x W^T) + b in training: of x [nodes, in_features] of which `can_propagate` is true, a weight, a bias or
#: None, and an operand A. It is one step of autograd in place of four: a step of training on a small graph
#: takes the host longer than the GPU, and each operation that autograd records takes several microseconds
#: (notes/log.md, "Small matrices").
propagated_linear: Callable[..., torch.Tensor] = direct(_Propagated)


def can_propagate(x: Any, weight: torch.Tensor, bias: torch.Tensor | None) -> bool:
    """Return whether `propagated_linear` takes these arguments, which a layer then need not check.

    Else there is nothing to record, or a transform, autocast, a trace or a subclass must see each operation.
    """
    if not is_eager() or not torch.is_grad_enabled():  # first: torch.compile need not trace the rest
        return False
    if type(x) not in _PLAIN or type(weight) not in _PLAIN:
        return False
    if not (weight.requires_grad or x.requires_grad):
        return False
    if x.layout is not torch.strided or weight.layout is not torch.strided:
        return False
    dtype, shape = x.dtype, x.shape
    return (
        len(shape) == 2
        and shape[1] == weight.shape[1]
        and dtype is weight.dtype
        and dtype.is_floating_point
        and (bias is None or (type(bias) in _PLAIN and bias.dtype is dtype))
        # With other strides torch computes a gradient as the transpose of another product.
        and (x.is_contiguous() or has_padded_rows(x))
        and weight.is_contiguous()
        and x.device == weight.device
        and not torch._C._is_any_autocast_enabled()
    )


#: Activations, and functions that compute them in place.
_IN_PLACE: dict[Callable[..., torch.Tensor], Callable[[torch.Tensor], torch.Tensor]] = {
    F.relu: torch.relu_,
    F.gelu: torch._C._nn.gelu_,  # type: ignore[attr-defined]
}


def _is_inference(x: torch.Tensor, weight: torch.Tensor) -> bool:
    """Return whether nothing but the numbers of a product is wanted, in the dtype of both factors."""
    return (
        not torch.is_grad_enabled()
        and type(x) in _PLAIN
        and type(weight) in _PLAIN
        and x.dtype == weight.dtype
        and is_eager()
        and not torch.is_autocast_enabled(x.device.type)
    )


def _needs_padding(x: torch.Tensor, features: int, dtype: torch.dtype, least: int) -> bool:
    """Return whether x W^T has `least` rows or more, of which packed ones slow a GPU's kernels."""
    return x.shape[0] >= least and padded_width(features, dtype) > features and path().takes(x.device)


def linear_in_padded_rows(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Compute x W^T; on a GPU with padded rows, which kernels read and write in whole sectors.

    Products with an operand keep such rows (`gnnsparse.ops.dense.new_result`).
    """
    if not is_eager():  # first: torch.compile need not trace the rest
        return F.linear(x, weight)
    kind, features = x.device.type, weight.shape[0]
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        exact = torch.float64 in (x.dtype, weight.dtype)  # which autocast leaves as they are
        if not exact and _needs_padding(x, features, dtype, MANY_ROWS):
            with torch.autocast(kind, enabled=False):  # which has nothing to do after these conversions
                return linear_in_padded_rows(x.to(dtype), weight.to(dtype))
    elif _is_inference(x, weight):
        if _needs_padding(x, features, weight.dtype, 0):
            return padded_linear(x, weight)
    elif _needs_padding(x, features, weight.dtype, MANY_ROWS) and can_propagate(x, weight, None):
        return _padded_linear_with_grad(x, weight)
    return F.linear(x, weight)


def padded_linear(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Compute x W^T with padded rows, without gradients; see `linear_in_padded_rows`."""
    return torch.mm(x, weight.t(), out=empty_padded(x, x.shape[0], weight.shape[0]))


class _PaddedLinear(torch.autograd.Function):
    """x W^T with padded rows, whose gradients are those of F.linear."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        of_x, of_weight = ctx.needs_input_grad
        ctx.save_for_backward(x if of_weight else None, weight if of_x else None)
        return padded_linear(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        grad_x = None if weight is None else grad.mm(weight)
        return grad_x, None if x is None else grad.t().mm(x)


_padded_linear_with_grad: Callable[..., torch.Tensor] = direct(_PaddedLinear)


def activated_linear(
    x: torch.Tensor, linear: torch.nn.Linear, activation: Callable[[torch.Tensor], torch.Tensor]
) -> torch.Tensor:
    """Apply a linear layer and an activation; in inference F.relu and F.gelu in the memory of its result."""
    in_place = _IN_PLACE.get(activation)
    if in_place is None or not is_plain_linear(linear) or not _is_inference(x, linear.weight):
        return activation(linear(x))
    return in_place(F.linear(x, linear.weight, linear.bias))
