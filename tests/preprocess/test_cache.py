"""The cache: hits, damage, concurrency, read-only folders, size cap, command line."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import gnnsparse
from gnnsparse.cli.main import main
from gnnsparse.runtime.cache import CacheWarning, GraphCache
from gnnsparse.testing import random_graph
from tests.helpers import precision_for

GRAPH = random_graph(150, 150, 0.05, weighted=False, seed=3)


def prepare(**options: object) -> gnnsparse.SparseOperand:
    return gnnsparse.prepare(GRAPH, **{"values": "gcn", "reorder": "metis", "format": "window", **options})


def was_hit(a: gnnsparse.SparseOperand) -> bool:
    return bool(a.stats()["cache_hit"])


def same(a: gnnsparse.SparseOperand, b: gnnsparse.SparseOperand) -> bool:
    x = torch.randn(150, 8)
    return (
        torch.equal(a @ x, b @ x) and torch.equal(a.T @ x, b.T @ x) and torch.equal(a.indices(), b.indices())
    )


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
    assert not was_hit(first)
    assert was_hit(second)
    assert same(first, second)
    edges = torch.randn(GRAPH.num_edges)
    assert torch.equal(first.from_coo_order(edges), second.from_coo_order(edges))
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
        assert not was_hit(prepare(**options)), options
    assert len(files(own_cache)) == len(variants)
    assert not was_hit(gnnsparse.prepare(random_graph(150, 150, 0.05, seed=4, weighted=False), values="gcn"))


def test_precisions_share_a_file_where_nothing_stored_depends_on_them(own_cache: Path) -> None:
    for precision in ("fp32", "tf32", "fp16", "bf16"):
        prepare(precision=precision)
    assert len(files(own_cache)) == 1


def overwrite(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(b"\xff" * path.stat().st_size)


@pytest.mark.parametrize(
    "damage", [lambda path: os.truncate(path, 0), lambda path: os.truncate(path, 1000), overwrite]
)
def test_a_file_that_is_changed_while_it_is_in_use(own_cache: Path, damage: Callable[[Path], None]) -> None:
    """Of a memory-mapped file that was cut short, the next access would end the process."""
    clean, hit = prepare(), prepare()
    assert was_hit(hit)
    damage(files(own_cache)[0])
    assert same(hit, clean)


def test_cache_false_writes_nothing(own_cache: Path) -> None:
    prepare(cache=False)
    assert not own_cache.exists()


def test_cache_in_a_folder(tmp_path: Path, own_cache: Path) -> None:
    folder = tmp_path / "mine" / "deep"
    prepare(cache=folder)
    assert was_hit(prepare(cache=str(folder)))
    assert len(files(folder)) == 1
    assert not own_cache.exists()


def damage_and_prepare(path: Path, data: bytes, clean: gnnsparse.SparseOperand) -> bool:
    """Writes damaged bytes; True if they were noticed, and in any case the result is right."""
    path.unlink()  # a new inode: the arrays of `clean` stay mapped to the old one
    path.write_bytes(data)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        again = prepare()
    assert same(again, clean)
    noticed = [w for w in caught if issubclass(w.category, CacheWarning)]
    if noticed:
        assert str(path) in str(noticed[0].message)
        assert "rebuilt" in str(noticed[0].message)
        assert not was_hit(again)
        assert was_hit(prepare())  # it was rebuilt
    return bool(noticed)


@pytest.mark.parametrize("part", [0, 1, 7, 8, 100, 0.5, 0.9, 0.999])
def test_truncated_files(own_cache: Path, part: float) -> None:
    clean = prepare()
    path = files(own_cache)[0]
    data = path.read_bytes()
    assert damage_and_prepare(path, data[: part if isinstance(part, int) else int(part * len(data))], clean)


def test_flipped_bits(own_cache: Path) -> None:
    """Every flip is noticed, or lies where it changes nothing (white space of the header)."""
    clean = prepare()
    path = files(own_cache)[0]
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    generator = random.Random(0)
    places = [generator.randrange(header) for _ in range(60)]
    places += [generator.randrange(header, len(data)) for _ in range(40)]
    for place in places:
        flipped = bytearray(data)
        flipped[place] ^= 1 << generator.randrange(8)
        noticed = damage_and_prepare(path, bytes(flipped), clean)
        assert noticed or place < header, f"byte {place}"


def test_other_peoples_files(own_cache: Path) -> None:
    from safetensors.torch import save_file

    clean = prepare()
    path = files(own_cache)[0]
    assert damage_and_prepare(path, path.read_bytes() + b"more", clean)
    save_file({"forward.indptr": torch.zeros(3)}, path)
    assert damage_and_prepare(path, path.read_bytes(), clean)
    assert damage_and_prepare(path, b"\0" * 4096, clean)
    assert damage_and_prepare(path, random.Random(1).randbytes(10_000), clean)


def test_half_written_files_are_not_read(own_cache: Path) -> None:
    prepare()
    path = files(own_cache)[0]
    (own_cache / f"{path.stem}-{'0' * 32}.part").write_bytes(path.read_bytes()[:500])
    path.unlink()
    assert not was_hit(prepare())
    assert was_hit(prepare())


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


PROGRAM = textwrap.dedent("""
    import sys, torch, gnnsparse
    from gnnsparse.testing import random_graph
    torch.set_num_threads(1)
    graph = random_graph(700, 700, 0.05, weighted=False, seed=9)
    a = gnnsparse.prepare(graph, values="gcn", reorder="metis", format="window")
    x = torch.arange(700 * 4, dtype=torch.float32).reshape(700, 4)
    print(float((a @ x).double().sum()), a.stats()["cache_hit"])
