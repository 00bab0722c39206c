"""`forward` of PyG's layers of attention and relations, by those of gnnsparse.nn, which share parameters.

A stand-in is a layer of gnnsparse.nn whose attributes are those of the PyG layer, the same dictionary: what
is changed in the layer holds for its stand-in at once. What a layer of gnnsparse.nn has besides (its cached
operand, its precision, its checked sizes) are properties of the stand-in. Alone: no sum of messages needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch.nn.parameter import UninitializedParameter
from torch_geometric import EdgeIndex
from torch_geometric.nn import MessagePassing, conv
from torch_geometric.nn.aggr import DegreeScalerAggregation, MeanAggregation, SumAggregation
from torch_geometric.nn.dense import HeteroDictLinear, Linear

from gnnsparse.interop.models import FallbackError, precision_of
from gnnsparse.interop.pyg.aggregate import (
    NOTHING,
    LayerState,
    check_edges,
    has_code,
    is_plain_compiled,
    left_compiled,
    steps_of,
    unsuitable,
    watched,
)
from gnnsparse.interop.pyg.edge_aggregate import reductions_in
from gnnsparse.interop.pyg.graphs import check_eager, memo, raw
from gnnsparse.nn import (
    AGNNConv,
    GATConv,
    GATv2Conv,
    HANConv,
    HGTConv,
    PNAConv,
    RGATConv,
    RGCNConv,
    TransformerConv,
)
from gnnsparse.nn.adjacency import Recipe, with_types
from gnnsparse.nn.edges import EdgeRecipe, joined
from gnnsparse.nn.edges import attend as attended
from gnnsparse.nn.inputs import is_plain_linear, is_watched
from gnnsparse.nn.rgcn_conv import RelationRecipe, mapped
from gnnsparse.ops import spmm
from gnnsparse.ops.attention.philox import draw_seed, seeded
from gnnsparse.ops.dispatch import recording, register
from gnnsparse.precision import PRECISIONS, Precision
from gnnsparse.runtime.functorch import alive
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.typed import Relation, TypedGraph


@dataclass(frozen=True)
class _Memo:
    """Finds the operands of a layer's call where all layers' operands are cached; like an AdjacencyMemo."""

    state: LayerState
    width: int
    overhead: float

    def adjacency(self, size: tuple[int, int], edges: Any, recipe: Recipe, edge_type: Any = None) -> Any:
        if edge_type is not None:
            edges = memo.graph(edges).result(with_types, raw(edges), edge_type)
        graph = memo.graph(edges)
        by = self.state.settings
        return graph.adjacency(edges, recipe, size, False, self.width, by, self.overhead).adjacency

    def typed(
        self, num_nodes: dict[str, int], edges: dict[Relation, Any], recipe: Recipe, by_relation: bool
    ) -> Any:
        targets = [num_nodes[relation[2]] for relation in edges] if by_relation else num_nodes.values()
        size = sum(num_nodes[relation[0]] for relation in edges), sum(targets)
        return self.adjacency(size, _block_edges(num_nodes, edges, by_relation), recipe)

    def resolve(self, size: tuple[int, int], edges: Any, weight: Any, recipe: Recipe) -> tuple[Any, Any]:
        made = self.adjacency(size, edges, recipe)
        return made.operand, made.values(weight)


@dataclass(frozen=True)
class _Joining:
    """Joins the edges of relations as TypedGraph does; one that is equal has made the same of them."""

    num_nodes: tuple[tuple[str, int], ...]
    relations: tuple[Relation, ...]
    by_relation: bool

    def __call__(self, *edges: torch.Tensor) -> torch.Tensor:
        graph = TypedGraph(dict(self.num_nodes), dict(zip(self.relations, edges, strict=True)))
        return graph.block_edges(self.by_relation)


def _block_edges(num_nodes: dict[str, int], edges: dict[Relation, Any], by_relation: bool) -> torch.Tensor:
    """Return `TypedGraph.block_edges`, the same tensor as long as those of the relations are unchanged."""
    for given in edges.values():
        if type(given) is not torch.Tensor or given.layout != torch.strided:
            raise FallbackError(f"the adjacency is a {type(given).__name__}")
    first, *others = edges.values()
    joining = _Joining(tuple(num_nodes.items()), tuple(edges), by_relation)
    joined: torch.Tensor = memo.graph(first).result(joining, first, *others, waits=True)
    return joined


class _StandIn:
    """What layers of gnnsparse.nn have besides the attributes of PyG's layers."""

    __slots__ = ("_memo", "precision")
    _memo: _Memo
    precision: Precision
    _linear = Linear
    #: Names of the linear maps of sources and of targets.
    _maps = ("lin_l", "lin_r")
    #: What the names of `x` and `edge_index` end with among the arguments of `forward`.
    suffix = ""

    @staticmethod
    def read(x: Any, edges: Any) -> tuple[Any, Any]:
        """Return the edges of all that a call computes, and the features whose dtype it has."""
        return edges, x[0] if isinstance(x, (tuple, list)) else x

    @staticmethod
    def linear_maps(layer: Any) -> dict[str, Any]:
        """Return the linear maps of a layer, by their names."""
        return {
            name: module
            for name, module in layer._modules.items()
            if module is not None and name.startswith(("lin", "res"))
        }

    @staticmethod
    def width(layer: Any, features: torch.Tensor) -> int:
        """Return how many numbers of a source are gathered for an edge."""
        return int(layer.out_channels * getattr(layer, "heads", 1))

    @property
    def _channels(self) -> tuple[int, int]:
        sources, targets = (getattr(self, name).weight.shape[1] for name in self._maps)
        return sources, targets


