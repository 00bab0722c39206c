"""The operators of torch.library, which torch.compile and subclasses of Tensor need.

An operand is passed as its integer handle, and the caller keeps the operand alive. Each operation registers
its operator in its module `schema`. Eager calls of plain tensors do not use the operators, since their own
path has a third of an operator's overhead. Both paths use one set of gradient formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._library.autograd import Info, make_autograd_impl

from gnnsparse.ops import operators
from gnnsparse.runtime.functorch import is_batch_of_gradients, refuse_transforms
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.operand import SparseOperand, operand_of

__all__ = ["REGISTERED", "Products", "bind_eager", "divide_by_counts", "eager", "register"]

_library = torch.library.Library("gnnsparse", "DEF")


@dataclass(frozen=True)
class Products:
    """The functions that gradient formulas call: the public functions, or the registered operators."""

    spmm: Callable[..., torch.Tensor]
    sddmm: Callable[..., torch.Tensor]
    transpose_values: Callable[[SparseOperand, torch.Tensor], torch.Tensor]
    divide_by_counts: Callable[[SparseOperand, torch.Tensor], torch.Tensor]


def divide_by_counts(a: SparseOperand, x: torch.Tensor) -> torch.Tensor:
    """Divides the rows of x [m, ...] by the numbers of nonzeros of A's rows; empty rows stay as they are."""
    counts = a.kernels.inverse_counts_by_row
    return (x * counts.reshape(-1, *[1] * (x.dim() - 1))).to(x.dtype)


def _divide_op(a: SparseOperand, x: torch.Tensor) -> torch.Tensor:
    return torch.ops.gnnsparse.divide_by_counts(x, a.handle)


def _transpose_op(a: SparseOperand, values: torch.Tensor) -> torch.Tensor:
    return torch.ops.gnnsparse.transpose_values(values, a.handle)


#: The registered operators.
REGISTERED = Products(
    spmm=lambda a, x, values=None: torch.ops.gnnsparse.spmm(x, values, a.handle),
    sddmm=lambda a, q, k: torch.ops.gnnsparse.sddmm(q, k, a.handle),
    transpose_values=_transpose_op,
    divide_by_counts=_divide_op,
)
_eager: Products


def bind_eager(products: Products) -> None:
    """Sets the functions that eager gradients call; gnnsparse.ops calls this when it has imported them."""
    global _eager
    _eager = products


def eager(grad: torch.Tensor | None = None) -> Products:
    """Returns the functions that eager gradients and transforms call; `grad` is one at hand, if any."""
    return REGISTERED if grad is not None and is_batch_of_gradients(grad) else _eager


def register(
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    setup: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> None:
    """Registers an operator for CPU and CUDA tensors.

    Args:
        schema: name and signature, as in "name(Tensor x, int operand) -> Tensor".
        run: computes the results.
        fake: returns results of the right shapes and dtypes without computing them.
        setup, backward: the gradient, as arguments `setup_context` and `backward` of
            torch.library.register_autograd; None: the operator has no gradient, and refuses to record one.
    """
    name = schema.partition("(")[0]
    _library.define(schema)
    run = ranged(name)(run)
    for key in ("CPU", "CUDA"):
        _library.impl(name, run, key)
    torch.library.register_fake(f"gnnsparse::{name}", fake, lib=_library)
    # What torch.library.register_autograd does, behind a check: its operators drop tangents without a word.
    recorded = make_autograd_impl(getattr(torch.ops.gnnsparse, name).default, Info(backward, setup))

    def run_recorded(keys: Any, *arguments: Any) -> Any:
        refuse_transforms(name, arguments)
        return recorded(keys, *arguments)

    _library.impl(name, run_recorded, "Autograd", with_keyset=True)


# Gradients with respect to X need the edge values in the order of the transpose.


def _transpose_setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.operand = operand_of(inputs[1])


register(
    "transpose_values(Tensor values, int operand) -> Tensor",
    lambda values, operand: operators.transpose_values(values, operand).transpose_values(values),
    lambda values, operand: values.new_empty(
        operators.transpose_values(values, operand).nnz, *values.shape[1:]
    ),
    _transpose_setup,
    lambda ctx, grad: (_transpose_op(ctx.operand.T, grad.contiguous()), None),
)

# Gradients of a mean.


def _fake_divide(x: torch.Tensor, operand: int) -> torch.Tensor:
    operators.divide_by_counts(x, operand)
    return torch.empty_like(x)


register(
    "divide_by_counts(Tensor x, int operand) -> Tensor",
    lambda x, operand: divide_by_counts(operators.divide_by_counts(x, operand), x),
    _fake_divide,
    _transpose_setup,
    lambda ctx, grad: (_divide_op(ctx.operand, grad.contiguous()), None),
)
