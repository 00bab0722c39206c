"""Downloads, failing ones above all.

Nothing here leaves the machine: downloads come from a local server, or go to a proxy that is not there.
"""

from __future__ import annotations

import dataclasses
import http.server
import os
import shutil
import socket
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gnnsparse.data import DatasetUnavailableError, data_folder, load_dataset
from gnnsparse.data.sources import SOURCES, import_downloader
from tests.data.raw_files import NODES, WRITERS, expected_graph, write_minesweeper, write_ogb, write_reddit

pytestmark = pytest.mark.usefixtures("dataset_cache", "no_questions")


def use_proxy(monkeypatch: pytest.MonkeyPatch, proxy: str | None) -> None:
    """Makes urllib use this proxy or none, whatever the environment says."""
    for key in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        for name in (key, key.upper()):
            monkeypatch.delenv(name, raising=False)
            if proxy is not None and key in ("http_proxy", "https_proxy"):
                monkeypatch.setenv(name, proxy)
    monkeypatch.setattr(urllib.request, "_opener", None)  # it keeps the proxies of its first request


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
    found = ("no connection", SOURCES[name].site, "root=DIR", "dataset.root=DIR", *SOURCES[name].files)
    assert all(text in message for text in (name, *found)), message
    assert leftovers() == []


def test_downloads_can_be_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gnnsparse.data.sources._probe", lambda site: pytest.fail("asked the network"))
    with pytest.raises(DatasetUnavailableError, match=r"download=False.*root=DIR"):
        load_dataset("cora", download=False)


def test_a_stalled_site_fails_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It accepts connections and never answers."""
    monkeypatch.setattr("gnnsparse.data.sources._PROBE_SECONDS", 0.3)
    use_proxy(monkeypatch, None)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        site = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setitem(SOURCES, "cora", dataclasses.replace(SOURCES["cora"], site=site))
        with pytest.raises(DatasetUnavailableError, match=r"can't be downloaded .*timed out"):
            load_dataset("cora")
    assert leftovers() == []


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A local web site of the files in its folder, of each of which it sends `truncate` bytes too few."""
    from torch_geometric.datasets import HeterophilousGraphDataset, Reddit

    site = SimpleNamespace(folder=tmp_path / "site", truncate=0, requests=[])
    site.folder.mkdir()

    class Pages(http.server.SimpleHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_error(405)

        def copyfile(self, source: Any, outputfile: Any) -> None:
            site.requests.append(self.path)
            content = source.read()
            outputfile.write(content[: len(content) - site.truncate])

        def log_message(self, *_: Any) -> None:
            pass

    use_proxy(monkeypatch, None)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Pages, directory=str(site.folder)))
    site.url = f"http://127.0.0.1:{server.server_address[1]}"
    for name in ("minesweeper", "reddit", "ogbn_arxiv"):
        monkeypatch.setitem(SOURCES, name, dataclasses.replace(SOURCES[name], site=site.url))
    monkeypatch.setattr(HeterophilousGraphDataset, "url", site.url)
    monkeypatch.setattr(Reddit, "url", f"{site.url}/reddit.zip")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield site
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_download_is_kept(site: SimpleNamespace) -> None:
    write_minesweeper(site.folder)
    for _ in range(2):
        data = load_dataset("minesweeper")
        assert (data.graph.to_scipy().toarray() == expected_graph()).all()
        assert site.requests == ["/minesweeper.npz"]
    kept = data_folder() / "raw" / "minesweeper" / "minesweeper.npz"
    assert kept.read_bytes() == (site.folder / "minesweeper.npz").read_bytes()
    assert not list(data_folder().rglob("*.part"))
    assert load_dataset("minesweeper", download=False).num_nodes == NODES


@pytest.mark.parametrize(
    ("page", "problem"),
    [
        (None, "can't be downloaded .*404"),
        (b"<html>quota exceeded</html>", "something else as, minesweeper.npz"),
        (b"", "something else as, minesweeper.npz"),
        ("truncated", "something else as, minesweeper.npz"),
        (b"PK\x05\x06" + bytes(18), "raw files in .* can't be read"),  # an empty archive
    ],
    ids=["missing", "text", "empty", "truncated", "archive"],
)
def test_the_next_try_after_a_broken_download_works(
    site: SimpleNamespace, page: bytes | str | None, problem: str
) -> None:
    if page == "truncated":
        write_minesweeper(site.folder)
        site.truncate = 100
    elif isinstance(page, bytes):
        (site.folder / "minesweeper.npz").write_bytes(page)
    with pytest.raises(DatasetUnavailableError, match=problem):
        load_dataset("minesweeper")
    assert leftovers() == []
    write_minesweeper(site.folder)
    site.truncate = 0
    assert load_dataset("minesweeper").num_nodes == NODES


def test_archives_are_unpacked(site: SimpleNamespace, tmp_path: Path) -> None:
    write_reddit(tmp_path / "raw")
    shutil.make_archive(str(site.folder / "reddit"), "zip", tmp_path / "raw")
    assert (load_dataset("reddit").graph.to_scipy().toarray() == expected_graph()).all()
    assert sorted(os.listdir(data_folder() / "raw" / "reddit")) == ["reddit_data.npz", "reddit_graph.npz"]


def test_ogb_downloads_without_a_question(
    site: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ogb(tmp_path / "arxiv", "time")
    shutil.make_archive(str(site.folder / "arxiv"), "zip", tmp_path, "arxiv")
    shutil.rmtree(tmp_path / "arxiv")
    import_downloader(SOURCES["ogbn_arxiv"])
    from ogb.utils import url

    assert sys.modules.get("outdated", "absent") == "absent", "which asks for a newer release"
    download, address = url.download_url, f"{site.url}/arxiv.zip"
    monkeypatch.setattr(url, "download_url", lambda _, folder: download(address, folder))
    assert (load_dataset("ogbn_arxiv").graph.to_scipy().toarray() == expected_graph()).all()
    assert site.requests == ["/arxiv.zip"]
    assert (data_folder() / "raw" / "ogbn_arxiv" / "split" / "time" / "valid.csv.gz").is_file()


def test_a_data_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    WRITERS["flickr"](tmp_path / "given")
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