class _Gat(_StandIn, GATConv):  # type: ignore[misc, override]
    @property
    def _maps(self) -> tuple[str, str]:  # type: ignore[override]
        return ("lin_src", "lin_dst") if self.lin is None else ("lin", "lin")


class _Transformer(_StandIn, TransformerConv):  # type: ignore[misc, override]
    _maps = ("lin_key", "lin_query")

    @staticmethod
    def width(layer: Any, features: torch.Tensor) -> int:
        return int(features.shape[-1] * layer.heads)


class _Agnn(_StandIn, AGNNConv):  # type: ignore[misc]
    @staticmethod
    def width(layer: Any, features: torch.Tensor) -> int:
        return features.shape[-1]


class _Rgat(_StandIn, RGATConv):  # type: ignore[misc]
    """PyG's layer has all its attributes."""


class _Typed(_StandIn):
    """A layer that takes features by the type of nodes, and edges by relation."""

    __slots__ = ()
    suffix = "_dict"
    _by_relation = False

    @classmethod
    def read(cls, x: Any, edges: Any) -> tuple[Any, Any]:
        if not (isinstance(x, dict) and isinstance(edges, dict) and x and edges):
            raise FallbackError("features or edges are no dicts, or there are none")
        counts = {of: len(nodes) for of, nodes in x.items()}
        return _block_edges(counts, edges, cls._by_relation), next(iter(x.values()))

    @staticmethod
    def width(layer: Any, features: torch.Tensor) -> int:
        return int(layer.out_channels)  # of all heads


class _Han(_Typed, HANConv):  # type: ignore[misc]
    _by_relation = True

    @staticmethod
    def linear_maps(layer: Any) -> dict[str, Any]:
        return {f"proj.{kind}": linear for kind, linear in layer.proj.items()}


class _Hgt(_Typed, HGTConv):  # type: ignore[misc]
    @staticmethod
    def linear_maps(layer: Any) -> dict[str, Any]:
        dicts = {name: m for name, m in layer._modules.items() if isinstance(m, HeteroDictLinear)}
        return {f"{name}.{kind}": linear for name, m in dicts.items() for kind, linear in m.lins.items()}

    def forward(self, x_dict: Any, edge_index_dict: Any) -> Any:
        if any(is_watched(self._modules[name]) for name in ("kqv_lin", "out_lin", "k_rel", "v_rel")):  # type: ignore[arg-type]
            raise FallbackError("its linear maps have hooks")
        if [*edge_index_dict] != [relation for relation in self.edge_types if relation in edge_index_dict]:
            # PyG takes the matrices of other relations then.
            raise FallbackError("its relations are not in the order of its metadata")
        return super().forward(x_dict, edge_index_dict)


