"""PyG's functions that layers call with edges: with cached results, or by operands.

Layers that are not `cached` normalise their edges in each call, and make a new edge_index by it. With cached
results all layers of a model share one edge_index, whose operand is then known. A layer that is given a
sparse matrix in place of an edge_index calls PyG's `spmm`: in accelerated layers that is `product` here.
Alone: it works with PyG's functions, whatever layers call them.
"""

from __future__ import annotations

import dis
import functools
import inspect
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch_geometric.utils as utils
from torch_geometric.nn.aggr import SumAggregation
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.nn.parameter_dict import ParameterDict
from torch_geometric.utils.hetero import construct_bipartite_edge_index

from gnnsparse.interop.models import FallbackError, precision_of
from gnnsparse.interop.pyg.graphs import Remembered, check_eager, is_traced, memo, parts_of
from gnnsparse.nn.adjacency import Preparation, Recipe
from gnnsparse.nn.aggregation import Aggregation
from gnnsparse.ops import spmm
from gnnsparse.precision import PRECISIONS, Precision
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import outside

_LAYOUTS = (torch.sparse_csr, torch.sparse_csc, torch.sparse_coo)
_REDUCTIONS = {"add": "sum", "sum": "sum", "mean": "mean"}
_calls = threading.local()


def is_sparse(edges: Any) -> bool:
    """Return whether an adjacency is a sparse tensor of torch."""
    return type(edges) is torch.Tensor and edges.layout in _LAYOUTS


@dataclass(frozen=True)
class _SparseRecipe(Recipe):
    """How the operand of a sparse matrix [targets, sources] is made; see Aggregation."""

    reduce: str
    precision: Precision
    preparation: Preparation | None = None

    def make(self, matrix: torch.Tensor, size: tuple[int, int], weighted: bool) -> Any:
        """Make the operand; nonzeros that are all 1 are not stored."""
        coo = matrix if matrix.layout == torch.sparse_coo else matrix.to_sparse_coo()
        coo = coo.coalesce()
        indices, values = coo.indices().flip(0), coo.values()
        is_weighted = not bool((values == 1).all())
        made = Aggregation(self.reduce, self.precision, self.preparation).make(indices, size, is_weighted)
        own = made.values(values) if is_weighted else None
        return SimpleNamespace(operand=made.operand, values=lambda weight: own)


@contextmanager
def multiplying(state: Any, matrix: torch.Tensor) -> Iterator[None]:
    """Make the products inside a `with` block those of a layer, which may not multiply its matrix at all."""
    before = getattr(_calls, "call", None)
    _calls.call = call = {"state": state, "products": 0}
    try:
        yield
    finally:
        _calls.call = before
    if call["products"] == 0:
        what = f"a tensor of layout {matrix.layout}, which it does not multiply"
        state.fall_back(FallbackError(f"the adjacency is {what}"))


def as_edges(matrix: torch.Tensor, given: dict[str, Any]) -> tuple[torch.Tensor, Any, dict[str, Any]]:
    """Return the edges, sizes and arguments of `propagate` by which PyG reads a matrix [targets, sources].

    Its values stand for weights, features and types of edges that are not given. The edges are cached.
    """
    check_eager()
    if matrix.requires_grad and torch.is_grad_enabled():
        raise FallbackError("the adjacency needs a gradient")
    if matrix.layout == torch.sparse_csc:  # which PyG refuses
        raise FallbackError("the adjacency is a tensor of layout torch.sparse_csc")
    values = matrix._values() if matrix.layout == torch.sparse_coo else matrix.values()
    of_edges = {
        "edge_weight": values,
        "edge_attr": None if values.dim() == 1 else values,
        "edge_type": values,
    }
    given = {**given, **{name: value for name, value in of_edges.items() if given.get(name) is None}}
    edges = memo.graph(matrix).result(_edges_of, matrix, waits=True)
    return edges, (matrix.shape[1], matrix.shape[0]), given


