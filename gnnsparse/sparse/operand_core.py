"""The state that an operand shares with its transpose, and moving a prepared graph to a device."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from gnnsparse.errors import bad_value, check_choice, check_flag, check_integer
from gnnsparse.formats import format_spec
from gnnsparse.formats.convert import convert
from gnnsparse.plan import KERNELS, Plan
from gnnsparse.plan.store import PlanStore
from gnnsparse.plan.window import takes
from gnnsparse.precision import Precision
from gnnsparse.preprocess.prepare import Prepared, inverse
from gnnsparse.runtime.device import describe_device, path
from gnnsparse.runtime.memo import ForkLock, Kept, Key, Streams
from gnnsparse.sparse.kernel_cache import KernelCache
from gnnsparse.sparse.kernel_keys import Product
from gnnsparse.sparse.oriented import Oriented

__all__ = ["PRODUCTS", "OperandCore", "bind_tuner", "check_product", "place", "tune"]

#: The operations whose plans can be measured.
PRODUCTS = ("spmm", "sddmm")

#: The function that measures plans. gnnsparse.ops.tuning imports this module and sets it (`bind_tuner`).
_tune: Callable[[KernelCache, Product, PlanStore, str], Plan]


def bind_tuner(function: Callable[[KernelCache, Product, PlanStore, str], Plan]) -> None:
    """Makes `tune` and operands that were prepared with autotune=True call `function`."""
    global _tune
    _tune = function


def tune(kernels: KernelCache, product: Product, plans: PlanStore, direction: str) -> Plan:
    """Returns the fastest plan for a product of "A" or its transpose "T", measured unless `plans` has it."""
    return _tune(kernels, product, plans, direction)


def _tuner_of(plans: PlanStore, direction: str) -> Callable[[KernelCache, Product], Plan]:
    return lambda kernels, product: _tune(kernels, product, plans, direction)


@dataclass(frozen=True)
class _Map(Key[torch.Tensor]):
    """Key of an array of nonzero indices on the operand's device, for A (0) or its transpose (1)."""

    name: str
    which: int


class OperandCore:
    """The state that an operand shares with its transpose. Index 0 is A, index 1 the transpose.

    With `one_stream` an operand on a GPU is used on the stream on which its arrays are made, so that nothing
    has to wait for them. With `renewable` the arrays may be overwritten, if `renew` is called then.
    """

    def __init__(
        self,
        prepared: Prepared,
        precision: Precision,
        auto_format: bool,
        cache_hit: bool,
        plans: PlanStore | None = None,
        balance: str = "auto",
        one_stream: bool = False,
        renewable: bool = False,
    ) -> None:
        self.prepared, self.one_stream, self.renewable = prepared, one_stream, renewable
        self.precision = precision
        self.auto_format = auto_format
        self.cache_hit = cache_hit
        self.plans = plans
        self.balance = balance
        self.device = prepared.forward.csr.device
        self.lock = ForkLock()  # one for both orientations, whose caches call each other
        self._maps, self._streams = self._kept(), Streams(self.device)
        self.has_self_loops = None if prepared.added_loops is None or prepared.is_part else True
        self.caches = (self._cache(prepared.forward, 0), self._cache(prepared.backward, 1))
        if path().takes(self.device) and not one_stream:
            path().finish(self.device)  # products on other streams read what was prepared on this one
        self._keep_while_read()

    def _keep_while_read(self) -> None:
        """Makes the arrays outlive this object until the GPU has read them."""
        if path().takes(self.device):
            arrays = self.prepared, self._maps, *(cache.kept for cache in self.caches)
            weakref.finalize(self, self._streams.keep_until_done, arrays).atexit = False

    def unquantized(self) -> OperandCore:
        """Returns a core with the same arrays, whose SpMM rounds X where that of this one quantises it."""
        other = copy.copy(self)
        other.precision = self.precision.rounded
        forward, backward = self.caches
        other.caches = (replace(forward, quantization=None), replace(backward, quantization=None))
        other._keep_while_read()
        return other

    def _kept(self) -> Kept:
        return Kept(self.lock, self.device, self.one_stream, self.renewable)

    def renew(self) -> None:
        """Computes again what was derived from the arrays, which were overwritten, in the memory it has."""
        for kept in (self._maps, *(cache.kept for cache in self.caches)):
            kept.renew()

    def _cache(self, matrix: Oriented, which: int) -> KernelCache:
        panels = self.auto_format or (matrix.blocked is not None and matrix.blocked.spec.name == "window")
        cache = KernelCache(
            matrix, self.precision.rounded, panels, self._kept(), self._streams, balance=self.balance,
            quantization=self.precision if self.precision.quantizes else None,
        )  # fmt: skip
        if self.plans is not None:
            cache.tuner = _tuner_of(self.plans, self.direction(which))
        return cache

    def direction(self, which: int) -> str:
        """Returns the name of an orientation in stored plans: "A", or "T" if the transpose has own arrays."""
        shared = self.prepared.backward.shares_structure(self.prepared.forward)
        return "A" if which == 0 or shared else "T"

    def find_self_loops(self) -> bool:
        """Returns whether the matrix is square and stores its whole diagonal, and keeps the answer."""
        matrix = self.prepared.forward
        rows = matrix.csr.row_index()
        if matrix.row_ids is not None:
            rows = matrix.row_ids.long()[rows]
        # A row has each column at most once, so that it has at most one element on the diagonal.
        found = int((rows == matrix.csr.indices).sum())
        self.has_self_loops = matrix.csr.rows == matrix.csr.cols == found
        return self.has_self_loops

    def transpose_map(self, which: int) -> torch.Tensor:
        """Returns for each nonzero of the other orientation its index in this one, int32 or int64 [nnz]."""

        def make() -> torch.Tensor:
            forward = self.prepared.transpose_map
            return (forward if which == 0 else inverse(forward)).to(self.device)

        return self._maps.get(_Map("transpose", which), make)

    def edge_map(self, which: int) -> torch.Tensor | None:
        """Returns for each edge of the input the index of its nonzero in this orientation, int [edges].

        None: edge e is nonzero e.
        """
        edges = self.prepared.edge_map
        if edges is None:
            return None if which == 0 else self.transpose_map(1)
        if which == 0:
            return self._maps.get(_Map("edges", 0), lambda: edges.to(self.device))
        own = self.edge_map(0)
        assert own is not None
        return self._maps.get(_Map("edges", 1), lambda: self.transpose_map(1).index_select(0, own))


