"""The layers of the graph isomorphism network (GIN), without and with edge features."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_type, bad_value, check_flag, check_number
from gnnsparse.nn.aggregation import neighbours_of, product_first
from gnnsparse.nn.edges import EdgeLayer, edge_rows
from gnnsparse.nn.inputs import (
    Nodes,
    check_edge_dim,
    check_features,
    check_nodes,
    graph_size,
    is_plain_linear,
    is_watched,
)
from gnnsparse.nn.linear import linear_in_padded_rows
from gnnsparse.ops import aggregate_edges, spmm
from gnnsparse.ops.edges.trace import fixed
from gnnsparse.precision import Precision
from gnnsparse.runtime.functorch import is_eager
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["GINConv", "GINEConv"]


class _Isomorphism(EdgeLayer):
    """What both layers have: a network and eps."""

    eps: torch.Tensor

    def __init__(self, nn: Any, eps: float, train_eps: bool, precision: Precision | str | None) -> None:
        super().__init__(precision)
        if not isinstance(nn, torch.nn.Module):
            bad_type("nn", nn, "a torch.nn.Module")
        self.nn = nn
        self.initial_eps = check_number("eps", eps)
        if check_flag("train_eps", train_eps):
            self.eps = torch.nn.Parameter(torch.empty(1))
        else:
            self.register_buffer("eps", torch.empty(1))

    def reset_parameters(self) -> None:
        """Draw the parameters of `nn`, set eps to what it was at first, and drop a cached operand."""
        super().reset_parameters()
        torch.nn.init.constant_(self.eps, self.initial_eps)

    def _add_own(self, out: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return out + (1 + eps) targets, in one pass over the features where they have one dtype."""
        eps = self.eps
        if not out.dtype == targets.dtype == eps.dtype:
            return out + (1 + eps) * targets
        # A number on the CPU can be looked at without waiting; GIN-0 then needs no factor, backward neither.
        if eps.device.type == "cpu" and is_eager() and not eps.requires_grad and float(eps) == 0:
            return out + targets
        return torch.addcmul(out, targets, 1 + eps)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(nn={self.nn})"


