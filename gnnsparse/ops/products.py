"""spmm, sddmm and edge_softmax: checks, dispatch and gradients.

Eager calls go straight to the backend through an autograd.Function, which costs a third of a
registered operator's overhead. Under torch.compile, and for tensor subclasses, the registered
operators of gnnsparse.ops.library are used; both share the gradient formulas below.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value
from gnnsparse.operand import SparseOperand, bind_matmul, operand_of
from gnnsparse.ops import reference
from gnnsparse.ops.backend import backend_of, check_dense, check_edges, check_operand, resolve_impl
from gnnsparse.plan import Plan
from gnnsparse.precision import Precision, round_operand
from gnnsparse.preprocess.normalize import explicit_values
from gnnsparse.side import SddmmCall, SpmmCall

__all__ = ["direct", "edge_softmax", "is_plain", "needs_grad", "sddmm", "spmm"]


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_plain(*tensors: torch.Tensor | None) -> bool:
    """Whether the tensors have memory that a native kernel can read right now."""
    if torch.compiler.is_compiling():
        return False
    return all(t is None or type(t) in _PLAIN for t in tensors)


def needs_grad(*tensors: torch.Tensor | None) -> bool:
    """Whether autograd follows an operation on the tensors."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def _form(t: torch.Tensor) -> tuple[torch.dtype, torch.Size, torch.device] | None:
    """What the checks of a plain, strided tensor look at; None of any other."""
    if type(t) in _PLAIN and t.layout is torch.strided:
        return t.dtype, t.shape, t.device
    return None