class _Relational(_StandIn, RGCNConv):  # type: ignore[misc]
    @property
    def _channels(self) -> tuple[int, int]:  # type: ignore[override]
        given: Any = self.in_channels
        return given if isinstance(given, tuple) else (given, given)

    @property
    def _is_mean(self) -> bool:
        return isinstance(self.aggr_module, MeanAggregation)

    def _with_root(self, out: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
        # PyG adds up in torch's default dtype, or in that of the features if it is wider.
        wide = torch.promote_types(out.dtype, torch.get_default_dtype())
        return RGCNConv._with_root(self, out.to(wide), x)


class _FastRelational(_Relational):
    def _nodes(self, x: Any) -> Any:
        sources, targets = super()._nodes(x)
        if sources is not None and not sources.is_floating_point():
            raise FallbackError("features that are integers, in whose place PyG takes the numbers of nodes")
        return sources, targets

    def _with_root(self, out: torch.Tensor, x: torch.Tensor | None) -> torch.Tensor:
        wide = out.dtype if self.bias is None else torch.promote_types(out.dtype, self.bias.dtype)
        return RGCNConv._with_root(self, out.to(wide), x)


class _Principal(_StandIn, PNAConv):  # type: ignore[misc]
    @property
    def edge_encoder(self) -> Any:  # type: ignore[override]
        return self._modules.get("edge_encoder")

    @property
    def _scalers(self) -> Any:  # type: ignore[override]
        return self.aggr_module.scaler

    @property
    def _reduce(self) -> Any:  # type: ignore[override]
        found = reductions_in(self.aggr_module)
        if (
            found is None
            or found.scaler is None
            or not {*found.names} <= {"sum", "mean", "max", "min", "var", "std"}
        ):
            raise FallbackError(f"its aggregation is {self.aggr_module}")
        for network in (*self.pre_nns, *self.post_nns):
            first, *others = network.children()
            if not is_plain_linear(first, Linear) or any(map(is_watched, (network, *others))):
                raise FallbackError("its networks do not begin with plain linear layers, or have hooks")
        return list(found.names)


#: The methods that say what a layer computes.
_METHODS = ("forward", "message", "edge_update", "edge_updater")


def is_own(base: type) -> type | None:
    """Return the class in `FUSED` whose computation a class has, all methods unchanged, or None."""
    for kind in FUSED:
        if issubclass(base, kind):
            same = all(getattr(base, name) is getattr(kind, name) for name in _METHODS)
            return kind if same else None
    return None


def is_whole(kind: type | None) -> bool:
    """Return whether a call of a layer that is not fused is PyG's, without a product for each `propagate`.

    A layer of relations passes messages over other edges in each, which it makes anew in each call.
    """
    return kind is not None and FUSED[kind].project is None


def unsuitable_whole(layer: Any, kind: type) -> str | None:
    """Return why no call of a layer that computes what PyG's `kind` does can be fused; None: calls can be."""
    if any(name in layer.__dict__ for name in _METHODS[1:]):
        return "a method was replaced in this layer"
    if "parametrizations" in layer._modules:
        return "its parameters are computed (torch.nn.utils.parametrize)"
    for name, linear in FUSED[kind].stand_in.linear_maps(layer).items():
        # Without sizes it has a hook that gives it some. A weight that is computed is not asked for.
        has_sizes = type(linear._parameters.get("weight")) is not UninitializedParameter
        if has_sizes and not is_plain_linear(linear, Linear):
            return f"its `{name}` is no plain linear layer, or has hooks"
    why = unsuitable(layer, FUSED[kind].steps, FUSED[kind].by_edges)
    if why is None and not isinstance(layer.aggr_module, FUSED[kind].aggregations):
        why = f"its aggregation is {layer.aggr_module}"
    return why


def attend(
    layer: Any, kind: type, state: LayerState, x: Any, edges: Any, arguments: Any, options: dict[str, Any]
) -> Any:
    """Compute `forward` of a layer that computes what PyG's class `kind` does; NOTHING: it is left to PyG."""
    try:
        check_eager()
        stand_in, _, runs_on, gathers, overhead, *_ = FUSED[kind]
        joined, features = stand_in.read(x, edges)
        if state.settings.convert == "auto":
            memo.check(joined)
        if (why := watched(layer, joined) or unsuitable_whole(layer, kind)) is not None:
            raise FallbackError(why)
        check_edges(joined)
        if type(joined) is not torch.Tensor and options.get("return_attention_weights") is not None:
            raise FallbackError("weights are returned with an EdgeIndex")
        if features is None or (isinstance(features, torch.Tensor) and not features.is_floating_point()):
            features = layer._parameters.get("weight", features)  # its rows are then those of nodes
        if any(type(m.weight) is UninitializedParameter for m in stand_in.linear_maps(layer).values()):
            raise FallbackError("its parameters have no sizes yet")
        if not isinstance(features, torch.Tensor) or features.dtype not in PRECISIONS:
            raise FallbackError(f"features of dtype {getattr(features, 'dtype', None)}")
        precision, _ = precision_of(state.settings.precision, features)
        standing: Any = object.__new__(stand_in)
        found = _Memo(state, gathers * stand_in.width(layer, features), overhead)
        for name, value in ("__dict__", layer.__dict__), ("precision", precision), ("_memo", found):
            object.__setattr__(standing, name, value)  # a module looks for parameters among its attributes
        out = stand_in.forward(standing, x, edges, *arguments, **options)
    except (FallbackError, TypeError, ValueError) as reason:
        return state.fall_back(reason if isinstance(reason, FallbackError) else FallbackError(str(reason)))
    state.note(f"{runs_on}, {precision.value}")
    return out


def attend_compiled(
    layer: Any, kind: type, state: LayerState, x: Any, edges: Any, arguments: Any, options: dict[str, Any]
) -> Any:
    """`attend` while torch.compile traces; returned weights are left to PyG."""
    if isinstance(edges, EdgeIndex) or not isinstance(edges, torch.Tensor) or edges.layout != torch.strided:
        return left_compiled(layer, "an adjacency that is no plain edge_index")
    same = all(has_code(layer, name, getattr(kind, name).__code__) for name in _METHODS[1:])
    if (
        not same
        or not is_plain_compiled(layer, kind, FUSED[kind].steps)
        or unsuitable_whole(layer, kind) is not None
    ):
        return left_compiled(layer, "a layer that was changed")
    pair = tuple(x) if isinstance(x, (tuple, list)) else (x, x)
    if len(pair) != 2 or any(t is None or t.dtype not in PRECISIONS for t in pair):
        return left_compiled(layer, "features of another dtype, or of sources alone")
    precision, _ = precision_of(state.settings.precision, pair[0])
    project = FUSED[kind].project
    if project is None:
        types = arguments[0] if arguments else options.get("edge_type")
        return _related_compiled(layer, kind, *pair, edges, types, precision)
    features = arguments[0] if arguments else options.get("edge_attr")
    others = *arguments[1:], *(value for name, value in options.items() if name != "edge_attr")
    if any(value is not None for value in others):
        return left_compiled(layer, "attention whose weights are returned, or with sizes")
    if not _takes_features(layer, kind, features):
        return left_compiled(layer, "features of edges that the layer has no map for")
    if (projected := project(layer, *pair)) is None:
        return NOTHING  # what it is made of may run on products
    q, k, v, att, score = projected
    of_edges = None
    if features is not None:
        features, of_edges = features.to(v.dtype), _edge_map(layer, kind).to(v.dtype)
    fill = getattr(layer, "fill_value", 0.0)
    fills = (fill, 0.0) if isinstance(fill, str) else ("", fill)
    loops, slope = getattr(layer, "add_self_loops", False), getattr(layer, "negative_slope", 0.0)
    p = getattr(layer, "dropout", 0.0) if layer.training else 0.0
    how = loops, *fills, score, slope, precision.value, float(p)
    sizes, seed = (v.shape[0], q.shape[0]), draw_seed(v.device) if p > 0 else None
    out = torch.ops.gnnsparse.pyg_attention(q, k, v, att, features, of_edges, edges, seed, *sizes, *how)
    if kind is conv.AGNNConv:
        return out[:, 0]
    return with_targets(layer, kind, out, pair[1])


def with_targets(layer: Any, kind: type, out: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    """Return what GATConv, GATv2Conv or TransformerConv makes of its attention and features of targets."""
    y = joined(out, layer.concat)
    if kind is conv.TransformerConv:
        return TransformerConv._with_root(layer, y, layer.lin_skip(to)) if layer.root_weight else y
    if layer.res is not None:
        y = y + layer.res(to)
    return y if layer.bias is None else y + layer.bias.to(y.dtype)


def _related_compiled(
    layer: Any, kind: type, x: torch.Tensor, to: torch.Tensor, edges: Any, types: Any, precision: Precision
) -> Any:
    """Compute a layer of relations while torch.compile traces, with the products of all nodes."""
    if not isinstance(types, torch.Tensor) or types.dtype not in (torch.int64, torch.int32):
        return left_compiled(layer, "types of edges that are no tensor of integers")
    stand_in, relations = FUSED[kind].stand_in, layer.num_relations
    is_mean = isinstance(layer.aggr_module, MeanAggregation)
    product = mapped(x, RGCNConv.relation_weights(layer)).reshape(-1, layer.out_channels)
    how = x.shape[0], to.shape[0], relations, is_mean, precision.value
    return stand_in._with_root(layer, torch.ops.gnnsparse.pyg_relations(product, edges, types, *how), to)


def _takes_features(layer: Any, kind: type, features: Any) -> bool:
    """Return whether compiled attention takes features of edges, or None in their place."""
    linear = getattr(layer, "lin_edge", None)
    if features is None:
        return linear is None or kind is not conv.TransformerConv
    if linear is None or not isinstance(features, torch.Tensor):
        return False
    if type(linear.weight) is UninitializedParameter or isinstance(
        getattr(layer, "fill_value", 0), torch.Tensor
    ):
        return False
    is_cast = features.is_floating_point() and torch.is_autocast_enabled(features.device.type)
    return is_cast or features.dtype == linear.weight.dtype


def _edge_map(layer: Any, kind: type) -> torch.Tensor:
    """Return the linear map of features of edges: to what their scores get, of GAT, or to keys."""
    weight: torch.Tensor = layer.lin_edge.weight
    if kind is not conv.GATConv:
        return weight
    return (weight.unflatten(0, (layer.heads, -1)) * layer.att_edge[0, :, :, None]).sum(dim=1)


def _gat(layer: Any, x: torch.Tensor, to: torch.Tensor) -> tuple[Any, ...]:
    heads, shared = (layer.heads, layer.out_channels), layer.lin is not None
    of_sources, of_targets = (layer.lin, layer.lin) if shared else (layer.lin_src, layer.lin_dst)
    v = of_sources(x).unflatten(1, heads)
    mapped = v if x is to and shared else of_targets(to).unflatten(1, heads)
    return (mapped * layer.att_dst).sum(-1), (v * layer.att_src).sum(-1), v, None, "additive"


def _gatv2(layer: Any, x: torch.Tensor, to: torch.Tensor) -> tuple[Any, ...]:
    heads = (layer.heads, layer.out_channels)
    k = layer.lin_l(x).unflatten(1, heads)
    q = k if layer.share_weights and x is to else layer.lin_r(to).unflatten(1, heads)
    return q, k, k, layer.att[0], "gatv2"


def _transformer(layer: Any, x: torch.Tensor, to: torch.Tensor) -> tuple[Any, ...]:
    maps = (layer.lin_query, to), (layer.lin_key, x), (layer.lin_value, x)
    return *(linear(x).unflatten(1, (layer.heads, layer.out_channels)) for linear, x in maps), None, "dot"


def _agnn(layer: Any, x: torch.Tensor, to: torch.Tensor) -> tuple[Any, ...] | None:
    if to is not x or x.dim() != 2:
        return None
    unit = torch.nn.functional.normalize(x, p=2.0, dim=-1)[:, None]
    # "dot" divides by the root of the width, which the factor undoes.
    scaled = (unit * (layer.beta * x.shape[1] ** 0.5)).to(x.dtype)
    return scaled, unit.to(x.dtype), x[:, None], None, "dot"


class Fused(NamedTuple):
    """How one of PyG's layers is computed as a whole.

    `project` makes q, k, v, att and the score of features of sources and of targets in compiled code, or None
    if PyG computes the call; a layer of relations has no `project`. A call gathers and stores `gathers` times
    what a product does, about, and takes `overhead` microseconds more than PyG's on a tiny graph, with its
    gradient. `by_edges`: a call that is not fused may be a function over edges.
    """

    stand_in: Any
    project: Callable[..., Any] | None
    runs_on: str = "graph_attention"
    gathers: int = 3
    overhead: float = 200.0
    aggregations: tuple[type, ...] = (SumAggregation,)
    steps: tuple[Any, ...] = steps_of(MessagePassing)
    by_edges: bool = False


_SUMS = SumAggregation, MeanAggregation
#: PyG's layers that are computed as a whole; derived ones first.
FUSED: dict[type, Fused] = {
    conv.GATConv: Fused(_Gat, _gat),
    conv.GATv2Conv: Fused(type("_Gatv2", (_StandIn, GATv2Conv), {}), _gatv2),
    conv.TransformerConv: Fused(_Transformer, _transformer),
    conv.AGNNConv: Fused(_Agnn, _agnn),
    conv.HANConv: Fused(_Han, None, overhead=300.0),
    conv.HGTConv: Fused(_Hgt, None, overhead=300.0),
    conv.RGATConv: Fused(_Rgat, lambda *_: None, overhead=600.0, steps=steps_of(conv.RGATConv)),
    # Its networks of edges are compiled by `propagate`.
    conv.PNAConv: Fused(
        _Principal, lambda *_: None, "aggregate_edges", 3, 0.0, (DegreeScalerAggregation,), by_edges=True
    ),
    conv.FastRGCNConv: Fused(_FastRelational, None, "spmm", 1, 0.0, _SUMS, steps_of(conv.FastRGCNConv)),
    conv.RGCNConv: Fused(_Relational, None, "spmm", 1, -300.0, _SUMS),
}


_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, Tensor? att, Tensor? features, Tensor? edge_map, Tensor edge_index, "
    "Tensor? seed, SymInt sources, SymInt targets, bool add_self_loops, str fill, float fill_value, "
    "str score, float negative_slope, str precision, float dropout_p"
)
_TENSORS = 6  # of the arguments, which have gradients


def _run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, att: torch.Tensor | None,
    features: torch.Tensor | None, edge_map: torch.Tensor | None, edge_index: torch.Tensor,
    seed: torch.Tensor | None, sources: int, targets: int, add_self_loops: bool, fill: str, fill_value: float,
    score: str, negative_slope: float, precision: str, dropout_p: float,
) -> torch.Tensor:  # fmt: skip
    has_features = features is not None
    recipe = EdgeRecipe(add_self_loops, Precision.parse(precision), has_features=has_features)
    edges = memo.adjacency(edge_index, recipe, (sources, targets), False)
    options: dict[str, Any] = {}
    if features is not None and edge_map is not None:
        features = edges.features(features, edge_index, edge_map, fill or fill_value)
        if score == "dot":
            options["edge_weight"] = edge_map
        else:
            features = F.linear(features, edge_map)
        if score == "gatv2":
            features, options["edge_target"] = features.unflatten(1, k.shape[1:]), "keys"
    options.update(score=score, att=att, negative_slope=negative_slope, dropout_p=dropout_p)
    with seeded(seed):
        return attended(edges, q, k, v, features, False, **options)[0]


