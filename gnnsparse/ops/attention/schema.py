"""Both operations as operators of torch.library and of autograd, and the choice of the kernels that run them.

It stands alone because it knows nothing of what callers may pass, which api.py checks. An operator can't
return None: what there is not, or is not needed, is an empty tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar

import torch

from gnnsparse.errors import bad_type, bad_value, check_share
from gnnsparse.ops.attention import cpu, cuda_panels, cuda_rows, libraries, unfused
from gnnsparse.ops.attention.arguments import (
    Arrays,
    AttentionCall,
    Grads,
    GraphCall,
    Needs,
    Result,
    add_by_head,
    by_head,
    empty_heads,
    four_dimensions,
)
from gnnsparse.ops.attention.quantized import dequantized, takes_bytes
from gnnsparse.ops.dispatch import check_operator_tensor, direct, is_plain, needs_grad, operand_at, register
from gnnsparse.plan import (
    AttentionGradPlan,
    AttentionPlan,
    BlockAttentionPlan,
    CsrAttentionPlan,
    Plan,
    UnfusedPlan,
)
from gnnsparse.plan.attention import BLOCKS
from gnnsparse.runtime.device import describe_device, path
from gnnsparse.runtime.functorch import alive, is_batch_of_gradients, is_eager, materialised
from gnnsparse.runtime.nvtx import ranged
from gnnsparse.sparse.operand import SparseOperand

Tensors = Sequence["torch.Tensor | None"]
#: Results of graph attention: those of a Result and the weights, empty where there is none.
Outputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def _or_empty(grads: Tensors, like: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(like.new_empty(0) if g is None else g for g in grads)


# The choice of kernels.


def _runs_unfused(call: AttentionCall, plan: Plan | None) -> bool:
    return isinstance(plan, UnfusedPlan) or call.operand.kernels.runs_format_alone


def run_forward(call: AttentionCall, plan: Plan | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute attention on the operand's device by a plan (None: its own): output and statistics.

    The output [B, H, L, Dv] has the dtype and memory order of q. The statistics, float32 [B, H, L, 2] in the
    caller's numbering of rows, are what a row's scores (on a GPU as exponents of 2) are lowered by before
    they are exponents, and the factor that makes the sum of its weights 1; both are 0 without unmasked edges.
    """
    if not path().takes(call.operand.device):
        run = unfused.forward if _runs_unfused(call, plan) else cpu.forward
        return run(dequantized(call))
    plan = plan or call.operand.kernels.plan_of(call.product("attention"))
    plan = libraries.settled(call, plan, "attention")
    in_bytes = takes_bytes(call, plan)
    if not in_bytes:
        call = dequantized(call)
    if isinstance(plan, AttentionPlan):
        return cuda_panels.forward(call, plan, in_bytes)
    if isinstance(plan, BlockAttentionPlan):
        return cuda_panels.block_forward(call)
    if isinstance(plan, libraries.LIBRARY_PLANS):
        return libraries.forward(call, plan)
    return cuda_rows.forward(call) if isinstance(plan, CsrAttentionPlan) else unfused.forward(call)


def _grad_plan(call: AttentionCall, plan: Plan | None) -> Plan:
    """Return the plan of the gradients for a forward pass by `plan`; None: the operand's own plans."""
    if isinstance(plan, (UnfusedPlan, CsrAttentionPlan, *libraries.LIBRARY_PLANS)):
        return plan
    if isinstance(plan, AttentionPlan) and plan.backward is not None:
        return plan.backward
    if (
        isinstance(plan, BlockAttentionPlan)
        and describe_device(call.q.device).capability == BLOCKS.gradients_on
    ):
        return plan
    operand = call.operand
    return operand.kernels.plan_of(call.product("attention_grad"), operand.T.kernels)


