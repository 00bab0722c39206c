"""SpMM as an operator of torch.library, with its fake and its gradient, and the choice of its backend."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse.ops import heads_cpu, heads_cuda, operators
from gnnsparse.ops.common import direct
from gnnsparse.ops.library import REGISTERED, Products, eager, register
from gnnsparse.ops.spmm import cpu, cuda, quantized
from gnnsparse.ops.vmap import loop
from gnnsparse.plan import Plan
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import alive, enclosed, settled
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.kernel_cache import KernelCache, SpmmCall
from gnnsparse.sparse.operand import SparseOperand, operand_of

__all__ = ["bind", "grad_of_sum", "recorded", "transformed", "with_grad"]


def bind(
    kernels: KernelCache, x: torch.Tensor, values: torch.Tensor | None, plan: Plan | None = None,
    mean: bool = False, seed: int | None = None,
) -> SpmmCall:  # fmt: skip
    """Returns a function that runs SpMM for arguments of the form of `x` and `values`: (x, values) -> y.

    Args:
        kernels: cache of the orientation that is multiplied.
        x: [k, n], or [k, heads, d] with values for each head.
        values: [nnz], [nnz, heads] or None.
        plan: the plan to run by; None: the operand's own.
        mean: whether a row's sum is divided by its number of nonzeros.
        seed: seed by which an X of 8 bits is rounded stochastically; None: to nearest.
    """
    on_gpu = path().takes(x.device)
    if kernels.quantization is not None:
        return quantized.bind(kernels, x, values, plan, mean, seed)
    if values is not None:
        kernels.require("values", "edge values", "sddmm")
    if x.dim() == 3 and kernels.runs_format_alone:
        return lambda x, values: _by_head(kernels, x, values, plan, mean)
    if x.dim() == 3:
        by_head = (heads_cuda if on_gpu else heads_cpu).spmm
        return lambda x, values: by_head(kernels, x, values, mean, plan)
    make = cuda.bind if on_gpu else cpu.bind
    return make(kernels, x.shape[1], x.dtype, values is not None, plan, mean)


def _by_head(
    kernels: KernelCache, x: torch.Tensor, values: torch.Tensor | None, plan: Plan | None, mean: bool
) -> torch.Tensor:
    """Computes a product for each head, in formats that hold the values of one."""
    assert values is not None
    y = x.new_zeros(kernels.csr.rows, *x.shape[1:])
    for h in range(x.shape[1]):
        one, own = x[:, h], values[:, h]
        y[:, h] = bind(kernels, one, own, plan, mean)(one, own)
    return y


def _run(
    x: torch.Tensor, values: torch.Tensor | None, operand: int, mean: bool = False, seed: int | None = None
) -> torch.Tensor:
    return bind(operators.spmm(x, values, operand).kernels, x, values, None, mean, seed)(x, values)


def _fake(
    x: torch.Tensor, values: torch.Tensor | None, operand: int, mean: bool = False, seed: int | None = None
) -> torch.Tensor:
    return x.new_empty(operators.spmm(x, values, operand).shape[0], *x.shape[1:])


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    x, values, handle, ctx.mean = inputs[:4]
    ctx.operand = operand_of(handle)
    ctx.x_dtype = x.dtype
    needs_x = values is not None and values.requires_grad
    ctx.save_for_backward(x if needs_x else None, values)


@ranged("spmm_backward")
def _grad(ctx: Any, grad: torch.Tensor, use: Products) -> tuple[Any, ...]:
    """Computes dX = A^T dY, and the values' gradient: dY X^T at the nonzeros of A.

    For a mean, rows of dY are divided by the numbers of nonzeros first. An X of 8 bits gets the gradient of
    one that was rounded to 16.
    """
    x, values = alive(ctx.saved_tensors)
    operand: SparseOperand = ctx.operand.unquantized
    grad = grad.contiguous()  # autograd may pass an expanded tensor, with strides of 0
    if ctx.mean:
        grad = use.divide_by_counts(operand, grad)
    grad_x = grad_values = None
    if ctx.needs_input_grad[0]:
        values_t = None if values is None else use.transpose_values(operand, values)
        grad_x = use.spmm(operand.T, grad, values_t).to(ctx.x_dtype)
    if values is not None and ctx.needs_input_grad[1]:
        grad_values = use.sddmm(operand, grad, x).to(values.dtype)
    return grad_x, grad_values, None, None, None


register(
    "spmm(Tensor x, Tensor? values, int operand, bool mean=False, int? seed=None) -> Tensor",
    _run,
    _fake,
    _setup,
    lambda ctx, grad: _grad(ctx, grad, REGISTERED),
)


class _Spmm(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, values: torch.Tensor | None, handle: int, mean: bool, run: SpmmCall) -> Any:
        return run(x, values)

    setup_context = staticmethod(_setup)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return _grad(ctx, grad, eager(grad))


#: (x, values or None, the operand's handle, whether it is a mean, the bound call) -> y, recorded by autograd.
with_grad = direct(_Spmm)


@ranged("spmm_backward")
def grad_of_sum(operand: SparseOperand, grad: torch.Tensor) -> torch.Tensor:
    """Returns A^T dY, the gradient of X in A X with A's own weights, by a launch if there is one."""
    use, transpose = eager(grad), operand.unquantized.T
    if use is not REGISTERED and not torch.compiler.is_compiling():
        # A gradient with strides of 0, as that of a sum, is copied to rows by the launch.
        y: torch.Tensor | None = transpose.kernels.dispatch_cache.multiply[0](grad)
        if y is not None and y is not NotImplemented:
            return y
    return use.spmm(transpose, grad.contiguous())


