"""Sparse adjacency matrices of torch: what PyG's layers multiply with them, multiplied by operands instead.

A layer that is given a sparse matrix in place of an edge_index calls PyG's `spmm`, in a method of its own. In
accelerated layers that method calls `product` here.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch_geometric.utils as utils

from gnnsparse.interop.models import precision_of
from gnnsparse.interop.pyg.graphs import LeftError, memo
from gnnsparse.nn.adjacency import Preparation
from gnnsparse.nn.aggregation import Aggregation
from gnnsparse.ops import spmm
from gnnsparse.precision import PRECISIONS, Precision
from gnnsparse.runtime.functorch import is_direct
from gnnsparse.sparse.operand import SparseOperand

__all__ = ["is_sparse", "multiplying", "product"]

_LAYOUTS = (torch.sparse_csr, torch.sparse_csc, torch.sparse_coo)
_REDUCTIONS = {"add": "sum", "sum": "sum", "mean": "mean"}
_calls = threading.local()


def is_sparse(edges: Any) -> bool:
    """Returns whether an adjacency is a sparse tensor of torch."""
    return type(edges) is torch.Tensor and edges.layout in _LAYOUTS


class _Values:
    """An operand and the values of its nonzeros in the product; None: its own."""

    def __init__(self, operand: SparseOperand, values: torch.Tensor | None) -> None:
        self.operand, self._values = operand, values

    def values(self, weight: torch.Tensor | None) -> torch.Tensor | None:
        return self._values


@dataclass(frozen=True)
class _SparseRecipe:
    """How the operand of a sparse matrix [targets, sources] is made; see Aggregation."""

    reduce: str
    precision: Precision
    preparation: Preparation | None = None

    def make(self, matrix: torch.Tensor, size: tuple[int, int], weighted: bool) -> _Values:
        """Makes the operand; nonzeros that are all 1 are not stored."""
        coo = matrix if matrix.layout == torch.sparse_coo else matrix.to_sparse_coo()
        coo = coo.coalesce()
        indices, values = coo.indices().flip(0), coo.values()
        is_weighted = not bool((values == 1).all())
        made = Aggregation(self.reduce, self.precision, self.preparation).make(indices, size, is_weighted)
        return _Values(made.operand, made.values(values) if is_weighted else None)


@contextmanager
def multiplying(state: Any, matrix: torch.Tensor) -> Iterator[None]:
    """Makes the products inside a `with` block those of a layer, with what it was accelerated with.

    Args:
        state: what the layer remembers.
        matrix: the adjacency that it was given, which may not be multiplied at all.
    """
    before = getattr(_calls, "call", None)
    _calls.call = call = {"state": state, "products": 0}
    try:
        yield
    finally:
        _calls.call = before
    if call["products"] == 0:
        layout = f"a tensor of layout {matrix.layout}"
        state.leave(LeftError(f"the adjacency is {layout}, which it does not multiply"))


def product(src: Any, other: torch.Tensor, reduce: str = "sum") -> torch.Tensor:
    """Computes what PyG's `spmm` does; what is unusual is left to it.

    Args:
        src: the sparse matrix [targets, sources].
        other: [sources, features].
        reduce: "sum", "add", "mean", "min" or "max".

    Returns:
        [targets, features].
    """
    call = getattr(_calls, "call", None)
    if call is None:
        return utils.spmm(src, other, reduce)
    call["products"] += 1
    state = call["state"]
    try:
        return _product(state, src, other, reduce)
    except LeftError as reason:
        state.leave(reason)
        return utils.spmm(src, other, reduce)


def _check(src: Any, other: Any, reduce: str) -> None:
    """Raises LeftError unless an operand can take a product's place."""
    if not is_sparse(src) or src.dim() != 2 or src.dense_dim() > 0:
        raise LeftError(f"the adjacency is a {type(src).__name__}")
    if src.layout == torch.sparse_coo and not src.is_coalesced():
        raise LeftError("the adjacency is not coalesced")
    if src.requires_grad and torch.is_grad_enabled():
        raise LeftError("the adjacency needs a gradient")
    if reduce not in _REDUCTIONS:
        raise LeftError(f"its reduction of an adjacency matrix is {reduce!r}")
    if not isinstance(other, torch.Tensor) or other.layout != torch.strided or other.dim() != 2:
        raise LeftError("features that are no matrix")
    if other.dtype not in PRECISIONS or src.dtype not in PRECISIONS or src.shape[1] != other.shape[0]:
        raise LeftError(f"features of dtype {other.dtype} and shape {tuple(other.shape)}")
    if src.dtype != other.dtype and not torch.is_autocast_enabled(other.device.type):
        raise LeftError(f"an adjacency of dtype {src.dtype}")
    if src.device != other.device or src._nnz() == 0:
        raise LeftError("an adjacency on another device or without edges")
    if torch._C._get_tracing_state() is not None or torch.compiler.is_compiling() or not is_direct():
        raise LeftError("a transform of torch.func is active, or torch.jit traces")


def _product(state: Any, src: Any, other: torch.Tensor, reduce: str) -> torch.Tensor:
    _check(src, other, reduce)
    if state.settings.convert == "auto":
        memo.check(src)
    precision, cast = precision_of(state.settings.precision, other)
    other = other if cast is None else other.to(cast)
    recipe, size = _SparseRecipe(_REDUCTIONS[reduce], precision), (src.shape[1], src.shape[0])
    kept = memo.graph(src).adjacency(src, recipe, size, False, other.shape[1], state.settings)
    state.note(f"spmm, {_REDUCTIONS[reduce]}, {precision.value}")
    return spmm(kept.adjacency.operand, other, kept.values(None))
