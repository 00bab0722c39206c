"""The edges over which a layer attends: self-loops, repeated edges, features of edges."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from gnnsparse.errors import bad_value, check_flag, check_share
from gnnsparse.nn.adjacency import (
    GraphLayer,
    Preparation,
    Recipe,
    check_precision,
    check_self_loops,
    copies_apart,
    with_copies,
)
from gnnsparse.nn.inputs import (
    Nodes,
    check_channels,
    check_edge_dim,
    check_features,
    check_heads,
    is_plain_linear,
)
from gnnsparse.nn.joint_attention import Joint, suits
from gnnsparse.ops import graph_attention
from gnnsparse.ops.attention.edges import order_of
from gnnsparse.ops.edges.schema import edge_counts
from gnnsparse.ops.edges.trace import fixed
from gnnsparse.ops.segments import row_sums
from gnnsparse.precision import Precision
from gnnsparse.runtime.functorch import unwrapped
from gnnsparse.runtime.memo import made_once
from gnnsparse.sparse.operand import SparseOperand

#: The features of self-loops that a layer adds: a number, a tensor, or the name of a reduction.
Fill = float | torch.Tensor | str


@dataclass(frozen=True)
class EdgeRecipe(Recipe):
    """How a layer makes a pattern, perhaps with one self-loop for each node that is source and target.

    `has_features`: edges have features, so that copies of an edge are told apart.
    """

    add_self_loops: bool
    precision: Precision
    preparation: Preparation | None = None
    has_features: bool = False

    def make(self, edge_index: torch.Tensor, size: tuple[int, int], weighted: bool) -> Edges:
        """See Recipe."""
        others, loops = None, 0
        if self.add_self_loops:
            apart, loops = edge_index[0] != edge_index[1], min(size)
            if not bool(apart.all()):
                others = apart.nonzero().flatten()
        edges, copies = _with_loops(edge_index, others, loops), None
        operand = self.prepare(edges, size)
        if self.has_features and order_of(operand).has_repeats:
            edges, copies = copies_apart(edges, size[0])
            operand = self.prepare(edges, (size[0] + len(copies), size[1]))
        return Edges(operand, edge_index.shape[1], others, loops, copies=copies)


def _with_loops(edge_index: torch.Tensor, others: torch.Tensor | None, loops: int) -> torch.Tensor:
    if others is not None:
        edge_index = edge_index[:, others]
    if loops == 0:
        return edge_index
    nodes = torch.arange(loops, dtype=edge_index.dtype, device=edge_index.device)
    return torch.cat([edge_index, nodes.expand(2, -1)], dim=1)


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of a layer's call, `count` of an edge_index or an operand (`given`: its repeats count once).

    `others` int64 are the edges that are no self-loops (None: all are used), which `loops` self-loops follow.
    `copies` int64 are the sources that the operand has behind the given ones, see `copies_apart`.
    """

    operand: SparseOperand
    count: int
    others: torch.Tensor | None = None
    loops: int = 0
    given: bool = False
    copies: torch.Tensor | None = None

    @property
    def log_counts(self) -> torch.Tensor | None:
        """The logarithm of how often each edge was given, float32 [nnz] in the operand's order, or None."""
        return None if self.given else log_counts(self.operand)

    def index(self, edge_index: Any) -> torch.Tensor:
        """Return the edges of `edge_index` with self-loops, sources over targets; an operand in its order."""
        if self.given:
            return self.operand.indices().flip(0)
        return _with_loops(unwrapped("adj", edge_index), self.others, self.loops)

    def features(self, edge_attr: Any, edge_index: Any, weight: torch.Tensor, fill: Fill) -> torch.Tensor:
        """Return the features of all edges in the order of `index`, self-loops included. Differentiable.

        `weight` [.., edge_dim] will be multiplied by them; `fill` gives those of self-loops. An operand has
        them in the order of the edges that it was made from, which must not be repeated.
        """
        edge_attr = edge_rows(self.operand, edge_attr, weight.shape[1], weight, self.count)
        order = order_of(self.operand)
        if order.has_repeats:
            bad_value(
                "edge_attr",
                "the operand's edges were repeated, and prepare has merged them, so that features can't be "
                "kept apart; accepted: an edge_index, of which copies stay apart, or an operand of "
                "edges without repeats (torch_geometric.utils.coalesce merges features)",
            )
        if order.has_added:
            bad_value(
                "edge_attr",
                "the operand has self-loops that prepare added, without features; accepted: an edge_index, "
                "or an operand of the edges alone",
            )
        if self.others is not None:
            edge_attr = edge_attr[self.others]
        if self.loops == 0:
            return edge_attr
        return torch.cat([edge_attr, self._of_loops(edge_attr, edge_index, fill)])

    def _of_loops(self, features: torch.Tensor, edge_index: torch.Tensor, fill: Fill) -> torch.Tensor:
        shape = self.loops, features.shape[1]
        if isinstance(fill, torch.Tensor):
            fill = fill.to(features.device, features.dtype)
            try:
                return fill.expand(shape)
            except RuntimeError:
                bad_value(
                    "fill_value", f"has shape {tuple(fill.shape)}; accepted: one that expands to {shape}"
                )
        if not isinstance(fill, str):
            return features.new_full(shape, fill)
        if fill in ("mean", "add", "sum"):
            return self._sums(features, mean=fill == "mean")
        edge_index = unwrapped("adj", edge_index)
        target = (edge_index if self.others is None else edge_index[:, self.others])[1].long()
        start = features.new_ones if fill == "mul" else features.new_zeros
        reduce = {"mul": "prod", "max": "amax", "min": "amin"}[fill]
        found = start((self.operand.shape[0], shape[1])).scatter_reduce(
            0, target[:, None].expand_as(features), features, reduce, include_self=fill == "mul"
        )
        return found[: self.loops]

    def _sums(self, features: torch.Tensor, mean: bool) -> torch.Tensor:
        operand, none = self.operand, features.new_zeros((self.loops, features.shape[1]))
        wide = torch.cat([features, none])
        if wide.dtype in (torch.float16, torch.bfloat16):
            wide = wide.float()
        sums = row_sums(operand, operand.from_coo_order(wide))[: self.loops]
        if mean:
            others = operand.kernels.csr.degrees[: self.loops] - 1  # without the self-loop
            sums = sums / others.clamp(min=1)[:, None]
        return sums.to(features.dtype)


