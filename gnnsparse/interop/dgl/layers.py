"""DGL's layers on the kernels of this package: what they compute, and models whose layers are exchanged.

The classes of layers are made of DGL's when they are first asked for, by `accelerate` or by a pickle of a
model, which finds them as attributes of this module. Alone for this reason.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch

from gnnsparse.interop.dgl.graphs import Structure, import_dgl, structure_of
from gnnsparse.interop.models import FallbackError, Model, ReportRow, Table, check_model, give_class_back, log
from gnnsparse.nn.aggregation import Aggregation, Neighbours
from gnnsparse.nn.edges import EdgeRecipe, Edges, attend
from gnnsparse.nn.inputs import is_watched
from gnnsparse.ops import spmm
from gnnsparse.precision import PRECISIONS, Precision
from gnnsparse.sparse.typed import is_dgl_graph

#: The package of DGL's layers.
_CONVS = "dgl.nn.pytorch.conv."
#: Where a layer on our kernels keeps its options, an attribute of the module that is no part of its state.
OPTIONS = "gnnsparse_options"


class Held:
    """What a layer holds between calls; its copies and pickles contain the precision alone."""

    def __init__(self, precision: Precision | None) -> None:
        self.precision = precision  # None: the dtype of the features decides
        #: The structure of the last call. It keeps those alive whose graph DGL makes anew in each call.
        self.structure: Structure | None = None
        #: Why DGL computed the last call; None: it did not.
        self.reason: str | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(Held(self.precision))

    def precision_for(self, x: torch.Tensor) -> Precision:
        """Return the precision of a product with features `x`."""
        kind = x.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype
        return PRECISIONS[dtype] if self.precision is None else self.precision


class _Call:
    """A layer's call whose arguments our kernels take; raises FallbackError for others.

    `sources` and `targets` are the features [nodes, features] of both, which the caller gave as a pair or as
    one tensor. A layer that does not need those of targets gets those of sources in their place.
    """

    def __init__(self, layer: torch.nn.Module, graph: Any, feat: Any, needs_targets: bool = True) -> None:
        if "parametrizations" in layer._modules:
            raise FallbackError("parameters that are computed (torch.nn.utils.parametrize)")
        if not is_dgl_graph(graph) or len(graph.canonical_etypes) != 1:
            raise FallbackError("a graph that has not one relation")
        self.is_pair = isinstance(feat, tuple)
        given: tuple[Any, ...] = feat if self.is_pair else (feat,)
        if self.is_pair and len(given) != 2:
            raise FallbackError("a tuple that is no pair of features")
        for x in given:
            if not isinstance(x, torch.Tensor) or x.layout != torch.strided or x.dtype not in PRECISIONS:
                raise FallbackError("features that are no float32, float16 or bfloat16 tensors")
            if x.dim() != 2 or x.device != graph.device:
                raise FallbackError("features that are not [nodes, features] on the device of the graph")
        self.held: Held = layer.__dict__[OPTIONS]
        self.held.structure = self.structure = structure_of(graph)
        self.sources = self.targets = given[0]
        self.count = self.structure.size[1]  # of targets
        counts = self.sources.shape[0], self.count
        if needs_targets:
            of_block = graph.is_block and not self.is_pair
            self.targets = self.sources[: self.count] if of_block else given[-1]
            counts = self.sources.shape[0], self.targets.shape[0]
        if counts != self.structure.size:
            raise FallbackError("features of another number of nodes than the graph has")

    def check_targets(self, layer: Any) -> None:
        """Leave a call to DGL whose graph it refuses, so that the error is its own."""
        if not layer._allow_zero_in_degree and self.structure.has_isolated_targets:
            raise FallbackError("nodes without incoming edges, which the layer does not allow")

    def neighbours(self, reduce: str, edge_weight: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return a function of features [sources, n] that takes a "sum", "mean" or "max" for each target."""
        weights = None if edge_weight is None else self._weights(edge_weight)
        recipe = Aggregation(reduce, self.held.precision_for(self.sources))
        made: Neighbours = self.structure.adjacency(recipe, weights is not None)
        if reduce == "max" and weights is not None and made.operand.num_edges != made.operand.nnz:
            raise FallbackError("a maximum over repeated edges with weights")
        how = "max" if reduce == "max" else "sum"
        return lambda x: spmm(made.operand, x, made.values(weights), reduce=how)

    def _weights(self, edge_weight: Any) -> torch.Tensor:
        edges = self.structure.edge_index.shape[1]
        known = isinstance(edge_weight, torch.Tensor) and edge_weight.dtype in PRECISIONS
        if not known or edge_weight.device != self.sources.device:
            raise FallbackError("weights of edges that are no float tensor on the device of the features")
        if edge_weight.shape not in ((edges,), (edges, 1)):
            raise FallbackError("weights of edges that are not one number for each")
        return edge_weight.reshape(edges)

    def edges(self, x: torch.Tensor) -> Edges:
        """Return the pattern of attention to features of the dtype of `x`."""
        return self.structure.adjacency(EdgeRecipe(False, self.held.precision_for(x)))


