"""SparseOperand: a prepared sparse matrix on a device."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import Any

import torch

from gnnsparse.errors import check_choice, check_integer, device_of
from gnnsparse.formats.csr import Csr, send_by_value
from gnnsparse.plan import Plan
from gnnsparse.plan.store import PlanStore
from gnnsparse.precision import Precision
from gnnsparse.preprocess.prepare import Prepared
from gnnsparse.runtime.device import path
from gnnsparse.runtime.functorch import outside, runs_outside
from gnnsparse.sparse import handles
from gnnsparse.sparse.graph import Exported
from gnnsparse.sparse.kernel_cache import KernelCache
from gnnsparse.sparse.operand_core import PRODUCTS, OperandCore, check_product, place
from gnnsparse.sparse.operand_core import tune as tune_product
from gnnsparse.sparse.operand_edges import EdgeOrders
from gnnsparse.sparse.operand_rows import row_numbers, select_rows
from gnnsparse.sparse.operand_stats import operand_stats
from gnnsparse.sparse.pickling import pack_core, unpack_core

__all__ = ["SparseOperand", "bind_matmul", "operand_of", "restore_operand"]


def operand_of(handle: int) -> SparseOperand:
    """Returns the operand of a handle, the integer that custom ops carry in its place.

    Raises:
        RuntimeError: the operand no longer exists, or is one of another process.
    """
    found: SparseOperand = handles.find(handle)
    return found


class SparseOperand(EdgeOrders, Exported):
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
        core: OperandCore,
        which: int = 0,
        partner: SparseOperand | None = None,
        had: tuple[int, int] | tuple[None, None] = (None, None),
    ) -> None:
        self._core = core
        self._which = which
        self._kernels = core.caches[which]
        self._handle = handles.register(self, had[which])
        self._unquantized: SparseOperand | None = None
        # A holds a strong reference to its transpose, whose handle compiled code carries; the transpose holds
        # a weak one to A, so that the pair is freed with A.
        self._transpose = SparseOperand(core, 1 - which, self, had) if partner is None else None
        self._partner = None if partner is None else weakref.ref(partner)

    @classmethod
    def from_prepared(
        cls,
        prepared: Prepared,
        precision: Precision,
        device: torch.device,
        *,
        auto_format: bool,
        cache_hit: bool,
        plans: PlanStore | None = None,
        balance: str = "auto",
    ) -> SparseOperand:
        """Makes an operand of a prepared graph on `device`.

        Args:
            prepared: the arrays.
            precision: arithmetic of the products.
            device: a CPU or GPU.
            auto_format: whether the format is chosen by the device.
            cache_hit: whether the arrays were read from the cache.
            plans: where measured plans are stored; None: plans are chosen by the model.
            balance: how windows are cut into parts, one of gnnsparse.plan.window.BALANCES.
        """
        with outside():
            prepared = place(prepared, device, precision, auto_format)
        return cls(OperandCore(prepared, precision, auto_format, cache_hit, plans, balance))

    # An operand is immutable: copies of a model share it. Where it does not exist, unpickling makes it with
    # its handle, so that a program that was traced with it runs in another process.
    def __copy__(self) -> SparseOperand:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseOperand:
        return self

    def __reduce__(self) -> Any:
        pair = (self, self.T)[:: -1 if self._which else 1]
        return restore_operand, pack_core(self._core, self._which, (pair[0].handle, pair[1].handle))

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
        return self._core.precision

    @property
    def normalization(self) -> str | None:
        """The weights that `prepare` computed, "gcn" or "mean"; None: they were given, or are 1 each.

        The transpose has the weights of the operand, and thus this name.
        """
        return self._core.prepared.normalization

    @property
    def added_loops(self) -> float | None:
        """Weight of the self-loops that `prepare` added to nodes without one; None: it added none."""
        return self._core.prepared.added_loops

    @property
    def has_self_loops(self) -> bool:
        """Whether every node has a self-loop: the matrix is square, and its whole diagonal is stored.

        Where `prepare` added self-loops this is known, and of a sampled block, which has fewer rows than
        columns. Else the first call reads all indices.
        """
        known = self._core.has_self_loops
        return self._core.find_self_loops() if known is None else known

    @property
    def cache_hit(self) -> bool:
        """Whether `prepare` found the prepared graph in its cache."""
        return self._core.cache_hit

    @property
    def device(self) -> torch.device:
        """The device of the arrays."""
        return self._core.device

    @property
    def merges_edges(self) -> bool:
        """Whether repeated edges were merged; False where `prepare` added self-loops, and it is not known."""
        return self.added_loops is None and self.num_edges != self.nnz

    @property
    def prepared(self) -> Prepared:
        """The arrays of A and of its transpose, in the orientation in which they were prepared."""
        return self._core.prepared

    @property
    def handle(self) -> int:
        """The integer that stands for this operand in custom ops."""
        return self._handle

    @property
    def kernels(self) -> KernelCache:
        """The matrix and everything that kernels derive from it: formats, work lists, plans."""
        return self._kernels

    @property
    def side(self) -> KernelCache:
        """The former name of `kernels`."""
        return self.kernels

    @property
    def T(self) -> SparseOperand:  # noqa: N802
        """The transpose, which shares arrays with this operand."""
        other = self._transpose if self._partner is None else self._partner()
        return other if other is not None else self._new_transpose()

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
        with self._core.lock:
            if self._unquantized is None:
                self._unquantized = SparseOperand(self._core.unquantized())
            return self._unquantized

    def _new_transpose(self) -> SparseOperand:
        """Makes another A.T for an operand that is a transpose itself and whose original was freed."""
        with self._core.lock:
            if self._transpose is None:
                self._transpose, self._partner = SparseOperand(self._core, 1 - self._which, self), None
            return self._transpose

    def _canonical(self) -> tuple[Csr, torch.Tensor | None]:
        """Returns the matrix in the order of its rows, and its weights, rounded to the precision."""
        csr, weights, ids = self._kernels.csr, self._kernels.own_weights, self._kernels.row_ids
        weights = None if weights is None else weights.float()
        if ids is None:
            return csr, weights
        csr, source = csr.permute_rows(torch.argsort(ids))
        return csr, None if weights is None else weights[source.long()]

    def to(self, device: torch.device | str) -> SparseOperand:
        """Returns the operand on `device`: this object if it is there already.

        Raises:
            TypeError: `device` is neither a device nor a name.
            ValueError: there is no such device, or operands can't be there.
        """
        device = device_of("device", device)
        if device == self.device:
            return self
        core = self._core
        moved = SparseOperand.from_prepared(
            core.prepared,
            core.precision,
            device,
            auto_format=core.auto_format,
            cache_hit=core.cache_hit,
            plans=core.plans,
            balance=core.balance,
        )
        return moved if self._which == 0 else moved.T

    def cuda(self) -> SparseOperand:
        """Returns the operand on the current GPU."""
        return self.to("cuda")

    def cpu(self) -> SparseOperand:
        """Returns the operand on the CPU."""
        return self.to("cpu")

    def __getitem__(self, rows: Any) -> SparseOperand:
        """Returns some of the rows as an operand: `A[10:20]`, `A[numbers]`, `A[mask]`.

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
        if torch.compiler.is_compiling():
            return torch.compiler.disable(self._rows)(rows)
        return self._rows(rows)

    #: Python would otherwise iterate by `A[0]`, `A[1]`, ...
    __iter__ = None

    @runs_outside
    def _rows(self, rows: Any) -> SparseOperand:
        core, numbers = self._core, row_numbers(rows, self.shape[0], self.device)
        return SparseOperand.from_prepared(
            select_rows(core, self._which, numbers),
            core.precision,
            core.device,
            auto_format=core.auto_format,
            cache_hit=False,
            plans=None if core.plans is None else PlanStore("", None),
            balance=core.balance,
        )

    def __matmul__(self, x: torch.Tensor) -> torch.Tensor:
        """Returns A X for X [..., k, n] or [k], as torch.matmul does. Differentiable.

        All leading dimensions are columns of one product, for which X and the result are copied. Features of
        heads, [k, heads, d], go to `gnnsparse.spmm`.
        """
        if type(self) is SparseOperand and not torch.compiler.is_compiling():
            # By a native launch, if X has a form that has passed all checks before.
            y = self._kernels.accepted.multiply[0](x)
            if y is not None:
                return _recorded(x, self, False) if y is NotImplemented else y
        return _matmul(self, x)

    def __rmatmul__(self, x: Any) -> Any:
        raise TypeError("x @ A is not defined for a SparseOperand A: write (A.T @ x.T).T")

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Lets torch.matmul(A, x), and `A @ x` under torch.compile, reach `A @ x`."""
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
        """Returns the plan by which an operation would run, with the reasons: `print(A.plan(128))`.

        Args:
            width: columns of X, or the feature dimension of q and k in SDDMM and attention.
            op: "spmm", "sddmm", "attention", or "attention_grad" for the backward pass of attention.
            edge_values: for spmm: whether edge values are given in the call.
            heads: for attention: number of heads times the batch size.
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
        """Measures every kernel that can run a product, and uses the fastest from then on.

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
        store = self._core.plans or PlanStore("", None)
        plan = tune_product(self._kernels, product, store, self._core.direction(self._which))
        self._kernels.use_plan(product, plan)
        return plan

    def stats(self, width: int = 128) -> dict[str, Any]:
        """Returns what the operand is made of, and which kernels run products with `width` columns.

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
        return operand_stats(self._core, self._kernels, width)


