"""Preparation of a graph: its weights, row order, transpose and format."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Any

import torch

from gnnsparse.errors import bad_value, check_memory
from gnnsparse.formats import FormatSpec, format_spec
from gnnsparse.formats.csr import Csr, index_dtype
from gnnsparse.precision import Precision
from gnnsparse.preprocess.normalize import Weighted, normalize, symmetric_scales
from gnnsparse.preprocess.reorder import METHODS, Reordering, reorder
from gnnsparse.preprocess.source import Source
from gnnsparse.runtime.cache import CACHE_VERSION, GraphCache
from gnnsparse.runtime.hashing import fingerprint
from gnnsparse.sparse.graph import SparseGraph
from gnnsparse.sparse.kernel_cache import KernelCache
from gnnsparse.sparse.prepared import Prepared, inverse
from gnnsparse.sparse.saved import is_finite, pack, plain_format, unpack

__all__ = [
    "Recipe", "build", "check_size", "prepare_arrays", "prepare_weighted",
]  # fmt: skip

#: Bytes of memory on the CPU that each row of a matrix takes at the least while it is prepared: with each
#: normalisation, in a blocked format, and when rows are reordered. Each is a measured peak, rounded down.
_ROW_BYTES = {None: 24, "mean": 40, "gcn": 56}
_BLOCKED_ROW_BYTES, _ORDERED_ROW_BYTES = 44, 72


@dataclass(frozen=True)
class Recipe:
    """The parameters that a prepared graph depends on.

    Attributes:
        normalization: None, "gcn" or "mean".
        self_loop_weight: weight of the self-loops that "gcn" adds.
        reorder: name of the reordering.
        reorder_options: options of the reordering, as sorted pairs (name, value).
        format: name of a blocked format, or "csr".
        panel: rows of a panel, for formats that have several heights; None: the format's default.
        format_options: options of the format, as sorted pairs (name, value).
        precision: precision that stored values are rounded to.
    """

    normalization: str | None = None
    self_loop_weight: float = 1.0
    reorder: str = "none"
    reorder_options: tuple[tuple[str, Any], ...] = ()
    format: str = "csr"
    panel: int | None = None
    format_options: tuple[tuple[str, Any], ...] = ()
    precision: Precision = Precision.FP32

    @property
    def added_loops(self) -> float | None:
        """Weight of the self-loops that nodes without one get; None: none are added."""
        return self.self_loop_weight if self.normalization == "gcn" else None

    @property
    def settings(self) -> dict[str, Any]:
        """Attributes of Prepared that a recipe stands for."""
        return {
            "normalization": self.normalization, "added_loops": self.added_loops, "precision": self.precision,
        }  # fmt: skip

    def spec(self, density: float) -> FormatSpec | None:
        """Returns the parameters of the format for a density, nnz / (rows * columns); None for "csr"."""
        if self.format == "csr":
            return None
        return format_spec(self.format, self.precision, density, self.panel, dict(self.format_options))

    def key(self, source: Source) -> str:
        """Returns the cache key of a source that is prepared by this recipe."""
        spec = self.spec(0.0)
        # If the format stores no values, nothing that is stored depends on the precision.
        precision = self.precision.value if spec is not None and spec.stores_values else "any"
        parts = (CACHE_VERSION, source.parameters, replace(self, precision=Precision.FP32), precision)
        # The parameters of a preset may change between versions while its name stays.
        return fingerprint(source.arrays, *parts, *(() if spec is None else (spec,)))


def _in_order(csr: Csr, order: torch.Tensor | None) -> tuple[Csr, torch.Tensor | None]:
    return (csr, None) if order is None else csr.permute_rows(order)


def _order_options(recipe: Recipe, spec: FormatSpec | None) -> dict[str, Any]:
    """Returns the options of the reordering, with the sizes of the format where they are left to it."""
    options = dict(recipe.reorder_options)
    sizes = {} if spec is None else {"height": spec.panel, "width": max(spec.block, spec.pad)}
    return options | {name: size for name, size in sizes.items() if options.get(name) == 0}


def _ordering(graph: SparseGraph, recipe: Recipe, spec: FormatSpec | None) -> Reordering | None:
    """Returns the row order and its report; None if none is asked for, which saves the report's time."""
    if recipe.reorder == "none" and not recipe.reorder_options:
        return None
    return reorder(graph, recipe.reorder, **_order_options(recipe, spec))


