"""Attention on NVIDIA GPUs over CSR rows, by the kernels of graph attention."""

from __future__ import annotations

import torch

from gnnsparse.ops.attention.call import AttentionCall, Grads, Needs
from gnnsparse.ops.attention.layout import empty_heads
from gnnsparse.ops.graph_attention import cuda
from gnnsparse.ops.graph_attention.call import Arrays, GraphCall, Result

__all__ = ["backward", "forward"]


def _to_nodes(x: torch.Tensor) -> torch.Tensor:
    """Returns [B, H, n, ...] as [n, B * H, ...], a view unless the strides of batch and heads forbid it."""
    return x.flatten(0, 1).transpose(0, 1)


def _from_nodes(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Undoes `_to_nodes` for a tensor with the batch and heads of `like`."""
    return x.transpose(0, 1).unflatten(0, like.shape[:2])


def _ordered(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Returns [B, H, n, d] in the dtype and memory order of `like`, a copy if it has another."""
    in_order = (x.stride(1) < x.stride(2)) == (like.stride(1) < like.stride(2)) or 1 in x.shape[1:3]
    return x.to(like.dtype) if in_order else empty_heads(like, x.shape[3]).copy_(x)


def _graph_call(call: AttentionCall) -> GraphCall:
    bias = call.bias
    if bias is not None and bias.shape[:2] != (1, 1):
        bias = bias.expand(*call.q.shape[:2], -1)
    arrays = Arrays(
        _to_nodes(call.q), _to_nodes(call.k), _to_nodes(call.v),
        bias=None if bias is None else _to_nodes(bias),
    )  # fmt: skip
    return GraphCall(
        call.operand, arrays, scale=call.scale, is_causal=call.is_causal, dropout_p=call.dropout_p,
        seed=call.seed,
    )  # fmt: skip


def forward(call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Computes attention and the statistics of each row; see `gnnsparse.ops.attention.cuda.forward`."""
    result = cuda.forward(_graph_call(call))
    # Contiguous, as compiled programs expect it.
    stats = _from_nodes(result.stats, call.q).contiguous()
    return _ordered(_from_nodes(result.out, call.q), call.q), stats


def backward(
    call: AttentionCall, out: torch.Tensor, stats: torch.Tensor, grad: torch.Tensor, needs: Needs
) -> Grads:
    """Computes the gradients of q, k, v and the bias; see `gnnsparse.ops.attention.cuda.backward`."""
    result = Result(_to_nodes(out), None, _to_nodes(stats))
    wanted = (*needs[:3], False, needs[3], *(False,) * 4)
    found = cuda.backward(_graph_call(call), result, _to_nodes(grad), None, None, wanted)
    pairs = zip((found.q, found.k, found.v), (call.q, call.k, call.v), strict=True)
    dq, dk, dv = (None if g is None else _ordered(_from_nodes(g, call.q), x) for g, x in pairs)
    if found.bias is None or call.bias is None:
        return dq, dk, dv, None
    sizes = call.bias.shape[:2]
    if sizes == (1, 1):
        return dq, dk, dv, found.bias.T[None]
    # A bias that batch entries or heads share gets the sum of their gradients.
    dbias = _from_nodes(found.bias, call.q)
    shared = [i for i in (0, 1) if sizes[i] == 1 and dbias.shape[i] != 1]
    return dq, dk, dv, (dbias.sum(shared, keepdim=True) if shared else dbias).contiguous()