class _Product(torch.autograd.Function):
    """A product without edge values whose forward and backward pass are native launches.

    `forward` takes a context, where others have a `setup_context`: the latter is a Python call more, and
    only transforms need it. Nothing is saved but the operand.
    """

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, operand: SparseOperand, mean: bool) -> torch.Tensor:
        ctx.operand, ctx.mean = operand, mean
        kernels = operand.kernels
        y: torch.Tensor | None = kernels.dispatch_cache.multiply[mean](x)
        return bind(kernels, x, None, None, mean)(x, None) if y is None else y

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        operand: SparseOperand = ctx.operand
        if ctx.mean:
            use = eager(grad)
            grad = use.divide_by_counts(operand, grad)
            return use.spmm(operand.unquantized.T, grad.contiguous()), None, None
        return grad_of_sum(operand, grad), None, None


#: (x, operand, whether it is a mean) -> y, recorded by autograd, where `DispatchCache.multiply` takes x.
recorded = direct(_Product)


class _Transformed(torch.autograd.Function):
    """SpMM with rules for every transform; `forward` sees the tensors that are left when all are undone."""

    @staticmethod
    def forward(
        x: torch.Tensor, values: torch.Tensor | None, handle: int, mean: bool, plan: Plan | None,
        seed: int | None,
    ) -> Any:  # fmt: skip
        run = bind(operand_of(handle).kernels, x, values, plan, mean, seed)
        return run(settled(x), None if values is None else settled(values))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        x, values, handle, ctx.mean, ctx.plan, _ = inputs
        ctx.operand = operand_of(handle)
        ctx.x_dtype = x.dtype
        ctx.save_for_backward(x, values)
        ctx.save_for_forward(x, values)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return *_grad(ctx, grad, eager(grad)), None

    @staticmethod
    @enclosed
    def jvp(ctx: Any, saved: Any, dx: torch.Tensor | None, dvalues: torch.Tensor | None, *_: Any) -> Any:
        """Computes A(values) dX + A(dvalues) X."""
        x, values = saved
        operand, reduce = ctx.operand.unquantized, "mean" if ctx.mean else "sum"
        terms = []
        if dx is not None:
            terms.append(eager().spmm(operand, dx, values, reduce=reduce, plan=ctx.plan))
        if dvalues is not None:
            terms.append(eager().spmm(operand, x, dvalues, reduce=reduce))
        return sum(terms[1:], terms[0])

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, values: torch.Tensor | None,
        handle: int, mean: bool, plan: Plan | None, seed: int | None,
    ) -> Any:  # fmt: skip
        """Folds a batch of X into its columns; multiplies one by one if the values are a batch."""
        operand, reduce = operand_of(handle), "mean" if mean else "sum"

        def multiply(x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
            return eager().spmm(operand, x, values, reduce=reduce, plan=plan, seed=seed)

        if in_dims[1] is not None:
            return loop(info, in_dims[:2], multiply, x, values)
        if values is not None and values.dim() == 2:  # of each head: a batch widens the heads
            x = x.movedim(in_dims[0], 2)
            return multiply(x.flatten(2), values).unflatten(2, x.shape[2:]), 2
        x = x.movedim(in_dims[0], 1)
        return multiply(x.flatten(1), values).unflatten(1, x.shape[1:]), 1


#: (x, values or None, the operand's handle, whether it is a mean, a plan or None, a seed or None) -> y,
#: inside torch.func and forward-mode AD.
transformed = _Transformed.apply