@ranged("attention_backward")
def run_backward(
    call: AttentionCall, out: torch.Tensor, stats: torch.Tensor, grad: torch.Tensor, needs: Needs,
    plan: Plan | None = None,
) -> Grads:  # fmt: skip
    """Compute the needed gradients of q, k, v and bias, in their shapes and dtypes, and memory orders.

    Where k and v are rounded to 8 bits, gradients pass the rounding unchanged. `grad` [B, H, L, Dv] is that
    of `out`, any strides; `plan` the one given for the forward pass.
    """
    given, call = call, dequantized(call)
    on_gpu = path().takes(call.operand.device)
    if on_gpu:
        plan = libraries.settled(call, _grad_plan(call, plan), "attention_grad")
    if isinstance(plan, AttentionGradPlan):
        found = cuda_panels.backward(call, plan, out, stats, grad, needs)
    elif isinstance(plan, BlockAttentionPlan):
        found = cuda_panels.block_backward(call, out, stats, grad, needs)
    elif isinstance(plan, CsrAttentionPlan):
        found = cuda_rows.backward(call, out, stats, grad, needs)
    elif isinstance(plan, libraries.LIBRARY_PLANS):
        found = libraries.backward(call, plan, out, stats, grad, needs)
    elif on_gpu or _runs_unfused(call, plan):
        found = unfused.backward(call, grad, needs)
    else:
        found = cpu.backward(call, stats, grad, needs)
    pairs = zip(found, (given.q, given.k, given.v, given.bias), strict=True)
    dq, dk, dv, dbias = (None if g is None or x is None else g.to(x.dtype) for g, x in pairs)
    return dq, dk, dv, dbias


def _backend(operand: SparseOperand) -> ModuleType:
    return cuda_rows if path().takes(operand.device) else cpu


def require_rows(operand: SparseOperand) -> None:
    """Raise ValueError if the operand's format was asked for: these kernels run over CSR rows."""
    operand.kernels.require("A", "graph attention by other than scaled, biased dot products", None)


def outputs_of(result: Result, weights: torch.Tensor | None) -> Outputs:
    """Return results as an operator does."""
    mapped, sloped, weights = _or_empty((result.mapped, result.sloped, weights), result.out)
    return result.out, mapped, result.stats, sloped, weights


def _with_queries(call: GraphCall) -> GraphCall:
    """Return the call as kernels take it: the queries have passed through the linear map of edge features."""
    a = call.arrays
    if a.map is None:
        return call
    mapped_q = by_head(a.q, a.map) if call.to_keys else None
    return call._replace(arrays=a._replace(map=None, mapped_q=mapped_q))


def run_graph(call: GraphCall, wants_weights: bool, for_grads: bool = False) -> Outputs:
    """Compute graph attention on the operand's device, with the weights after dropout, float32 [nnz, H].

    `for_grads`: with what only the gradients need.
    """
    require_rows(call.operand)
    backend, a = _backend(call.operand), call.arrays
    call = _with_queries(call)
    on_gpu = backend is cuda_rows
    result = cuda_rows.graph_forward(call, for_grads) if on_gpu else cpu.graph_forward(call)
    if a.map is not None and result.mapped is not None:
        add_by_head(result.out, result.mapped, a.map.mT)
    return outputs_of(result, backend.graph_weights(call, result) if wants_weights else None)


