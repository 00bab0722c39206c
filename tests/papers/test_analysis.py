"""The counts of papers.analysis against counting by hand."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnsparse import masks
from gnnsparse.formats import PRESETS, format_spec
from gnnsparse.formats.convert import convert
from gnnsparse.formats.csr import Csr
from gnnsparse.sparse.graph import SparseGraph
from papers import analysis


def csr_of(dense: np.ndarray) -> Csr:
    return masks.from_dense(torch.from_numpy(dense)).csr


@st.composite
def patterns(draw: st.DrawFn) -> np.ndarray:
    """A pattern with empty rows and columns, of any density."""
    rows, cols = draw(st.integers(1, 70)), draw(st.integers(1, 60))
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    dense = random.random((rows, cols)) < draw(st.sampled_from([0.0, 0.02, 0.1, 0.5, 1.0]))
    dense[random.random(rows) < 0.2] = False
    dense[:, random.random(cols) < 0.2] = False
    return dense


def windows(dense: np.ndarray, height: int) -> list[np.ndarray]:
    return [dense[i : i + height] for i in range(0, dense.shape[0], height)]


def vectors_of(dense: np.ndarray, height: int) -> list[int]:
    return [int(part.any(0).sum()) for part in windows(dense, height)]


KINDS = st.sampled_from([(2, 8), (2, 16), (4, 4), (4, 8)])


@given(patterns(), st.sampled_from([8, 16]), KINDS, st.integers(1, 70))
def test_instructions_are_those_of_a_loop_over_blocks(
    dense: np.ndarray, height: int, kind: tuple[int, int], width: int
) -> None:
    element, k = kind
    got = analysis.count_accesses(csr_of(dense), height, width=width, k=k, element=element)
    across = 8 if height == 16 else 16
    mma = operands = gathered = 0
    for vectors in vectors_of(dense, height):
        gathered += vectors * width * element
        for _ in range(0, vectors, k):
            for _ in range(0, width, across):
                mma += 1
                operands += element * (height * k + k * across)
    assert (got.mma, got.operand_bytes, got.gathered_bytes) == (mma, operands, gathered)
    assert got.vectors == sum(vectors_of(dense, height))
    assert got.total_bytes == operands + 4 * width * height * math.ceil(dense.shape[0] / height)


@given(patterns(), st.sampled_from([8, 16]), st.integers(1, 70))
def test_instructions_of_sddmm(dense: np.ndarray, height: int, width: int) -> None:
    got = analysis.count_accesses(csr_of(dense), height, op="sddmm", width=width)
    block = 8 if height == 16 else 16
    blocks = sum(math.ceil(vectors / block) for vectors in vectors_of(dense, height))
    assert got.mma == blocks * math.ceil(width / 8)
    assert got.operand_bytes == 2 * got.mma * (16 * 8 + 8 * 8)
    assert got.result_bytes == 2 * height * sum(vectors_of(dense, height))


@given(patterns(), st.sampled_from([16, 32]))
def test_bricks_are_those_of_brute_force(dense: np.ndarray, panel: int) -> None:
    active = columns = 0
    for part in windows(dense, panel):
        packed = part[:, part.any(0)]
        for at in range(0, packed.shape[1], 4):
            bricks = [packed[top : top + 16, at : at + 4].any() for top in range(0, packed.shape[0], 16)]
            active, columns = active + sum(bricks), columns + 1
    got = analysis.count_bricks(csr_of(dense), panel)
    assert (got.active, got.columns, got.nnz) == (active, columns, dense.sum())
    assert got.alpha == pytest.approx(dense.sum() / (64 * active) if active else 0)
    grid = sum(
        part[:, at : at + 4].any() for part in windows(dense, 16) for at in range(0, dense.shape[1], 4)
    )
    assert analysis.grid_bricks(csr_of(dense)).active == grid


def test_the_modelled_intensity_is_that_of_equation_4() -> None:
    dense = np.random.default_rng(0).random((160, 90)) < 0.1
    bricks = analysis.count_bricks(csr_of(dense))
    for width in (32, 128):
        assert bricks.intensity(width) == pytest.approx(512 * bricks.alpha)
        assert bricks.loads_of_a(width) == pytest.approx(width * bricks.nnz / (bricks.alpha * 16 * 32))
        assert bricks.loads_of_b(width) == pytest.approx(width * bricks.nnz / (512 * bricks.alpha))
    taller = analysis.count_bricks(csr_of(dense), 32)
    assert taller.beta > 1
    assert taller.loads_of_b(128) == pytest.approx(128 * taller.nnz / (512 * taller.alpha * taller.beta))


def test_synergy_classes_are_those_of_table_1() -> None:
    classes = {0.0: "low", 0.1249: "low", 0.125: "medium", 0.2499: "medium", 0.25: "high", 1.0: "high"}
    assert {density: analysis.synergy_class(density) for density in classes} == classes


def algorithm_1(
    dense: np.ndarray, threshold: int, increment: int | None, reading: str
) -> tuple[list[int], list[int]]:
    """RSH-SpMM's algorithm 1, line by line."""
    starts, residual, row = [], [], 0
    while row < dense.shape[0]:
        nonzeros = int(dense[row].sum())
        if nonzeros == 0:
            row += 1
            continue
        delta = int(dense[row : row + 8].any(0).sum()) - int(dense[row + 1 : row + 8].any(0).sum())
        if reading == "algorithm":
            second = increment is None or delta < increment
        else:
            second = delta >= (nonzeros if increment is None else increment)
        if second and nonzeros <= threshold:
            residual.append(row)
            row += 1
        else:
            starts.append(row)
            row += 8
    return starts, residual


