"""Operands that layers make of an `edge_index` and edge weights, and keep from one call to the next."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import torch

from gnnsparse.errors import bad_type, bad_value
from gnnsparse.ops.segments import row_sums
from gnnsparse.precision import Precision
from gnnsparse.preprocess.api import prepare
from gnnsparse.runtime.functorch import innermost, is_eager, outside, untraced, unwrapped
from gnnsparse.runtime.hashing import digest, fingerprint
from gnnsparse.runtime.memo import ForkLock
from gnnsparse.sparse.operand import SparseOperand
from gnnsparse.sparse.typed import Relation, TypedGraph


class Fingerprint:
    """What is remembered of a tensor, to be compared with what is remembered of one in a later call.

    On the CPU it is a hash of the contents (20 GB/s and more), because torch does not count changes made
    through NumPy, `.data`, DLPack or another process. On a GPU a hash would make the host wait: it is the
    object, its version counter and place, so that changes that torch does not count are not noticed.
    """

    __slots__ = ("_ref", "_what")

    def __init__(self, tensor: torch.Tensor | None) -> None:
        self._ref: weakref.ref[torch.Tensor] | None = None
        self._what: Any = None
        if tensor is None:
            return
        is_dense = tensor.layout == torch.strided
        if tensor.device.type == "cpu" and is_dense:
            if type(tensor) is not torch.Tensor:
                tensor = tensor.as_subclass(torch.Tensor)  # PyG's EdgeIndex is a subclass of Tensor
            turned = tensor.dim() == 2 and not tensor.is_contiguous()  # often the transpose of [edges, 2]
            self._what = tensor.dtype, tensor.shape, turned, digest(tensor.t() if turned else tensor)
        elif not tensor.is_inference():  # tensors made in inference mode have no version counter
            self._ref = weakref.ref(tensor)
            place = (tensor.stride(), tensor.data_ptr()) if is_dense else None
            self._what = tensor._version, tensor.dtype, tensor.shape, place
        else:
            self._what = object()  # equals nothing

    @property
    def is_gone(self) -> bool:
        """Whether no later tensor can equal this one, as it has been freed or has no version counter."""
        return (self._ref is not None and self._ref() is None) or type(self._what) is object

    def equals(self, other: Fingerprint) -> bool:
        """Return whether both are of equal tensors, or both of None."""
        if self._what != other._what:
            return False
        if self._ref is None or other._ref is None:
            return self._ref is other._ref
        return (tensor := self._ref()) is not None and tensor is other._ref()


class ContentMemo:
    """What was made of the last edges, at most `most` results, by the contents of the edges.

    For compiled code, where each call may have new tensors. On a GPU copies of the edges are compared.
    """

    def __init__(self, most: int = 8) -> None:
        self._most, self._lock = most, ForkLock()
        self._made: OrderedDict[Any, tuple[list[torch.Tensor | None] | None, Any]] = OrderedDict()

    def find(self, tensors: Sequence[torch.Tensor | None], made_for: Any, make: Callable[[], Any]) -> Any:
        """Return what `make` made of equal tensors, all on one device, and of equal `made_for`."""
        on_cpu = all(t is None or t.device.type == "cpu" for t in tensors)
        forms = [None if t is None else (t.device, t.shape, t.dtype) for t in tensors]
        key = made_for, *forms, fingerprint(tensors) if on_cpu else None
        with self._lock:
            copies, made = self._made.get(key, (None, None))
        if made is None or not (copies is None or all(map(_equal, copies, tensors))):
            made = make()  # not under the lock: threads that serve different graphs make them together
            with outside():
                copies = None if on_cpu else [None if t is None else t.detach().clone() for t in tensors]
        with self._lock:
            self._made[key] = copies, made
            self._made.move_to_end(key)
            while len(self._made) > self._most:
                self._made.popitem(last=False)
        return made

    def clear(self) -> None:
        """Forget all."""
        with self._lock:
            self._made.clear()


def _equal(copy: torch.Tensor | None, tensor: torch.Tensor | None) -> bool:
    return copy is tensor if copy is None or tensor is None else torch.equal(copy, tensor)


def check_precision(operand: SparseOperand, precision: Precision | None) -> None:
    """Raise a ValueError if a layer was asked for a precision that its operand does not have."""
    if precision not in (None, operand.precision):
        asked, has = precision.value, operand.precision.value
        bad_value(
            "precision", f"got {asked!r}, the operand has {has!r}; accepted: that of the operand, or None"
        )


def check_self_loops(operand: SparseOperand, instead: str) -> None:
    """Raise a ValueError if nodes of an operand lack a self-loop; `instead` is what else is accepted."""
    rows, cols = operand.shape
    if rows == cols and not operand.has_self_loops:
        accepted = f"one prepared with values='gcn', an edge_index, or {instead}"
        bad_value("adj", f"an operand of which nodes lack self-loops; accepted: {accepted}")


@dataclass(frozen=True)
class Preparation:
    """How much work goes into an operand that a layer makes; the arguments of `prepare` of these names.

    What layers of this package do is a sort, and on a GPU the formats that its kernels need.
    """

    reorder: str = "none"
    format: str = "auto"
    cache: bool = False


class Recipe:
    """How a layer makes an adjacency of edges; a frozen dataclass, which is compared.

    An adjacency has an `operand` [targets, sources]; and for products `values` of edge weights or None, which
    computes its edge values; None: the operand's own are right. One that tells copies of an edge apart has
    `copies`, see `copies_apart`.
    """

    precision: Precision
    preparation: Preparation | None

    def make(self, edge_index: torch.Tensor, size: tuple[int, int], weighted: bool) -> Any:
        """Make the adjacency of edges between (sources, targets); `weighted`: `values` will get weights."""
        raise NotImplementedError

    def prepare(
        self, edges: torch.Tensor, size: tuple[int, int], values: str | torch.Tensor | None = None
    ) -> SparseOperand:
        """Prepare an operand as the recipe says."""
        how = asdict(self.preparation or Preparation())
        return prepare(edges, num_nodes=size, values=values, precision=self.precision, **how)


def copies_apart(edges: torch.Tensor, sources: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Give copies of an edge, which `prepare` would merge, sources of their own.

    Args:
        edges: integer [2, edges], sources over targets.
        sources: number of sources.

    Returns:
        The edges, in the same order, among which none is repeated; and int64 [copies] the sources of which
        the further ones, numbered from `sources` on, are copies.
    """
    source, target = edges.long()
    key = target * sources + source
    order = key.argsort(stable=True)
    _, counts = key[order].unique_consecutive(return_counts=True)
    begin = (counts.cumsum(0) - counts).repeat_interleave(counts)
    number = torch.empty_like(order)  # how many equal edges were given before
    number[order] = torch.arange(len(order), device=order.device) - begin
    again = number > 0
    pairs, place = (number * sources + source)[again].unique(return_inverse=True)
    source = source.index_put((again,), sources + place)
    return torch.stack([source, target]), pairs % sources


