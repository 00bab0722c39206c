"""`propagate` of an accelerated layer: messages that are recognised are one sparse product."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch_geometric import EdgeIndex
from torch_geometric.nn import MessagePassing, aggr

from gnnsparse.interop.models import precision_of
from gnnsparse.interop.pyg import compiled
from gnnsparse.interop.pyg.graphs import Graph, LeftError, memo, raw
from gnnsparse.interop.pyg.message import Argument, Message, arguments_of, read_message
from gnnsparse.interop.pyg.normalize import is_gcn_weight
from gnnsparse.interop.pyg.policy import Settings
from gnnsparse.nn.adjacency import GcnRecipe
from gnnsparse.nn.aggregation import Aggregation
from gnnsparse.ops import spmm
from gnnsparse.precision import PRECISIONS
from gnnsparse.transforms import is_direct

__all__ = ["NOTHING", "LayerState", "propagate", "unsuitable", "watched"]

#: Aggregations that a product computes.
REDUCTIONS = {
    aggr.SumAggregation: "sum",
    aggr.MeanAggregation: "mean",
    aggr.MaxAggregation: "max",
    aggr.MinAggregation: "min",
}
#: What a function returns that leaves a call to PyG.
NOTHING = object()
_HOOKS = tuple(
    f"_{part}_forward{kind}_hooks"
    for part in ("propagate", "message", "aggregate", "message_and_aggregate", "edge_update")
    for kind in ("_pre", "")
)


@dataclass
class LayerState:
    """What an accelerated layer remembers. It is copied and pickled with the layer.

    Attributes:
        settings: what it was accelerated with.
        arguments: the arguments of its message.
        runs_on: what its calls ran on, and how often.
        left: why calls were left to PyG, and how often.
        read: the messages that were recognised, by the form of their arguments.
    """

    settings: Settings
    arguments: tuple[Argument, ...] = ()
    runs_on: dict[str, int] = field(default_factory=dict)
    left: dict[str, int] = field(default_factory=dict)
    read: dict[Any, Message] = field(default_factory=dict)

    @property
    def is_weighted_only(self) -> bool:
        """Whether the message can have a weight, by which gcn_norm's edges of weight 0 do not count."""
        return any(message.weight is not None for message in self.read.values())

    def note(self, what: str) -> None:
        """Counts a call that ran on `what`."""
        self.runs_on[what] = self.runs_on.get(what, 0) + 1

    def leave(self, why: str) -> Any:
        """Counts a call that is left to PyG, and returns NOTHING."""
        if why not in self.left and len(self.left) >= 16:
            why = "other reasons"
        self.left[why] = self.left.get(why, 0) + 1
        return NOTHING


def watched(layer: Any) -> str | None:
    """Returns why a call has to be PyG's own, though the message is recognised; None: it has not."""
    own = layer.__dict__
    for name in _HOOKS:
        if own[name]:
            return f"hooks are registered ({name.strip('_')})"
    if own["_explain"]:
        return "it is being explained"
    if own["_decomposed_layers"] != 1:
        return "its features are decomposed (decomposed_layers)"
    return None


def _reduction_of(aggregation: Any) -> str | None:
    """Returns which of `REDUCTIONS` an aggregation is; None: none of them.

    torch.export puts objects of subclasses, which it makes, in the place of modules.
    """
    for kind, name in REDUCTIONS.items():
        if isinstance(aggregation, kind):
            return name if type(aggregation).forward is kind.forward else None
    return None


def unsuitable(layer: Any) -> str | None:
    """Returns why no call of a layer can be a product, whatever its message; None: calls can be."""
    kind = type(layer)
    if layer.flow != "source_to_target":
        return f"flow={layer.flow!r}"
    if kind.aggregate is not MessagePassing.aggregate or "aggregate" in layer.__dict__:
        return "it has an `aggregate` of its own"
    if kind.update is not MessagePassing.update or "update" in layer.__dict__:
        return "it has an `update` of its own"
    reduction = layer.aggr_module
    if _reduction_of(reduction) is None:
        return f"its aggregation is {reduction}"
    if reduction._forward_hooks or reduction._forward_pre_hooks:
        return "its aggregation has hooks"
    return None