def _fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any) -> torch.Tensor:
    return v.new_empty((rest[6], *v.shape[1:]))


def _run_grad(grad: torch.Tensor, *arguments: Any) -> list[torch.Tensor]:
    """Compute the attention again, and its gradients: operators do not hand over what attention keeps."""
    tensors, how, needs = arguments[:_TENSORS], arguments[_TENSORS:-1], arguments[-1]
    with recording():
        leaves = [
            None if t is None else t.detach().requires_grad_(needed)
            for t, needed in zip(tensors, needs, strict=True)
        ]
        out = _run(*leaves, *how)  # type: ignore[arg-type]
        wanted = [t for t in leaves if t is not None and t.requires_grad]
        found = torch.autograd.grad(out, wanted, grad.contiguous())
    # Not the memory of an argument, nor of each other, as the operator's schema promises.
    return [g.clone(memory_format=torch.contiguous_format) for g in found]


def _fake_grad(grad: torch.Tensor, *arguments: Any) -> list[torch.Tensor]:
    needed = zip(arguments[:_TENSORS], arguments[-1], strict=True)
    return [t.new_empty(t.shape) for t, needs in needed if t is not None and needs]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.how = inputs[_TENSORS + 2 :]
    ctx.save_for_backward(*inputs[: _TENSORS + 2])


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    needs = list(ctx.needs_input_grad[:_TENSORS])
    found = torch.ops.gnnsparse.pyg_attention_grad(grad, *alive(ctx.saved_tensors), *ctx.how, needs)
    grads = iter(found)
    return *(next(grads) if needed else None for needed in needs), *(None,) * 11


