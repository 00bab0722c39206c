"""Prepared graphs in the cache: conversion to the tensors and metadata of a file, and back.

What comes back is checked: every array by its dtype, its length and, where native code reads memory by it,
its content. Values have checksums alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from gnnsparse.errors import bad_value
from gnnsparse.formats import ARRAYS, BlockedMatrix, FormatSpec, check_blocked
from gnnsparse.formats.csr import Csr, check_csr, check_host_array, check_indices, check_permutation
from gnnsparse.plan import plan_from_plain
from gnnsparse.preprocess.prepare import Prepared, Recipe, build, transpose_of
from gnnsparse.preprocess.reorder import Locality
from gnnsparse.preprocess.source import Source
from gnnsparse.runtime.cache import GraphCache
from gnnsparse.runtime.serialization import from_plain, to_plain
from gnnsparse.sparse.oriented import Oriented

__all__ = ["check_file", "pack", "prepare_arrays", "unpack"]

_SHARED = ("transpose_map", "edge_map", "values", "row_scale", "col_scale")
_INDEX_DTYPES = (torch.int32, torch.int64)
_MOST_NODES = 2**31 - 1
#: Nonzeros of the transpose that are compared with those of the matrix.
_SAMPLES = 1024


@dataclass(frozen=True)
class _Format:
    """The blocked format of a file: its parameters and the dtype of stored values, as in "float16"."""

    spec: FormatSpec
    storage: str


@dataclass(frozen=True)
class _Facts:
    """The plain values of a file: the report of Prepared and the shape, with the format or None."""

    symmetric: bool
    seconds: float
    edges: int
    rows: int
    cols: int
    reorder: Any
    format: Any


@dataclass(frozen=True)
class _Order:
    """The report of a reordering."""

    method: str
    seconds: float
    before: Locality
    after: Locality
    details: Any


def _pack_oriented(prefix: str, matrix: Oriented) -> dict[str, torch.Tensor]:
    tensors = {"indptr": matrix.csr.indptr, "indices": matrix.csr.indices}
    if matrix.row_ids is not None:
        tensors["row_ids"] = matrix.row_ids
    if matrix.blocked is not None:
        tensors.update({f"blocked.{name}": array for name, array in matrix.blocked.arrays.items()})
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _plain_format(spec: FormatSpec | None, storage: torch.dtype) -> Any:
    """Returns the format as plain values; None for "csr"."""
    return None if spec is None else to_plain(_Format(spec, str(storage).removeprefix("torch.")))


def pack(prepared: Prepared, storage: torch.dtype) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Returns the tensors and plain values by which `unpack` restores a prepared graph.

    Args:
        prepared: the graph.
        storage: the dtype of the values that its format stores, if it stores any.
    """
    forward = prepared.forward
    tensors = _pack_oriented("forward", forward)
    if not prepared.backward.shares_structure(forward):
        tensors.update(_pack_oriented("backward", prepared.backward))
    shared = (
        prepared.transpose_map, prepared.edge_map, forward.values, forward.row_scale, forward.col_scale
    )  # fmt: skip
    for name, tensor in zip(_SHARED, shared, strict=True):
        if tensor is not None:
            tensors[name] = tensor
    facts = {
        **prepared.report,
        "cols": forward.csr.cols,
        "rows": forward.csr.rows,
        "format": _plain_format(None if forward.blocked is None else forward.blocked.spec, storage),
    }
    return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, facts


def _read_facts(metadata: dict[str, Any]) -> tuple[_Facts, _Format | None]:
    facts: _Facts = from_plain(_Facts, metadata, "metadata")
    for name in ("rows", "cols"):
        if getattr(facts, name) > _MOST_NODES:
            bad_value(f"metadata.{name}", f"got {getattr(facts, name)}; accepted: at most {_MOST_NODES}")
    if facts.reorder != {"method": "none"}:
        from_plain(_Order, facts.reorder, "metadata.reorder")
    if facts.format is None:
        return facts, None
    return facts, from_plain(_Format, facts.format, "metadata.format")


