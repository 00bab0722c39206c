"""The layer of the graph Transformer of Shi et al. (UniMP), found by `gnnsparse.nn`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_type, check_flag
from gnnsparse.nn.edges import EdgeAttention, attend, both, joined, side_by_side, wants_weights
from gnnsparse.nn.inputs import check_nodes, graph_size, is_plain_linear
from gnnsparse.nn.joint_attention import joint_attention
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["TransformerConv"]


class TransformerConv(EdgeAttention):
    """y_i = W_skip x_i + sum_j p_ij (W_v x_j + W_e e_ij), p the softmax over j of q_i . k_ij / sqrt(out).

    q_i = W_q x_i and k_ij = W_k x_j + W_e e_ij in each head; every map but W_e has a bias (Shi et al. 2021,
    "Masked Label Prediction: Unified Message Passing Model for Semi-Supervised Classification", equations 3
    to 5). Arguments, parameters and `state_dict` are those of PyG's TransformerConv, and outputs agree with
    it: `lin_key`, `lin_query` and `lin_value`, weights [heads * out, in] and biases [heads * out];
    `lin_skip`, weight [y, in] and bias [y], where y is heads * out, or out without `concat`; with `edge_dim`
    `lin_edge.weight` [heads * out, edge_dim]; with `beta` `lin_beta.weight` [1, 3 y]. W_e e is never stored
    for the edges: W_e is applied to sums of e instead.

    The other arguments, and the errors, are those of GATConv.

    Args:
        beta: whether a learned gate b weighs both terms, y_i = b W_skip x_i + (1 - b) m_i, where m_i is the
            sum and b = sigmoid(w . [m_i, W_skip x_i, m_i - W_skip x_i]). As in PyG, it does nothing without
            `root_weight`.
        bias: whether the linear maps have biases.
        root_weight: whether there is the term W_skip x_i; its parameters exist in either case, as in PyG.
    """

    lin_beta: torch.nn.Linear | None

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        beta: bool = False,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        bias: bool = True,
        root_weight: bool = True,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, heads, concat, dropout, edge_dim, bias, precision)
        self.root_weight = check_flag("root_weight", root_weight)
        self.beta = check_flag("beta", beta) and root_weight
        (sources, targets), width = self._channels, heads * out_channels
        self.lin_key = torch.nn.Linear(sources, width, bias=bias)
        self.lin_query = torch.nn.Linear(targets, width, bias=bias)
        self.lin_value = torch.nn.Linear(sources, width, bias=bias)
        self.lin_edge = self._make_edge_linear()
        out = width if concat else out_channels
        self.lin_skip = torch.nn.Linear(targets, out, bias=bias)
        self.lin_beta = torch.nn.Linear(3 * out, 1, bias=False) if self.beta else None
        self.reset_parameters()

    def forward(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        adj: SparseOperand | torch.Tensor,
        edge_attr: torch.Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Compute the layer's output.

        Args:
            x: the argument of GATConv.forward, but the features of targets are needed.
            adj: the argument of GATConv.forward.
            edge_attr: floating-point [edges, edge_dim], or [edges] if edge_dim is 1, in the order of the
                edge_index, of which copies of an edge are edges of their own, or of the edges without
                repeats that the operand was prepared from. A layer has them if, and only if, it was made
                with `edge_dim`.
            return_attention_weights: True or False: the weights are returned too, as in PyG; None: they are
                not.

        Returns:
            [targets, heads * out_channels], or [targets, out_channels] without `concat`, in the dtype of the
            linear layers' outputs. With return_attention_weights (output, (edges, weights)): the edges,
            [2, edges] in the order of the edge_index, of an operand in its own order; and the weights
            [edges, heads], before dropout.

        The errors are those of GATConv.forward.
        """
        nodes = check_nodes(x, self._channels, self.lin_key.weight)
        sources, targets = both(nodes)
        size = graph_size(nodes, None, adj)
        if self.edge_dim is not None and edge_attr is None:
            bad_type("edge_attr", edge_attr, f"a floating-point tensor [edges, {self.edge_dim}]")
        wants_weights(return_attention_weights)
        want = return_attention_weights is not None
        edges, features = self._edges(adj, size, edge_attr)
        layers = self._projections()
        if features is None and not want and self.lin_beta is None:
            joint = self._joint("dot", edges, nodes, layers, has_root=self.root_weight)
            if joint is not None:
                return joint_attention(joint, sources, *side_by_side(layers))
        q, k, v, root = self._projected(sources, targets, layers)
        options: dict[str, Any] = {"score": "dot"}
        if features is not None and self.lin_edge is not None:
            options["edge_weight"] = self.lin_edge.weight
        dropped = self.dropout if self.training else 0.0
        whole = want and dropped == 0
        out, weights = attend(edges, q, k, v, features, whole, dropout_p=dropped, **options)
        if want and not whole:  # those before dropout, of values that are not used
            if features is not None:
                options["edge_target"] = "keys"
            weights = attend(edges, q, k, v[..., :1], features, True, **options)[1]
        y = joined(out, self.concat)
        if root is not None:
            y = self._with_root(y, root)
        return y if weights is None else (y, (edges.index(adj), weights))

    def _projections(self) -> list[Any]:
        """Return the linear layers of queries, keys, values and the skip connection if there is one."""
        layers = [self.lin_query, self.lin_key, self.lin_value]
        return [*layers, self.lin_skip] if self.root_weight else layers

    def _projected(
        self, sources: torch.Tensor, targets: torch.Tensor, layers: list[Any]
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Return queries, keys and values [nodes, heads, out], and the skip connection or None.

        Where sources are targets one product computes all; its gradient reads the input and sums biases once.
        """
        if targets is sources and all(is_plain_linear(layer, self._linear) for layer in layers):
            product = F.linear(sources, *side_by_side(layers))
            parts = product.split([len(layer.weight) for layer in layers], dim=1)
        else:
            inputs = targets, sources, sources, targets
            parts = tuple(layer(x) for layer, x in zip(layers, inputs, strict=False))
        q, k, v = (x.unflatten(1, (self.heads, -1)) for x in parts[:3])
        return q, k, v, parts[3] if self.root_weight else None

    def _with_root(self, mean: torch.Tensor, root: torch.Tensor) -> torch.Tensor:
        if self.lin_beta is None:
            return mean + root
        gate = self.lin_beta(torch.cat([mean, root, mean - root], dim=-1)).sigmoid()
        return gate * root + (1 - gate) * mean
