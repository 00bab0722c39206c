"""How windows are cut into parts: cuTeSpMM's waves, RSH-SpMM's super-long windows, `prepare(balance=)`."""

from __future__ import annotations

import pickle
from fractions import Fraction
from math import ceil
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gnnsparse
from gnnsparse import Plan, SparseGraph
from gnnsparse.formats import format_spec
from gnnsparse.formats.convert import convert
from gnnsparse.plan.window import BALANCES, WINDOW
from gnnsparse.plan.work import adaptive_parts, cut_windows, limited_parts, wave_parts, window_tiles
from gnnsparse.runtime import device as device_module
from gnnsparse.sparse.kernel_cache import Product
from gnnsparse.testing import random_graph
from tests.gpu_paths import H200, StandInPath

TILES = st.lists(st.one_of(st.integers(0, 6), st.integers(0, 400)), min_size=1, max_size=60)


def parts_of(cut: Any, tiles: list[int], concurrent: int) -> list[int]:
    return cut(torch.tensor(tiles), concurrent).tolist()


# cuTeSpMM's waves.


def test_the_papers_991_panels_need_no_cut() -> None:
    """Section 5: 100 SMs of one block each, the first of 991 panels has 10 blocks, the others have 1 each."""
    assert parts_of(wave_parts, [10, *[1] * 990], 100) == [1] * 991
    # With one block more, the ratio is 11 / (1001 / 991) / 10 = 1.089, and the panel is cut.
    assert parts_of(wave_parts, [11, *[1] * 990], 100) == [2, *[1] * 990]
    # Without the waves the panel would have been cut: its load is 9.91 times the mean.
    assert parts_of(wave_parts, [10, *[1] * 990], 991) == [10, *[1] * 990]


@given(tiles=TILES, concurrent=st.integers(1, 70))
def test_waves_follow_equations_6_and_7(tiles: list[int], concurrent: int) -> None:
    mean, waves = Fraction(sum(tiles), len(tiles)), ceil(Fraction(len(tiles), concurrent))
    ratios = [tile / mean / waves if mean else Fraction(0) for tile in tiles]
    wanted = [max(1, min(tile, ceil(ratio))) for tile, ratio in zip(tiles, ratios, strict=True)]
    assert parts_of(wave_parts, tiles, concurrent) == wanted


# RSH-SpMM's super-long windows.


def test_super_long_windows_by_hand() -> None:
    """9 windows of 2 tiles and one of 42, whose mean is 6: it is super-long above 24."""
    tiles = [42, *[2] * 9]
    assert parts_of(adaptive_parts, tiles, 10) == [4, *[1] * 9]  # parts of at most 12
    assert parts_of(adaptive_parts, tiles, 2) == [2, *[1] * 9]  # of at most 30, the mean of two places
    assert parts_of(adaptive_parts, tiles, 1) == [1] * 10  # one place computes it in any case
    assert parts_of(adaptive_parts, [24, *[4] * 9], 60) == [1] * 10  # exactly 4 times the mean of 6
    assert parts_of(adaptive_parts, [24, *[4] * 9, 0, 0], 60) == [1] * 12  # empty windows do not count


@given(tiles=TILES, concurrent=st.integers(1, 70))
def test_the_adaptive_rule(tiles: list[int], concurrent: int) -> None:
    filled = [tile for tile in tiles if tile]
    mean = Fraction(sum(tiles), max(len(filled), 1))
    share = Fraction(sum(tiles), concurrent)
    limit = max(ceil(2 * mean), ceil(share))
    wanted = [ceil(Fraction(tile, limit)) if tile > max(4 * mean, share) else 1 for tile in tiles]
    assert parts_of(adaptive_parts, tiles, concurrent) == wanted


# Work lists.


