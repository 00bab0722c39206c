"""Prepared: a matrix and its transpose with their maps and settings, which operands are views of."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from gnnsparse.errors import bad_value, check_choice, check_flag, check_integer
from gnnsparse.formats import format_spec
from gnnsparse.formats.csr import Csr
from gnnsparse.plan import KERNELS, Plan
from gnnsparse.plan.store import PlanStore
from gnnsparse.plan.window import takes
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import describe_device, path
from gnnsparse.runtime.memo import ForkLock, Memo, Streams, made_once
from gnnsparse.sparse.kernel_cache import KernelCache, Product

#: Names of the weights that `prepare` can compute.
NORMALIZATIONS = ("gcn", "mean")
#: The operations whose plans can be measured.
PRODUCTS = ("spmm", "sddmm")

#: The function that measures plans. gnnsparse.ops.tuning imports this module and sets it (`bind_tuner`).
_tune: Callable[[KernelCache, Product, PlanStore, str], Plan]


def bind_tuner(function: Callable[[KernelCache, Product, PlanStore, str], Plan]) -> None:
    """Make `tune` and operands that were prepared with autotune=True call `function`."""
    global _tune
    _tune = function


def tune(kernels: KernelCache, product: Product, plans: PlanStore, direction: str) -> Plan:
    """Return the fastest plan for a product of "A" or its transpose "T", measured unless `plans` has it."""
    return _tune(kernels, product, plans, direction)


def inverse(permutation: torch.Tensor) -> torch.Tensor:
    """Return the inverse of a permutation, of its dtype."""
    places = torch.arange(permutation.numel(), dtype=permutation.dtype, device=permutation.device)
    undo = torch.empty_like(permutation)
    if permutation.is_cuda:  # an assignment by index takes the host several times as long
        return undo.scatter_(0, permutation.long(), places)
    undo[permutation.long()] = places  # by all threads
    return undo


@dataclass(eq=False)
class Prepared:
    """A matrix A and its transpose, prepared for products. Index 0 is A, index 1 the transpose.

    Attributes:
        forward, backward: A and its transpose, which share arrays if their structures are equal.
        transpose_map: for each nonzero of `backward` its index in `forward`, int32 or int64 [nnz].
        edge_map: for each input edge the index of its nonzero in `forward`, int32 or int64; None: the same.
        report: "symmetric" (structure), "reorder" (report of the reordering), "seconds", "edges".
        normalization: name of the weights that were computed; None: they were given.
        added_loops: weight of the self-loops that nodes without one got; None: none were added.
        is_part: whether rows of a prepared graph were chosen, so that added loops need not be its diagonal.
        auto_format: whether the format is chosen by the device (`on` does it).
        plans: where measured plans are stored; None: plans are chosen by the model.
        balance: how windows are cut into parts, one of gnnsparse.plan.window.BALANCES.
        one_stream: whether all happens on the stream on which the arrays are made, so that nothing waits.
        renewable: whether the arrays may be overwritten, if `renew` is called then.
    """

    forward: KernelCache
    backward: KernelCache
    transpose_map: torch.Tensor
    edge_map: torch.Tensor | None = None
    report: dict[str, Any] = field(default_factory=dict)
    normalization: str | None = None
    added_loops: float | None = None
    is_part: bool = False
    precision: Precision = Precision.FP32
    auto_format: bool = False
    cache_hit: bool = False
    plans: PlanStore | None = None
    balance: str = "auto"
    one_stream: bool = False
    renewable: bool = False

    def __post_init__(self) -> None:
        self.device = self.forward.csr.device
        self.lock = ForkLock()  # one for both orientations, which call each other
        self.has_self_loops = None if self.added_loops is None or self.is_part else True
        self.memo, self._streams = self._new_memo(), Streams(self.device)  # of the index maps
        self.forward, self.backward = self._bound(self.forward, 0), self._bound(self.backward, 1)
        if path().takes(self.device) and not self.one_stream:
            path().finish(self.device)  # products on other streams read what was prepared on this one
        self._keep_while_read()

    def _new_memo(self) -> Memo:
        return Memo(self.lock, self.device, self.one_stream, self.renewable)

    def _bound(self, matrix: KernelCache, which: int) -> KernelCache:
        """Return an orientation with the settings, and with a memo of its own."""
        blocked, plans, direction = matrix.blocked, self.plans, self.direction(which)
        return KernelCache(
            matrix.csr, matrix.row_ids, blocked, matrix.given_values, matrix.value_index,
            matrix.given_row_scale, matrix.given_col_scale,
            precision=self.precision.rounded,
            allows_panels=self.auto_format or (blocked is not None and blocked.spec.name == "window"),
            memo=self._new_memo(),
            streams=self._streams,
            tuner=None if plans is None else lambda cache, product: tune(cache, product, plans, direction),
            balance=self.balance,
            quantization=self.precision if self.precision.quantizes else None,
        )  # fmt: skip

    def _keep_while_read(self) -> None:
        """Make the arrays outlive this object until the GPU has read them."""
        if path().takes(self.device):
            arrays = self.forward, self.backward, self.transpose_map, self.edge_map, self.memo
            weakref.finalize(self, self._streams.keep_until_done, arrays).atexit = False

    @property
    def caches(self) -> tuple[KernelCache, KernelCache]:
        """A and its transpose."""
        return self.forward, self.backward

    @property
    def is_shared(self) -> bool:
        """Whether A and its transpose have the very arrays of the structure in common."""
        here, back = self.caches
        return back.csr is here.csr and back.blocked is here.blocked

    def direction(self, which: int) -> str:
        """Return the name of an orientation in stored plans: "A", or "T" if the transpose has own arrays."""
        return "A" if which == 0 or self.is_shared else "T"

    def unquantized(self) -> Prepared:
        """Return the same arrays with an SpMM that rounds X where that of this object quantises it."""
        other = copy.copy(self)
        other.precision = self.precision.rounded
        other.forward, other.backward = (replace(side, quantization=None) for side in self.caches)
        other._keep_while_read()
        return other

    def renew(self) -> None:
        """Compute again what was derived from the arrays, which were overwritten, in the memory it has."""
        for memo in (self.memo, self.forward.memo, self.backward.memo):
            memo.renew()

    def on(self, device: torch.device) -> Prepared:
        """Return the matrix on a device, in its format if `auto_format`; maps follow when needed."""
        forward, backward, shared = self.forward, self.backward, self.is_shared
        if device != self.device:
            forward = forward.to(device)
            if shared:
                backward = replace(
                    backward, csr=forward.csr, row_ids=forward.row_ids, blocked=forward.blocked,
                    given_row_scale=forward.given_col_scale, given_col_scale=forward.given_row_scale,
                )  # fmt: skip
            else:
                backward = backward.to(device)
            backward = replace(backward, given_values=forward.given_values)
        elif not self.auto_format:
            return self
        if self.auto_format:
            precision = self.precision.rounded
            spec = format_spec("window", precision) if takes(describe_device(device), precision) else None
            forward = forward.with_blocked(None).in_format(precision, spec)
            backward = backward.with_blocked(forward.blocked if shared else None)
            backward = backward if shared else backward.in_format(precision, spec)
        return replace(self, forward=forward, backward=backward, one_stream=False, renewable=False)

    def find_self_loops(self) -> bool:
        """Return whether the matrix is square and stores its whole diagonal, and keep the answer."""
        matrix = self.forward
        rows = matrix.csr.row_index()
        if matrix.row_ids is not None:
            rows = matrix.row_ids.long()[rows]
        # A row has each column at most once, so that it has at most one element on the diagonal.
        self.has_self_loops = matrix.csr.rows == matrix.csr.cols == int((rows == matrix.csr.indices).sum())
        return self.has_self_loops

    @made_once
    def map_of_transpose(self, which: int) -> torch.Tensor:
        """Return for each nonzero of the other orientation its index in this one, int32 or int64 [nnz]."""
        return (self.transpose_map if which == 0 else inverse(self.transpose_map)).to(self.device)

    @made_once
    def map_of_edges(self, which: int) -> torch.Tensor | None:
        """Return for each input edge the index of its nonzero in this orientation; None: it is the same."""
        edges = self.edge_map
        if edges is None:
            return None if which == 0 else self.map_of_transpose(1)
        if which == 0:
            return edges.to(self.device)
        own = self.map_of_edges(0)
        assert own is not None
        return self.map_of_transpose(1).index_select(0, own)


def assemble(
    forward: KernelCache,
    transposed: Csr,
    transpose_map: torch.Tensor,
    report: dict[str, Any] | None = None,
    **settings: Any,
) -> Prepared:
    """Make a prepared matrix of arrays that are right by construction, as of sampled blocks.

    `forward` has the caller's row order and no blocked form. `transpose_map` has for each nonzero of the
    transpose its index in A, int32 or int64 [nnz]. `settings` are further attributes of Prepared.
    """
    report = report or {"symmetric": False, "reorder": {"method": "none"}}
    report = {**report, "seconds": 0.0, "edges": forward.csr.nnz}
    backward = forward.transposed(transposed, None, transpose_map)
    return Prepared(forward, backward, transpose_map, None, report, **settings)


def check_product(
    op: Any,
    width: Any,
    edge_values: Any,
    heads: Any = 1,
    value_width: Any = None,
    has_score_terms: Any = False,
) -> Product:
    """Check the arguments of `SparseOperand.plan`, and return the product that they stand for."""
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
    values = width if value_width is None else value_width
    return Product(op, width, False, values, heads, has_score_terms, head_places=heads)
