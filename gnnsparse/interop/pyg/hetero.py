"""PyG's `HeteroConv` and the layers of `to_hetero` models, with relations joined in products.

A `to_hetero` model has a dictionary of copies of each layer, which its graph (torch.fx) calls one by one and
adds up. Accelerated, the graph calls the dictionary once, with the arguments of all copies.
"""

from __future__ import annotations

import math
import operator
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.fx import Graph, GraphModule, Node
from torch.nn.parameter import UninitializedParameter
from torch_geometric.nn import MessagePassing, conv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.nn.conv.hetero_conv import group
from torch_geometric.nn.dense import Linear

from gnnsparse.interop.models import FallbackError, precision_of
from gnnsparse.interop.pyg.aggregate import LayerState, reduction_of, steps_of, unsuitable, watched
from gnnsparse.interop.pyg.attention import FUSED, unsuitable_whole, with_targets
from gnnsparse.interop.pyg.functions import MEMOISED
from gnnsparse.interop.pyg.graphs import Settings, is_traced, memo
from gnnsparse.nn.adjacency import Recipe
from gnnsparse.nn.aggregation import product_first
from gnnsparse.nn.edges import EdgeRecipe, attend, side_by_side
from gnnsparse.nn.edges import joined as heads_joined
from gnnsparse.nn.inputs import is_plain_linear, is_watched
from gnnsparse.ops import spmm
from gnnsparse.ops.attention.edges import summed_from_coo
from gnnsparse.precision import PRECISIONS, Precision

#: A call of a layer: the layer, its arguments, and its named ones.
Call = tuple[Any, tuple[Any, ...], dict[str, Any]]


@dataclass(eq=False)
class _Term:
    """What the call of a relation's layer computes: then(A x left + bias + to right + added).

    A sums or averages over the edges, times `weight` if there is one. All but `x`, `to` and `edges` may be
    None; without `then` the layer is linear, and has `left`. Of a layer that `attends`, attention stands for
    A x left, and there may be so many self-`loops`.
    """

    layer: Any
    x: torch.Tensor
    to: torch.Tensor
    edges: torch.Tensor
    weight: torch.Tensor | None = None
    left: torch.Tensor | None = None
    bias: torch.Tensor | None = None
    right: torch.Tensor | None = None
    added: torch.Tensor | None = None
    then: Callable[[torch.Tensor], torch.Tensor] | None = None
    attends: type | None = None  # PyG's class
    loops: int = 0
    group: int = 0  # of the relations that are added up
    maps_first: bool = False  # whether x left is multiplied, and not x

    @property
    def settings(self) -> Settings:
        settings: Settings = self.layer._gnnsparse.settings
        return settings

    @property
    def width(self) -> int:
        """The number of features in the product."""
        return self.left.shape[0] if self.maps_first and self.left is not None else self.x.shape[1]

    @property
    def form(self) -> Any:
        """What is equal of all layers of a product, or of an attention."""
        layer, form = self.layer, (self.x.dtype, self.x.device, self.settings)
        if self.attends is None:
            return self.width, *form
        slope = getattr(layer, "negative_slope", 0.0)
        how = self.attends, layer.heads, layer.out_channels, layer.concat, slope, self.dropout
        return *how, *form

    @property
    def dropout(self) -> float:
        """The fraction of attention that is dropped now."""
        return float(self.layer.dropout) if self.layer.training else 0.0

    def out(self, sums: torch.Tensor) -> torch.Tensor:
        """Return the output of the layer for A x."""
        y = sums if self.left is None else F.linear(sums, self.left, self.bias)
        y = y if self.right is None else y + F.linear(self.to, self.right)
        y = y if self.added is None else y + self.added
        return y if self.then is None else self.then(y)


def _pair(x: Any, size: Any = None) -> tuple[Any, Any]:
    """Return the features of sources and of targets of a layer's call."""
    pair = tuple(x) if isinstance(x, (tuple, list)) else (x, x)
    if len(pair) != 2 or not all(isinstance(t, torch.Tensor) and t.dim() == 2 for t in pair):
        raise FallbackError("features of sources or of targets that are no matrix")
    if size is not None:
        raise FallbackError("sizes are given")
    return pair