def _edges_of(matrix: torch.Tensor) -> torch.Tensor:
    if matrix.layout == torch.sparse_coo:  # PyG's function would mark it as coalesced, a change that is seen
        return matrix._indices().flip(0)
    return utils.to_edge_index(matrix.detach())[0].flip(0)


def product(src: Any, other: torch.Tensor, reduce: str = "sum") -> torch.Tensor:
    """Compute PyG's `spmm` of a sparse matrix [targets, sources]; unusual products are left to it."""
    call = getattr(_calls, "call", None)
    if call is None:
        return utils.spmm(src, other, reduce)
    call["products"] += 1
    state = call["state"]
    try:
        return _product(state, src, other, reduce)
    except FallbackError as reason:
        state.fall_back(reason)
        return utils.spmm(src, other, reduce)


def _check(src: Any, other: Any, reduce: str) -> None:
    if not is_sparse(src) or src.dim() != 2 or src.dense_dim() > 0:
        raise FallbackError(f"the adjacency is a {type(src).__name__}")
    if src.layout == torch.sparse_coo and not src.is_coalesced():
        raise FallbackError("the adjacency is not coalesced")
    if src.requires_grad and torch.is_grad_enabled():
        raise FallbackError("the adjacency needs a gradient")
    if reduce not in _REDUCTIONS:
        raise FallbackError(f"its reduction of an adjacency matrix is {reduce!r}")
    if not isinstance(other, torch.Tensor) or other.layout != torch.strided or other.dim() != 2:
        raise FallbackError("features that are no matrix")
    if other.dtype not in PRECISIONS or src.dtype not in PRECISIONS or src.shape[1] != other.shape[0]:
        raise FallbackError(f"features of dtype {other.dtype} and shape {tuple(other.shape)}")
    if src.dtype != other.dtype and not torch.is_autocast_enabled(other.device.type):
        raise FallbackError(f"an adjacency of dtype {src.dtype}")
    if src.device != other.device or src._nnz() == 0:
        raise FallbackError("an adjacency on another device or without edges")
    check_eager()


def _product(state: Any, src: Any, other: torch.Tensor, reduce: str) -> torch.Tensor:
    _check(src, other, reduce)
    if state.settings.convert == "auto":
        memo.check(src)
    precision, cast = precision_of(state.settings.precision, other)
    other = other if cast is None else other.to(cast)
    recipe, size = _SparseRecipe(_REDUCTIONS[reduce], precision), (src.shape[1], src.shape[0])
    cached = memo.graph(src).adjacency(src, recipe, size, False, other.shape[1], state.settings)
    state.note(f"spmm, {_REDUCTIONS[reduce]}, {precision.value}")
    return spmm(cached.adjacency.operand, other, cached.values(None))


#: Stands for the edge_index itself in a cached result.
_INPUT = object()


def _is_cached_safely(result: Any, edge_index: torch.Tensor) -> bool:
    """Return whether a result is not a view of the edge_index, which it would keep alive."""
    if not isinstance(result, torch.Tensor):
        return result is None
    given, own = (
        {part.untyped_storage().data_ptr() for part in parts_of(of) if part.numel() > 0}
        for of in (edge_index, result)
    )
    return given.isdisjoint(own)


def _tensors(values: Iterable[Any]) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


