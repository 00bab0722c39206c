"""What the native module is handed is checked where it makes pointers: an error that names the argument."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from gnnsparse import _native
from tests.native.native_calls import (
    CSR,
    GOOD,
    HUGE,
    IN_BRICKS,
    NNZ,
    SQUARE,
    Call,
    attached,
    attached_bricks,
    attached_panels,
    attached_records,
    blocked,
    blocked_handle,
    dense,
    graph_problem,
    graph_result,
    heads,
    ints,
    longs,
    problem,
    spmm,
    with_zeros,
)  # fmt: skip

THREE_HEADS = torch.zeros(1, 3, NNZ)
BRICK = torch.tensor([0, 1])
#: Offsets that end where they have to.
FALLING = torch.tensor([0, NNZ, 0, NNZ, NNZ, NNZ, NNZ])


def broken_records() -> _native.Blocked:
    """Panels of packed blocks that begin inside a block."""
    handle = attached_records()
    handle.attach(None, torch.tensor([0, 8]), ints(8), *[None] * 6)
    handle.attach_records(longs(1), torch.zeros(0))
    return handle


def in_bricks(**changed: Any) -> _native.Blocked:
    return replace(IN_BRICKS, **changed).view()


def starting(first: int) -> torch.Tensor:
    """Offsets of the values in bricks, the first of which is another."""
    return IN_BRICKS.arrays["value_ptr"].index_fill(0, torch.tensor([0]), first)


PANELS_OF_16 = {"window": 16, "panel": 16, "block": 32, "brick": 32, "lane_order": True}
BRICK_PTR, WINDOWS = IN_BRICKS.arrays["brick_ptr"], torch.zeros_like(IN_BRICKS.arrays["brick_rows"])
SLOTS = blocked("me-bcrs").slots
#: Values in row order, which go with bits, without the offsets of the rows and with ones that do not fit.
BARE = _native.StoredRows(None, None, None, torch.ones(NNZ))
EMPTY = _native.StoredRows(longs(7), None, None, torch.ones(NNZ))
BRICKS_IN_LANE_ORDER = attached("panel", brick_ptr=BRICK, brick_rows=ints(1))

#: The start of the message, a function of GOOD, and what is wrong.
WRONG: list[tuple[str, str, dict[str, Any]]] = [
    ("x: has shape", "spmm", {"x": torch.zeros(5, 3)}),
    ("y: rows overlap", "spmm", {"y": torch.zeros(4).expand(6, 4)}),
    ("values: has float16", "spmm", {"values": torch.zeros(NNZ).half()}),
    ("row_ids: has int64", "spmm", {"row_ids": longs(6)}),
    ("x: has shape", "spmm_heads", {"x": torch.zeros(5, 5)}),
    ("y: has shape", "spmm_heads", {"y": torch.zeros(6, 5)}),
    ("heads: must be at least 1", "spmm_heads", {"heads": 0}),
    ("width: must be at least 1", "spmm_heads", {"width": -1}),
    ("heads: and width have a product", "spmm_heads", {"heads": 2**20, "width": 2**20}),
    ("heads: has sizes whose product", "spmm_heads", {"heads": HUGE, "width": HUGE}),
    ("values: has .* bytes", "spmm_heads", {"values": torch.zeros(NNZ)}),
    ("winners: has int64", "spmm_heads", {"winners": longs(36)}),
    ("winners: is None", "spmm_extreme", {"winners": None}),
    ("values: has float16", "spmm_extreme", {"values": torch.zeros(NNZ, 2).half()}),
    ("k: must have the dtype of q", "sddmm_heads", {"k": torch.zeros(5, 6).half()}),
    ("out: has .* bytes", "sddmm_heads", {"out": torch.zeros(NNZ)}),
    ("scores: has .* bytes", "softmax_heads", {"heads": 3}),
    ("heads: must be at least 1", "softmax_heads", {"heads": 0}),
    ("threads: must be at most", "spmm", {"threads": 2**30}),
    ("k: has shape", "sddmm", {"k": torch.zeros(5, 3)}),
    ("k: must have the dtype", "sddmm", {"k": torch.zeros(5, 4).half()}),
    ("a: is 6 x 5", "attention", {"problem": problem(q=heads(5))}),
    ("v: has shape", "attention", {"problem": problem(v=heads(6, 3))}),
    ("k: has shape", "attention", {"problem": problem(k=heads(5, 3))}),
    ("k: has shape", "attention", {"problem": problem(k=heads(5, 4, 1))}),
    ("bias: has values for", "attention", {"problem": problem(bias=_native.EdgeValues(THREE_HEADS))}),
    (
        "bias: has values for",
        "attention",
        {"problem": problem(bias=_native.EdgeValues(torch.zeros(NNZ + 1)))},
    ),
    ("seed: has int32", "problem", {"seed": ints(1), "dropout_p": 0.5}),
    ("dropout_p: must be in", "problem", {"dropout_p": 1.0}),
    ("dropout_p: must be in", "problem", {"dropout_p": float("nan")}),
    ("precision: code must be", "problem", {"precision": 9}),
    ("q, k and v: must have the storage dtype", "problem", {"precision": 2}),
    ("q, k and v: must be given", "problem", {"q": _native.Heads()}),
    ("out: has shape", "attention", {"out": heads(6, 4)}),
    ("out: is None", "attention", {"out": _native.Heads()}),
    ("grad: has shape", "row_grads", {"grad": heads(6, 4)}),
    ("dq: has shape", "row_grads", {"dq": heads(5)}),
    ("dbias: must be float32", "row_grads", {"dbias": _native.EdgeValues(torch.zeros(1, 2, NNZ).half())}),
    ("dbias: is shared", "row_grads", {"dbias": _native.EdgeValues(torch.zeros(1, 1, NNZ))}),
    ("a: is 6 x 6", "column_grads", {"a": SQUARE.view}),
    ("dk: has shape", "column_grads", {"dk": heads(6)}),
    ("dv: has shape", "column_grads", {"dv": heads(5, 4)}),
    ("q, k and v: must be given", "graph_problem", {"q": _native.Heads()}),
    ("score: code must be", "graph_problem", {"score": 3}),
    ("scale: must be finite", "graph_problem", {"scale": float("inf")}),
    ("negative_slope: must be finite", "graph_problem", {"negative_slope": float("nan")}),
    ("clamp: must not be negative", "graph_problem", {"clamp": -1.0}),
    ("q: must have one number", "graph_problem", {"score": 1}),
    ("att: goes with", "graph_problem", {"att": heads(1)}),
    ("gate: goes with", "graph_problem", {"score": 2, "att": heads(1)}),
    ("mapped: goes without", "graph_problem", {"mapped": heads(NNZ)}),
    ("mapped_q: goes with", "graph_problem", {"mapped_q": heads(6)}),
    ("features: must go to", "graph_problem", {"to_keys": False, "to_values": False}),
    ("features: need v as wide as k", "graph_problem", {"v": heads(5, 3)}),
    ("q: must have the storage dtype", "graph_problem", {"precision": 2}),
    ("a: is 6 x 6", "graph_attention", {"a": SQUARE.view}),
    ("k: has shape", "graph_attention", {"problem": graph_problem(k=heads(5, 3))}),
    ("gate: has shape", "graph_attention", {"problem": graph_problem(gate=heads(NNZ - 1))}),
    ("bias: has shape", "graph_attention", {"problem": graph_problem(bias=heads(NNZ))}),
    ("out: is None", "graph_attention", {"result": graph_result(out=_native.Heads())}),
    ("stats: has shape", "graph_attention", {"result": graph_result(stats=heads(6))}),
    ("mapped: has shape", "graph_attention", {"result": graph_result(mapped=heads(6))}),
    ("sloped: is for kernels of a GPU", "graph_attention", {"result": graph_result(sloped=heads(6))}),
    ("out and edges: must be given", "graph_rows", {"edges": _native.Heads()}),
    ("inner: is for kernels of a GPU", "graph_rows", {"inner": heads(6, 1)}),
    ("numbers: is for kernels of a GPU", "graph_rows", {"numbers": heads(6, 4)}),
    ("edges: has shape", "graph_rows", {"edges": heads(NNZ, 1)}),
    ("edges: must have float32", "graph_rows", {"edges": _native.Heads(torch.zeros(1, 2, NNZ, 2).half())}),
    ("grad: has shape", "graph_rows", {"out": heads(6, 3)}),
    ("dq: has shape", "graph_rows", {"q": heads(5)}),
    ("dgate: has shape", "graph_rows", {"gate": heads(NNZ, 3)}),
    ("datt: has shape", "graph_rows", {"att": heads(2)}),
    ("a: is 6 x 6", "graph_columns", {"a_transposed": SQUARE.view}),
    ("dk: has shape", "graph_columns", {"k": heads(6)}),
    ("dv: has shape", "graph_columns", {"v": heads(5, 3)}),
    ("panel: must be a positive multiple", "blocked_handle", {"window": 0}),
    ("panel: must be a positive multiple", "blocked_handle", {"panel": 12}),
    ("panel: must be a positive multiple", "blocked_handle", {"panel": -8}),
    ("panel and block: must be at most", "blocked_handle", {"panel": 2**30}),
    ("block: must be a positive multiple", "blocked_handle", {"brick": 0}),
    ("block: must be a positive multiple", "blocked_handle", {"brick": 5}),
    ("lane_order: goes with", "blocked_handle", {"lane_order": True}),
    ("encoding: must be 0", "blocked_handle", {"encoding": 4}),
    ("encoding: entries go with panels of 32", "blocked_handle", {**PANELS_OF_16, "encoding": 2}),
    ("encoding: entries go with panels of 32", "blocked_handle", {**PANELS_OF_16, "encoding": 3}),
    ("rows: must not be negative", "blocked_handle", {"rows": -1}),
    ("cols: must not be negative", "blocked_handle", {"cols": -1}),
    ("nnz: must not be negative", "blocked_handle", {"nnz": -1}),
    ("rows and cols: must be below", "blocked_handle", {"rows": 2**31}),
    ("panel_ptr: has int32", "attached", {"panel_ptr": ints(2)}),
    ("panel_ptr: has more panels", "attached", {"panel_ptr": longs(3)}),
    ("panel_ptr: runs from 0 to 7", "attached", {"panel_ptr": torch.tensor([0, 7])}),
    ("columns: has int64", "attached", {"columns": longs(16)}),
    ("bitmap: has int32", "attached", {"bitmap": ints(16)}),
    ("brick_rows: goes together", "attached", {"brick_ptr": longs(2)}),
    ("values: has .* bytes", "attached", {"name": "me-bcrs", "values": torch.zeros(3).half()}),
    ("value_ptr: has .* bytes", "attached", {"name": "rs-tile", "value_ptr": longs(0)}),
    ("slot_scale: has .* bytes", "attached", {"slot_scale": torch.zeros(3).half()}),
    ("rows: must not be negative", "coo_to_csr", {"rows": -1}),
    ("indptr: has .* bytes", "coo_to_csr", {"rows": HUGE}),
    ("window: must be at least 1", "split", {"window": 0}),
    ("window: must be at least 1", "split", {"window": -HUGE}),
    ("short_nnz: must not be negative", "split", {"short_nnz": -1}),
    ("order: element 0 is 6", "permuted", {"order": ints(6, 6)}),
    ("order: element 0 is -1", "permuted", {"order": ints(6, -1)}),
    ("order: is no permutation", "permuted", {"order": ints(6, int(CSR.degrees.argmax()))}),
    ("row: element 0 is 6", "coo_to_csr", {"edges": _native.Edges(longs(4, 6), longs(4))}),
    ("col: element 0 is -1", "coo_to_csr", {"edges": _native.Edges(ints(4), ints(4, -1))}),
    ("source: is None", "permuted", {"source": None}),
    ("format: has no arrays", "count_panels", {"format": blocked_handle()}),
    ("format: has no arrays", "fill_blocked", {"format": blocked_handle()}),
    ("format: is of another matrix", "count_panels", {"a": SQUARE.view}),
    ("columns: has .* bytes", "count_panels", {"columns": longs(0)}),
    ("format: has no arrays", "first_unlike", {"format": blocked_handle()}),
    ("format: is of another matrix", "first_unlike", {"a": SQUARE.view}),
    ("indptr: must never decrease", "first_unlike", {"a": _native.Csr(FALLING, CSR.indices, 5)}),
    ("bitmap: is None", "first_unlike", {"format": attached(bitmap=None)}),
    ("panel_ptr: must never decrease", "first_unlike", {"format": attached_panels(0, 32, 16)}),
    ("panel_ptr: has panels of broken blocks", "first_unlike", {"format": attached_panels(0, 8, 16)}),
    ("panel_rows: element 1 is no row", "first_unlike", {"format": attached_panels(0, 16, 16, rows=(0, 7))}),
    ("brick_ptr: must never decrease", "first_unlike", {"format": attached_bricks(longs(2, 1), ints(1))}),
    ("brick_rows: element 0 is 1", "first_unlike", {"format": attached_bricks(BRICK, ints(1, 1))}),
    ("brick_rows: element 0 is -1", "first_unlike", {"format": attached_bricks(BRICK, ints(1, -1))}),
    ("brick_ptr: does not go with lane order", "first_unlike", {"format": BRICKS_IN_LANE_ORDER}),
    ("size_ptr: runs from 0 to 16", "attached_records", {"size_ptr": torch.tensor([0, 16])}),
    ("size_ptr: runs from 0", "attached_records", {"packed_blocks": torch.zeros(4)}),
    ("residual_rows: has int64", "attached_residual", {"rows": longs(2)}),
    ("panel_ptr: has panels of broken blocks", "first_unlike", {"format": broken_records()}),
    ("brick: bricks are counted", "count_panels", {"bricks": longs(1)}),
    ("bitmap: is None", "fill_blocked", {"format": attached(bitmap=None)}),
    ("value_index: is None", "fill_blocked", {"format": attached("me-bcrs")}),
    ("panel_values: is None", "fill_blocked", {"format": attached("rs-tile"), "value_index": longs(NNZ)}),
    ("format: has no arrays", "spmm_blocked", {"a": blocked_handle()}),
    ("values: is None", "spmm_blocked", {"a": attached("me-bcrs", values=None)}),
    ("values: is None", "sddmm_blocked", {"a": attached()}),
    ("bitmap: is None", "spmm_blocked", {"a": attached(bitmap=None)}),
    ("value_ptr: is None", "spmm_blocked", {"a": in_bricks(value_ptr=None)}),
    ("indptr: is None", "spmm_blocked", {"a": attached(), "rows": BARE}),
    ("k: must have the dtype of q", "sddmm_blocked", {"k": torch.ones(5, 3)}),
    ("format: panel_ptr is out of range", "spmm_blocked", {"a": attached_panels(0, 48, 32)}),
    ("format: panel_ptr is out of range", "spmm_blocked", {"a": attached_panels(0, -16, 32)}),
    ("format: panel_rows is out of range", "spmm_blocked", {"a": attached_panels(0, 16, 32, rows=(0, 9))}),
    ("format: panel_rows is out of range", "spmm_blocked", {"a": attached_panels(0, 16, 32, rows=(-1, 0))}),
    ("format: columns are out of range", "spmm_blocked", {"a": attached("me-bcrs", columns=ints(SLOTS, 5))}),
    (
        "format: columns are out of range",
        "sddmm_blocked",
        {"a": attached("me-bcrs", columns=ints(SLOTS, -1))},
    ),
    ("format: zero_ptr is out of range", "spmm_blocked", {"a": with_zeros(longs(7) + 9, ints(3))}),
    ("format: bits are not those", "spmm_blocked", {"a": attached(), "rows": EMPTY}),
    ("format: value_ptr is out of range", "spmm_blocked", {"a": in_bricks(value_ptr=starting(-5))}),
    ("format: value_ptr is out of range", "spmm_blocked", {"a": in_bricks(value_ptr=starting(10**9))}),
    ("format: has nonzeros outside of the rows", "spmm_blocked", {"a": in_bricks(brick_rows=WINDOWS - 1)}),
    ("format: has nonzeros outside of the rows", "spmm_blocked", {"a": in_bricks(brick_rows=WINDOWS + 1)}),
    (
        "format: has nonzeros outside of the rows",
        "spmm_blocked",
        {"a": in_bricks(brick_rows=WINDOWS + 10**6)},
    ),
    ("format: brick_ptr is out of range", "spmm_blocked", {"a": in_bricks(brick_ptr=BRICK_PTR + 10**6)}),
]


jaccard_order = Call(_native.jaccard_order, lambda: {
    "a": CSR.view, "k": 2, "alpha": 0.5, "tree": True, "two_opt": True, "window": 8, "isolation": True,
    "isolated": 0.1, "order": ints(6), "threads": 1,
})  # fmt: skip

#: Arrays that may be None, and some that may have any length.
OPTIONAL = {
    "row_ids",
    "row_scale",
    "col_scale",
    "values",
    "winners",
    "seed",
    "bitmap",
    "columns",
    "zero_cols",
}
ANY_LENGTH = {("attached_residual", "rows"), ("zero_index", "zero_cols")}
#: Other names in messages: of what is of one length with them, or the same in another function.
NAMED = {
    "weights": "scores",
    "packed_blocks": "size_ptr",
    "columns": "panel_ptr|residual_cols",
    "rows": "residual_cols",
}


@pytest.mark.parametrize("function", GOOD.values(), ids=GOOD)
def test_right_arguments_are_accepted(function: Callable[..., Any]) -> None:
    """Otherwise the errors below might have another cause."""
    function()


@pytest.mark.parametrize("name", GOOD)
def test_every_array_of_a_wrong_kind_is_named(name: str) -> None:
    """A shorter one, one of another dtype or device, a strided one, and None; and no threads."""
    function = GOOD[name]
    for argument, x in function.arguments.items():
        if not isinstance(x, torch.Tensor):
            continue
        wrong: dict[str, torch.Tensor | None] = {
            "has float64": x.double(),
            "is not on the CPU|is on another device|has no memory": x.to("meta"),
        }
        if (name, argument) not in ANY_LENGTH:
            wrong[r"has \d+ bytes|has shape|runs from|must have as many"] = x[:-1].clone()
        if x.numel() > 1:
            wrong["(is|has rows that are) not contiguous"] = torch.stack([x, x], -1)[..., 0]
        if argument not in OPTIONAL and (name, argument) != ("transposed", "source"):
            wrong["is None|has another dtype|must have"] = None
        for message, changed in wrong.items():
            names = rf"\w*{argument}|{NAMED.get(argument, argument)}"
            with pytest.raises(ValueError, match=f"^({names}): ({message})"):
                function(**{argument: changed})
    if "threads" in function.arguments:
        with pytest.raises(ValueError, match=r"^threads: must be at least 1"):
            function(threads=0)


@pytest.mark.parametrize(
    ("message", "function", "wrong"), WRONG, ids=lambda x: x if isinstance(x, str) else ""
)
def test_wrong_arguments_are_named(message: str, function: str, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        GOOD[function](**wrong)


@pytest.mark.parametrize(
    ("message", "call"),
    [
        ("indptr: must have at least one", lambda: _native.Csr(longs(0), ints(0), 5)),
        ("indptr: runs from 0 to 0", lambda: _native.Csr(longs(3), ints(2), 5)),
        ("indptr: has int32", lambda: _native.Csr(ints(3), ints(0), 5)),
        ("indices: has int64", lambda: _native.Csr(longs(3), longs(0), 5)),
        ("cols: must not be negative", lambda: _native.Csr(longs(3), ints(0), -1)),
        ("rows and cols: must be below", lambda: _native.Csr(longs(3), ints(0), 2**31)),
        ("indices: is on another device", lambda: _native.Csr(longs(3), ints(2).to("meta"), 5)),
        ("dense: has rows that are not contiguous", lambda: _native.Dense(torch.zeros(4, 6).T)),
        ("dense: is None", lambda: _native.Dense(None)),  # type: ignore[arg-type]
        ("dense: has int64", lambda: _native.Dense(torch.zeros(4, 6).long())),
        ("heads: has rows that are not", lambda: _native.Heads(torch.zeros(1, 2, 3, 4).transpose(2, 3))),
        ("edge values: has edges that are not", lambda: _native.EdgeValues(torch.zeros(2, 3, 8)[:, :, ::2])),
        ("col: must have the length", lambda: _native.Edges(longs(3), longs(4))),
        ("col: must have the length", lambda: _native.Edges(longs(3), ints(3))),
        ("format: stores no entries",
         lambda: _native.fill_entries(CSR.view, attached(), ints(32), torch.zeros(NNZ).half(), ints(4), 1)),
        ("banks: has .* bytes", lambda: _native.count_entries(ints(31), longs(1))),
        ("height: must be at least 1", lambda: _native.count_columns(CSR.view, None, 0, longs(9), 1)),
        ("counts: has .* bytes", lambda: _native.count_columns(CSR.view, None, 2, longs(2), 1)),
        ("matrix: must be square", lambda: _native.community_order(CSR.view, 1, 1.0, ints(6), 1)),
        ("rounds: must be at least 1", lambda: _native.community_order(SQUARE.view, 0, 1.0, ints(6), 1)),
        ("resolution: must be above 0", lambda: _native.community_order(SQUARE.view, 1, -1.0, ints(6), 1)),
        ("order: has .* bytes", lambda: _native.community_order(SQUARE.view, 1, 1.0, ints(5), 1)),
        ("height: must be at least 1", lambda: _native.shuffle_rows(CSR.view, 0, 16, 0.5, 8, True, ints(6))),
        ("width: must be at least 1", lambda: _native.shuffle_rows(CSR.view, 8, 0, 0.5, 8, True, ints(6))),
        ("bin: must be below 2", lambda: _native.shuffle_rows(CSR.view, 8, 8, 0.5, 2**31, True, ints(6))),
        ("threshold: must be", lambda: _native.shuffle_rows(CSR.view, 8, 8, -0.5, 8, True, ints(6))),
        ("order: has .* bytes", lambda: _native.shuffle_rows(CSR.view, 8, 8, 0.5, 8, True, ints(5))),
        ("k: must be at least 1", lambda: jaccard_order(k=0)),
        ("window: must be at least 1", lambda: jaccard_order(window=0)),
        ("alpha: must be at least 0", lambda: jaccard_order(alpha=float("nan"))),
        ("isolated: must be at least 0", lambda: jaccard_order(isolated=-1.0)),
        ("order: has .* bytes", lambda: jaccard_order(order=ints(5))),
        ("threads: must be at least 1", lambda: jaccard_order(threads=0)),
        ("height: must be at least 1", lambda: _native.cluster_order(CSR.view, 0, 2, 2, ints(6), 1)),
        ("group: must be at least 1", lambda: _native.cluster_order(CSR.view, 8, 0, 2, ints(6), 1)),
        ("order: has .* bytes", lambda: _native.cluster_order(CSR.view, 8, 2, 2, ints(5), 1)),
        ("matrix: must be square", lambda: _native.add_self_loops(CSR.view, longs(7), None, None, 1)),
        ("indptr: has .* bytes", lambda: _native.add_self_loops(SQUARE.view, longs(6), None, None, 1)),
        ("indices: has .* bytes", lambda: _native.add_self_loops(SQUARE.view, longs(7), ints(1), ints(9), 1)),
        ("limit: must not be negative", lambda: _native.first_out_of_range(longs(3), -1, 1)),
        ("values: has float32", lambda: _native.first_out_of_range(torch.zeros(3), 5, 1)),
        ("threads: must be at least 1", lambda: _native.first_decreasing(longs(3), 0)),
        ("indptr: must never decrease", lambda: _native.is_canonical(longs(3, 9), ints(2), 1)),
        ("values: has float32", lambda: _native.is_permutation(torch.zeros(3), 1)),
        ("values: is not contiguous", lambda: _native.is_permutation(longs(6)[::2], 1)),
        ("threads: must be at least 1", lambda: _native.is_permutation(longs(3), 0)),
        ("out: has .* bytes", lambda: _native.cpu_round_tf32(torch.zeros(4), torch.zeros(3), 1)),
        ("source: has float16", lambda: _native.cpu_round_tf32(torch.zeros(4).half(), torch.zeros(4), 1)),
        ("scores: has .* bytes", lambda: _native.cpu_softmax(CSR.view, torch.zeros(1), torch.zeros(NNZ), 1)),
        ("grad: is None", lambda: _native.cpu_softmax_grad(  # type: ignore[arg-type]
            CSR.view, torch.zeros(NNZ), None, torch.zeros(NNZ), 1)),
    ],
)  # fmt: skip
def test_more_wrong_arguments(message: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match=f"^({message})"):
        call()


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_checks_of_indices_find_the_first_wrong_one(dtype: torch.dtype, threads: int) -> None:
    """In few elements, and in so many that threads share them."""
    draw = torch.Generator().manual_seed(threads)
    for count in (0, 1, 7, 5000, 2**22 + 10_000):
        values = torch.randperm(count, generator=draw).to(dtype)
        assert _native.first_out_of_range(values, count, threads) == -1
        assert _native.is_permutation(values, threads)
        assert _native.first_out_of_range(values, 2**40, threads) == -1
        for wrong in (-1, count, 2**31 - 1) if count > 1 else ():
            first, second = sorted(torch.randint(count, (2,), generator=draw).tolist())
            changed = values.clone()
            changed[[first, second]] = wrong
            assert _native.first_out_of_range(changed, count, threads) == first
            assert not _native.is_permutation(changed, threads)
            assert _native.first_out_of_range(changed, 2**40, threads) == (first if wrong < 0 else -1)
        if count > 1:
            first, second = torch.randperm(count, generator=draw)[:2].tolist()
            repeated = values.clone()
            repeated[first] = values[second]
            assert not _native.is_permutation(repeated, threads)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("nnz", [0, 40, 2**22 + 10_000])
def test_rows_that_do_not_ascend_are_seen(nnz: int, threads: int) -> None:
    """With empty rows at both ends and between others, each of which may begin where it likes."""
    draw = torch.Generator().manual_seed(nnz)
    ends = torch.randint(nnz + 1, (max(nnz // 5, 3),), generator=draw).sort().values
    indptr = torch.cat([torch.zeros(3, dtype=torch.int64), ends, torch.full((2,), nnz)])
    starts = torch.repeat_interleave(indptr[:-1], indptr.diff())
    places = torch.arange(nnz) - starts
    indices = (2 * places + (starts * 7919) % 5).int()
    assert _native.is_canonical(indptr, indices, threads)
    inside = places.nonzero().flatten()
    for at in inside[torch.randint(max(len(inside), 1), (5,), generator=draw)].tolist() if nnz else ():
        for change in (0, -1):
            changed = indices.clone()
            changed[at] = changed[at - 1] + change
            assert not _native.is_canonical(indptr, changed, threads)


@pytest.mark.parametrize(
    "junk", [0, 8, "a", b"x", [1], object(), torch.zeros(3).to_sparse(), torch.float32, torch.zeros(2, 2, 2)]
)
def test_what_is_no_array_is_a_type_error(junk: Any) -> None:
    """Addresses, too: they say nothing of what lies there."""
    calls = [
        lambda: _native.Dense(junk), lambda: _native.Heads(junk),
    ]  # fmt: skip
    if not isinstance(junk, torch.Tensor) or junk.layout != torch.strided:
        calls += [
            lambda: _native.Csr(junk, ints(0), 3), lambda: spmm(values=junk), lambda: attached(bitmap=junk),
            lambda: _native.EdgeValues(junk), lambda: _native.WorkList(junk, None, 0),
        ]  # fmt: skip
    for call in calls:
        with pytest.raises(TypeError):
            call()


def test_a_rejected_array_changes_nothing() -> None:
    handle = attached()
    with pytest.raises(ValueError, match="bitmap"):
        handle.attach(None, torch.tensor([0, 16]), ints(16), torch.zeros(1, dtype=torch.uint8), *[None] * 5)
    _native.fill_blocked(CSR.view, handle, None, None, None, 1)


@pytest.mark.parametrize(
    ("make", "shape", "dtype"),
    [
        (lambda t: _native.Csr(t, ints(0), 3), (3,), torch.int64),
        (lambda t: _native.Dense(t), (3, 4), torch.float32),
        (lambda t: _native.Heads(t), (1, 2, 3, 4), torch.float16),
        (lambda t: _native.EdgeValues(t), (1, 2, 3), torch.float32),
        (lambda t: _native.EdgeValues(t), (3,), torch.float32),
        (lambda t: _native.Edges(longs(3), t), (3,), torch.int64),
        (lambda t: _native.StoredRows(None, None, t), (3,), torch.float32),
        (lambda t: _native.WorkList(t, None, 0), (4,), torch.int32),
        (lambda t: _native.CsrLanes(1, 1, 1, t), (4,), torch.int32),
        (lambda t: attached(columns=t), (16,), torch.int32),
        (lambda t: problem(seed=t), (1,), torch.int64),
        (lambda t: problem(q=_native.Heads(t)), (1, 2, 6, 4), torch.float32),
        (lambda t: _native.AttentionRows(_native.Heads(), t), (4,), torch.float32),
        (lambda t: _native.DkvWeights(t, 1, ints(1), ints(1), ints(1), ints(1), 1), (4,), torch.uint8),
    ],
)
def test_a_handle_keeps_its_tensors_alive(
    make: Callable[[torch.Tensor], Any], shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    tensor = torch.zeros(shape, dtype=dtype)
    alive = weakref.ref(tensor)
    handle = make(tensor)
    del tensor
    assert alive() is not None
    del handle
    assert alive() is None


def new_arrays() -> list[Any]:
    """Of every dtype and length, made anew: indices that another call has written are not to be trusted."""
    return [
        None, longs(0), longs(7), longs(6), ints(6), ints(NNZ), longs(NNZ), torch.zeros(NNZ), torch.zeros(12),
        torch.zeros(NNZ).half(), torch.zeros(64, dtype=torch.uint8), torch.zeros(0), ints(1 << 10)[::2],
        torch.zeros(6, device="meta"), 0, 8, "x",
    ]  # fmt: skip


NUMBERS = [-HUGE, -1, 0, 1, 2, 5, 8, 2**31, HUGE, 1.5, None]
HANDLES = [
    CSR.view, SQUARE.view, dense(5, 4), dense(6, 4), heads(6), heads(5), _native.Heads(),
    _native.EdgeValues(), _native.EdgeValues(torch.zeros(NNZ)), blocked_handle(), attached(),
    attached("me-bcrs"), attached("rs-tile"), problem(), _native.Edges(longs(NNZ), longs(NNZ)),
    graph_problem(), graph_result(), heads(NNZ), heads(NNZ, 1), heads(NNZ, 2),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_any_arguments_end_in_a_result_or_an_error(seed: int) -> None:
    """Right ones with a few replaced by others: what passes the checks has to be safe to run."""
    draw = random.Random(seed)
    for _ in range(400):
        function = draw.choice(list(GOOD.values()))
        names = draw.choices(list(function.arguments), k=2)
        changed = {name: draw.choice(new_arrays() + NUMBERS + HANDLES) for name in names}
        try:
            function(**changed)
        except (ValueError, TypeError, MemoryError):
            pass
