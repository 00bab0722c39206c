"""The layer of frequency adaptive networks (FAGCN), found by `gnnsparse.nn`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_value, check_flag, check_integer, check_number, check_share
from gnnsparse.nn.adjacency import AdjacencyMemo, check_edge_weight, check_self_loops
from gnnsparse.nn.edges import EdgeLayer, counts_of, wants_weights
from gnnsparse.nn.inputs import MOST_FEATURES, check_features, graph_size
from gnnsparse.ops import aggregate_edges
from gnnsparse.ops.edges.schema import edges_of
from gnnsparse.ops.edges.trace import fixed
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["FAConv"]


@fixed
def _attended(x_j: Any, l_j: Any, r_i: Any) -> Any:
    return x_j * torch.tanh(l_j + r_i)


@fixed
def _weighted(x_j: Any, l_j: Any, r_i: Any, w_ij: Any) -> Any:
    return x_j * (torch.tanh(l_j + r_i) * w_ij)


@fixed
def _attention(l_j: Any, r_i: Any) -> Any:
    return torch.tanh(l_j + r_i)


class FAConv(EdgeLayer):
    """y_i = eps x0_i + sum_j(tanh(a_l x_j + a_r x_i) / sqrt(d_i d_j) x_j), where d are degrees.

    "Beyond Low-frequency Information in Graph Convolutional Networks" (Bo et al. 2021), equation 7, in the
    form of PyG's FAConv: arguments, parameters and `state_dict` (`att_l.weight` and `att_r.weight`
    [1, channels]) are those of PyG's, and outputs agree with it. No message is stored.

    Args:
        channels: features of a node.
        eps: the factor of the first layer's input.
        dropout: the share of the attention weights that is set to 0 in training.
        cached: whether the edges of the first call are used in all others.
        add_self_loops: whether nodes get self-loops that lack them, with `normalize`.
        normalize: whether messages are divided by the roots of degrees; False: edges have given weights.
        precision: as in GCNConv; the errors are also as there.
    """

    def __init__(
        self,
        channels: int,
        eps: float = 0.1,
        dropout: float = 0.0,
        cached: bool = False,
        add_self_loops: bool = True,
        normalize: bool = True,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(precision)
        self.channels = check_integer("channels", channels, most=MOST_FEATURES)
        self.eps = check_number("eps", eps)
        self.dropout = check_share("dropout", dropout)
        self.cached = check_flag("cached", cached)
        self._memo = AdjacencyMemo(cached)
        self.add_self_loops = check_flag("add_self_loops", add_self_loops)
        self.normalize = check_flag("normalize", normalize)
        self.att_l = torch.nn.Linear(channels, 1, bias=False)
        self.att_r = torch.nn.Linear(channels, 1, bias=False)
        self.reset_parameters()

    def forward(
        self,
        x: torch.Tensor,
        x_0: torch.Tensor,
        adj: SparseOperand | torch.Tensor,
        edge_weight: torch.Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """Compute the layer's output.

        Args:
            x: [nodes, channels], float32, float16 or bfloat16, on the device of `adj`.
            x_0: [nodes, channels], the features that the first layer had.
            adj: an edge_index [2, edges], see GCNConv.forward, or a SparseOperand, whose weights are not
                used, and which needs self-loops if the layer adds them. Repeated edges count several times.
            edge_weight: floating-point [edges], in the order of the edge_index, or of the edges that the
                operand was prepared from, in place of 1 / sqrt(d_i d_j); None with `normalize`.
            return_attention_weights: a bool, whichever: the tanh of edges is returned too.

        Returns:
            [nodes, channels]; or that and a pair: int64 [2, edges] all edges, self-loops included, and
            [edges, 1] the tanh of each, as it was before dropout.

        The errors are those of AGNNConv.forward.
        """
        x = check_features("x", x, self.channels, self.att_l.weight)
        check_features("x_0", x_0, self.channels, device=x.device)
        with_loops = self.normalize and self.add_self_loops
        if isinstance(adj, SparseOperand) and with_loops:
            check_self_loops(adj, "FAConv(add_self_loops=False)")
        operand = self._operand(adj, graph_size((x, x), None, adj), with_loops)
        if (edge_weight is None) is not self.normalize:
            accepted = "None with normalize=True, a tensor [edges] with normalize=False"
            bad_value(
                "edge_weight", f"got {'None' if edge_weight is None else 'a tensor'}; accepted: {accepted}"
            )
        terms: dict[str, Any] = {"l_j": self.att_l(x), "r_i": self.att_r(x)}
        rows = edge_weight
        if edge_weight is not None:
            rows = check_edge_weight(edge_weight, operand.num_edges, operand.device)
        if self.training and self.dropout > 0:
            ones = x.new_ones(operand.num_edges) if rows is None else rows
            rows = F.dropout(ones, self.dropout)
        scale = None
        if edge_weight is None:
            counts = counts_of(operand, x)
            scale = torch.where(counts > 0, counts.rsqrt(), 0.0).to(x.dtype)
        given = x if scale is None else scale * x
        if rows is None:
            out = aggregate_edges(operand, _attended, x_j=given, **terms)
        else:
            out = aggregate_edges(operand, _weighted, x_j=given, w_ij=rows, **terms)
        out = out if scale is None else scale * out
        out = out + self.eps * x_0 if self.eps else out
        if return_attention_weights is None:
            return out
        wants_weights(return_attention_weights)
        edges = edges_of(operand)
        weights = aggregate_edges(operand, _attention, reduce="none", **terms)
        return out, (torch.stack([edges.source, edges.target]), weights.flatten())

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.channels}, eps={self.eps})"