@made_once
def log_counts(operand: SparseOperand) -> torch.Tensor | None:
    """Return a bias, float32 [nnz], by which softmax counts repeated edges of `prepare`, or None."""
    if operand.num_edges == operand.nnz:
        return None
    ones = torch.ones(operand.num_edges, dtype=torch.float32, device=operand.device)
    return operand.from_coo_order(ones).log()


class EdgeAttention(GraphLayer):
    """Options and edges of a call of GATConv, GATv2Conv and TransformerConv; no layer itself."""

    #: The class of the linear layers.
    _linear: type[torch.nn.Module] = torch.nn.Linear
    add_self_loops = False
    fill_value: Fill = 0.0
    lin_edge: torch.nn.Linear | None
    _shown = ("heads",)

    def __init__(
        self, in_channels: Any, out_channels: int, heads: int, concat: bool, dropout: float,
        edge_dim: int | None, bias: bool, precision: Precision | str | None,
    ) -> None:  # fmt: skip
        super().__init__(precision)
        self.in_channels, self._channels = in_channels, check_channels(in_channels)
        check_heads(heads, out_channels)
        self.out_channels, self.heads = out_channels, heads
        self.concat = check_flag("concat", concat)
        self.dropout = check_share("dropout", dropout)
        self.edge_dim = check_edge_dim(edge_dim)
        check_flag("bias", bias)

    def _make_edge_linear(self) -> torch.nn.Linear | None:
        if self.edge_dim is None:
            return None
        return torch.nn.Linear(self.edge_dim, self.heads * self.out_channels, bias=False)

    def _edges(self, adj: Any, size: tuple[int, int], edge_attr: Any) -> tuple[Edges, torch.Tensor | None]:
        if edge_attr is not None and self.edge_dim is None:
            bad_value("edge_attr", "goes with edge_dim, the number of an edge's features; accepted: None")
        if isinstance(adj, SparseOperand):
            check_precision(adj, self.precision)
            if self.add_self_loops:
                self._check_loops(adj, edge_attr is not None)
            edges = Edges(adj, adj.num_edges, given=True)
        else:
            has_features = edge_attr is not None and self.lin_edge is not None
            precision = self.precision or Precision.FP32
            recipe = EdgeRecipe(self.add_self_loops, precision, has_features=has_features)
            edges = self._memo.adjacency(size, adj, recipe)
        if edge_attr is None or self.lin_edge is None:
            return edges, None
        return edges, edges.features(edge_attr, adj, self.lin_edge.weight, self.fill_value)

    def _joint(
        self, score: str, edges: Edges, nodes: Nodes, layers: list[Any], *parameters: torch.Tensor | None,
        **options: Any,
    ) -> Joint | None:  # fmt: skip
        """Return how attention reads one product of linear layers in one step of autograd, if it can."""
        x, dropped = nodes[0], self.dropout if self.training else 0.0
        if nodes[1] is not x or not (self.concat or self.heads == 1):
            return None
        if edges.copies is not None or edges.log_counts is not None:
            return None
        if not all(is_plain_linear(layer, self._linear) for layer in layers):
            return None
        joint = Joint(edges.operand, score, self.heads, self.out_channels, dropout_p=dropped, **options)
        read = *(layer.weight for layer in layers), *(layer.bias for layer in layers)
        return joint if suits(joint, x, *read, *parameters) else None

    def _check_loops(self, adj: SparseOperand, has_features: bool) -> None:
        instead = f"{type(self).__name__}(add_self_loops=False) to do without them"
        if has_features:
            bad_value(
                "edge_attr",
                "goes with an operand only if no self-loops are added, as they have no features; accepted: "
                f"an edge_index, or {instead}",
            )
        # A sampled block with self-loops has them though it is not square: its first sources are its targets.
        if adj.shape[0] != adj.shape[1] and not adj.has_self_loops:
            bad_value(
                "adj",
                f"an operand of {adj.shape[1]} sources and {adj.shape[0]} targets has no self-loops; "
                f"accepted: an edge_index, or {instead}",
            )
        check_self_loops(adj, instead)