def _sage(layer: Any, x: Any, edge_index: Any, size: Any = None) -> _Term:
    if layer.project:
        raise FallbackError("it maps features before it multiplies them (project=True)")
    right = layer.lin_r.weight if layer.root_weight else None
    then = (lambda y: F.normalize(y, p=2.0, dim=-1)) if layer.normalize else None
    left = layer.lin_l
    return _Term(layer, *_pair(x, size), edge_index, None, left.weight, left.bias, right, then=then)


def _graph(layer: Any, x: Any, edge_index: Any, edge_weight: Any = None, size: Any = None) -> _Term:
    left, right = layer.lin_rel, layer.lin_root.weight
    return _Term(layer, *_pair(x, size), edge_index, edge_weight, left.weight, left.bias, right)


def _gin(layer: Any, x: Any, edge_index: Any, size: Any = None) -> _Term:
    sources, targets = _pair(x, size)
    return _Term(layer, sources, targets, edge_index, then=lambda y: layer.nn(y + (1 + layer.eps) * targets))


def _gcn(layer: Any, x: Any, edge_index: Any, edge_weight: Any = None) -> _Term:
    if not isinstance(x, torch.Tensor) or x.dim() != 2:
        raise FallbackError("features of sources or of targets that are no matrix")
    if layer.cached or (edge_weight is not None and edge_weight.requires_grad):
        raise FallbackError("its edges are cached, or their weights need a gradient")
    _check_edges(edge_index)
    if layer.normalize:
        norm = layer.improved, layer.add_self_loops, layer.flow, x.dtype
        edge_index, edge_weight = MEMOISED[gcn_norm](edge_index, edge_weight, x.shape[0], *norm)
    return _Term(layer, x, x, edge_index, edge_weight, layer.lin.weight, added=layer.bias)


def _gat(
    layer: Any, x: Any, edge_index: Any, edge_attr: Any = None, size: Any = None,
    return_attention_weights: Any = None,
) -> _Term:  # fmt: skip
    pair = _pair(x, size)
    if edge_attr is not None or return_attention_weights is not None:
        raise FallbackError("edges have features, or weights are returned")
    loops = min(map(len, pair)) if layer.add_self_loops else 0
    right = None if layer.res is None else layer.res.weight
    return _Term(layer, *pair, edge_index, bias=layer.bias, right=right, attends=conv.GATConv, loops=loops)


def _transformer(
    layer: Any, x: Any, edge_index: Any, edge_attr: Any = None, return_attention_weights: Any = None
) -> _Term:
    if layer.lin_edge is not None or edge_attr is not None or return_attention_weights is not None:
        raise FallbackError("edges have features, or weights are returned")
    term = _Term(layer, *_pair(x), edge_index, attends=conv.TransformerConv)
    if layer.lin_beta is not None:
        term.then = lambda out: with_targets(layer, conv.TransformerConv, out, term.to)
    elif layer.root_weight:
        term.right, term.bias = layer.lin_skip.weight, layer.lin_skip.bias
    return term


#: The layers whose calls are read here.
_READERS: dict[type, Callable[..., _Term]] = {
    conv.SAGEConv: _sage,
    conv.GraphConv: _graph,
    conv.GINConv: _gin,
    conv.GCNConv: _gcn,
    conv.GATConv: _gat,
    conv.TransformerConv: _transformer,
}
_METHODS = {kind: {name for name in dir(kind) if callable(getattr(kind, name))} for kind in _READERS}


def _check_edges(edges: Any) -> None:
    if type(edges) is not torch.Tensor or edges.layout != torch.strided:
        raise FallbackError(f"the adjacency is a {type(edges).__name__}")
    if edges.dtype not in (torch.int64, torch.int32) or edges.dim() != 2 or edges.shape[0] != 2:
        raise FallbackError("the adjacency is no integer tensor [2, edges]")


def _kind_of(layer: Any) -> type:
    """Return the class in `_READERS` of an accelerated layer that nothing changed, or raise FallbackError."""
    kind = getattr(type(layer), "_gnnsparse_base", None)
    if kind not in _READERS or "_gnnsparse" not in layer.__dict__:
        raise FallbackError(f"{type(layer).__name__} is not joined")
    if is_watched(layer):
        raise FallbackError("it has hooks")
    if not layer.__dict__.keys().isdisjoint(_METHODS[kind]):
        raise FallbackError("a method was replaced in this layer")
    if "parametrizations" in layer._modules:
        raise FallbackError("its parameters are computed (torch.nn.utils.parametrize)")
    for name, linear in layer._modules.items():
        if linear is None or not name.startswith(("lin", "res")):
            continue
        if type(linear._parameters.get("weight")) is UninitializedParameter:
            raise FallbackError("its parameters have no sizes yet")
        if not is_plain_linear(linear, Linear):
            raise FallbackError(f"its `{name}` is no plain linear layer, or has hooks")
    why = unsuitable_whole(layer, kind) if kind in FUSED else unsuitable(layer, steps_of(kind))
    if why is None and reduction_of(layer.aggr_module) not in ("sum", "mean"):
        why = f"its aggregation is {layer.aggr_module}"
    if why is not None:
        raise FallbackError(why)
    return kind