def _sizes(layer: Any, state: LayerState, edges: Any, size: Any, given: dict[str, Any]) -> tuple[int, int]:
    """Returns the numbers of sources and of targets, by PyG's rules."""
    found: list[int | None] = [None, None] if size is None else list(size)
    if isinstance(edges, EdgeIndex):
        found = list(edges.sparse_size())
    for argument in state.arguments:
        if not argument.name.endswith(("_i", "_j")) or argument.name == argument.source:
            continue
        value = given.get(argument.source)
        pair = value if isinstance(value, (tuple, list)) else None
        if pair is not None and len(pair) != 2:
            raise LeftError("features of sizes that PyG refuses")
        side = 0 if argument.role == "source" else 1
        for which, x in enumerate(pair) if pair is not None else ((side, value),):
            if not isinstance(x, torch.Tensor):
                continue
            if x.dim() < abs(layer.node_dim):
                raise LeftError("features of sizes that PyG refuses")
            count = x.shape[layer.node_dim]
            if found[which] not in (None, count):
                raise LeftError("features of sizes that PyG refuses")
            found[which] = count
    sources, targets = found
    if sources is None:
        raise LeftError("sizes that are not known")
    return sources, sources if targets is None else targets


def check_features(layer: Any, x: Any) -> None:
    """Raises LeftError unless x has rows of features that a product can take."""
    if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.dtype not in PRECISIONS:
        raise LeftError(f"features of dtype {getattr(x, 'dtype', None)}")
    if x.dim() not in (2, 3) or layer.node_dim not in (0, -x.dim(), -2):
        raise LeftError(f"features of shape {tuple(x.shape)}")


def check_edges(edges: Any) -> torch.Tensor:
    """Returns the tensor [2, edges] of a call, or raises LeftError if its edges have another form."""
    plain = raw(edges)
    usual = isinstance(plain, torch.Tensor) and plain.layout == torch.strided
    if not usual or plain.dtype not in (torch.int64, torch.int32) or plain.dim() != 2:
        raise LeftError(f"the adjacency is a {_form(edges)}")
    if plain.shape[0] != 2 or plain.shape[1] == 0:
        raise LeftError("there are no edges")
    return plain


def _form(edges: Any) -> str:
    layout = getattr(edges, "layout", None)
    return type(edges).__name__ if layout in (None, torch.strided) else f"tensor of layout {layout}"


def _weight_of(found: Message, given: dict[str, Any], edges: int) -> torch.Tensor | None:
    """Returns the weights [edges] or [edges, heads] of a message, or None."""
    if found.weight is None:
        return None
    weight = given[found.weight]
    if weight.dtype not in PRECISIONS:
        raise LeftError(f"weights of dtype {weight.dtype}")
    if not found.by_head:
        return weight if weight.dim() == 1 else weight.reshape(edges)
    return weight if weight.dim() == 2 else weight.reshape(edges, -1)


def propagate(layer: Any, state: LayerState, edges: Any, size: Any, given: dict[str, Any]) -> Any:
    """Computes PyG's `propagate` of a layer by a sparse product, or returns NOTHING to leave it to PyG."""
    why = memo.leaves(edges) if state.settings.convert == "auto" else None
    why = why or watched(layer) or unsuitable(layer)
    if why is not None:
        return state.leave(why)
    if torch._C._get_tracing_state() is not None or not is_direct():
        return state.leave("a transform of torch.func is active, or torch.jit traces")
    try:
        plain = check_edges(edges)
        found = read_message(layer, state.arguments, given, plain.shape[1])
        if found is None:
            return state.leave("its message is none that is recognised")
        return _product(layer, state, edges, size, given, found)
    except LeftError as reason:
        return state.leave(str(reason))


