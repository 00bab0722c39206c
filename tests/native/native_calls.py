"""Calls of native functions with right arguments, each of which a test can replace by a wrong one."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.formats import FormatSpec, format_spec
from gnnsparse.formats.convert import convert
from gnnsparse.precision import Precision
from gnnsparse.testing import random_graph

GRAPH = random_graph(6, 5, 0.5, seed=1)
CSR, SQUARE = GRAPH.csr, random_graph(6, 6, 0.5, seed=1).csr
NNZ = CSR.nnz
HUGE = 2**62
ROWS = torch.arange(6, dtype=torch.int32)


def ints(count: int, value: int = 0) -> torch.Tensor:
    return torch.full((count,), value, dtype=torch.int32)


def longs(count: int, value: int = 0) -> torch.Tensor:
    return torch.full((count,), value, dtype=torch.int64)


def dense(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> _native.Dense:
    return _native.Dense(torch.zeros(rows, columns, dtype=dtype))


def heads(rows: int, width: int = 4, count: int = 2) -> _native.Heads:
    return _native.Heads(torch.zeros(1, count, rows, width))


def blocked(name: str = "window") -> Any:
    values = GRAPH.values.half() if format_spec(name, "fp16").stores_values else None
    return convert(CSR, format_spec(name, "fp16"), values)


def _arrays(name: str = "window") -> dict[str, Any]:
    names = ("panel_rows", "panel_ptr", "columns", "bitmap", "brick_ptr", "brick_rows", "value_ptr", "values")
    return {"slot_scale": None, **{key: getattr(blocked(name), key) for key in names}}


def attached(name: str = "window", **changed: Any) -> _native.Blocked:
    """The matrix in a format."""
    spec = blocked(name).spec
    handle = _native.Blocked(
        spec.window, spec.panel, spec.block, spec.brick, spec.lane_order,
        _native.ENCODING_CODES[spec.encoding], 6, 5, NNZ,
    )  # fmt: skip
    handle.attach(**{**_arrays(name), **changed})
    return handle


def _packed(panel: int) -> Any:
    return convert(CSR, format_spec("hrpb", Precision.TF32, panel=panel), torch.ones(NNZ))


def _records(panel: int = 16) -> dict[str, Any]:
    return {name: getattr(_packed(panel), name) for name in ("size_ptr", "packed_blocks")}


def attached_records(panel: int = 16, **changed: Any) -> _native.Blocked:
    """The matrix in hrpb's packed blocks."""
    matrix = _packed(panel)
    handle = _native.Blocked(16, panel, 16, 4, False, _native.ENCODING_CODES["bitmap"], 6, 5, NNZ)
    handle.attach(None, matrix.panel_ptr, matrix.columns, *[None] * 6)
    handle.attach_records(**{**_records(panel), **changed})
    return handle


def _residual() -> dict[str, Any]:
    return {"rows": ints(2), "columns": ints(6), "values": torch.zeros(6)}


def attached_residual(**changed: Any) -> _native.Blocked:
    """Two rows with room for three nonzeros each, beside the matrix in the format "window"."""
    handle = attached()
    handle.attach_residual(**{**_residual(), **changed})
    return handle


def attached_panels(*offsets: int, rows: tuple[int, ...] = (0, 0)) -> _native.Blocked:
    """Two panels of the format "window", in all of which no bit is set."""
    return attached(
        panel_rows=torch.tensor(rows, dtype=torch.int32), panel_ptr=torch.tensor(offsets),
        columns=ints(offsets[-1]), bitmap=torch.zeros(offsets[-1], dtype=torch.uint8),
    )  # fmt: skip


def attached_bricks(brick_ptr: torch.Tensor, brick_rows: torch.Tensor) -> _native.Blocked:
    """A panel of the format "window" that lists its bricks, in all of which no bit is set."""
    bitmap = torch.zeros(16 * brick_rows.numel(), dtype=torch.uint8)
    return attached(brick_ptr=brick_ptr, brick_rows=brick_rows, bitmap=bitmap)


#: Values in active bricks, with an array for each of their parts.
IN_BRICKS = convert(
    GRAPH.csr,
    FormatSpec("bricks", 16, 16, 16, 4, "bitmap", packed=True, pad=16, active_bricks=True),
    GRAPH.values.half(),
)


def with_zeros(zero_ptr: torch.Tensor, zero_cols: torch.Tensor) -> _native.Blocked:
    """The format "tiled-csr" with a Zero Index."""
    handle = attached("tiled-csr")
    handle.attach_zero_index(zero_ptr, zero_cols)
    return handle


def rows(**arrays: torch.Tensor) -> dict[str, Any]:
    """Arguments of StoredRows, which a call takes in place of `rows`."""
    return {"rows": (_native.StoredRows, arrays)}


def grads(make: Callable[..., Any], **given: Any) -> dict[str, Any]:
    return {"grads": (make, given)}


