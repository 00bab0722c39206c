"""hrpb and rs-tile as their papers store them: examples by hand, brute force, options, and damage."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.formats import PRESETS, BlockedMatrix, check_blocked, format_spec
from gnnsparse.formats.convert import short_row_limits
from gnnsparse.preprocess.api import Recipe
from gnnsparse.testing import random_graph
from papers.analysis import partition_rows
from papers.decode import decode
from tests.formats.conftest import converted


def matrix(rows: int, cols: int, elements: dict[tuple[int, int], float]) -> SparseGraph:
    """A matrix of listed elements, stored zeros among them."""
    places = torch.tensor([*elements]).T
    coo = torch.sparse_coo_tensor(places, [*elements.values()], (rows, cols))
    return SparseGraph.from_torch_sparse(coo.coalesce())


def word_list(values: torch.Tensor) -> bytes:
    return values.view(torch.uint8).numpy().tobytes()


def test_hrpb_by_hand() -> None:
    """Two brick columns of a panel of 32 rows; the second has a brick in either half.

    Columns 1, 2, 5, 7 | 8 of the panel: elements (0, 1) = 1, (3, 2) = 2, (3, 5) = 0 (stored), (15, 7) = 3,
    (2, 8) = 4, (16, 8) = 5, (31, 8) = 6.
    """
    graph = matrix(
        32, 10,
        {(0, 1): 1.0, (3, 2): 2.0, (3, 5): 0.0, (15, 7): 3.0, (2, 8): 4.0, (16, 8): 5.0, (31, 8): 6.0},
    )  # fmt: skip
    got = converted(graph, "hrpb", panel=32)
    assert got.panel_ptr.tolist() == [0, 16]  # one block of 16 column slots: blockedRowPtr is 0, 1
    assert got.columns.tolist() == [1, 2, 5, 7, *[8] * 12]
    expected = struct.pack("<5I", 0, 1, 3, 3, 3)  # colPtr
    expected += struct.pack("<3I", 0, 0, 1)  # rows; 8 words so far, which is a multiple of 8 bytes
    expected += struct.pack(
        "<3Q",
        1 << (4 * 0 + 0) | 1 << (4 * 3 + 1) | 1 << (4 * 3 + 2) | 1 << (4 * 15 + 3),
        1 << (4 * 2 + 0),
        1 << (4 * 0 + 0) | 1 << (4 * 15 + 0),
    )  # patterns
    expected += struct.pack("<7f", 1, 2, 0, 3, 4, 5, 6)  # nnz_array, brick after brick
    expected += bytes(-len(expected) % 16)
    assert word_list(got.packed_blocks) == expected
    assert got.size_ptr.tolist() == [0, len(expected)]
    assert set(got.arrays) == {"panel_ptr", "columns", "size_ptr", "packed_blocks"}
    paper = 20 + 3 * (4 + 8) + 7 * 4
    assert PRESETS["hrpb"].paper_bytes(got) == 4 * 2 + 4 * 16 + 4 * 2 + paper
    row, col, values = decode(got)
    found = dict(zip(zip(row.tolist(), col.tolist(), strict=True), values.tolist(), strict=True))
    assert found[3, 5] == 0.0
    assert len(found) == 7


def test_hrpb_panels_of_16_rows_are_other_blocks() -> None:
    """The same two halves as panels of their own; a panel without a nonzero has no block."""
    graph = matrix(48, 10, {(2, 8): 4.0, (40, 3): 5.0, (47, 9): 6.0})
    got = converted(graph, "hrpb")
    assert got.panel_ptr.tolist() == [0, 16, 16, 32]
    assert got.columns.tolist() == [8] * 16 + [3] + [9] * 15
    assert got.size_ptr.tolist() == [0, 48, 96]  # 24 + 8 + 4 bytes and 24 + 8 + 8, in whole 16
    first, second = word_list(got.packed_blocks)[:48], word_list(got.packed_blocks)[48:]
    assert first[:44] == struct.pack("<6IQf2I", 0, 1, 1, 1, 1, 0, 1 << 8, 4.0, 0, 0)
    assert second[:40] == struct.pack("<6IQ2f", 0, 1, 1, 1, 1, 0, 1 << (4 * 8) | 1 << (4 * 15 + 1), 5.0, 6.0)


def test_rs_tile_by_hand() -> None:
    """Row 0 is short and kept out; rows 2 to 9 are a window of nine columns, so of two blocks of 8 x 8."""
    elements = {(0, 4): 9.0, (0, 7): 8.0}
    elements |= {(2, c): float(c) for c in range(9)}
    elements |= {(9, 8): 0.0}
    graph = matrix(12, 10, elements)
    got = converted(graph, "rs-tile", threshold=2, new_columns=3)
    assert got.residual_rows.tolist() == [0]
    assert got.residual_cols.tolist() == [4, 7]
    assert got.residual_values.tolist() == [9.0, 8.0]
    assert got.panel_rows.tolist() == [2]  # Row Window ID
    assert got.panel_ptr.tolist() == [0, 16]  # Row Window Offset, in column slots: blocks 0 and 1
    assert got.columns.tolist() == [*range(8), *[8] * 8]  # Col ID
    bitmap = np.frombuffer(word_list(got.bitmap), dtype=np.uint64).tolist()
    assert bitmap == [0xFF, 1 | 1 << (8 * 7)]
    assert got.value_ptr.tolist() == [0, 8, 10]
    assert got.values.tolist() == [*map(float, range(9)), 0.0]
    names = {"panel_rows", "panel_ptr", "columns", "bitmap", "value_ptr", "values"}
    assert set(got.arrays) == names | {"residual_rows", "residual_cols", "residual_values"}


def test_kept_out_rows_have_equal_room_and_no_row_pointer() -> None:
    graph = matrix(9, 5, {(0, 3): 1.0, (1, 0): 2.0, (1, 1): 3.0, (1, 4): 4.0, (4, 2): 5.0, (4, 3): 0.0})
    got = converted(graph, "rs-tile", threshold=3, new_columns=9)
    assert got.panels == 0
    assert got.residual_rows.tolist() == [0, 1, 4]
    assert got.residual_cols.tolist() == [3, -1, -1, 0, 1, 4, 2, 3, -1]
    assert got.residual_values.tolist() == [1, 0, 0, 2, 3, 4, 5, 0, 0]
    assert got.residual.indptr.tolist() == [0, 1, 4, 6]
    assert got.residual_csr_values.tolist() == [1, 2, 3, 4, 5, 0]


@pytest.mark.parametrize("shape", [(200, 70, 0.05), (90, 300, 0.02), (64, 64, 0.3)])
@pytest.mark.parametrize(
    "options",
    [
        {}, {"threshold": 0}, {"threshold": 4}, {"threshold": 6, "new_columns": 2},
        {"threshold": 64, "new_columns": 65},
    ],
)  # fmt: skip
def test_windows_are_those_of_algorithm_1(shape: tuple[int, int, float], options: dict[str, int]) -> None:
    graph = random_graph(*shape, hubs=2, empty_rows=0.2)
    got = converted(graph, "rs-tile", **options)
    limits = short_row_limits(graph.num_rows, graph.nnz, got.spec)
    if options:
        assert limits[0] == options["threshold"]
    wanted = partition_rows(graph, *limits)
    assert torch.equal(got.panel_rows.long(), wanted.window_rows.long())
    assert torch.equal(got.residual_rows.long(), wanted.residual_rows.long())


@pytest.mark.parametrize(
    ("rows", "nnz", "expected"), [(4267, 2_140_089, 6), (334_925, 1_686_092, 2), (1, 0, 2)]
)
def test_the_chosen_threshold_is_at_most_6(rows: int, nnz: int, expected: int) -> None:
    """Ddi, whose rows have 501 nonzeros on average, had 125; DD has 5."""
    assert short_row_limits(rows, nnz, format_spec("rs-tile"))[0] == expected


def test_options_are_part_of_the_recipe_and_of_the_cache_key() -> None:
    graph = random_graph(120, 120, 0.03, seed=1)
    first = gnnsparse.prepare(graph, format="rs-tile", precision="fp16", format_options={"threshold": 1})
    other = gnnsparse.prepare(graph, format="rs-tile", precision="fp16", format_options={"threshold": 4})
    again = gnnsparse.prepare(graph, format="rs-tile", precision="fp16", format_options={"threshold": 4})
    assert not other.cache_hit
    assert again.cache_hit
    kept = [a.kernels.blocked.residual_rows.numel() for a in (first, other, again)]
    assert kept[0] < kept[1] == kept[2]
    assert again.kernels.blocked.spec.threshold == 4
    assert Recipe(format="rs-tile", format_options=(("threshold", 1),)).spec(0.0).threshold == 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"format": "rs-tile", "format_options": [1]}, TypeError, "format_options: got list"),
        ({"format": "rs-tile", "format_options": {1: 1}}, TypeError, "format_options: got dict"),
        ({"format": "rs-tile", "format_options": {"treshold": 1}}, ValueError,
         "unknown options for 'rs-tile': treshold; accepted: threshold, new_columns"),
        ({"format": "rs-tile", "format_options": {"threshold": -1}}, ValueError, "got -1; accepted: 0 to"),
        ({"format": "rs-tile", "format_options": {"threshold": 65}}, ValueError, "threshold: got 65"),
        ({"format": "rs-tile", "format_options": {"threshold": 2.5}}, TypeError, "threshold: got float"),
        ({"format": "rs-tile", "format_options": {"threshold": True}}, TypeError, "threshold: got bool"),
        ({"format": "hrpb", "format_options": {"threshold": 1}}, ValueError, "'hrpb': threshold; accepted"),
        ({"format_options": {"threshold": 1}}, ValueError, "'auto': threshold; accepted: none"),
    ],
)  # fmt: skip
def test_wrong_options(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        gnnsparse.prepare(random_graph(20, 20, 0.2), precision="tf32", **options)


def test_options_of_a_preset_are_fields_of_its_parameters() -> None:
    preset = gnnsparse.formats.PRESETS["rs-tile"]
    with pytest.raises(ValueError, match=r"options: got 'depth' for rs-tile; accepted: a field"):
        replace(preset, options={"depth": gnnsparse.registry.Option(int, 1)})


def damage(got: BlockedMatrix, at: int, value: int) -> BlockedMatrix:
    packed = got.packed_blocks.clone()
    packed.view(torch.uint8)[at] = value
    return replace(got, packed_blocks=packed)


@pytest.mark.parametrize("panel", [16, 32])
def test_damaged_records_are_found(panel: int) -> None:
    """Every byte in front of a record's values, changed, contradicts the matrix or the record itself."""
    graph = random_graph(70, 50, 0.15, seed=2, hubs=1)
    got = converted(graph, "hrpb", panel=panel)
    begin = 0
    for end in got.size_ptr.tolist()[1:6]:
        bricks = int(got.packed_blocks.view(torch.int32)[begin // 4 + 4])
        padding = range(20 + 4 * bricks, 20 + 4 * bricks + 4 * (1 - bricks % 2))
        patterns_end = 4 * ((6 + bricks) // 2 * 2) + 8 * bricks
        for at in range(patterns_end):
            if at in padding:
                continue
            was = int(got.packed_blocks.view(torch.uint8)[begin + at])
            for value in {0, 255, was ^ 1, was ^ 128} - {was}:
                with pytest.raises(ValueError, match=r"x\.packed_blocks: panel \d+ does not have"):
                    check_blocked("x", damage(got, begin + at, value), graph.csr, torch.float32)
        begin = end


def test_records_of_other_sizes_are_found() -> None:
    graph = random_graph(70, 50, 0.15, seed=2, hubs=1)
    got = converted(graph, "hrpb")
    moved = got.size_ptr.clone()
    moved[1] += 16
    with pytest.raises(ValueError, match=r"x\.packed_blocks: panel 0 does not have the structure"):
        check_blocked("x", replace(got, size_ptr=moved), graph.csr, torch.float32)
    with pytest.raises(ValueError, match=r"x\.size_ptr"):
        check_blocked("x", replace(got, size_ptr=got.size_ptr - 16), graph.csr, torch.float32)
    with pytest.raises(ValueError, match=r"x\.size_ptr"):
        check_blocked("x", replace(got, packed_blocks=got.packed_blocks[:-4]), graph.csr, torch.float32)
    with pytest.raises(ValueError, match=r"x\.packed_blocks: got"):
        check_blocked("x", got, graph.csr, torch.float16)
