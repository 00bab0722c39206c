"""What sampling's native functions are handed is checked: an error that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gnnsparse import _native
from gnnsparse.sampling.draws import Rule
from tests.native.native_calls import CSR, HUGE, NNZ, Call, ints, longs

ROWS = 6
TARGETS = torch.tensor([0, 3, 5], dtype=torch.int32)


def draw_of(**changed: Any) -> _native.SampleDraw:
    given = {"rule": Rule.UNIFORM, "fanout": 2, "seed": 1, "step": 0, "layer": 0, "loops": False}
    return _native.SampleDraw(**{**given, **changed})


def graph_of(weights: Any = None, running: Any = None) -> _native.SampleGraph:
    return _native.SampleGraph(CSR.view, weights, running)


def rows_of(targets: Any = TARGETS, used: Any = None, windows: Any = None, trees: Any = None) -> Any:
    return _native.SampleRows(targets, used, windows, trees)


def windows_of(begin: int, degree: int) -> torch.Tensor:
    return torch.tensor([begin, degree] * 3)


def drawn_of(places: Any = None, copies: Any = None, keys: Any = None) -> _native.SampleDrawn:
    return _native.SampleDrawn(ints(6) if places is None else places, copies, keys)


def after_draw() -> dict[str, Any]:
    """What is gathered, of rows that were drawn by right calls."""
    drawn, indptr = drawn_of(), longs(4)
    draw_neighbors(drawn=drawn, indptr=indptr)
    count = int(indptr[-1])
    given = {"drawn": drawn, "indptr": indptr, "nodes": ints(count), "edges": longs(count), "copies": None}
    return {"graph": graph_of(), "draw": draw_of(), "rows": rows_of(), **given, "threads": 1}


draw_neighbors = Call(_native.draw_neighbors, lambda: {
    "graph": graph_of(), "draw": draw_of(), "rows": rows_of(), "drawn": drawn_of(), "indptr": longs(4),
    "threads": 1,
})  # fmt: skip
gather_neighbors = Call(_native.gather_neighbors, after_draw)
number_nodes = Call(_native.number_nodes, lambda: {
    "targets": TARGETS, "nodes": ints(4, 1), "place": ints(ROWS, 2**31 - 1), "sources": ints(7),
    "numbers": ints(4), "threads": 1,
})  # fmt: skip
draw_negatives = Call(_native.draw_negatives, lambda: {
    "a": CSR.view, "draw": draw_of(rule=Rule.ALL), "of": _native.SampleNegatives(True, False),
    "pairs": longs(8), "threads": 1,
})  # fmt: skip
running_sums = Call(
    _native.running_sums,
    lambda: {"a": CSR.view, "weights": torch.zeros(NNZ), "running": torch.zeros(NNZ).double(), "threads": 1},
)

OUT_OF_RANGE = torch.tensor([0, ROWS, 1], dtype=torch.int32)
WEIGHTED, REPLACED = draw_of(rule=Rule.WEIGHTED), draw_of(rule=Rule.WEIGHTED_REPLACED)

WRONG: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
    ("rule: code must be 0 to 5", draw_of, {"rule": 6}),
    ("fanout: must be at least 1", draw_of, {"fanout": 0}),
    ("fanout: must be below", draw_of, {"fanout": HUGE}),
    ("step: must be below", draw_of, {"step": 2**32}),
    ("layer: must be below", draw_of, {"layer": 2**32 - 1}),
    ("places: has .* bytes", draw_neighbors, {"drawn": drawn_of(ints(5))}),
    ("copies: ", draw_neighbors, {"draw": draw_of(rule=Rule.UNIFORM_REPLACED)}),
    ("weights: is None", draw_neighbors, {"draw": WEIGHTED}),
    ("weights: has .* bytes", draw_neighbors, {"draw": WEIGHTED, "graph": graph_of(torch.zeros(NNZ - 1))}),
    ("keys: ", draw_neighbors, {"draw": WEIGHTED, "graph": graph_of(torch.zeros(NNZ))}),
    ("running: is None", draw_neighbors, {"draw": REPLACED}),
    ("running: has float32", draw_neighbors, {"draw": REPLACED, "graph": graph_of(None, torch.zeros(NNZ))}),
    ("indptr: has .* bytes", draw_neighbors, {"indptr": longs(3)}),
    ("threads: must be at least 1", draw_neighbors, {"threads": 0}),
    ("indptr: must never decrease", gather_neighbors, {"indptr": longs(4)}),
    ("indptr: must never decrease", gather_neighbors, {"nodes": ints(1)}),
    ("indptr: was not written with", gather_neighbors, {"drawn": drawn_of(ints(6, 2**31 - 1))}),
    ("indptr: was not written with", gather_neighbors, {"drawn": drawn_of(ints(6, -1))}),
    ("indptr: was not written with", gather_neighbors,
     {"draw": draw_of(fanout=1), "drawn": drawn_of(ints(3))}),
    ("indptr: was not written with", gather_neighbors, {"draw": draw_of(rule=Rule.ALL)}),
    ("edges: has .* bytes", gather_neighbors, {"edges": longs(1)}),
    ("copies: has .* bytes", gather_neighbors, {"copies": torch.zeros(1)}),
    ("nodes: element 0 is 6", number_nodes, {"nodes": ints(4, ROWS)}),
    ("targets: element 1 is 6", number_nodes, {"targets": OUT_OF_RANGE}),
    ("sources: has .* bytes", number_nodes, {"sources": ints(6)}),
    ("numbers: has .* bytes", number_nodes, {"numbers": ints(3)}),
    ("place: has int64", number_nodes, {"place": longs(ROWS)}),
    ("a: has no nodes", draw_negatives, {"a": _native.Csr(longs(1), ints(0), 0)}),
    ("running: has float32", running_sums, {"running": torch.zeros(NNZ)}),
    ("weights: has .* bytes", running_sums, {"weights": torch.zeros(NNZ - 1)}),
]  # fmt: skip


@pytest.mark.parametrize(("message", "call", "changed"), WRONG)
def test_wrong_arguments_are_named(message: str, call: Callable[..., Any], changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        call(**changed)


WRONG_ROWS: list[tuple[str, Callable[..., Any], dict[str, Any]]] = [
    ("targets: element 1 is 6", draw_neighbors, {"targets": OUT_OF_RANGE}),
    ("targets: has int64", draw_neighbors, {"targets": TARGETS.long()}),
    ("used: must be None", draw_neighbors, {"used": ints(1)}),
    ("windows: has .* bytes", draw_neighbors, {"windows": longs(5)}),
    ("windows: number 0 is not inside", draw_neighbors, {"windows": windows_of(1, NNZ)}),
    ("windows: number 0 is not inside", draw_neighbors, {"windows": windows_of(0, -1)}),
    ("windows: number 0 is not inside", draw_neighbors, {"windows": windows_of(0, HUGE)}),
    ("windows: number 0 is not inside", draw_neighbors, {"windows": windows_of(NNZ, 0)}),
    ("trees: has .* bytes", gather_neighbors, {"trees": ints(2)}),
    ("targets: element 1 is 6", gather_neighbors, {"targets": OUT_OF_RANGE}),
]


@pytest.mark.parametrize(("message", "call", "changed"), WRONG_ROWS)
def test_wrong_rows_are_named(message: str, call: Callable[..., Any], changed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        call(rows=rows_of(**changed))
