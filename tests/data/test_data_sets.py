"""Data sets that need no files, NodeDataset, splits, and the arguments of load_dataset."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import gnnsparse
from gnnsparse import SparseGraph
from gnnsparse.data import load_dataset
from gnnsparse.data.splits import split_by_class
from gnnsparse.testing import assert_accurate
from models import GCN
from tests.data.raw_files import write_minesweeper
from tests.tasks import toy_task

SYNTHETIC = {"reddit_like": 0.01, "products_like": 0.002, "arxiv_like": 0.05}


def test_digits_are_a_symmetric_neighbour_graph() -> None:
    data = load_dataset("digits")
    assert (data.num_nodes, data.num_features, data.num_classes) == (1797, 64, 10)
    assert (data.metric, data.multi_label) == ("accuracy", False)
    assert data.graph.is_symmetric
    assert data.graph.values is None
    assert int(data.graph.csr.degrees.min()) == 8
    assert not bool((data.graph.csr.row_index() == data.graph.csr.indices).any())
    assert (float(data.x.min()), float(data.x.max())) == (0.0, 1.0)
    for mask, count in ((data.train_mask, 60), (data.val_mask, 30)):
        assert data.y[mask].bincount().tolist() == [count] * 10
    assert bool((data.train_mask ^ data.val_mask ^ data.test_mask).all())
    seeded, other = (load_dataset("digits", split=split, seed=1 - split).train_mask for split in (0, 1))
    assert torch.equal(data.train_mask, seeded), "the split is fixed"
    assert not torch.equal(data.train_mask, other)
    # The neighbours are the nearest.
    pixels = (16 * data.x).double()  # integers, whose products float64 adds exactly
    size = pixels.square().sum(1)
    distance = (size[:, None] + size - 2 * pixels @ pixels.T).fill_diagonal_(float("inf"))
    eighth = distance.sort(dim=1).values[:, 7]
    row, col = data.graph.csr.row_index(), data.graph.csr.indices.long()
    limit = torch.maximum(eighth[row], eighth[col])
    assert bool((distance[row, col] <= limit).all())


@pytest.mark.parametrize(("name", "classes", "features", "share"), [
    ("reddit_like", 41, 602, 0.659), ("products_like", 47, 100, 0.080), ("arxiv_like", 40, 128, 0.537),
])  # fmt: skip
def test_synthetic_sets_have_the_shapes_of_the_real_ones(
    name: str, classes: int, features: int, share: float
) -> None:
    data = load_dataset(name, scale=SYNTHETIC[name])
    assert (data.num_classes, data.num_features) == (classes, features)
    assert data.y.bincount(minlength=classes).min() > 0
    assert float(data.train_mask.double().mean()) == pytest.approx(share, abs=0.002)
    assert bool((data.train_mask ^ data.val_mask ^ data.test_mask).all())
    assert float(data.x.std()) == pytest.approx(1.0, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYNTHETIC)
def test_a_gcn_learns_synthetic_sets_from_the_graph(name: str) -> None:
    data = load_dataset(name, scale=SYNTHETIC[name])
    loops = SparseGraph.from_edge_index(torch.arange(data.num_nodes).expand(2, -1), data.num_nodes)
    found = []
    for used in (data, replace(data, graph=loops)):
        model = GCN(data.num_features, out_channels=data.num_classes, hidden_channels=64, num_layers=2)
        found.append(gnnsparse.fit(model, used, epochs=40, val_every=5).metrics["test"]["accuracy"])
    with_graph, without = found
    most_common = float(data.y.bincount().max()) / data.num_nodes
    assert with_graph > max(without, most_common) + 0.15
    assert with_graph < 0.95, "not trivial"


def test_synthetic_sets_depend_on_seed_and_split_and_are_normalized_on_request() -> None:
    before = torch.get_rng_state()
    plain, again, seeded, split = (
        load_dataset("arxiv_like", scale=0.02, seed=seed, split=split)
        for seed, split in ((0, 0), (0, 0), (1, 0), (0, 1))
    )
    assert torch.equal(torch.get_rng_state(), before), "the global random state is left alone"
    assert plain.graph.fingerprint == again.graph.fingerprint
    for attribute in ("x", "y", "train_mask"):
        assert torch.equal(getattr(plain, attribute), getattr(again, attribute))
    assert plain.graph.fingerprint != seeded.graph.fingerprint
    assert torch.equal(plain.x, split.x)
    assert not torch.equal(plain.train_mask, split.train_mask)
    normalized = load_dataset("arxiv_like", scale=0.02, normalize_features=True).x.abs().sum(dim=1)
    assert_accurate(normalized, torch.ones_like(normalized), torch.ones_like(normalized).double())


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("graph", torch.eye(5), TypeError),
        ("graph", SparseGraph.from_csr([0, 0, 0, 0, 0, 0], [], num_cols=3), ValueError),
        ("x", torch.zeros(5, 8, dtype=torch.float64), TypeError),
        ("x", torch.zeros(4, 8), ValueError),
        ("y", torch.zeros(4, dtype=torch.int64), ValueError),
        ("y", torch.tensor([0, 1, 2, 3, 0]), ValueError),
        ("y", torch.tensor([0, 1, 2, -2, 0]), ValueError),
        ("y", torch.zeros(5, 2), ValueError),
        ("y", [0, 1, 2, 0, 1], TypeError),
        ("val_mask", torch.zeros(5), TypeError),
        ("test_mask", torch.ones(5, dtype=torch.bool), ValueError),
        ("metric", "f1", ValueError),
    ],
)
def test_node_datasets_are_checked(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"{name}: .*"):
        replace(toy_task(5), **{name: value})


def test_splits_of_small_classes_leave_a_third_for_testing() -> None:
    y = torch.tensor([0] * 100 + [1] * 30 + [2] * 2 + [4])
    train, val, test = split_by_class(y, 0, train=20, val=30)
    assert y[train].bincount().tolist() == [20, 8, 1, 0, 1]
    assert y[val].bincount(minlength=5).tolist() == [30, 12, 0, 0, 0]
    assert bool((train ^ val ^ test).all())


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("corra", {}, "name: got 'corra'; accepted: digits, .*arxiv_like, cora"),
        ("cora", {"split": 1}, "split: got 1; accepted: 0"),
        ("minesweeper", {"split": 10}, "split: got 10; accepted: 0 to 9"),
        ("digits", {"split": -1}, "split: got -1; accepted: 0, 1, 2"),
        ("digits", {"seed": -1}, "seed: got -1; accepted: an integer from 0"),
        ("cora", {"scale": 0.5}, "scale: got 0.5 for cora; accepted: 1"),
        ("arxiv_like", {"scale": 0}, "scale: got 0; accepted: a number above 0"),
        ("reddit_like", {"scale": 0.001}, "scale: got 0.001; accepted for reddit_like"),
        ("digits", {"root": "/data"}, "root: got '/data' for digits; accepted: None"),
        ("digits", {"split": "0"}, "split: got str; accepted"),
        ("digits", {"seed": 0.5}, "seed: got float; accepted"),
        ("digits", {"scale": "1"}, "scale: got str; accepted"),
        ("digits", {"download": 1}, "download: got int; accepted"),
        ("digits", {"normalize_features": "no"}, "normalize_features: got str; accepted"),
    ],
)
def test_bad_arguments_are_named(name: str, arguments: dict[str, Any], message: str) -> None:
    error = TypeError if re.search("got [a-z]+; ", message) else ValueError
    with pytest.raises(error, match=f"^{message}"):
        load_dataset(name, **arguments)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"digits needs scikit-learn .*pip install"):
        load_dataset("digits")
    monkeypatch.setitem(sys.modules, "torch_geometric.datasets", None)
    with pytest.raises(ImportError, match=r"cora needs torch-geometric .*pip install"):
        load_dataset("cora")


@pytest.mark.slow
def test_neither_the_package_nor_reading_imports_what_is_heavy(tmp_path: Path, dataset_cache: Path) -> None:
    """Readers of PyG and OGB trust files, too; they are for downloads alone."""
    write_minesweeper(tmp_path)
    code = """
import sys, gnnsparse.data
print(*{name.partition(".")[0] for name in sys.modules})
gnnsparse.data.load_dataset("minesweeper", root=sys.argv[1])
print(*{name.partition(".")[0] for name in sys.modules})
"""
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert result.returncode == 0
    imported, read = (set(line.split()) for line in result.stdout.splitlines())
    assert not {"torch_geometric", "ogb", "sklearn", "scipy", "pandas"} & imported
    assert not {"torch_geometric", "ogb"} & read
