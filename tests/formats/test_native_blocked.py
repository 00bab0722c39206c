"""The native products over blocked formats refuse arrays that would lead outside of others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from gnnsparse import _native
from gnnsparse.formats import FormatSpec
from gnnsparse.formats.convert import convert
from tests.native.native_calls import GRAPH, NNZ, attached, attached_panels, blocked, ints, longs


def spmm(**changed: Any) -> torch.Tensor:
    y = torch.zeros(6, 3)
    given = {
        "a": attached("me-bcrs"), "rows": _native.StoredRows(), "x": torch.ones(5, 3).half(), "y": y,
        "threads": 1,
    }  # fmt: skip
    _native.cpu_spmm_blocked(**{**given, **changed})
    return y


def sddmm(**changed: Any) -> torch.Tensor:
    matrix = blocked("me-bcrs")
    out = torch.zeros(matrix.slots * 8)
    given = {
        "a": attached("me-bcrs"), "row_ids": None, "q": torch.ones(6, 3).half(), "k": torch.ones(5, 3).half(),
        "out": out, "threads": 1,
    }  # fmt: skip
    _native.cpu_sddmm_blocked(**{**given, **changed})
    return out


def with_zeros(zero_ptr: torch.Tensor, zero_cols: torch.Tensor) -> _native.Blocked:
    handle = attached("tiled-csr")
    handle.attach_zero_index(zero_ptr, zero_cols)
    return handle


#: Packed values in active bricks, with an array for each.
BRICKS = convert(
    GRAPH.csr,
    FormatSpec("bricks", 16, 16, 16, 4, "bitmap", packed=True, pad=16, active_bricks=True),
    GRAPH.values.half(),
)


def bricks(**changed: Any) -> _native.Blocked:
    return replace(BRICKS, **changed).view()


def starting(first: int) -> torch.Tensor:
    value_ptr = BRICKS.arrays["value_ptr"].clone()
    value_ptr[0] = first
    return value_ptr


def windows(number: int) -> torch.Tensor:
    return torch.full_like(BRICKS.arrays["brick_rows"], number)


def test_they_run() -> None:
    dense = torch.from_numpy(GRAPH.to_scipy().toarray()).half().float()
    torch.testing.assert_close(spmm(), dense.sum(1, keepdim=True).expand(6, 3))
    assert int((sddmm() == 3).sum()) == NNZ


SLOTS = blocked("me-bcrs").slots
#: Values in row order, which go with bits, without the offsets of the rows and with ones that do not fit.
BARE = _native.StoredRows(None, None, None, torch.ones(NNZ))
EMPTY = _native.StoredRows(longs(7), None, None, torch.ones(NNZ))
CASES: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
    ("format: has no arrays", spmm, {"a": _native.Blocked(8, 8, 8, 8, False, 0, 6, 5, NNZ)}),
    ("values: is None", spmm, {"a": attached("me-bcrs", values=None)}),
    ("values: is None", sddmm, {"a": attached("window")}),
    ("bitmap: is None", spmm, {"a": attached("window", bitmap=None)}),
    ("value_ptr: is None", spmm, {"a": bricks(value_ptr=None)}),
    ("x: has shape", spmm, {"x": torch.ones(4, 3).half()}),
    ("y: has shape", spmm, {"y": torch.ones(5, 3)}),
    ("threads: must be", spmm, {"threads": 0}),
    ("row_ids: has", spmm, {"rows": _native.StoredRows(None, ints(5))}),
    ("row_scale: has", spmm, {"rows": _native.StoredRows(None, None, torch.ones(5))}),
    ("indptr: is None", spmm, {"a": attached("window"), "rows": BARE}),
    ("k: must have the dtype of q", sddmm, {"k": torch.ones(5, 3)}),
    ("out: has", sddmm, {"out": torch.zeros(7)}),
    ("panel_ptr is out of range", spmm, {"a": attached_panels(0, 48, 32)}),
    ("panel_ptr is out of range", spmm, {"a": attached_panels(0, -16, 32)}),
    ("panel_rows is out of range", spmm, {"a": attached_panels(0, 16, 32, rows=(0, 9))}),
    ("panel_rows is out of range", spmm, {"a": attached_panels(0, 16, 32, rows=(-1, 0))}),
    ("columns are out of range", spmm, {"a": attached("me-bcrs", columns=ints(SLOTS, 5))}),
    ("columns are out of range", sddmm, {"a": attached("me-bcrs", columns=ints(SLOTS, -1))}),
    ("zero_ptr is out of range", spmm, {"a": with_zeros(longs(7) + 9, ints(3))}),
    ("bits are not those", spmm, {"a": attached("window"), "rows": EMPTY}),
    ("zero_ptr: has", with_zeros, {"zero_ptr": longs(6), "zero_cols": ints(3)}),
    *(("value_ptr is out of range", spmm, {"a": bricks(value_ptr=starting(at))}) for at in (-5, 10**9)),
    *(("nonzeros outside of the rows", spmm, {"a": bricks(brick_rows=windows(n))}) for n in (-1, 1, 10**6)),
    ("brick_ptr is out of range", spmm, {"a": bricks(brick_ptr=BRICKS.arrays["brick_ptr"] + 10**6)}),
]  # fmt: skip


@pytest.mark.parametrize(("message", "call", "changed"), CASES)
def test_what_does_not_fit_is_refused(
    message: str, call: Callable[..., Any], changed: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match=message):
        call(**changed)
