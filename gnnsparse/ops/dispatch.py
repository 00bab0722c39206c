"""How a call of an operation reaches its kernel: eagerly, under autograd, in a transform, or traced.

A call of ordinary tensors goes straight to a kernel that was bound to the operand, inside the operation's
class of autograd if a gradient is needed or torch.func is active. What torch.compile traces, and subclasses
of Tensor, go through operators of torch.library, which cost three times as much and use the gradient of that
class too. An operand is passed to them as its integer handle; the caller keeps it alive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch._C import _are_functorch_transforms_active as _in_torch_func
from torch._library.autograd import Info, make_autograd_impl
from torch.autograd import forward_ad

from gnnsparse.errors import check_tensor
from gnnsparse.ops.arguments import FLOATS
from gnnsparse.runtime.functorch import is_batch_of_gradients, is_eager, materialised
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.operand import SparseOperand, operand_of

_PLAIN = (torch.Tensor, torch.nn.Parameter)
_library = torch.library.Library("gnnsparse", "DEF")


def is_plain(*tensors: torch.Tensor | None) -> bool:
    """Return whether kernels can read all tensors now: no subclass, and nothing that torch.compile traces."""
    if torch.compiler.is_compiling():
        return False
    for t in tensors:  # noqa: SIM110  (`all` takes several times as long)
        if t is not None and type(t) not in _PLAIN:
            return False
    return True


def needs_grad(*tensors: torch.Tensor | None) -> bool:
    """Return whether autograd records an operation on the tensors."""
    if torch.is_grad_enabled():
        for t in tensors:
            if t is not None and t.requires_grad:
                return True
    return False


def form_of(t: torch.Tensor) -> tuple[torch.dtype, torch.Size, torch.device] | None:
    """Return what checks of a dense tensor depend on; None if its memory does not hold its numbers."""
    if type(t) not in _PLAIN or t.layout is not torch.strided or t.is_nested:
        return None
    if not (t.is_neg() or t._is_zerotensor()):
        return t.dtype, t.shape, t.device
    return None


def direct(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Return a faster `function.apply`, for calls outside of torch.func, which does not inspect `forward`."""
    return super(torch.autograd.Function, function).apply  # type: ignore[misc]


class Operation(torch.autograd.Function):
    """Base of the class of autograd that serves every path of an operation.

    It is applied to its tensors, the operand, options, and the call that was bound to the operand. A subclass
    has `setup_context` and `backward`, which its operator of torch.library uses too.
    """

    #: The operation's name, in messages and among the operators.
    name: str

    @staticmethod
    def forward(x: Any, other: Any, *rest: Any) -> Any:  # torch.compile looks into it
        """Call what was bound to the operand; operations of one tensor have a `forward` of their own."""
        return rest[-1](x, other)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
        """Call the operation for each entry of a batch, as torch.vmap's rule."""
        count, results = info.batch_size, []
        for at in range(max(count, 1)):
            # An entry of zeros stands for an empty batch, whose results have the shapes of its results.
            entry = [
                a if dim is None else a.select(dim, at) if count else a.sum(dim)
                for a, dim in zip(arguments, in_dims, strict=True)
            ]
            results.append(cls.apply(*entry))
        if isinstance(results[0], tuple):
            return tuple(torch.stack(r)[:count] for r in zip(*results, strict=True)), (0,) * len(results[0])
        return torch.stack(results)[:count], 0

    @classmethod
    def jvp(cls, ctx: Any, *tangents: Any) -> Any:
        """Refuse forward-mode AD."""
        raise NotImplementedError(
            f"gnnsparse.{cls.name}: got a tensor with a tangent of forward-mode AD; accepted: reverse mode, "
            "as of torch.autograd.grad, torch.func.grad and torch.func.vjp"
        )


