"""The published data sets, from the published files: counts, splits, and folders that are only read."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gnnsparse.data import DatasetUnavailableError, load_dataset
from gnnsparse.testing import assert_accurate
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


def listing(folder: Path) -> list[tuple[str, int, int]]:
    status = {path: path.lstat() for path in (folder, *folder.rglob("*"))}
    return sorted((str(path), entry.st_size, entry.st_mtime_ns) for path, entry in status.items())


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


@pytest.mark.parametrize("root", ["planetoid", "planetoid/cora", "planetoid/cora/raw"])
def test_the_root_may_be_at_any_level(root: str) -> None:
    assert load_dataset("cora", root=str(data_file(*root.split("/")))).num_nodes == 2708


def test_a_read_only_copy_is_enough_and_stays_as_it_is(tmp_path: Path, small_cache: Path) -> None:
    root = tmp_path / "Cora"
    shutil.copytree(data_file("planetoid", "cora"), root)
    for path in (*root.rglob("*"), root):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = listing(root)
    first = load_dataset("cora", root=tmp_path)
    made = {path: path.stat().st_mtime_ns for path in small_cache.rglob("arrays.safetensors")}
    assert len(made) == 1
    second = load_dataset("cora", root=root)
    assert {path: path.stat().st_mtime_ns for path in small_cache.rglob("arrays.safetensors")} == made, (
        "processed once"
    )
    assert listing(root) == before
    assert first.graph.fingerprint == second.graph.fingerprint
    assert torch.equal(first.x, second.x)
    for path in (root, *root.rglob("*")):
        path.chmod(0o755)


def test_changed_files_are_read_anew(tmp_path: Path) -> None:
    for name in ("minesweeper", "tolokers"):
        shutil.copyfile(data_file("heterophilous", f"{name}.npz"), tmp_path / f"{name}.npz")
    assert load_dataset("minesweeper", root=tmp_path).num_nodes == 10_000
    shutil.copyfile(tmp_path / "tolokers.npz", tmp_path / "minesweeper.npz")
    assert load_dataset("minesweeper", root=tmp_path).num_nodes == 11_758


def test_fixed_splits_differ() -> None:
    root = data_file("heterophilous")
    splits = [load_dataset("minesweeper", root=root, split=split) for split in (0, 9)]
    assert not torch.equal(splits[0].train_mask, splits[1].train_mask)
    assert [int(data.train_mask.sum()) for data in splits] == [5000, 5000]


def test_random_splits_are_the_same_for_every_seed() -> None:
    root = data_file("amazon")
    data = [
        load_dataset("amazon_photo", root=root, split=split, seed=seed)
        for split, seed in ((0, 0), (0, 5), (1, 0))
    ]
    assert torch.equal(data[0].train_mask, data[1].train_mask)
    assert not torch.equal(data[0].train_mask, data[2].train_mask)
    for mask, count in ((data[2].train_mask, 20), (data[2].val_mask, 30)):
        assert data[2].y[mask].bincount().tolist() == [count] * 8


def test_normalization_can_be_chosen() -> None:
    raw = load_dataset("cora", root=data_file("planetoid"), normalize_features=False)
    assert set(raw.x.unique().tolist()) == {0.0, 1.0}
    normalized = load_dataset("amazon_photo", root=data_file("amazon"), normalize_features=True)
    total = normalized.x.sum(dim=1)
    some = (total > 0).float()
    assert some.any()
    assert_accurate(total, some, some.double())


def test_damaged_processed_files_are_made_again(small_cache: Path) -> None:
    root = data_file("planetoid")
    whole = load_dataset("cora", root=root)
    (processed,) = small_cache.rglob("arrays.safetensors")
    content = processed.read_bytes()
    processed.write_bytes(content[: len(content) // 2])
    assert torch.equal(load_dataset("cora", root=root).x, whole.x)
    (processed,) = small_cache.rglob("arrays.safetensors")
    assert processed.stat().st_size == len(content)


def test_what_a_killed_process_left_behind_does_not_matter(small_cache: Path) -> None:
    root = data_file("planetoid")
    load_dataset("cora", root=root)
    (folder,) = (path for path in (small_cache / "processed").iterdir() if path.is_dir())
    folder.rename(folder.with_name(folder.name + ".part"))
    (processed,) = small_cache.rglob("arrays.safetensors")
    processed.write_bytes(b"half")
    assert load_dataset("cora", root=root).num_nodes == 2708
    assert not list(small_cache.rglob("*.part"))


def test_processes_may_load_at_once(small_cache: Path) -> None:
    code = (
        "import sys; from gnnsparse.data import load_dataset, sources; save = sources.save_raw; "
        "sources.save_raw = lambda *given: (print('stored', file=sys.stderr), save(*given)); "
        "print(load_dataset('pubmed', root=sys.argv[1]).graph.fingerprint)"
    )
    command = [sys.executable, "-c", code, str(data_file("planetoid"))]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert outputs[0][0] == outputs[1][0]
    assert sum(error.count("stored") for _, error in outputs) == 1, "one of them does the work"


def test_missing_files_are_named(tmp_path: Path) -> None:
    shutil.copytree(data_file("planetoid", "cora", "raw"), tmp_path / "raw")
    (tmp_path / "raw" / "ind.cora.ty").unlink()
    with pytest.raises(DatasetUnavailableError, match=r"root: .*cora.*raw lacks ind\.cora\.ty$"):
        load_dataset("cora", root=tmp_path)