def _graph_conv(
    layer: Any, graph: Any, feat: Any, weight: Any = None, edge_weight: Any = None
) -> torch.Tensor:
    call = _Call(layer, graph, feat, needs_targets=False)
    call.check_targets(layer)
    if weight is not None and layer.weight is not None:
        raise FallbackError("two weights")
    weight = layer.weight if weight is None else weight
    norm, x = layer._norm, call.sources
    neighbours = call.neighbours("mean" if norm == "right" else "sum", edge_weight)
    first = weight is not None and layer._in_feats > layer._out_feats
    if first:
        x = torch.matmul(x, weight)
    if norm in ("left", "both"):
        x = x * _power(call.structure.out_degrees, -0.5 if norm == "both" else -1.0, x)
    y = neighbours(x)
    if weight is not None and not first:
        y = torch.matmul(y, weight)
    if norm == "both":
        y = y * _power(call.structure.in_degrees, -0.5, y)
    if layer.bias is not None:
        y = y + layer.bias
    return y if layer._activation is None else layer._activation(y)


def _power(degrees: torch.Tensor, exponent: float, x: torch.Tensor) -> torch.Tensor:
    """Return powers of degrees as factors of the rows of x; a degree of 0 counts as 1."""
    return degrees.clamp(min=1).pow(exponent).to(x.dtype)[:, None]


def _sage_conv(layer: Any, graph: Any, feat: Any, edge_weight: Any = None) -> torch.Tensor:
    call = _Call(layer, graph, feat)
    kind = layer._aggre_type
    if kind == "gcn" and call.is_pair and call.sources.shape[1] != call.targets.shape[1]:
        raise FallbackError("features of sources and of targets that differ in number")
    reduce = {"mean": "mean", "gcn": "sum", "pool": "max"}[kind]
    neighbours = call.neighbours(reduce, edge_weight)
    sources, targets = _dropped(layer, call)
    first = kind != "pool" and layer._in_src_feats > layer._out_feats
    if kind == "pool":
        found = neighbours(torch.relu(layer.fc_pool(sources)))
    else:
        x = layer.fc_neigh(sources) if first else sources
        found = neighbours(x)
        if kind == "gcn":
            own = x[: call.count] if not call.is_pair else layer.fc_neigh(targets) if first else targets
            found = (found + own) / (call.structure.in_degrees + 1).to(found.dtype)[:, None]
    if not first:
        found = layer.fc_neigh(found)
    if kind != "gcn":
        y = layer.fc_self(targets) + found
    else:
        y = found if layer.bias is None else found + layer.bias
    if layer.activation is not None:
        y = layer.activation(y)
    return y if layer.norm is None else layer.norm(y)


def _gin_conv(layer: Any, graph: Any, feat: Any, edge_weight: Any = None) -> torch.Tensor:
    call = _Call(layer, graph, feat)
    neighbours = call.neighbours(layer._aggregator_type, edge_weight)
    y = (1 + layer.eps) * call.targets + neighbours(call.sources)
    if layer.apply_func is not None:
        y = layer.apply_func(y)
    return y if layer.activation is None else layer.activation(y)


def _agnn_conv(layer: Any, graph: Any, feat: Any) -> torch.Tensor:
    call = _Call(layer, graph, feat)
    call.check_targets(layer)
    if call.sources.shape[1] != call.targets.shape[1]:
        raise FallbackError("features of sources and of targets that differ in number")
    edges = call.edges(call.sources)
    keys, queries = call.sources[:, None], call.targets[:, None]  # one head
    out, _ = attend(edges, queries, keys, keys, None, False, score="cosine", scale=layer.beta)
    return out[:, 0]