def direct(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` without its look at the signature of `forward`.

    That is new in each call and takes longer than all the rest. Only transforms of torch.func need it,
    and these can't reach a native kernel.
    """
    quick: Callable[..., Any] = super(torch.autograd.Function, function).apply  # type: ignore[misc]
    return quick


@dataclass(frozen=True)
class Products:
    """The functions that a gradient formula calls: this module's own, or the registered operators."""

    spmm: Callable[..., torch.Tensor]
    sddmm: Callable[..., torch.Tensor]
    transpose_values: Callable[[SparseOperand, torch.Tensor], torch.Tensor]


def spmm_setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    """Saves what spmm's gradient needs."""
    x, values, handle = inputs[:3]
    ctx.operand = operand_of(handle)
    ctx.x_dtype = x.dtype
    needs_x = values is not None and values.requires_grad
    ctx.save_for_backward(x if needs_x else None, values)


def spmm_grad(ctx: Any, grad: torch.Tensor, use: Products) -> tuple[Any, ...]:
    """dX = A^T dY; dvalues = (dY X^T) at the nonzeros."""
    x, values = ctx.saved_tensors
    operand: SparseOperand = ctx.operand
    grad = grad.contiguous()  # autograd hands over expanded tensors
    grad_x = grad_values = None
    if ctx.needs_input_grad[0]:
        values_t = None if values is None else use.transpose_values(operand, values)
        grad_x = use.spmm(operand.T, grad, values_t).to(ctx.x_dtype)
    if values is not None and ctx.needs_input_grad[1]:
        grad_values = use.sddmm(operand, grad, x).to(values.dtype)
    return grad_x, grad_values, None


def sddmm_setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    """Saves what sddmm's gradient needs."""
    q, k, handle = inputs[:3]
    ctx.operand = operand_of(handle)
    ctx.save_for_backward(q, k)


def sddmm_grad(ctx: Any, grad: torch.Tensor, use: Products) -> tuple[Any, ...]:
    """dQ = S K and dK = S^T Q with the gradient of the scores as S's values."""
    q, k = ctx.saved_tensors
    operand: SparseOperand = ctx.operand
    grad = grad.contiguous()
    grad_q = use.spmm(operand, k, grad).to(q.dtype) if ctx.needs_input_grad[0] else None
    grad_k = None
    if ctx.needs_input_grad[1]:
        grad_k = use.spmm(operand.T, q, use.transpose_values(operand, grad)).to(k.dtype)
    return grad_q, grad_k, None


def softmax_setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    """Saves what edge_softmax's gradient needs."""
    ctx.operand = operand_of(inputs[1])
    ctx.save_for_backward(output)


def softmax_grad(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    """ds = p (dp - sum over the row of p dp)."""
    (weights,) = ctx.saved_tensors
    grad = grad.contiguous()
    if torch.is_grad_enabled() and (grad.requires_grad or weights.requires_grad):
        row = ctx.operand.indices()[0]  # differentiable again
        inner = grad.new_zeros(ctx.operand.shape[0]).index_add(0, row, weights * grad)
        return weights * (grad - inner[row]), None
    return backend_of(grad.device).edge_softmax_grad(ctx.operand.side, weights, grad), None


class _Spmm(torch.autograd.Function):
    @staticmethod
    def forward(x: torch.Tensor, values: torch.Tensor | None, handle: int, run: SpmmCall) -> Any:
        return run(x, values)

    setup_context = staticmethod(spmm_setup)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return *spmm_grad(ctx, grad, _EAGER), None


class _Sddmm(torch.autograd.Function):
    @staticmethod
    def forward(q: torch.Tensor, k: torch.Tensor, handle: int, run: SddmmCall) -> Any:
        return run(q, k)

    setup_context = staticmethod(sddmm_setup)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return *sddmm_grad(ctx, grad, _EAGER), None


class _EdgeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(scores: torch.Tensor, handle: int) -> Any:
        return backend_of(scores.device).edge_softmax(operand_of(handle).side, scores)

    setup_context = staticmethod(softmax_setup)

    backward = staticmethod(softmax_grad)


_spmm_with_grad, _sddmm_with_grad = direct(_Spmm), direct(_Sddmm)
_softmax_with_grad = direct(_EdgeSoftmax)


def _check_plan(plan: Any) -> Plan | None:
    if plan is not None and not isinstance(plan, Plan):
        bad_type("plan", plan, "a gnnsparse.plan.Plan or None")
    return plan


class _StraightThrough(torch.autograd.Function):
    """Rounds to the precision; the gradient passes unchanged, as through a cast."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, precision: Precision) -> torch.Tensor:
        return round_operand(x, precision).float()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


def _rounded(x: torch.Tensor, precision: Precision) -> torch.Tensor:
    return x if x.dtype == torch.float64 else _StraightThrough.apply(x.float(), precision)


def _reference_spmm(a: SparseOperand, x: torch.Tensor, values: torch.Tensor | None) -> torch.Tensor:
    side = a.side
    if values is None:
        row_scale = side.row_scale
        own = side.values if side.values is None else side.values.float()
        own = explicit_values(side.csr, None, own, (row_scale, side.col_scale), Precision.FP32)
        weights = own.to(x.dtype if x.dtype == torch.float64 else torch.float32)
    else:
        weights = _rounded(values, a.precision)
    dense = _rounded(x, a.precision)
    return reference.spmm(a.indices(), weights.to(dense.dtype), dense, a.shape[0]).to(x.dtype)


def spmm(
    A: SparseOperand,  # noqa: N803
    x: torch.Tensor,
    values: torch.Tensor | None = None,
    *,
    impl: str = "auto",
    plan: Plan | None = None,
) -> torch.Tensor:
    """Sparse times dense: y = A x. Also written `A @ x`. Differentiable in x and values.

    Operands are rounded to the precision of A, sums are float32, and the result is the same bit for
    bit in every run.

    Args:
        A: from `gnnsparse.prepare`, of shape [m, k].
        x: [k, n] (or [k]), float32, float16 or bfloat16, any strides, on A's device.
        values: [nnz], one for each nonzero in A's own order, in place of A's weights; same dtypes.
        impl: "auto" (where A is), "cpu", "cuda", or "reference" (plain torch; takes float64 too).
        plan: how to run on a GPU; None lets A choose.

    Returns:
        [m, n] (or [m]) in the dtype of x.

    Raises:
        TypeError: an argument is of another type or dtype.
        ValueError: a shape or a device does not go with A, or impl can't run there.
    """
    known = None
    if plan is None and impl == "auto" and not torch.compiler.is_compiling() and type(A) is SparseOperand:
        # Arguments like these have passed all checks before, and what runs them is made.
        known = "spmm", _form(x), None if values is None else _form(values) or False
        if (run := A.side.checked.get(known)) is not None:
            return _spmm_with_grad(x, values, A.handle, run) if needs_grad(x, values) else run(x, values)
    check_operand(A)
    kind = resolve_impl(impl, A)
    _check_plan(plan)
    if isinstance(x, torch.Tensor) and x.dim() == 1:
        return spmm(A, x[:, None], values, impl=impl, plan=plan)[:, 0].contiguous()
    x = check_dense("x", x, A, A.shape[1], kind)
    if values is not None:
        values = check_edges("values", values, A, kind)
    if kind == "reference":
        return _reference_spmm(A, x, values)
    if not is_plain(x, values):
        return torch.ops.gnnsparse.spmm(x, values, A.handle)
    run = backend_of(x.device).bind_spmm(A.side, x.shape[1], x.dtype, values is not None, plan)
    if known is not None:
        A.side.checked[known] = run
    return _spmm_with_grad(x, values, A.handle, run) if needs_grad(x, values) else run(x, values)


def sddmm(
    A: SparseOperand,  # noqa: N803
    q: torch.Tensor,
    k: torch.Tensor,
    *,
    impl: str = "auto",
    plan: Plan | None = None,
) -> torch.Tensor:
    """Sampled dense-dense product: dot(q[i], k[j]) at every nonzero (i, j) of A. Differentiable.

    The weights of A play no part. Operands are rounded to A's precision, sums are float32.

    Args:
        A: from `gnnsparse.prepare`, of shape [m, n].
        q: [m, d], float32, float16 or bfloat16, any strides, on A's device.
        k: [n, d], likewise.
        impl, plan: as in `spmm`.

    Returns:
        [nnz] in A's own order and the dtype of q: what `spmm` takes as values.

    Raises:
        TypeError, ValueError: as `spmm`.
    """
    known = None
    if plan is None and impl == "auto" and not torch.compiler.is_compiling() and type(A) is SparseOperand:
        known = "sddmm", _form(q), _form(k)  # as in spmm
        if (run := A.side.checked.get(known)) is not None:
            return _sddmm_with_grad(q, k, A.handle, run) if needs_grad(q, k) else run(q, k)
    check_operand(A)
    kind = resolve_impl(impl, A)
    _check_plan(plan)
    q = check_dense("q", q, A, A.shape[0], kind)
    k = check_dense("k", k, A, A.shape[1], kind)
    if q.shape[1] != k.shape[1]:
        bad_value("k", f"has {k.shape[1]} columns; accepted: {q.shape[1]}, as q")
    if kind == "reference":
        rounded = _rounded(q, A.precision), _rounded(k, A.precision)
        return reference.sddmm(A.indices(), *rounded).to(q.dtype)
    if not is_plain(q, k):
        return torch.ops.gnnsparse.sddmm(q, k, A.handle)
    run = backend_of(q.device).bind_sddmm(A.side, q.shape[1], q.dtype, plan)
    if known is not None:
        A.side.checked[known] = run
    return _sddmm_with_grad(q, k, A.handle, run) if needs_grad(q, k) else run(q, k)


def edge_softmax(
    A: SparseOperand,  # noqa: N803
    scores: torch.Tensor,
    *,
    impl: str = "auto",
) -> torch.Tensor:
    """Softmax over the nonzeros of each row of A, in float32. Differentiable.

    Args:
        A: from `gnnsparse.prepare`.
        scores: [nnz] in A's own order, float32, float16 or bfloat16. -inf masks an edge.
        impl: as in `spmm`.

    Returns:
        [nnz] in the order and dtype of scores. A row of only -inf gives zeros.

    Raises:
        TypeError, ValueError: as `spmm`.
    """
    check_operand(A)
    kind = resolve_impl(impl, A)
    scores = check_edges("scores", scores, A, kind)
    if kind == "reference":
        exact = scores if scores.dtype == torch.float64 else scores.float()
        return reference.edge_softmax(A.indices(), exact, A.shape[0]).to(scores.dtype)
    if not is_plain(scores):
        return torch.ops.gnnsparse.edge_softmax(scores, A.handle)
    if needs_grad(scores):
        return _softmax_with_grad(scores, A.handle)
    return backend_of(scores.device).edge_softmax(A.side, scores)


_EAGER = Products(spmm, sddmm, SparseOperand.transpose_values)
bind_matmul(spmm)