""")


@pytest.mark.slow
def test_two_processes_at_once(own_cache: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", PROGRAM]
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(3)
    ]
    outputs = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], outputs
    results = [out.split() for out, _ in outputs]
    assert len({value for value, _ in results}) == 1
    assert len(files(own_cache)) == 1
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[1] == "True"


@pytest.mark.parametrize(
    ("name", "problem"), [("file/cache", "can't be written"), ("a" * 300, "File name too long")]
)
def test_a_folder_that_cannot_be_made(tmp_path: Path, name: str, problem: str) -> None:
    """Also what a read-only folder looks like to root, whom permission bits do not stop."""
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(CacheWarning, match=problem):
        a = prepare(cache=tmp_path / name)
    assert not was_hit(a)
    assert same(a, prepare(cache=False))


@pytest.mark.skipif(os.geteuid() == 0, reason="permission bits do not stop root")
def test_a_read_only_folder(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    prepare(cache=folder)
    folder.chmod(0o555)
    try:
        assert was_hit(prepare(cache=folder))  # reading works without a warning
        with pytest.warns(CacheWarning, match="can't be written"):
            prepare(cache=folder, values="mean")
    finally:
        folder.chmod(0o755)


def test_a_failing_disk_is_a_warning(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.warns(CacheWarning, match="No space left"):
        a = prepare()
    assert same(a, prepare(cache=False))
    assert not list(own_cache.glob("*.part"))
    assert not files(own_cache)


def test_size_cap_drops_the_least_recently_used(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = [{"values": None}, {"values": "mean"}, {"values": "gcn"}]
    for kind in kinds[:2]:
        prepare(**kind)
    for age, path in enumerate(sorted(files(own_cache), key=lambda p: p.stat().st_mtime, reverse=True)):
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    assert was_hit(prepare(**kinds[0]))  # now the most recently used of the two
    size = max(path.stat().st_size for path in files(own_cache))
    monkeypatch.setenv("GNNSPARSE_CACHE_MAX_BYTES", str(int(2.5 * size)))
    prepare(**kinds[2])
    assert len(files(own_cache)) == 2
    assert was_hit(prepare(**kinds[0]))
    assert was_hit(prepare(**kinds[2]))
    assert not was_hit(prepare(**kinds[1]))


def test_a_senseless_size_cap_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GNNSPARSE_CACHE_MAX_BYTES", "lots")
    with pytest.warns(CacheWarning, match="lots"):
        GraphCache()


def test_command_line(own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "ls"]) == 0
    assert "empty" in capsys.readouterr().out
    prepare()
    prepare(values="mean")
    assert main(["cache", "ls"]) == 0
    listing = capsys.readouterr().out
    assert all(path.stem[:12] in listing for path in files(own_cache))
    assert "150" in listing
    assert main(["cache", "verify"]) == 0
    path = files(own_cache)[0]
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    capsys.readouterr()
    assert main(["cache", "verify"]) == 1
    assert "checksum" in capsys.readouterr().out
    assert path.exists()  # verify changes nothing
    assert main(["cache", "clear"]) == 0
    assert "2" in capsys.readouterr().out
    assert not files(own_cache)


def test_bad_words_are_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["cache", "empty"])
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert "empty" in said
    assert "clear" in said
