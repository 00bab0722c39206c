"""The one-time work on a graph: weights, row order, transpose, format; and its cached form."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gnnsparse.csr import Csr, slot_dtype
from gnnsparse.formats import BlockedMatrix, FormatSpec, format_spec
from gnnsparse.graph import SparseGraph
from gnnsparse.hashing import fingerprint
from gnnsparse.precision import Precision
from gnnsparse.preprocess.cache import CACHE_VERSION, GraphCache
from gnnsparse.preprocess.convert import convert
from gnnsparse.preprocess.normalize import Weighted, explicit_values, normalize, symmetric_scales
from gnnsparse.preprocess.reorder import METHODS, Reordering, reorder
from gnnsparse.preprocess.source import Source

__all__ = ["Direction", "Prepared", "Recipe", "inverse", "prepare_arrays"]


@dataclass(frozen=True)
class Recipe:
    """The parameters that decide what is stored.

    Attributes:
        normalization: None, "gcn" or "mean".
        self_loop_weight: of the loops that "gcn" adds.
        reorder: method of the row order.
        reorder_options: its options, as sorted pairs.
        format: name of a blocked format, or "csr".
        panel: rows that share a column list, where the format leaves the choice.
        precision: decides the rounding of values that are stored in the format.
    """

    normalization: str | None = None
    self_loop_weight: float = 1.0
    reorder: str = "none"
    reorder_options: tuple[tuple[str, Any], ...] = ()
    format: str = "csr"
    panel: int | None = None
    precision: Precision = Precision.FP32

    def spec(self, density: float) -> FormatSpec | None:
        """The parameters of the blocked format, None for "csr"."""
        if self.format == "csr":
            return None
        return format_spec(self.format, self.precision, density, self.panel)

    def key(self, source: Source) -> str:
        """The cache key of a source prepared by this recipe."""
        spec = self.spec(0.0)
        # Without values in the format nothing stored depends on the precision.
        precision = self.precision.value if spec is not None and spec.stores_values else "any"
        facts = (CACHE_VERSION, source.facts, replace(self, precision=Precision.FP32), precision)
        # A preset is code that may change under its name.
        return fingerprint(source.arrays, *facts, *(() if spec is None else (spec,)))


@dataclass(frozen=True, eq=False)
class Direction:
    """The structure of A or of its transpose, rows in stored order."""

    csr: Csr
    row_ids: torch.Tensor | None  # int32 [rows], the matrix row of each stored row
    blocked: BlockedMatrix | None


@dataclass(frozen=True, eq=False)
class Prepared:
    """A graph ready for the kernels, before it is put on a device and given a precision.

    "Slots" are nonzeros in the stored order of the forward direction.

    Attributes:
        forward, backward: A and its transpose; the same object where they share a structure.
        transpose_map: for each slot of `backward` the slot of the same nonzero.
        edge_map: for each input edge its slot; None: edge e is slot e.
        values: float32 [nnz] by slot, None where the matrix is rank-1.
        row_scale, col_scale: float32 by matrix row and column, None: 1.
        facts: what happened: symmetric, reorder report, seconds.
    """

    forward: Direction
    backward: Direction
    transpose_map: torch.Tensor
    edge_map: torch.Tensor | None = None
    values: torch.Tensor | None = None
    row_scale: torch.Tensor | None = None
    col_scale: torch.Tensor | None = None
    facts: dict[str, Any] = field(default_factory=dict)


def inverse(permutation: torch.Tensor) -> torch.Tensor:
    """The permutation that undoes this one."""
    undo = torch.empty_like(permutation)
    undo[permutation.long()] = torch.arange(
        permutation.numel(), dtype=permutation.dtype, device=permutation.device
    )
    return undo


def _in_order(csr: Csr, order: torch.Tensor | None) -> tuple[Csr, torch.Tensor | None]:
    return (csr, None) if order is None else csr.permute_rows(order)


def _direction(
    csr: Csr, order: torch.Tensor | None, weights: Weighted, values: torch.Tensor | None,
    recipe: Recipe, spec: FormatSpec | None,
) -> Direction:  # fmt: skip
    blocked = None
    if spec is not None:
        stored = None
        if spec.stores_values:
            scales = (weights.row_scale, weights.col_scale)
            stored = explicit_values(csr, order, values, scales, recipe.precision)
        blocked = convert(csr, spec, stored)
    return Direction(csr, order, blocked)


def _ordering(graph: SparseGraph, recipe: Recipe) -> Reordering | None:
    """The row order, with its report; None where none is asked for, which would only cost time."""
    if recipe.reorder == "none" and not recipe.reorder_options:
        return None
    return reorder(graph, recipe.reorder, **dict(recipe.reorder_options))


def _transposed_order(
    weights: Weighted, csr: Csr, order: Reordering | None, recipe: Recipe
) -> torch.Tensor | None:
    """The row order of A^T, which is that of A where the method serves both alike."""
    if order is None or order.order is None:
        return None
    if METHODS[order.method].symmetric:
        return order.order
    transposed = replace(weights.graph, csr=csr, values=None, edge_slots=None)
    return reorder(transposed, order.method, **dict(recipe.reorder_options)).order


def build(source: Source, recipe: Recipe) -> Prepared:
    """Does all the work, on the device the input is on."""
    start = time.perf_counter()
    weights = normalize(source.build(), recipe.normalization, recipe.self_loop_weight)
    graph = weights.graph
    ordering = _ordering(graph, recipe)
    order = None if ordering is None or ordering.order is None else ordering.order.to(graph.device)
    density = graph.nnz / max(graph.num_rows * graph.num_cols, 1)
    spec = recipe.spec(density)

    csr, source_slots = _in_order(graph.csr, order)
    values, edge_map = graph.values, graph.edge_slots
    to_slot = None if source_slots is None else inverse(source_slots)
    if source_slots is not None and to_slot is not None:
        values = None if values is None else values[source_slots.long()]
        edge_map = to_slot if edge_map is None else to_slot[edge_map.long()]
    forward = _direction(csr, order, weights, values, recipe, spec)

    csr_t, map_t = graph.csr.transpose()
    symmetric = (
        csr_t.rows == csr_t.cols
        and torch.equal(csr_t.indptr, graph.csr.indptr)
        and torch.equal(csr_t.indices, graph.csr.indices)
    )
    order_t = order if symmetric else _transposed_order(weights, csr_t, ordering, recipe)
    order_t = None if order_t is None else order_t.to(graph.device)
    stored_t, source_t = (csr, source_slots) if symmetric else _in_order(csr_t, order_t)
    map_t = map_t if source_t is None else map_t[source_t.long()]
    map_t = map_t if to_slot is None else to_slot[map_t.long()]
    values_t = None if values is None else values[map_t.long()]
    same_values = values is None or values_t is None or torch.equal(values, values_t)
    same_values = same_values and symmetric_scales(weights, csr)
    if symmetric and (spec is None or not spec.stores_values or same_values):
        backward = forward
    else:
        swapped = replace(weights, row_scale=weights.col_scale, col_scale=weights.row_scale)
        backward = _direction(stored_t, order_t, swapped, values_t, recipe, spec)
    facts = {
        "symmetric": symmetric,
        "reorder": {"method": "none"} if ordering is None else ordering.report(),
        "seconds": time.perf_counter() - start,
        "edges": graph.num_edges,
    }
    return Prepared(
        forward, backward, map_t.to(slot_dtype(csr.nnz)), edge_map, values,
        weights.row_scale, weights.col_scale, facts,
    )  # fmt: skip


def _pack_direction(prefix: str, side: Direction) -> dict[str, torch.Tensor]:
    tensors = {"indptr": side.csr.indptr, "indices": side.csr.indices}
    if side.row_ids is not None:
        tensors["row_ids"] = side.row_ids
    if side.blocked is not None:
        tensors.update({f"blocked.{name}": array for name, array in side.blocked.arrays.items()})
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


_SHARED = ("transpose_map", "edge_map", "values", "row_scale", "col_scale")


def pack(prepared: Prepared) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The tensors and facts that `unpack` needs."""
    tensors = _pack_direction("forward", prepared.forward)
    if prepared.backward is not prepared.forward:
        tensors.update(_pack_direction("backward", prepared.backward))
    for name in _SHARED:
        if (tensor := getattr(prepared, name)) is not None:
            tensors[name] = tensor
    contiguous = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    facts = {**prepared.facts, "cols": prepared.forward.csr.cols, "rows": prepared.forward.csr.rows}
    return _without_shared_memory(contiguous), facts


