"""SparseOperand: a prepared sparse matrix on a device."""

from __future__ import annotations

import operator
import secrets
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from gnnsparse.errors import (
    bad_type,
    bad_value,
    check_array,
    check_choice,
    check_device,
    check_integer,
    device_of,
)
from gnnsparse.formats import PRESETS, operations
from gnnsparse.formats.csr import Csr, check_range, send_by_value
from gnnsparse.plan import Plan
from gnnsparse.plan.store import PlanStore
from gnnsparse.precision import Precision
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import outside, runs_outside, untraced, unwrapped
from gnnsparse.runtime.memo import ForkLock, Memo
from gnnsparse.sparse.graph import Exported, index_tensor
from gnnsparse.sparse.kernel_cache import KernelCache
from gnnsparse.sparse.prepared import PRODUCTS, Prepared, check_product, inverse, tune
from gnnsparse.sparse.saved import pack_operand, unpack_operand

#: The operands of this process by their handles, the integers that stand for them in custom ops and in
#: programs that are saved.
_operands: weakref.WeakValueDictionary[int, SparseOperand] = weakref.WeakValueDictionary()
_lock = ForkLock()


def _register(operand: SparseOperand, wanted: int | None) -> int:
    """Give an operand a handle that no operand has, here or in another process, and return it.

    A saved program may carry it into another process. The handle that the operand had in the process that
    pickled it, `wanted`, is taken again unless another operand has it: the same one on another device.
    """
    with _lock:
        handle = secrets.randbits(63) if wanted is None else wanted
        while handle in _operands:
            handle = secrets.randbits(63)
        _operands[handle] = operand
    return handle


def operand_of(handle: int) -> SparseOperand:
    """Return the operand of a handle, the integer that custom ops carry; RuntimeError if it is gone."""
    try:
        return _operands[handle]
    except KeyError:
        raise RuntimeError(
            f"operand {handle} no longer exists, or was made in another process; accepted: an operand of "
            "which a reference is kept, or that was read from a pickle of the one that was traced"
        ) from None


_ACCEPTED = (
    "a slice, row numbers (int32 or int64 [k]) or a mask (bool [rows]); one row is A[i : i + 1], and columns "
    "are A.T[columns].T"
)


def row_numbers(rows: Any, count: int, device: torch.device) -> torch.Tensor:
    """Return the numbers of the rows that `SparseOperand[rows]` takes, int64 [k] on a device."""
    if isinstance(rows, slice):
        try:
            chosen = range(*rows.indices(count))
        except (TypeError, ValueError) as error:
            raise type(error)(f"rows: {error}; accepted: {_ACCEPTED}") from None
        return chosen.start + chosen.step * torch.arange(len(chosen), dtype=torch.int64, device=device)
    if isinstance(rows, (list, np.ndarray)):
        array = check_array("rows", rows, _ACCEPTED)
        rows = torch.from_numpy(array.astype(np.int64) if array.size == 0 and array.ndim == 1 else array)
    if not isinstance(rows, torch.Tensor):
        bad_type("rows", rows, _ACCEPTED)
    if rows.dtype == torch.bool and rows.layout == torch.strided:
        if check_device("rows", rows).shape != (count,):
            bad_value("rows", f"is a mask of shape {tuple(rows.shape)}; accepted: ({count},)")
        return unwrapped("rows", rows).to(device).nonzero().flatten()
    if rows.dtype not in (torch.int32, torch.int64):
        bad_type("rows", rows, _ACCEPTED)
    numbers = index_tensor("rows", rows).to(device, torch.int64)
    if numbers.numel() > 2**31 - 1:
        bad_value("rows", f"has {numbers.numel()} elements; accepted: at most 2^31 - 1")
    wrapped = torch.where(numbers < 0, numbers + count, numbers)
    check_range("rows", wrapped, count, f"A has {count} rows: with negative numbers counted from its end, it")
    return wrapped


