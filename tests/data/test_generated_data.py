"""Generated data sets are kept in the cache: equal, checked, made anew where damaged, seen by the command."""

from __future__ import annotations

import sys
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import torch

from gnnsparse.cli.main import main
from gnnsparse.data import NodeDataset, generated, load_dataset
from gnnsparse.data.generated import Generated, cached_data
from gnnsparse.runtime.cache import CacheWarning, GraphCache
from gnnsparse.testing import random_graph

SMALL = {"scale": 0.05}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the data sets that were computed."""
    names: list[str] = []
    generate, read = generated._generate, generated._read_images
    monkeypatch.setattr(generated, "_generate", lambda *a: (names.append(a[0]), generate(*a))[1])
    monkeypatch.setattr(generated, "_read_images", lambda: (names.append("digits"), read())[1])
    return names


def equal(a: NodeDataset, b: NodeDataset) -> bool:
    assert (a.name, a.num_classes, a.metric) == (b.name, b.num_classes, b.metric)
    names = ("x", "y", "train_mask", "val_mask", "test_mask", "graph.csr.indptr", "graph.csr.indices")
    return all(torch.equal(attrgetter(name)(a), attrgetter(name)(b)) for name in names)


@pytest.mark.parametrize(("name", "options"), [("arxiv_like", SMALL), ("digits", {})])
def test_the_second_time_it_is_read(
    name: str, options: dict[str, Any], made: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """Without scikit-learn, which made the digits; the command sees it."""
    first = load_dataset(name, **options)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    second = load_dataset(name, **options)
    assert made == [name]
    assert equal(first, second)
    other_split = load_dataset(name, split=1, **options)
    second.x.zero_()  # its memory is its own
    assert equal(load_dataset(name, **options), first)
    assert made == [name]  # the split is no part of the file
    assert not torch.equal(first.train_mask, other_split.train_mask)
    monkeypatch.setenv("COLUMNS", "200")
    assert [main(["cache", command]) for command in ("ls", "verify", "clear")] == [0, 0, 0]
    printed = capsys.readouterr().out
    assert printed.count(f"data: {name}{', scale 0.05, seed 0' if options else ''}") == 1
    assert "0 damaged" in printed
    load_dataset("arxiv_like", **SMALL)
    assert len(made) == 2


def test_other_options_make_other_files(made: list[str]) -> None:
    options = ((0.05, 0), (0.05, 1), (0.06, 0))
    sets = [load_dataset("arxiv_like", scale=scale, seed=seed) for scale, seed in options]
    assert made == ["arxiv_like"] * 3
    assert not torch.equal(sets[0].x, sets[1].x)
    assert sets[2].num_nodes > sets[0].num_nodes


@pytest.mark.parametrize(
    "changes",
    [
        {"x": None},
        {"more": torch.zeros(2)},
        {"indptr": torch.arange(7, dtype=torch.int32)},
        {"indptr": torch.tensor([0, 1, 2, 9, 4, 5, 6])},
        {"indptr": torch.zeros(0, dtype=torch.int64)},
        {"indices": torch.full((18,), 99, dtype=torch.int32)},
        {"x": torch.full((6, 3), float("nan"))},
        {"x": torch.ones(5, 3)},
        {"x": torch.ones(6, 3).half()},
        {"y": torch.tensor([0, 1, 2, 0, 1, 3])},
        {"y": torch.zeros(6, dtype=torch.int32)},
        {"classes": 0},
        {"classes": None},
        {"classes": "3"},
    ],
    ids=str,
)
def test_a_file_with_right_checksums_and_wrong_content(
    changes: dict[str, Any], own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is set aside by a warning that names the array; nothing that follows reads by it."""
    graph = random_graph(6, 6, 0.5, weighted=False)
    right = Generated(graph, torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 1, 2]), 3)
    store = GraphCache.store

    def change(self: GraphCache, key: str, tensors: Any, metadata: Any) -> None:
        content = {**tensors, **metadata, **changes}
        arrays = {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}
        plain = {name: content[name] for name in metadata if content[name] is not None}
        store(self, key, arrays, plain)

    with monkeypatch.context() as patch:
        patch.setattr(GraphCache, "store", change)
        cached_data("toy", "", 1, lambda: right)
    assert main(["cache", "verify", "--dir", str(own_cache)]) == 1
    with pytest.warns(CacheWarning, match="is damaged"):
        assert cached_data("toy", "", 1, lambda: right) is right
    read = cached_data("toy", "", 1, lambda: pytest.fail("it was computed"))
    assert torch.equal(read.x, right.x)


def test_a_folder_that_can_not_be_written(
    made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GNNSPARSE_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(CacheWarning, match="can't be written .* the data set is not kept"):
        load_dataset("arxiv_like", **SMALL)
    assert made == ["arxiv_like"]
