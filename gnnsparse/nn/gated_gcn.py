"""The gated graph layer with a stream of edge features (GatedGCN), found by `gnnsparse.nn`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import check_flag, check_integer, check_share
from gnnsparse.nn.edges import EdgeLayer, both, optional_rows
from gnnsparse.nn.functional import dropout
from gnnsparse.nn.inputs import MOST_FEATURES, Nodes, check_channels, check_edge_dim, check_nodes, graph_size
from gnnsparse.ops import aggregate_edges
from gnnsparse.ops.edges.trace import fixed
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["GatedGCNConv"]

#: Added to the sum of gates by which messages are divided, as in the authors' code.
_EPS = 1e-6


@fixed
def _without_features(b_j: Any, d_j: Any, e_i: Any) -> Any:
    gate = torch.sigmoid(d_j + e_i)
    return gate * b_j, gate, d_j + e_i


@fixed
def _with_features(b_j: Any, d_j: Any, e_i: Any, e_ij: Any, weight: Any) -> Any:
    edge = d_j + e_i + F.linear(e_ij, weight)
    gate = torch.sigmoid(edge)
    return gate * b_j, gate, edge


class GatedGCNConv(EdgeLayer):
    """y_i = A x_i + sum_j(s_ij * B x_j) / (sum_j s_ij + 1e-6), where s_ij = sigmoid(C e_ij + D x_j + E x_i).

    "Residual Gated Graph ConvNets" (Bresson and Laurent 2017), in the form of "Benchmarking Graph Neural
    Networks" (Dwivedi et al. 2023, section C.1). C e_ij + D x_j + E x_i are the edges' new features, the one
    thing of the size of the edges that is stored, beside C e_ij for more than 16 features. Both results pass
    a batch norm and relu, and are added to x_i and to e_ij. Parameters have the names of the authors' code:
    `A` to `E`, linear layers with biases, `bn_node_h` and `bn_node_e`.

    Args:
        in_channels: features of a node in x, or a pair: of a source and of a target.
        out_channels: features of a node in y, and of an edge in the result.
        edge_dim: features of an edge in e; None: there are none, and no C.
        batch_norm: whether results pass a batch norm.
        residual: whether relu's results are added to x_i and e_ij, where these have `out_channels` features.
        dropout: the share of both results that is set to 0 in training.
        precision: as in GCNConv; the errors are also as there.
    """

    C: torch.nn.Linear | None
    bn_node_h: torch.nn.BatchNorm1d | None
    bn_node_e: torch.nn.BatchNorm1d | None

    _shown = ("edge_dim",)

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        edge_dim: int | None = None,
        batch_norm: bool = True,
        residual: bool = True,
        dropout: float = 0.0,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(precision)
        self.in_channels, self._channels = in_channels, check_channels(in_channels)
        self.out_channels = check_integer("out_channels", out_channels, most=MOST_FEATURES)
        self.edge_dim, self.C = check_edge_dim(edge_dim), None
        self.residual = check_flag("residual", residual)
        self.dropout = check_share("dropout", dropout)
        sources, targets = self._channels
        self.A = torch.nn.Linear(targets, out_channels)
        self.B = torch.nn.Linear(sources, out_channels)
        if edge_dim is not None:
            self.C = torch.nn.Linear(edge_dim, out_channels)
        self.D = torch.nn.Linear(sources, out_channels)
        self.E = torch.nn.Linear(targets, out_channels)
        norm = lambda: torch.nn.BatchNorm1d(out_channels) if batch_norm else None  # noqa: E731
        check_flag("batch_norm", batch_norm)
        self.bn_node_h, self.bn_node_e = norm(), norm()

    def forward(
        self,
        x: torch.Tensor | Nodes,
        adj: SparseOperand | torch.Tensor,
        edge_attr: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the new features of targets and of edges.

        The arguments and errors are those of ResGatedGraphConv.forward.

        Returns:
            [targets, out_channels], and [edges, out_channels] in the order of the edge_index, or of the edges
            that the operand was prepared from.
        """
        nodes = check_nodes(x, self._channels, self.A.weight)
        sources, targets = both(nodes)
        operand = self._operand(adj, graph_size(nodes, None, adj))
        edges = optional_rows(operand, edge_attr, self.edge_dim, self.A.weight)
        terms: dict[str, Any] = {"b_j": self.B(sources), "d_j": self.D(sources), "e_i": self.E(targets)}
        message = _without_features
        if edges is not None and self.C is not None:
            message = _with_features
            terms |= {"e_i": terms["e_i"] + self.C.bias, "e_ij": edges, "weight": self.C.weight}
        total, gates, new = aggregate_edges(operand, message, reduce=("sum", "sum", "none"), **terms)
        out = self.A(targets) + total / (gates + _EPS)
        return self._finished(out, self.bn_node_h, targets), self._finished(new, self.bn_node_e, edges)

    def _finished(
        self, out: torch.Tensor, norm: torch.nn.BatchNorm1d | None, given: torch.Tensor | None
    ) -> torch.Tensor:
        out = torch.relu(out if norm is None else norm(out))
        if self.residual and given is not None and given.shape[1] == self.out_channels:
            out = given + out
        return dropout(out, self.dropout, self.training)
