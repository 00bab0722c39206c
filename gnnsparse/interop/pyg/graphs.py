"""The memo of graphs: operands, normalised edges and weights, as long as the tensor with the edges lives.

It decides when it pays to convert a graph, in place of leaving its products to PyG.
"""

from __future__ import annotations

import math
import weakref
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from gnnsparse.interop.models import FallbackError, IdentityMemo
from gnnsparse.nn.adjacency import ContentMemo, Preparation, Recipe
from gnnsparse.plan.gpu_records.record import ConversionRates, record_for
from gnnsparse.runtime.device import describe_device, path
from gnnsparse.runtime.functorch import is_eager, outside
from gnnsparse.runtime.hashing import digest
from gnnsparse.runtime.memo import ForkLock

#: The most adjacencies of a graph that are cached, and the most results of functions of its edges.
_MOST_ADJACENCIES = MOST_RESULTS = 8
#: What `accelerate` accepts as `convert`.
CONVERSIONS = ("auto", "always")


@dataclass(frozen=True)
class Settings:
    """What a layer was accelerated with, see `accelerate`."""

    precision: str | None = None
    reorder: str = "none"
    cache: bool = True
    convert: str = "auto"


#: Those of a CPU: measured on a core with graphs of 400 to a million edges, first calls of kernels included.
_OF_CPU = ConversionRates(
    graph_us=700, edge_us=0.03, saved_us=20, saved_edge_us=0.005, saved_feature_us=0.0009
)
#: Products after which a graph is taken for one that is used for long, and prepared in full.
_LONG = 4
_NEVER = 2**62
_CAPTURED = "a CUDA graph is captured, and this graph is not known: run the model before"


@dataclass(frozen=True)
class Decision:
    """What becomes of a graph in a call."""

    preparation: Preparation | None  # how its operand is prepared; None: the call is left to PyG
    why: str
    until: int = 0  # as long as the graph was used for fewer products, it is left to PyG again


def decide(
    settings: Settings,
    device: str,
    edges: int,
    width: int,
    products: int,
    usual: float | None,
    overhead: float = 0.0,
    rates: ConversionRates = _OF_CPU,
) -> Decision:
    """Decide whether a graph is converted in a call, and how much work goes into the operand.

    A conversion pays if the products that will use it save more time than it takes. How many there will be is
    not known. As long as no graph has come and gone (training on one graph), a graph is converted in the call
    in which the time that its products would have saved so far reaches the cost, so that at most twice the
    best time is spent; large graphs are converted in the first call by this rule. If graphs come and go
    (mini-batches), the mean number of products of those before says whether this one will pay: then it is
    converted in the first call, or else left to PyG unless it outlives the others by far.

    The first operand is a CSR of the edges in their order, which takes little more than a sort and is not
    stored. A graph that is used for longer is prepared in full, where that is more: with the reordering asked
    for, with the formats that a GPU's kernels need, and stored in the cache.

    Args:
        settings: what the layer was accelerated with; convert="always" converts in the first call.
        device: "cpu" or "cuda".
        edges: number of edges.
        width: number of features that a product gathers for an edge.
        products: how many products the graph was used for, those left to PyG included.
        usual: how many products earlier graphs were used for, in the mean; None: none has come and gone.
        overhead: microseconds that a call of this layer takes more than PyG's on a tiny graph.
        rates: those of the device.
    """
    full = Preparation(settings.reorder, "auto", settings.cache)
    has_more = device == "cuda" or settings.reorder != "none"
    if has_more and is_long(products, usual):
        return Decision(full, f"used for {products} products: prepared in full")
    quick = Preparation(format="csr")
    if settings.convert == "always":
        return Decision(quick, "convert='always'")
    cost = rates.graph_us + rates.edge_us * edges
    saved = rates.saved_us - overhead + edges * (rates.saved_edge_us + rates.saved_feature_us * width)
    if saved <= 0:
        return Decision(None, "the graph is so small that nothing is saved", _NEVER)
    expected, margin = (products + 1, 1) if usual is None else (usual, 4)
    if expected * saved >= cost or (products + 1) * saved >= margin * cost:
        return Decision(quick, f"a conversion pays after {cost / saved:.0f} products")
    until = math.ceil(margin * cost / saved) - 1
    so_far = "it has had few" if usual is None else f"graphs had {usual:.0f} in the mean"
    return Decision(None, f"converting the graph pays after {cost / saved:.0f} products, {so_far}", until)


def is_long(products: int, usual: float | None) -> bool:
    """Return whether a graph is taken for one that is used for long, see `decide`."""
    return products >= max(_LONG, 0 if usual is None else 2 * usual)


