"""Graph attention on the CPU by the native kernels: forward over rows, backward over rows, then columns."""

from __future__ import annotations

import torch

from gnnsparse import _native
from gnnsparse.ops.graph_attention.call import Arrays, GraphCall, Result, as_given
from gnnsparse.ops.graph_attention.views import (
    heads_view,
    problem_of,
    readable,
    result_view,
    rounded,
)

__all__ = ["backward", "forward", "weights"]


def forward(call: GraphCall) -> Result:
    """Computes graph attention.

    Args:
        call: the arguments.

    Returns:
        The results in the dtype of v, and the statistics that the gradient needs; rows are in the caller's
        numbering.
    """
    v, mapped, kernels = call.arrays.v, call.arrays.mapped, call.operand.kernels
    assert v is not None
    rows, heads = call.operand.shape[0], call.heads
    result = Result(
        v.new_empty(rows, heads, v.shape[2]),
        v.new_empty(rows, heads, mapped.shape[1]) if mapped is not None and call.to_values else None,
        torch.empty(rows, heads, 2, dtype=torch.float32, device=v.device),
    )
    _native.cpu_graph_attention(
        problem_of(readable(call)), kernels.csr.view, kernels.row_ids, result_view(result),
        torch.get_num_threads(),
    )  # fmt: skip
    return result


def _new_edges(call: GraphCall) -> torch.Tensor:
    """Allocates the weight of each edge and the gradient of its score, float32 [nnz, H, 2]."""
    device = call.operand.device
    return torch.empty(call.operand.nnz, call.heads, 2, dtype=torch.float32, device=device)


def weights(call: GraphCall, result: Result) -> torch.Tensor:
    """Computes the weights after dropout anew.

    Args:
        call: the arguments of `forward`.
        result: its results, of which `stats` are read.

    Returns:
        float32 [nnz, H] in the operand's order.
    """
    kernels, heads, edges = call.operand.kernels, call.heads, _new_edges(call)
    call = readable(call)
    assert call.arrays.v is not None
    rows, width = result.out.shape[0], result.out.shape[2]
    # The pass over rows gives the weights beside gradients, which are those of nothing here.
    grads = _native.GraphAttentionGrads()
    grads.out = heads_view(call.arrays.v.new_zeros(1, 1, width).expand(rows, heads, width), heads)
    grads.edges = heads_view(edges, heads)
    _native.cpu_graph_attention_rows(
        problem_of(call), kernels.csr.view, kernels.row_ids, result_view(result), grads,
        torch.get_num_threads(),
    )  # fmt: skip
    return edges[:, :, 0]


def _new_grads(call: GraphCall, needs: dict[str, bool]) -> Arrays:
    """Allocates the gradients that the kernels write.

    They are in the dtypes of the arguments; float32 where the kernels write nothing else, and where the
    gradients of all heads are added up afterwards.
    """
    heads, additive = call.heads, call.score == "additive"

    def empty(name: str, in_float32: bool = False) -> torch.Tensor | None:
        x = getattr(call.arrays, name)
        if x is None or not needs[name]:
            return None
        shape = x.shape[0], heads, *x.shape[2:]
        in_float32 = in_float32 or x.shape[1] != heads
        return torch.empty(shape, dtype=torch.float32 if in_float32 else x.dtype, device=x.device)

    att = None
    if call.arrays.att is not None and needs["att"]:
        groups = -(-call.operand.shape[0] // _native.ATT_GROUP_ROWS)
        att = call.arrays.att.new_empty(groups, *call.arrays.att.shape, dtype=torch.float32)
    return Arrays(
        empty("q", additive), empty("k", additive), empty("v"), att, empty("bias", True),
        empty("features", additive), empty("gate"), None, empty("mapped_q"),
    )  # fmt: skip


def _mapped_grad(
    call: GraphCall, edges: torch.Tensor, mapped_q: torch.Tensor | None, grad_mapped: torch.Tensor | None
) -> torch.Tensor:
    """Computes the gradient of the mapped features, [nnz, d_e], head by head.

    Args:
        call: the arguments, as the caller gave them.
        edges: float32 [nnz, H, 2]: the weight of each edge and the gradient of its score.
        mapped_q, grad_mapped: [L, H, d_e], as the kernels read them; None: there are none.
    """
    mapped = call.arrays.mapped
    assert mapped is not None
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


def backward(
    call: GraphCall, result: Result, grad_out: torch.Tensor, grad_mapped: torch.Tensor | None,
    grad_weights: torch.Tensor | None, needs: tuple[bool, ...],
) -> Arrays:  # fmt: skip
    """Computes the gradients of graph attention.

    Args:
        call: the arguments of `forward`.
        result: its results.
        grad_out: gradient of result.out, [L, H, Dv], any strides.
        grad_mapped: gradient of result.mapped, [L, H, d_e]; None: it has none.
        grad_weights: gradient of the weights after dropout, [nnz, H]; None: they have none.
        needs: whether the gradient of each of the arrays is needed.

    Returns:
        Gradients in the shapes and dtypes of the arguments; None where they are not needed.
    """
    operand, heads, threads = call.operand, call.heads, torch.get_num_threads()
    needed = dict(zip(Arrays._fields, needs, strict=True))
    edges, new = _new_edges(call), _new_grads(call, needed)
    grad_out = rounded(grad_out, operand.precision)
    grad_mapped = None if grad_mapped is None else rounded(grad_mapped, operand.precision)
    ready = readable(call)
    problem = problem_of(ready)
    grads = _native.GraphAttentionGrads()
    grads.out, grads.mapped = heads_view(grad_out, heads), heads_view(grad_mapped, heads)
    grads.weights = heads_view(None if grad_weights is None else grad_weights.float(), heads)
    grads.edges = heads_view(edges, heads)
    grads.q, grads.k, grads.v = heads_view(new.q, heads), heads_view(new.k, heads), heads_view(new.v, heads)
    grads.att, grads.bias = heads_view(new.att, heads), heads_view(new.bias, heads)
    grads.features, grads.gate = heads_view(new.features, heads), heads_view(new.gate, heads)
    grads.mapped_q = heads_view(new.mapped_q, heads)
    kernels = operand.kernels
    _native.cpu_graph_attention_rows(
        problem, kernels.csr.view, kernels.row_ids, result_view(result), grads, threads
    )
    if new.k is not None or new.v is not None:
        back = operand.T.kernels
        _native.cpu_graph_attention_columns(
            problem, back.csr.view, back.row_ids, operand.transpose_map, grads, threads
        )
    if needed["mapped"] and call.arrays.mapped is not None:
        mapped = _mapped_grad(call, edges, ready.arrays.mapped_q, grad_mapped)
        new = new._replace(mapped=mapped)
    return as_given(new, call.arrays)