def _storage(form: _Format) -> torch.dtype:
    dtypes = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}
    if form.storage not in dtypes:
        bad_value("metadata.format.storage", f"got {form.storage!r}; accepted: {', '.join(dtypes)}")
    return dtypes[form.storage]


def _take(tensors: dict[str, torch.Tensor], name: str) -> torch.Tensor:
    if name not in tensors:
        bad_value(name, "is missing; accepted: every array of a prepared graph")
    return tensors.pop(name)


def _unpack_structure(
    tensors: dict[str, torch.Tensor], prefix: str, rows: int, cols: int, form: _Format | None
) -> tuple[Csr, torch.Tensor | None, BlockedMatrix | None]:
    """Takes the arrays of one orientation out of `tensors`, and checks them."""
    csr = Csr(_take(tensors, f"{prefix}.indptr"), _take(tensors, f"{prefix}.indices"), cols)
    check_host_array(f"{prefix}.indptr", csr.indptr, (torch.int64,), rows + 1)
    check_csr(prefix, csr)
    row_ids = tensors.pop(f"{prefix}.row_ids", None)
    if row_ids is not None:
        check_host_array(f"{prefix}.row_ids", row_ids, (torch.int32,))
        check_permutation(f"{prefix}.row_ids", row_ids, rows)
    if form is None:
        return csr, row_ids, None
    name = f"{prefix}.blocked"
    arrays = {key.removeprefix(name + "."): key for key in tensors if key.startswith(name + ".")}
    required = {"panel_ptr", "columns"} - set(arrays)
    unknown = set(arrays) - set(ARRAYS)
    for part in sorted(required | unknown):
        bad_value(f"{name}.{part}", "is missing" if part in required else "is no array of the format")
    taken = {part: _take(tensors, key) for part, key in arrays.items()}
    blocked = BlockedMatrix(form.spec, csr.rows, csr.cols, csr.nnz, **taken)
    check_blocked(name, blocked, csr, _storage(form))
    return csr, row_ids, blocked


def _is_finite(values: torch.Tensor | None) -> bool:
    if values is None or values.numel() == 0:
        return True
    return all(bool(bound.isfinite()) for bound in values.aminmax())  # both are NaN if a value is


def _check_shared(shared: dict[str, torch.Tensor], facts: _Facts, nnz: int) -> None:
    """Checks the arrays that both orientations share: lengths, dtypes, and indices."""
    if "edge_map" in shared:
        check_host_array("edge_map", shared["edge_map"], _INDEX_DTYPES, facts.edges)
        check_indices("edge_map", shared["edge_map"], nnz)
    elif facts.edges != nnz:
        bad_value("metadata.edges", f"got {facts.edges}; accepted without an edge_map: {nnz}")
    for name, count in (("values", nnz), ("row_scale", facts.rows), ("col_scale", facts.cols)):
        if name in shared:
            check_host_array(name, shared[name], (torch.float32,), count)
    if not _is_finite(shared.get("values")):
        bad_value("values", "are not finite")


