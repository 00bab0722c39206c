"""What the bindings of the CUDA kernels of SpMM and SDDMM refuse, tested with the emulator's."""

from __future__ import annotations

from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch

from gnnsparse import _native
from gnnsparse.formats import format_spec
from gnnsparse.formats.convert import convert
from gnnsparse.precision import Precision, dense_view, round_operand
from gnnsparse.testing import random_graph

GRAPH = random_graph(20, 20, 0.2)


def matrix(format: str, precision: str = "fp16", panel: int | None = None, dense: bool = False) -> Any:
    spec = format_spec(format, precision, panel=panel)
    spec = replace(spec, encoding="dense") if dense else spec
    return convert(GRAPH.csr, spec, round_operand(GRAPH.values, Precision(precision)))


def call(native: ModuleType, kernel: str, precision: str = "fp16", n: int = 8, **own: Any) -> None:
    """A kernel with 20 x n operands of zeros unless others are given, and a matrix in a format or in CSR."""
    exact, stored = Precision(precision), matrix(*own.pop("a")) if "a" in own else None
    x, y = dense_view(torch.zeros(20, n).to(exact.storage)), dense_view(torch.zeros(20, n))
    size = {} if "heads" in own else {"d" if kernel.startswith("sddmm") else "n": n}
    if kernel.startswith("sddmm"):
        scores = torch.zeros(GRAPH.nnz, own.get("heads", 1))
        own = {"q": x, "k": x, "out": scores if "heads" in own else _native.EdgeValues(scores), **own}
    else:
        own = {"x": x, "y": y, "partial": None, **own}
    own = {"rows": _native.StoredRows(GRAPH.csr.indptr), **own, **size}
    own |= {"a": stored.view() if stored else GRAPH.csr.view, "work": _native.WorkList(None, None, 0)}
    getattr(native, f"cuda_{kernel}")(precision=exact.code, stream=0, **own)


def policy(**changed: Any) -> dict[str, Any]:
    switches = {"swapped": True, "deep": True, "x_load": 0, "shuffle": True}
    switches |= {"stage_a": 0, "stage_x": False, "coarsening": 1, "grid_3d": False}
    return {"policy": _native.WindowPolicy(**switches | changed)}


NARROW = _native.CsrLanes(1, 1, 1000, torch.tensor([0, 20], dtype=torch.int32), narrow=True)
GOOD: dict[str, dict[str, Any]] = {
    "spmm_panel": {"a": ("panel", "fp16", 32), "slices": 1},
    "spmm_window": {"a": ("window",)},
    "spmm_policy": {"a": ("me-bcrs",), **policy()},
    "spmm_csr": {"lanes": NARROW, "precision": "fp32"},
    "sddmm_window": {"a": ("window",)},
    "sddmm_panel": {"a": ("panel", "fp16", 16)},
}
WINNERS = torch.zeros(20, 8, dtype=torch.int32)
HEADS = {"precision": "fp32", "heads": 2, "width": 4, "lanes": _native.CsrLanes(1, 32, 1000)}
GOOD |= {
    "spmm_heads": {**HEADS, "rows": _native.StoredRows(values=torch.zeros(GRAPH.nnz, 2)), "winners": None},
    "spmm_extreme": {**HEADS, "largest": True, "partial_winners": None, "winners": WINNERS},
    "sddmm_heads": {**HEADS, "winners": None},
}
VALUES = ("panel-values", "fp16", 32)
WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("spmm_panel", {"a": ("window",)}, "takes panels in lane order"),
    ("spmm_panel", {"a": (*VALUES, True)}, "values of panels of 32 rows are entries"),
    (
        "spmm_panel",
        {"a": ("panel-values", "fp32", 32, True), "precision": "fp32"},
        "values of panels of 32 rows are entries",
    ),
    ("spmm_panel", {"a": VALUES, "precision": "fp32"}, "entries hold values of 16 bits"),
    ("spmm_panel", {"a": ("panel-values", "fp32", 32)}, "entries hold values of 32 bits"),
    ("spmm_panel", {"slices": 0}, "slices: must be at least 1"),
    ("spmm_panel", {"a": VALUES, "add": True}, "add: is true; accepted for panels of bits"),
    ("spmm_window", {"a": ("panel", "fp16", 16)}, "takes 8 or 16 rows, row-major"),
    ("spmm_window", {"precision": "fp32"}, "has no fp32"),
    ("spmm_policy", policy(swapped=False), "swapped: is off with windows of 8 rows"),
    ("spmm_policy", policy(x_load=1), "shuffle: needs vector loads"),
    ("spmm_policy", policy(shuffle=False), "shuffle: is off without stage_x"),
    ("spmm_policy", policy(stage_x=True), "stage_x: needs stage_a"),
    ("spmm_policy", policy(coarsening=0), "coarsening"),
    ("spmm_csr", {"n": 33}, "n: is 33; with narrow lanes at most 32 is accepted"),
    ("spmm_csr", {"lanes": _native.CsrLanes(1, 1, 1000, narrow=True)}, "groups: are needed by narrow lanes"),
    ("sddmm_window", {"a": ("panel", "fp16", 16)}, "takes plain 8 x 16 bitmaps"),
    ("sddmm_window", {"a": ("me-bcrs",)}, "takes plain 8 x 16 bitmaps"),
    ("sddmm_window", {"a": ("hrpb",)}, "takes plain 8 x 16 bitmaps"),
    ("sddmm_panel", {"a": ("window",)}, "take the bits of panels"),
    ("sddmm_panel", {"a": ("panel-values", "fp16", 16)}, "take the bits of panels"),
    ("sddmm_panel", {"a": ("panel", "fp16", 32)}, "with windows of 16 rows"),
    ("sddmm_panel", {"a": ("panel", "fp16", 64)}, "takes panels of 16 rows"),
    *(
        (f"{product}_{kind}", changed, message)
        for product, kind in (("spmm", "heads"), ("spmm", "extreme"), ("sddmm", "heads"))
        for changed, message in (
            ({"heads": 0}, "heads: must be at least 1"),
            ({"width": 0}, "width: must be at least 1"),
            ({"heads": 2**16, "width": 2**16}, r"heads: and width have a product of 2\^31 or more"),
            ({"winners": WINNERS[:-1].contiguous()}, r"winners: has .* bytes"),
        )
    ),
    ("spmm_heads", {"rows": _native.StoredRows(values=torch.zeros(GRAPH.nnz))}, r"values: has .* bytes"),
    ("spmm_heads", {"x": dense_view(torch.zeros(20, 7))}, "x: has shape"),
    ("spmm_extreme", {"y": dense_view(torch.zeros(20, 7))}, "y: has shape"),
    ("sddmm_heads", {"out": torch.zeros(GRAPH.nnz)}, r"out: has .* bytes"),
]


@pytest.mark.parametrize(("kernel", "changed", "message"), WRONG)
def test_what_a_kernel_does_not_take(
    built: ModuleType, kernel: str, changed: dict[str, Any], message: str
) -> None:
    call(built, kernel, **GOOD[kernel])
    with pytest.raises(ValueError, match=message):
        call(built, kernel, **GOOD[kernel] | changed)