class NotYetError(FallbackError):
    """A call is left to PyG because a conversion of its graph would not pay so far."""


def is_traced() -> bool:
    """Return whether a transform of torch.func is active, or torch.compile or torch.jit traces."""
    return torch._C._get_tracing_state() is not None or not is_eager()


def check_eager() -> None:
    """Leave a call to PyG whose tensors have no memory."""
    if is_traced():
        raise FallbackError("a transform of torch.func is active, or torch.jit traces")


def raw(edges: Any) -> torch.Tensor:
    """Return the tensor that has the memory of an edge_index; PyG's EdgeIndex wraps one."""
    inner = getattr(edges, "_data", None) if type(edges) is not torch.Tensor else None
    return inner if isinstance(inner, torch.Tensor) else edges


def parts_of(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the tensors with memory that a tensor is made of: itself, or those of a sparse one."""
    tensor = raw(tensor)
    if tensor.layout == torch.sparse_csr:
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    if tensor.layout == torch.sparse_csc:
        return tensor.ccol_indices(), tensor.row_indices(), tensor.values()
    if tensor.layout == torch.sparse_coo:
        return tensor._indices(), tensor._values()
    return (tensor,)


def stamp_of(edges: Any) -> Any:
    """Return a value that changes when a tensor does, in place or by `set_` and `.data = `."""
    tensor = raw(edges)
    if tensor.is_inference():  # it has no version that counts changes in place
        return tuple(digest(part) for part in parts_of(tensor))
    if tensor.layout != torch.strided:
        return tensor._version, tensor.shape, *(part.data_ptr() for part in parts_of(tensor))
    return tensor._version, tensor.data_ptr(), tensor.shape


class Remembered:
    """A result that holds while the tensors that it depends on are the same objects, and unchanged."""

    def __init__(self, result: Any, *tensors: torch.Tensor) -> None:
        self.result = result
        self._of = [(weakref.ref(tensor), stamp_of(tensor)) for tensor in tensors]

    def holds(self, *tensors: torch.Tensor) -> bool:
        """Return whether these are the tensors, as they were."""
        pairs = zip(self._of, tensors, strict=True)
        return all(ref() is tensor and stamp == stamp_of(tensor) for (ref, stamp), tensor in pairs)


class _Made:
    """An adjacency of a graph, and the edge values that were computed last.

    `is_last`: no call will prepare it with more work.
    """

    def __init__(self, adjacency: Any, is_full: bool, is_last: bool) -> None:
        self.adjacency, self.is_full, self.is_last = adjacency, is_full, is_last
        self._values: Remembered | None = None

    def values(self, weight: torch.Tensor | None) -> torch.Tensor | None:
        """Return the edge values that an adjacency makes of weights, cached where they need no gradient."""
        if weight is None or (weight.requires_grad and torch.is_grad_enabled()):
            return self.adjacency.values(weight)
        known = self._values
        if known is None or not known.holds(weight):
            with outside():
                known = self._values = Remembered(self.adjacency.values(weight.detach()), weight)
        return known.result


class Graph:
    """What is cached of one edge_index.

    It was used for so many `products`; below `fallback_until`, calls are left to PyG for the reason `why`.
    """

    def __init__(self, edges: Any) -> None:
        self.stamp = stamp_of(edges)
        self.products = self.fallback_until = 0
        self.why = ""
        #: What functions of the edges returned, see gnnsparse.interop.pyg.functions.
        self.results: OrderedDict[Any, Remembered] = OrderedDict()
        #: The number of nodes, as a result of the weight that gcn_norm made of these edges alone.
        self.gcn: Remembered | None = None
        self.made: dict[Any, _Made] = {}
        self._problems: dict[Any, str] = {}

    def result(
        self, function: Callable[..., Any], edges: Any, *tensors: torch.Tensor, waits: bool = False
    ) -> Any:
        """Return what a function makes of edges and tensors, cached as long as these are as they were.

        `waits`: it makes the host wait for a GPU, which the capture of a CUDA graph forbids.
        """
        key = (function, *map(id, tensors))
        known = self.results.get(key)
        if known is None or not known.holds(*tensors):
            if waits and path().takes(edges.device) and path().is_capturing():
                raise FallbackError(_CAPTURED)
            with outside():
                known = self.remember(key, function(edges, *tensors), *tensors)
        return known.result

    def remember(self, key: Any, result: Any, *tensors: torch.Tensor) -> Remembered:
        """Remember a result that depends on tensors besides the edges, in place of the oldest of too many."""
        while len(self.results) >= MOST_RESULTS:
            self.results.popitem(last=False)
        self.results[key] = made = Remembered(result, *tensors)
        return made

    def is_gcn(self, weight: torch.Tensor, nodes: int) -> bool:
        """Return whether a weight is D^-1/2 (A + I) D^-1/2 of so many nodes."""
        return self.gcn is not None and self.gcn.holds(weight) and self.gcn.result == nodes

    def adjacency(
        self, edges: Any, recipe: Recipe, size: tuple[int, int], weighted: bool, width: int,
        by: Settings, overhead: float = 0.0,
    ) -> _Made:  # fmt: skip
        """Return what a recipe makes of edges of `size` (sources, targets), or raise FallbackError."""
        key = recipe, size, weighted, by.reorder
        made = self.made.get(key)
        self.products += 1
        if made is not None and (made.is_last or not is_long(self.products - 1, memo.usual)):
            return made
        if key in self._problems:
            raise FallbackError(self._problems[key])
        plain = raw(edges)
        on_gpu = path().takes(plain.device)
        if not on_gpu and plain.device.type != "cpu":
            raise FallbackError(f"edges on {plain.device}")
        edge_count = plain.shape[1] if plain.layout == torch.strided else plain._nnz()
        decision = decide(
            by, "cuda" if on_gpu else "cpu", edge_count, width, self.products - 1, memo.usual, overhead,
            record_for(describe_device(plain.device)).conversion if on_gpu else _OF_CPU,
        )  # fmt: skip
        is_full = decision.preparation not in (None, Preparation(format="csr"))
        captures = on_gpu and path().is_capturing()
        if made is not None and (captures or not is_full):
            return made
        if captures:
            raise FallbackError(_CAPTURED)
        if decision.preparation is None:
            self.fallback_until, self.why = decision.until, decision.why
            raise NotYetError(decision.why)
        with memo.lock:
            made = self.made.get(key)
            if made is not None and made.is_full >= is_full:
                return made  # another thread has made it
            try:
                with outside():
                    how = replace(recipe, preparation=decision.preparation)  # type: ignore[type-var]
                    adjacency = how.make(plain.detach(), size, weighted)
            except (TypeError, ValueError, ImportError) as problem:
                self._problems[key] = str(problem)
                raise FallbackError(str(problem)) from None
            while len(self.made) >= _MOST_ADJACENCIES:
                self.made.pop(next(iter(self.made)))
            is_last = is_full or not (on_gpu or by.reorder != "none")
            made = self.made[key] = _Made(adjacency, is_full, is_last)
            return made


class Memo:
    """What was made of the graphs of the process, by the identity of their edge_index.

    Compiled code may make its edges anew in each call: there they are known by their content too.
    """

    def __init__(self) -> None:
        self.lock = ForkLock()  # held while something is made
        #: How many products the graphs were used for that are gone: a mean in which recent ones weigh more.
        self.usual: float | None = None
        self._graphs: IdentityMemo[Graph] = IdentityMemo(gone=self._gone)
        self._by_content = ContentMemo()

    def _gone(self, graph: Graph) -> None:
        if graph.products:
            self.usual = graph.products if self.usual is None else 0.9 * self.usual + 0.1 * graph.products

    def graph(self, edges: Any) -> Graph:
        """Return what is cached of an edge_index; a new object if it was never seen, or has changed."""
        return self.known(edges) or self._graphs.put(edges, Graph(edges))

    def known(self, edges: Any) -> Graph | None:
        """Return what is cached of an edge_index, or None."""
        known = self._graphs.get(edges)
        return known if known is not None and known.stamp == stamp_of(edges) else None

    def check(self, edges: Any) -> None:
        """Raise NotYetError, and count the call, if one with an edge_index is left to PyG."""
        known = self._graphs.get(edges)
        if known is not None and known.products < known.fallback_until and known.stamp == stamp_of(edges):
            known.products += 1
            raise NotYetError(known.why)

    def adjacency(self, edges: torch.Tensor, recipe: Recipe, size: tuple[int, int], weighted: bool) -> Any:
        """Return what a recipe makes of edges: by their identity if they are known, else by their content."""
        graph = self.known(edges)
        for (*made_by, _), known in list(graph.made.items()) if graph is not None else ():
            if made_by == [recipe, size, weighted]:  # whatever the preparation
                return known.adjacency

        def make() -> Any:
            with outside():
                return recipe.make(edges.detach(), size, weighted)

        return self._by_content.find([edges], (recipe, size, weighted), make)

    def clear(self) -> None:
        """Forget all graphs and how long they were used."""
        with self.lock:
            self._graphs.clear()
            self._by_content.clear()
            self.usual = None


#: The process's only one.
memo = Memo()