def check_list(graph: SparseGraph, limit: int, balance: str, concurrent: int) -> None:
    """Items cover every window once and in order, partial sums follow one another, no part is empty."""
    blocked = convert(graph.csr, format_spec("window"), None)
    tiles = window_tiles(blocked)
    work = cut_windows(blocked, graph.csr, limit, balance=balance, concurrent=concurrent)
    items, place, at, cuts = work.items.tolist(), 0, 0, []
    for window, count in enumerate(tiles.tolist()):
        parts = [item for item in items if item[0] == window]
        assert items[at : at + len(parts)] == parts
        at += len(parts)
        begin = 0
        for _, first, length, where in parts:
            assert first == begin
            assert where == (place if len(parts) > 1 else -1)
            assert length > 0 or len(parts) == 1
            begin += length
            place += len(parts) > 1
        assert begin == count
        lengths = [item[2] for item in parts]
        if balance == "auto":  # all but the last are equally long
            size = -(-count // int(limited_parts(tiles, limit)[window]))
            assert max(lengths) <= limit
            assert lengths == [min(size, count - item[1]) for item in parts]
        else:
            assert max(lengths) - min(lengths) <= 1
        if len(parts) > 1:
            cuts.append([window, place - len(parts), len(parts), 0])
    assert at == len(items)
    assert (work.cuts.tolist(), work.partials) == (cuts, place)
    # Rows resume after the nonzeros of the parts before.
    dense = torch.from_numpy(graph.to_scipy().toarray()) != 0
    for (window, first, _, _), offsets in zip(items, work.row_offsets.tolist(), strict=True):
        begin = int(blocked.panel_ptr[window])
        before = blocked.columns[begin : begin + 16 * first].long()
        rows = dense[8 * window : 8 * window + 8][:, before].sum(1).tolist()
        assert offsets == rows + [0] * (8 - len(rows))


@given(
    rows=st.integers(1, 60), cols=st.integers(1, 300), density=st.sampled_from([0.0, 0.05, 0.5]),
    limit=st.integers(1, 9), balance=st.sampled_from(BALANCES), concurrent=st.integers(1, 20),
    seed=st.integers(0, 2**20),
)  # fmt: skip
def test_work_lists_of_any_matrix(
    rows: int, cols: int, density: float, limit: int, balance: str, concurrent: int, seed: int
) -> None:
    check_list(random_graph(rows, cols, density, seed=seed, hubs=1), limit, balance, concurrent)


# The argument of prepare, and plans.


def test_balance_is_checked() -> None:
    graph = random_graph(20, 20, 0.2)
    with pytest.raises(ValueError, match="balance: got 'best'; accepted: auto, none, wave, adaptive"):
        gnnsparse.prepare(graph, format="hrpb", precision="tf32", balance="best")
    with pytest.raises(TypeError, match="balance: got int"):
        gnnsparse.prepare(graph, format="hrpb", precision="tf32", balance=1)  # type: ignore[arg-type]
    for name in ("auto", "csr"):
        with pytest.raises(
            ValueError, match=f"balance: got 'wave' for format='{name}', which has no windows"
        ):
            gnnsparse.prepare(graph, format=name, balance="wave")
    with pytest.raises(ValueError, match="balance: got 'best'"):
        Plan("window", balance="best")
    with pytest.raises(ValueError, match="concurrent_windows: got -1"):
        Plan("window", concurrent_windows=-1)


def test_the_balance_goes_with_the_operand_and_not_into_the_cache() -> None:
    graph = random_graph(60, 60, 0.1)
    for hit, balance in ((False, "wave"), (True, "none"), (True, "auto")):
        a = gnnsparse.prepare(graph, format="hrpb", precision="tf32", balance=balance)
        assert a.cache_hit is hit
        for same in (a, a.T, pickle.loads(pickle.dumps(a)), a.to("cpu")):
            assert same.stats()["balance"] == balance
        assert a.kernels.problem(Product("spmm", 64)).balance == balance


@pytest.mark.parametrize("balance", BALANCES)
def test_plans_take_the_balance_and_what_runs_at_a_time(balance: str) -> None:
    graph = random_graph(640, 4000, 0.12, seed=4)
    with device_module.use(StandInPath(None, device=H200)):
        a = gnnsparse.prepare(graph, precision="fp16", format="me-bcrs", balance=balance, cache=False)
        plans = {width: WINDOW.default(a.kernels.problem(Product("spmm", width))) for width in (64, 256)}
        warps = a.kernels.problem(Product("spmm", 64)).record.csr.warps * H200.multiprocessors
        variants = WINDOW.variants(a.kernels.problem(Product("spmm", 64)))
        limit = plans[64].tile_limit
        given = a.kernels.window_work(limit, balance=balance, concurrent=warps)
        assert a.kernels.window_work(limit, balance=balance) is given or balance in ("auto", "none")
    at_a_time = {"wave": (warps, warps // 4), "adaptive": (warps, warps // 4)}.get(balance, (0, 0))
    assert (plans[64].concurrent_windows, plans[256].concurrent_windows) == at_a_time
    assert {plan.balance for plan in (*plans.values(), *variants)} == {balance}
    assert len(variants) == (2 if balance == "auto" else 1)
