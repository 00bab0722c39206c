"""Calls of native functions with right arguments, each of which a test can replace by a wrong one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from gnnsparse import _native
from gnnsparse.formats import format_spec
from gnnsparse.formats.convert import convert
from gnnsparse.precision import Precision
from gnnsparse.testing import random_graph

GRAPH = random_graph(6, 5, 0.5, seed=1)
CSR, SQUARE = GRAPH.csr, random_graph(6, 6, 0.5, seed=1).csr
NNZ = CSR.nnz
HUGE = 2**62


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


def spmm(**changed: Any) -> None:
    rows = {name: changed.pop(name, None) for name in ("row_ids", "values", "col_scale", "row_scale")}
    given = {
        "a": CSR.view, "rows": _native.StoredRows(**rows), "x": torch.zeros(5, 4), "y": torch.zeros(6, 4),
        "threads": 1,
    }  # fmt: skip
    _native.cpu_spmm(**{**given, **changed})


def sddmm(**changed: Any) -> None:
    given = {
        "a": CSR.view, "row_ids": None, "q": torch.zeros(6, 4), "k": torch.zeros(5, 4),
        "out": torch.zeros(NNZ), "threads": 1,
    }  # fmt: skip
    _native.cpu_sddmm(**{**given, **changed})


def spmm_heads(**changed: Any) -> None:
    rows = {name: changed.pop(name, None) for name in ("row_ids", "row_scale", "values")}
    given = {
        "a": CSR.view, "rows": _native.StoredRows(**rows), "x": torch.zeros(5, 6), "y": torch.zeros(6, 6),
        "heads": 2, "width": 3, "winners": None, "threads": 1,
    }  # fmt: skip
    _native.cpu_spmm_heads(**{**given, **changed})


def spmm_extreme(**changed: Any) -> None:
    given = {
        "a": CSR.view, "rows": _native.StoredRows(values=changed.pop("values", None)),
        "x": torch.zeros(5, 6), "y": torch.zeros(6, 6), "heads": 2, "width": 3, "largest": True,
        "winners": ints(36), "threads": 1,
    }  # fmt: skip
    _native.cpu_spmm_extreme(**{**given, **changed})


def sddmm_heads(**changed: Any) -> None:
    given = {
        "a": CSR.view, "row_ids": None, "q": torch.zeros(6, 6), "k": torch.zeros(5, 6), "heads": 2,
        "width": 3, "winners": None, "out": torch.zeros(NNZ, 2), "threads": 1,
    }  # fmt: skip
    _native.cpu_sddmm_heads(**{**given, **changed})


def softmax_heads(**changed: Any) -> None:
    given = {
        "a": CSR.view, "scores": torch.zeros(NNZ, 2), "heads": 2, "out": torch.zeros(NNZ, 2), "threads": 1,
    }  # fmt: skip
    _native.cpu_softmax_heads(**{**given, **changed})


def softmax_heads_grad(**changed: Any) -> None:
    given = {
        "a": CSR.view, "weights": torch.zeros(NNZ, 2), "grad": torch.zeros(NNZ, 2), "heads": 2,
        "out": torch.zeros(NNZ, 2), "threads": 1,
    }  # fmt: skip
    _native.cpu_softmax_heads_grad(**{**given, **changed})


def problem(**changed: Any) -> _native.Attention:
    given = {
        "q": heads(6), "k": heads(5), "v": heads(5, 3), "bias": _native.EdgeValues(), "scale": 1.0,
        "is_causal": False, "dropout_p": 0.0, "seed": None, "precision": 0,
    }  # fmt: skip
    return _native.Attention(**{**given, **changed})


def attention(**changed: Any) -> None:
    given = {
        "problem": problem(), "a": CSR.view, "row_ids": None, "one_head": False, "out": heads(6, 3),
        "stats": torch.zeros(1, 2, 6, 2), "threads": 1,
    }  # fmt: skip
    _native.cpu_attention(**{**given, **changed})


def row_grads(**changed: Any) -> None:
    grads = _native.AttentionGrads(
        changed.pop("grad", heads(6, 3)), changed.pop("dq", heads(6)), _native.Heads(), _native.Heads(),
        changed.pop("dbias", _native.EdgeValues()),
    )  # fmt: skip
    given = {
        "problem": problem(), "a": CSR.view, "row_ids": None, "one_batch": False, "one_head": False,
        "stats": torch.zeros(24), "delta": torch.zeros(12), "grads": grads, "threads": 1,
    }  # fmt: skip
    _native.cpu_attention_row_grads(**{**given, **changed})


def column_grads(**changed: Any) -> None:
    grads = _native.AttentionGrads(
        heads(6, 3), _native.Heads(), changed.pop("dk", heads(5)), changed.pop("dv", heads(5, 3)),
        _native.EdgeValues(),
    )  # fmt: skip
    transposed, source = CSR.transpose()
    given = {
        "problem": problem(), "a": transposed.view, "row_ids": None, "one_head": False,
        "nnz_index_map": source, "stats": torch.zeros(24), "delta": torch.zeros(12), "grads": grads,
        "threads": 1,
    }  # fmt: skip
    _native.cpu_attention_column_grads(**{**given, **changed})


def graph_problem(**changed: Any) -> _native.GraphAttention:
    none = _native.Heads()
    given = {
        "q": heads(6), "k": heads(5), "v": heads(5), "att": none, "bias": none, "features": heads(NNZ),
        "to_keys": True, "to_values": True, "gate": heads(NNZ), "mapped": none, "mapped_q": none, "score": 0,
        "scale": 1.0, "negative_slope": 0.2, "clamp": 0.0, "normalize": True, "is_causal": False,
        "dropout_p": 0.0, "seed": None, "precision": 0,
    }  # fmt: skip
    return _native.GraphAttention(**{**given, **changed})


def graph_result(**changed: Any) -> _native.GraphAttentionResult:
    given = {"out": heads(6), "mapped": _native.Heads(), "stats": heads(6, 2)}
    return _native.GraphAttentionResult(**{**given, **changed})


def _graph_grads(**given: Any) -> _native.GraphAttentionGrads:
    grads = _native.GraphAttentionGrads()
    for name, x in given.items():
        setattr(grads, name, x)
    return grads


def graph_attention(**changed: Any) -> None:
    given = {
        "problem": graph_problem(), "a": CSR.view, "row_ids": None, "result": graph_result(), "threads": 1
    }  # fmt: skip
    _native.cpu_graph_attention(**{**given, **changed})


def graph_rows(**changed: Any) -> None:
    parts = {
        "out": heads(6), "mapped": _native.Heads(), "weights": heads(NNZ, 1), "inner": _native.Heads(),
        "edges": heads(NNZ, 2), "bias": heads(NNZ, 1), "q": heads(6), "mapped_q": _native.Heads(),
        "features": heads(NNZ), "gate": heads(NNZ), "att": _native.Heads(),
    }  # fmt: skip
    grads = _graph_grads(**{name: changed.pop(name, x) for name, x in parts.items()})
    given = {
        "problem": graph_problem(), "a": CSR.view, "row_ids": None, "result": graph_result(), "grads": grads,
        "threads": 1,
    }  # fmt: skip
    _native.cpu_graph_attention_rows(**{**given, **changed})


def graph_columns(**changed: Any) -> None:
    parts = {"out": heads(6), "edges": heads(NNZ, 2), "k": heads(5), "v": heads(5)}
    grads = _graph_grads(**{name: changed.pop(name, x) for name, x in parts.items()})
    transposed, source = CSR.transpose()
    given = {
        "problem": graph_problem(), "a_transposed": transposed.view, "row_ids": None, "nnz_index_map": source,
        "grads": grads, "threads": 1,
    }  # fmt: skip
    _native.cpu_graph_attention_columns(**{**given, **changed})


def blocked_handle(**changed: int | bool) -> _native.Blocked:
    given = {
        "window": 8, "panel": 8, "block": 16, "brick": 16, "lane_order": False, "encoding": 1, "rows": 6,
        "cols": 5, "nnz": NNZ,
    }  # fmt: skip
    return _native.Blocked(**{**given, **changed})  # type: ignore[arg-type]


def attached(name: str = "window", **changed: Any) -> _native.Blocked:
    matrix = blocked(name)
    names = ("panel_rows", "panel_ptr", "columns", "bitmap", "brick_ptr", "brick_rows", "value_ptr", "values")
    given = {key: getattr(matrix, key) for key in names}
    spec = matrix.spec
    handle = _native.Blocked(
        spec.window, spec.panel, spec.block, spec.brick, spec.lane_order,
        _native.ENCODING_CODES[spec.encoding], 6, 5, NNZ,
    )  # fmt: skip
    handle.attach(**{**given, "slot_scale": None, **changed})
    return handle


def attached_records(panel: int = 16, **changed: Any) -> _native.Blocked:
    """The matrix in hrpb's packed blocks."""
    values = torch.ones(NNZ)
    matrix = convert(CSR, format_spec("hrpb", Precision.TF32, panel=panel), values)
    handle = _native.Blocked(16, panel, 16, 4, False, _native.ENCODING_CODES["bitmap"], 6, 5, NNZ)
    handle.attach(None, matrix.panel_ptr, matrix.columns, *[None] * 6)
    given = {"size_ptr": matrix.size_ptr, "packed_blocks": matrix.packed_blocks}
    handle.attach_records(**{**given, **changed})
    return handle