register(f"pyg_attention({_ARGUMENTS}) -> Tensor", _run, _fake, _setup, _backward)
register(f"pyg_attention_grad(Tensor grad, {_ARGUMENTS}, bool[] needs) -> Tensor[]", _run_grad, _fake_grad)


def _relations(
    edges: torch.Tensor, types: torch.Tensor, sources: int, targets: int, relations: int, mean: bool,
    precision: str,
) -> SparseOperand:  # fmt: skip
    """Return the operand of edges with types, whose dense factor has a row for each source and relation."""
    known = memo.known(edges)
    typed = with_types(edges, types) if known is None else known.result(with_types, edges, types)
    recipe = RelationRecipe(relations, mean, "all", Precision.parse(precision))
    made: SparseOperand = memo.adjacency(typed, recipe, (sources, targets), False).operand
    return made


def _run_related(product: torch.Tensor, edges: torch.Tensor, types: torch.Tensor, *how: Any) -> torch.Tensor:
    return spmm(_relations(edges, types, *how), product)


def _fake_related(product: torch.Tensor, edges: torch.Tensor, types: torch.Tensor, *how: Any) -> torch.Tensor:
    return product.new_empty((how[1], product.shape[1]))


def _run_related_grad(
    grad: torch.Tensor, edges: torch.Tensor, types: torch.Tensor, *how: Any
) -> torch.Tensor:
    return spmm(_relations(edges, types, *how).unquantized.T, grad.contiguous())


def _fake_related_grad(grad: torch.Tensor, *arguments: Any) -> torch.Tensor:
    return grad.new_empty((arguments[2] * arguments[4], grad.shape[1]))


def _setup_related(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    ctx.how = inputs[3:]
    ctx.save_for_backward(*inputs[1:3])


def _backward_related(ctx: Any, grad: torch.Tensor) -> tuple[Any, ...]:
    found = torch.ops.gnnsparse.pyg_relations_grad(grad, *alive(ctx.saved_tensors), *ctx.how)
    return found, *(None,) * 7


_RELATED = (
    "Tensor product, Tensor edge_index, Tensor edge_type, SymInt sources, SymInt targets, SymInt relations, "
    "bool mean, str precision"
)
register(
    f"pyg_relations({_RELATED}) -> Tensor", _run_related, _fake_related, _setup_related, _backward_related
)
register(f"pyg_relations_grad({_RELATED}) -> Tensor", _run_related_grad, _fake_related_grad)
