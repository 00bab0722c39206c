"""Large data sets are read from their raw files, and from nothing else."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import numpy as np
import pytest
import torch

from gnnsparse.data import DatasetUnavailableError, load_dataset, sources
from gnnsparse.data.sources import SOURCES
from tests.data.raw_files import FEATURES, LABELS, NODES, PARTS, WRITERS, expected_graph, listing, write_ogb

pytestmark = pytest.mark.usefixtures("dataset_cache", "no_questions")


@pytest.mark.parametrize("name", ["reddit", "flickr", "yelp", "ogbn_arxiv", "ogbn_products"])
def test_large_sets_are_read_from_their_raw_files(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "given"
    WRITERS[name](root)
    before = listing(root)
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
    assert listing(root) == before
    assert capsys.readouterr().out == "", "progress belongs on stderr"


@pytest.mark.parametrize("folder", ["ogbn_arxiv", "arxiv", "."])
def test_ogb_roots_may_be_above_or_the_folder_itself(folder: str, tmp_path: Path) -> None:
    write_ogb(tmp_path / folder, "time")
    found = load_dataset("ogbn_arxiv", root=tmp_path)
    assert (found.graph.to_scipy().toarray() == expected_graph()).all()


def stored(cache: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in cache.rglob("*.safetensors")}


def test_a_read_only_copy_is_enough_and_is_read_once(tmp_path: Path, dataset_cache: Path) -> None:
    root = tmp_path / "given"
    WRITERS["flickr"](root)
    for path in (*root.rglob("*"), root):
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = listing(root)
    first = load_dataset("flickr", root=root)
    made = stored(dataset_cache)
    second = load_dataset("flickr", root=root / "raw")
    assert len(made) == 1
    assert stored(dataset_cache) == made
    assert listing(root) == before
    assert first.graph.fingerprint == second.graph.fingerprint
    assert torch.equal(first.x, second.x)
    for path in (root, *root.rglob("*")):
        path.chmod(0o755)


def test_what_changed_or_a_killed_process_left_is_made_anew(tmp_path: Path, dataset_cache: Path) -> None:
    """What is missing or of another data set is named."""
    WRITERS["flickr"](tmp_path)
    whole = load_dataset("flickr", root=tmp_path)
    (made,) = stored(dataset_cache)
    made.rename(made.with_name(made.name + ".part"))
    assert torch.equal(load_dataset("flickr", root=tmp_path).x, whole.x)
    assert not list(dataset_cache.rglob("*.part"))
    np.save(tmp_path / "raw" / "feats.npy", np.zeros((NODES, 5)))
    assert load_dataset("flickr", root=tmp_path).num_features == 5
    with pytest.raises(DatasetUnavailableError, match="not those of yelp"):
        load_dataset("yelp", root=tmp_path)
    (tmp_path / "raw" / "role.json").unlink()
    with pytest.raises(DatasetUnavailableError, match=r"root: .*flickr.*raw lacks role\.json$"):
        load_dataset("flickr", root=tmp_path)


def test_processes_may_load_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    WRITERS["ogbn_arxiv"](tmp_path)
    save, context = sources.write_file, multiprocessing.get_context("fork")
    ready, stored, found = context.Barrier(2), context.SimpleQueue(), context.SimpleQueue()
    monkeypatch.setattr(sources, "write_file", lambda *given: (stored.put("stored"), save(*given)))

    def load() -> None:
        ready.wait(60)
        found.put(load_dataset("ogbn_arxiv", root=tmp_path).graph.fingerprint)

    processes = [context.Process(target=load) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
    assert [process.exitcode for process in processes] == [0, 0]
    assert found.get() == found.get()
    assert stored.get() == "stored"
    assert stored.empty(), "one of them does the work"


@pytest.mark.parametrize("name", SOURCES)
def test_a_wrong_root_names_files_and_folders(name: str, tmp_path: Path) -> None:
    root = tmp_path / "nothing"
    with pytest.raises(DatasetUnavailableError) as caught:
        load_dataset(name, root=root)
    message = str(caught.value)
    assert message.startswith(f"root: no complete raw files of {name} in {root}")
    assert all(text in message for text in (*SOURCES[name].files, str(root / SOURCES[name].place))), message
    assert not root.exists()
    with pytest.raises(TypeError, match="root: got int"):
        load_dataset(name, root=3)  # type: ignore[arg-type]
