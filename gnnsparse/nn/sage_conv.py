"""The layer of GraphSAGE."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import check_flag, check_integer
from gnnsparse.nn.adjacency import AdjacencyMemo
from gnnsparse.nn.aggregation import (
    Aggregation,
    Neighbours,
    check_aggregation,
    linear_of_neighbours,
    neighbours_of,
)
from gnnsparse.nn.inputs import MOST_FEATURES, Nodes, check_channels, check_nodes, graph_size
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["SAGEConv"]


class SAGEConv(torch.nn.Module):
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
        precision: precision of the operands that the layer makes of an edge_index, see gnnsparse.Precision,
            and of the operands that it takes; None: "fp32", and that of any operand.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range.
    """

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
        super().__init__()
        self.in_channels, self._channels = in_channels, check_channels(in_channels)
        self.out_channels = check_integer("out_channels", out_channels, most=MOST_FEATURES)
        self.aggr, self._reduce = aggr, check_aggregation(aggr)
        self.normalize = check_flag("normalize", normalize)
        self.root_weight = check_flag("root_weight", root_weight)
        self.project = check_flag("project", project)
        self.precision = None if precision is None else Precision.parse(precision)
        self._memo: AdjacencyMemo[Neighbours] = AdjacencyMemo()
        sources, targets = self._channels
        if project:
            self.lin = torch.nn.Linear(sources, sources)
        self.lin_l = torch.nn.Linear(sources, out_channels, bias=check_flag("bias", bias))
        if root_weight:
            self.lin_r = torch.nn.Linear(targets, out_channels, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws weights and biases uniformly from +-1/sqrt(inputs), and drops a cached operand."""
        if self.project:
            self.lin.reset_parameters()
        self.lin_l.reset_parameters()
        if self.root_weight:
            self.lin_r.reset_parameters()
        self._memo.clear()

    def forward(
        self,
        x: torch.Tensor | Nodes,
        adj: SparseOperand | torch.Tensor,
        size: tuple[int, int] | None = None,
    ) -> torch.Tensor:
        """Computes the layer's output.

        Args:
            x: [nodes, in_channels], float32, float16 or bfloat16, on the device of `adj`; or a pair of the
                features of sources and of targets, [sources, in_channels[0]] and [targets, in_channels[1]].
                Without features of targets (None) there is no term W_r x_i.
            adj: an edge_index [2, edges], sources over targets, which the layer prepares in the first call,
                and again when the edges differ from those of the last one (see GCNConv.forward); an edge
                that is repeated counts several times. Or a SparseOperand [targets, sources]: for a mean one
                prepared with values="mean"; else one without normalisation. A sum uses its weights.
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
        aggregation = Aggregation(self._reduce, self.precision or Precision.FP32)
        operand, values = neighbours_of(self._memo, adj, size, None, aggregation, precision=self.precision)
        sources, targets = nodes
        if self.project:
            sources = self.lin(sources).relu()
        out = linear_of_neighbours(operand, sources, values, self.lin_l, aggregation)
        if self.root_weight and targets is not None:
            out = out + self.lin_r(targets)
        return F.normalize(out, dim=-1) if self.normalize else out

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, aggr={self.aggr})"