def _transposed_order(
    weights: Weighted, csr: Csr, order: Reordering | None, recipe: Recipe, spec: FormatSpec | None
) -> torch.Tensor | None:
    """Returns the row order of A^T: A's order if the reordering is symmetric, else one of its own."""
    if order is None or order.order is None:
        return None
    if METHODS[order.method].symmetric:
        return order.order
    transposed = replace(weights.graph, csr=csr, values=None, nnz_index_of_edge=None)
    return reorder(transposed, order.method, **_order_options(recipe, spec)).order


@dataclass(frozen=True, eq=False)
class _Ordered:
    """The forward matrix in its row order, without a blocked form.

    Attributes:
        matrix: the matrix.
        ordering: the row order and its report, or None.
        from_given: for each nonzero its index before the rows were ordered; None: they were not ordered.
        to_own: the inverse of `from_given`.
        edge_map: for each input edge the index of its nonzero, or None.
    """

    matrix: KernelCache
    ordering: Reordering | None
    from_given: torch.Tensor | None
    to_own: torch.Tensor | None
    edge_map: torch.Tensor | None


def _forward(weights: Weighted, recipe: Recipe, spec: FormatSpec | None) -> _Ordered:
    graph = weights.graph
    ordering = _ordering(graph, recipe, spec)
    order = None if ordering is None or ordering.order is None else ordering.order.to(graph.device)
    csr, from_given = _in_order(graph.csr, order)
    values, edge_map, to_own = graph.values, graph.nnz_index_of_edge, None
    if from_given is not None:
        to_own = inverse(from_given)
        values = None if values is None else values[from_given.long()]
        edge_map = to_own if edge_map is None else to_own[edge_map.long()]
    matrix = KernelCache(csr, order, None, values, None, weights.row_scale, weights.col_scale)
    return _Ordered(matrix, ordering, from_given, to_own, edge_map)


def _backward(
    weights: Weighted, forward: _Ordered, recipe: Recipe, spec: FormatSpec | None
) -> tuple[KernelCache, torch.Tensor, bool]:
    """Returns the transpose, the index in `forward` of each of its nonzeros, and whether A is symmetric.

    A counts as symmetric if its structure is, whatever its values.
    """
    graph, matrix = weights.graph, forward.matrix
    csr, index = graph.csr.transpose()
    symmetric = (
        csr.rows == csr.cols
        and torch.equal(csr.indptr, graph.csr.indptr)
        and torch.equal(csr.indices, graph.csr.indices)
    )
    if symmetric:
        order, stored, from_given = matrix.row_ids, matrix.csr, forward.from_given
    else:
        order = _transposed_order(weights, csr, forward.ordering, recipe, spec)
        order = None if order is None else order.to(graph.device)
        stored, from_given = _in_order(csr, order)
    index = index if from_given is None else index[from_given.long()]
    index = index if forward.to_own is None else forward.to_own[index.long()]
    index = index.to(index_dtype(stored.nnz))
    return matrix.transposed(stored, order, index), index, symmetric


def check_size(num_nodes: Any, recipe: Recipe) -> None:
    """Raises MemoryError if a matrix with so many rows can't be prepared in the memory that there is.

    The arrays of an edge_index do not show how many rows its matrix has, so the memory for them would be
    found missing only after minutes. Wrong values of `num_nodes` are left to the checks of SparseGraph.

    Args:
        num_nodes: argument of `gnnsparse.prepare`, for a graph on the CPU.
        recipe: the parameters of the preparation.
    """
    rows = num_nodes[-1] if isinstance(num_nodes, (tuple, list)) and num_nodes else num_nodes
    if isinstance(rows, bool) or not isinstance(rows, int) or not 0 <= rows < 2**31:
        return
    row_bytes = max(
        _ROW_BYTES.get(recipe.normalization, 0),
        _BLOCKED_ROW_BYTES if recipe.format != "csr" else 0,
        _ORDERED_ROW_BYTES if recipe.reorder != "none" else 0,
    )
    check_memory("num_nodes", row_bytes * rows, f"preparing a matrix of {rows} rows")


