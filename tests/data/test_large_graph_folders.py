"""Folders of graphs: what is damaged is refused, and a build leaves a whole graph or nothing."""

from __future__ import annotations

import errno
import json
import os
import pickle
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from gnnsparse.data import DamagedGraphError, NoSpaceError, build_graph, graph_info, open_graph
from gnnsparse.data.large import folder as folders
from tests.large import LEAST, assert_same, expected, random_edges, write_folder

ROOT = Path(__file__).resolve().parents[2]
EDGES = random_edges(200, 3000)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build_graph(EDGES, tmp_path / "g", 200, symmetric=True, about="of a test").folder


def test_a_graph_is_mapped_and_says_what_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info, graph = graph_info(folder), open_graph(str(folder))
    assert (info.folder, info.num_nodes, info.num_edges, info.symmetric) == (folder, 200, 3000, True)
    assert info.about == "of a test"
    assert info.nbytes == sum((folder / name).stat().st_size for name in ("indptr.npy", "indices.npy"))
    assert graph.nnz == info.nnz
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    assert {line[1] for line in maps if line[-1] == str(folder / "indices.npy")} == {"r--s"}, "read alone"
    assert np.array_equal(np.load(folder / "indices.npy"), graph.csr.indices.numpy())
    assert_same(graph, expected(EDGES, 200, symmetric=True))
    monkeypatch.setattr("gnnsparse.formats.csr.Csr.transpose", None)
    assert graph.is_symmetric, "which is known"


def test_a_graph_that_is_open_outlives_its_folder(folder: Path) -> None:
    graph, wanted = open_graph(folder), expected(EDGES, 200, symmetric=True)
    build_graph(EDGES[:, :10], folder, 200, overwrite=True)
    assert_same(graph, wanted)
    assert_same(open_graph(folder), expected(EDGES[:, :10], 200))
    shutil.rmtree(folder)
    assert_same(graph, wanted)