def _product(
    layer: Any, state: LayerState, edges: Any, size: Any, given: dict[str, Any], found: Message
) -> torch.Tensor:
    x = given[found.features]
    if isinstance(x, (tuple, list)):
        x = x[0]
    check_features(layer, x)
    is_batch = x.dim() == 3 and layer.node_dim == -2
    if is_batch:  # features of several runs on one graph, [runs, nodes, width]
        x = x.transpose(0, 1)
    plain = raw(edges)
    if x.device != plain.device:
        raise LeftError("features and edges are on two devices")
    weight = _weight_of(found, given, plain.shape[1])
    counts = _sizes(layer, state, edges, size, given)
    if x.shape[0] != counts[0]:
        raise LeftError("features of sizes that PyG refuses")
    reduce = str(_reduction_of(layer.aggr_module))
    precision, cast = precision_of(state.settings.precision, x)
    if cast is None and weight is not None and weight.dtype != x.dtype and not _under_autocast(x):
        x = x.to(torch.promote_types(x.dtype, weight.dtype))  # what their product has in PyG
    elif cast is not None:
        x = x.to(cast)
    recipe: Any = Aggregation(reduce, precision)
    usual = weight is not None and reduce == "sum" and not found.by_head and counts[0] == counts[1]
    if usual and is_gcn_weight(edges, given[str(found.weight)], counts[0]):
        recipe, weight = GcnRecipe(True, 1.0, precision), None
    graph: Graph = memo.graph(edges)
    width = x.shape[1] if x.dim() == 2 else x.shape[1] * x.shape[2]
    kept = graph.adjacency(edges, recipe, counts, weight is not None, width, state.settings)
    try:
        values = kept.values(weight)
    except ValueError as problem:  # weights of repeated edges under a maximum
        raise LeftError(str(problem)) from None
    state.note(f"spmm, {reduce}, {precision.value}")
    how = reduce if reduce in ("max", "min") else "sum"  # a mean's operand or values have been divided
    out = spmm(kept.adjacency.operand, x, values, reduce=how)
    return out.transpose(0, 1).contiguous() if is_batch else out


def _under_autocast(x: torch.Tensor) -> bool:
    return torch.is_autocast_enabled(x.device.type)


def form_of(arguments: tuple[Argument, ...], given: dict[str, Any], training: bool) -> Any:
    """Returns what a message depends on that is no number: which arguments there are, of what form."""
    dims = []
    for argument in arguments:
        value = given.get(argument.source)
        if isinstance(value, (tuple, list)):
            value = value[0]
        dims.append(value.dim() if isinstance(value, torch.Tensor) else None)
    return training, *dims


def probe(layer: Any) -> dict[Any, Message]:
    """Reads the message of a layer for all forms of its arguments: form -> what is recognised.

    The features have 2 dimensions or 3, those of edges are absent, [edges] or [edges, heads].
    """
    arguments, found = arguments_of(layer.inspector.get_param_names("message")), {}
    heads = getattr(layer, "heads", 1)
    heads = heads if type(heads) is int and heads > 0 else 1
    if unsuitable(layer) is not None:
        return {}
    edges, features = 7, 5
    on_meta: Any = {"device": "meta", "dtype": torch.float32}
    for x_shape in ((11, features), (11, heads, features)):
        for w_shape in (None, (edges,), (edges, heads)):
            x = torch.empty(x_shape, **on_meta)
            w = None if w_shape is None else torch.empty(w_shape, **on_meta)
            given = {a.source: w if a.role == "edge" else x for a in arguments}
            training = layer.training
            for mode in (True, False):
                layer.training = mode
                message = read_message(layer, arguments, given, edges)
                if message is not None:
                    found[form_of(arguments, given, mode)] = message
            layer.training = training
    return found


def propagate_compiled(layer: Any, state: LayerState, edges: Any, size: Any, given: dict[str, Any]) -> Any:
    """`propagate` while torch.compile traces: an operator that finds its operand when it runs.

    The message is what it was found to be when the layer was accelerated.
    """
    reduce = _reduction_of(layer.aggr_module)
    if layer._explain or layer._decomposed_layers != 1 or reduce not in ("sum", "mean"):
        return NOTHING
    found = state.read.get(form_of(state.arguments, given, layer.training))
    if found is None or isinstance(edges, EdgeIndex) or not isinstance(edges, torch.Tensor):
        return NOTHING
    if edges.layout != torch.strided:
        return NOTHING
    x = given[found.features]
    if isinstance(x, (tuple, list)):
        x = x[0]
    if x.dtype not in PRECISIONS or x.dim() not in (2, 3) or layer.node_dim not in (0, -x.dim()):
        return NOTHING
    sizes = _sizes(layer, state, edges, size, given)
    precision, cast = precision_of(state.settings.precision, x)
    weight = None if found.weight is None else given[found.weight]
    if weight is not None:
        if weight.dtype not in PRECISIONS:
            return NOTHING
        weight = weight.flatten(1) if found.by_head else weight.flatten()
        if cast is None and weight.dtype != x.dtype and not _under_autocast(x):
            x = x.to(torch.promote_types(x.dtype, weight.dtype))
    x = x if cast is None else x.to(cast)
    return compiled.aggregate(x, edges, weight, sizes, reduce, precision.value)
