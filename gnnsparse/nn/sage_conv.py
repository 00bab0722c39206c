"""The layers of GraphSAGE and of Morris et al., found by `gnnsparse.nn`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import check_choice, check_flag, check_integer
from gnnsparse.nn.adjacency import GraphLayer
from gnnsparse.nn.aggregation import AGGREGATIONS, linear_of_neighbours, neighbours_of
from gnnsparse.nn.inputs import MOST_FEATURES, Nodes, check_channels, check_nodes, graph_size
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["GraphConv", "SAGEConv"]


class _Aggregating(GraphLayer):
    def __init__(
        self, in_channels: Any, out_channels: int, aggr: str, precision: Precision | str | None
    ) -> None:
        super().__init__(precision)
        self.in_channels, self._channels = in_channels, check_channels(in_channels)
        self.out_channels = check_integer("out_channels", out_channels, most=MOST_FEATURES)
        self.aggr, self._reduce = aggr, AGGREGATIONS[check_choice("aggr", aggr, tuple(AGGREGATIONS))]


class SAGEConv(_Aggregating):
    """y_i = W_l reduce_j(x_j) + b + W_r x_i, where j are the neighbours of i (Hamilton et al. 2017).

    "Inductive Representation Learning on Large Graphs", algorithm 1. Arguments, parameters and `state_dict`
    (`lin_l.weight` [out, in], `lin_l.bias` [out], `lin_r.weight` [out, in], with `project` also `lin.weight`
    [in, in] and `lin.bias` [in]) are those of PyG's SAGEConv, and outputs agree with it. Nodes without
    neighbours have the reduction 0. Of equal neighbours the first one gets the gradient of a maximum, where
    PyG divides it among them.

    Args:
        in_channels: features of a node in x, or a pair: of a source and of a target.
        out_channels: features of a node in y.
        aggr: how the features of neighbours are reduced: "mean", "sum" or "add", "max", "min".
        normalize: whether rows of y are divided by their Euclidean lengths.
        root_weight: whether there is the term W_r x_i.
        project: whether x_j is replaced by relu(W x_j + c) first.
        bias: whether b is learned; False: there is none.
        precision: as in GCNConv; the errors are also as there.
    """

    _shown = ("aggr",)

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str = "mean",
        normalize: bool = False,
        root_weight: bool = True,
        project: bool = False,
        bias: bool = True,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, aggr, precision)
        self.normalize = check_flag("normalize", normalize)
        self.root_weight = check_flag("root_weight", root_weight)
        self.project = check_flag("project", project)
        sources, targets = self._channels
        if project:
            self.lin = torch.nn.Linear(sources, sources)
        self.lin_l = torch.nn.Linear(sources, out_channels, bias=check_flag("bias", bias))
        if root_weight:
            self.lin_r = torch.nn.Linear(targets, out_channels, bias=False)
        self.reset_parameters()

    def forward(
        self, x: torch.Tensor | Nodes, adj: SparseOperand | torch.Tensor, size: tuple[int, int] | None = None
    ) -> torch.Tensor:
        """Compute the layer's output.

        Args:
            x: [nodes, in_channels], float32, float16 or bfloat16, on the device of `adj`; or a pair of the
                features of sources and of targets, [sources, in_channels[0]] and [targets, in_channels[1]].
                Without features of targets (None) there is no term W_r x_i.
            adj: an edge_index [2, edges], see GCNConv.forward, whose repeated edges count several times; or a
                SparseOperand [targets, sources]: for a mean one prepared with values="mean"; else one without
                normalisation. A sum uses its weights.
            size: the numbers of sources and of targets, for an edge_index without features of targets; None:
                as x says, and without features of targets as many as sources.

        Returns:
            [targets, out_channels], in the dtype of the linear layers' outputs.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: an argument has another shape or device, or the operand has other weights or another
                precision than the layer's.
        """
        nodes = check_nodes(x, self._channels, self.lin_l.weight)
        size = graph_size(nodes, size, adj)
        operand, values = neighbours_of(self._memo, adj, size, None, self._reduce, self.precision)
        sources, targets = nodes
        if self.project:
            sources = self.lin(sources).relu()
        out = linear_of_neighbours(operand, sources, values, self.lin_l, self._reduce)
        if self.root_weight and targets is not None:
            out = out + self.lin_r(targets)
        return F.normalize(out, dim=-1) if self.normalize else out


class GraphConv(_Aggregating):
    """y_i = W_rel reduce_j(w_ij x_j) + b + W_root x_i, where j are the neighbours of i (Morris et al. 2019).

    "Weisfeiler and Leman Go Neural: Higher-order Graph Neural Networks", equation 5. Arguments, parameters
    and `state_dict` (`lin_rel.weight` [out, in], `lin_rel.bias` [out], `lin_root.weight` [out, in]) are those
    of PyG's GraphConv, and outputs agree with it. Nodes without neighbours have the reduction 0. Of equal
    neighbours the first gets the gradient of a maximum, where PyG divides it among them.

    The arguments and errors are those of SAGEConv.
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        aggr: str = "add",
        bias: bool = True,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, aggr, precision)
        sources, targets = self._channels
        self.lin_rel = torch.nn.Linear(sources, out_channels, bias=check_flag("bias", bias))
        self.lin_root = torch.nn.Linear(targets, out_channels, bias=False)
        self.reset_parameters()

    def forward(
        self,
        x: torch.Tensor | Nodes,
        adj: SparseOperand | torch.Tensor,
        edge_weight: torch.Tensor | None = None,
        size: tuple[int, int] | None = None,
    ) -> torch.Tensor:
        """Compute the layer's output.

        Args:
            x: the argument of SAGEConv.forward; without features of targets there is no term W_root x_i.
            adj: an edge_index [2, edges], see GCNConv.forward, whose repeated edges count several times; or a
                SparseOperand [targets, sources], whose weights are the w_ij; for a mean one prepared with
                values="mean".
            edge_weight: with an edge_index: floating-point [edges], which gets a gradient if it needs one;
                None: 1 each. The weights of repeated edges can't be kept apart for a "max" or "min".
            size: the argument of SAGEConv.forward, whose result and errors are those of this one too.
        """
        nodes = check_nodes(x, self._channels, self.lin_rel.weight)
        size = graph_size(nodes, size, adj)
        operand, values = neighbours_of(
            self._memo, adj, size, edge_weight, self._reduce, self.precision, weighted=True
        )
        sources, targets = nodes
        out = linear_of_neighbours(operand, sources, values, self.lin_rel, self._reduce)
        return out if targets is None else out + self.lin_root(targets)