def attached_residual(**changed: Any) -> _native.Blocked:
    """Two rows with room for three nonzeros each, beside the matrix in the format "window"."""
    handle = attached()
    given = {"rows": ints(2), "columns": ints(6), "values": torch.zeros(6)}
    handle.attach_residual(**{**given, **changed})
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


def first_unlike(**changed: Any) -> int:
    given = {"a": CSR.view, "format": attached(), "threads": 1}
    return _native.first_unlike(**{**given, **changed})


def coo_to_csr(**changed: Any) -> int:
    given = {
        "edges": _native.Edges(longs(4), longs(4)), "rows": 6, "indptr": longs(7), "indices": ints(4),
        "nnz_index": ints(4), "threads": 1,
    }  # fmt: skip
    return _native.coo_to_csr(**{**given, **changed})


def split(**changed: Any) -> tuple[int, int]:
    given = {
        "a": CSR.view, "window": 8, "short_nnz": 2, "short_columns": 2, "window_rows": ints(6),
        "residual": ints(6),
    }  # fmt: skip
    return _native.split_short_rows(**{**given, **changed})


def transposed(**changed: Any) -> None:
    given = {"a": CSR.view, "indptr": longs(6), "indices": ints(NNZ), "source": ints(NNZ), "threads": 1}
    _native.transpose(**{**given, **changed})