class EdgeLayer(GraphLayer):
    """A layer on `aggregate_edges`, which takes edges as they are given; no layer itself."""

    def reset_parameters(self) -> None:
        """Draw the parameters of all modules anew, and drop a cached operand."""
        for module in self.children():
            reset(module)
        self._memo.clear()

    def _operand(self, adj: Any, size: tuple[int, int], self_loops: bool = False) -> SparseOperand:
        """Return the operand of a call; of an edge_index with one self-loop for each node if `self_loops`."""
        if isinstance(adj, SparseOperand):
            check_precision(adj, self.precision)
            return adj
        recipe = EdgeRecipe(self_loops, self.precision or Precision.FP32)
        return self._memo.adjacency(size, adj, recipe).operand


def reset(module: torch.nn.Module) -> None:
    """Call `reset_parameters` of a module, or of those in it, as PyG."""
    call = getattr(module, "reset_parameters", None)
    if callable(call):
        call()
        return
    for child in module.children():
        reset(child)


def both(nodes: Nodes) -> tuple[torch.Tensor, torch.Tensor]:
    """Return features of sources and of targets, or raise if there are none of targets."""
    sources, targets = nodes
    if targets is None:
        bad_value("x", "has no features of targets; accepted: a pair of both, or one tensor for all nodes")
    return sources, targets


