"""The layer of Morris et al.'s graph neural networks of one dimension."""

from __future__ import annotations

import torch

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

__all__ = ["GraphConv"]


class GraphConv(torch.nn.Module):
    """y_i = W_rel reduce_j(w_ij x_j) + b + W_root x_i, where j are the neighbours of i (Morris et al. 2019).

    "Weisfeiler and Leman Go Neural: Higher-order Graph Neural Networks", equation 5. Arguments, parameters
    and `state_dict` (`lin_rel.weight` [out, in], `lin_rel.bias` [out], `lin_root.weight` [out, in]) are those
    of PyG's GraphConv, and outputs agree with it. Nodes without neighbours have the reduction 0. Of equal
    neighbours the first gets the gradient of a maximum, where PyG divides it among them.

    Args:
        in_channels: features of a node in x, or a pair: of a source and of a target.
        out_channels: features of a node in y.
        aggr: how the features of neighbours are reduced: "add" or "sum", "mean", "max", "min".
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
        aggr: str = "add",
        bias: bool = True,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__()
        self.in_channels, self._channels = in_channels, check_channels(in_channels)
        self.out_channels = check_integer("out_channels", out_channels, most=MOST_FEATURES)
        self.aggr, self._reduce = aggr, check_aggregation(aggr)
        self.precision = None if precision is None else Precision.parse(precision)
        self._memo: AdjacencyMemo[Neighbours] = AdjacencyMemo()
        sources, targets = self._channels
        self.lin_rel = torch.nn.Linear(sources, out_channels, bias=check_flag("bias", bias))
        self.lin_root = torch.nn.Linear(targets, out_channels, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws weights and bias uniformly from +-1/sqrt(inputs), and drops a cached operand."""
        self.lin_rel.reset_parameters()
        self.lin_root.reset_parameters()
        self._memo.clear()

    def forward(
        self,
        x: torch.Tensor | Nodes,
        adj: SparseOperand | torch.Tensor,
        edge_weight: torch.Tensor | None = None,
        size: tuple[int, int] | None = None,
    ) -> torch.Tensor:
        """Computes the layer's output.

        Args:
            x: [nodes, in_channels], float32, float16 or bfloat16, on the device of `adj`; or a pair of the
                features of sources and of targets, [sources, in_channels[0]] and [targets, in_channels[1]].
                Without features of targets (None) there is no term W_root x_i.
            adj: an edge_index [2, edges], sources over targets, which the layer prepares in the first call,
                and again when the edges differ from those of the last one (see GCNConv.forward); an edge
                that is repeated counts several times. Or a SparseOperand [targets, sources], whose weights
                are the w_ij; for a mean one prepared with values="mean".
            edge_weight: with an edge_index: floating-point [edges], which gets a gradient if it needs one;
                None: 1 each. The weights of repeated edges can't be kept apart for a "max" or "min".
            size: the numbers of sources and of targets, for an edge_index without features of targets; None:
                as x says, and without features of targets as many as sources.

        Returns:
            [targets, out_channels], in the dtype of the linear layers' outputs.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: an argument has another shape or device, or does not go with another one.
        """
        nodes = check_nodes(x, self._channels, self.lin_rel.weight)
        size = graph_size(nodes, size, adj)
        aggregation = Aggregation(self._reduce, self.precision or Precision.FP32)
        operand, values = neighbours_of(
            self._memo, adj, size, edge_weight, aggregation, precision=self.precision, weighted=True
        )
        sources, targets = nodes
        out = linear_of_neighbours(operand, sources, values, self.lin_rel, aggregation)
        return out if targets is None else out + self.lin_root(targets)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels})"
