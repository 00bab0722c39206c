"""The cache: hits, damage, concurrency, size cap, and a folder with trouble, all of which is a warning."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import resource
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import gnnsparse
from gnnsparse.cli.main import main
from gnnsparse.runtime import cache as cache_module
from gnnsparse.runtime import cache_files
from gnnsparse.runtime.cache import CacheWarning, GraphCache
from gnnsparse.sparse import saved
from gnnsparse.testing import random_graph
from tests.fuzz.cache import Folder
from tests.helpers import needs_installed_module, precision_for, results, same

GRAPH = random_graph(150, 150, 0.05, weighted=False, seed=3)
FORK = multiprocessing.get_context("fork")


def prepare(**options: Any) -> gnnsparse.SparseOperand:
    return gnnsparse.prepare(GRAPH, **{"values": "gcn", "reorder": "metis", "format": "window", **options})


CLEAN = prepare(cache=False)
RESULTS = results(CLEAN)
X = torch.randn(150, 8, generator=torch.Generator().manual_seed(0))


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


@pytest.mark.parametrize(
    ("reorder", "values"),
    [("none", None), ("none", "gcn"), ("degree", "edges"), ("metis", "gcn"), ("community", "edges")],
)
@pytest.mark.parametrize("name", ["csr", "window", "me-bcrs", "hrpb", "rs-tile", "tiled-csr"])
def test_second_time_is_a_hit_with_the_same_arrays(reorder: str, name: str, values: str | None) -> None:
    given = torch.randn(GRAPH.num_edges) if values == "edges" else values
    options = {"reorder": reorder, "format": name, "values": given, "precision": precision_for(name)}
    first, second = prepare(**options), prepare(**options)
    assert not first.cache_hit
    assert second.cache_hit
    assert same(results(first), results(second))
    blocked, other = first.kernels.blocked, second.kernels.blocked
    if blocked is not None:
        for key, array in blocked.arrays.items():
            assert torch.equal(array, other.arrays[key]), key


def test_keys_tell_parameters_apart(own_cache: Path) -> None:
    variants = [
        {},
        {"values": "mean"},
        {"values": None},
        {"reorder": "rcm"},
        {"reorder_options": {"part_size": 32}},
        {"format": "hrpb", "panel": 16, "precision": "tf32"},
        {"format": "hrpb", "panel": 32, "precision": "tf32"},
        {"format": "me-bcrs", "precision": "fp16"},
        {"format": "me-bcrs", "precision": "tf32"},
        {"self_loop_weight": 2.0},
    ]
    for options in variants:
        assert not prepare(**options).cache_hit, options
    assert len(files(own_cache)) == len(variants)
    for precision in ("fp32", "tf32", "fp16", "bf16"):  # nothing that is stored depends on it
        assert prepare(precision=precision).cache_hit
    assert not gnnsparse.prepare(random_graph(150, 150, 0.05, seed=4, weighted=False), values="gcn").cache_hit


@pytest.fixture
def small_files_are_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones always are."""
    monkeypatch.setattr(cache_files, "_LEAST_MAPPED", 0)


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


@pytest.mark.usefixtures("small_files_are_mapped")
@pytest.mark.parametrize("content", [b"", b"\xff" * 1000, b"\xff" * 100_000])
def test_a_file_that_is_changed_while_it_is_in_use(own_cache: Path, content: bytes) -> None:
    """Of a memory-mapped file that was cut short, the next access would end the process."""
    prepare()
    files(own_cache)[0].chmod(0o600)  # as it is written, nobody may write to it
    hit = prepare()
    assert hit.cache_hit
    files(own_cache)[0].write_bytes(content)
    assert same(results(hit), RESULTS)