def call(
    operation: type[Operation], operator: Any, operand: SparseOperand,
    tensors: tuple[torch.Tensor | None, ...], bind: Callable[[], Callable[..., Any]],
    options: tuple[Any, ...] = (), operator_options: tuple[Any, ...] = (),
    form: tuple[Any, ...] | None = None,
) -> Any:  # fmt: skip
    """Run an operation whose arguments have been checked, on the path that they need.

    The operator takes `operator_options` besides, which the call (*tensors) -> results that `bind` makes has
    in it. That call is remembered under `form`, unless it is None.
    """
    if not is_plain(*tensors):
        return operator(*tensors, operand.handle, *options, *operator_options)
    run = bind()
    if not is_eager():
        # `forward` sees the tensors that are left when all transforms are undone.
        inner = lambda *bare: run(*(t if t is None else materialised(t) for t in bare))  # noqa: E731
        return operation.apply(*tensors, operand.handle, *options, inner)
    if form is not None and None not in form:
        operand.kernels.dispatch_cache[form] = run
    if needs_grad(*tensors):
        return direct(operation)(*tensors, operand, *options, run)
    return run(*tensors)


def operand_at(place: int | SparseOperand) -> SparseOperand:
    """Return the operand that an operation got: itself, or by its handle, which operators get."""
    return operand_of(place) if isinstance(place, int) else place


def native_or_composed(
    tensors: tuple[torch.Tensor | None, ...], native: Callable[[], Any], composed: Callable[[], Any]
) -> Any:
    """Compute a gradient by its kernel, or where it needs a gradient itself by operations that have one."""
    traced = not is_plain(*tensors)
    return native() if traced or (is_eager() and not needs_grad(*tensors)) else composed()


def refuse_batch(operation: str, grad: torch.Tensor) -> None:
    """Raise NotImplementedError if a backward pass got a batch of gradients (torch's older vmap)."""
    if is_batch_of_gradients(grad):
        raise NotImplementedError(
            f"gnnsparse.{operation}: got a batch of gradients (is_grads_batched); accepted: one at a time, "
            "or torch.func.vjp with torch.vmap"
        )


def gradient(operation: str, grad: torch.Tensor) -> torch.Tensor:
    """Return the gradient that a backward pass got, contiguous: autograd may pass one with strides of 0."""
    refuse_batch(operation, grad)
    return grad.contiguous()


