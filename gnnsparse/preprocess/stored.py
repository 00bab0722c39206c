"""Prepared graphs in the cache: conversion to the tensors and metadata of a file, and back."""

from __future__ import annotations

from typing import Any

import torch

from gnnsparse.csr import Csr
from gnnsparse.formats import BlockedMatrix
from gnnsparse.oriented import Oriented
from gnnsparse.preprocess.cache import GraphCache
from gnnsparse.preprocess.prepare import Prepared, Recipe, build, transpose_of
from gnnsparse.preprocess.source import Source

__all__ = ["pack", "prepare_arrays", "unpack"]

_SHARED = ("transpose_map", "edge_map", "values", "row_scale", "col_scale")


def _pack_oriented(prefix: str, matrix: Oriented) -> dict[str, torch.Tensor]:
    tensors = {"indptr": matrix.csr.indptr, "indices": matrix.csr.indices}
    if matrix.row_ids is not None:
        tensors["row_ids"] = matrix.row_ids
    if matrix.blocked is not None:
        tensors.update({f"blocked.{name}": array for name, array in matrix.blocked.arrays.items()})
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def pack(prepared: Prepared) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Returns the tensors and plain values by which `unpack` restores a prepared graph."""
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
    contiguous = {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}
    report = {**prepared.report, "cols": forward.csr.cols, "rows": forward.csr.rows}
    return _without_shared_memory(contiguous), report


def _without_shared_memory(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    seen: set[int] = set()
    for name, tensor in tensors.items():
        start = tensor.untyped_storage().data_ptr()
        if start in seen or tensor.untyped_storage().nbytes() != tensor.nbytes:
            tensors[name] = tensor.clone()
        seen.add(start)
    return tensors


def _unpack_structure(
    tensors: dict[str, torch.Tensor], prefix: str, cols: int, recipe: Recipe
) -> tuple[Csr, torch.Tensor | None, BlockedMatrix | None]:
    start = prefix + "."
    mine = {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
    csr = Csr(mine["indptr"], mine["indices"], cols)
    spec = recipe.spec(csr.nnz / max(csr.rows * csr.cols, 1))
    blocked = None
    if spec is not None:
        arrays = {name.removeprefix("blocked."): t for name, t in mine.items() if name.startswith("blocked.")}
        blocked = BlockedMatrix(spec, csr.rows, csr.cols, csr.nnz, **arrays)
    return csr, mine.get("row_ids"), blocked


def unpack(tensors: dict[str, torch.Tensor], report: dict[str, Any], recipe: Recipe) -> Prepared:
    """Restores the prepared graph that `pack` made tensors and plain values of.

    Args:
        tensors, report: the results of `pack`.
        recipe: the recipe that the graph was prepared by.
    """
    edge_map, values, row_scale, col_scale = (tensors.get(name) for name in _SHARED[1:])
    csr, row_ids, blocked = _unpack_structure(tensors, "forward", report["cols"], recipe)
    forward = Oriented(csr, row_ids, blocked, values, None, row_scale, col_scale)
    if "backward.indptr" in tensors:
        csr, row_ids, blocked = _unpack_structure(tensors, "backward", report["rows"], recipe)
    backward = transpose_of(forward, csr, row_ids, tensors["transpose_map"]).with_blocked(blocked)
    made = recipe.normalization, recipe.added_loops
    return Prepared(forward, backward, tensors["transpose_map"], edge_map, report, *made)


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
    key = recipe.key(source)
    if (prepared := _load(cache, key, recipe)) is not None:
        return prepared, True
    with cache.lock(key) as locked:
        # Another process may have built it while this one waited for the lock.
        if locked and (prepared := _load(cache, key, recipe)) is not None:
            return prepared, True
        prepared = build(source, recipe)
        if locked:
            cache.store(key, *pack(prepared))
    return prepared, False


def _load(cache: GraphCache, key: str, recipe: Recipe) -> Prepared | None:
    found = cache.load(key)
    return None if found is None else unpack(*found, recipe)
