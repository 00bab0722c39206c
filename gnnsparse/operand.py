"""SparseOperand: a prepared sparse matrix on a device."""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Callable
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value, check_choice, check_flag, check_integer
from gnnsparse.formats import format_spec
from gnnsparse.plan import Plan, describe_device
from gnnsparse.precision import Precision, round_operand
from gnnsparse.preprocess.convert import convert
from gnnsparse.preprocess.plans import PlanStore
from gnnsparse.preprocess.prepare import Direction, Prepared, inverse
from gnnsparse.side import Side

__all__ = ["SparseOperand", "bind_matmul", "bind_tuner", "operand_of"]

_handles = itertools.count()
_operands: weakref.WeakValueDictionary[int, SparseOperand] = weakref.WeakValueDictionary()


def operand_of(handle: int) -> SparseOperand:
    """The operand behind the integer that custom ops carry.

    Raises:
        RuntimeError: it is gone.
    """
    try:
        return _operands[handle]
    except KeyError:
        raise RuntimeError(f"operand {handle} no longer exists; keep a reference to it") from None


class _Core:
    """What an operand and its transpose share. Index 0 is A, index 1 its transpose."""

    def __init__(
        self,
        prepared: Prepared,
        precision: Precision,
        auto_format: bool,
        cache_hit: bool,
        plans: PlanStore | None = None,
    ) -> None:
        self.prepared = prepared
        self.precision = precision
        self.auto_format = auto_format
        self.cache_hit = cache_hit
        self.plans = plans
        self.device = prepared.forward.csr.device
        self._arrays: dict[tuple[str, int], torch.Tensor | None] = {}
        row, col = prepared.row_scale, prepared.col_scale
        self.sides = (
            _make_side(prepared.forward, precision, auto_format, lambda: self._values(0), row, col),
            _make_side(prepared.backward, precision, auto_format, lambda: self._values(1), col, row),
        )

        if plans is not None:
            for which, side in enumerate(self.sides):
                side.tuner = _tuner_of(plans, self.direction(which))

    def direction(self, which: int) -> str:
        """ "A", or "T" for a transpose that is stored apart."""
        return "A" if which == 0 or self.prepared.backward is self.prepared.forward else "T"

    def _once(self, name: str, which: int, make: Callable[[], torch.Tensor | None]) -> torch.Tensor | None:
        key = (name, which)
        if key not in self._arrays:
            self._arrays[key] = make()
        return self._arrays[key]

    def _values(self, which: int) -> torch.Tensor | None:
        values = self.prepared.values
        if values is not None and which == 1:
            values = values.index_select(0, self.transpose_map(0))
        return None if values is None else round_operand(values, self.precision)

    def transpose_map(self, which: int) -> torch.Tensor:
        """For each slot of the other direction the slot of the same nonzero in this one."""

        def make() -> torch.Tensor:
            forward = self.prepared.transpose_map
            return (forward if which == 0 else inverse(forward)).to(self.device)

        found = self._once("transpose_map", which, make)
        assert found is not None
        return found

    def edge_map(self, which: int) -> torch.Tensor | None:
        """For each edge given its slot in this direction; None: edge e is slot e."""

        def make() -> torch.Tensor | None:
            edges = self.prepared.edge_map
            edges = None if edges is None else edges.to(self.device)
            if which == 0:
                return edges
            back = self.transpose_map(1)
            return back if edges is None else back.index_select(0, edges)

        return self._once("edge_map", which, make)