@given(patterns(), st.integers(0, 8), st.sampled_from([None, 1, 3]), st.sampled_from(analysis.READINGS))
def test_rows_are_divided_as_algorithm_1_does(
    dense: np.ndarray, threshold: int, increment: int | None, reading: str
) -> None:
    starts, residual = algorithm_1(dense, threshold, increment, reading)
    got = analysis.partition_rows(csr_of(dense), threshold, increment, reading=reading)
    assert got.window_rows.tolist() == starts
    assert got.residual_rows.tolist() == residual
    assert got.residual_nnz == dense[residual].sum()
    assert got.window_nnz + got.residual_nnz == dense.sum()
    parts = [dense[row : row + 8] for row in starts]
    assert got.window_vectors.tolist() == [int(part.any(0).sum()) for part in parts]
    blocks = sum(math.ceil(int(part.any(0).sum()) / 8) for part in parts)
    assert got.nnz_per_block == pytest.approx(got.window_nnz / max(blocks, 1))
    assert got.nnz_per_window == pytest.approx(got.window_nnz / max(len(starts), 1))


@given(patterns())
def test_footprints_are_those_of_the_papers_arrays(dense: np.ndarray) -> None:
    csr, nnz = csr_of(dense), int(dense.sum())
    eight, sixteen = vectors_of(dense, 8), vectors_of(dense, 16)

    def padded(counts: list[int], multiple: int) -> int:
        return sum(math.ceil(count / multiple) * multiple for count in counts)

    def blocks(counts: list[int], width: int) -> int:
        return padded(counts, width) // width

    rows = dense.shape[0]
    expected = {
        "csr": 4 * (rows + 1) + 6 * nnz,
        "coo": 10 * nnz,
        "me-bcrs": 4 * len(eight) + sum(eight) * (4 + 16),
        "sr-bcrs": 8 * len(eight) + padded(eight, 8) * (4 + 16),
        "cvse-8": 4 * (len(eight) + 1) + sum(eight) * (4 + 16),
        "cvse-16": 4 * (len(sixteen) + 1) + sum(sixteen) * (4 + 32),
        "tiled-csr": 4 * (len(eight) + 1) + 4 * (rows + 1) + padded(eight, 16) * (4 + 16)
        + 4 * sum(int((~part[:, part.any(0)]).sum()) for part in windows(dense, 8)),
        "hrpb": 4 * (len(sixteen) + 1) + 4 * (blocks(sixteen, 16) + 1) + 64 * blocks(sixteen, 16)
        + 20 * blocks(sixteen, 16) + 12 * blocks(sixteen, 4) + 2 * nnz,
        "me-tcf": 4 * (len(sixteen) + 1) + 4 * (blocks(sixteen, 8) + 1) + 32 * blocks(sixteen, 8) + 3 * nnz,
        "bit-tcf": 4 * (len(eight) + 1) + 4 * (blocks(eight, 8) + 1) + 40 * blocks(eight, 8) + 2 * nnz,
    }  # fmt: skip
    threshold = min(max(2, nnz // rows // 4), 6)
    starts, residual = algorithm_1(dense, threshold, max(3, threshold // 2 + 1), "algorithm")
    of_windows = [int(dense[row : row + 8].any(0).sum()) for row in starts]
    kept = int(dense[residual].sum())
    expected["rs-tile"] = (
        4 * len(starts) + 4 * (len(starts) + 1) + 40 * blocks(of_windows, 8) + 2 * nnz
        + 4 * len(residual) + 4 * kept
    )  # fmt: skip
    assert {name: analysis.footprint(csr, name) for name in analysis.FOOTPRINTS} == expected


@given(patterns())
def test_the_presets_formulas_give_the_same_bytes(dense: np.ndarray) -> None:
    """The formats count from their own arrays, the analysis from the structure."""
    csr = csr_of(dense)
    for name in ("me-bcrs", "sr-bcrs", "cvse-8", "cvse-16", "tiled-csr", "hrpb", "rs-tile"):
        format, _, panel = name.partition("-") if name.startswith("cvse") else (name, "", "")
        spec, formula = format_spec(format, panel=int(panel) if panel else None), PRESETS[format].paper_bytes
        assert formula is not None
        blocked = convert(csr, spec, torch.ones(csr.nnz, dtype=torch.float16))
        assert formula(blocked) == analysis.footprint(csr, name), name


@given(patterns())
def test_utilisation(dense: np.ndarray) -> None:
    csr, nnz = csr_of(dense), int(dense.sum())
    tiles = sum(math.ceil(vectors / 16) for vectors in vectors_of(dense, 8))
    assert analysis.tile_utilisation(csr) == pytest.approx(nnz / max(128 * tiles, 1))
    single = sum(math.ceil(int(row.sum()) / 16) for row in dense)
    assert analysis.row_utilisation(csr) == pytest.approx(nnz / max(128 * single, 1))
    assert analysis.row_utilisation(csr) <= 1 / 8
    assert analysis.vector_density(csr, 16) == pytest.approx(nnz / max(16 * sum(vectors_of(dense, 16)), 1))


@given(patterns(), st.sampled_from([0.0, 0.5, 1.0]))
def test_dissimilarity_is_the_sum_over_neighbouring_rows(dense: np.ndarray, exponent: float) -> None:
    weight = np.maximum(dense.sum(0), 1.0) ** -exponent
    total = 0.0
    for a, b in itertools.pairwise(dense):
        union = weight[a | b].sum()
        total += 1 - (weight[a & b].sum() / union if union else 1.0)
    assert analysis.adjacent_dissimilarity(csr_of(dense), exponent=exponent) == pytest.approx(total, abs=1e-9)


@given(patterns(), st.randoms(use_true_random=False))
def test_an_order_counts_as_the_permuted_matrix_does(dense: np.ndarray, random) -> None:  # type: ignore[no-untyped-def]
    order = list(range(dense.shape[0]))
    random.shuffle(order)
    given, permuted = torch.tensor(order), csr_of(dense[order])
    csr = csr_of(dense)
    for count in (
        lambda m, o: analysis.count_accesses(m, order=o),
        lambda m, o: analysis.tile_utilisation(m, order=o),
        lambda m, o: analysis.count_bricks(m, 32, o),
        lambda m, o: analysis.vector_density(m, order=o),
        lambda m, o: [analysis.footprint(m, name, order=o) for name in analysis.FOOTPRINTS],
    ):
        assert count(csr, given) == count(permuted, None)
    assert analysis.adjacent_dissimilarity(csr, given) == pytest.approx(
        analysis.adjacent_dissimilarity(permuted)
    )


def test_the_wave_rule_cuts_nothing_in_the_papers_example() -> None:
    """Section 5: 991 panels, the first of 10 blocks, on 100 SMs with one thread block each: 10 waves."""
    blocks = torch.ones(991, dtype=torch.int64)
    blocks[0] = 10
    assert analysis.wave_segments(blocks, 100).tolist() == [1] * 991
    assert analysis.imbalance(blocks, 100) == 1.0


@given(st.lists(st.integers(0, 300), min_size=1, max_size=60), st.integers(1, 40))
def test_segments_are_equations_6_and_7(blocks: list[int], concurrent: int) -> None:
    got = analysis.wave_segments(torch.tensor(blocks), concurrent).tolist()
    waves = math.ceil(len(blocks) / concurrent)
    for mine, segments in zip(blocks, got, strict=True):
        if sum(blocks):
            loads = mine * len(blocks) / sum(blocks)
            assert segments == min(max(1, math.ceil(loads / waves - 1e-9)), max(mine, 1))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.integers(1, 8), st.data())
def test_imbalance_is_that_of_starting_one_after_another(
    work: list[int], concurrent: int, data: st.DataObject
) -> None:
    segments = data.draw(st.lists(st.integers(1, 5), min_size=len(work), max_size=len(work)))
    parts = []
    for blocks, count in zip(work, segments, strict=True):
        parts += [blocks // count + (i < blocks % count) for i in range(count)]
    busy = [0] * min(concurrent, len(parts))
    for part in parts:
        busy[busy.index(min(busy))] += part
    expected = max(busy) * len(busy) / sum(work) if sum(work) else 1.0
    got = analysis.imbalance(torch.tensor(work), concurrent, torch.tensor(segments))
    assert got == pytest.approx(expected)
    assert got >= 1


def test_rank_correlation() -> None:
    assert analysis.rank_correlation([1, 2, 3], [10, 20, 1000]) == pytest.approx(1)
    assert analysis.rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    # With ties, by hand: ranks 0.5 0.5 2 3 and 1 0 2 3.
    assert analysis.rank_correlation([1, 1, 2, 3], [5, 4, 6, 7]) == pytest.approx(4.5 / math.sqrt(4.5 * 5))


@pytest.mark.parametrize("name", ["me-bcrs", "hrpb", "rs-tile", "window"])
def test_every_form_of_a_matrix_is_accepted(name: str) -> None:
    csr = csr_of(np.random.default_rng(1).random((50, 40)) < 0.2)
    spec = format_spec(name)
    values = torch.ones(csr.nnz, dtype=torch.float16) if spec.stores_values else None
    blocked = convert(csr, spec, values)
    counts = {analysis.count_bricks(matrix).active for matrix in (csr, SparseGraph(csr), blocked)}
    assert len(counts) == 1


PAIR = torch.tensor([1, 2])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: analysis.structure_of([1]), TypeError, "matrix: got list"),
        (lambda m: analysis.count_accesses(m, 12), ValueError, "height: got 12; accepted: 8 or 16"),
        (lambda m: analysis.count_accesses(m, op="spmv"), ValueError, "op: got 'spmv'"),
        (lambda m: analysis.count_accesses(m, k=4), ValueError, "k: got 4; accepted: 8 or 16"),
        (lambda m: analysis.count_accesses(m, element=1), ValueError, "element: got 1"),
        (lambda m: analysis.count_accesses(m, width=0), ValueError, "width: got 0"),
        (lambda m: analysis.count_bricks(m, 8), ValueError, "panel: got 8; accepted: 16 or 32"),
        (lambda m: analysis.footprint(m, "ell"), ValueError, "format: got 'ell'; accepted: csr, coo"),
        (lambda m: analysis.footprint(m, "csr", -1), ValueError, "value: got -1"),
        (lambda m: analysis.partition_rows(m, -1), ValueError, "threshold: got -1"),
        (lambda m: analysis.partition_rows(m, reading="both"), ValueError, "reading: got 'both'"),
        (lambda m: analysis.synergy_class(1.5), ValueError, "density: got 1.5"),
        (lambda m: analysis.wave_segments(torch.tensor([-1]), 1), ValueError, "blocks: has negative"),
        (lambda m: analysis.wave_segments(torch.tensor([1]), 0), ValueError, "concurrent: got 0"),
        (lambda m: analysis.imbalance(torch.ones(3), 1), TypeError, "work: got a tensor"),
        (lambda m: analysis.imbalance(PAIR, 1, PAIR[:1]), ValueError, "segments: has 1 panels; accepted: 2"),
        (lambda m: analysis.rank_correlation([1.0], [1.0]), ValueError, "measured: has 1 cases"),
        (lambda m: analysis.rank_correlation([1.0, 1.0], [1.0, 2.0]), ValueError, "no two cases that differ"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(call, error: type[Exception], message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(error, match=message):
        call(csr_of(np.eye(4, dtype=bool)))