@ranged("graph_attention_backward")
def graph_gradients(
    call: GraphCall, outputs: Sequence[Any], grads: Tensors, needs: Sequence[bool], into: Arrays | None = None
) -> Arrays:
    """Compute the needed gradients of the arrays from those (or None) of out, mapped and the weights.

    A GPU writes those of q, k and v to the tensors `into`, where they have the dtype that its kernels write.
    """
    out, mapped, stats, sloped = outputs
    mapped = mapped if call.arrays.mapped is not None and call.to_values else None
    result = Result(out, mapped, stats, sloped if sloped is not None and sloped.numel() > 0 else None)
    grad_out, grad_mapped, grad_weights = (None if g is None else materialised(g) for g in grads)
    grad_out = torch.zeros_like(out) if grad_out is None else grad_out
    backend, a, mapped, needs_map = _backend(call.operand), call.arrays, result.mapped, needs[-1]
    if a.map is not None:  # the output has the mapped features in it
        grad_mapped = None if mapped is None else by_head(grad_out, a.map)
        needs = *needs[:-2], call.to_keys and (needs[0] or needs_map), False
        call, result = _with_queries(call), result._replace(mapped=None)
    elif mapped is None:
        grad_mapped = None
    given, on_gpu = (call, result, grad_out, grad_mapped, grad_weights, tuple(needs)), backend is cuda_rows
    found: Arrays = cuda_rows.graph_backward(*given, into) if on_gpu else cpu.graph_backward(*given)
    if a.map is None:
        return found
    if found.q is not None and found.mapped_q is not None:
        add_by_head(found.q, found.mapped_q, a.map.mT)
    of_map = None
    if needs_map:
        pairs = [(a.q, found.mapped_q), (grad_out, mapped)]
        of_map = backend.map_grad(call, [(x, y) for x, y in pairs if y is not None]).to(a.map.dtype)
    return found._replace(mapped_q=None, map=of_map)


# Autograd. Arguments: the tensors, the seed of dropout, the operand or its handle, and options.