def _memoised(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function of an edge_index cache its results with the graph, unless a gradient passes through."""

    @functools.wraps(function)
    def call(edge_index: Any, *arguments: Any, **options: Any) -> Any:
        tensors = _tensors((*arguments, *options.values()))
        if not _is_memoised(edge_index, tensors):
            return function(edge_index, *arguments, **options)
        values = (id(v) if isinstance(v, torch.Tensor) else v for v in (*arguments, *options.values()))
        graph, key = memo.graph(edge_index), (function, *options, *values)
        known = graph.results.get(key)
        if known is not None and known.holds(*tensors, *_tensors(known.result)):
            return tuple(edge_index if r is _INPUT else r for r in known.result)
        if edge_index.is_cuda and path().is_capturing():
            return function(edge_index, *arguments, **options)
        with outside(), torch.no_grad():
            found = function(edge_index, *arguments, **options)
        if not isinstance(found, tuple):
            return found
        if function is gcn_norm:
            _note_gcn(edge_index, arguments, options, found)
        stored = tuple(_INPUT if r is edge_index else r for r in found)
        if all(r is _INPUT or _is_cached_safely(r, edge_index) for r in stored):
            graph.remember(key, stored, *tensors, *_tensors(stored))
        return found

    return call


def _is_memoised(edge_index: Any, tensors: list[torch.Tensor]) -> bool:
    if type(edge_index) is not torch.Tensor and not hasattr(edge_index, "_data"):
        return False
    if is_traced() or not (edge_index.layout == torch.strided or is_sparse(edge_index)):
        return False
    return not (torch.is_grad_enabled() and any(t.requires_grad for t in (edge_index, *tensors)))


def _note_gcn(edge_index: Any, arguments: Any, options: dict[str, Any], found: tuple[Any, ...]) -> None:
    """Note it with the edges if a result of gcn_norm is one that an operand can compute."""
    call = _GCN_NORM.bind(edge_index, *arguments, **options)
    call.apply_defaults()
    given, (edges, weight) = call.arguments, found
    is_usual = given["edge_weight"] is None and given["add_self_loops"] is True
    if is_usual and given["flow"] == "source_to_target" and isinstance(weight, torch.Tensor):
        memo.graph(edges).gcn = Remembered(given["num_nodes"], weight)


def _one_graph(
    edges: dict[Any, Any], sources: dict[Any, int], targets: dict[Any, int], edge_attr_dict: Any = None,
    num_nodes: int | None = None,
) -> Any:  # fmt: skip
    """PyG's construct_bipartite_edge_index, whose edge_index is cached with the edges of the first type."""
    parts = [edges[kind] for kind in sources]
    if (
        not parts
        or not all(_is_memoised(part, []) and type(part) is torch.Tensor for part in parts)
        or any(is_sparse(part) for part in parts)
    ):
        return construct_bipartite_edge_index(edges, sources, targets, edge_attr_dict, num_nodes)
    first, *others = parts
    graph, key = memo.graph(first), (_one_graph, *sources.items(), *targets.items(), *map(id, others))
    known = graph.results.get(key)
    if known is None or not known.holds(*others):
        with outside():
            found, _ = construct_bipartite_edge_index(edges, sources, targets, None, num_nodes)
        known = graph.remember(key, found, *others)
    if edge_attr_dict is None:
        return known.result, None
    names = ["__".join(kind) if isinstance(edge_attr_dict, ParameterDict) else kind for kind in sources]
    counts = [part.shape[1] for part in parts]
    rows = [edge_attr_dict[name].expand(count, -1) for name, count in zip(names, counts, strict=True)]
    return known.result, torch.cat(rows)


_GCN_NORM = inspect.signature(gcn_norm)
_LOOPS = utils.add_self_loops, utils.add_remaining_self_loops, utils.remove_self_loops
MEMOISED = {function: _memoised(function) for function in (gcn_norm, utils.get_laplacian, *_LOOPS)}
#: Functions of PyG, and what accelerated layers call in their place.
_INSTEAD = {**MEMOISED, utils.spmm: product, construct_bipartite_edge_index: _one_graph}


def rebound(base: type) -> dict[str, Callable[..., Any]]:
    """Return the methods of a class that normalise or multiply edges, made to call the functions here.

    PyG's modules stay as they are. While torch.jit or torch.compile traces, the methods themselves are
    called, but in compiled sums of weighted features gcn_norm is one whose results have fixed sizes.
    """
    found: dict[str, types.FunctionType] = {}
    for owner in base.__mro__:
        if not owner.__module__.startswith("torch.") and owner is not object:
            own = {name: m for name, m in vars(owner).items() if isinstance(m, types.FunctionType)}
            found = {**own, **found}
    found.pop("__init__", None)
    copies = {name: _copy(method) for name, method in found.items()}
    return {name: copy for name, copy in copies.items() if copy is not None}


def _copy(method: types.FunctionType) -> Callable[..., Any] | None:
    """Return a method that calls the functions in `_INSTEAD`; None if it would call none of them."""
    names = method.__globals__
    seen = {name: names[name] for name in _names_of(method.__code__) if name in names}
    used = {name: f for name, f in seen.items() if isinstance(f, types.FunctionType) and f in _INSTEAD}
    writes = any(i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for i in dis.get_instructions(method))
    if not used or writes:
        return None
    memoised = _with_globals(method, "memoised", {name: _INSTEAD[f] for name, f in used.items()})
    fixed = method
    # torch.compile does not see it if a module's names change after they were copied, which PyG's do not.
    if gcn_norm in used.values() and method.__module__.startswith("torch_geometric."):
        fixed = _with_globals(method, "fixed", {n: _fixed_gcn_norm for n, f in used.items() if f is gcn_norm})

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **options: Any) -> Any:
        if torch.compiler.is_compiling():
            sums = type(self.aggr_module) is SumAggregation and self._gnnsparse.is_weighted_only
            return (fixed if sums else method)(self, *arguments, **options)
        is_jit = torch._C._get_tracing_state() is not None
        if is_jit or any(names.get(name) is not value for name, value in seen.items()):
            return method(self, *arguments, **options)  # `memoised` has the old values
        return memoised(self, *arguments, **options)

    return call


