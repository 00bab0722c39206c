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

#: Bytes of memory on the CPU that each row of a matrix takes at the least while it is prepared: with each
#: normalisation, in a blocked format, and when rows are reordered. Each is a measured peak, rounded down.
_ROW_BYTES = {None: 24, "mean": 40, "gcn": 56}
_BLOCKED_ROW_BYTES, _ORDERED_ROW_BYTES = 44, 72


@dataclass(frozen=True)
class Recipe:
    """The parameters that a prepared graph depends on; options are sorted pairs (name, value)."""

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
        """Return the parameters of the format for a density, nnz / (rows * columns); None for "csr"."""
        if self.format == "csr":
            return None
        return format_spec(self.format, self.precision, density, self.panel, dict(self.format_options))

    def key(self, source: Source) -> str:
        """Return the cache key of a source that is prepared by this recipe."""
        spec = self.spec(0.0)
        # If the format stores no values, nothing that is stored depends on the precision.
        precision = self.precision.value if spec is not None and spec.stores_values else "any"
        parts = (CACHE_VERSION, source.parameters, replace(self, precision=Precision.FP32), precision)
        # The parameters of a preset may change between versions while its name stays.
        return fingerprint(source.arrays, *parts, *(() if spec is None else (spec,)))


def _order(graph: SparseGraph, recipe: Recipe, spec: FormatSpec | None) -> Reordering:
    """Return the row order, looked for with the sizes of the format where they are left to it."""
    options = dict(recipe.reorder_options)
    sizes = {} if spec is None else {"height": spec.panel, "width": max(spec.block, spec.pad)}
    options |= {name: size for name, size in sizes.items() if options.get(name) == 0}
    return reorder(graph, recipe.reorder, **options)


def _permuted(csr: Csr, order: torch.Tensor | None) -> tuple[Csr, torch.Tensor | None]:
    return (csr, None) if order is None else csr.permute_rows(order)


def check_size(num_nodes: Any, recipe: Recipe) -> None:
    """Raise MemoryError if a matrix with so many rows can't be prepared, before minutes are spent on it.

    Wrong values of `num_nodes` are left to the checks of SparseGraph.
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
    """Prepare a graph by a recipe, on the device of the source."""
    start = time.perf_counter()
    weights = normalize(source.build(), recipe.normalization, recipe.self_loop_weight)
    return prepare_weighted(weights, recipe, start)


def prepare_weighted(weights: Weighted, recipe: Recipe, start: float | None = None) -> Prepared:
    """Prepare a matrix whose weights are computed; it began at `start` of time.perf_counter, None: now."""
    start = time.perf_counter() if start is None else start
    graph = weights.graph
    spec = recipe.spec(graph.nnz / max(graph.num_rows * graph.num_cols, 1))
    ordering: dict[str, Any] = {"method": "none"}
    order = None
    if recipe.reorder != "none":  # else the time of the report is saved
        found = _order(graph, recipe, spec)
        ordering, order = found.report(), None if found.order is None else found.order.to(graph.device)
    csr, from_given = _permuted(graph.csr, order)
    values, edge_map, to_own = graph.values, graph.nnz_index_of_edge, None
    if from_given is not None:
        to_own = inverse(from_given)
        values = None if values is None else values[from_given.long()]
        edge_map = to_own if edge_map is None else to_own[edge_map.long()]
    forward = KernelCache(csr, order, None, values, None, weights.row_scale, weights.col_scale)

    given, index = graph.csr.transpose()
    # A counts as symmetric if its structure is, whatever its values.
    symmetric = given.rows == given.cols and given.equals(graph.csr)
    transposed = csr
    if not symmetric:
        if order is not None and not METHODS[recipe.reorder].symmetric:
            other = _order(replace(graph, csr=given, values=None, nnz_index_of_edge=None), recipe, spec).order
            order = None if other is None else other.to(graph.device)
        transposed, from_given = _permuted(given, order)
    index = index if from_given is None else index[from_given.long()]
    index = index if to_own is None else to_own[index.long()]
    index = index.to(index_dtype(transposed.nnz))
    backward = forward.transposed(transposed, order, index)
    shares = symmetric and (spec is None or not spec.stores_values or _same_values(weights, backward))
    forward = forward.in_format(recipe.precision, spec)
    if shares:
        backward = backward.with_blocked(forward.blocked)
    else:
        backward = backward.in_format(recipe.precision, spec)
    report = {
        "symmetric": symmetric,
        "reorder": ordering,
        "seconds": time.perf_counter() - start,
        "edges": graph.num_edges,
    }
    return Prepared(forward, backward, index, edge_map, report, **recipe.settings)


def _same_values(weights: Weighted, backward: KernelCache) -> bool:
    """Return whether the values of a matrix with symmetric structure are symmetric."""
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
    """Return whether two plain formats are equal; the dtype counts if the format stores values."""
    if spec is None or found is None:
        return found is wanted
    return found["spec"] == wanted["spec"] and (found == wanted or not spec.stores_values)


def prepare_arrays(source: Source, recipe: Recipe, cache: GraphCache | None) -> Prepared:
    """Read a prepared graph from the cache, or build it and store it there; `cache_hit` says which."""
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
