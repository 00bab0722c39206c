"""Downloads, failing ones above all, and the layouts of sets whose files are too large to keep for tests.

Nothing here leaves the machine: downloads come from a local server, or go to a proxy that is not there.
"""

from __future__ import annotations

import dataclasses
import gzip
import http.server
import io
import json
import os
import shutil
import socket
import sys
import threading
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from gnnsparse.data import DatasetUnavailableError, data_folder, load_dataset
from gnnsparse.data.sources import SOURCES, import_reader

NODES = 12
EDGES = [(0, 1), (1, 2), (2, 3), (3, 4), (5, 0), (6, 7), (8, 9), (9, 10), (10, 11)]
FEATURES = np.arange(NODES * 3, dtype=np.float32).reshape(NODES, 3)
LABELS = np.arange(NODES) % 4
PARTS = {"train": [0, 1, 2, 3, 4, 5], "val": [6, 7, 8], "test": [9, 10, 11]}

pytestmark = pytest.mark.usefixtures("dataset_cache")


@pytest.fixture(autouse=True)
def no_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> str:
        raise AssertionError("asked on the terminal")

    monkeypatch.setattr("builtins.input", refuse)


def use_proxy(monkeypatch: pytest.MonkeyPatch, proxy: str | None) -> None:
    """Makes urllib use this proxy or none, whatever the environment says."""
    for key in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        for name in (key, key.upper()):
            monkeypatch.delenv(name, raising=False)
            if proxy is not None and key in ("http_proxy", "https_proxy"):
                monkeypatch.setenv(name, proxy)
    monkeypatch.setattr(urllib.request, "_opener", None)  # it keeps the proxies of its first request


def both_ways(edges: list[tuple[int, int]]) -> np.ndarray:
    return np.array([*edges, *((v, u) for u, v in edges)]).T


def dense_graph(name: str, root: Path) -> np.ndarray:
    return load_dataset(name, root=root).graph.to_scipy().toarray()


def expected_graph() -> np.ndarray:
    matrix = np.zeros((NODES, NODES))
    matrix[tuple(both_ways(EDGES))] = 1
    return matrix


def write_reddit(folder: Path) -> None:
    folder.mkdir(parents=True)
    kinds = np.zeros(NODES, dtype=np.int64)
    for kind, part in enumerate(PARTS.values(), start=1):
        kinds[part] = kind
    np.savez(folder / "reddit_data.npz", feature=FEATURES.astype(np.float64), label=LABELS, node_types=kinds)
    row, col = both_ways(EDGES)
    sp.save_npz(
        folder / "reddit_graph.npz", sp.coo_matrix((np.ones(row.size), (row, col)), shape=(NODES, NODES))
    )


def write_saint(folder: Path, labels: list[Any]) -> None:
    folder.mkdir(parents=True)
    row, col = both_ways(EDGES)
    matrix = sp.csr_matrix((np.ones(row.size), (row, col)), shape=(NODES, NODES))
    np.savez(
        folder / "adj_full.npz",
        data=matrix.data,
        indices=matrix.indices,
        indptr=matrix.indptr,
        shape=np.array(matrix.shape),
    )
    np.save(folder / "feats.npy", FEATURES.astype(np.float64))
    (folder / "class_map.json").write_text(
        json.dumps({str(node): label for node, label in enumerate(labels)})
    )
    (folder / "role.json").write_text(json.dumps({key[:2]: nodes for key, nodes in PARTS.items()}))


