"""Layers with a network of each pair of neighbours (EdgeConv, PointNet), found by `gnnsparse.nn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_type, bad_value, check_choice, check_flag
from gnnsparse.nn.aggregation import AGGREGATIONS
from gnnsparse.nn.edges import ACTIVATIONS, EdgeLayer, both, by_activation, counts_of
from gnnsparse.nn.inputs import Nodes, check_features, check_nodes, graph_size, is_plain_linear, is_watched
from gnnsparse.ops import aggregate_edges
from gnnsparse.ops.edges.trace import fixed
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["EdgeConv", "PointNetConv"]

#: Modules that a message can contain.
_ELEMENTWISE = (*ACTIVATIONS, torch.nn.LeakyReLU, torch.nn.ELU, torch.nn.GELU)


@by_activation
def _pair(act: Any) -> Callable[..., Any]:
    def message(p_i: Any, q_j: Any) -> Any:
        return act(p_i + q_j)

    return message


@fixed
def _row(m_ij: Any) -> Any:
    return m_ij


def _of_pairs(
    operand: SparseOperand, network: Any, name: str, p_i: torch.Tensor, q_j: torch.Tensor, reduce: str
) -> torch.Tensor:
    """Return reduced network(p_i + q_j); whichever has fewer features has the last ones, and 0 before them.

    A first linear layer is applied to nodes, an activation behind it in the message, and a last linear layer
    behind a sum or mean; what remains between them is applied to rows of edges, which are stored.
    """
    layers: list[Any] = [] if network is None else [network]
    if type(network) is torch.nn.Sequential and not is_watched(network):
        layers = list(network)
    width, act = max(p_i.shape[1], q_j.shape[1]), None
    if layers and is_plain_linear(layers[0]):
        first, *layers = layers
        if first.in_features != width:
            bad_value(
                name, f"takes {first.in_features} features; accepted: {width}, those of a pair of nodes"
            )
        p_i = F.linear(p_i, first.weight[:, -p_i.shape[1] :], first.bias)
        q_j = F.linear(q_j, first.weight[:, -q_j.shape[1] :])
        if layers and type(layers[0]) in _ELEMENTWISE and not is_watched(layers[0]):
            act, *layers = layers
    else:
        p_i, q_j = (F.pad(t, (width - t.shape[1], 0)) for t in (p_i, q_j))
    last = layers.pop() if reduce in ("sum", "mean") and layers and is_plain_linear(layers[-1]) else None
    message = _pair(act)
    if layers:
        rows = aggregate_edges(operand, message, reduce="none", p_i=p_i, q_j=q_j)
        for layer in layers:
            rows = layer(rows)
        out: torch.Tensor = aggregate_edges(operand, _row, reduce=reduce, m_ij=rows)
    else:
        out = aggregate_edges(operand, message, reduce=reduce, p_i=p_i, q_j=q_j)
    if last is None:
        return out
    return linear_of_sums(out, last.weight, last.bias, reduce, lambda: counts_of(operand, out))


def linear_of_sums(
    sums: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, reduce: str,
    counts: Callable[[], torch.Tensor],
) -> torch.Tensor:  # fmt: skip
    """Return the sums, or means, of what a linear layer makes of rows, given those of the rows.

    `counts` returns how many rows each is of, [targets, 1].
    """
    product = F.linear(sums, weight)
    if bias is None:
        return product
    by = counts() if reduce == "sum" else counts().clamp(max=1)
    return product + (by * bias).to(product.dtype)


def _module(name: str, nn: Any) -> Any:
    if not isinstance(nn, torch.nn.Module):
        bad_type(name, nn, "a torch.nn.Module")
    return nn


class EdgeConv(EdgeLayer):
    """y_i = max_j h([x_i, x_j - x_i]), where h is a network (Wang et al. 2019).

    "Dynamic Graph CNN for Learning on Point Clouds", equation 7. Arguments, parameters and `state_dict`
    (those of h below `nn.`) are those of PyG's EdgeConv, and outputs agree with it.

    If `nn` is a torch.nn.Linear, or a torch.nn.Sequential that begins with one, this layer is split into
    products with nodes. If only an activation follows, or for a sum or mean an activation and another linear
    layer, nothing of the size of the edges is stored. Further layers run on rows of all edges, by torch.

    Args:
        nn: h, a module that maps [edges, 2 * in] to [edges, out]. Its parameters are drawn anew.
        aggr: how h's results are reduced: "max", "min", "add" or "sum", "mean".
        precision: as in GCNConv; the errors are also as there.
    """

    def __init__(
        self, nn: torch.nn.Module, aggr: str = "max", *, precision: Precision | str | None = None
    ) -> None:
        super().__init__(precision)
        self.nn = _module("nn", nn)
        self.aggr, self._reduce = aggr, AGGREGATIONS[check_choice("aggr", aggr, tuple(AGGREGATIONS))]
        self.reset_parameters()

    def forward(self, x: torch.Tensor | Nodes, adj: SparseOperand | torch.Tensor) -> torch.Tensor:
        """Compute the layer's output.

        Args:
            x: the argument of GINConv.forward, but the features of targets are needed.
            adj: an edge_index [2, edges], see GCNConv.forward, or a SparseOperand [targets, sources], whose
                weights are not used. Repeated edges count several times.

        Returns:
            [targets, out]; 0 for a target without neighbours.

        The errors are those of ResGatedGraphConv.forward.
        """
        nodes = check_nodes(x, (None, None))
        sources, targets = both(nodes)
        check_features("x[1]", targets, sources.shape[1])
        operand = self._operand(adj, graph_size(nodes, None, adj))
        middle = _middle(sources)
        own = torch.cat([targets, middle - targets], dim=1)
        return _of_pairs(operand, self.nn, "nn", own, sources - middle, self._reduce)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(nn={self.nn})"


def _middle(x: torch.Tensor) -> torch.Tensor:
    """Return what is subtracted from both terms of a difference, so that it is one of smaller numbers."""
    # Without nodes, or if one is not finite, 0: that must not reach the others.
    return x.detach().mean(0).nan_to_num(0.0, 0.0, 0.0)


class PointNetConv(EdgeLayer):
    """y_i = g(max_j h([x_j, p_j - p_i])), where p are positions, and g and h networks (Qi et al. 2017).

    "PointNet" and "PointNet++", in the form of PyG's PointNetConv: arguments, parameters and `state_dict`
    (those of h below `local_nn.`, of g below `global_nn.`) are those of PyG's, and outputs agree with it. Of
    `local_nn` what EdgeConv says of its network is true.

    Args:
        local_nn: h, a module that maps [edges, in + dimensions] to [edges, hidden]; None: the identity.
        global_nn: g, a module that maps [targets, hidden] to [targets, out]; None: the identity.
        add_self_loops: whether each node that is source and target has one self-loop, whatever edges say.
        aggr: the argument of EdgeConv.
        precision: as in GCNConv; the errors are also as there.
    """

    def __init__(
        self,
        local_nn: torch.nn.Module | None = None,
        global_nn: torch.nn.Module | None = None,
        add_self_loops: bool = True,
        *,
        aggr: str = "max",
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(precision)
        self.local_nn = None if local_nn is None else _module("local_nn", local_nn)
        self.global_nn = None if global_nn is None else _module("global_nn", global_nn)
        self.add_self_loops = check_flag("add_self_loops", add_self_loops)
        self.aggr, self._reduce = aggr, AGGREGATIONS[check_choice("aggr", aggr, tuple(AGGREGATIONS))]
        self.reset_parameters()

    def forward(
        self, x: torch.Tensor | Nodes | None, pos: torch.Tensor | Nodes, adj: SparseOperand | torch.Tensor
    ) -> torch.Tensor:
        """Compute the layer's output.

        Args:
            x: [sources, in], float32, float16 or bfloat16, on the device of `adj`; or a pair with it, whose
                second element is not used; or None, for positions alone.
            pos: [nodes, dimensions], or a pair of those of sources and of targets.
            adj: the argument of EdgeConv.forward; an operand needs self-loops if the layer adds them, and
                loops that `prepare` added have no rows, which networks with further layers need.

        Returns:
            [targets, out]; 0 for a target without neighbours and without `global_nn`.

        The errors are those of AGNNConv.forward.
        """
        nodes = check_nodes(pos, (None, None))
        sources, targets = both(nodes)
        check_features("pos[1]", targets, sources.shape[1])
        if isinstance(adj, SparseOperand) and self.add_self_loops and not adj.has_self_loops:
            bad_value(
                "adj", "an operand of which nodes lack self-loops; accepted: an edge_index, or "
                "PointNetConv(add_self_loops=False)",
            )  # fmt: skip
        operand = self._operand(adj, graph_size(nodes, None, adj), self.add_self_loops)
        middle = _middle(sources)
        of_sources = [sources - middle]
        if isinstance(x, (tuple, list)):
            x = x[0]
        if x is not None:
            check_features("x", x, None, device=sources.device)
            if x.shape[0] != sources.shape[0]:
                bad_value("x", f"is of {x.shape[0]} nodes; accepted: {sources.shape[0]}, those of pos")
            of_sources = [x, *of_sources]
        out = _of_pairs(
            operand, self.local_nn, "local_nn", middle - targets, torch.cat(of_sources, dim=1), self._reduce
        )
        return out if self.global_nn is None else self.global_nn(out)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(local_nn={self.local_nn}, global_nn={self.global_nn})"
