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
from safetensors.torch import save

import gnnsparse
from gnnsparse.cli.main import main
from gnnsparse.runtime.cache import CacheWarning, GraphCache
from gnnsparse.testing import random_graph
from tests.helpers import precision_for

GRAPH = random_graph(150, 150, 0.05, weighted=False, seed=3)


def prepare(**options: object) -> gnnsparse.SparseOperand:
    return gnnsparse.prepare(GRAPH, **{"values": "gcn", "reorder": "metis", "format": "window", **options})


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
    assert not first.cache_hit
    assert second.cache_hit
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
        assert not prepare(**options).cache_hit, options
    assert len(files(own_cache)) == len(variants)
    for precision in ("fp32", "tf32", "fp16", "bf16"):  # nothing that is stored depends on it
        assert prepare(precision=precision).cache_hit
    assert not gnnsparse.prepare(random_graph(150, 150, 0.05, seed=4, weighted=False), values="gcn").cache_hit


def overwrite(path: Path) -> None:
    with open(path, "r+b") as file:
        file.write(b"\xff" * path.stat().st_size)


@pytest.mark.parametrize(
    "damage", [lambda path: os.truncate(path, 0), lambda path: os.truncate(path, 1000), overwrite]
)
def test_a_file_that_is_changed_while_it_is_in_use(own_cache: Path, damage: Callable[[Path], None]) -> None:
    """Of a memory-mapped file that was cut short, the next access would end the process."""
    clean, hit = prepare(), prepare()
    assert hit.cache_hit
    damage(files(own_cache)[0])
    assert same(hit, clean)


def test_cache_in_a_folder(tmp_path: Path, own_cache: Path) -> None:
    folder = tmp_path / "mine" / "deep"
    prepare(cache=False)
    prepare(cache=folder)
    assert prepare(cache=str(folder)).cache_hit
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
        assert not again.cache_hit
        assert prepare().cache_hit  # it was rebuilt
    return bool(noticed)


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


def test_truncated_files_and_those_of_others(own_cache: Path) -> None:
    clean = prepare()
    path = files(own_cache)[0]
    data = path.read_bytes()
    parts = [data[:end] for end in (0, 1, 7, 8, 100, *(int(part * len(data)) for part in (0.5, 0.9, 0.999)))]
    other = save({"forward.indptr": torch.zeros(3)})
    for content in (*parts, data + b"more", other, b"\0" * 4096, random.Random(1).randbytes(10_000)):
        assert damage_and_prepare(path, content, clean)
        for kept in own_cache.glob("*.damaged"):  # of which there are at most a few without the mark
            kept.unlink()


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
    assert not a.cache_hit
    assert same(a, prepare(cache=False))


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
