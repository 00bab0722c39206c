"""The table of fragment layouts by which the emulator multiplies, against the PTX ISA's formulas."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest

#: PTX ISA, "Matrix Fragments for mma.m16n8k...": for each shape and operand the number of elements of a lane,
#: and (row, column) of element i in the lane with groupID g and threadID_in_group t.
PTX: dict[tuple[str, str], tuple[int, Callable[[int, int, int], tuple[int, int]]]] = {
    ("m16n8k32", "a"): (
        16,
        lambda g, t, i: (
            g if i < 4 or 8 <= i < 12 else g + 8,
            t * 4 + (i & 3) + (0 if i < 8 else 16),
        ),
    ),
    ("m16n8k32", "b"): (8, lambda g, t, i: (t * 4 + (i & 3) + (0 if i < 4 else 16), g)),
    ("m16n8k16", "a"): (
        8,
        lambda g, t, i: (
            g if i < 2 or 4 <= i < 6 else g + 8,
            t * 2 + (i & 1) + (0 if i < 4 else 8),
        ),
    ),
    ("m16n8k16", "b"): (4, lambda g, t, i: (t * 2 + (i & 1) + (0 if i < 2 else 8), g)),
    ("m16n8k8", "a"): (4, lambda g, t, i: (g if i in (0, 2) else g + 8, t if i < 2 else t + 4)),
    ("m16n8k8", "b"): (2, lambda g, t, i: (t if i == 0 else t + 4, g)),
    ("m16n8k8 halves", "a"): (4, lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1))),
    ("m16n8k8 halves", "b"): (2, lambda g, t, i: (t * 2 + i, g)),
    ("m16n8k4", "a"): (2, lambda g, t, i: (g if i == 0 else g + 8, t)),
    ("m16n8k4", "b"): (1, lambda g, t, i: (t, g)),
}
for shape in {shape for shape, _ in PTX}:
    PTX[shape, "c"] = 4, lambda g, t, i: (g if i < 2 else g + 8, t * 2 + (i & 1))


@pytest.mark.parametrize(("shape", "operand"), sorted(PTX))
def test_fragment_tables_are_those_of_the_ptx_isa(built: ModuleType, shape: str, operand: str) -> None:
    count, place = PTX[shape, operand]
    wanted = [place(lane >> 2, lane % 4, i) for lane in range(32) for i in range(count)]
    assert built.fragment_map(shape, operand) == wanted


def test_unknown_fragments_are_refused(built: ModuleType) -> None:
    with pytest.raises(ValueError, match="shape"):
        built.fragment_map("m8n8k4", "a")
    with pytest.raises(ValueError, match="operand"):
        built.fragment_map("m16n8k8", "d")
