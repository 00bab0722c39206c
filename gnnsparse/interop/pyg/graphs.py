"""What is cached of graphs: operands and normalised edges, for as long as the tensor with the edges lives."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from gnnsparse.interop.pyg.policy import Decision, Lifetimes, Settings, conversion_rates, decide
from gnnsparse.nn.adjacency import Adjacency, Preparation, Recipe
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import outside
from gnnsparse.runtime.hashing import digest, fingerprint
from gnnsparse.runtime.memo import ForkLock

__all__ = ["FallbackError", "Graph", "NotYetError", "cached_graphs", "memo"]

_Made = TypeVar("_Made", bound=Adjacency)
#: The most graphs, adjacencies of a graph, and adjacencies by content that are cached.
_MOST_GRAPHS, _MOST_ADJACENCIES, _MOST_CONTENTS = 4096, 8, 8


class FallbackError(Exception):
    """A call is left to PyG; the message says why."""


class NotYetError(FallbackError):
    """A call is left to PyG because a conversion of its graph would not pay so far."""


def raw(edges: Any) -> torch.Tensor:
    """Returns the tensor that has the memory of an edge_index; PyG's EdgeIndex wraps one."""
    inner = getattr(edges, "_data", None) if type(edges) is not torch.Tensor else None
    return inner if isinstance(inner, torch.Tensor) else edges


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Returns the tensors with memory that a tensor is made of: itself, or those of a sparse one."""
    if tensor.layout == torch.sparse_csr:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout == torch.sparse_csc:
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    return (tensor,)


def stamp_of(tensor: torch.Tensor) -> Any:
    """Returns what changes when a tensor does, while it is the same object.

    It is the version, which torch counts up in changes in place, and what `set_` and `.data = ` change.
    Tensors that were made in inference mode have no version: there it is a hash of the content.
    """
    if tensor.is_inference():
        return tuple(digest(part) for part in parts_of(tensor))
    if tensor.layout != torch.strided:
        return tensor._version, tensor.shape, *(part.data_ptr() for part in parts_of(tensor))
    return tensor._version, tensor.data_ptr(), tensor.shape


#: A weight, its stamp, and the number of nodes.
_Gcn = tuple[weakref.ref[torch.Tensor], Any, int | None]


class _Value:
    """What was computed of a tensor of edge weights, which is not kept alive."""

    __slots__ = ("ref", "result", "stamp")

    def __init__(self, weight: torch.Tensor, result: Any) -> None:
        self.ref, self.stamp, self.result = weakref.ref(weight), stamp_of(weight), result

    def is_of(self, weight: torch.Tensor) -> bool:
        return self.ref() is weight and self.stamp == stamp_of(weight)


class _Cached:
    """An adjacency of a graph, and the edge values that were computed last."""

    __slots__ = ("adjacency", "is_full", "value")

    def __init__(self, adjacency: Any, is_full: bool) -> None:
        self.adjacency, self.is_full = adjacency, is_full
        self.value: _Value | None = None

    def values(self, weight: torch.Tensor | None) -> torch.Tensor | None:
        """Returns the edge values that an adjacency makes of weights, cached where they need no gradient."""
        if weight is None or (weight.requires_grad and torch.is_grad_enabled()):
            return self.adjacency.values(weight)
        known = self.value
        if known is not None and known.is_of(weight):
            return known.result
        with outside():
            found = self.adjacency.values(weight.detach())
        self.value = _Value(weight, found)
        return found


class Graph:
    """What is cached of one edge_index.

    Attributes:
        products: how many products it was used for.
        fallback_until: as long as there are fewer, calls are left to PyG; `why` says why.
    """

    def __init__(self, edges: Any, forget: Callable[[Any], None]) -> None:
        self.ref = weakref.ref(edges, forget)
        self.stamp = stamp_of(raw(edges))
        self.products = self.fallback_until = 0
        self.why = ""
        self._cached: dict[Any, _Cached] = {}
        self._problems: dict[Any, str] = {}
        self.results: OrderedDict[Any, Any] = OrderedDict()
        self._gcn: _Gcn | None = None

    def is_of(self, edges: Any) -> bool:
        """Returns whether it is that of `edges` as they are now."""
        return self.ref() is edges and self.stamp == stamp_of(raw(edges))

    def adjacency(
        self, edges: Any, recipe: Recipe[Any], size: tuple[int, int], weighted: bool, width: int,
        by: Settings, overhead: float = 0.0,
    ) -> _Cached:  # fmt: skip
        """Returns what a recipe makes of the edges, made or cached.

        Args:
            edges: the edge_index.
            recipe: the recipe.
            size: (sources, targets).
            weighted: whether there are weights of edges.
            width: features that a product gathers for an edge.
            by: what the layer was accelerated with.
            overhead: see `decide`.

        Raises:
            FallbackError: the call is left to PyG.
        """
        key = recipe, size, weighted, by.reorder
        cached = self._cached.get(key)
        self.products += 1
        if cached is not None and cached.is_full:
            return cached
        if key in self._problems:
            raise FallbackError(self._problems[key])
        plain = raw(edges)
        device = "cuda" if path().takes(plain.device) else plain.device.type
        if device not in ("cpu", "cuda"):
            raise FallbackError(f"edges on {plain.device}")
        edge_count = plain.shape[1] if plain.layout == torch.strided else plain._nnz()
        decision = decide(
            by, device, edge_count, width, self.products - 1, memo.lifetimes, overhead,
            conversion_rates(plain.device),
        )  # fmt: skip
        if cached is not None and (decision.preparation is None or decision.preparation.format == "csr"):
            return cached
        if device == "cuda" and path().is_capturing():
            if cached is not None:
                return cached
            raise FallbackError("a CUDA graph is captured, and this graph is not known: run the model before")
        return self._made(key, plain, decision)

    def note_gcn(self, weight: torch.Tensor, nodes: int | None) -> None:
        """Note that a weight is D^-1/2 (A + I) D^-1/2 of edges without weights, which an operand can compute.

        Args:
            weight: what gcn_norm returned with these edges.
            nodes: the number of nodes that it was given.
        """
        self._gcn = weakref.ref(weight), stamp_of(weight), nodes

    def is_gcn(self, weight: torch.Tensor, nodes: int) -> bool:
        """Return whether a weight is what `note_gcn` noted, unchanged and for as many nodes."""
        if self._gcn is None or self._gcn[0]() is not weight:
            return False
        return self._gcn[1:] == (stamp_of(weight), nodes)

    def find(self, recipe: Recipe[Any], size: tuple[int, int], weighted: bool) -> Any:
        """Returns the adjacency that was made by a recipe, whatever the preparation; None: there is none."""
        for (known, *form, _), cached in list(self._cached.items()):
            if known == recipe and form == [size, weighted]:
                return cached.adjacency
        return None

    def _made(self, key: Any, edges: torch.Tensor, decision: Decision) -> _Cached:
        if decision.preparation is None:
            self.fallback_until, self.why = decision.until, decision.why
            raise NotYetError(decision.why)
        recipe, size, weighted, _ = key
        full = decision.preparation != Preparation(format="csr")
        with memo.lock:
            cached = self._cached.get(key)
            if cached is not None and cached.is_full >= full:
                return cached  # another thread has made it
            try:
                with outside():
                    how = replace(recipe, preparation=decision.preparation)
                    adjacency = how.make(edges.detach(), size, weighted)
            except (TypeError, ValueError, ImportError) as problem:
                self._problems[key] = str(problem)
                raise FallbackError(str(problem)) from None
            while len(self._cached) >= _MOST_ADJACENCIES:
                self._cached.pop(next(iter(self._cached)))
            cached = self._cached[key] = _Cached(adjacency, full)
            return cached


class Memo:
    """What was made of the graphs of the process, by the identity of their edge_index.

    Compiled code may make its edges anew in each call: there they are known by their content too.

    Attributes:
        lock: held while something is made.
        lifetimes: how long graphs were used that are gone.
    """

    def __init__(self) -> None:
        self.lock = ForkLock()
        self.lifetimes = Lifetimes()
        self._graphs: dict[int, Graph] = {}
        self._by_content: OrderedDict[Any, tuple[torch.Tensor | None, Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._graphs)

    def graph(self, edges: Any) -> Graph:
        """Return what is cached of an edge_index; a new object if it was never seen, or has changed."""
        known = self._graphs.get(id(edges))
        if known is not None and known.is_of(edges):
            return known
        return self._add(edges)

    def known(self, edges: Any) -> Graph | None:
        """Return what is cached of an edge_index, or None."""
        known = self._graphs.get(id(edges))
        return known if known is not None and known.is_of(edges) else None

    def adjacency(
        self, edges: torch.Tensor, recipe: Recipe[Any], size: tuple[int, int], weighted: bool
    ) -> Any:
        """Return what a recipe makes of edges: by their identity if they are known, else by their content.

        On the CPU the content is told by a hash, on a GPU edges are compared with copies of those before.
        """
        graph = self.known(edges)
        if graph is not None and (made := graph.find(recipe, size, weighted)) is not None:
            return made
        on_cpu = edges.device.type == "cpu"
        content = fingerprint([edges]) if on_cpu else None
        key = recipe, size, weighted, edges.device, edges.shape, edges.dtype, content
        with self.lock:
            copy, made = self._by_content.get(key, (None, None))
            if made is not None and (copy is None or torch.equal(copy, edges)):
                self._by_content.move_to_end(key)
                return made
            with outside():
                made = recipe.make(edges.detach(), size, weighted)
                self._by_content[key] = None if on_cpu else edges.detach().clone(), made
            while len(self._by_content) > _MOST_CONTENTS:
                self._by_content.popitem(last=False)
            return made

    def check(self, edges: Any) -> None:
        """Raise NotYetError, and count the call, if one with an edge_index is left to PyG."""
        known = self._graphs.get(id(edges))
        if known is None or known.products >= known.fallback_until or not known.is_of(edges):
            return
        known.products += 1
        raise NotYetError(known.why)

    def _add(self, edges: Any) -> Graph:
        key = id(edges)

        def forget(ref: Any) -> None:
            graph = self._graphs.get(key)
            if graph is not None and graph.ref is ref:
                self._graphs.pop(key, None)
                if graph.products:
                    self.lifetimes.add(graph.products)

        with self.lock:
            while len(self._graphs) >= _MOST_GRAPHS:
                self._graphs.pop(next(iter(self._graphs)), None)
            graph = self._graphs[key] = Graph(edges, forget)
            return graph

    def clear(self) -> None:
        """Forgets all graphs and their lifetimes."""
        with self.lock:
            self._graphs.clear()
            self._by_content.clear()
            self.lifetimes = Lifetimes()


#: The process's only one.
memo = Memo()


def cached_graphs() -> int:
    """Returns the number of graphs that are cached."""
    return len(memo)