def _without_shared_memory(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    seen: set[int] = set()
    for name, tensor in tensors.items():
        start = tensor.untyped_storage().data_ptr()
        if start in seen or tensor.untyped_storage().nbytes() != tensor.nbytes:
            tensors[name] = tensor.clone()
        seen.add(start)
    return tensors


def _unpack_direction(tensors: dict[str, torch.Tensor], prefix: str, cols: int, recipe: Recipe) -> Direction:
    mine = {
        name.removeprefix(prefix + "."): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix + ".")
    }
    csr = Csr(mine["indptr"], mine["indices"], cols)
    arrays = {
        name.removeprefix("blocked."): tensor for name, tensor in mine.items() if name.startswith("blocked.")
    }
    blocked = None
    spec = recipe.spec(csr.nnz / max(csr.rows * csr.cols, 1))
    if spec is not None:
        blocked = BlockedMatrix(spec, csr.rows, csr.cols, csr.nnz, **arrays)
    return Direction(csr, mine.get("row_ids"), blocked)


def unpack(tensors: dict[str, torch.Tensor], facts: dict[str, Any], recipe: Recipe) -> Prepared:
    """What `pack` packed."""
    forward = _unpack_direction(tensors, "forward", facts["cols"], recipe)
    backward = forward
    if "backward.indptr" in tensors:
        backward = _unpack_direction(tensors, "backward", facts["rows"], recipe)
    shared = {name: tensors.get(name) for name in _SHARED}
    return Prepared(forward, backward, facts=facts, **shared)  # type: ignore[arg-type]


def prepare_arrays(source: Source, recipe: Recipe, cache: GraphCache | None) -> tuple[Prepared, bool]:
    """The prepared graph, from the cache where it is there; also whether it was."""
    if cache is None:
        return build(source, recipe), False
    key = recipe.key(source)
    load: Callable[[], Prepared | None] = lambda: _load(cache, key, recipe)  # noqa: E731
    if (prepared := load()) is not None:
        return prepared, True
    with cache.lock(key) as locked:
        # Another process may have built it while this one waited for the lock.
        if locked and (prepared := load()) is not None:
            return prepared, True
        prepared = build(source, recipe)
        if locked:
            cache.store(key, *pack(prepared))
    return prepared, False


def _load(cache: GraphCache, key: str, recipe: Recipe) -> Prepared | None:
    found = cache.load(key)
    return None if found is None else unpack(*found, recipe)