def with_copies(x: torch.Tensor, copies: torch.Tensor | None) -> torch.Tensor:
    """Return features [sources, ...] followed by those of copied sources; differentiable."""
    return x if copies is None else torch.cat([x, x.index_select(0, copies)])


@dataclass(frozen=True)
class GcnRecipe(Recipe):
    """Scales a square graph's matrix by D^-1/2 if `normalize`; missing self-loops get `loop_weight`."""

    normalize: bool
    loop_weight: float | None
    precision: Precision
    preparation: Preparation | None = None

    def make(self, edge_index: torch.Tensor, size: tuple[int, int], weighted: bool) -> GcnAdjacency:
        """See Recipe."""
        return GcnAdjacency(edge_index, size[0], self, weighted)


class GcnAdjacency:
    """The operand that a GcnRecipe makes.

    Normalised with self-loops and no edge weights it has rank-1 weights; otherwise it is the structure alone,
    and `values` returns its edge values.
    """

    copies: torch.Tensor | None = None  # they are summed

    def __init__(self, edge_index: torch.Tensor, num_nodes: int, recipe: GcnRecipe, weighted: bool) -> None:
        self._recipe, self._num_nodes = recipe, num_nodes
        self._edges = edge_index.shape[1]
        has_loops = recipe.loop_weight is not None
        self._has_scales = recipe.normalize and has_loops and not weighted
        if has_loops:
            is_loop = edge_index[0] == edge_index[1]
            loops, self._others = is_loop.nonzero().flatten(), (~is_loop).nonzero().flatten()
            # Nodes with self-loops, and the last one of each.
            self._loop_nodes, group = edge_index[0][loops].long().unique(return_inverse=True)
            last = torch.zeros_like(self._loop_nodes)
            self._loop_edges = last.scatter_reduce(0, group, loops, "amax", include_self=False)
            edge_index = edge_index[:, self._others]
            if not self._has_scales:
                nodes = torch.arange(num_nodes, dtype=edge_index.dtype, device=edge_index.device)
                edge_index = torch.cat([edge_index, nodes.expand(2, -1)], dim=1)
        values = "gcn" if self._has_scales else None
        self.operand = recipe.prepare(edge_index, (num_nodes, num_nodes), values)
        self._indices: torch.Tensor | None = None

    def values(self, edge_weight: torch.Tensor | None) -> torch.Tensor | None:
        """Compute edge values [nnz] of weights [edges] or of 1 each; None: the operand's own are right."""
        if edge_weight is None:
            if self._has_scales or not self._recipe.normalize:
                return None
            edge_weight = torch.ones(self._edges, dtype=torch.float32, device=self.operand.device)
        weights = check_edge_weight(edge_weight, self._edges, self.operand.device).float()
        if self._recipe.loop_weight is not None:  # in the order of the edges given to `prepare`
            loops = weights.new_full((self._num_nodes,), self._recipe.loop_weight)
            loops = loops.index_copy(0, self._loop_nodes, weights[self._loop_edges])
            weights = torch.cat([weights[self._others], loops])
        weights = self.operand.from_coo_order(weights)
        return self._normalized(weights) if self._recipe.normalize else weights

    def _normalized(self, weights: torch.Tensor) -> torch.Tensor:
        if self._indices is None:
            with outside():  # they are kept
                self._indices = self.operand.indices()
        row, col = self._indices
        degree = row_sums(self.operand, weights)
        positive = degree > 0
        # A degree of 0 is replaced by 1 under the root, so that its gradient is not NaN.
        scale = torch.where(positive, torch.where(positive, degree, 1.0).rsqrt(), 0.0)
        return scale[row] * weights * scale[col]