class GINConv(_Isomorphism):
    """y_i = h(sum_j(x_j) + (1 + eps) x_i), where j are the neighbours of i (Xu et al. 2019).

    "How Powerful are Graph Neural Networks?", equation 4.1. Arguments, parameters and `state_dict` (`eps` [1]
    and those of h below `nn.`) are those of PyG's GINConv, and outputs agree with it.

    Args:
        nn: h, a module that maps [nodes, in] to [nodes, out]. Its parameters are drawn anew. If it is a
            torch.nn.Sequential that begins with a torch.nn.Linear to fewer features, the sum is taken behind
            this linear layer, where it costs less.
        eps: eps at first.
        train_eps: whether eps is learned; False: it is a buffer.
        precision: as in GCNConv; the errors are also as there.
    """

    def __init__(
        self,
        nn: torch.nn.Module,
        eps: float = 0.0,
        train_eps: bool = False,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(nn, eps, train_eps, precision)
        self.reset_parameters()

    def forward(
        self, x: torch.Tensor | Nodes, adj: SparseOperand | torch.Tensor, size: tuple[int, int] | None = None
    ) -> torch.Tensor:
        """Compute the layer's output.

        Args:
            x: [nodes, in], float32, float16 or bfloat16, on the device of `adj`; or a pair of the features
                of sources and of targets, [sources, in] and [targets, in]. Without features of targets
                (None) there is no term (1 + eps) x_i.
            adj: an edge_index [2, edges], see GCNConv.forward, whose repeated edges count several times; or a
                SparseOperand [targets, sources] without normalisation, whose weights the sum uses.
            size: the argument of SAGEConv.forward.

        Returns:
            [targets, out], what `nn` returns.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: an argument has another shape or device, or the operand is normalised or has another
                precision than the layer's.
        """
        nodes = check_nodes(x, (None, None), device=self.eps.device)
        size = graph_size(nodes, size, adj)
        operand, values = neighbours_of(self._memo, adj, size, None, "sum", self.precision)
        sources, targets = nodes
        if targets is not None:
            check_features("x[1]", targets, sources.shape[1])
        first, *rest = _parts(self.nn) if targets is sources else (self.nn,)
        if rest and not product_first(sources, first.weight, values):
            mapped = linear_in_padded_rows(sources, first.weight)
            out = self._add_own(spmm(operand, mapped, values), mapped)
            out = out if first.bias is None else out + first.bias.to(out.dtype)
            for module in rest:
                out = module(out)
            return out
        out = spmm(operand, sources, values)
        return self.nn(out if targets is None else self._add_own(out, targets))


def _parts(network: torch.nn.Module) -> tuple[Any, ...]:
    """Return the parts of a network that begins with a linear layer that nothing watches; else itself."""
    if type(network) is torch.nn.Sequential and len(network) > 1 and is_plain_linear(network[0]):
        return (network,) if is_watched(network) else tuple(network)
    return (network,)


@fixed
def _plain(x_j: Any, e_ij: Any) -> Any:
    return F.relu(x_j + e_ij)


@fixed
def _mapped(x_j: Any, e_ij: Any, weight: Any, bias: Any) -> Any:
    return F.relu(x_j + F.linear(e_ij, weight, bias))


class GINEConv(_Isomorphism):
    """y_i = h(sum_j(relu(x_j + W e_ij + b)) + (1 + eps) x_i), where e_ij are edge features (Hu et al. 2020).

    "Strategies for Pre-training Graph Neural Networks", in the form of PyG's GINEConv: arguments, parameters
    and `state_dict` (`eps` [1], those of h below `nn.`, with `edge_dim` also `lin.weight` [in, edge_dim] and
    `lin.bias` [in]) are those of PyG's, and outputs agree with it. No message is stored. Up to 16 edge
    features are multiplied by W where they are needed; of more W e_ij is stored.

    Args:
        nn: h, a module that maps [nodes, in] to [nodes, out]. Its parameters are drawn anew.
        eps: eps at first.
        train_eps: whether eps is learned; False: it is a buffer.
        edge_dim: features of an edge, which W and b map to those of a node, as many as `nn`, or its first
            module, has in `in_features` or `in_channels`; None: e_ij itself is added to x_j.
        precision: the argument of GCNConv.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range, or `nn` does not say how many features it takes.
    """

    lin: torch.nn.Linear | None

    def __init__(
        self,
        nn: torch.nn.Module,
        eps: float = 0.0,
        train_eps: bool = False,
        edge_dim: int | None = None,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(nn, eps, train_eps, precision)
        self.edge_dim, self.lin = check_edge_dim(edge_dim), None
        if edge_dim is not None:
            first: Any = nn[0] if isinstance(nn, torch.nn.Sequential) else nn
            width = getattr(first, "in_features", getattr(first, "in_channels", None))
            if not isinstance(width, int):
                bad_value(
                    "nn", "does not say how many features it takes, to which edge_dim features are mapped; "
                    "accepted: a module with in_features or in_channels, or a torch.nn.Sequential of such",
                )  # fmt: skip
            self.lin = torch.nn.Linear(edge_dim, width)
        self.reset_parameters()

    def forward(
        self,
        x: torch.Tensor | Nodes,
        adj: SparseOperand | torch.Tensor,
        edge_attr: torch.Tensor,
        size: tuple[int, int] | None = None,
    ) -> torch.Tensor:
        """Compute the layer's output.

        Args:
            x: the argument of GINConv.forward.
            adj: an edge_index [2, edges], see GCNConv.forward, or a SparseOperand [targets, sources] without
                self-loops that `prepare` added, whose weights are not used. Repeated edges count several
                times.
            edge_attr: [edges, edge_dim], or [edges, in] without `edge_dim`, in the order of the edge_index,
                or of the edges that the operand was prepared from.
            size: the argument of SAGEConv.forward.

        The result and the errors are those of GINConv.forward; an operand may be normalised.
        """
        sources, targets = nodes = check_nodes(x, (None, None), device=self.eps.device)
        width = sources.shape[1]
        if targets is not None:
            check_features("x[1]", targets, width)
        operand = self._operand(adj, graph_size(nodes, size, adj))
        lin = self.lin
        if lin is None:
            edges = edge_rows(operand, edge_attr, width)
            out = aggregate_edges(operand, _plain, x_j=sources, e_ij=edges)
        else:
            check_features("x", sources, lin.out_features)
            edges = edge_rows(operand, edge_attr, lin.in_features, lin.weight)
            out = aggregate_edges(operand, _mapped, x_j=sources, e_ij=edges, weight=lin.weight, bias=lin.bias)
        return self.nn(out if targets is None else self._add_own(out, targets))