class SparseOperand(Exported):
    """A sparse matrix prepared for products: `A @ X`, `gnnsparse.spmm`, `sddmm`, `edge_softmax`, `attention`.

    Made by `gnnsparse.prepare`; immutable. `A @ X` takes X [..., columns, n], as torch.matmul does. `A[rows]`
    is an operand of some rows: a slice, row numbers or a bool mask. Edge values of an operand, which `sddmm`
    writes and `spmm` reads, are in the operand's own order; `to_coo_order` and `from_coo_order` convert.
    """

    #: What computes the operations in place of this package's kernels, for a matrix that several processes
    #: share (gnnsparse.distributed); None: the kernels do.
    operations: Any = None

    def __init__(
        self,
        prepared: Prepared,
        which: int = 0,
        partner: SparseOperand | None = None,
        had: tuple[int, int] | tuple[None, None] = (None, None),
    ) -> None:
        self._prepared = prepared
        self._which = which
        self._kernels = prepared.caches[which]
        self._handle = _register(self, had[which])
        self._unquantized: SparseOperand | None = None
        # A holds a strong reference to its transpose, whose handle compiled code carries; the transpose holds
        # a weak one to A, so that the pair is freed with A.
        self._transpose = SparseOperand(prepared, 1 - which, self, had) if partner is None else None
        self._partner = None if partner is None else weakref.ref(partner)

    @classmethod
    def on(cls, prepared: Prepared, device: torch.device) -> SparseOperand:
        """Make an operand on a device, in the format that the device chooses if it does (`Prepared.on`)."""
        with outside():
            return cls(prepared.on(device))

    # An operand is immutable: copies of a model share it. Where it does not exist, unpickling makes it with
    # its handle, so that a program that was traced with it runs in another process.
    def __copy__(self) -> SparseOperand:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseOperand:
        return self

    def __reduce__(self) -> Any:
        pair = (self, self.T)[:: -1 if self._which else 1]
        return restore_operand, pack_operand(self._prepared, self._which, (pair[0].handle, pair[1].handle))

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self._kernels.csr.rows, self._kernels.csr.cols

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that weights and dense operands are rounded to and stored in: `precision.storage`.

        A product takes X of any floating-point dtype, and its result has the dtype of X.
        """
        return self.precision.storage

    @property
    def precision(self) -> Precision:
        """Arithmetic of the products."""
        return self._prepared.precision

    @property
    def normalization(self) -> str | None:
        """The weights that `prepare` computed, "gcn" or "mean"; None: they were given, or are 1 each.

        The transpose has the weights of the operand, and thus this name.
        """
        return self._prepared.normalization

    @property
    def added_loops(self) -> float | None:
        """Weight of the self-loops that `prepare` added to nodes without one; None: it added none."""
        return self._prepared.added_loops

    @property
    def has_self_loops(self) -> bool:
        """Whether every node has a self-loop: the matrix is square, and its whole diagonal is stored.

        Where `prepare` added self-loops this is known, and of a sampled block, which has fewer rows than
        columns. Else the first call reads all indices.
        """
        known = self._prepared.has_self_loops
        return self._prepared.find_self_loops() if known is None else known

    @property
    def cache_hit(self) -> bool:
        """Whether `prepare` found the prepared graph in its cache."""
        return self._prepared.cache_hit

    @property
    def device(self) -> torch.device:
        """The device of the arrays."""
        return self._prepared.device

    @property
    def merges_edges(self) -> bool:
        """Whether repeated edges were merged; False where `prepare` added self-loops, and it is not known."""
        return self.added_loops is None and self.num_edges != self.nnz

    @property
    def prepared(self) -> Prepared:
        """The arrays of A and of its transpose, in the orientation in which they were prepared."""
        return self._prepared

    @property
    def handle(self) -> int:
        """The integer that stands for this operand in custom ops."""
        return self._handle

    @property
    def kernels(self) -> KernelCache:
        """The matrix and everything that kernels derive from it: formats, work lists, plans."""
        return self._kernels

    @property
    def memo(self) -> Memo:
        """The arrays, work lists and plans that were made for this operand once."""
        return self._kernels.memo

    @property
    def T(self) -> SparseOperand:  # noqa: N802
        """The transpose, which shares arrays with this operand."""
        other = self._transpose if self._partner is None else self._partner()
        if other is not None:
            return other
        with self._prepared.lock:  # the original was freed
            if self._transpose is None:
                self._transpose, self._partner = SparseOperand(self._prepared, 1 - self._which, self), None
            return self._transpose

    @property
    def unquantized(self) -> SparseOperand:
        """This matrix, with an SpMM and attention that round to 16 bits where those of this one store 8.

        It shares all arrays with this operand. Gradients of products are computed with it. In a precision
        that does not quantise it is this operand.
        """
        if self._kernels.quantization is None:
            return self
        if self._which == 1:
            return self.T.unquantized.T
        with self._prepared.lock:
            if self._unquantized is None:
                self._unquantized = SparseOperand(self._prepared.unquantized())
            return self._unquantized

    # The orders of edges: the operand's own, that of its transpose, and that in which edges were given.

    @property
    def nnz(self) -> int:
        """Number of nonzeros, self-loops that were added included."""
        return self._kernels.csr.nnz

    @property
    def num_edges(self) -> int:
        """Number of edges given to `prepare`, repeats included."""
        return int(self._prepared.report["edges"])

    def indices(self) -> torch.Tensor:
        """Return (row, column) of each nonzero in the operand's order, int64 [2, nnz]."""
        rows = self._kernels.csr.row_index()
        if self._kernels.row_ids is not None:
            rows = self._kernels.row_ids.long()[rows]
        return torch.stack([rows, self._kernels.csr.indices.long()])

    @property
    def transpose_map(self) -> torch.Tensor:
        """For each nonzero of the transpose its index in this operand, int32 or int64 [nnz]."""
        return self._prepared.map_of_transpose(self._which)

    def transpose_values(self, values: torch.Tensor) -> torch.Tensor:
        """Reorder edge values from this operand's order to that of `A.T`. Differentiable.

        Args:
            values: [nnz, ...] in this operand's order.

        Returns:
            [nnz, ...] in the order of `A.T`.

        Raises:
            TypeError: `values` is no tensor with at least one dimension.
            ValueError: its first size is not nnz, or it is on another device.
        """
        self._check_edges("values", values, self.nnz)
        return values.index_select(0, self.transpose_map)

    def to_coo_order(self, values: torch.Tensor) -> torch.Tensor:
        """Reorder edge values to the order of the edges given to `prepare`. Differentiable.

        Args:
            values: [nnz, ...] in the operand's order.

        Returns:
            [edges, ...]; repeats of an edge all get the value of the nonzero they were merged into; values
            of self-loops that were added are left out.

        Raises:
            TypeError: `values` is no tensor with at least one dimension.
            ValueError: its first size is not nnz, or it is on another device.
        """
        self._check_edges("values", values, self.nnz)
        edges = self._prepared.map_of_edges(self._which)
        return values.clone() if edges is None else values.index_select(0, edges)

    def from_coo_order(self, values: torch.Tensor) -> torch.Tensor:
        """Reorder values of the edges given to `prepare` to the operand's order. Differentiable.

        Args:
            values: [edges, ...] in the order of the edges given to `prepare`.

        Returns:
            [nnz, ...]; values of repeats are summed, self-loops that were added get 0.

        Raises:
            TypeError: `values` is no tensor with at least one dimension.
            ValueError: its first size is not the number of edges, or it is on another device.
        """
        self._check_edges("values", values, self.num_edges)
        edges = self._prepared.map_of_edges(self._which)
        if edges is None:
            return values.clone()
        return values.new_zeros((self.nnz, *values.shape[1:])).index_add(0, edges, values)

    def _canonical(self) -> tuple[Csr, torch.Tensor | None]:
        """Return the matrix in the order of its rows, and its weights, rounded to the precision."""
        csr, weights, ids = self._kernels.csr, self._kernels.own_weights, self._kernels.row_ids
        weights = None if weights is None else weights.float()
        if ids is None:
            return csr, weights
        csr, source = csr.permute_rows(torch.argsort(ids))
        return csr, None if weights is None else weights[source.long()]

    def to(self, device: torch.device | str) -> SparseOperand:
        """Return the operand on `device`: this object if it is there already.

        Raises:
            TypeError: `device` is neither a device nor a name.
            ValueError: there is no such device, or operands can't be there.
        """
        device = device_of("device", device)
        if device == self.device:
            return self
        moved = SparseOperand.on(self._prepared, device)
        return moved if self._which == 0 else moved.T

    def cuda(self) -> SparseOperand:
        """Return the operand on the current GPU."""
        return self.to("cuda")

    def cpu(self) -> SparseOperand:
        """Return the operand on the CPU."""
        return self.to("cpu")

    @untraced
    @runs_outside
    def __getitem__(self, rows: Any) -> SparseOperand:
        """Return some of the rows as an operand: `A[10:20]`, `A[numbers]`, `A[mask]`.

        It has the weights, the precision and the options of A, so that A[rows] @ X is (A @ X)[rows]: bit for
        bit on the CPU, and to rounding on a GPU, where a plan of its own may add in another order. Its edges
        are its nonzeros: edge values are [nnz] of A[rows]. It is made on A's device, in time and memory
        in proportion to the nonzeros of these rows and to the columns of A, for its transpose is made too.
        A format that A was prepared in is converted anew, and a row order is not looked for again.

        Args:
            rows: a slice; row numbers, int32 or int64 [k], in any order, with repeats or without, negative
                ones counted from the end; or a mask, bool [rows]. Numbers and masks are tensors, arrays or
                lists.

        Raises:
            TypeError: `rows` is of another type or dtype.
            ValueError: a row number is out of range, or a shape is wrong.
            MemoryError: on the CPU, the rows need more memory than this process can get.
        """
        prepared, start = self._prepared, time.perf_counter()
        whole, numbers = self._kernels, row_numbers(rows, self.shape[0], self.device)
        stored = numbers if whole.row_ids is None else inverse(whole.row_ids)[numbers].long()
        csr, source = whole.csr.select_rows(stored)
        values, row_scale = whole.own_values(), whole.given_row_scale
        forward = KernelCache(
            csr,
            given_values=None if values is None else values[source],
            given_row_scale=None if row_scale is None else row_scale[numbers],
            given_col_scale=whole.given_col_scale,
        )
        transposed, index = csr.transpose()
        backward = forward.transposed(transposed, None, index)
        spec = None if prepared.auto_format or whole.blocked is None else whole.blocked.spec
        forward, backward = (side.in_format(self.precision, spec) for side in (forward, backward))
        seconds = time.perf_counter() - start
        report = {"symmetric": False, "reorder": {"method": "none"}, "edges": csr.nnz, "seconds": seconds}
        plans = None if prepared.plans is None else PlanStore("", None)
        chosen = replace(
            prepared, forward=forward, backward=backward, transpose_map=index, edge_map=None, report=report,
            is_part=True, cache_hit=False, plans=plans, one_stream=False, renewable=False,
        )  # fmt: skip
        return SparseOperand.on(chosen, self.device)

    #: Python would otherwise iterate by `A[0]`, `A[1]`, ...
    __iter__ = None

    def __matmul__(self, x: torch.Tensor) -> torch.Tensor:
        """Return A X for X [..., k, n] or [k], as torch.matmul does. Differentiable.

        All leading dimensions are columns of one product, for which X and the result are copied. Features of
        heads, [k, heads, d], go to `gnnsparse.spmm`.
        """
        if type(self) is SparseOperand and not torch.compiler.is_compiling():
            # By a native launch, if X has a form that has passed all checks before.
            y = self._kernels.dispatch_cache.multiply[0](x)
            if y is not None:
                return _recorded(x, self, False) if y is NotImplemented else y
        return _matmul(self, x)

    def __rmatmul__(self, x: Any) -> Any:
        raise TypeError("x @ A is not defined for a SparseOperand A: write (A.T @ x.T).T")

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Let torch.matmul(A, x), and `A @ x` under torch.compile, reach `A @ x`."""
        matmuls = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, operator.matmul)
        if function not in matmuls or len(args) != 2:
            return NotImplemented
        if isinstance(args[0], cls):
            return _matmul(*args)
        x, a = args
        # TorchDynamo hands over `A @ x` with its arguments swapped. Where the shapes rule out `x @ A`, which
        # operands do not define, it must have been `A @ x`.
        if torch.compiler.is_compiling() and x.dim() > 0 and x.shape[-1] != a.shape[0]:
            return _matmul(a, x)
        raise TypeError(
            "x @ A is not defined for a SparseOperand A: write (A.T @ x.T).T. Under torch.compile write "
            "torch.matmul(A, x) for A @ x where x has as many columns as A has rows"
        )

    def __repr__(self) -> str:
        blocked = self._kernels.blocked
        name = "csr" if blocked is None else blocked.spec.name
        rows, cols = self.shape
        return (
            f"SparseOperand({rows} x {cols}, nnz={self.nnz}, {self.precision.value}, "
            f"format={name}, device={self.device})"
        )

    def plan(
        self,
        width: int = 128,
        op: str = "spmm",
        edge_values: bool = False,
        *,
        heads: int = 1,
        value_width: int | None = None,
        has_score_terms: bool = False,
    ) -> Plan:
        """Return the plan by which an operation would run, with the reasons: `print(A.plan(128))`.

        Args:
            width: columns of X, or the feature dimension of q and k in SDDMM and attention.
            op: "spmm", "sddmm", "attention", or "attention_grad" for the backward pass of attention.
            edge_values: for spmm: whether edge values are given in the call.
            heads: for attention: number of heads times the batch size, whose tensors are contiguous.
            value_width: for attention: features of v; None: `width`.
            has_score_terms: for attention: whether a bias, dropout or a causal mask takes part.

        Returns:
            A plan of the kernel that would run. It can be given to the operation as `plan=`, as it is or
            changed by `dataclasses.replace`.

        Raises:
            TypeError: an argument is of another type.
            ValueError: an argument is out of range or plays no part in `op`.
        """
        product = check_product(op, width, edge_values, heads, value_width, has_score_terms)
        return self._kernels.plan_of(product, self.T.kernels if op == "attention_grad" else None)

    def tune(self, width: int, op: str = "spmm", edge_values: bool = False) -> Plan:
        """Measure every kernel that can run a product, and use the fastest from then on.

        It takes about a second, and while it runs the memory of every format. An operand that was prepared
        with autotune=True and a cache stores the choice in the cache. `A.T` is tuned on its own. On a CPU
        there is one kernel, and nothing to measure.

        Args:
            width: columns of X, or the feature dimension of SDDMM.
            op: "spmm" or "sddmm".
            edge_values: for spmm: whether edge values are given in the call.

        Returns:
            The plan; its first reason says what was measured.

        Raises:
            TypeError: an argument is of another type.
            ValueError: an argument is out of range or plays no part in `op`.
            RuntimeError: the native module was built without CUDA, or a CUDA graph is being captured.
        """
        check_choice("op", op, PRODUCTS)
        product = check_product(op, width, edge_values)
        if path().takes(self.device) and path().is_capturing():
            raise RuntimeError("a plan can't be measured while a CUDA graph is captured: tune before")
        store = self._prepared.plans or PlanStore("", None)
        plan = tune(self._kernels, product, store, self._prepared.direction(self._which))
        self._kernels.use_plan(product, plan)
        return plan

    def stats(self, width: int = 128) -> dict[str, Any]:
        """Return what the operand is made of, and which kernels run products with `width` columns.

        Returns:
            A dict: rows, cols, nnz, edges (given to `prepare`), precision, device, symmetric (structure),
            format, windows (row windows of that format) and columns (column slots, which the rows of a panel
            share), both None without a blocked format, density (nonzeros per element of the columns, without
            the rows that a format keeps out; without a format, per element of A), bytes by part ("panels":
            those made so far), format_bytes (None without a format; "stored": bytes of the format's arrays;
            "paper": those of its paper's formula, with offsets and indices of 32 bits and nothing extra, or
            None if it is of no paper), reorder (report), balance (how windows are cut into parts),
            prepare_seconds, cache_hit, and kernel: {op: {"name", "why"}} for each product that the format
            has; the name is None if no kernel can run it.

        Raises:
            TypeError: `width` is no integer.
            ValueError: `width` is below 1.
        """
        check_integer("width", width)
        prepared, own = self._prepared, self._kernels
        blocked = own.blocked
        report, values = prepared.report, own.values
        chosen: dict[str, Any] = {}
        for op in operations(own.format_name):
            try:
                plan = own.plan(op, width)
                chosen[op] = {"name": plan.kernel, "why": list(plan.reasons)}
            except ValueError as error:  # the device has no kernel of the format that was asked for
                chosen[op] = {"name": None, "why": [str(error)]}
        rows, cols, nnz = own.csr.rows, own.csr.cols, own.csr.nnz
        stored, inside, format_bytes = rows * cols, nnz, None
        if blocked is not None:
            preset = PRESETS.get(blocked.spec.name)
            paper = preset.paper_bytes(blocked) if preset and preset.paper_bytes else None
            format_bytes = {"stored": blocked.nbytes, "paper": paper}
            kept_out = 0 if blocked.residual is None else blocked.residual.nnz
            stored, inside = blocked.slots * blocked.spec.panel, nnz - kept_out
        sizes = {
            "csr": own.csr.nbytes,
            "blocked": blocked.nbytes if blocked else 0,
            "panels": own.panel_bytes,
            "values": values.nbytes if values is not None else 0,
            "transpose": 0 if prepared.is_shared else prepared.backward.csr.nbytes,
            "maps": sum(t.nbytes for t in (prepared.transpose_map, prepared.edge_map) if t is not None),
        }
        return {
            "rows": rows,
            "cols": cols,
            "nnz": nnz,
            "edges": self.num_edges,
            "precision": self.precision.value,
            "device": str(self.device),
            "symmetric": report["symmetric"],
            "format": blocked.spec.name if blocked else "csr",
            "windows": blocked.panels * (blocked.spec.panel // blocked.spec.window) if blocked else None,
            "columns": blocked.slots if blocked else None,
            "density": inside / max(stored, 1),
            "bytes": sizes,
            "format_bytes": format_bytes,
            "reorder": report["reorder"],
            "balance": prepared.balance,
            "prepare_seconds": report["seconds"],
            "cache_hit": self.cache_hit,
            "kernel": chosen,
        }

    def _check_edges(self, name: str, values: Any, count: int) -> None:
        if not isinstance(values, torch.Tensor) or values.layout != torch.strided or values.dim() < 1:
            bad_type(name, values, f"a tensor [{count}, ...]")
        if values.shape[0] != count:
            bad_value(name, f"has {values.shape[0]} elements; accepted: {count}, one for each edge")
        if values.device != self.device:
            bad_value(name, f"is on {values.device}; accepted: {self.device}, where the operand is")


send_by_value(SparseOperand)

#: What `A @ X` calls. gnnsparse.ops imports this module and sets it (`bind_matmul`).
_matmul: Callable[[SparseOperand, torch.Tensor], torch.Tensor]
#: A launched product that autograd records: (X, A, whether it is a mean) -> A X.
_recorded: Callable[[torch.Tensor, SparseOperand, bool], torch.Tensor]


def bind_matmul(
    function: Callable[[SparseOperand, torch.Tensor], torch.Tensor],
    recorded: Callable[[torch.Tensor, SparseOperand, bool], torch.Tensor],
) -> None:
    """Make `A @ X` call `function`, or `recorded` where a native launch computes what autograd records."""
    global _matmul, _recorded
    _matmul, _recorded = function, recorded


def restore_operand(tensors: Any, facts: Any, state: Any, device: Any) -> SparseOperand:
    """Check what was saved of an operand (gnnsparse.sparse.saved), and make it unless this process has it."""
    with outside():
        prepared, read = unpack_operand(tensors, facts, state, device)
    known = _operands.get(read.handles[int(read.transposed)])
    if known is not None and known.device == prepared.device:
        return known
    operand = SparseOperand(prepared, had=read.handles)
    return operand.T if read.transposed else operand


# torch.load with weights_only=True calls this function, which checks what it gets.
torch.serialization.add_safe_globals([restore_operand])