@pytest.mark.parametrize("name", ["graph.json", "indptr.npy", "indices.npy"])
@pytest.mark.parametrize("how", ["missing", "empty", "short", "long", "first", "middle", "last"])
def test_damage_is_noticed_and_the_file_is_named(folder: Path, name: str, how: str) -> None:
    path = folder / name
    content = bytearray(path.read_bytes())
    at = {"first": 0, "middle": len(content) // 2, "last": len(content) - 3}.get(how, 0)
    content[at] ^= 1
    others = {"empty": b"", "short": path.read_bytes()[:-4], "long": path.read_bytes() + b"1234"}
    path.write_bytes(others.get(how, content))
    error: type[ValueError] = DamagedGraphError
    message = f"{name}: "
    if how == "missing":
        path.unlink()
        if name == "graph.json":
            error, message = ValueError, r"^folder: .* is no folder of a graph; accepted: one that"
    with pytest.raises(error, match=message):
        open_graph(folder)


@pytest.mark.parametrize("name", ["graph.json", "indices.npy"])
def test_files_of_another_graph_of_the_same_size_are_noticed(name: str, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "g", [0, 1, 2], [0, 1])
    other = write_folder(tmp_path / "h", [0, 1, 2], [1, 0])
    shutil.copy(other / name, folder / name)
    with pytest.raises(DamagedGraphError, match=r"indices.npy: is damaged .its elements do not match"):
        open_graph(folder)


@pytest.mark.parametrize(
    ("edit", "signed", "message"),
    [
        (lambda graph: graph.update(nnz=1), False, "graph.json: is damaged .it does not match its checksum"),
        (lambda graph: graph.update(made_by="me"), True, "it has not the mark of a graph"),
        (lambda graph: graph.update(version=2), True, "graph.json is of version 2; accepted: 1"),
        (lambda graph: graph.update(nnz=-1), True, "graph.nnz: got -1; accepted"),
        (lambda graph: graph.update(nnz=2**62), True, "it says 200 nodes and 4611686018427387904 nonzeros"),
        (lambda graph: graph.update(num_nodes=2**31), True, "it says 2147483648 nodes"),
        (lambda graph: graph.update(num_nodes=199), True, r"indptr.npy: array: has shape \(201,\)"),
        (lambda graph: graph.update(values="values.npy"), True, "has the entry 'values'; accepted"),
        (lambda graph: graph["files"].pop("indptr.npy"), True, "it names the files indices.npy; accepted"),
        (lambda graph: graph.pop("symmetric"), True, "graph: has no symmetric"),
    ],
)
def test_headers_that_can_not_be(
    folder: Path, edit: Callable[[dict], None], signed: bool, message: str
) -> None:
    """Of which the checksum is right, if it is signed."""
    file = folder / "graph.json"
    header = json.loads(file.read_text())
    edit(header["graph"])
    header |= {"checksum": folders._sum_of(header["graph"])} if signed else {}
    file.write_text(json.dumps(header))
    for read in (graph_info, open_graph):
        with pytest.raises(ValueError, match=message):
            read(folder)


@pytest.mark.parametrize(
    ("indptr", "indices", "message"),
    [
        ([0, 2, 1, 3], [0, 1, 2], r"indptr.npy: decreases after element 1; accepted"),
        ([1, 2, 2, 3], [0, 1, 2], r"indptr.npy: runs from 1 to 3; accepted: 0 to 3"),
        ([0, 2, 2, 4], [0, 1, 2], r"indptr.npy: runs from 0 to 4; accepted: 0 to 3"),
        ([0, 2, 2, 3], [0, 3, 2], r"indices.npy: is damaged .element 1 is 3; accepted: 0 to 2"),
        ([0, 2, 2, 3], [0, 1, -1], r"indices.npy: is damaged .element 2 is -1; accepted: 0 to 2"),
        ([0, 2, 2, 3], [1, 0, 2], r"indices.npy: is damaged .columns do not ascend in a row from"),
        ([0, 2, 2, 3], [1, 1, 2], r"indices.npy: is damaged .columns do not ascend"),
        ([0, 1, 1, 2], [1, 0], r"indices.npy: is damaged .it lacks the reverse of the edge"),
    ],
)
@pytest.mark.parametrize("part", [1, 2**22])
def test_arrays_that_are_no_matrix_are_refused_though_their_checksums_are_right(
    indptr: list[int], indices: list[int], message: str, part: int, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("gnnsparse.data.large.folder._NONZEROS", part)
    with pytest.raises(DamagedGraphError, match=message):
        open_graph(write_folder(tmp_path / "g", indptr, indices, symmetric="reverse" in message))


def test_parts_of_rows_have_bounded_sizes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    csr = open_graph(folder).csr
    for rows, nonzeros in ((1, 2**22), (7, 50), (2**20, 100), (2**20, 1)):
        monkeypatch.setattr("gnnsparse.data.large.folder._ROWS", rows)
        monkeypatch.setattr("gnnsparse.data.large.folder._NONZEROS", nonzeros)
        for first, stop in ((0, 200), (13, 14), (50, 50), (150, 200)):
            at = first
            for begin, end, low, high in folders.row_parts(csr, first, stop):
                assert begin == at < end <= begin + rows
                assert (low, high) == (int(csr.indptr[begin]), int(csr.indptr[end]))
                assert high - low <= nonzeros or end == begin + 1
                at = end
            assert at == stop
        assert_same(open_graph(folder), expected(EDGES, 200, symmetric=True))


def test_folders_that_are_no_graph(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name in ("empty", "file", "nothing"):
        for read in (open_graph, graph_info):
            with pytest.raises(ValueError, match=f"^folder: .*{name} is no folder of a graph"):
                read(tmp_path / name)
    for read in (open_graph, graph_info):
        with pytest.raises(TypeError, match=r"^folder: got int; accepted: the path of a folder"):
            read(3)
    (folder / "graph.json").unlink()
    os.mkfifo(folder / "graph.json")
    with pytest.raises(ValueError, match=r"graph\.json: is a pipe"):
        open_graph(folder)


def test_what_is_there_is_not_replaced_unless_asked(folder: Path) -> None:
    before = (folder / "graph.json").read_text()
    with pytest.raises(ValueError, match=r"^folder: .*g has a graph; accepted: a new folder, or to replace"):
        build_graph(EDGES, folder, 200)
    assert (folder / "graph.json").read_text() == before
    build_graph(EDGES, folder, 300, overwrite=True)
    assert graph_info(folder).num_nodes == 300
    assert sorted(path.name for path in folder.parent.iterdir()) == ["g"]


@pytest.mark.parametrize("overwrite", [True, False])
def test_other_things_are_never_replaced(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("x")
    mixed = build_graph(EDGES, tmp_path / "mixed", 200).folder
    (mixed / "features.npy").write_text("x")
    (tmp_path / "link").symlink_to(build_graph(EDGES, tmp_path / "real", 200).folder)
    (tmp_path / "ours.part").mkdir()
    (tmp_path / "ours.part" / "mine.txt").write_text("x")
    (tmp_path / "new").mkdir()
    names = ("file", "full", "mixed", "link")
    refused = {tmp_path / name: f"{name} is there and is no folder of a graph" for name in names}
    refused[mixed] = "mixed has a graph and beside it features.npy, which would be lost"
    refused[tmp_path / "ours"] = "ours.part is there and was not left by a build"
    refused[tmp_path / "above" / "g"] = "there is no folder .*above for g; accepted"
    for name in (Path("."), Path("/"), Path("new/.."), tmp_path / "new" / ".."):
        refused[name] = "got .*; accepted: a folder with a name of its own"
    for path, message in refused.items():
        with pytest.raises(ValueError, match=f"^folder: .*{message}"):
            build_graph(EDGES, path, 200, overwrite=overwrite)
    assert (tmp_path / "full" / "mine.txt").read_text() == "x"
    assert os.listdir(tmp_path / "ours.part") == ["mine.txt"]
    assert build_graph(EDGES, tmp_path / "new", 200, overwrite=overwrite).nnz > 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, MemoryError])
@pytest.mark.parametrize("stage", ["count", "distribute", "sort", "edges"])
@pytest.mark.parametrize("there", [True, False])
def test_an_interrupted_build_leaves_nothing(
    error: type[BaseException], stage: str, there: bool, tmp_path: Path
) -> None:
    before = ["g"] if there else []
    if there:
        build_graph(EDGES, tmp_path / "g", 200)

    def interrupt(what: str, done: int, total: int | None) -> None:
        if what == stage and done > 300:
            assert (tmp_path / "g.part").is_dir()
            raise error

    def chunks() -> Iterator[Any]:
        yield EDGES
        raise error

    edges = chunks() if stage == "edges" else EDGES
    with pytest.raises(error):
        build_graph(edges, tmp_path / "g", 250, memory=LEAST, overwrite=there, progress=interrupt)
    assert os.listdir(tmp_path) == before
    if there:
        assert_same(open_graph(tmp_path / "g"), expected(EDGES, 200))


def test_an_interrupt_while_a_graph_is_replaced_puts_it_back(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename, done = os.rename, []

    def interrupted(source: Any, target: Any) -> None:
        rename(source, target)
        done.append(target)
        if len(done) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr("gnnsparse.data.large.build.os.rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_graph(EDGES, folder, 300, overwrite=True)
    assert os.listdir(folder.parent) == ["g"]
    assert graph_info(folder).num_nodes == 200


def test_what_a_killed_process_has_left_is_removed_and_what_it_replaced_put_back(folder: Path) -> None:
    part = folder.with_name("g.part")
    (part / "buckets").mkdir(parents=True)
    (part / "buckets" / "0.keys").write_bytes(b"12345678")
    (part / "build.lock").touch()
    os.rename(folder, part / "replaced")
    with pytest.raises(ValueError, match="has a graph"):
        build_graph(EDGES, folder, 300)
    assert os.listdir(folder.parent) == ["g"]
    assert graph_info(folder).num_nodes == 200


BUILD = """
import itertools, sys
import numpy as np
from gnnsparse.data import build_graph

def chunks():
    for number in itertools.count():
        if number == 3:
            print("begun", flush=True)
        yield np.zeros((2, 50_000), np.int64)

for _ in range(2):
    try:
        build_graph(chunks(), sys.argv[1], 9, memory=1 << 20)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.stdin.readline()
"""


def test_another_process_builds_until_ctrl_c_or_its_end(tmp_path: Path) -> None:
    """Ctrl-C leaves nothing; what is left of a process that was killed does not keep the folder."""
    command, pipe = [sys.executable, "-c", BUILD, str(tmp_path / "g")], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, bufsize=1, cwd=ROOT) as builder:
        assert builder.stdin is not None
        assert builder.stdout is not None
        try:
            assert builder.stdout.readline() == "begun\n"
            os.kill(builder.pid, signal.SIGINT)
            assert builder.stdout.readline() == "interrupted\n"
            assert os.listdir(tmp_path) == []
            builder.stdin.write("\n")
            assert builder.stdout.readline() == "begun\n"
            with pytest.raises(ValueError, match=r"^folder: another process builds .*g; accepted: another"):
                build_graph(EDGES, tmp_path / "g", 200)
            assert builder.poll() is None
            build_graph(EDGES, tmp_path / "h", 200)
        finally:
            builder.kill()
    assert (tmp_path / "g.part" / "buckets").is_dir()
    build_graph(EDGES, tmp_path / "g", 200)
    assert sorted(os.listdir(tmp_path)) == ["g", "h"]
    assert_same(open_graph(tmp_path / "g"), expected(EDGES, 200))


# Disks that are full.


def test_a_disk_that_is_too_small_is_noticed_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = 8 * 201 + 2 * 8 * EDGES.shape[1]
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: SimpleNamespace(free=needed - 1))
    read = []
    message = r"^folder: .*g.part has 0.0 MB free, and building a graph of 200 nodes takes 0.0 MB"
    with pytest.raises(NoSpaceError, match=message) as caught:
        build_graph(EDGES, tmp_path / "g", 200, symmetric=True, progress=lambda *done: read.append(done))
    assert caught.value.errno == errno.ENOSPC
    assert read == []
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: SimpleNamespace(free=needed))
    build_graph(EDGES, tmp_path / "g", 200, symmetric=True)


def test_a_disk_that_fills_up_is_noticed_between(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free, edges = [0], random_edges(500, 40_000, hub=0.9)
    monkeypatch.setattr(folders.shutil, "disk_usage", lambda _: SimpleNamespace(free=free[0]))
    for stage, doing in (("distribute", "writing the graph"), ("sort", "splitting a bucket of edges")):

        def others_write(what: str, done: int, total: int | None, stage: str = stage) -> None:
            free[0] = 100 if what == stage else free[0]

        free[0] = 10**9
        with pytest.raises(NoSpaceError, match=f"has 0.0 MB free, and {doing} takes 0.[1-9] MB"):
            build_graph(iter([edges]), tmp_path / "g", 500, memory=LEAST, progress=others_write)
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("most", [100, 20_000, 100_000])
def test_a_file_that_can_not_be_written_is_named(tmp_path: Path, most: int) -> None:
    """The operating system refuses to let files grow, as it does where a disk is full."""
    edges = random_edges(10_000, 30_000)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        with pytest.raises(NoSpaceError, match=r"^folder: .*(keys|npy) can't be written .File too large"):
            build_graph(edges, tmp_path / "g", 10_000, memory=10**6)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []


def test_errors_of_a_full_disk_can_be_sent_between_processes() -> None:
    error = NoSpaceError("folder: is full")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.errno) == (NoSpaceError, "folder: is full", errno.ENOSPC)