@pytest.mark.usefixtures("small_files_are_mapped")
def test_a_mapped_file_is_replaced_and_removed_while_it_is_in_use(own_cache: Path) -> None:
    prepare()
    path = the_file(own_cache)
    content, descriptors = path.read_bytes(), len(os.listdir("/proc/self/fd"))
    hits = [prepare() for _ in range(3)]
    assert all(hit.cache_hit for hit in hits)
    assert is_mapped(path) == (os.major(path.stat().st_dev) != 0)
    assert len(os.listdir("/proc/self/fd")) == descriptors, "a mapping needs none"
    assert path.stat().st_mode & 0o222 == 0
    hits.pop().kernels.csr.indices.zero_()
    assert path.read_bytes() == content, "arrays are the process's own"
    path.unlink()
    prepare(values="mean")
    assert GraphCache(own_cache).clear() == 1
    prepare()
    assert all(same(results(hit), RESULTS) for hit in hits)


@pytest.mark.usefixtures("small_files_are_mapped")
def test_files_on_a_network_are_read(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine may remove them, so that there is nothing left to map."""
    monkeypatch.setattr(os, "major", lambda _: 0)
    prepare()
    hit = prepare()
    assert hit.cache_hit
    assert not is_mapped(the_file(own_cache))
    assert same(results(hit), RESULTS)


@pytest.mark.usefixtures("small_files_are_mapped")
def test_files_that_cannot_be_mapped_are_read(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where /proc is not mounted."""
    refuse = mock.Mock(side_effect=RuntimeError("unable to open file"))
    monkeypatch.setattr(torch.UntypedStorage, "from_file", refuse)
    prepare()
    hit = prepare()
    assert hit.cache_hit
    assert not is_mapped(the_file(own_cache))
    assert same(results(hit), RESULTS)


@pytest.mark.parametrize("change", ["nothing", "copied", "writable", "another user's", "network"])
def test_content_is_checked_once_where_it_was_written(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    """Checksums are enough for the very file that was checked when it was stored, and only for that."""
    monkeypatch.setattr(os, "major", lambda _: 1)
    prepare()
    path = the_file(own_cache)
    if change == "copied":
        copy = path.with_suffix(".copy")
        copy.write_bytes(path.read_bytes())
        copy.chmod(0o400)
        copy.replace(path)
    elif change == "writable":
        path.chmod(0o600)
    elif change == "network":
        monkeypatch.setattr(os, "major", lambda _: 0)
    elif change == "another user's":
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        os.chown(path, 12345, -1)
        monkeypatch.setattr(GraphCache, "_warn", lambda *_: pytest.fail("a warning"))
    checks = mock.Mock(side_effect=saved.check_csr)
    monkeypatch.setattr(saved, "check_csr", checks)
    hit = prepare()
    assert hit.cache_hit
    assert checks.called == (change != "nothing")
    assert same(results(hit), RESULTS)


def test_what_its_readers_would_refuse_is_not_stored(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sign that content was checked is written only where it was."""
    monkeypatch.setattr(saved, "check_csr", mock.Mock(side_effect=ValueError("forward.indptr: decreases")))
    with pytest.raises(ValueError, match="decreases"):
        prepare()
    assert not files(own_cache)


def test_cache_in_a_folder(tmp_path: Path, own_cache: Path) -> None:
    class Bytes:
        def __fspath__(self) -> bytes:
            return os.fsencode(folder)

    folder = tmp_path / "mine" / "deep"
    prepare(cache=False)
    prepare(cache=Bytes())
    assert prepare(cache=folder).cache_hit
    assert prepare(cache=str(folder)).cache_hit
    assert len(files(folder)) == 1
    assert not own_cache.exists()


def test_leftovers_are_removed_when_nobody_writes_them(own_cache: Path) -> None:
    """What a process that was killed while it wrote leaves behind."""
    prepare(values="mean")
    other = files(own_cache)[0]
    parts = [own_cache / f"{stem}-{'1' * 32}.part" for stem in (other.stem, "2" * 32)]
    for part in parts:
        part.write_bytes(other.read_bytes()[:3000])
    with GraphCache(own_cache).lock(other.stem):
        prepare()
        assert [part.exists() for part in parts] == [True, False]
    prepare(values=None)
    assert not parts[0].exists()


def in_forks(work: Callable[[Any], None], count: int = 1) -> list[Any]:
    """What forked processes put into the queue that `work` gets."""
    results = FORK.SimpleQueue()
    processes = [FORK.Process(target=work, args=(results,)) for _ in range(count)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking a process that has threads
        for process in processes:
            process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    return [results.get() for _ in processes]


def test_three_processes_at_once(own_cache: Path) -> None:
    graph, together = random_graph(700, 700, 0.05, weighted=False, seed=9), FORK.Barrier(3)
    options, x = {"values": "gcn", "reorder": "metis", "format": "window"}, torch.rand(700, 1)

    def work(results: Any) -> None:
        together.wait()
        results.put((gnnsparse.prepare(graph, **options) @ x).tolist())

    found = in_forks(work, 3)
    assert len(files(own_cache)) == 1
    again = gnnsparse.prepare(graph, **options)
    assert again.cache_hit
    assert found == [(again @ x).tolist()] * 3


@pytest.mark.parametrize(
    ("name", "problem"), [("file/cache", "can't be written"), ("a" * 300, "File name too long")]
)
def test_a_folder_that_cannot_be_made(tmp_path: Path, name: str, problem: str) -> None:
    """Also what a read-only folder looks like to root, whom permission bits do not stop."""
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(CacheWarning, match=problem):
        a = prepare(cache=tmp_path / name)
    assert not a.cache_hit
    assert same(results(a), RESULTS)


def test_size_cap_drops_the_least_recently_used(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [{"values": None}, {"values": "mean"}, {"values": "gcn"}]
    for kind in kinds[:2]:
        prepare(**kind)
    for age, path in enumerate(sorted(files(own_cache), key=lambda p: p.stat().st_mtime, reverse=True)):
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    assert prepare(**kinds[0]).cache_hit  # now the most recently used of the two
    size = max(path.stat().st_size for path in files(own_cache))
    monkeypatch.setenv("GNNSPARSE_CACHE_MAX_BYTES", str(int(2.5 * size)))
    prepare(**kinds[2])
    assert len(files(own_cache)) == 2
    assert prepare(**kinds[0]).cache_hit
    assert prepare(**kinds[2]).cache_hit
    assert not prepare(**kinds[1]).cache_hit


def test_a_senseless_size_cap_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNSPARSE_CACHE_MAX_BYTES", "lots")
    with pytest.warns(CacheWarning, match="lots"):
        GraphCache()


# A folder with trouble.


def assert_works(expected: str, folder: Path) -> None:
    """The graph is prepared, with CacheWarnings of which one says what is expected."""
    with pytest.warns(CacheWarning, match=expected):
        a = prepare(cache=folder)
    assert torch.equal(a @ X, CLEAN @ X)


def the_file(folder: Path) -> Path:
    (path,) = (e.path for e in GraphCache(folder).entries() if e.metadata)
    return path


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A folder with files of others, which must be as they were at the end of the test."""
    folder = Folder(tmp_path)
    yield folder.path
    assert not folder.changed()


def test_commands_and_the_size_cap_leave_what_the_cache_did_not_make(
    shared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(cache=shared)
    prepare(cache=shared, values="mean")
    before = set(shared.iterdir())
    assert main(["cache", "ls", "--dir", str(shared)]) == 0
    listing = capsys.readouterr().out
    assert all(entry.key[:12] in listing for entry in GraphCache(shared).entries() if entry.metadata)
    assert "150 x 150" in listing
    assert "model" not in listing
    assert "damaged" in listing, "the one with the name of a cache file"
    assert main(["cache", "verify", "--dir", str(shared)]) == 1
    assert "1 damaged" in capsys.readouterr().out
    assert main(["cache", "clear", "--dir", str(shared)]) == 0
    assert "2 prepared graphs removed" in capsys.readouterr().out
    assert len(before - set(shared.iterdir())) == 4, "two files and their locks"
    monkeypatch.setenv("GNNSPARSE_CACHE_MAX_BYTES", "1")
    prepare(cache=shared)
    prepare(cache=shared, values="mean")
    assert the_file(shared), "the only one"


def test_names_and_times_that_no_table_expects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "a[/red]b"
    prepare(cache=folder)
    os.utime(the_file(folder), (2**35, 2**35))
    for action in ("ls", "verify", "clear", "ls"):
        assert main(["cache", action, "--dir", str(folder)]) == 0
        assert "[/red]" in "".join(capsys.readouterr().out.split())  # a long path is wrapped


@pytest.mark.parametrize(("folder", "said"), [("", "cache: got ''"), ("a\0b", "cache: got")])
def test_what_is_no_folder(folder: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=said):
        prepare(cache=folder)
    with pytest.raises(SystemExit) as stopped:
        main(["cache", "ls", "--dir", folder])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


# Something else in the place of a file


@pytest.mark.parametrize(
    ("kind", "ending"),
    [*itertools.product(["pipe", "folder", "link", "loop"], [".safetensors", ".lock"]), ("text", ".lock")],
)
def test_something_else_in_the_place_of_a_file(own_cache: Path, kind: str, ending: str) -> None:
    """A pipe would never end to be opened, and what a link points to is somebody else's."""
    prepare()
    path = the_file(own_cache)
    path.unlink()
    path = path.with_suffix(ending)
    path.unlink(missing_ok=True)
    notes = {"folder": path / "notes", "text": path}.get(kind, path.parent.parent / "target")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind in ("link", "loop"):
        path.symlink_to(path if kind == "loop" else notes)
    notes.write_text("mine")
    before = os.lstat(path).st_mode
    assert_works("not a file" if ending == ".safetensors" else "is no lock of the cache", own_cache)
    assert main(["cache", "ls"]) == 0
    assert main(["cache", "clear"]) == 0
    assert os.lstat(path).st_mode == before
    assert notes.read_text() == "mine"


def test_a_file_without_the_mark_is_kept(own_cache: Path) -> None:
    """It is renamed, for its name is that of a cache file, and never removed."""
    prepare()
    path = the_file(own_cache)
    for number in range(6):
        path.unlink(missing_ok=True)
        path.write_text(f"notes {number}")
        assert_works("kept as" if number < 4 else "no mark of it; it is left alone", own_cache)
    assert path.read_text() == "notes 5"
    assert GraphCache(own_cache).clear() == 0
    kept = sorted(file.read_text() for file in own_cache.glob("*.damaged"))
    assert kept == [f"notes {number}" for number in range(4)]


# Disks and rights


def limited(folder: Path, nbytes: int, results: Any) -> None:
    """Prepares a graph in a process whose files end at a number of bytes, as on a full disk."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, nbytes))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        a = prepare(cache=folder)
    right = torch.equal(a @ X, CLEAN @ X)
    results.put((right, [(w.category is CacheWarning, str(w.message)) for w in caught]))


@pytest.mark.parametrize("nbytes", [0, 1, 100, 4096, 6000])
def test_a_full_disk(tmp_path: Path, nbytes: int) -> None:
    folder = tmp_path / "cache"
    ((right, caught),) = in_forks(lambda results: limited(folder, nbytes, results))
    assert right
    assert [ours for ours, _ in caught] == [True]
    assert "can't be written" in caught[0][1]
    assert [path.suffix for path in folder.iterdir()] == [".lock"]


@pytest.mark.parametrize("step", ["mkdir", "open", "fsync", "replace", "scandir", "utime"])
def test_every_step_may_fail(own_cache: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    prepare(values="mean")

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fail)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        assert torch.equal(prepare() @ X, CLEAN @ X)
        prepare(values="mean")
        GraphCache(own_cache).clear()


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="root alone can be another user")


@pytest.mark.parametrize(
    ("mode", "owner", "problem", "remedy"),
    [
        (0o777, None, "every user can write to", "chmod o-w"),
        *((mode, None, r"group \w+ can write to", "chmod g-w") for mode in (0o775, 0o770, 0o2770)),
        *(
            pytest.param(0o755, owner, f"user (nobody|{owner}) owns", "chown", marks=as_root)
            for owner in (65534, 123456)
        ),
    ],
)
def test_a_folder_that_others_can_write(
    tmp_path: Path, mode: int, owner: int | None, problem: str, remedy: str
) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(mode)
    os.chown(folder, os.geteuid() if owner is None else owner, -1)
    for _ in range(2):
        assert_works(
            rf"{problem} the cache folder .*cache \(mode {mode:o}\); {remedy} it, or set GNN", folder
        )
    folder.chmod(mode & ~0o022)
    os.chown(folder, os.geteuid(), -1)
    assert prepare(cache=folder).cache_hit


@pytest.mark.parametrize("mask", [0o002, 0o000, 0o077])
def test_what_the_cache_makes_is_not_for_others(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        prepare(cache=tmp_path / "new" / "cache")
        assert prepare(cache=tmp_path / "new" / "cache").cache_hit
    finally:
        os.umask(before)
    assert (tmp_path / "new" / "cache").stat().st_mode & 0o022 == 0
    assert the_file(tmp_path / "new" / "cache").stat().st_mode & 0o077 == 0


@needs_installed_module
@as_root
@pytest.mark.parametrize(("folder_mode", "file_mode"), [(0o755, 0o600), (0o755, 0o644), (0o700, 0o644)])
def test_as_another_user(tmp_path: Path, folder_mode: int, file_mode: int) -> None:
    folder = tmp_path / "cache"
    prepare(cache=folder)
    prepare(cache=folder)  # imports everything, which the other user may not read
    the_file(folder).chmod(file_mode)
    for path in (tmp_path, *tmp_path.parents[:3]):
        if path.stat().st_mode & 0o001 == 0:
            path.chmod(path.stat().st_mode | 0o011)
    folder.chmod(folder_mode)

    def as_nobody(results: Any) -> None:
        os.setuid(65534)
        limited(folder, 2**40, results)

    ((right, caught),) = in_forks(as_nobody)
    assert right
    assert all(ours for ours, _ in caught)
    readable = (folder_mode, file_mode) == (0o755, 0o644)
    assert bool(caught) != readable


# Several processes and threads


def test_clear_beside_prepare(own_cache: Path) -> None:
    """Each of them may find that what it looked at is gone."""
    end, problems = time.monotonic() + 1.5, []

    def repeat(work: Callable[[], object]) -> None:
        while time.monotonic() < end and not problems:
            try:
                work()
            except Exception as error:
                problems.append(error)

    def look() -> None:
        cache = GraphCache(own_cache)
        for entry in cache.entries():
            cache.problem_of(entry, lambda *_: None)

    def right() -> None:
        assert torch.equal(prepare() @ X, CLEAN @ X)

    works = [right, right, lambda: prepare(values="mean"), GraphCache(own_cache).clear, look]
    threads = [threading.Thread(target=repeat, args=(work,)) for work in works]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not problems
    assert torch.equal(prepare() @ X, CLEAN @ X)
    assert prepare().cache_hit


def test_clear_leaves_what_a_process_is_writing(own_cache: Path) -> None:
    prepare()
    path = the_file(own_cache)
    part = own_cache / f"{path.stem}-{'1' * 32}.part"
    part.write_bytes(path.read_bytes()[:2000])
    with GraphCache(own_cache).lock(path.stem):
        assert GraphCache(own_cache).clear() == 1
        assert part.exists()
    GraphCache(own_cache).clear()
    assert not list(own_cache.iterdir())


def test_a_lock_that_nobody_gives_back(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that has it may be stopped."""
    monkeypatch.setattr(cache_module, "_LOCK_SECONDS", 0.2)
    prepare()
    path = the_file(own_cache)
    path.unlink()
    with GraphCache(own_cache).lock(path.stem):
        assert_works("can't be written", own_cache)
    assert not prepare().cache_hit
    assert prepare().cache_hit