def check_edge_weight(
    edge_weight: Any, edges: int, device: torch.device, by_head: bool = False
) -> torch.Tensor:
    """Return a floating-point tensor [edges] on `device`, `by_head` also [edges, heads]; raise otherwise."""
    if not isinstance(edge_weight, torch.Tensor) or not edge_weight.is_floating_point():
        bad_type("edge_weight", edge_weight, f"a floating-point tensor [{edges}]")
    if edge_weight.shape != (edges,) and not (
        by_head and edge_weight.dim() == 2 and len(edge_weight) == edges
    ):
        bad_value("edge_weight", f"has shape {tuple(edge_weight.shape)}; accepted: ({edges},)")
    if edge_weight.device != device:
        bad_value("edge_weight", f"is on {edge_weight.device}; accepted: {device}")
    return edge_weight


@dataclass(frozen=True, eq=False)
class _Entry:
    """The last adjacency of a layer and what it was made of: (size, recipe, whether there are edge weights),
    or (nodes by type, relations, recipe).

    It is replaced as a whole, for calls from threads. `values` were computed from `weights`, None: not yet.
    """

    made_for: tuple[Any, Any, Any]
    edges: tuple[Fingerprint, ...]  # of the edge_index, and of the edges' types if there are any
    adjacency: Any
    weights: Fingerprint | None = None
    values: torch.Tensor | None = None

    def holds(self, made_for: tuple[Any, Any, Any], edges: tuple[Fingerprint, ...]) -> bool:
        """Return whether it was made of these edges, for the same purpose."""
        pairs = zip(self.edges, edges, strict=False)
        return self.made_for == made_for and all(known.equals(now) for known, now in pairs)