send_by_value(SparseOperand)

#: What `A @ X` calls. gnnsparse.ops imports this module and sets it (`bind_matmul`).
_matmul: Callable[[SparseOperand, torch.Tensor], torch.Tensor]
#: A launched product that autograd records: (X, A, whether it is a mean) -> A X.
_recorded: Callable[[torch.Tensor, SparseOperand, bool], torch.Tensor]


def bind_matmul(
    function: Callable[[SparseOperand, torch.Tensor], torch.Tensor],
    recorded: Callable[[torch.Tensor, SparseOperand, bool], torch.Tensor],
) -> None:
    """Makes `A @ X` call `function`, or `recorded` where a native launch computes what autograd records."""
    global _matmul, _recorded
    _matmul, _recorded = function, recorded


def restore_operand(tensors: Any, facts: Any, state: Any, device: Any) -> SparseOperand:
    """Makes an operand of what was saved of one (gnnsparse.sparse.pickling), and checks it.

    In a process that has the operand, on the device that is asked for, that one is returned.

    Raises:
        TypeError, ValueError: the arguments are not those of an operand.
    """
    with outside():
        core, read = unpack_core(tensors, facts, state, device)
    known: SparseOperand | None = handles.held(read.handles[int(read.transposed)])
    if known is not None and known.device == core.device:
        return known
    operand = SparseOperand(core, had=read.handles)
    return operand.T if read.transposed else operand


# torch.load with weights_only=True calls this function, which checks what it gets.
torch.serialization.add_safe_globals([restore_operand])
