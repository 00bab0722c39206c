"""SparseOperand: a prepared sparse matrix on a device."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch

from gnnsparse.errors import bad_type, bad_value
from gnnsparse.formats import format_spec
from gnnsparse.plan import describe_device
from gnnsparse.precision import Precision, round_operand
from gnnsparse.preprocess.convert import convert
from gnnsparse.preprocess.prepare import Direction, Prepared
from gnnsparse.side import Side

__all__ = ["SparseOperand", "bind_matmul", "operand_of"]

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


class SparseOperand:
    """A sparse matrix prepared for products: `A @ X`, `gnnsparse.spmm`, `sddmm`, `edge_softmax`.

    Made by `gnnsparse.prepare`; immutable. Edge values of an operand are in its own order, the one
    that `sddmm` writes and `spmm` reads: `to_coo_order` and `from_coo_order` convert.
    """

    def __init__(
        self,
        prepared: Prepared,
        precision: Precision,
        *,
        auto_format: bool,
        cache_hit: bool,
        partner: SparseOperand | None = None,
    ) -> None:
        self._prepared = prepared
        self._precision = precision
        self._auto_format = auto_format
        self._cache_hit = cache_hit
        self._lazy: dict[str, torch.Tensor] = {}
        self._partner = partner
        row, col = prepared.row_scale, prepared.col_scale
        self._side = _make_side(prepared.forward, precision, prepared.values, row, col)
        self._register()

    @classmethod
    def from_prepared(
        cls, prepared: Prepared, precision: Precision, device: torch.device, *,
        auto_format: bool, cache_hit: bool,
    ) -> SparseOperand:  # fmt: skip
        """An operand on `device`; with `auto_format` in the format that suits the device."""
        if device != prepared.forward.csr.device:
            prepared = _move(prepared, device)
        if auto_format:
            prepared = _with_auto_format(prepared, precision)
        return cls(prepared, precision, auto_format=auto_format, cache_hit=cache_hit)

    def _register(self) -> None:
        self._handle = next(_handles)
        _operands[self._handle] = self

    # An operand is immutable: copies of a model share it, and a pickle makes a new one.
    def __copy__(self) -> SparseOperand:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SparseOperand:
        return self

    def __getstate__(self) -> dict[str, Any]:
        return {
            "prepared": self._prepared,
            "precision": self._precision,
            "auto_format": self._auto_format,
            "cache_hit": self._cache_hit,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state.pop("prepared"), state.pop("precision"), **state)  # type: ignore[misc]

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
        return self._precision

    @property
    def device(self) -> torch.device:
        """Where the arrays are."""
        return self._side.csr.device

    @property
    def num_edges(self) -> int:
        """Edges given to `prepare`, repeats included."""
        return int(self._prepared.facts["edges"])

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
        if self._partner is None:
            p = self._prepared
            values_t = None if p.values is None else p.values[self.transpose_map.long()]
            back = torch.empty_like(self.transpose_map)
            back[self.transpose_map.long()] = torch.arange(self.nnz, dtype=back.dtype, device=back.device)
            edge_map = back if p.edge_map is None else back[self._on_device("edge_map").long()]
            transposed = Prepared(
                p.backward, p.forward, back, edge_map, values_t, p.col_scale, p.row_scale, p.facts
            )
            self._partner = SparseOperand(
                transposed, self._precision, auto_format=self._auto_format,
                cache_hit=self._cache_hit, partner=self,
            )  # fmt: skip
        return self._partner

    def _on_device(self, name: str) -> torch.Tensor:
        """An array that few calls need: it is moved to the device when one does."""
        if name not in self._lazy:
            self._lazy[name] = getattr(self._prepared, name).to(self.device)
        return self._lazy[name]

    @property
    def transpose_map(self) -> torch.Tensor:
        """For each slot of the transpose the slot of the same nonzero here."""
        return self._on_device("transpose_map")

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
        if self._prepared.edge_map is None:
            return values.clone()
        return values.index_select(0, self._on_device("edge_map"))

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
        if self._prepared.edge_map is None:
            return values.clone()
        out = values.new_zeros((self.nnz, *values.shape[1:]))
        return out.index_add(0, self._on_device("edge_map"), values)

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
        return SparseOperand.from_prepared(
            self._prepared, self._precision, device,
            auto_format=self._auto_format, cache_hit=self._cache_hit,
        )  # fmt: skip

    def cuda(self) -> SparseOperand:
        """The same operand on the current GPU."""
        return self.to("cuda")

    def cpu(self) -> SparseOperand:
        """The same operand on the CPU."""
        return self.to("cpu")

    def __matmul__(self, x: torch.Tensor) -> torch.Tensor:
        return _matmul(self, x)

    def __repr__(self) -> str:
        blocked = self._side.blocked
        name = "csr" if blocked is None else blocked.spec.name
        rows, cols = self.shape
        return (
            f"SparseOperand({rows} x {cols}, nnz={self.nnz}, {self._precision.value}, "
            f"format={name}, device={self.device})"
        )

    def stats(self, width: int = 128) -> dict[str, Any]:
        """What the operand is made of, and how a product with `width` columns would run.

        Returns:
            rows, cols, nnz, edges (as given), precision, device, symmetric (structure), format,
            windows and columns (of 8-row windows; None without a blocked format), density (nonzeros
            per stored element of them), bytes by part, reorder (report), prepare_seconds,
            cache_hit, and kernel: {op: {"name", "why"}}.
        """
        side, facts, blocked = self._side, self._prepared.facts, self._side.blocked
        kernels = {}
        for op in ("spmm", "sddmm"):
            plan = side.plan(op, width, False)
            kernels[op] = {"name": plan.kernel, "why": list(plan.reasons)}
        rows, cols = self.shape
        stored = blocked.slots * blocked.spec.window if blocked else rows * cols
        sizes = {
            "csr": side.csr.nbytes,
            "blocked": blocked.nbytes if blocked else 0,
            "values": side.values.nbytes if side.values is not None else 0,
            "transpose": 0 if self._prepared.backward is self._prepared.forward
            else self._prepared.backward.csr.nbytes,
            "maps": sum(
                t.nbytes for t in (self._prepared.transpose_map, self._prepared.edge_map) if t is not None
            ),
        }  # fmt: skip
        return {
            "rows": rows,
            "cols": cols,
            "nnz": self.nnz,
            "edges": self.num_edges,
            "precision": self._precision.value,
            "device": str(self.device),
            "symmetric": facts["symmetric"],
            "format": blocked.spec.name if blocked else "csr",
            "windows": blocked.panels * (blocked.spec.panel // blocked.spec.window) if blocked else None,
            "columns": blocked.slots if blocked else None,
            "density": self.nnz / max(stored, 1),
            "bytes": sizes,
            "reorder": facts["reorder"],
            "prepare_seconds": facts["seconds"],
            "cache_hit": self._cache_hit,
            "kernel": kernels,
        }


#: What `A @ X` calls: gnnsparse.ops, which imports this module, puts spmm here.
_matmul: Callable[[SparseOperand, torch.Tensor], torch.Tensor]


def bind_matmul(function: Callable[[SparseOperand, torch.Tensor], torch.Tensor]) -> None:
    """Makes `A @ X` call `function`."""
    global _matmul
    _matmul = function


def _make_side(
    direction: Direction,
    precision: Precision,
    values: torch.Tensor | None,
    row_scale: torch.Tensor | None,
    col_scale: torch.Tensor | None,
) -> Side:
    ids = direction.row_ids
    if row_scale is not None and ids is not None:
        row_scale = row_scale[ids.long()]
    rounded = None if col_scale is None else round_operand(col_scale, precision).float()
    stored = None if values is None else round_operand(values, precision)
    return Side(direction.csr, ids, direction.blocked, precision, stored, row_scale, rounded)


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
