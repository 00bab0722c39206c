"""Both operations on the CPU by the native kernels: forward over rows, backward over rows, then columns.

It stands alone as one of the backends, which schema.py chooses among and tests call by themselves.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.ops.attention import arguments
from gnnsparse.ops.attention.arguments import Arrays, AttentionCall, Grads, GraphCall, Needs, Result


def _readable(call: AttentionCall) -> AttentionCall:
    q, k, v = (arguments.rounded(x, call.operand.precision) for x in (call.q, call.k, call.v))
    return replace(call, q=q, k=k, v=v, bias=arguments.contiguous_edges(call.bias))


def _interleaved(x: torch.Tensor) -> bool:
    """Return whether heads of a row of `x` [B, H, n, d] are neighbours; one thread then takes them all."""
    return x.stride(1) < x.stride(2)


def forward(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the results of `schema.run_forward`."""
    kernels = call.operand.kernels
    out = arguments.empty_heads(call.q, call.v.shape[3])
    stats = torch.empty(*call.q.shape[:3], 2, dtype=torch.float32, device=call.q.device)
    call = _readable(call)
    problem, result = arguments.native_attention(call), arguments.heads_argument(out)
    _native.cpu_attention(
        problem, kernels.csr.view, kernels.row_ids, _interleaved(call.k), result, stats,
        torch.get_num_threads(),
    )  # fmt: skip
    return out, stats


def backward(call: AttentionCall, stats: torch.Tensor, grad_out: torch.Tensor, needs: Needs) -> Grads:
    """Compute the gradients of `schema.run_backward`, that of the bias in float32.

    Delta, the row sum of grad_out times out, is that of the weights times their gradients: `out` is not read.
    """
    operand, threads = call.operand, torch.get_num_threads()
    found = arguments.empty_grads(call, needs)
    _, dk, dv, dbias = found
    call, grad = _readable(call), arguments.rounded(grad_out, operand.precision)
    stats = stats.contiguous()
    delta = torch.empty_like(stats[..., 0])
    problem, kernels = arguments.native_attention(call), operand.kernels
    grads = arguments.grads_argument(grad, found)
    # If several heads or batch entries share a bias, one thread adds their gradients, in a fixed order.
    one_batch, one_head = (dbias is not None and dbias.shape[i] == 1 for i in (0, 1))
    _native.cpu_attention_row_grads(
        problem, kernels.csr.view, kernels.row_ids, one_batch, one_head or _interleaved(call.k), stats, delta,
        grads, threads,
    )  # fmt: skip
    if dk is not None or dv is not None:
        back = operand.T.kernels
        _native.cpu_attention_column_grads(
            problem, back.csr.view, back.row_ids, _interleaved(call.q), operand.transpose_map, stats, delta,
            grads, threads,
        )  # fmt: skip
    return tuple(found)  # type: ignore[return-value]


def graph_forward(call: GraphCall) -> Result:
    """Compute graph attention."""
    v, mapped, kernels = call.arrays.v, call.arrays.mapped, call.operand.kernels
    rows, heads = call.operand.shape[0], call.heads
    result = Result(
        v.new_empty(rows, heads, v.shape[2]),
        v.new_empty(rows, heads, mapped.shape[1]) if mapped is not None and call.to_values else None,
        torch.empty(rows, heads, 2, dtype=torch.float32, device=v.device),
    )
    problem, found = arguments.native_graph_attention(call.rounded()), arguments.result_argument(result)
    _native.cpu_graph_attention(problem, kernels.csr.view, kernels.row_ids, found, torch.get_num_threads())
    return result


def _new_edges(call: GraphCall) -> torch.Tensor:
    device = call.operand.device
    return torch.empty(call.operand.nnz, call.heads, 2, dtype=torch.float32, device=device)


def graph_weights(call: GraphCall, result: Result) -> torch.Tensor:
    """Compute the weights after dropout anew, by the statistics alone: float32 [nnz, H]."""
    kernels, heads, edges = call.operand.kernels, call.heads, _new_edges(call)
    call = call.rounded()
    rows, width = result.out.shape[0], result.out.shape[2]
    # The pass over rows gives the weights beside gradients, which are those of nothing here.
    zeros = call.arrays.v.new_zeros(1, 1, width).expand(rows, heads, width)
    grads = arguments.graph_grads_argument(heads, edges, out=zeros)
    problem, found = arguments.native_graph_attention(call), arguments.result_argument(result)
    _native.cpu_graph_attention_rows(
        problem, kernels.csr.view, kernels.row_ids, found, grads, torch.get_num_threads()
    )
    return edges[:, :, 0]