def build(source: Source, recipe: Recipe) -> Prepared:
    """Prepares a graph by a recipe, on the device of the source."""
    start = time.perf_counter()
    weights = normalize(source.build(), recipe.normalization, recipe.self_loop_weight)
    return prepare_weighted(weights, recipe, start)


def prepare_weighted(weights: Weighted, recipe: Recipe, start: float | None = None) -> Prepared:
    """Prepares a matrix whose weights have been computed: its row order, transpose and format.

    Args:
        weights: the matrix and its weights.
        recipe: the parameters; its normalisation is taken to be the one that made the weights.
        start: the time at which the preparation began, of time.perf_counter; None: now.
    """
    start = time.perf_counter() if start is None else start
    graph = weights.graph
    spec = recipe.spec(graph.nnz / max(graph.num_rows * graph.num_cols, 1))
    ordered = _forward(weights, recipe, spec)
    forward = ordered.matrix.in_format(recipe.precision, spec)
    backward, index, symmetric = _backward(weights, ordered, recipe, spec)
    if symmetric and (spec is None or not spec.stores_values or _same_values(weights, backward)):
        backward = backward.with_blocked(forward.blocked)
    else:
        backward = backward.in_format(recipe.precision, spec)
    report = {
        "symmetric": symmetric,
        "reorder": {"method": "none"} if ordered.ordering is None else ordered.ordering.report(),
        "seconds": time.perf_counter() - start,
        "edges": graph.num_edges,
    }
    return Prepared(forward, backward, index, ordered.edge_map, report, **recipe.settings)


def _same_values(weights: Weighted, backward: KernelCache) -> bool:
    """Returns whether the values of a matrix with symmetric structure are symmetric."""
    values = backward.given_values
    same = values is None or torch.equal(values, values[backward.value_index.long()])  # type: ignore[union-attr]
    return same and symmetric_scales(weights, backward.csr)


def _load(cache: GraphCache, key: str, recipe: Recipe) -> Prepared | None:
    def read(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> Prepared:
        # The key stands for the recipe, so that the file need not hold its settings.
        prepared = unpack(tensors, metadata, cache_hit=True, **recipe.settings)
        csr = prepared.forward.csr
        spec = recipe.spec(csr.nnz / max(csr.rows * csr.cols, 1))
        if not _same_format(metadata["format"], plain_format(spec, recipe.precision.storage), spec):
            bad_value("metadata.format", f"is not that of {recipe.format} in {recipe.precision.value}")
        return prepared

    return cache.load(key, read)


def _same_format(found: Any, wanted: Any, spec: FormatSpec | None) -> bool:
    """Returns whether two plain formats are equal; the dtype counts if the format stores values."""
    if spec is None or found is None:
        return found is wanted
    return found["spec"] == wanted["spec"] and (found == wanted or not spec.stores_values)


def prepare_arrays(source: Source, recipe: Recipe, cache: GraphCache | None) -> Prepared:
    """Reads a prepared graph from the cache, or builds it and stores it there.

    Args:
        source: the input of `prepare`.
        recipe: the recipe.
        cache: the cache; None: the graph is built.

    Returns:
        The prepared graph, whose `cache_hit` says whether it was read from the cache.
    """
    if cache is None:
        return build(source, recipe)
    cache.check_folder()
    key = recipe.key(source)
    if (prepared := _load(cache, key, recipe)) is not None:
        return prepared
    with cache.lock(key) as locked:
        # Another process may have built it while this one waited for the lock.
        if locked and (prepared := _load(cache, key, recipe)) is not None:
            return prepared
        prepared = build(source, recipe)
        # Values that are not finite, as sums of large ones may be, are refused by `prepare` in any precision.
        if locked and is_finite(prepared.forward.given_values):
            cache.store(key, *pack(prepared, recipe.precision.storage))
    return prepared
