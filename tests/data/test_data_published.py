"""The published data sets and matrices, from the published files: counts and splits."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gnnsparse.data import load_dataset, load_matrix
from gnnsparse.data.tu import load_tu
from gnnsparse.testing import assert_accurate
from tests.data.raw_files import listing
from tests.data_folder import data_file, requires_data

pytestmark = [requires_data, pytest.mark.slow]

#: folder, nodes, undirected edges, features, classes, metric, training, validation and test nodes.
PUBLISHED = {
    "cora": ("planetoid/cora", 2708, 5278, 1433, 7, "accuracy", (140, 500, 1000)),
    "citeseer": ("planetoid/citeseer/raw", 3327, 4552, 3703, 6, "accuracy", (120, 500, 1000)),
    "pubmed": ("planetoid", 19_717, 44_324, 500, 3, "accuracy", (60, 500, 1000)),
    "minesweeper": ("heterophilous", 10_000, 39_402, 7, 2, "roc_auc", (5000, 2500, 2500)),
    "tolokers": ("heterophilous", 11_758, 519_000, 10, 2, "roc_auc", (5879, 2939, 2940)),
    "amazon_photo": ("amazon", 7650, 119_081, 745, 8, "accuracy", (160, 240, 7250)),
    "amazon_computers": ("amazon/Computers", 13_752, 245_861, 767, 10, "accuracy", (200, 300, 13_252)),
    "coauthor_cs": ("coauthor/CS/raw", 18_333, 81_894, 6805, 15, "accuracy", (300, 450, 17_583)),
    "coauthor_physics": ("coauthor", 34_493, 247_962, 8415, 5, "accuracy", (100, 150, 34_243)),
}


@pytest.fixture(autouse=True)
def small_cache(dataset_cache: Path) -> Iterator[Path]:
    """The data folder of a test, removed at once: dense features take up to a gigabyte."""
    yield dataset_cache
    shutil.rmtree(dataset_cache, ignore_errors=True)


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sets(name: str) -> None:
    folder, nodes, edges, features, classes, metric, split = PUBLISHED[name]
    root = data_file(*folder.split("/"))
    before = listing(root)
    data = load_dataset(name, root=root)
    assert listing(root) == before, "the folder given must not be written"
    assert (data.name, data.num_nodes, data.num_features) == (name, nodes, features)
    assert (data.num_classes, data.metric, data.multi_label) == (classes, metric, False)
    assert data.graph.nnz == 2 * edges
    assert data.graph.values is None
    assert data.graph.is_symmetric
    assert not bool((data.graph.csr.row_index() == data.graph.csr.indices).any())
    assert tuple(int(mask.sum()) for mask in (data.train_mask, data.val_mask, data.test_mask)) == split
    assert data.y.unique().tolist() == list(range(classes))
    if folder.startswith("planetoid"):
        total = data.x.sum(dim=1)
        ones = torch.ones(int((total > 0).sum()))
        assert_accurate(total[total > 0], ones, ones.double())


def test_normalization_can_be_chosen() -> None:
    raw = load_dataset("cora", root=data_file("planetoid"), normalize_features=False)
    assert set(raw.x.unique().tolist()) == {0.0, 1.0}


def test_random_splits_are_the_same_for_every_seed() -> None:
    root = data_file("amazon")
    first, seeded, other = (
        load_dataset("amazon_photo", root=root, split=split, seed=seed, normalize_features=True)
        for split, seed in ((0, 0), (0, 5), (1, 0))
    )
    assert torch.equal(first.train_mask, seeded.train_mask)
    assert not torch.equal(first.train_mask, other.train_mask)
    for mask, count in ((other.train_mask, 20), (other.val_mask, 30)):
        assert other.y[mask].bincount().tolist() == [count] * 8
    total = first.x.sum(dim=1)
    some = (total > 0).float()
    assert some.any()
    assert_accurate(total, some, some.double())


@pytest.mark.parametrize(
    ("title", "graphs", "nodes", "edges", "labels", "classes"),
    [
        ("PROTEINS", 1113, 43471, 81044, 3, 2),
        ("ENZYMES", 600, 19580, 37282, 3, 6),
        ("DD", 1178, 334925, 843046, 82, 2),
    ],
)
def test_data_sets_of_graphs(
    title: str, graphs: int, nodes: int, edges: int, labels: int, classes: int
) -> None:
    data = load_tu(title, data_file("tu"))
    counts = (data.num_graphs, data.num_nodes, data.graph.nnz, data.num_features, data.num_classes)
    assert counts == (graphs, nodes, 2 * edges, labels, classes)


@pytest.mark.parametrize(
    ("file", "rows", "cols", "nnz", "has_values"),
    [
        ("suitesparse/Groebner_id2003_aug.mtx.gz", 4967, 2456, 173_670, True),
        ("suitesparse/delaunay_n16.mtx.gz", 65_536, 65_536, 393_150, False),
        ("suitesparse/mbeacxc.mtx.gz", 496, 496, 49_920, True),
        ("dlmc/rn50/magnitude_pruning/0.95/bottleneck_1_block_group3_2_1.smtx.gz", 256, 1024, 13_107, False),
        ("graphs/cnr_2000.npz", 325_557, 325_557, 3_216_152, False),
        ("tu/ENZYMES.npz", 19_580, 19_580, 2 * 37_282, False),
        ("attributed/blogcatalog.npz", 5196, 5196, 2 * 171_743, False),
    ],
)
def test_matrices(file: str, rows: int, cols: int, nnz: int, has_values: bool) -> None:
    graph = load_matrix(data_file(*file.split("/")))
    assert (graph.num_rows, graph.num_cols, graph.nnz) == (rows, cols, nnz)
    assert (graph.values is not None) == has_values
    assert graph.values is None or graph.values.dtype == torch.float32