def _places(matrix: Oriented, nonzeros: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the rows and columns of some nonzeros."""
    rows = torch.searchsorted(matrix.csr.indptr, nonzeros, right=True) - 1
    ids = rows if matrix.row_ids is None else matrix.row_ids[rows].long()
    return ids, matrix.csr.indices[nonzeros].long()


def _check_transpose(forward: Oriented, backward: Oriented, index: torch.Tensor) -> None:
    """Checks the index map of the transpose: that it is a permutation, and some of its elements."""
    nnz = forward.csr.nnz
    if backward.csr.nnz != nnz:
        bad_value("backward.indices", f"has {backward.csr.nnz} nonzeros; accepted: {nnz}")
    check_permutation("transpose_map", index, nnz)
    some = torch.arange(0, nnz, max(1, nnz // _SAMPLES), device="cpu")
    there = _places(forward, index[some].long())
    here = _places(backward, some)
    if not (torch.equal(there[0], here[1]) and torch.equal(there[1], here[0])):
        bad_value("transpose_map", "leads to other elements than the transpose has")


def unpack(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> Prepared:
    """Restores the prepared graph that `pack` made tensors and plain values of, all but how its values arose.

    `normalization` and `added_loops` are None: they are known from the recipe.
    Everything is checked. Native code and kernels that run on the result stay inside its arrays, whatever
    the tensors and plain values hold.

    Args:
        tensors, metadata: the results of `pack`.

    Raises:
        ValueError: an array or a value is missing, of another type or out of range.
    """
    tensors = dict(tensors)
    facts, form = _read_facts(metadata)
    shared = {name: tensors.pop(name) for name in _SHARED if name in tensors}
    index = _take(shared, "transpose_map")
    csr, row_ids, blocked = _unpack_structure(tensors, "forward", facts.rows, facts.cols, form)
    _check_shared(shared, facts, csr.nnz)
    values, row_scale, col_scale = (shared.get(name) for name in _SHARED[2:])
    forward = Oriented(csr, row_ids, blocked, values, None, row_scale, col_scale)
    if "backward.indptr" in tensors:
        csr, row_ids, blocked = _unpack_structure(tensors, "backward", facts.cols, facts.rows, form)
    elif facts.rows != facts.cols:
        bad_value("backward.indptr", "is missing; accepted without it: square matrices")
    for name in tensors:
        bad_value(name, "is no array of a prepared graph")
    backward = transpose_of(forward, csr, row_ids, index).with_blocked(blocked)
    _check_transpose(forward, backward, index)
    names = ("symmetric", "reorder", "seconds", "edges")
    report = {name: getattr(facts, name) for name in names}
    return Prepared(forward, backward, index, shared.get("edge_map"), report)


def check_file(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> None:
    """Raises ValueError if the content of a cache file is neither a prepared graph nor a measured plan."""
    if "plan" not in metadata:
        unpack(tensors, metadata)
    elif tensors or plan_from_plain(metadata["plan"]) is None:
        bad_value("metadata.plan", "is no plan of this version")


def _load(cache: GraphCache, key: str, recipe: Recipe) -> Prepared | None:
    def read(tensors: dict[str, torch.Tensor], metadata: dict[str, Any]) -> Prepared:
        prepared = unpack(tensors, metadata)
        csr = prepared.forward.csr
        spec = recipe.spec(csr.nnz / max(csr.rows * csr.cols, 1))
        if not _same_format(metadata["format"], _plain_format(spec, recipe.precision.storage), spec):
            bad_value("metadata.format", f"is not that of {recipe.format} in {recipe.precision.value}")
        # The key stands for the recipe, so that the file need not hold these.
        return replace(prepared, normalization=recipe.normalization, added_loops=recipe.added_loops)

    return cache.load(key, read)


def _same_format(found: Any, wanted: Any, spec: FormatSpec | None) -> bool:
    """Returns whether two plain formats are equal; the dtype counts if the format stores values."""
    if spec is None or found is None:
        return found is wanted
    return found["spec"] == wanted["spec"] and (found == wanted or not spec.stores_values)


def prepare_arrays(source: Source, recipe: Recipe, cache: GraphCache | None) -> tuple[Prepared, bool]:
    """Reads a prepared graph from the cache, or builds it and stores it there.

    Args:
        source: the input of `prepare`.
        recipe: the recipe.
        cache: the cache; None: the graph is built.

    Returns:
        The prepared graph, and whether it was read from the cache.
    """
    if cache is None:
        return build(source, recipe), False
    cache.check_folder()
    key = recipe.key(source)
    if (prepared := _load(cache, key, recipe)) is not None:
        return prepared, True
    with cache.lock(key) as locked:
        # Another process may have built it while this one waited for the lock.
        if locked and (prepared := _load(cache, key, recipe)) is not None:
            return prepared, True
        prepared = build(source, recipe)
        # Values that are not finite, as sums of large ones may be, are refused by `prepare` in any precision.
        if locked and _is_finite(prepared.forward.values):
            cache.store(key, *pack(prepared, recipe.precision.storage))
    return prepared, False
