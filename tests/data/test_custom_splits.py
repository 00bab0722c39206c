"""Splits that are made of the nodes with a label: random, stratified, and by time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnsparse.data import load_custom
from gnnsparse.data.splits import split_by_time, split_generator, stratified_split
from tests.own_graphs import NODES, write_npz, write_table


def plain(folder: Path, **more: Any) -> Path:
    return write_npz(folder, **{"train_mask": None, "val_mask": None, "test_mask": None, **more})


@pytest.mark.parametrize("split", ["auto", "random", "stratified"])
def test_parts_of_the_nodes_with_a_label(split: str, tmp_path: Path) -> None:
    path = plain(tmp_path)
    got, again, other = (
        load_custom(path, split=split, train_fraction=0.5, val_fraction=0.25, seed=seed) for seed in (0, 0, 1)
    )
    parts = torch.stack([got.train_mask, got.val_mask, got.test_mask]).sum(dim=0)
    assert torch.equal(parts, (got.y >= 0).long())
    assert abs(int(got.train_mask.sum()) - 27) <= 2
    assert torch.equal(got.train_mask, again.train_mask)
    assert not torch.equal(got.train_mask, other.train_mask)


SHARES = st.tuples(st.floats(0.05, 0.9), st.floats(0.05, 0.9)).filter(lambda shares: sum(shares) < 1)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), SHARES, st.integers(0, 2**63 - 1))
def test_stratified_parts_have_the_shares_of_each_class(
    counts: list[int], shares: tuple[float, float], seed: int
) -> None:
    train, val = shares
    y = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    y = y[torch.randperm(len(y), generator=torch.Generator().manual_seed(1))]
    masks = stratified_split(y, split_generator(0, seed), train, val)
    assert torch.stack(masks).sum(dim=0).tolist() == [1] * len(y)
    for label, count in enumerate(counts):
        for mask, share in zip(masks, (train, val, 1 - train - val), strict=True):
            assert abs(int((mask & (y == label)).sum()) - share * count) < 1 + 1e-6 * count


def test_small_classes_are_not_all_in_one_part() -> None:
    masks = stratified_split(torch.arange(300), split_generator(0, 0), 0.6, 0.2)
    # Each of 300 nodes is a training node with probability 0.6: the deviation of their number is 8.5.
    assert abs(int(masks[0].sum()) - 180) < 5 * 8.5


@given(st.lists(st.integers(-5, 5), min_size=3).filter(lambda moments: len(set(moments)) >= 3), SHARES)
def test_earlier_nodes_are_for_training(moments: list[int], shares: tuple[float, float]) -> None:
    times = torch.tensor(moments, dtype=torch.float64)
    first, second, third = split_by_time(times, *shares)
    assert bool((first ^ second ^ third).all())
    assert times[first].max() < times[second].min()
    assert times[second].max() < times[third].min()


def test_dates(tmp_path: Path) -> None:
    """Which are no feature then, as years are none; a node without a day is in no part."""
    ids = ["a", "b", "c", "d"]
    write_table(tmp_path / "edges.csv", {"source": ids, "target": ids[::-1]})
    dates = ["2024-03-01", "2021-01-01T10:00:00+02:00", "", "2022-06-30"]
    nodes = {"id": ids, "f": [1, 2, 3, 4], "label": [0, 1, 0, 1]}
    for column, times in (("day", dates), ("year", [2024, 2021, "", 2022])):
        write_table(tmp_path / "nodes.csv", {**nodes, column: times})
        got = load_custom(tmp_path, split=f"time:{column}", train_fraction=0.4, val_fraction=0.3)
        masks = torch.stack([got.train_mask, got.val_mask, got.test_mask])
        assert masks.int().argmax(dim=1).tolist() == [1, 3, 0]
        assert masks.sum() == 3
        assert got.feature_names == ("f",)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_one_of_several_given_splits(turned: bool, shared: bool, tmp_path: Path) -> None:
    """Turned as in the heterophilous graphs, or with test nodes that all splits share, as in WikiCS."""
    part = (np.arange(NODES)[:, None] + np.arange(4)) % 3
    masks = {f"{name}_mask": part == number for number, name in enumerate(("train", "val", "test"))}
    if shared:
        test = np.arange(NODES) % 5 == 0
        masks = {name: mask & ~test[:, None] for name, mask in masks.items()} | {"test_mask": test}
    path = plain(tmp_path, **{name: mask.T if turned else mask for name, mask in masks.items()})
    for split in range(4):
        got = load_custom(path, split=f"given:{split}")
        for name, mask in masks.items():
            want = (mask if mask.ndim == 1 else mask[:, split]) & (got.y >= 0).numpy()
            assert np.array_equal(getattr(got, name).numpy(), want)
    with pytest.raises(ValueError, match=r"^split: got 'given:4', and the file has 4; accepted: smaller"):
        load_custom(path, split="given:4")
    path = plain(tmp_path, **masks | {"val_mask": masks["val_mask"][:, :3]})
    with pytest.raises(ValueError, match=r"^split: the masks have several .*train_mask 4, val_mask 3"):
        load_custom(path, split="given:1")
