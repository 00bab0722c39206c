"""The table of fragment layouts by which the emulator multiplies, against the PTX ISA's formulas."""

from __future__ import annotations

from types import ModuleType

import pytest


def ptx_m16n8k16(operand: str) -> list[tuple[int, int]]:
    """PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type": element index i."""
    elements = []
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        for i in range({"a": 8, "b": 4, "c": 4}[operand]):
            if operand == "a":
                row = group if i < 2 or 4 <= i < 6 else group + 8
                col = thread * 2 + (i & 1) + (0 if i < 4 else 8)
            elif operand == "b":
                row, col = thread * 2 + (i & 1) + (0 if i < 2 else 8), group
            else:
                row, col = group if i < 2 else group + 8, thread * 2 + (i & 1)
            elements.append((row, col))
    return elements


def ptx_m16n8k8_tf32(operand: str) -> list[tuple[int, int]]:
    """PTX ISA, "Matrix Fragments for mma.m16n8k8", .tf32."""
    elements = []
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        for i in range({"a": 4, "b": 2, "c": 4}[operand]):
            if operand == "a":
                row = group if i in (0, 2) else group + 8
                col = thread if i < 2 else thread + 4
            elif operand == "b":
                row, col = thread if i == 0 else thread + 4, group
            else:
                row, col = group if i < 2 else group + 8, thread * 2 + (i & 1)
            elements.append((row, col))
    return elements


def ptx_m16n8k8_halves(operand: str) -> list[tuple[int, int]]:
    """PTX ISA, "Matrix Fragments for mma.m16n8k8", .f16: element index i."""
    elements = []
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        for i in range({"a": 4, "b": 2, "c": 4}[operand]):
            if operand == "b":
                row, col = thread * 2 + i, group
            else:
                row, col = group if i < 2 else group + 8, thread * 2 + (i & 1)
            elements.append((row, col))
    return elements


def ptx_m16n8k4(operand: str) -> list[tuple[int, int]]:
    """PTX ISA, "Matrix Fragments for mma.m16n8k4", .tf32."""
    elements = []
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        if operand == "a":
            elements += [(group, thread), (group + 8, thread)]
        elif operand == "b":
            elements.append((thread, group))
        else:
            elements += [(group + 8 * (i // 2), thread * 2 + (i & 1)) for i in range(4)]
    return elements


def ptx_m16n8k32(operand: str) -> list[tuple[int, int]]:
    """PTX ISA, "Matrix Fragments for mma.m16n8k32", .s8: element index i."""
    elements = []
    for lane in range(32):
        group, thread = lane >> 2, lane % 4
        for i in range({"a": 16, "b": 8, "c": 4}[operand]):
            if operand == "a":
                row = group if i < 4 or 8 <= i < 12 else group + 8
                col = thread * 4 + (i & 3) + (0 if i < 8 else 16)
            elif operand == "b":
                row, col = thread * 4 + (i & 3) + (0 if i < 4 else 16), group
            else:
                row, col = group if i < 2 else group + 8, thread * 2 + (i & 1)
            elements.append((row, col))
    return elements


@pytest.mark.parametrize("operand", ["a", "b", "c"])
def test_fragment_tables_are_those_of_the_ptx_isa(built: ModuleType, operand: str) -> None:
    assert built.fragment_map("m16n8k32", operand) == ptx_m16n8k32(operand)
    assert built.fragment_map("m16n8k16", operand) == ptx_m16n8k16(operand)
    assert built.fragment_map("m16n8k8", operand) == ptx_m16n8k8_tf32(operand)
    assert built.fragment_map("m16n8k8 halves", operand) == ptx_m16n8k8_halves(operand)
    assert built.fragment_map("m16n8k4", operand) == ptx_m16n8k4(operand)


def test_unknown_fragments_are_refused(built: ModuleType) -> None:
    with pytest.raises(ValueError, match="shape"):
        built.fragment_map("m8n8k4", "a")
    with pytest.raises(ValueError, match="operand"):
        built.fragment_map("m16n8k8", "d")