def _new_grads(call: GraphCall, needs: dict[str, bool]) -> Arrays:
    """Allocate gradients, float32 where kernels write that or heads are summed, else as the arguments."""
    in_float32 = ("bias", *(("q", "k", "features") if call.score == "additive" else ()))
    found: dict[str, Any] = dict.fromkeys(Arrays._fields)
    for name, x in call.arrays._asdict().items():
        if x is None or not needs[name] or name == "mapped":
            continue
        if name == "att":
            groups = -(-call.operand.shape[0] // _native.ATT_GROUP_ROWS)
            found[name] = x.new_empty(groups, *x.shape, dtype=torch.float32)
        else:
            dtype = torch.float32 if name in in_float32 or x.shape[1] != call.heads else x.dtype
            found[name] = x.new_empty(x.shape[0], call.heads, *x.shape[2:], dtype=dtype)
    return Arrays(**found)


def _mapped_grad(
    call: GraphCall, edges: torch.Tensor, mapped_q: torch.Tensor | None, grad_mapped: torch.Tensor | None
) -> torch.Tensor | None:
    """Compute the gradient of the mapped features, [nnz, d_e], head by head.

    `edges` [nnz, H, 2] are the weight of each edge and the gradient of its score; the others are [L, H, d_e].
    """
    mapped = call.arrays.mapped
    if mapped is None:
        return None
    row = call.operand.indices()[0]
    total = torch.zeros(mapped.shape, dtype=torch.float32, device=mapped.device)
    for factors, x in ((edges[:, :, 1], mapped_q), (edges[:, :, 0], grad_mapped)):
        if x is None:
            continue
        for head in range(call.heads):
            factor = factors[:, head, None]
            # Masked edges have factors of 0, and take no part even where x is not finite.
            terms = x[:, head].index_select(0, row).float().mul_(factor)
            total += terms.masked_fill_(factor == 0, 0.0)
    return total.to(mapped.dtype)


def map_grad(call: GraphCall, pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Compute the gradient of the linear map of edge features: `arguments.map_grad`."""
    precision = call.operand.precision
    return arguments.map_grad([(arguments.rounded(x, precision).to(y.dtype), y) for x, y in pairs])


def graph_backward(
    call: GraphCall, result: Result, grad_out: torch.Tensor, grad_mapped: torch.Tensor | None,
    grad_weights: torch.Tensor | None, needs: tuple[bool, ...],
) -> Arrays:  # fmt: skip
    """Compute the gradients of `schema.graph_gradients`."""
    operand, heads, threads = call.operand, call.heads, torch.get_num_threads()
    needed = dict(zip(Arrays._fields, needs, strict=True))
    edges, new = _new_edges(call), _new_grads(call, needed)
    grad_mapped = None if grad_mapped is None else arguments.rounded(grad_mapped, operand.precision)
    ready = call.rounded()
    problem = arguments.native_graph_attention(ready)
    grads = arguments.graph_grads_argument(
        heads, edges, mapped=grad_mapped,
        **{name: x for name, x in new._asdict().items() if name not in ("mapped", "map")},
        out=arguments.rounded(grad_out, operand.precision),
        weights=None if grad_weights is None else grad_weights.float(),
    )  # fmt: skip
    kernels = operand.kernels
    _native.cpu_graph_attention_rows(
        problem, kernels.csr.view, kernels.row_ids, arguments.result_argument(result), grads, threads
    )
    if new.k is not None or new.v is not None:
        back = operand.T.kernels
        _native.cpu_graph_attention_columns(
            problem, back.csr.view, back.row_ids, operand.transpose_map, grads, threads
        )
    if needed["mapped"]:
        new = new._replace(mapped=_mapped_grad(call, edges, ready.arrays.mapped_q, grad_mapped))
    return arguments.of_all_heads(new, call.arrays)
