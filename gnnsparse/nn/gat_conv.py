"""The layers of the graph attention networks GAT and GATv2, found by `gnnsparse.nn`."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_type, bad_value, check_choice, check_flag, check_number
from gnnsparse.nn.edges import (
    EdgeAttention,
    Edges,
    Fill,
    attend,
    both,
    glorot_,
    joined,
    side_by_side,
    wants_weights,
)
from gnnsparse.nn.inputs import Nodes, check_nodes, graph_size
from gnnsparse.nn.joint_attention import Joint, joint_attention
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["GATConv", "GATv2Conv"]

#: Rows of a weight of which a product has rows of whole vectors in each dtype.
_WHOLE = 8
#: Names of reductions of the features of the other edges at a target.
_FILLS = ("mean", "add", "sum", "min", "max", "mul")


def _check_fill_value(fill_value: Any) -> Fill:
    if isinstance(fill_value, torch.Tensor):
        if not fill_value.is_floating_point() or fill_value.dim() > 2:
            bad_type("fill_value", fill_value, "a floating-point tensor [edge_dim]")
        return fill_value
    if isinstance(fill_value, str):
        return check_choice("fill_value", fill_value, _FILLS)
    accepted = f"a finite number, a tensor [edge_dim], {', '.join(_FILLS)}"
    return check_number("fill_value", fill_value, accepted)


class _GatLayer(EdgeAttention):
    """What GATConv and GATv2Conv share: self-loops, the residual and the bias."""

    res: torch.nn.Linear | None
    bias: torch.Tensor | None

    def _set_options(
        self, negative_slope: float, add_self_loops: bool, fill_value: Fill, residual: bool
    ) -> None:
        self.negative_slope = check_number("negative_slope", negative_slope)
        self.add_self_loops = check_flag("add_self_loops", add_self_loops)
        self.fill_value = _check_fill_value(fill_value)
        self.residual = check_flag("residual", residual)

    def _add_output(self, bias: bool) -> None:
        """Make the parameters that follow attention, and draw all."""
        out = self.heads * self.out_channels if self.concat else self.out_channels
        self.res = torch.nn.Linear(self._channels[1], out, bias=False) if self.residual else None
        self.register_parameter("bias", torch.nn.Parameter(torch.empty(out)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights and attention vectors (Glorot and Bengio 2010), set b to 0, and drop the operand.

        Biases of linear layers are drawn uniformly from +-1/sqrt(inputs).
        """
        linears: list[Any] = list(self._modules.values())  # a shared one is drawn twice, as in PyG
        for linear in linears:
            glorot_(linear.weight)
            if linear.bias is not None:
                bound = linear.in_features**-0.5
                torch.nn.init.uniform_(linear.bias, -bound, bound)
        for name, parameter in self.named_parameters(recurse=False):
            if name == "bias":
                torch.nn.init.zeros_(parameter)
            else:
                glorot_(parameter)
        self._memo.clear()

    def _alone(self, score: str, *given: Any) -> Joint | None:
        """Return what `_joint` does, unless there is a residual."""
        if self.res is not None:
            return None
        options: dict[str, Any] = {"negative_slope": self.negative_slope, "has_edges": self.add_self_loops}
        return self._joint(score, *given, **options)

    def _attended(
        self, edges: Edges, adj: Any, targets: torch.Tensor | None, *given: Any, **options: Any
    ) -> torch.Tensor | tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Return what the layer returns; `given` are q, k, v, features and whether weights are wanted."""
        dropped = self.dropout if self.training else 0.0
        out, weights = attend(edges, *given, negative_slope=self.negative_slope, dropout_p=dropped, **options)
        y = joined(out, self.concat)
        if self.res is not None and targets is not None:
            y = y + self.res(targets)
        y = y if self.bias is None else y + self.bias.to(y.dtype)
        return y if weights is None else (y, (edges.index(adj), weights))


class GATConv(_GatLayer):
    """y_i = sum_j p_ij W x_j + b, where p is the softmax over j of the scores of the edges from j to i.

    The score is leaky_relu(a_src . W x_j + a_dst . W x_i + a_edge . W_e e_ij) in each head (Velickovic et al.
    2018, "Graph Attention Networks", equation 3). Arguments, parameters and `state_dict` are those of PyG's
    GATConv, and outputs agree with it: `lin.weight` [heads * out, in], or for a pair of in_channels
    `lin_src.weight` and `lin_dst.weight`; `att_src` and `att_dst` [1, heads, out]; with `edge_dim`
    `lin_edge.weight` [heads * out, edge_dim] and `att_edge` [1, heads, out]; with `residual` `res.weight`
    [y, in]; `bias` [y], where y is heads * out, or out. Nothing has a value for each edge and feature.

    Args:
        in_channels: features of a node in x, or a pair: of a source and of a target.
        out_channels: features of a head.
        heads: number of heads.
        concat: whether y holds the outputs of all heads; False: their mean.
        negative_slope: slope of the leaky ReLU for negative scores.
        dropout: probability with which training drops a weight p_ij, in [0, 1). Repeats of an edge are
            dropped together.
        add_self_loops: whether the self-loops of an edge_index are replaced by one for each node, and
            operands in which nodes lack one are refused. False: edges and operands are used as they are.
        edge_dim: features of an edge; None: there are none.
        fill_value: features of the self-loops that are added: a number, a tensor [edge_dim], or how the
            features of the other edges to the node are reduced: "mean", "add", "sum", "min", "max", "mul".
        bias: whether b is learned; False: there is none.
        residual: whether a linear map of x_i is added to y_i.
        precision: as in GCNConv; the errors are also as there.
    """

    lin: Any  # or lin_src and lin_dst; None: there is no such layer
    lin_src: Any
    lin_dst: Any
    att_edge: torch.Tensor

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: Fill = "mean",
        bias: bool = True,
        residual: bool = False,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, heads, concat, dropout, edge_dim, bias, precision)
        self._set_options(negative_slope, add_self_loops, fill_value, residual)
        (sources, targets), width = self._channels, heads * out_channels
        self.lin = self.lin_src = self.lin_dst = None
        if isinstance(in_channels, int):
            self.lin = torch.nn.Linear(sources, width, bias=False)
        else:
            self.lin_src = torch.nn.Linear(sources, width, bias=False)
            self.lin_dst = torch.nn.Linear(targets, width, bias=False)
        self.att_src = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = self._make_edge_linear()
        att_edge = None if edge_dim is None else torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self.register_parameter("att_edge", att_edge)
        self._add_output(bias)

    def forward(
        self,
        x: torch.Tensor | Nodes,
        adj: SparseOperand | torch.Tensor,
        edge_attr: torch.Tensor | None = None,
        size: tuple[int, int] | None = None,
        return_attention_weights: bool | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Compute the layer's output.

        Args:
            x: the argument of SAGEConv.forward; without features of targets there are no terms of x_i.
            adj: an edge_index [2, edges], see GCNConv.forward, whose repeated edges count several times; or a
                SparseOperand [targets, sources], whose weights are ignored and whose repeats count once.
            edge_attr: with `edge_dim`: floating-point [edges, edge_dim], or [edges] if edge_dim is 1, in the
                order of the edge_index, or of the edges that the operand was prepared from. An operand then
                needs add_self_loops=False, and edges without repeats; of an edge_index, copies of an edge
                are edges of their own. None: the scores have no term of the edge.
            size: the argument of SAGEConv.forward.
            return_attention_weights: True: the weights are returned too.

        Returns:
            [targets, heads * out_channels], or [targets, out_channels] without `concat`, in the dtype of the
            linear layers' outputs. With return_attention_weights (output, (edges, weights)): the edges with
            their self-loops, [2, edges] in the order of the edge_index, of an operand in its own order; and
            the weights [edges, heads], after dropout.

        Raises:
            TypeError: an argument is of another type or dtype.
            ValueError: an argument has another shape or device, or does not go with another one.
        """
        nodes = check_nodes(x, self._channels, self.att_src)
        size = graph_size(nodes, size, adj)
        want = wants_weights(return_attention_weights)
        edges, features = self._edges(adj, size, edge_attr)
        if features is None and not want and self.lin is not None and self.lin.bias is None:
            given = self.att_dst, self.att_src, self.bias
            joint = self._alone("additive", edges, nodes, [self.lin], *given)
            if joint is not None:
                return joint_attention(joint, nodes[0], self._with_scores(self.lin.weight), added=self.bias)
        sources, targets = self._mapped(nodes)
        q, k = self._node_scores(sources, targets)
        if q is None:
            q = k.new_zeros((size[1], self.heads))
        if features is not None and self.lin_edge is not None:  # by one product with a_edge W_e
            weight = self.lin_edge.weight.unflatten(0, (self.heads, -1))  # [heads, out, edge_dim]
            features = F.linear(features, (weight * self.att_edge[0, :, :, None]).sum(dim=1))
        return self._attended(edges, adj, nodes[1], q, k, sources, features, want, score="additive")

    def _mapped(self, nodes: Nodes) -> Nodes:
        """Return W x of sources and of targets, [nodes, heads, out_channels]."""
        sources, targets = nodes
        of_sources, of_targets = self.lin or self.lin_src, self.lin or self.lin_dst
        mapped = of_sources(sources).unflatten(1, (self.heads, -1))
        if targets is None:
            return mapped, None
        if targets is sources and of_targets is of_sources:
            return mapped, mapped
        return mapped, of_targets(targets).unflatten(1, (self.heads, -1))

    def _with_scores(self, weight: torch.Tensor) -> torch.Tensor:
        """Return W over rows that make the scores of targets and of sources, zeros to whole vectors."""
        vectors = torch.cat([self.att_dst, self.att_src]).transpose(0, 1)  # [heads, 2, out]
        scores = vectors @ weight.unflatten(0, (self.heads, -1))
        rows = [weight, scores.transpose(0, 1).flatten(0, 1)]
        if rest := -(len(weight) + 2 * self.heads) % _WHOLE:
            rows.append(weight.new_zeros(rest, weight.shape[1]))
        return torch.cat(rows)

    def _node_scores(
        self, sources: torch.Tensor, targets: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Return a . W x of targets and of sources, [nodes, heads], by products, which read W x once."""
        if targets is sources:
            both = sources.flatten(1) @ _by_heads(torch.cat([self.att_dst, self.att_src]))
            of_targets, of_sources = both.unflatten(1, (2, self.heads)).unbind(1)
            return of_targets, of_sources
        of_targets = None if targets is None else targets.flatten(1) @ _by_heads(self.att_dst)
        return of_targets, sources.flatten(1) @ _by_heads(self.att_src)


class GATv2Conv(_GatLayer):
    """y_i = sum_j p_ij W_l x_j + b, where p is the softmax over j of the scores of the edges from j to i.

    The score is a . leaky_relu(W_l x_j + W_r x_i + W_e e_ij) in each head (Brody et al. 2022, "How Attentive
    are Graph Attention Networks?", equation 7). Arguments, parameters and `state_dict` are those of PyG's
    GATv2Conv, and outputs agree with it: `lin_l` and `lin_r`, weights [heads * out, in] and biases [heads *
    out]; `att` [1, heads, out]; with `edge_dim` `lin_edge.weight` [heads * out, edge_dim]; with `residual`
    `res.weight` [y, in]; `bias` [y], where y is heads * out, or out. If there are features of edges, W_e e
    is stored, [edges, heads * out].

    The other arguments are those of GATConv, and the errors too; share_weights for a pair of different
    in_channels is a ValueError.

    Args:
        bias: whether b and the biases of `lin_l` and `lin_r` are learned; False: there are none.
        share_weights: whether W_r is W_l.
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = True,
        edge_dim: int | None = None,
        fill_value: Fill = "mean",
        bias: bool = True,
        share_weights: bool = False,
        residual: bool = False,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(in_channels, out_channels, heads, concat, dropout, edge_dim, bias, precision)
        self._set_options(negative_slope, add_self_loops, fill_value, residual)
        self.share_weights = check_flag("share_weights", share_weights)
        (sources, targets), width = self._channels, heads * out_channels
        if share_weights and sources != targets:
            bad_value("share_weights", f"got True for in_channels {in_channels}; accepted: two equal numbers")
        self.lin_l = torch.nn.Linear(sources, width, bias=bias)
        self.lin_r = self.lin_l if share_weights else torch.nn.Linear(targets, width, bias=bias)
        self.att = torch.nn.Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = self._make_edge_linear()
        self._add_output(bias)

    def forward(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        adj: SparseOperand | torch.Tensor,
        edge_attr: torch.Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Compute the layer's output.

        Arguments, results and errors are those of GATConv.forward, but the features of targets are needed.
        """
        nodes = check_nodes(x, self._channels, self.att)
        sources, targets = both(nodes)
        size = graph_size(nodes, None, adj)
        want = wants_weights(return_attention_weights)
        edges, features = self._edges(adj, size, edge_attr)
        if features is None and not want and not self.share_weights:
            layers = [self.lin_l, self.lin_r]
            joint = self._alone("gatv2", edges, nodes, layers, self.att, self.bias)
            if joint is not None:
                weight, bias = side_by_side(layers)
                return joint_attention(joint, sources, weight, bias, self.att[0], self.bias)
        k = self.lin_l(sources).unflatten(1, (self.heads, -1))
        shared = self.share_weights and targets is sources
        q = k if shared else self.lin_r(targets).unflatten(1, (self.heads, -1))
        if features is not None and self.lin_edge is not None:
            features = self.lin_edge(features).unflatten(1, (self.heads, -1))
        options: dict[str, Any] = {"score": "gatv2", "att": self.att[0]}
        if features is not None:
            options["edge_target"] = "keys"
        return self._attended(edges, adj, targets, q, k, k, features, want, **options)


def _by_heads(att: torch.Tensor) -> torch.Tensor:
    """Return vectors [n, heads, width] as a matrix [heads * width, n * heads], each in its head's column."""
    by_width = att.permute(2, 0, 1)
    return by_width.diag_embed(dim1=0, dim2=3).flatten(2).flatten(0, 1)