def permuted(**changed: Any) -> None:
    given = {
        "a": CSR.view, "order": torch.arange(6, dtype=torch.int32), "indptr": longs(7), "indices": ints(NNZ),
        "source": ints(NNZ), "threads": 1,
    }  # fmt: skip
    _native.permute_rows(**{**given, **changed})


def count_panels(**changed: Any) -> None:
    given = {
        "a": CSR.view, "format": attached(), "columns": None, "bricks": None, "values": None, "threads": 1
    }  # fmt: skip
    _native.count_panels(**{**given, **changed})


def fill_blocked(**changed: Any) -> None:
    given = {
        "a": CSR.view, "format": attached(), "panel_bricks": None, "panel_values": None, "value_index": None,
        "threads": 1,
    }  # fmt: skip
    _native.fill_blocked(**{**given, **changed})


GOOD: list[Callable[..., Any]] = [
    spmm, sddmm, attention, row_grads, column_grads, attached, coo_to_csr, split, transposed, permuted,
    count_panels, fill_blocked, problem, blocked_handle, first_unlike, graph_problem, graph_result,
    graph_attention, graph_rows, graph_columns, spmm_heads, spmm_extreme, sddmm_heads, softmax_heads,
    softmax_heads_grad, attached_records, attached_residual,
]  # fmt: skip