class _StraightThrough(Operation):
    name = "rounding"

    @staticmethod
    def forward(x: torch.Tensor, rounded: Any) -> Any:
        return rounded(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


def straight_through(x: torch.Tensor, rounded: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return `rounded(x)`; the gradient passes the rounding unchanged, as through a cast."""
    return _StraightThrough.apply(x, lambda x: rounded(materialised(x)))


# Operators of torch.library.


def register(
    schema: str,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    setup: Callable[..., None] | None = None,
    backward: Callable[..., Any] | None = None,
) -> None:
    """Register an operator of a schema "name(Tensor x, int operand) -> Tensor" for CPU and CUDA tensors.

    `fake` returns results of the right shapes and dtypes without computing them. `setup` and `backward` are
    those of torch.library.register_autograd; None: the operator refuses to record a gradient.
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
        _refuse_transforms(name, arguments)
        return recorded(keys, *arguments)

    _library.impl(name, run_recorded, "Autograd", with_keyset=True)


def _refuse_transforms(name: str, tensors: Iterable[Any]) -> None:
    """Raise NotImplementedError for tangents and gradients of torch.func, which would be lost silently."""
    if not _in_torch_func() and forward_ad._current_level < 0:
        return
    for t in tensors:
        if not isinstance(t, torch.Tensor):
            continue
        has_tangent = (
            forward_ad._current_level >= 0 and forward_ad.unpack_dual(t, level=0).tangent is not None
        )
        if has_tangent or (_in_torch_func() and t.requires_grad and torch.is_grad_enabled()):
            raise NotImplementedError(
                f"torch.ops.gnnsparse.{name}: got a tensor inside forward-mode AD or torch.func; accepted: "
                "such tensors in the functions of gnnsparse, outside of torch.compile"
            )


@contextmanager
def recording() -> Iterator[None]:
    """Record gradients inside the implementation of an operator, where torch has switched autograd off."""
    keys = torch._C._dispatch_tls_local_exclude_set()
    for name in ("AutogradOther", "AutogradCPU", "AutogradCUDA", "AutogradFunctionality"):
        key = getattr(torch._C.DispatchKey, name, None)
        keys = keys if key is None else keys.remove(key)
    include = torch._C._dispatch_tls_local_include_set()
    with torch._C._ForceDispatchKeyGuard(include, keys), torch.enable_grad():
        yield


def check_operator_tensor(
    name: str,
    x: torch.Tensor,
    operand: SparseOperand,
    shape: tuple[int | None, ...],
    dtypes: tuple[torch.dtype, ...] = FLOATS,
) -> None:
    """Check a tensor of an operator, which may be called directly; on the meta device it fits any operand."""
    device = None if x.device.type == "meta" else operand.device
    check_tensor(name, x, dtypes=dtypes, device=device, shape=shape)


def operand_of_product(x: torch.Tensor, values: torch.Tensor | None, handle: int) -> SparseOperand:
    """Return an operator's operand, after checking x [k, n] or [k, heads, d], and values [nnz(, heads)]."""
    operand = operand_at(handle)
    check_operator_tensor("x", x, operand, row_of_heads(x, operand.shape[1]))
    if values is not None:
        operand.kernels.require("values", "edge values", "sddmm")
        check_operator_tensor("values", values, operand, (operand.nnz, *x.shape[1:-1]))
    return operand


def row_of_heads(x: torch.Tensor, rows: int) -> tuple[int | None, ...]:
    """Return the shape that an operator accepts of x: [rows, any], or [rows, heads, any]."""
    return (rows, None, None) if x.dim() == 3 else (rows, None)


# What gradients need of an operand besides products: edge values in the order of its transpose, and means.


def transpose_values(operand: SparseOperand, values: torch.Tensor) -> torch.Tensor:
    """Return edge values [nnz, ...] in the order of the transpose, also of a tensor that is traced."""
    if is_plain(values):
        return operand.transpose_values(values)
    return torch.ops.gnnsparse.transpose_values(values, operand.handle)


def divide_by_counts(operand: SparseOperand, x: torch.Tensor) -> torch.Tensor:
    """Divide the rows of x [m, ...] by the numbers of nonzeros of A's rows; empty rows stay as they are."""
    plain = is_plain(x)
    return _divide(operand, x) if plain else torch.ops.gnnsparse.divide_by_counts(x, operand.handle)


def _divide(operand: SparseOperand, x: torch.Tensor) -> torch.Tensor:
    counts = operand.kernels.inverse_counts_by_row
    return (x * counts.reshape(-1, *[1] * (x.dim() - 1))).to(x.dtype)


def _of_edges(values: torch.Tensor, handle: int) -> SparseOperand:
    operand = operand_of(handle)
    check_operator_tensor("values", values, operand, (operand.nnz, *values.shape[1:]), (values.dtype,))
    return operand


def _of_rows(x: torch.Tensor, handle: int) -> SparseOperand:
    operand = operand_of(handle)
    check_operator_tensor("x", x, operand, (operand.shape[0], *x.shape[1:]))
    return operand


def keep_operand(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    """Keep what the gradient of an operator (tensor, operand) needs: its operand."""
    ctx.operand = operand_of(inputs[1])


register(
    "transpose_values(Tensor values, int operand) -> Tensor",
    lambda values, operand: _of_edges(values, operand).transpose_values(values),
    lambda values, operand: values.new_empty(_of_edges(values, operand).nnz, *values.shape[1:]),
    keep_operand,
    lambda ctx, grad: (transpose_values(ctx.operand.T, grad.contiguous()), None),
)


def _fake_divide(x: torch.Tensor, operand: int) -> torch.Tensor:
    _of_rows(x, operand)
    return torch.empty_like(x)


register(
    "divide_by_counts(Tensor x, int operand) -> Tensor",
    lambda x, operand: _divide(_of_rows(x, operand), x),
    _fake_divide,
    keep_operand,
    lambda ctx, grad: (divide_by_counts(ctx.operand, grad.contiguous()), None),
)