#: Activations that messages use, by what layers are given; those of other functions are traced in each call.
ACTIVATIONS: dict[Any, Callable[[Any], Any]] = {
    type(None): lambda x: x, torch.nn.ReLU: F.relu, torch.nn.SiLU: F.silu, torch.nn.Sigmoid: torch.sigmoid,
    torch.nn.Tanh: torch.tanh,
}  # fmt: skip


def by_activation(
    make: Callable[[Callable[[Any], Any]], Callable[..., Any]],
) -> Callable[[Any], Callable[..., Any]]:
    """Return a function that finds the message that `make` makes of an activation."""
    made = {kind: fixed(make(function)) for kind, function in ACTIVATIONS.items()}

    def of(act: Any) -> Callable[..., Any]:
        return made[type(act)] if type(act) in made else make(act)

    return of


def edge_rows(
    operand: SparseOperand, edge_attr: Any, features: int, parameter: torch.Tensor | None = None,
    edges: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Return features [edges, features], or raise; a single one may have one dimension; None: all edges."""
    edges = operand.num_edges if edges is None else edges
    if isinstance(edge_attr, torch.Tensor) and edge_attr.dim() == 1:
        edge_attr = edge_attr[:, None]
    edge_attr = check_features("edge_attr", edge_attr, features, parameter, device=operand.device)
    if edge_attr.shape[0] != edges:
        bad_value("edge_attr", f"is of {edge_attr.shape[0]} edges; accepted: {edges}, all edges")
    return edge_attr


def counts_of(operand: SparseOperand, like: torch.Tensor) -> torch.Tensor:
    """Return the number of edges of each target, also of an operand of several ranks, see `edge_counts`."""
    return edge_counts(operand if operand.operations is None else operand.operations.whole, like)


def optional_rows(
    operand: SparseOperand, edge_attr: Any, edge_dim: int | None, weight: torch.Tensor
) -> torch.Tensor | None:
    """Return the features of edges, or None for a layer without them."""
    if edge_dim is not None:
        return edge_rows(operand, edge_attr, edge_dim, weight)
    if edge_attr is not None:
        bad_value("edge_attr", "goes with a layer that was made for edge features; accepted: None")
    return None


def attend(
    edges: Edges,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    features: torch.Tensor | None,
    want_weights: bool,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute attention over a layer's edges [targets, heads, features], and wanted weights [edges, heads].

    `features` are in the order in which the operand's edges were given, `options` go to graph_attention.
    Weights are in the order of `edges.index`; repeats of an edge without features share them.
    """
    operand = edges.operand
    keys = with_copies(k, edges.copies)
    k, v = keys, keys if v is k else with_copies(v, edges.copies)
    if features is not None:  # no edge of the operand is repeated
        options.update(edge_features=features, edge_order="coo")
    else:
        options.update(bias=edges.log_counts, edge_order="operand")
    found = graph_attention(operand, q, k, v, return_weights=want_weights, **options)
    if not want_weights:
        return found, None
    out, weights = found
    if edges.given:
        return out, weights if features is None else operand.from_coo_order(weights)
    if features is not None:
        return out, weights
    if (counts := edges.log_counts) is not None:
        weights = weights * (-counts).exp()[:, None].to(weights.dtype)
    return out, operand.to_coo_order(weights)


def glorot_(tensor: torch.Tensor) -> None:
    """Draw a tensor uniformly by the rule of Glorot and Bengio (2010), from its last two sizes, as PyG."""
    bound = math.sqrt(6 / (tensor.shape[-2] + tensor.shape[-1]))
    torch.nn.init.uniform_(tensor, -bound, bound)


def side_by_side(layers: list[Any]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the weight and the bias (None if the first has none) of linear layers of one input as one."""
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return torch.cat([layer.weight for layer in layers]), bias


def joined(out: torch.Tensor, concat: bool) -> torch.Tensor:
    """Return the outputs of heads [nodes, heads, features] side by side, or their mean."""
    return out.flatten(1) if concat else out.mean(dim=1)


def wants_weights(given: Any) -> bool:
    """Return whether a call returns the weights: False for None. Else raise unless it is a bool."""
    return given is not None and check_flag("return_attention_weights", given)