def _graph_grads(**given: Any) -> _native.GraphAttentionGrads:
    made = _native.GraphAttentionGrads()
    for name, x in given.items():
        setattr(made, name, x)
    return made


class Call:
    """A native function with right arguments but for those given by name; a pair makes a handle."""

    def __init__(self, native: Callable[..., Any], given: Callable[[], dict[str, Any]]) -> None:
        self.native, self.given = native, given

    def __call__(self, *arguments: Any, **changed: Any) -> Any:
        given = self.given()
        for name, x in given.items():
            if isinstance(x, tuple):
                make, own = x
                given[name] = make(**{key: changed.pop(key, value) for key, value in own.items()})
        return self.native(*arguments, **{**given, **changed})

    @property
    def arguments(self) -> dict[str, Any]:
        """All arguments by name, those of handles among them."""
        given = self.given()
        inner = [x[1] for x in given.values() if isinstance(x, tuple)]
        return functools.reduce(operator.or_, inner, given)


spmm = Call(_native.cpu_spmm, lambda: {
    "a": CSR.view, "x": torch.zeros(5, 4), "y": torch.zeros(6, 4), "threads": 1,
    **rows(row_ids=ROWS, values=torch.zeros(NNZ), col_scale=torch.zeros(5), row_scale=torch.zeros(6)),
})  # fmt: skip
sddmm = Call(_native.cpu_sddmm, lambda: {
    "a": CSR.view, "row_ids": ROWS, "q": torch.zeros(6, 4), "k": torch.zeros(5, 4),
    "out": torch.zeros(NNZ), "threads": 1,
})  # fmt: skip
spmm_heads = Call(_native.cpu_spmm_heads, lambda: {
    "a": CSR.view, **rows(row_ids=ROWS, row_scale=torch.zeros(6), values=torch.zeros(NNZ, 2)),
    "x": torch.zeros(5, 6), "y": torch.zeros(6, 6), "heads": 2, "width": 3, "winners": ints(30), "threads": 1,
})  # fmt: skip
spmm_extreme = Call(_native.cpu_spmm_extreme, lambda: {
    "a": CSR.view, **rows(values=torch.zeros(NNZ, 2)), "x": torch.zeros(5, 6), "y": torch.zeros(6, 6),
    "heads": 2, "width": 3, "largest": True, "winners": ints(36), "threads": 1,
})  # fmt: skip
sddmm_heads = Call(_native.cpu_sddmm_heads, lambda: {
    "a": CSR.view, "row_ids": ROWS, "q": torch.zeros(6, 6), "k": torch.zeros(5, 6), "heads": 2, "width": 3,
    "winners": ints(36), "out": torch.zeros(NNZ, 2), "threads": 1,
})  # fmt: skip
softmax_heads = Call(_native.cpu_softmax_heads, lambda: {
    "a": CSR.view, "scores": torch.zeros(NNZ, 2), "heads": 2, "out": torch.zeros(NNZ, 2), "threads": 1,
})  # fmt: skip
softmax_heads_grad = Call(_native.cpu_softmax_heads_grad, lambda: {
    "a": CSR.view, "weights": torch.zeros(NNZ, 2), "grad": torch.zeros(NNZ, 2), "heads": 2,
    "out": torch.zeros(NNZ, 2), "threads": 1,
})  # fmt: skip
problem = Call(_native.Attention, lambda: {
    "q": heads(6), "k": heads(5), "v": heads(5, 3), "bias": _native.EdgeValues(), "scale": 1.0,
    "is_causal": False, "dropout_p": 0.5, "seed": longs(1), "precision": 0,
})  # fmt: skip
attention = Call(_native.cpu_attention, lambda: {
    "problem": problem(), "a": CSR.view, "row_ids": ROWS, "one_head": False, "out": heads(6, 3),
    "stats": torch.zeros(1, 2, 6, 2), "threads": 1,
})  # fmt: skip
row_grads = Call(_native.cpu_attention_row_grads, lambda: {
    "problem": problem(), "a": CSR.view, "row_ids": ROWS, "one_batch": False, "one_head": False,
    "stats": torch.zeros(24), "delta": torch.zeros(12), "threads": 1,
    **grads(
        lambda grad, dq, dbias: _native.AttentionGrads(grad, dq, _native.Heads(), _native.Heads(), dbias),
        grad=heads(6, 3), dq=heads(6), dbias=_native.EdgeValues(),
    ),
})  # fmt: skip
column_grads = Call(_native.cpu_attention_column_grads, lambda: {
    "problem": problem(), "a": CSR.transpose()[0].view, "row_ids": ROWS[:5], "one_head": False,
    "nnz_index_map": CSR.transpose()[1], "stats": torch.zeros(24), "delta": torch.zeros(12), "threads": 1,
    **grads(
        lambda dk, dv: _native.AttentionGrads(heads(6, 3), _native.Heads(), dk, dv, _native.EdgeValues()),
        dk=heads(5), dv=heads(5, 3),
    ),
})  # fmt: skip
graph_problem = Call(_native.GraphAttention, lambda: {
    "q": heads(6), "k": heads(5), "v": heads(5), "att": _native.Heads(), "bias": _native.Heads(),
    "features": heads(NNZ), "to_keys": True, "to_values": True, "gate": heads(NNZ),
    "mapped": _native.Heads(), "mapped_q": _native.Heads(), "score": 0, "scale": 1.0, "negative_slope": 0.2,
    "clamp": 0.0, "normalize": True, "is_causal": False, "dropout_p": 0.5, "seed": longs(1), "precision": 0,
})  # fmt: skip
graph_result = Call(_native.GraphAttentionResult, lambda: {
    "out": heads(6), "mapped": _native.Heads(), "stats": heads(6, 2), "sloped": _native.Heads()
})  # fmt: skip
graph_attention = Call(_native.cpu_graph_attention, lambda: {
    "problem": graph_problem(), "a": CSR.view, "row_ids": ROWS, "result": graph_result(), "threads": 1
})  # fmt: skip
graph_rows = Call(_native.cpu_graph_attention_rows, lambda: {
    "problem": graph_problem(), "a": CSR.view, "row_ids": ROWS, "result": graph_result(), "threads": 1,
    **grads(
        _graph_grads, out=heads(6), mapped=_native.Heads(), weights=heads(NNZ, 1), inner=_native.Heads(),
        edges=heads(NNZ, 2), bias=heads(NNZ, 1), q=heads(6), mapped_q=_native.Heads(), features=heads(NNZ),
        gate=heads(NNZ), att=_native.Heads(), numbers=_native.Heads(),
    ),
})  # fmt: skip
graph_columns = Call(_native.cpu_graph_attention_columns, lambda: {
    "problem": graph_problem(), "a_transposed": CSR.transpose()[0].view, "row_ids": ROWS[:5],
    "nnz_index_map": CSR.transpose()[1], "threads": 1,
    **grads(_graph_grads, out=heads(6), edges=heads(NNZ, 2), k=heads(5), v=heads(5)),
})  # fmt: skip
blocked_handle = Call(_native.Blocked, lambda: {
    "window": 8, "panel": 8, "block": 16, "brick": 16, "lane_order": False, "encoding": 1, "rows": 6,
    "cols": 5, "nnz": NNZ,
})  # fmt: skip
spmm_blocked = Call(_native.cpu_spmm_blocked, lambda: {
    "a": attached("me-bcrs"), **rows(row_ids=ROWS, row_scale=torch.zeros(6)), "x": torch.ones(5, 3).half(),
    "y": torch.zeros(6, 3), "threads": 1,
})  # fmt: skip
sddmm_blocked = Call(_native.cpu_sddmm_blocked, lambda: {
    "a": attached("me-bcrs"), "row_ids": ROWS, "q": torch.ones(6, 3).half(), "k": torch.ones(5, 3).half(),
    "out": torch.zeros(8 * blocked("me-bcrs").slots), "threads": 1,
})  # fmt: skip
zero_index = Call(with_zeros, lambda: {"zero_ptr": longs(7), "zero_cols": ints(3)})
first_unlike = Call(_native.first_unlike, lambda: {"a": CSR.view, "format": attached(), "threads": 1})
coo_to_csr = Call(_native.coo_to_csr, lambda: {
    "edges": _native.Edges(longs(4), longs(4)), "rows": 6, "indptr": longs(7), "indices": ints(4),
    "nnz_index": ints(4), "threads": 1,
})  # fmt: skip
split = Call(_native.split_short_rows, lambda: {
    "a": CSR.view, "window": 8, "short_nnz": 2, "short_columns": 2, "window_rows": ints(6),
    "residual": ints(6),
})  # fmt: skip
transposed = Call(_native.transpose, lambda: {
    "a": CSR.view, "indptr": longs(6), "indices": ints(NNZ), "source": ints(NNZ), "threads": 1
})  # fmt: skip
permuted = Call(_native.permute_rows, lambda: {
    "a": CSR.view, "order": ROWS, "indptr": longs(7), "indices": ints(NNZ),
    "source": ints(NNZ), "threads": 1,
})  # fmt: skip
count_panels = Call(_native.count_panels, lambda: {
    "a": CSR.view, "format": attached(), "columns": None, "bricks": None, "values": None, "threads": 1
})  # fmt: skip
fill_blocked = Call(_native.fill_blocked, lambda: {
    "a": CSR.view, "format": attached(), "panel_bricks": None, "panel_values": None, "value_index": None,
    "threads": 1,
})  # fmt: skip

#: All of them by name.
GOOD = {
    "attached": Call(attached, _arrays),
    "attached_records": Call(attached_records, _records),
    "attached_residual": Call(attached_residual, _residual),
    **{name: call for name, call in globals().items() if isinstance(call, Call)},
}