def _names_of(code: types.CodeType) -> set[str]:
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return set(code.co_names).union(*map(_names_of, inner))


def _with_globals(method: Any, kind: str, other: dict[str, Any]) -> Any:
    """Return a copy of a method in a module of its own, a copy of its module with other values of names."""
    name = f"{__name__}.{kind}.{method.__module__}.{method.__qualname__}"
    module = types.ModuleType(name)
    vars(module).update({**method.__globals__, **other, "__name__": name})
    sys.modules[name] = module  # where torch.compile looks for a function's globals
    copy = types.FunctionType(
        method.__code__, vars(module), method.__name__, method.__defaults__, method.__closure__
    )
    copy.__kwdefaults__ = method.__kwdefaults__
    return copy


def _fixed_gcn_norm(
    edge_index: Any, edge_weight: Any = None, num_nodes: int | None = None, improved: bool = False,
    add_self_loops: bool = True, flow: str = "source_to_target", dtype: torch.dtype | None = None,
) -> Any:  # fmt: skip
    """PyG's gcn_norm with results of fixed sizes: self-loops stay, of weight 0, and one per node follows."""
    if type(edge_index) is not torch.Tensor or num_nodes is None or flow != "source_to_target":
        return gcn_norm(edge_index, edge_weight, num_nodes, improved, add_self_loops, flow, dtype)
    device, count = edge_index.device, edge_index.shape[1]
    has_weights = edge_weight is not None
    weight = edge_weight if has_weights else torch.ones(count, dtype=dtype or torch.float32, device=device)
    if add_self_loops:
        is_loop = edge_index[0] == edge_index[1]
        fill = 2.0 if improved and has_weights else 1.0
        of_loops = torch.full((num_nodes + 1,), fill, dtype=weight.dtype, device=device)
        if has_weights:  # the last element takes the weights of all other edges
            of_loops = of_loops.index_put((torch.where(is_loop, edge_index[0], num_nodes),), weight)
        nodes = torch.arange(num_nodes, dtype=edge_index.dtype, device=device)
        edge_index = torch.cat([edge_index, nodes.expand(2, -1)], dim=1)
        weight = torch.cat([torch.where(is_loop, 0.0, weight), of_loops[:num_nodes]])
    source, target = edge_index[0], edge_index[1]
    degree = torch.zeros(num_nodes, dtype=weight.dtype, device=device).index_add(0, target, weight)
    scale = degree.pow(-0.5)
    scale = scale.masked_fill(scale == float("inf"), 0.0)
    return edge_index, scale[source] * weight * scale[target]