class AdjacencyMemo:
    """Keeps what a layer made of an `edge_index`; copies share the operand, pickles do not contain it.

    With `forever` the first operand is used whatever the edge_index of a call; else until its `Fingerprint`
    is another. Edge values that need a gradient are computed in each call.
    """

    def __init__(self, forever: bool = False) -> None:
        self._forever = forever
        self._entry: _Entry | None = None

    def __deepcopy__(self, memo: dict[int, Any]) -> AdjacencyMemo:
        other = AdjacencyMemo(self._forever)
        other._entry = self._entry
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {"_forever": self._forever, "_entry": None}

    def clear(self) -> None:
        """Drop the operand."""
        self._entry = None

    def resolve(
        self, size: tuple[int, int], adj: Any, edge_weight: torch.Tensor | None, recipe: Recipe
    ) -> tuple[SparseOperand, torch.Tensor | None]:
        """Return the operand of a call, `adj` itself if it is one, and values in place of its own or None."""
        if isinstance(adj, SparseOperand):  # the layer has checked what it is
            if edge_weight is not None:
                bad_value("edge_weight", "goes with an edge_index; an operand has its weights already")
            return adj, None
        check_edges(adj)
        if edge_weight is not None and not isinstance(edge_weight, torch.Tensor):
            bad_type("edge_weight", edge_weight, "a floating-point tensor [edges], or None")
        return self._resolve(adj, edge_weight, size, recipe)

    @untraced
    def adjacency(
        self, size: tuple[int, int], edge_index: Any, recipe: Recipe, edge_type: torch.Tensor | None = None
    ) -> Any:
        """Return what a recipe makes of an edge_index without edge weights, made or cached; see `resolve`.

        If edges have types, integers [edges], these are a third row of what the recipe gets.
        """
        check_edges(edge_index)
        entry = self._entry = self._find(edge_index, (size, recipe, False), edge_type)
        return entry.adjacency

    @untraced
    def typed(
        self, num_nodes: dict[str, int], edges: Mapping[Relation, torch.Tensor], recipe: Recipe,
        by_relation: bool = False,
    ) -> Any:  # fmt: skip
        """Return what a recipe makes of the block edges of a TypedGraph, made or cached."""
        entry, made_for = self._entry, (tuple(num_nodes.items()), tuple(edges), (recipe, by_relation))
        for given in edges.values():
            check_edges(given)
        index = {relation: innermost("edges", given) for relation, given in edges.items()}
        with outside():
            prints = tuple(map(Fingerprint, index.values()))
            if entry is None or not entry.holds(made_for, prints):
                plain = {relation: unwrapped("edges", given) for relation, given in index.items()}
                entry = _Entry(made_for, prints, TypedGraph(num_nodes, plain).adjacency(recipe, by_relation))
        self._entry = entry
        return entry.adjacency

    def _find(
        self,
        edge_index: torch.Tensor,
        made_for: tuple[tuple[int, int], Any, bool],
        edge_type: torch.Tensor | None = None,
    ) -> _Entry:
        entry, (size, recipe, weighted) = self._entry, made_for
        if entry is not None and self._forever:
            if weighted != entry.made_for[2]:
                got, had = ("weights", "none") if weighted else ("None", "weights")
                accepted = "weights in all calls or in none, cached=False, or reset_parameters() in between"
                bad_value("edge_weight", f"got {got}, and cached=True keeps a first call with {had}; "
                          f"accepted: {accepted}")  # fmt: skip
            return entry
        given = [innermost("adj", edge_index)]
        given += [] if edge_type is None else [innermost("edge_type", edge_type)]
        with outside():  # a view of the edges would be wrapped by a transform
            edges = tuple(map(Fingerprint, given))
            if entry is not None and entry.holds(made_for, edges):
                return entry
            index = unwrapped("adj", edge_index)
            if edge_type is not None:
                index = with_types(index, unwrapped("edge_type", edge_type))
            return _Entry(made_for, edges, recipe.make(index, size, weighted))

    @untraced
    def _resolve(
        self,
        edge_index: torch.Tensor,
        edge_weight: torch.Tensor | None,
        size: tuple[int, int],
        recipe: Recipe,
    ) -> tuple[SparseOperand, torch.Tensor | None]:
        entry = self._find(edge_index, (size, recipe, edge_weight is not None))
        if edge_weight is not None and (edge_weight.requires_grad or not is_eager()):
            self._entry = entry
            return entry.adjacency.operand, entry.adjacency.values(edge_weight)
        if entry.weights is None or not self._forever:
            weights = Fingerprint(edge_weight)
            if entry.weights is None or not entry.weights.equals(weights):
                with outside():
                    entry = replace(entry, weights=weights, values=entry.adjacency.values(edge_weight))
        self._entry = entry
        return entry.adjacency.operand, entry.values


def check_edges(edge_index: Any) -> None:
    """Raise unless `edge_index`, a layer's argument `adj` that is no operand, is an integer [2, edges]."""
    if not isinstance(edge_index, torch.Tensor):
        bad_type("adj", edge_index, "a SparseOperand, from gnnsparse.prepare, or an edge_index [2, edges]")
    if edge_index.dim() != 2 or edge_index.shape[0] != 2:
        bad_value("adj", f"has shape {tuple(edge_index.shape)}; accepted: (2, edges)")
    if edge_index.layout != torch.strided or edge_index.dtype not in (torch.int64, torch.int32):
        bad_type("edge_index", edge_index, "a tensor [2, edges] of dtype int64 or int32")


def with_types(edge_index: torch.Tensor, edge_type: torch.Tensor) -> torch.Tensor:
    """Return int64 [3, edges]: the sources, targets and types of edges."""
    return torch.cat([edge_index.long(), edge_type.long()[None]])


class GraphLayer(torch.nn.Module):
    """A layer that takes an operand, or an edge_index of which it makes one; no layer itself."""

    in_channels: Any
    out_channels: int
    #: The attributes that repr() shows behind the channels.
    _shown: ClassVar[tuple[str, ...]] = ()

    def __init__(self, precision: Precision | str | None) -> None:
        super().__init__()
        self.precision = None if precision is None else Precision.parse(precision)
        self._memo = AdjacencyMemo()

    def reset_parameters(self) -> None:
        """Draw weights and biases uniformly from +-1/sqrt(inputs), and drop a cached operand."""
        for linear in self.children():
            linear.reset_parameters()  # type: ignore[operator]
        self._memo.clear()

    def __repr__(self) -> str:
        shown = "".join(f", {name}={getattr(self, name)}" for name in self._shown)
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}{shown})"