def write_table(path: Path, rows: list[list[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(",".join(map(str, row)) + "\n" for row in rows)
    path.write_bytes(gzip.compress(text.encode()))


def write_ogb(folder: Path, split: str) -> None:
    raw = folder / "raw"
    write_table(raw / "edge.csv.gz", [list(edge) for edge in EDGES])
    write_table(raw / "node-feat.csv.gz", FEATURES.tolist())
    write_table(raw / "node-label.csv.gz", [[label] for label in LABELS])
    write_table(raw / "node_year.csv.gz", [[2000 + node] for node in range(NODES)])
    write_table(raw / "num-node-list.csv.gz", [[NODES]])
    write_table(raw / "num-edge-list.csv.gz", [[len(EDGES)]])
    for key, nodes in PARTS.items():
        file = {"val": "valid"}.get(key, key)
        write_table(folder / "split" / split / f"{file}.csv.gz", [[node] for node in nodes])


def write_raw(name: str, folder: Path) -> None:
    if name == "reddit":
        write_reddit(folder / "raw")
    elif name == "flickr":
        write_saint(folder / "raw", LABELS.tolist())
    elif name == "yelp":
        write_saint(folder / "raw", np.eye(4, dtype=int)[LABELS].tolist())
    else:
        write_ogb(folder / name, {"ogbn_arxiv": "time", "ogbn_products": "sales_ranking"}[name])


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
    import_reader(SOURCES["ogbn_arxiv"])
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


def leftovers() -> list[Path]:
    """Everything in the data folder but locks and the folders that hold them."""
    folders = {data_folder() / name for name in ("raw", "processed")}
    found = data_folder().rglob("*") if data_folder().exists() else ()
    return [path for path in found if path.suffix != ".lock" and path not in folders]


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sends every request to a proxy where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        proxy = f"http://127.0.0.1:{free.getsockname()[1]}"
    use_proxy(monkeypatch, proxy)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("name", SOURCES)
def test_without_a_network_both_ways_out_are_named(name: str) -> None:
    start = time.monotonic()
    with pytest.raises(DatasetUnavailableError) as caught:
        load_dataset(name)
    assert time.monotonic() - start < 30
    message = str(caught.value)
    for text in (
        name,
        "no connection",
        SOURCES[name].site,
        "root=DIR",
        "dataset.root=DIR",
        *SOURCES[name].files,
    ):
        assert text in message
    assert leftovers() == []


def test_downloads_can_be_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnsparse.data.storage._probe", lambda site: pytest.fail("asked the network"))
    with pytest.raises(DatasetUnavailableError, match=r"download=False.*root=DIR"):
        load_dataset("cora", download=False)


def test_a_stalled_site_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections and never answers."""
    monkeypatch.setattr("gnnsparse.data.storage._PROBE_SECONDS", 0.3)
    use_proxy(monkeypatch, None)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        site = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setitem(SOURCES, "cora", dataclasses.replace(SOURCES["cora"], site=site))
        with pytest.raises(DatasetUnavailableError, match=r"can't be downloaded .*timed out"):
            load_dataset("cora")
    assert leftovers() == []


class Site:
    """A web site whose pages are in `content`; None: 404. `truncate`: sends that many bytes too few."""

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}
        self.truncate = 0
        self.requests: list[str] = []
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_HEAD(self) -> None:
                self.send_response(405)
                self.end_headers()

            def do_GET(self) -> None:
                site.requests.append(self.path)
                page = site.content.get(self.path.rsplit("/", 1)[1])
                self.send_response(404 if page is None else 200)
                self.send_header("Content-Length", str(len(page or b"")))
                self.end_headers()
                self.wfile.write((page or b"")[: len(page or b"") - site.truncate])

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A local web site in place of minesweeper's and reddit's."""
    from torch_geometric.datasets import HeterophilousGraphDataset, Reddit

    use_proxy(monkeypatch, None)
    site = Site()
    thread = threading.Thread(target=site.server.serve_forever, args=(0.01,))
    thread.start()
    for name in ("minesweeper", "reddit", "ogbn_arxiv"):
        monkeypatch.setitem(SOURCES, name, dataclasses.replace(SOURCES[name], site=site.url))
    monkeypatch.setattr(HeterophilousGraphDataset, "url", site.url)
    monkeypatch.setattr(Reddit, "url", f"{site.url}/reddit.zip")
    yield site
    site.server.shutdown()
    site.server.server_close()
    thread.join()


def archive_of_arrays(**arrays: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def minesweeper_file() -> bytes:
    masks = np.zeros((10, NODES), dtype=bool)
    masks[:, 0] = True
    return archive_of_arrays(
        node_features=FEATURES,
        node_labels=LABELS % 2,
        edges=np.array(EDGES),
        train_masks=masks,
        val_masks=np.roll(masks, 1, axis=1),
        test_masks=np.roll(masks, 2, axis=1),
    )


def test_a_download_is_kept(site: Site) -> None:
    site.content["minesweeper.npz"] = minesweeper_file()
    for _ in range(2):
        data = load_dataset("minesweeper")
        assert (data.graph.to_scipy().toarray() == expected_graph()).all()
        assert site.requests == ["/minesweeper.npz"]
    assert (data_folder() / "raw" / "minesweeper" / "minesweeper.npz").read_bytes() == minesweeper_file()
    assert not list(data_folder().rglob("*.part"))
    assert load_dataset("minesweeper", download=False).num_nodes == NODES


@pytest.mark.parametrize(
    ("page", "truncate", "problem"),
    [
        (None, 0, "can't be downloaded .*404"),
        (b"<html>quota exceeded</html>", 0, "something else as, minesweeper.npz"),
        (b"", 0, "something else as, minesweeper.npz"),
        (minesweeper_file(), 100, "something else as, minesweeper.npz"),
        (archive_of_arrays(node_features=FEATURES), 0, "raw files in .* can't be read"),
    ],
)
def test_the_next_try_after_a_broken_download_works(
    site: Site, page: bytes | None, truncate: int, problem: str
) -> None:
    if page is not None:
        site.content["minesweeper.npz"] = page
    site.truncate = truncate
    with pytest.raises(DatasetUnavailableError, match=problem):
        load_dataset("minesweeper")
    assert leftovers() == []
    site.truncate = 0
    site.content["minesweeper.npz"] = minesweeper_file()
    assert load_dataset("minesweeper").num_nodes == NODES


def archive(folder: Path, base: Path) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as target:
        for path in sorted(folder.rglob("*")):
            target.write(path, path.relative_to(base))
    return file.getvalue()


def test_archives_are_unpacked(site: Site, tmp_path: Path) -> None:
    write_raw("reddit", tmp_path)
    site.content["reddit.zip"] = archive(tmp_path / "raw", tmp_path / "raw")
    assert (load_dataset("reddit").graph.to_scipy().toarray() == expected_graph()).all()
    assert sorted(os.listdir(data_folder() / "raw" / "reddit")) == ["reddit_data.npz", "reddit_graph.npz"]


def test_ogb_downloads_without_a_question(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ogb(tmp_path / "arxiv", "time")
    site.content["arxiv.zip"] = archive(tmp_path / "arxiv", tmp_path)
    import_reader(SOURCES["ogbn_arxiv"])
    from ogb.utils import url

    download = url.download_url
    monkeypatch.setattr(
        url, "download_url", lambda address, folder: download(f"{site.url}/arxiv.zip", folder)
    )
    shutil.rmtree(tmp_path / "arxiv")
    assert (load_dataset("ogbn_arxiv").graph.to_scipy().toarray() == expected_graph()).all()
    assert site.requests == ["/arxiv.zip"]
    assert (data_folder() / "raw" / "ogbn_arxiv" / "split" / "time" / "valid.csv.gz").is_file()


def test_a_data_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_raw("flickr", tmp_path / "given")
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("GNNSPARSE_DATA_DIR", str(tmp_path / "file"))
    with pytest.raises(DatasetUnavailableError, match=r"file can't be written .*GNNSPARSE_DATA_DIR"):
        load_dataset("flickr", root=tmp_path / "given")


def test_the_data_folder_is_in_the_users_cache_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("GNNSPARSE_DATA_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if sys.platform == "linux":
        assert data_folder() == tmp_path / "gnnsparse" / "datasets"
    assert data_folder().parts[-2:] == ("gnnsparse", "datasets")