def _read(call: Call) -> _Term:
    """Return what the call of a relation's layer computes, or raise FallbackError."""
    layer, arguments, options = call
    kind = _kind_of(layer)
    try:
        term = _READERS[kind](layer, *arguments, **options)
    except TypeError as problem:  # arguments that the layer does not have
        raise FallbackError(str(problem)) from None
    _check_edges(term.edges)
    if (why := watched(layer, term.edges)) is not None:
        raise FallbackError(why)
    x, weight = term.x, term.weight
    if x.dtype not in PRECISIONS or x.device != term.edges.device:
        raise FallbackError(f"features of dtype {x.dtype}, or on another device")
    if weight is not None:
        is_cast = torch.is_autocast_enabled(x.device.type) and weight.dtype in PRECISIONS
        if weight.numel() != term.edges.shape[1] or not (is_cast or weight.dtype == x.dtype):
            raise FallbackError(f"weights of dtype {weight.dtype}, or of another size")
    for matrix, features in (term.left, x), (term.right, term.to):
        if matrix is not None and matrix.shape[1] != features.shape[1]:
            raise FallbackError("features of sizes that PyG refuses")
    if term.left is not None and term.then is None:
        term.maps_first = not product_first(x, term.left, weight)
    return term


@dataclass(frozen=True)
class _Place:
    """Where the rows and columns of a relation's edges are in the matrix of all: start + step * number."""

    sources: int
    targets: int
    column: int
    column_step: int
    row: int
    row_step: int
    loops: int = 0  # so many self-loops take the place of those that there are


@dataclass(frozen=True)
class _Joining:
    """Joins the edges of relations, each at its place; one that is equal has made the same of them."""

    places: tuple[_Place, ...]

    def __call__(self, *edges: torch.Tensor) -> torch.Tensor:
        ends = []
        for place, given in zip(self.places, edges, strict=True):
            given = given.long()
            for row, count in zip(given, (place.sources, place.targets), strict=True):
                low, high = (int(end) for end in row.aminmax()) if len(row) > 0 else (0, -1)
                if low < 0 or high >= count:  # it would be a node of another relation
                    raise FallbackError("edges of nodes that have no features")
            if place.loops:
                loops = torch.arange(place.loops, dtype=torch.int64, device=given.device)
                given = torch.cat([given[:, given[0] != given[1]], loops.expand(2, -1)], dim=1)
            columns, rows = given[0] * place.column_step, given[1] * place.row_step
            ends.append(torch.stack([columns + place.column, rows + place.row]))
        return torch.cat(ends, dim=1)