def _move_oriented(matrix: Oriented, device: torch.device) -> Oriented:
    """Moves the arrays that every call needs; `value_index` is moved when a call first needs it."""
    ids, values, row, col = (
        None if t is None else t.to(device)
        for t in (matrix.row_ids, matrix.values, matrix.row_scale, matrix.col_scale)
    )
    blocked = None if matrix.blocked is None else matrix.blocked.to(device)
    return Oriented(matrix.csr.to(device), ids, blocked, values, matrix.value_index, row, col)


def _move(p: Prepared, device: torch.device) -> Prepared:
    """Moves a prepared graph to a device; its index maps are moved when a call first needs them."""
    forward = _move_oriented(p.forward, device)
    if p.backward.shares_structure(p.forward):
        backward = replace(p.backward, csr=forward.csr, row_ids=forward.row_ids, blocked=forward.blocked)
        backward = replace(
            backward, values=forward.values, row_scale=forward.col_scale, col_scale=forward.row_scale
        )
    else:
        backward = _move_oriented(p.backward, device)
        backward = replace(backward, values=forward.values)
    return replace(p, forward=forward, backward=backward)


def place(p: Prepared, device: torch.device, precision: Precision, auto_format: bool) -> Prepared:
    """Moves a prepared graph to a device, and gives it the format that the device chooses, if it does."""
    if device != p.forward.csr.device:
        p = _move(p, device)
    return _with_auto_format(p, precision) if auto_format else p


def _with_auto_format(p: Prepared, precision: Precision) -> Prepared:
    """Adds the window format on GPUs whose Tensor Cores have the precision; drops it elsewhere."""
    device = describe_device(p.forward.csr.device)
    precision = precision.rounded
    spec = format_spec("window", precision) if takes(device, precision) else None
    shared = p.backward.shares_structure(p.forward)

    def with_format(matrix: Oriented) -> Oriented:
        return matrix.with_blocked(None if spec is None else convert(matrix.csr, spec, None))

    forward = with_format(p.forward)
    backward = p.backward.with_blocked(forward.blocked) if shared else with_format(p.backward)
    return replace(p, forward=forward, backward=backward)


def check_product(
    op: Any,
    width: Any,
    edge_values: Any,
    heads: Any = 1,
    value_width: Any = None,
    has_score_terms: Any = False,
) -> Product:
    """Returns what an operation is asked to compute, of arguments of `SparseOperand.plan` that it checks.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an argument is out of range or plays no part in `op`.
    """
    check_choice("op", op, tuple(KERNELS))
    width = check_integer("width", width)
    if check_flag("edge_values", edge_values) and op != "spmm":
        bad_value("edge_values", f"play no part in {op}")
    check_integer("heads", heads)
    check_flag("has_score_terms", has_score_terms)
    if value_width is not None:
        check_integer("value_width", value_width)
    if op in PRODUCTS:
        if (heads, value_width, has_score_terms) != (1, None, False):
            bad_value("op", f"got {op!r}; heads, value_width and has_score_terms go with attention")
        return Product(op, width, edge_values)
    return Product(op, width, False, width if value_width is None else value_width, heads, has_score_terms)
