"""Splits that are made of the nodes with a label: random, stratified, and by time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gnnsparse.data import NodeDataset, load_custom
from gnnsparse.data.splits import split_by_time, split_generator, stratified_split
from tests.own_graphs import NODES, write_npz, write_table, write_tables


def plain(folder: Path, **more: Any) -> Path:
    return write_npz(folder, **{"train_mask": None, "val_mask": None, "test_mask": None, **more})


def sizes(dataset: NodeDataset) -> tuple[int, ...]:
    return tuple(int(mask.sum()) for mask in (dataset.train_mask, dataset.val_mask, dataset.test_mask))


@pytest.mark.parametrize("split", ["auto", "random", "stratified"])
def test_parts_of_the_nodes_with_a_label(split: str, tmp_path: Path) -> None:
    path = plain(tmp_path)
    got, again, other = (
        load_custom(path, split=split, train_fraction=0.5, val_fraction=0.25, seed=seed) for seed in (0, 0, 1)
    )
    labelled = got.y >= 0
    assert torch.equal(got.train_mask | got.val_mask | got.test_mask, labelled)
    assert sum(sizes(got)) == int(labelled.sum())
    assert abs(sizes(got)[0] - 27) <= 2
    assert torch.equal(got.train_mask, again.train_mask)
    assert not torch.equal(got.train_mask, other.train_mask)


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=6),
    st.floats(0.05, 0.9),
    st.floats(0.05, 0.9),
    st.integers(0, 2**63 - 1),
)
def test_stratified_parts_have_the_shares_of_each_class(
    counts: list[int], train: float, val: float, seed: int
) -> None:
    if train + val >= 1:
        train, val = train / 2, val / 2
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


@given(st.lists(st.integers(-5, 5), min_size=3), st.floats(0.05, 0.9), st.floats(0.05, 0.9))
def test_earlier_nodes_are_for_training(moments: list[int], train: float, val: float) -> None:
    times = torch.tensor(moments, dtype=torch.float64)
    if times.unique().numel() < 3:
        return
    if train + val >= 1:
        train, val = train / 2, val / 2
    first, second, third = split_by_time(times, train, val)
    assert bool((first ^ second ^ third).all())
    assert times[first].max() < times[second].min()
    assert times[second].max() < times[third].min()


def test_years_of_a_table(tmp_path: Path) -> None:
    folder = write_tables(tmp_path / "tables", split=False, years=True)  # 2000 to 2019, three nodes each
    got = load_custom(folder, split="time:year", train_fraction=0.5, val_fraction=0.3)
    assert got.x.shape == (NODES, 3)  # years are no feature then
    years = torch.arange(NODES) // 3
    labelled = got.y >= 0
    assert torch.equal(got.train_mask, labelled & (years < years[got.val_mask].min()))
    assert torch.equal(got.test_mask, labelled & (years > years[got.val_mask].max()))
    assert abs(sizes(got)[0] - 27) <= 3


def test_dates(tmp_path: Path) -> None:
    ids = ["a", "b", "c", "d"]
    write_table(tmp_path / "edges.csv", {"source": ids, "target": ids[::-1]})
    dates = ["2024-03-01", "2021-01-01T10:00:00+02:00", "", "2022-06-30"]
    write_table(tmp_path / "nodes.csv", {"id": ids, "f": [1, 2, 3, 4], "label": [0, 1, 0, 1], "day": dates})
    got = load_custom(tmp_path, split="time:day", train_fraction=0.4, val_fraction=0.3)
    assert got.train_mask.tolist() == [False, True, False, False]
    assert got.val_mask.tolist() == [False, False, False, True]
    assert got.test_mask.tolist() == [True, False, False, False]  # c has no day


def test_one_of_several_given_splits(tmp_path: Path) -> None:
    part = np.stack([np.arange(NODES) % 3, (np.arange(NODES) + 1) % 3], axis=1)
    masks = {f"{name}_mask": part == number for number, name in enumerate(("train", "val", "test"))}
    first, second = (load_custom(plain(tmp_path, **masks), split=f"given:{i}") for i in range(2))
    labelled = first.y >= 0
    assert torch.equal(first.train_mask, torch.from_numpy(part[:, 0] == 0) & labelled)
    assert torch.equal(second.train_mask, torch.from_numpy(part[:, 1] == 0) & labelled)
    turned = {name: mask.T for name, mask in masks.items()}  # as the heterophilous graphs have them
    assert torch.equal(load_custom(plain(tmp_path, **turned), split="given:1").val_mask, second.val_mask)


@pytest.mark.parametrize("turned", [False, True])
def test_a_mask_for_all_goes_with_each_of_several_splits(turned: bool, tmp_path: Path) -> None:
    """As in WikiCS, whose test nodes are those of all splits."""
    test = np.arange(NODES) % 3 == 0
    half = np.stack([(np.arange(NODES) + split) % 2 == 0 for split in range(4)], axis=1)
    masks = {"train_mask": half & ~test[:, None], "val_mask": ~half & ~test[:, None], "test_mask": test}
    path = plain(tmp_path, **{name: mask.T if turned else mask for name, mask in masks.items()})
    for split in range(4):
        got = load_custom(path, split=f"given:{split}")
        labelled = (got.y >= 0).numpy()
        for name, mask in masks.items():
            want = (mask if mask.ndim == 1 else mask[:, split]) & labelled
            assert np.array_equal(getattr(got, name).numpy(), want)
    with pytest.raises(ValueError, match=r"^split: got 'given:4', and the file has 4; accepted: smaller"):
        load_custom(path, split="given:4")
    path = plain(tmp_path, **masks | {"val_mask": masks["val_mask"][:, :3]})
    with pytest.raises(ValueError, match=r"^split: the masks have several .*train_mask 4, val_mask 3, test"):
        load_custom(path, split="given:1")