@dataclass(frozen=True)
class _Weights:
    """Joins the weights of edges of relations, so many each; `given` says which have some."""

    counts: tuple[int, ...]
    given: tuple[bool, ...]

    def __call__(self, edges: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        left = iter(weights)
        return torch.cat(
            [
                next(left).flatten().float()
                if has_some
                else torch.ones(count, dtype=torch.float32, device=edges.device)
                for count, has_some in zip(self.counts, self.given, strict=True)
            ]
        )


@dataclass(frozen=True)
class _JoinedRecipe(Recipe):
    """How the operand of joined edges is made, so many of each relation, some of which are averaged."""

    counts: tuple[int, ...]
    means: tuple[bool, ...]
    precision: Precision
    preparation: Any = None

    def make(self, edge_index: torch.Tensor, size: tuple[int, int], weighted: bool) -> Any:
        """See Recipe."""
        share = None
        if any(self.means):
            share = torch.ones(edge_index.shape[1], dtype=torch.float32, device=edge_index.device)
            parts = zip(self.means, edge_index[1].split(self.counts), share.split(self.counts), strict=True)
            for is_mean, targets, part in parts:
                if is_mean:
                    part.copy_(torch.bincount(targets)[targets].float().reciprocal())
        operand = self.prepare(edge_index, size, None if weighted else share)

        def values(weight: torch.Tensor | None) -> torch.Tensor | None:
            if weight is None:
                return None
            return summed_from_coo(weight if share is None else weight * share, operand)

        return SimpleNamespace(operand=operand, values=values)


def _joined(terms: list[_Term], places: Iterable[_Place]) -> torch.Tensor:
    """Return the edges of relations as one tensor, or raise FallbackError."""
    edges = [term.edges for term in terms]
    joined: torch.Tensor = memo.graph(edges[0]).result(_Joining(tuple(places)), *edges, waits=True)
    if joined.shape[1] == 0:
        raise FallbackError("there are no edges")
    if terms[0].settings.convert == "auto":
        memo.check(joined)
    return joined


class _Product:
    """The product of some relations: blocks of its columns and of its rows, and the operand.

    Sources whose features are mapped first have a column for each of their relations, side by side, so that
    one dense product maps them for all; other sources have one column for all. Of relations that are added
    up, those whose features are mapped first share a row for each target, and the others have rows side by
    side, so that one dense product maps and adds them. Layers that are not linear have rows of their own.
    """

    def __init__(self, terms: list[_Term]) -> None:
        self.terms = terms
        self.columns: dict[Any, list[_Term]] = {}
        self.rows: dict[Any, list[_Term]] = {}
        for term in terms:
            self.columns.setdefault((id(term.x), term.maps_first), []).append(term)
            own = None if term.then is None else id(term)
            self.rows.setdefault((term.group, term.maps_first, own), []).append(term)
        columns, self.column_count = _starts(
            self.columns.values(), lambda t: len(t.x), lambda t: t.maps_first
        )
        rows, self.row_count = _starts(self.rows.values(), lambda t: len(t.to), lambda t: not t.maps_first)
        places = (_Place(len(t.x), len(t.to), *columns[id(t)], *rows[id(t)]) for t in terms)
        self._find(_joined(terms, places))

    def _find(self, joined: torch.Tensor) -> None:
        """Find the operand and the edge values, or raise FallbackError."""
        first = self.terms[0]
        self.precision, self.cast = precision_of(first.settings.precision, first.x)
        counts = tuple(term.edges.shape[1] for term in self.terms)
        weights = [term.weight for term in self.terms]
        means = tuple(reduction_of(term.layer.aggr_module) == "mean" for term in self.terms)
        recipe, weight, graph = _JoinedRecipe(counts, means, self.precision), None, memo.graph(joined)
        if some := [w for w in weights if w is not None]:
            joining = _Weights(counts, tuple(w is not None for w in weights))
            needs_grad = torch.is_grad_enabled() and any(w.requires_grad for w in some)
            weight = joining(joined, *some) if needs_grad else graph.result(joining, joined, *some)
        size = self.column_count, self.row_count
        made = graph.adjacency(joined, recipe, size, weight is not None, first.width, first.settings)
        self.operand, self.values = made.adjacency.operand, made.values(weight)

    def run(self, sums: dict[int, list[torch.Tensor]]) -> None:
        """Add what the layers of each group give to the lists of `sums`."""
        blocks = []
        for (_, maps_first), terms in self.columns.items():
            x = terms[0].x if self.cast is None else terms[0].x.to(self.cast)
            blocks.append(
                F.linear(x, _cat(t.left for t in terms)).view(-1, terms[0].width) if maps_first else x
            )
        out = spmm(self.operand, _cat(blocks), self.values)
        sizes = [len(terms[0].to) * (1 if key[1] else len(terms)) for key, terms in self.rows.items()]
        for ((number, maps_first, own), terms), rows in zip(self.rows.items(), out.split(sizes), strict=True):
            if own is not None:
                sums[number].append(terms[0].out(rows))
            elif maps_first:
                sums[number].append(rows)
            else:
                both = rows.view(-1, len(terms) * rows.shape[1])
                sums[number].append(F.linear(both, _cat((t.left for t in terms), dim=1)))
        _add_roots([t for (_, _, own), terms in self.rows.items() if own is None for t in terms], sums)

    @property
    def note(self) -> str:
        """What the relations run on, for reports."""
        return f"spmm, {len(self.terms)} relations at once, {self.precision.value}"


class _Attention:
    """The attention of some relations, with columns and rows side by side for one dense product of each type.

    The maps of GATConv are multiplied by its vectors first, so that targets are not mapped for scores alone.
    """

    def __init__(self, terms: list[_Term]) -> None:
        self.terms, first = terms, terms[0]
        self.columns: dict[int, list[_Term]] = {}
        self.rows: dict[int, list[_Term]] = {}
        for term in terms:
            self.columns.setdefault(id(term.x), []).append(term)
            self.rows.setdefault(id(term.to), []).append(term)
        columns, column_count = _starts(self.columns.values(), lambda t: len(t.x), lambda _: True)
        rows, row_count = _starts(self.rows.values(), lambda t: len(t.to), lambda _: True)
        places = (_Place(len(t.x), len(t.to), *columns[id(t)], *rows[id(t)], t.loops) for t in terms)
        joined = _joined(terms, places)
        self.precision, _ = precision_of(first.settings.precision, first.x)
        self.heads = first.layer.heads, first.layer.out_channels
        how = EdgeRecipe(False, self.precision), (column_count, row_count), False, 3 * math.prod(self.heads)
        self.edges = memo.graph(joined).adjacency(joined, *how, first.settings).adjacency

    def run(self, sums: dict[int, list[torch.Tensor]]) -> None:
        """Add what the layers of each group give to the lists of `sums`."""
        first = self.terms[0]
        project, score = (self._additive, "additive") if first.attends is conv.GATConv else (self._dot, "dot")
        slope = getattr(first.layer, "negative_slope", 0.0)
        q, k, v = project()
        out, _ = attend(
            self.edges, q, k, v, None, False, score=score, negative_slope=slope, dropout_p=first.dropout
        )
        counts = [len(terms) * len(terms[0].to) for terms in self.rows.values()]
        for terms, block in zip(self.rows.values(), out.split(counts), strict=True):
            parts = block.unflatten(0, (-1, len(terms)))
            groups: dict[int, list[int]] = {}
            for i, term in enumerate(terms):
                if term.then is None:
                    groups.setdefault(term.group, []).append(i)
                else:
                    sums[term.group].append(term.then(parts[:, i]))
            for number, places in groups.items():
                found = (parts if len(places) == len(terms) else parts[:, places]).sum(1)
                sums[number].append(heads_joined(found, first.layer.concat))
        _add_roots([term for term in self.terms if term.then is None], sums)

    def _dot(self) -> tuple[torch.Tensor, ...]:
        """Return q, k and v of TransformerConv."""
        mapped = []
        for terms in self.columns.values():
            maps = [m for t in terms for m in (t.layer.lin_key, t.layer.lin_value)]
            mapped.append(F.linear(terms[0].x, *side_by_side(maps)).view(-1, 2, *self.heads))
        q = [F.linear(t[0].to, *side_by_side([u.layer.lin_query for u in t])) for t in self.rows.values()]
        k, v = _cat(mapped).unbind(1)
        return _cat([part.view(-1, *self.heads) for part in q]), k, v

    def _additive(self) -> tuple[torch.Tensor, ...]:
        """Return what targets and sources give to scores of GATConv, and v."""
        q, k, v = [], [], []
        for terms in self.columns.values():
            x, weights = terms[0].x, [_map_of(t.layer, "lin_src") for t in terms]
            v.append(F.linear(x, _cat(weights)).view(-1, *self.heads))
            k.append(_scores(x, weights, [t.layer.att_src for t in terms]))
        for terms in self.rows.values():
            weights = [_map_of(t.layer, "lin_dst") for t in terms]
            q.append(_scores(terms[0].to, weights, [t.layer.att_dst for t in terms]))
        return _cat(q), _cat(k), _cat(v)

    @property
    def note(self) -> str:
        """What the relations run on, for reports."""
        return f"graph_attention, {len(self.terms)} relations at once, {self.precision.value}"


def _map_of(layer: Any, name: str) -> torch.Tensor:
    """Return the weight of a linear map of GATConv, which may have one for sources and targets."""
    linear: Any = getattr(layer, name) if layer.lin is None else layer.lin
    weight: torch.Tensor = linear.weight
    return weight


def _scores(x: torch.Tensor, weights: list[torch.Tensor], vectors: list[torch.Tensor]) -> torch.Tensor:
    """Return vector . (weight x) of each head, [nodes * relations, heads], whatever autocast says."""
    with torch.autocast(x.device.type, enabled=False):
        pairs = zip(weights, vectors, strict=True)
        rows = [(w.unflatten(0, (v.shape[1], -1)) * v[0, :, :, None]).sum(1) for w, v in pairs]
        dtype = torch.promote_types(x.dtype, rows[0].dtype)
        return F.linear(x.to(dtype), _cat(rows).to(dtype)).view(-1, vectors[0].shape[1])


def _add_roots(terms: list[_Term], sums: dict[int, list[torch.Tensor]]) -> None:
    """Add to each group what its layers add to the sums over edges, with one dense product for targets."""
    groups: dict[tuple[int, int], list[_Term]] = {}
    for term in terms:
        groups.setdefault((term.group, id(term.to)), []).append(term)
    for (number, _), members in groups.items():
        roots = [term.right for term in members if term.right is not None]
        biases = [term.bias for term in members if term.bias is not None]
        bias = _total(biases) if biases else None
        if roots:
            sums[number].append(F.linear(members[0].to, _total(roots), bias))
        elif bias is not None:
            sums[number].append(bias.to(sums[number][0].dtype))
        sums[number] += [term.added for term in members if term.added is not None]


def _starts(
    blocks: Iterable[list[_Term]], length: Callable[[_Term], int], is_apart: Callable[[_Term], bool]
) -> tuple[dict[int, tuple[int, int]], int]:
    """Return start and step of the places of each term in its block, and how many places there are.

    The terms of a block have places side by side if they are apart, and else share them.
    """
    found, start = {}, 0
    for terms in blocks:
        step = len(terms) if is_apart(terms[0]) else 1
        for i, term in enumerate(terms):
            found[id(term)] = start + (i if step > 1 else 0), step
        start += step * length(terms[0])
    return found, start


def _cat(tensors: Iterable[Any], dim: int = 0) -> torch.Tensor:
    first, *others = tensors
    return torch.cat([first, *others], dim) if others else first


def _total(parts: Sequence[torch.Tensor], divisor: int = 1) -> torch.Tensor:
    """Return the sum of tensors, added in pairs in the order in which `to_hetero` adds, and divided."""
    queue = deque(parts)
    while len(queue) > 1:
        queue.append(torch.add(queue.popleft(), queue.popleft()))
    return queue[0] if divisor == 1 else torch.div(queue[0], divisor)


def _products(
    calls: list[Call], groups: list[tuple[list[int], bool]], names: Sequence[str]
) -> tuple[list[_Product | _Attention], dict[int, str]]:
    """Return how relations are joined, and why others are not, by their places in `calls`."""
    reasons: dict[int, str] = {}
    alike: dict[Any, dict[int, _Term]] = {}
    for number, (members, _) in enumerate(groups):
        for i in members:
            try:
                term = _read(calls[i])
            except FallbackError as reason:
                reasons[i] = str(reason)
                continue
            term.group = number
            alike.setdefault(term.form, {})[i] = term
    products: list[_Product | _Attention] = []
    for terms in alike.values():
        try:
            if len(terms) < 2:
                raise FallbackError("no other relation is like it")
            make = _Product if next(iter(terms.values())).attends is None else _Attention
            products.append(make(list(terms.values())))
        except (FallbackError, TypeError, ValueError) as reason:
            reasons.update(dict.fromkeys(terms, str(reason)))
    return products, reasons


def _listed(reasons: dict[int, str], names: Sequence[str]) -> str:
    """Return why relations are not joined, with the names of those that a reason is of."""
    found: dict[str, list[str]] = {}
    for i in sorted(reasons):
        found.setdefault(reasons[i], []).append(names[i])
    return "; ".join(f"{', '.join(of)}: {why}" for why, of in found.items())


def run_joined(
    state: LayerState, calls: list[Call], groups: list[tuple[list[int], bool]], names: Sequence[str]
) -> list[torch.Tensor] | None:
    """Compute sums of layers' outputs, with as many relations as possible in one product.

    Args:
        state: that of the module that holds the layers.
        calls: the calls of layers.
        groups: for each sum the places of its calls, and whether it is divided by their number.
        names: what reports call the relations.

    Returns:
        The sums; None: no relations are joined, and nothing was computed.
    """
    if is_traced():
        return None
    products, reasons = _products(calls, groups, names)
    alone = _listed(reasons, names)
    if not products:
        state.fall_back(FallbackError(f"relation by relation: {alone}"))
        return None
    sums: dict[int, list[torch.Tensor]] = {number: [] for number in range(len(groups))}
    for product in products:
        product.run(sums)
        for term in product.terms:
            term.layer._gnnsparse.note(product.note)
    for number, (members, _) in enumerate(groups):
        sums[number] += [calls[i][0](*calls[i][1], **calls[i][2]) for i in members if i in reasons]
    note = " and ".join(product.note for product in products)
    state.note(f"{note}; by themselves {alone}" if alone else note)
    return [_total(sums[n], len(members) if is_mean else 1) for n, (members, is_mean) in enumerate(groups)]


class HeteroConv(conv.HeteroConv):
    """PyG's layer, which it stands for, with relations joined in products."""

    def forward(self, *args_dict: Any, **kwargs_dict: Any) -> Any:
        """See PyG's layer, whose code finds the arguments of each relation."""
        relations: list[Any] = []
        calls: list[Call] = []

        def record(relation: Any, layer: Any) -> Callable[..., torch.Tensor]:
            def call(*arguments: Any, **options: Any) -> torch.Tensor:
                relations.append(relation)
                calls.append((layer, arguments, options))
                return torch.empty(0, dtype=torch.float32, device="cpu")

            return call

        if torch.compiler.is_compiling():
            return super().forward(*args_dict, **kwargs_dict)
        recorders = {relation: record(relation, layer) for relation, layer in self.convs.items()}
        stand_in: Any = SimpleNamespace(convs=recorders, aggr=None)
        kinds = list(conv.HeteroConv.forward(stand_in, *args_dict, **kwargs_dict))
        of_kinds = [[i for i, relation in enumerate(relations) if relation[-1] == kind] for kind in kinds]
        adds = self.aggr in ("sum", "mean")
        groups = of_kinds if adds else [[i] for places in of_kinds for i in places]
        names = ["__".join(relation) for relation in relations]
        found = run_joined(self._gnnsparse, calls, [(g, self.aggr == "mean") for g in groups], names)
        if found is None:
            return super().forward(*args_dict, **kwargs_dict)
        if adds:
            return dict(zip(kinds, found, strict=True))
        outs = iter(found)
        return {
            kind: group([next(outs) for _ in places], self.aggr)
            for kind, places in zip(kinds, of_kinds, strict=True)
        }


class Relations(torch.nn.Module):
    """The layers of the relations of a `to_hetero` model, which its graph calls at once.

    It was a dictionary of them, of the class `was`. `keys` are their names in the order of their calls, and
    `groups` are those of `run_joined`.
    """

    was: type[torch.nn.Module]
    keys: list[str]
    groups: list[tuple[list[int], bool]]
    _gnnsparse: LayerState

    def forward(self, given: Sequence[tuple[Any, Any]]) -> list[torch.Tensor]:
        """Compute the sums of groups of the arguments, and the named arguments, of each layer."""
        calls: list[Call] = [
            (self._modules[key], tuple(arguments), dict(options))
            for key, (arguments, options) in zip(self.keys, given, strict=True)
        ]
        if not torch.compiler.is_compiling():
            found = run_joined(self._gnnsparse, calls, self.groups, self.keys)
            if found is not None:
                return found
        outs = [layer(*arguments, **options) for layer, arguments, options in calls]
        return [
            _total([outs[i] for i in members], len(members) if is_mean else 1)
            for members, is_mean in self.groups
        ]


def _kinds(holder: Any) -> list[type]:
    """Return the classes of the layers in a dictionary that can be joined."""
    kinds = (getattr(type(layer), "_gnnsparse_base", None) for layer in holder.children())
    return [kind for kind in kinds if kind in _READERS]


def expected(module: Any) -> str:
    """Return what the layers of a HeteroConv or of Relations will run on."""
    kinds = _kinds(module.convs if isinstance(module, HeteroConv) else module)
    return "graph_attention" if all(kind in FUSED for kind in kinds) else "spmm"


def join(module: torch.nn.Module, settings: Settings) -> None:
    """Make a HeteroConv, or the graph of a `to_hetero` model, join relations of its accelerated layers."""
    if type(module) is conv.HeteroConv and len(_kinds(module.convs)) > 1:
        module.__class__ = HeteroConv
        module.__dict__["_gnnsparse"] = LayerState(settings, ())
    elif isinstance(module, GraphModule):
        holders: dict[str, list[Node]] = {}
        for node in module.graph.nodes:
            if node.op == "call_module" and isinstance(module.get_submodule(node.target), MessagePassing):
                holders.setdefault(node.target.rpartition(".")[0], []).append(node)
        for name, nodes in holders.items():
            holder = module.get_submodule(name)
            if type(holder) in (torch.nn.ModuleDict, torch.nn.Module) and len(_kinds(holder)) > 1:
                _join_calls(module.graph, holder, name, nodes, settings)
        module.recompile()


def _join_calls(
    graph: Graph, holder: torch.nn.Module, name: str, calls: list[Node], settings: Settings
) -> None:
    """Replace the calls of the layers of a holder, and their sums, by a call of the holder."""
    places = {node: i for i, node in enumerate(graph.nodes)}
    users = [user for node in calls for user in node.users]
    if len({node.target for node in calls}) < len(calls) or not users:
        return
    first = min(users, key=places.__getitem__)
    if max(places[needed] for node in calls for needed in node.all_input_nodes) >= places[first]:
        return
    sums = _sums(graph, calls)
    with graph.inserting_before(first):
        joint = graph.call_module(name, ([(node.args, node.kwargs) for node in calls],))
        for i, root in enumerate(sums):
            root.replace_all_uses_with(graph.call_function(operator.getitem, (joint, i)))
    inner = set(sums) | {node for leaves, inside, _ in sums.values() for node in [*leaves, *inside]}
    for node in sorted(inner, key=places.__getitem__, reverse=True):
        graph.erase_node(node)
    was, order = type(holder), {node: i for i, node in enumerate(calls)}
    holder.__class__ = Relations
    holder.__dict__.update(
        was=was,
        keys=[str(node.target).rpartition(".")[2] for node in calls],
        groups=[(sorted(order[leaf] for leaf in leaves), is_mean) for leaves, _, is_mean in sums.values()],
        _gnnsparse=LayerState(settings, ()),
    )


def _sums(graph: Graph, calls: list[Node]) -> dict[Node, tuple[list[Node], list[Node], bool]]:
    """Return the nodes that add up calls, or are calls: with these, the nodes between, and if it's a mean."""
    found: dict[Node, tuple[list[Node], list[Node], bool]] = {node: ([node], [], False) for node in calls}
    for node in graph.nodes:
        given = node.args
        if node.op != "call_function" or node.kwargs or len(given) != 2 or given[0] not in found:
            continue
        if any(isinstance(part, Node) and len(part.users) > 1 for part in given):
            continue
        if node.target is torch.add and given[1] in found and given[0] is not given[1]:
            (left, inner, is_mean), (right, others, divides) = found[given[0]], found[given[1]]
            if not (is_mean or divides):
                found[node] = [*left, *right], [*inner, *others, *given], False
                del found[given[0]], found[given[1]]
        elif node.target is torch.div and type(given[1]) is int and len(found[given[0]][0]) == given[1] > 1:
            leaves, inner, is_mean = found.pop(given[0])
            found[node] = leaves, [*inner, given[0]], True
    return found


def part(module: torch.nn.Module) -> None:
    """Undo `join`; other modules stay as they are."""
    if type(module) is HeteroConv:
        module.__class__ = conv.HeteroConv
        del module.__dict__["_gnnsparse"]
    elif isinstance(module, GraphModule):
        for node in list(module.graph.nodes):
            if node.op == "call_module" and type(holder := module.get_submodule(node.target)) is Relations:
                _part_calls(module.graph, node, holder)
        module.recompile()


def _part_calls(graph: Graph, joint: Node, holder: Relations) -> None:
    """Replace the call of a holder by those of its layers, which are added up as `to_hetero` adds."""
    with graph.inserting_before(joint):
        given: Any = joint.args[0]
        calls = [
            graph.call_module(f"{joint.target}.{key}", tuple(arguments), dict(options))
            for key, (arguments, options) in zip(holder.keys, given, strict=True)
        ]
        sums = []
        for members, is_mean in holder.groups:
            queue = deque(calls[i] for i in members)
            while len(queue) > 1:
                queue.append(graph.call_function(torch.add, (queue.popleft(), queue.popleft())))
            sums.append(graph.call_function(torch.div, (queue[0], len(members))) if is_mean else queue[0])
    for user in list(joint.users):
        user.replace_all_uses_with(sums[user.args[1]])  # type: ignore[index]
        graph.erase_node(user)
    graph.erase_node(joint)
    holder.__class__ = holder.was  # type: ignore[assignment]
    for name in ("was", "keys", "groups", "_gnnsparse"):
        del holder.__dict__[name]