class SparseOperand:
    """A sparse matrix prepared for products: `A @ X`, `gnnsparse.spmm`, `sddmm`, `edge_softmax`.

    Made by `gnnsparse.prepare`; immutable. Edge values of an operand are in its own order, the one
    that `sddmm` writes and `spmm` reads: `to_coo_order` and `from_coo_order` convert.
    """

    def __init__(self, core: _Core, which: int = 0, partner: SparseOperand | None = None) -> None:
        self._core = core
        self._which = which
        self._side = core.sides[which]
        self._handle = next(_handles)
        _operands[self._handle] = self
        # A keeps its transpose, whose handle compiled code carries; the transpose does not keep A.
        self._transpose = SparseOperand(core, 1 - which, self) if partner is None else None
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
    ) -> SparseOperand:
        """An operand on `device`; with `auto_format` in the format that suits the device.

        With `plans`, its plans are measured and kept there.
        """
        if device != prepared.forward.csr.device:
            prepared = _move(prepared, device)
        if auto_format:
            prepared = _with_auto_format(prepared, precision)
        return cls(_Core(prepared, precision, auto_format, cache_hit, plans))

    # An operand is immutable: copies of a model share it, and a pickle makes a new one.
    def __copy__(self) -> SparseOperand:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseOperand:
        return self

    def __reduce__(self) -> Any:
        core = self._core
        facts = core.prepared, core.precision, core.auto_format, core.cache_hit, core.plans
        return _restore, (*facts, self._which)

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self._side.csr.rows, self._side.csr.cols

    @property
    def nnz(self) -> int:
        """Stored elements, self-loops that were added included."""
        return self._side.csr.nnz

    @property
    def precision(self) -> Precision:
        """Arithmetic of the products."""
        return self._core.precision

    @property
    def cache_hit(self) -> bool:
        """Whether `prepare` found it in its cache."""
        return self._core.cache_hit

    @property
    def device(self) -> torch.device:
        """Where the arrays are."""
        return self._core.device

    @property
    def num_edges(self) -> int:
        """Edges given to `prepare`, repeats included."""
        return int(self._core.prepared.facts["edges"])

    @property
    def handle(self) -> int:
        """The integer that stands for this operand in custom ops."""
        return self._handle

    @property
    def side(self) -> Side:
        """What the kernels read."""
        return self._side

    @property
    def T(self) -> SparseOperand:  # noqa: N802
        """The transpose: it shares arrays with this operand."""
        other = self._transpose if self._partner is None else self._partner()
        if other is None:  # the operand this one was the transpose of is gone
            other = self._transpose = SparseOperand(self._core, 1 - self._which, self)
            self._partner = None
        return other

    @property
    def transpose_map(self) -> torch.Tensor:
        """For each slot of the transpose the slot of the same nonzero here."""
        return self._core.transpose_map(self._which)

    def transpose_values(self, values: torch.Tensor) -> torch.Tensor:
        """Edge values in the order of `A.T`. Differentiable."""
        return values.index_select(0, self.transpose_map)

    def indices(self) -> torch.Tensor:
        """(row, column) of each nonzero in the operand's order, int64 [2, nnz]."""
        rows = self._side.csr.row_index()
        if self._side.row_ids is not None:
            rows = self._side.row_ids.long()[rows]
        return torch.stack([rows, self._side.csr.indices.long()])

    def to_coo_order(self, values: torch.Tensor) -> torch.Tensor:
        """Edge values in the order of the edges given to `prepare`. Differentiable.

        Args:
            values: [nnz, ...] in the operand's order.

        Returns:
            [edges, ...]; repeats of an edge all get the value of the edge they were merged into, and
            self-loops that were added have no place.

        Raises:
            ValueError: a wrong first size or device.
        """
        self._check_edges("values", values, self.nnz)
        edges = self._core.edge_map(self._which)
        return values.clone() if edges is None else values.index_select(0, edges)

    def from_coo_order(self, values: torch.Tensor) -> torch.Tensor:
        """Edge values in the operand's order from those of the given edges. Differentiable.

        Args:
            values: [edges, ...] in the order of the edges given to `prepare`.

        Returns:
            [nnz, ...]; values of repeats are summed, self-loops that were added get 0.

        Raises:
            ValueError: a wrong first size or device.
        """
        self._check_edges("values", values, self.num_edges)
        edges = self._core.edge_map(self._which)
        if edges is None:
            return values.clone()
        return values.new_zeros((self.nnz, *values.shape[1:])).index_add(0, edges, values)

    def _check_edges(self, name: str, values: Any, count: int) -> None:
        if not isinstance(values, torch.Tensor) or values.dim() < 1:
            bad_type(name, values, f"a tensor [{count}, ...]")
        if values.shape[0] != count:
            bad_value(name, f"has {values.shape[0]} elements; accepted: {count}, one for each edge")
        if values.device != self.device:
            bad_value(name, f"is on {values.device}; accepted: {self.device}, where the operand is")

    def to(self, device: torch.device | str) -> SparseOperand:
        """The same operand on `device`; itself if it is there already."""
        device = torch.empty(0, device=device).device  # "cuda" -> "cuda:0"
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
        )
        return moved if self._which == 0 else moved.T

    def cuda(self) -> SparseOperand:
        """The same operand on the current GPU."""
        return self.to("cuda")

    def cpu(self) -> SparseOperand:
        """The same operand on the CPU."""
        return self.to("cpu")

    def __matmul__(self, x: torch.Tensor) -> torch.Tensor:
        return _matmul(self, x)

    def __rmatmul__(self, x: Any) -> Any:
        raise TypeError("x @ A is not defined for a SparseOperand A: write (A.T @ x.T).T")

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Lets torch.matmul(A, x), and `A @ x` under torch.compile, reach `spmm`."""
        matmuls = (torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__, operator.matmul)
        if function not in matmuls or len(args) != 2:
            return NotImplemented
        if isinstance(args[0], cls):
            return _matmul(*args)
        x, a = args
        # TorchDynamo hands over `A @ x` with its arguments swapped. It can be nothing else where
        # the shapes rule out `x @ A`, which operands do not define.
        if torch.compiler.is_compiling() and x.dim() == 2 and x.shape[1] != a.shape[0]:
            return _matmul(a, x)
        raise TypeError(
            "x @ A is not defined for a SparseOperand A: write (A.T @ x.T).T. Under torch.compile write "
            "gnnsparse.spmm(A, x) for A @ x where x has as many columns as A has rows"
        )

    def __repr__(self) -> str:
        blocked = self._side.blocked
        name = "csr" if blocked is None else blocked.spec.name
        rows, cols = self.shape
        return (
            f"SparseOperand({rows} x {cols}, nnz={self.nnz}, {self.precision.value}, "
            f"format={name}, device={self.device})"
        )

    def plan(self, width: int = 128, op: str = "spmm", edge_values: bool = False) -> Plan:
        """How a product would run, and why: `print(A.plan(128))`.

        Args:
            width: columns of X, or the feature dimension of SDDMM.
            op: "spmm" or "sddmm".
            edge_values: whether values come with the call.

        Raises:
            TypeError, ValueError: an argument is of another type or out of range.
        """
        return self._side.plan(*_check_product(op, width, edge_values))

    def tune(self, width: int, op: str = "spmm", edge_values: bool = False) -> Plan:
        """Measures every kernel that can run a product, and uses the fastest from then on.

        It takes about a second and the memory of every format, once: an operand that was prepared with
        autotune=True and a cache keeps the choice there. `A.T` is tuned on its own. On a CPU there is one
        kernel, and nothing to measure.

        Args:
            width, op, edge_values: as of `plan`.

        Returns:
            The plan; its first reason says what was measured.

        Raises:
            TypeError, ValueError: as `plan`.
            RuntimeError: the native module was built without CUDA, or a CUDA graph is being captured.
        """
        product = _check_product(op, width, edge_values)
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise RuntimeError("a plan can't be measured while a CUDA graph is captured: tune before")
        store = self._core.plans or PlanStore("", None)
        plan = _tune(self._side, *product, store, self._core.direction(self._which))
        self._side.use_plan(*product, plan)
        return plan

    def stats(self, width: int = 128) -> dict[str, Any]:
        """What the operand is made of, and how a product with `width` columns would run.

        Returns:
            rows, cols, nnz, edges (as given), precision, device, symmetric (structure), format,
            windows and columns (of 8-row windows; None without a blocked format), density (nonzeros
            per stored element of them), bytes by part (of panels those made so far), reorder (report),
            prepare_seconds, cache_hit, and kernel: {op: {"name", "why"}}.
        """
        prepared, side, blocked = self._core.prepared, self._side, self._side.blocked
        facts = prepared.facts
        kernels = {}
        for op in ("spmm", "sddmm"):
            plan = side.plan(op, width, False)
            kernels[op] = {"name": plan.kernel, "why": list(plan.reasons)}
        rows, cols = self.shape
        stored = blocked.slots * blocked.spec.window if blocked else rows * cols
        sizes = {
            "csr": side.csr.nbytes,
            "blocked": blocked.nbytes if blocked else 0,
            "panels": side.panel_bytes,
            "values": side.values.nbytes if side.values is not None else 0,
            "transpose": 0 if prepared.backward is prepared.forward else prepared.backward.csr.nbytes,
            "maps": sum(t.nbytes for t in (prepared.transpose_map, prepared.edge_map) if t is not None),
        }
        return {
            "rows": rows,
            "cols": cols,
            "nnz": self.nnz,
            "edges": self.num_edges,
            "precision": self.precision.value,
            "device": str(self.device),
            "symmetric": facts["symmetric"],
            "format": blocked.spec.name if blocked else "csr",
            "windows": blocked.panels * (blocked.spec.panel // blocked.spec.window) if blocked else None,
            "columns": blocked.slots if blocked else None,
            "density": self.nnz / max(stored, 1),
            "bytes": sizes,
            "reorder": facts["reorder"],
            "prepare_seconds": facts["seconds"],
            "cache_hit": self.cache_hit,
            "kernel": kernels,
        }


#: What `A @ X` calls: gnnsparse.ops, which imports this module, puts spmm here.
_matmul: Callable[[SparseOperand, torch.Tensor], torch.Tensor]
#: What measures plans: gnnsparse.ops.tuning, likewise.
_tune: Callable[[Side, str, int, bool, PlanStore, str], Plan]


def bind_matmul(function: Callable[[SparseOperand, torch.Tensor], torch.Tensor]) -> None:
    """Makes `A @ X` call `function`."""
    global _matmul
    _matmul = function


def bind_tuner(function: Callable[[Side, str, int, bool, PlanStore, str], Plan]) -> None:
    """Makes `tune` and operands that were prepared with autotune=True call `function`."""
    global _tune
    _tune = function


def _tuner_of(plans: PlanStore, direction: str) -> Callable[[Side, str, int, bool], Plan]:
    return lambda side, op, width, edge_values: _tune(side, op, width, edge_values, plans, direction)


def _restore(
    prepared: Prepared,
    precision: Precision,
    auto_format: bool,
    cache_hit: bool,
    plans: PlanStore | None,
    which: int,
) -> SparseOperand:
    operand = SparseOperand(_Core(prepared, precision, auto_format, cache_hit, plans))
    return operand if which == 0 else operand.T


def _check_product(op: Any, width: Any, edge_values: Any) -> tuple[str, int, bool]:
    check_choice("op", op, ("spmm", "sddmm"))
    if check_flag("edge_values", edge_values) and op == "sddmm":
        bad_value("edge_values", "play no part in sddmm")
    return op, check_integer("width", width), edge_values


def _make_side(
    direction: Direction,
    precision: Precision,
    auto_format: bool,
    values: Callable[[], torch.Tensor | None],
    row_scale: torch.Tensor | None,
    col_scale: torch.Tensor | None,
) -> Side:
    ids = direction.row_ids
    if row_scale is not None and ids is not None:
        row_scale = row_scale[ids.long()]
    rounded = None if col_scale is None else round_operand(col_scale, precision).float()
    blocked = direction.blocked
    panels = auto_format or (blocked is not None and blocked.spec.name == "window")
    return Side(direction.csr, ids, blocked, precision, values, row_scale, rounded, panels)


def _move_direction(side: Direction, device: torch.device) -> Direction:
    ids = None if side.row_ids is None else side.row_ids.to(device)
    blocked = None if side.blocked is None else side.blocked.to(device)
    return Direction(side.csr.to(device), ids, blocked)


def _move(p: Prepared, device: torch.device) -> Prepared:
    """Moves what every call needs; the maps follow when a call needs them."""
    forward = _move_direction(p.forward, device)
    backward = forward if p.backward is p.forward else _move_direction(p.backward, device)
    values, row, col = (None if t is None else t.to(device) for t in (p.values, p.row_scale, p.col_scale))
    return Prepared(forward, backward, p.transpose_map, p.edge_map, values, row, col, p.facts)


def _with_auto_format(p: Prepared, precision: Precision) -> Prepared:
    """Adds the window format on a GPU whose Tensor Cores take the precision, drops it elsewhere."""
    device = describe_device(p.forward.csr.device)
    wanted = device.has_window_kernel[precision]

    def with_format(side: Direction) -> Direction:
        spec = format_spec("window", precision)
        return Direction(side.csr, side.row_ids, convert(side.csr, spec, None) if wanted else None)

    forward = with_format(p.forward)
    backward = forward if p.backward is p.forward else with_format(p.backward)
    return Prepared(
        forward, backward, p.transpose_map, p.edge_map, p.values, p.row_scale, p.col_scale, p.facts
    )
