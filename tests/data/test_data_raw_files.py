"""Large data sets are read from their raw files, and from nothing else."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from gnnsparse.data import DatasetUnavailableError, load_dataset
from gnnsparse.data.sources import SOURCES, import_downloader
from tests.data.raw_files import (
    FEATURES,
    LABELS,
    NODES,
    PARTS,
    dense_graph,
    expected_graph,
    write_ogb,
    write_raw,
)

pytestmark = pytest.mark.usefixtures("dataset_cache", "no_questions")


@pytest.mark.parametrize("name", ["reddit", "flickr", "yelp", "ogbn_arxiv", "ogbn_products"])
def test_large_sets_are_read_from_their_raw_files(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "given"
    write_raw(name, root)
    before = sorted((str(path), path.lstat().st_mtime_ns) for path in root.rglob("*"))
    for _ in range(2):
        data = load_dataset(name, root=root)
        assert (data.graph.to_scipy().toarray() == expected_graph()).all()
        assert data.graph.values is None
        assert torch.equal(data.x, torch.from_numpy(FEATURES))
        assert data.x.dtype == torch.float32
        labels = data.y.argmax(dim=1) if name == "yelp" else data.y
        assert labels.tolist() == LABELS.tolist()
        assert data.multi_label == (name == "yelp")
        assert data.metric == ("micro_f1" if name == "yelp" else "accuracy")
        assert data.num_classes == 4
        for mask, nodes in zip((data.train_mask, data.val_mask, data.test_mask), PARTS.values(), strict=True):
            assert mask.nonzero().flatten().tolist() == nodes
    assert sorted((str(path), path.lstat().st_mtime_ns) for path in root.rglob("*")) == before
    assert capsys.readouterr().out == "", "progress belongs on stderr"


@pytest.mark.parametrize("folder", ["ogbn_arxiv", "arxiv", "."])
def test_ogb_roots_may_be_above_or_the_folder_itself(folder: str, tmp_path: Path) -> None:
    write_ogb(tmp_path / folder, "time")
    assert (dense_graph("ogbn_arxiv", tmp_path) == expected_graph()).all()


def test_ogb_is_imported_without_its_question_for_a_newer_release() -> None:
    import_downloader(SOURCES["ogbn_arxiv"])
    assert sys.modules.get("outdated", "absent") == "absent"
    assert "ogb" in sys.modules


def test_files_of_another_set_are_refused(tmp_path: Path) -> None:
    write_raw("flickr", tmp_path)
    with pytest.raises(DatasetUnavailableError, match="not those of yelp"):
        load_dataset("yelp", root=tmp_path)


@pytest.mark.parametrize("name", SOURCES)
def test_a_wrong_root_names_files_and_folders(name: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetUnavailableError) as caught:
        load_dataset(name, root=tmp_path / "nothing")
    message = str(caught.value)
    assert message.startswith(f"root: no complete raw files of {name} in {tmp_path / 'nothing'}")
    for text in (*SOURCES[name].files, str(tmp_path / "nothing" / SOURCES[name].place)):
        assert text in message
    assert not (tmp_path / "nothing").exists()


def test_roots_of_wrong_types_are_refused() -> None:
    with pytest.raises(TypeError, match="root: got int"):
        load_dataset("cora", root=3)  # type: ignore[arg-type]


def test_malformed_files_are_told_and_stay(tmp_path: Path) -> None:
    write_raw("reddit", tmp_path)
    (tmp_path / "raw" / "reddit_graph.npz").write_text("no archive")
    with pytest.raises(DatasetUnavailableError, match=r"reddit: the raw files in .*raw can't be read"):
        load_dataset("reddit", root=tmp_path)
    assert (tmp_path / "raw" / "reddit_graph.npz").read_text() == "no archive"
    write_raw("flickr", tmp_path / "other")
    assert load_dataset("flickr", root=tmp_path / "other").num_nodes == NODES