class _Recorded(torch.autograd.Function):
    """What both operations have in common: gradients by kernels, by an operator, or with a graph.

    `tensors` arguments get gradients, `options` options and `saved` results are what the gradient takes, and
    `differentiable` are the places of results that have one.
    """

    tensors: ClassVar[int]
    options: ClassVar[int]
    saved: ClassVar[int]
    differentiable: ClassVar[tuple[int, ...]]
    run: ClassVar[Callable[..., Any]]
    gradients: ClassVar[Callable[..., Tensors]]
    unfused: ClassVar[Callable[..., Tensors]]

    @classmethod
    def setup(cls, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        """Save the arguments and results for the gradient; only edge terms have a value for each edge."""
        *tensors, operand = inputs[: cls.tensors + 2]
        options = inputs[cls.tensors + 2 :]
        ctx.operand = operand_at(operand)
        ctx.options, ctx.others = options[: cls.options], options[cls.options :]
        ctx.save_for_backward(*tensors, *output[: cls.saved])
        ctx.set_materialize_grads(False)

    @classmethod
    def forward(cls, ctx: Any, *inputs: Any) -> Any:
        output = cls.run(*inputs)
        cls.setup(ctx, inputs, output)
        saved = [x for i, x in enumerate(output[: cls.saved]) if i not in cls.differentiable]
        ctx.mark_non_differentiable(*saved)
        return output

    @classmethod
    def backward(cls, ctx: Any, *grads: Any) -> Any:
        wanted, needs = [grads[i] for i in cls.differentiable], ctx.needs_input_grad[: cls.tensors]
        rest = (None,) * (len(ctx.needs_input_grad) - cls.tensors)
        given = [g for g in wanted if g is not None]
        if not given:
            return *(None for _ in needs), *rest
        saved = alive(ctx.saved_tensors)  # checkpointing lets them be read one time only
        tensors, seed, results = saved[: cls.tensors], saved[cls.tensors], saved[cls.tensors + 1 :]
        traced = not is_plain(*given, *saved) or is_batch_of_gradients(given[0])
        if traced or (is_eager() and not needs_grad(*given, *tensors)):
            found = cls.gradients(ctx, tensors, seed, results, wanted, needs, traced)
            return *(g if need else None for g, need in zip(found, needs, strict=True)), *rest
        return *with_graph(lambda again: cls.unfused(ctx, again, seed), tensors, needs, wanted), *rest


def with_graph(
    compute: Callable[[list[Any]], Tensors], tensors: list[Any], needs: Sequence[bool], grads: Tensors
) -> Tensors:
    """Return the needed gradients, with a graph, from those (or None) of the results of a function."""

    def run(*wanted: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = iter(wanted)
        outputs = compute([next(found) if need else x for x, need in zip(tensors, needs, strict=True)])
        return tuple(y for y, g in zip(outputs, grads, strict=True) if y is not None and g is not None)

    _, pull, *_ = torch.func.vjp(run, *(x for x, need in zip(tensors, needs, strict=True) if need))
    found = iter(pull(tuple(g for g in grads if g is not None)))
    return tuple(next(found) if need else None for need in needs)


def _as_given(x: Any, dim: int) -> Any:
    """Undo `four_dimensions` for a tensor that had `dim` dimensions; None for None."""
    return x if x is None or dim == 4 else x[(0,) * (4 - dim)]


def _call(q: Any, k: Any, v: Any, bias: Any, seed: Any, operand: Any, *options: Any) -> AttentionCall:
    heads = four_dimensions(q), four_dimensions(k), four_dimensions(v)
    return AttentionCall(operand_at(operand), *heads, bias, seed, *options)


class _Attention(_Recorded):
    """Attention of arguments with two to four dimensions; views made outside would be nodes of autograd."""

    tensors, options, saved, differentiable = 4, 3, 2, (0,)

    @staticmethod
    def run(*inputs: Any) -> Any:
        out, stats = run_forward(_call(*inputs[:9]), *inputs[9:])
        return _as_given(out, inputs[0].dim()), stats

    @staticmethod
    def gradients(
        ctx: Any, tensors: list[Any], seed: Any, results: list[Any], grads: list[Any],
        needs: Any, traced: bool,
    ) -> Tensors:  # fmt: skip
        call, (out, stats) = _call(*tensors, seed, ctx.operand, *ctx.options), results
        out, grad = four_dimensions(out), four_dimensions(materialised(grads[0]))
        found: Any
        if traced:
            found = torch.ops.gnnsparse.attention_grad(
                call.q, call.k, call.v, call.bias, out, stats, grad, seed, ctx.operand.handle, *ctx.options,
                list(needs),
            )  # fmt: skip
        else:
            found = run_backward(call, out, stats, grad, tuple(needs), *ctx.others)
        return *(_as_given(x, tensors[0].dim()) for x in found[:3]), found[3]

    @staticmethod
    def unfused(ctx: Any, tensors: list[Any], seed: Any) -> Tensors:
        out, _ = unfused.by_operations(_call(*tensors, seed, ctx.operand, *ctx.options))
        return (_as_given(out, tensors[0].dim()),)


#: (q, k, v, bias, seed, operand, scale, dropout_p, is_causal, plan) -> (out, stats), recorded by autograd.
recorded = direct(_Attention)

_ARRAYS = len(Arrays._fields)


def _graph_call(arrays: Sequence[Any], seed: Any, operand: Any, options: Sequence[Any]) -> GraphCall:
    return GraphCall(operand_at(operand), Arrays(*arrays), *options, seed)  # type: ignore[call-arg]


class _GraphAttention(_Recorded):
    tensors, options, saved, differentiable = _ARRAYS, len(GraphCall._fields) - 3, 4, (0, 1, 4)

    @staticmethod
    def run(*inputs: Any) -> Outputs:
        *arrays, seed, operand = inputs[: _ARRAYS + 2]
        return run_graph(_graph_call(arrays, seed, operand, inputs[_ARRAYS + 2 : -1]), inputs[-1], True)

    @staticmethod
    def gradients(
        ctx: Any, tensors: list[Any], seed: Any, results: list[Any], grads: list[Any],
        needs: Sequence[bool], traced: bool,
    ) -> Tensors:  # fmt: skip
        if traced:
            return torch.ops.gnnsparse.graph_attention_grad(
                *tensors, seed, *results, *grads, ctx.operand.handle, list(needs), *ctx.options
            )
        call = _graph_call(tensors, seed, ctx.operand, ctx.options)
        if ctx.keys_are_values:
            call = call._replace(arrays=call.arrays._replace(v=call.arrays.k))
        return graph_gradients(call, results, grads, needs)

    @classmethod
    def setup(cls, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        super().setup(ctx, inputs, output)
        ctx.keys_are_values = inputs[1] is inputs[2]

    @staticmethod
    def unfused(ctx: Any, tensors: list[Any], seed: Any) -> Tensors:
        result, weights = unfused.graph_forward(_graph_call(tensors, seed, ctx.operand, ctx.options))
        return result.out, result.mapped, weights


#: (*arrays, seed, operand, *options, wants_weights) -> Outputs, recorded by autograd.
recorded_graph = direct(_GraphAttention)


# The operators of torch.library. They may be called directly, with anything, and check their arguments.


def _checked(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, seed: torch.Tensor | None,
    handle: int, scale: float, dropout_p: float, is_causal: bool,
) -> AttentionCall:  # fmt: skip
    operand = operand_at(handle)
    operand.kernels.require("operand", "attention", "sddmm")
    rows, cols = operand.shape
    leading = tuple(q.shape[:-2])
    if not 2 <= q.dim() <= 4:
        bad_value("q", f"has {q.dim()} dimensions; accepted: 2 to 4")
    check_operator_tensor("q", q, operand, (*leading, rows, None))
    check_operator_tensor("k", k, operand, (*leading, cols, q.shape[-1]))
    check_operator_tensor("v", v, operand, (*leading, cols, None))
    if bias is not None:
        sizes = (1, 1, *leading)[-2:]
        shape = tuple(1 if one == 1 else size for one, size in zip(bias.shape[:-1], sizes, strict=False))
        check_operator_tensor(
            "bias", bias, operand, (*shape, operand.nnz) if bias.dim() == 3 else (*sizes, operand.nnz)
        )
    check_share("dropout_p", dropout_p)
    if (seed is None) != (dropout_p == 0):
        bad_type("seed", seed, "an int64 tensor [1] with dropout, None without")
    if seed is not None:
        check_operator_tensor("seed", seed, operand, (1,), (torch.int64,))
    return _call(q, k, v, bias, seed, operand, scale, dropout_p, is_causal)


def _checked_grad(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, out: torch.Tensor,
    stats: torch.Tensor, grad: torch.Tensor, seed: torch.Tensor | None, handle: int, scale: float,
    dropout_p: float, is_causal: bool, needs: list[bool],
) -> tuple[AttentionCall, tuple[Any, ...]]:  # fmt: skip
    """Return the arguments of `run_backward`; out and grad are [B, H, L, Dv]."""
    call = _checked(q, k, v, bias, seed, handle, scale, dropout_p, is_causal)
    for name, x in (("out", out), ("grad", grad)):
        check_operator_tensor(name, x, call.operand, (*call.q.shape[:3], v.shape[-1]))
    check_operator_tensor("stats", stats, call.operand, (*call.q.shape[:3], 2), (torch.float32,))
    if needs[3] and bias is None:
        bad_value("needs", "got True for the bias; accepted: False, as there is none")
    return call, (out, stats, grad, tuple(needs))


def _run(*arguments: Any) -> Any:
    out, stats = run_forward(_checked(*arguments))
    return _as_given(out, arguments[0].dim()), stats


def _fake(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
    call = _checked(*arguments)
    stats = call.q.new_empty((*call.q.shape[:3], 2), dtype=torch.float32)
    return _as_given(empty_heads(call.q, call.v.shape[-1]), arguments[0].dim()), stats


def _run_grad(*arguments: Any) -> tuple[torch.Tensor, ...]:
    call, others = _checked_grad(*arguments)
    return _or_empty(run_backward(call, *others), call.q)


def _fake_grad(*arguments: Any) -> tuple[torch.Tensor, ...]:
    call, (*_, needs) = _checked_grad(*arguments)
    inputs = zip((call.q, call.k, call.v), needs, strict=False)
    grads = [empty_heads(x, x.shape[-1]) if need else None for x, need in inputs]
    grads.append(call.bias.new_empty(call.bias.shape) if call.bias is not None and needs[3] else None)
    return _or_empty(grads, call.q)


register(
    "attention(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? seed, int operand, float scale, "
    "float dropout_p, bool is_causal) -> (Tensor, Tensor)",
    _run,
    _fake,
    _Attention.setup,
    _Attention.backward,
)
register(
    "attention_grad(Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor out, Tensor stats, Tensor grad, "
    "Tensor? seed, int operand, float scale, float dropout_p, bool is_causal, bool[4] needs) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
    _run_grad,
    _fake_grad,
)


def _fake_graph(*arguments: Any) -> Outputs:
    *arrays, seed, operand = arguments[: _ARRAYS + 2]
    call = _graph_call(arrays, seed, operand, arguments[_ARRAYS + 2 : -1])
    require_rows(call.operand)
    rows, (_, heads, width), mapped = call.operand.shape[0], call.arrays.v.shape, call.arrays.mapped
    new, storage = call.arrays.v.new_empty, call.operand.precision.storage
    keeps = _backend(call.operand) is cuda_rows and cuda_rows.keeps_sloped(call)
    return (
        new(rows, heads, width),
        new((rows, heads, mapped.shape[-1]) if mapped is not None and call.to_values else 0),
        new(rows, heads, 3 if keeps else 2, dtype=torch.float32),
        new(rows, heads, width, dtype=storage) if keeps else new(0),
        new(call.operand.nnz, heads, dtype=torch.float32) if arguments[-1] else new(0),
    )


def _run_graph_grad(*arguments: Any) -> tuple[torch.Tensor, ...]:
    *arrays, seed = arguments[: _ARRAYS + 1]
    *outputs, grad_out, grad_mapped, grad_weights, operand, needs = arguments[_ARRAYS + 1 : _ARRAYS + 10]
    call = _graph_call(arrays, seed, operand, arguments[_ARRAYS + 10 :])
    found = graph_gradients(call, outputs, (grad_out, grad_mapped, grad_weights), needs)
    return _or_empty(found, outputs[0])


def _fake_graph_grad(*arguments: Any) -> tuple[torch.Tensor, ...]:
    arrays, out, needs = arguments[:_ARRAYS], arguments[_ARRAYS + 1], arguments[_ARRAYS + 9]
    pairs = zip(arrays, needs, strict=True)
    return _or_empty([x.new_empty(x.shape) if x is not None and need else None for x, need in pairs], out)


_TENSORS = (
    "Tensor q, Tensor k, Tensor v, Tensor? att, Tensor? bias, Tensor? features, Tensor? gate, "
    "Tensor? mapped, Tensor? mapped_q, Tensor? map, Tensor? seed"
)
_OPTIONS = (
    "str score, float scale, float negative_slope, bool to_keys, bool to_values, float clamp, "
    "bool normalize, bool is_causal, float dropout_p"
)
register(
    f"graph_attention({_TENSORS}, int operand, {_OPTIONS}, bool wants_weights) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    _GraphAttention.run,
    _fake_graph,
    _GraphAttention.setup,
    _GraphAttention.backward,
)
register(
    f"graph_attention_grad({_TENSORS}, Tensor out, Tensor result_mapped, Tensor stats, Tensor sloped, "
    f"Tensor? grad_out, Tensor? grad_mapped, Tensor? grad_weights, int operand, bool[{_ARRAYS}] needs, "
    f"{_OPTIONS}) -> ({', '.join(['Tensor'] * _ARRAYS)})",
    _run_graph_grad,
    _fake_graph_grad,
)
