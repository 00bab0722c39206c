"""Dropout that is fast on the CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_value, check_choice, check_tensor
from gnnsparse.nn.inputs import check_features
from gnnsparse.nn.sparse_features import SparseFeatures
from gnnsparse.ops.segments import segment_sums
from gnnsparse.runtime.functorch import is_eager
from gnnsparse.runtime.padding import current_padding

__all__ = ["POOLS", "dropout", "pool_graphs"]


def dropout(x: torch.Tensor, p: float, training: bool) -> torch.Tensor:
    """Set each element to 0 with probability p, and divide the others by 1 - p, in training.

    torch.nn.functional.dropout computes this, but on the CPU it draws a float64 for each element, one at a
    time, which takes longer than the rest of a GCN's step on wide features. Here torch's vectorised generator
    draws float32 numbers, in a quarter of the time. On other devices torch's function is called.

    Args:
        x: a floating-point tensor of any shape.
        p: probability, in [0, 1).
        training: whether elements are dropped; False: x is returned.

    Returns:
        A tensor of x's shape and dtype.

    Raises:
        ValueError: p is out of range.
    """
    if not 0 <= p < 1:
        bad_value("p", f"got {p}; accepted: a number in [0, 1)")
    if not training or p == 0:
        return x
    if not x.is_cpu or isinstance(x, SparseFeatures):
        return F.dropout(x, p)
    factor = torch.rand(x.shape, dtype=torch.float32, device=x.device).ge_(p).mul_(1 / (1 - p)).to(x.dtype)
    if (torch.is_grad_enabled() and x.requires_grad) or not is_eager():
        return x * factor
    return factor.mul_(x)  # in place, because writing to another array would double the time


#: The ways of pooling.
POOLS = ("sum", "mean", "max")


def pool_graphs(x: torch.Tensor, graph_ptr: torch.Tensor, pool: str = "sum") -> torch.Tensor:
    """Return the sum, the mean or the largest value over the nodes of each graph. Differentiable.

    Sums are float32 (float64 for float64 inputs), in an order that is the same in every run. Where several
    nodes have the largest value, its gradient is divided among them.

    Args:
        x: floating-point [nodes, F]; graph g has the rows graph_ptr[g] to graph_ptr[g + 1] - 1.
        graph_ptr: int64 [graphs + 1] on the device of `x`, ascending from 0 to the number of nodes. Neither
            is checked on a GPU, for which the CPU would wait. A graph without nodes gets zeros.
        pool: "sum", "mean" or "max".

    Returns:
        [graphs, F], of the dtype of `x`.

    Raises:
        TypeError: an argument is of another type or dtype.
        ValueError: shapes, devices or offsets do not fit, or the way of pooling is unknown.
    """
    check_choice("pool", pool, POOLS)
    check_features("x", x, None)
    check_tensor("graph_ptr", graph_ptr, dtypes=(torch.int64,), shape=(None,))
    if graph_ptr.device != x.device:
        bad_value("graph_ptr", f"is on {graph_ptr.device}; accepted: {x.device}, where x is")
    padding = current_padding(x.shape[0]) if is_eager() else None
    lengths = graph_ptr.diff()
    if x.device.type == "cpu" and is_eager():
        _check_offsets(graph_ptr, x.shape[0] if padding is None else padding.count)
    values = x if x.dtype == torch.float64 else x.float()
    if pool == "max":
        # A segment without nodes has the largest value -inf.
        pooled = torch.segment_reduce(values, "max", offsets=graph_ptr, unsafe=True)
        pooled = torch.where(lengths[:, None] > 0, pooled, 0.0)
    else:
        pooled = segment_sums(values, graph_ptr) if padding is None else padding.sums(values, graph_ptr)
        if pool == "mean":
            pooled = pooled / lengths.clamp(min=1)[:, None]
    return pooled.to(x.dtype)


def _check_offsets(graph_ptr: torch.Tensor, nodes: int | torch.Tensor) -> None:
    nodes = int(nodes)
    fits = graph_ptr.numel() > 0 and int(graph_ptr[0]) == 0 and int(graph_ptr[-1]) == nodes
    if not fits or bool((graph_ptr.diff() < 0).any()):
        bad_value("graph_ptr", f"does not ascend from 0 to {nodes}; accepted: graphs + 1 offsets that do")