def _check_attention(call: _Call, layer: Any) -> None:
    call.check_targets(layer)
    for module, kind in ((layer.attn_drop, torch.nn.Dropout), (layer.leaky_relu, torch.nn.LeakyReLU)):
        if type(module) is not kind or is_watched(module):
            raise FallbackError(f"a {type(module).__name__} that is not torch's, or has hooks")
    if layer.training and layer.attn_drop.p >= 1:
        raise FallbackError("a dropout of all weights")


def _heads(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(1, (layer._num_heads, layer._out_feats))


def _dropped(layer: Any, call: _Call) -> tuple[torch.Tensor, torch.Tensor]:
    sources = layer.feat_drop(call.sources)
    return sources, layer.feat_drop(call.targets) if call.is_pair else sources[: call.count]


def _attended(
    layer: Any, call: _Call, targets: torch.Tensor, q: Any, k: Any, v: Any, want: bool, **options: Any
) -> Any:
    """Return the output [targets, heads, features] of a GAT, and if wanted its weights [edges, heads, 1]."""
    p, slope = layer.attn_drop.p if layer.training else 0.0, layer.leaky_relu.negative_slope
    y, weights = attend(call.edges(v), q, k, v, None, want, negative_slope=slope, dropout_p=p, **options)
    if layer.res_fc is not None:
        y = y + layer.res_fc(targets).view(targets.shape[0], -1, layer._out_feats)
    if getattr(layer, "has_explicit_bias", False):  # GATv2Conv has none, its `bias` is a flag
        y = y + layer.bias.view(1, layer._num_heads, layer._out_feats)
    y = layer.activation(y) if layer.activation else y
    return y if weights is None else (y, weights[:, :, None])


def _gat_conv(layer: Any, graph: Any, feat: Any, edge_weight: Any = None, get_attention: bool = False) -> Any:
    call = _Call(layer, graph, feat)
    _check_attention(call, layer)
    if edge_weight is not None:
        raise FallbackError("weights of edges, by which DGL multiplies the weights of attention")
    sources, targets = _dropped(layer, call)
    if call.is_pair:
        has_two = hasattr(layer, "fc_src")
        of_sources, of_targets = (layer.fc_src, layer.fc_dst) if has_two else (layer.fc, layer.fc)
        v, mapped = _heads(layer, of_sources(sources)), _heads(layer, of_targets(targets))
    else:
        v = _heads(layer, layer.fc(sources))
        mapped = v[: call.count]
    k = torch.einsum("nhd,hd->nh", v, layer.attn_l[0])
    q = torch.einsum("nhd,hd->nh", mapped, layer.attn_r[0])
    return _attended(layer, call, targets, q, k, v, get_attention, score="additive")


def _gatv2_conv(layer: Any, graph: Any, feat: Any, get_attention: bool = False) -> Any:
    call = _Call(layer, graph, feat)
    _check_attention(call, layer)
    sources, targets = _dropped(layer, call)
    k = _heads(layer, layer.fc_src(sources))
    shared = layer.share_weights and not call.is_pair
    q = k[: call.count] if shared else _heads(layer, layer.fc_dst(targets))
    return _attended(layer, call, targets, q, k, k, get_attention, score="gatv2", att=layer.attn[0])


#: The names of DGL's classes that have a counterpart: its forward, and the operation that it runs on.
LAYERS: dict[str, tuple[Callable[..., Any], str]] = {
    "GraphConv": (_graph_conv, "spmm"),
    "SAGEConv": (_sage_conv, "spmm"),
    "GINConv": (_gin_conv, "spmm"),
    "AGNNConv": (_agnn_conv, "graph_attention"),
    "GATConv": (_gat_conv, "graph_attention"),
    "GATv2Conv": (_gatv2_conv, "graph_attention"),
}


def _problem_of(layer: Any) -> str | None:
    """Return why a module is no layer of DGL that can run on our kernels; None: it is one."""
    kind = type(layer)
    base = next((base for base in kind.__mro__ if base.__module__.startswith(_CONVS)), None)
    if base is None:
        return "it is no layer of DGL"
    if base is not kind:
        return f"a subclass of DGL's {base.__name__}, whose forward may compute something else"
    if kind.__name__ not in LAYERS:
        return "gnnsparse has no counterpart of this class"
    if getattr(layer, "_aggre_type", None) == "lstm":
        return "aggregator_type='lstm' depends on the order of the edges"
    return None


@functools.cache
def accelerated_class(name: str) -> type:
    """Return the subclass of DGL's layer `name`, of the same name, whose forward runs on our kernels."""
    import_dgl()
    original: Any = getattr(importlib.import_module("dgl.nn.pytorch.conv"), name)
    forward, _ = LAYERS[name]

    @functools.wraps(original.forward)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        held = self.__dict__[OPTIONS]
        held.reason = None
        try:
            return forward(self, *arguments, **options)
        except FallbackError as why:
            held.reason = str(why)
        return original.forward(self, *arguments, **options)

    return type(name, (original,), {"forward": call, "__module__": __name__, "__doc__": original.__doc__})


def __getattr__(name: str) -> Any:
    if name in LAYERS:
        return accelerated_class(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class Report(Table):
    """The layers of a model that are DGL's or made of them, as a table when it is printed.

    Attributes:
        rows: one for each layer, in the order of the model.
        accelerated: those that run on our kernels.
    """

    accelerated = Table.replaced

    def _last_cell(self, row: ReportRow) -> str:
        if row.uses is None:
            return f"DGL: {row.reason}"
        return f"gnnsparse.{row.uses}" + (f", DGL in the last call: {row.reason}" if row.reason else "")


def accelerate(model: Model, *, precision: Precision | str | None = None) -> Model:
    """Put the layers of a DGL model on our kernels. Inputs, parameters, `state_dict` and repr stay.

    The layers are GraphConv, SAGEConv (mean, gcn and pool), GINConv, AGNNConv, GATConv and GATv2Conv of
    `dgl.nn.pytorch`. Each module gets another class, a subclass of its own, whose forward takes what DGL's
    takes: graphs with one relation, blocks, features of nodes or a pair of them, weights of edges,
    `get_attention`. What a graph is converted to is kept with the graph and shared by all layers; a layer
    keeps that of its last call. A graph's edges are taken as DGL holds them: to change them, use DGL's
    functions.

    What our kernels do not take is left to DGL's own forward: features with more than two dimensions, of
    float64, or on another device; edge weights that are more than a number for each edge, and edge weights of
    GATConv; and graphs with nodes without incoming edges where the layer refuses them, so that the error is
    DGL's. Subclasses of DGL's layers and other layers of DGL stay as they are. `report` says which, and why;
    it is also logged, as "gnnsparse.interop" at level INFO.

    Dropout of attention weights draws other random numbers than DGL, and drops repeats of an edge together.

    Args:
        model: the model, which is changed; a layer that is accelerated already gets the precision.
        precision: precision of the products, see gnnsparse.Precision; None: that of the dtype of the
            features, or where torch.autocast is active of its dtype.

    Returns:
        The model.

    Raises:
        TypeError: `model` is no module, or `precision` is of another type.
        ValueError: the precision is unknown.
    """
    check_model(model)
    chosen = None if precision is None else Precision.parse(precision)
    for module in model.modules():
        if OPTIONS in module.__dict__:
            module.__dict__[OPTIONS] = Held(chosen)
        elif _problem_of(module) is None:
            module.__class__ = accelerated_class(type(module).__name__)
            module.__dict__[OPTIONS] = Held(chosen)
    log.info("%s", report(model))
    return model


def restore(model: Model) -> Model:
    """Give the layers of a model their own class back, and drop what they hold.

    Returns:
        The model, which is changed.

    Raises:
        TypeError: it is no module.
    """
    check_model(model)
    for module in model.modules():
        if module.__dict__.pop(OPTIONS, None) is not None:
            give_class_back(module, lambda kind: kind.__module__ == __name__)
    return model


def report(model: torch.nn.Module) -> Report:
    """Say for each of DGL's layers in a model what it runs on, and why it runs on DGL's kernels.

    Raises:
        TypeError: it is no module.
    """
    check_model(model)
    rows = []
    for name, module in model.named_modules():
        kind = type(module)
        bases = [base for base in kind.__mro__ if base.__module__.startswith(_CONVS)]
        if OPTIONS in module.__dict__:
            known = next(base.__name__ for base in bases if base.__name__ in LAYERS)
            rows.append(
                ReportRow(name, kind.__name__, LAYERS[known][1], module.__dict__[OPTIONS].reason or "")
            )
        elif bases:
            reason = _problem_of(module) or "the model has not been accelerated"
            rows.append(ReportRow(name, kind.__name__, None, reason))
    return Report(tuple(rows))
