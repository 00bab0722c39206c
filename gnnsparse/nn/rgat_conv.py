"""The layer of relational graph attention networks, RGATConv, found by `gnnsparse.nn`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_value, check_choice, check_flag, check_integer, check_number, check_share
from gnnsparse.nn.adjacency import GraphLayer, Preparation, Recipe
from gnnsparse.nn.edges import both, edge_rows, glorot_, wants_weights
from gnnsparse.nn.inputs import (
    MOST_FEATURES,
    check_channels,
    check_edge_dim,
    check_heads,
    check_nodes,
    graph_size,
)
from gnnsparse.nn.rgcn_conv import (
    RelationRecipe,
    Relations,
    check_blocks,
    check_typed_edges,
    mapped,
    products_of,
)
from gnnsparse.ops import aggregate_edges, edge_softmax, graph_attention, spmm
from gnnsparse.ops.attention.edges import order_of, summed_from_coo, to_coo
from gnnsparse.ops.edges.trace import fixed
from gnnsparse.precision import Precision
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["RGATConv"]

_MODS = ("additive", "scaled", "f-additive", "f-scaled")
_ACROSS, _WITHIN = "across-relation", "within-relation"
_ADDITIVE, _MULTIPLICATIVE = "additive-self-attention", "multiplicative-self-attention"
#: The score of an edge, before a leaky ReLU of sums, by the mode and whether the edge has a term.
_SCORES = {
    (_ADDITIVE, False): fixed(lambda q_i, k_j: q_i + k_j),
    (_ADDITIVE, True): fixed(lambda q_i, k_j, e_ij: q_i + k_j + e_ij),
    (_MULTIPLICATIVE, False): fixed(lambda q_i, k_j: q_i * k_j),
    (_MULTIPLICATIVE, True): fixed(lambda q_i, k_j, e_ij: q_i * k_j * e_ij),
}


class _TypedEdges(NamedTuple):
    """The edges of a call: what sums their sources, and patterns of them in which none is merged.

    `pairs` is between pairs (node, relation) of targets and of sources, those of a node together; `groups`
    has a column for each edge, and a row for the edges that a softmax is over.
    """

    sums: Relations
    pairs: SparseOperand
    groups: SparseOperand


class _FusedEdges(NamedTuple):
    """The edges of a call whose attention is one operation over the operand of `sums`.

    `terms` takes for each of its nonzeros, which are rows of `terms`, the term of its (target, relation).
    """

    sums: Relations
    terms: SparseOperand


@dataclass(frozen=True)
class TypedEdgesRecipe(Recipe):
    """How the operands of attention over edges of several types are made; see RelationRecipe.

    `is_fused`: attention is one operation where no edge is repeated, as all have a nonzero of their own then.
    """

    relations: int
    is_within: bool
    is_fused: bool
    precision: Precision
    preparation: Preparation | None = None

    def make(
        self, edge_index: torch.Tensor, size: tuple[int, int], weighted: bool
    ) -> _TypedEdges | _FusedEdges:
        """See Recipe."""
        source, target, kind = edge_index
        recipe = RelationRecipe(self.relations, False, "auto", self.precision, self.preparation)
        sums = recipe.make(edge_index, size, weighted)  # which checks the numbers
        exact, count = replace(self, precision=Precision.FP32, preparation=Preparation()), self.relations
        rows, edges = target * count + kind, len(source)
        numbers = torch.arange(edges, dtype=torch.int64, device=source.device)
        if self.is_fused and sums.operand.nnz == edges:
            own = rows[order_of(sums.operand).edge_of.long()]
            terms = exact.prepare(torch.stack([own, numbers]), (size[1] * count, edges))
            return _FusedEdges(sums, terms)
        pairs = torch.stack([source * count + kind, rows])
        groups = torch.stack([numbers, rows if self.is_within else target])
        return _TypedEdges(
            sums,
            exact.prepare(pairs, (size[0] * count, size[1] * count)),
            exact.prepare(groups, (edges, size[1] * (count if self.is_within else 1))),
        )


class RGATConv(GraphLayer):
    """y_i = sum_r sum_j p_ijr W_r x_j + b, where p is the softmax of scores of the edges to i of relation r.

    "Relational Graph Attention Networks" (Busbridge et al. 2019), equations 3 to 8. A score is made of
    q = W_r x_i Q, k = W_r x_j K and, with features of edges, e = W_e e_ij E, in each head and dimension:
    leaky_relu(q + k + e), or q k e. Arguments, parameters and `state_dict` are those of PyG's RGATConv, and
    outputs agree with it: `q`, `k` and, with `edge_dim`, `e` [heads * out, heads * dim]; `weight` [relations,
    in, heads * out], with blocks [relations, blocks, in / blocks, heads * out / blocks], with bases `basis`
    [bases, in, heads * out] and `att` [relations, bases]; `w` [out], `l1`, `b1` and `b2` [1, out] and `l2`
    [out, out], of which `mod` uses some; `bias` [y]; `lin_edge.weight` [heads * out, edge_dim]. `l2` is
    1 / out at first, where PyG's is whatever the memory holds. Of an edge only its scores are stored.

    Args:
        in_channels: features of a node in x.
        out_channels: features of a head.
        num_relations: number of types of edges.
        num_bases: the argument of RGCNConv.
        num_blocks: the argument of RGCNConv.
        mod: how the number of a target's edges is preserved (Zhang and Xie 2020, "Improving Attention
            Mechanism in Graph Neural Networks via Cardinality Preservation"). None: it is not. "additive":
            the sum of w W_r x_j is added; "scaled": y is multiplied by l2 relu(l1 n + b1) + b2, n the number
            of edges; "f-additive": 1 is added to each p; "f-scaled": y is multiplied by n.
        attention_mechanism: "across-relation": the softmax is over all edges of a target;
            "within-relation": over those of each relation.
        attention_mode: "additive-self-attention" or "multiplicative-self-attention", see above.
        heads: number of heads.
        dim: scores of a head, each of which weighs all its features; more than 1 in the multiplicative mode.
        concat: whether y holds the outputs of all heads; False: their mean.
        negative_slope: slope of the leaky ReLU for negative scores.
        dropout: probability with which training drops a weight p, in [0, 1); 0 with a `mod`.
        edge_dim: features of an edge; None: there are none.
        bias: whether b is learned; False: there is none.
        precision: the argument of GCNConv.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range, or does not go with another one.
    """

    q: torch.Tensor
    k: torch.Tensor
    w: torch.Tensor
    l1: torch.Tensor
    b1: torch.Tensor
    l2: torch.Tensor
    b2: torch.Tensor
    weight: torch.Tensor
    att: torch.Tensor
    basis: torch.Tensor
    bias: torch.Tensor | None
    e: torch.Tensor
    lin_edge: torch.nn.Linear | None
    _shown = ("heads",)

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_relations: int,
        num_bases: int | None = None,
        num_blocks: int | None = None,
        mod: str | None = None,
        attention_mechanism: str = _ACROSS,
        attention_mode: str = _ADDITIVE,
        heads: int = 1,
        dim: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        bias: bool = True,
        *,
        precision: Precision | str | None = None,
    ) -> None:
        super().__init__(precision)
        self.in_channels = check_channels(in_channels)[0]
        check_heads(heads, out_channels)
        self.out_channels, self.heads = out_channels, heads
        self.num_relations = check_integer("num_relations", num_relations, most=MOST_FEATURES)
        self.num_bases, self.num_blocks = num_bases, num_blocks
        check_blocks(num_bases, num_blocks, self.in_channels, heads * out_channels)
        self.mod = None if mod is None else check_choice("mod", mod, _MODS)
        self.attention_mechanism = check_choice(
            "attention_mechanism", attention_mechanism, (_ACROSS, _WITHIN)
        )
        self.attention_mode = check_choice("attention_mode", attention_mode, (_ADDITIVE, _MULTIPLICATIVE))
        self.dim = check_integer("dim", dim, most=MOST_FEATURES)
        if dim > 1 and attention_mode == _ADDITIVE:
            bad_value("dim", f"got {dim} with {attention_mode!r}; accepted: 1, or {_MULTIPLICATIVE!r}")
        self.concat = check_flag("concat", concat)
        self.negative_slope = check_number("negative_slope", negative_slope)
        self.dropout = check_share("dropout", dropout)
        if mod is not None and dropout > 0:
            bad_value("dropout", f"got {dropout} with mod={mod!r}; accepted: 0, or mod=None")
        self.edge_dim = check_edge_dim(edge_dim)
        self._add_parameters(check_flag("bias", bias))
        self.reset_parameters()

    def _add_parameters(self, bias: bool) -> None:
        out, width, scores = self.out_channels, self.heads * self.out_channels, self.heads * self.dim
        shapes: dict[str, tuple[int, ...] | None] = {"q": (width, scores), "k": (width, scores)}
        shapes["bias"] = (self.dim * (width if self.concat else out),) if bias else None
        shapes["e"] = None if self.edge_dim is None else (width, scores)
        if self.num_bases is not None:
            shapes["att"] = self.num_relations, self.num_bases
            shapes["basis"] = self.num_bases, self.in_channels, width
        elif self.num_blocks is not None:
            blocks = self.num_blocks
            shapes["weight"] = self.num_relations, blocks, self.in_channels // blocks, width // blocks
        else:
            shapes["weight"] = self.num_relations, self.in_channels, width
        shapes |= {"w": (out,), "l1": (1, out), "b1": (1, out), "l2": (out, out), "b2": (1, out)}
        for name, shape in shapes.items():
            self.register_parameter(name, None if shape is None else torch.nn.Parameter(torch.empty(shape)))
        self.lin_edge = None
        if self.edge_dim is not None:
            self.lin_edge = torch.nn.Linear(self.edge_dim, width, bias=False)

    def reset_parameters(self) -> None:
        """Draw the weights (Glorot and Bengio 2010), set the others to 0, 1 or 1 / out, and drop operands."""
        drawn = ["weight"] if self.num_bases is None else ["basis", "att"]
        linear = {} if self.lin_edge is None else {"lin_edge": self.lin_edge.weight, "e": self.e}
        for tensor in (*(getattr(self, name) for name in (*drawn, "q", "k")), *linear.values()):
            glorot_(tensor)
        constants = {"w": 1, "l1": 1, "b1": 0, "l2": 1 / self.out_channels, "b2": 0, "bias": 0}
        for name, value in constants.items():
            if (parameter := getattr(self, name)) is not None:
                torch.nn.init.constant_(parameter, value)
        self._memo.clear()

    def forward(
        self,
        x: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
        adj: torch.Tensor,
        edge_type: torch.Tensor,
        edge_attr: torch.Tensor | None = None,
        size: tuple[int, int] | None = None,
        return_attention_weights: bool | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        """Compute the layer's output.

        Args:
            x: [nodes, in_channels], float32, float16 or bfloat16, on the device of `adj`; or a pair of those
                of sources and of targets.
            adj: an edge_index [2, edges], see GCNConv.forward; repeated edges count several times.
            edge_type: the argument of RGCNConv.forward.
            edge_attr: with `edge_dim`: floating-point [edges, edge_dim], or [edges] if edge_dim is 1. None:
                scores have no term of the edge.
            size: the argument of SAGEConv.forward.
            return_attention_weights: True or False: the weights are returned too, as in PyG; None: they are
                not.

        Returns:
            [targets, heads * dim * out_channels], or [targets, dim * out_channels] without `concat`, in the
            dtype of x. With return_attention_weights (output, (adj, weights)), where weights are [edges,
            heads * dim], before dropout and `mod`.

        The errors are those of GATConv.forward.
        """
        nodes = check_nodes(x, (self.in_channels, self.in_channels), self.q)
        sources, targets = both(nodes)
        check_typed_edges(adj, edge_type)
        wants_weights(return_attention_weights)
        size = graph_size(nodes, size, adj)
        is_within, is_additive = self.attention_mechanism == _WITHIN, self.attention_mode == _ADDITIVE
        is_fused = is_additive and not is_within and self.mod is None and return_attention_weights is None
        recipe = TypedEdgesRecipe(self.num_relations, is_within, is_fused, self.precision or Precision.FP32)
        made = self._memo.adjacency(size, adj, recipe, edge_type)
        weight = self.relation_weights()
        products = products_of(sources, weight, made.sums)
        if isinstance(made, _FusedEdges):
            return self._with_bias(self._attended(products, sources, targets, weight, made, edge_attr))
        scores = self._scores(sources, targets, weight, made, edge_attr)
        alpha = to_coo(edge_softmax(made.groups, summed_from_coo(scores, made.groups)), made.groups)
        y = self._with_bias(self._summed(products, alpha, made))
        return y if return_attention_weights is None else (y, (adj, alpha))

    def _with_bias(self, y: torch.Tensor) -> torch.Tensor:
        """Return what heads [targets, heads, ..] give, and the bias."""
        y = (y if self.concat else y.mean(dim=1)).flatten(1)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def relation_weights(self) -> torch.Tensor:
        """Return the matrices of the relations: [relations, in, heads * out], or blocks of them."""
        if self.num_bases is None:
            return self.weight
        return (self.att @ self.basis.flatten(1)).unflatten(1, self.basis.shape[1:])

    @staticmethod
    def _of_scores(weight: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
        """Return the W_r Q or W_r K, [relations, in, heads * dim]: a product of parameters."""
        blocks = weight if weight.dim() == 4 else weight[:, None]
        return (blocks @ vectors.unflatten(0, (blocks.shape[1], -1))).flatten(1, 2)

    def _edge_terms(self, operand: SparseOperand, edge_attr: Any) -> torch.Tensor:
        """Return what the features of edges add to scores, [edges, heads * dim]."""
        if self.lin_edge is None:
            bad_value("edge_attr", "goes with edge_dim, the number of an edge's features; accepted: None")
        rows = edge_rows(operand, edge_attr, self.lin_edge.weight.shape[1], self.e)
        return F.linear(rows, self.e.t() @ self.lin_edge.weight)

    def _attended(
        self, products: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor,
        made: _FusedEdges, edge_attr: Any,
    ) -> torch.Tensor:  # fmt: skip
        """Return [targets, heads, out], of which nothing but terms of scores is stored for each edge.

        An edge's relation is known from its column; what it says of the target is a term of the edge.
        """
        operand = made.sums.operand
        queries = mapped(targets, self._of_scores(weight, self.q)).reshape(-1, self.heads)
        terms = spmm(made.terms, queries)
        if edge_attr is not None:
            terms = terms + summed_from_coo(self._edge_terms(operand, edge_attr), operand)
        return graph_attention(
            operand, terms.new_zeros(len(targets), self.heads),
            products_of(sources, self._of_scores(weight, self.k), made.sums),
            products.unflatten(1, (self.heads, -1)), score="additive", negative_slope=self.negative_slope,
            edge_features=terms, dropout_p=self.dropout if self.training else 0.0, edge_order="operand",
        )  # fmt: skip

    def _scores(
        self, sources: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor, made: _TypedEdges,
        edge_attr: Any,
    ) -> torch.Tensor:  # fmt: skip
        """Return the scores [edges, heads * dim]."""
        given = {
            name: mapped(x, self._of_scores(weight, vectors)).reshape(-1, vectors.shape[1])
            for name, x, vectors in (("q_i", targets, self.q), ("k_j", sources, self.k))
        }
        if edge_attr is not None:
            given["e_ij"] = self._edge_terms(made.pairs, edge_attr)
        is_additive = self.attention_mode == _ADDITIVE
        message = _SCORES[self.attention_mode, edge_attr is not None]
        scores: torch.Tensor = aggregate_edges(made.pairs, message, reduce="none", **given)
        return F.leaky_relu(scores, self.negative_slope) if is_additive else scores

    def _summed(self, products: torch.Tensor, alpha: torch.Tensor, made: _TypedEdges) -> torch.Tensor:
        """Return the weighted sums of products [rows, heads * out]: [targets, heads, dim, out]."""
        operand, heads = made.sums.operand, (self.heads, self.dim)
        if self.mod == "f-additive":
            alpha = torch.where(alpha > 0, alpha + 1, alpha)
        elif self.mod is None:
            alpha = F.dropout(alpha, self.dropout, self.training)
        wide = products.unflatten(1, (self.heads, 1, -1)).expand(-1, -1, self.dim, -1).flatten(1, 2)
        y = spmm(operand, wide, summed_from_coo(alpha, operand)).unflatten(1, heads)
        if self.mod == "additive":
            return y + self.w.to(y.dtype) * spmm(operand, products).unflatten(1, (self.heads, 1, -1))
        if self.mod in ("scaled", "f-scaled"):
            degrees = made.groups.kernels.csr.degrees
            groups = self.num_relations if self.attention_mechanism == _WITHIN else 1
            counts = degrees.reshape(len(y), groups).sum(1, keepdim=True).to(y.dtype)
            if self.mod == "scaled":
                counts = F.relu(counts @ self.l1 + self.b1) @ self.l2 + self.b2
            y = y * counts[:, None, None].to(y.dtype)
        return y
