"""The cache trusts no file: crafted content with right checksums is named, set aside and rebuilt."""

from __future__ import annotations

import json
import operator
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

import gnnsparse
from gnnsparse.cli.main import main
from gnnsparse.runtime import cache_files
from gnnsparse.runtime.cache import CacheWarning, GraphCache
from gnnsparse.runtime.cache_files import open_file, write_file
from gnnsparse.sparse.saved import check_file
from gnnsparse.testing import random_graph
from tests.helpers import overwrite, short_rows

GRAPH = short_rows()
FORMATS = {
    "csr": {}, "window": {"format": "window"}, "dense": {"format": "me-bcrs", "precision": "fp16"},
    "tiled": {"format": "tiled-csr", "precision": "fp16"},
    "hrpb": {"format": "hrpb", "panel": 32, "precision": "tf32"},
    "rs-tile": {"format": "rs-tile", "precision": "tf32"}, "cvse": {"format": "cvse", "precision": "fp16"},
}  # fmt: skip

Tensors = dict[str, torch.Tensor]
MISSING = "missing"


def prepare(**options: Any) -> gnnsparse.SparseOperand:
    return gnnsparse.prepare(GRAPH, **{"reorder": "degree", **options})


@pytest.fixture(params=[0, 2**20], ids=["mapped", "read"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small file is mapped, as large ones are, or read."""
    monkeypatch.setattr(cache_files, "_LEAST_MAPPED", request.param)


def the_file(folder: Path) -> Path:
    (path,) = folder.glob("*.safetensors")
    return path


def read(path: Path) -> tuple[Tensors, dict[str, Any]]:
    with open_file(path) as file:
        return file.read()


def stored(folder: Path, form: str) -> tuple[Tensors, dict[str, Any]]:
    """What is checked of a file in a format: what it holds beside the name of its key."""
    prepare(**FORMATS[form])
    tensors, metadata = read(the_file(folder))
    del metadata["key"]
    return tensors, metadata


def craft(path: Path, change: Callable[[Tensors, dict[str, Any]], object]) -> None:
    """Changes the content of a file, with new checksums."""
    tensors, metadata = read(path)
    change(tensors, metadata)
    path.unlink()
    write_file(path, tensors, metadata)


def assert_rebuilt(folder: Path, message: str, **options: Any) -> None:
    clean = prepare(**options, cache=False)
    x = torch.randn(60, 4)
    with pytest.warns(CacheWarning, match=message) as caught:
        again = prepare(**options)
    assert str(folder) in str(caught[0].message)
    assert "rebuilt and kept as" in str(caught[0].message)
    assert not again.cache_hit
    assert torch.equal(again @ x, clean @ x)
    assert prepare(**options).cache_hit
    assert len(list(folder.glob("*.damaged"))) == 1


OUT_OF_RANGE = [
    ("csr", "forward.indices", 10**6), ("csr", "forward.indices", -1), ("csr", "forward.indices", 2**31 - 1),
    ("csr", "backward.indices", 90), ("csr", "forward.indptr", 2**40), ("csr", "forward.indptr", -5),
    ("csr", "forward.row_ids", 90), ("csr", "forward.row_ids", -1), ("csr", "transpose_map", 10**6),
    ("csr", "transpose_map", -1), ("csr", "edge_map", 10**6), ("csr", "edge_map", -2),
    ("window", "forward.blocked.panel_ptr", 10**9), ("window", "forward.blocked.columns", 60),
    ("window", "backward.blocked.columns", -1), ("dense", "forward.blocked.columns", 10**6),
    ("tiled", "forward.blocked.zero_cols", 10**6), ("tiled", "forward.blocked.zero_ptr", -1),
    ("hrpb", "forward.blocked.size_ptr", 10**9), ("hrpb", "forward.blocked.packed_blocks", 3),
    ("rs-tile", "forward.blocked.value_ptr", 10**9), ("rs-tile", "forward.blocked.panel_rows", 10**6),
    ("rs-tile", "forward.blocked.residual_rows", -1), ("rs-tile", "forward.blocked.residual_cols", 10**6),
]  # fmt: skip


def next_column(indices: torch.Tensor) -> None:
    """Ascending and in range, but of another matrix."""
    indices[(indices.diff() > 1).nonzero()[0]] += 1


def fewer_bits_of_a_record(packed: torch.Tensor) -> None:
    """The first brick without its first nonzero; the record's size is that of the others."""
    words = packed.view(torch.int32)
    header = (6 + int(words[4])) // 2 * 2
    words[header] &= words[header] - 1


OTHER = "transpose_map: leads to other elements"
STRUCTURE = "panel .* does not have the structure"
#: Changes of a copy of an array, or what is put in its place.
CONTRADICTIONS: list[tuple[str, str, Callable[[torch.Tensor], object], str]] = [
    ("csr", "forward.row_ids", lambda t: t.flip(0), OTHER),
    ("csr", "forward.indices", lambda t: t.__setitem__(1, int(t[0])), "forward.indices: do not ascend"),
    ("csr", "forward.indices", next_column, OTHER),
    ("csr", "transpose_map", lambda t: t.flip(0), OTHER),
    ("csr", "transpose_map", torch.zeros_like, "transpose_map: repeats"),
    ("csr", "forward.indptr", lambda t: torch.cat([t[:10], t[10:20].flip(0), t[20:]]), "indptr: decreases"),
    ("csr", "values", lambda t: t * float("nan"), "values: are not finite"),
    ("window", "forward.blocked.bitmap", lambda t: t.__setitem__(t.nonzero()[5], 0), STRUCTURE),
    (
        "window",
        "forward.blocked.bitmap",
        lambda t: t | 255,
        r"forward\.blocked\.bitmap: panel 0 does not have",
    ),
    ("hrpb", "forward.blocked.packed_blocks", fewer_bits_of_a_record, f"packed_blocks: {STRUCTURE}"),
    ("rs-tile", "forward.blocked.bitmap", lambda t: t | 255, f"bitmap: {STRUCTURE}"),
]


@pytest.mark.parametrize(
    ("form", "name", "change", "message"),
    [
        *((form, name, value, name.replace("_cols", "") + r"[\w.]*: ") for form, name, value in OUT_OF_RANGE),
        *CONTRADICTIONS,
    ],
)
def test_content_that_native_code_would_stumble_over(
    own_cache: Path, form: str, name: str, change: Any, message: str
) -> None:
    tensors, metadata = stored(own_cache, form)
    array = tensors[name].clone()
    changed = array.__setitem__(3, change) if isinstance(change, int) else change(array)
    with pytest.raises(ValueError, match=message):
        check_file({**tensors, name: array if changed is None else changed}, metadata)


@pytest.mark.parametrize("form", FORMATS)
def test_every_array_is_needed_in_its_shape_and_dtype(own_cache: Path, form: str) -> None:
    """Another dtype, another length, and none at all: of each array of each format."""
    tensors, metadata = stored(own_cache, form)
    check_file(tensors, metadata)
    assert len(tensors) >= 7
    for name, array in tensors.items():
        end = array[-1:] if array.numel() else torch.ones(1).to(array)
        dtype = torch.uint8 if array.dtype != torch.uint8 else torch.int32
        others = [{name: array.to(dtype)}, {name: torch.cat([array, end])}, {name: array.reshape(1, -1)}]
        if name not in ("values", "edge_map", "forward.row_ids"):
            others.append({})
        left = {key: value for key, value in tensors.items() if key != name}
        for other in others:
            with pytest.raises(ValueError, match=r"[\w.]+: "):
                check_file({**left, **other}, metadata)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", 91), ("rows", -1), ("rows", "90"), ("rows", None), ("rows", 10**400), ("rows", 2**40),
        ("cols", 10), ("cols", 2**31), ("cols", 61), ("edges", 1), ("edges", True), ("seconds", float("nan")),
        ("seconds", "[/red]"), ("symmetric", 1), ("reorder", None), ("reorder", {}),
        ("reorder", {"method": 3}), ("format", 3), ("format", {"spec": {}}), ("key", "0" * 32), ("more", 1),
        *((name, MISSING) for name in ("rows", "cols", "edges", "seconds", "symmetric", "reorder", "format")),
        ("key", MISSING),
    ],
)  # fmt: skip
def test_plain_values_of_another_kind_or_none(
    own_cache: Path, name: str, value: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare()
    change = ("pop", name) if value is MISSING else ("update", {name: value})
    craft(the_file(own_cache), lambda _, metadata: operator.methodcaller(*change)(metadata))
    assert main(["cache", "ls"]) == 0  # it ended in a KeyError
    assert main(["cache", "verify"]) == 1
    assert "1 damaged" in capsys.readouterr().out
    assert_rebuilt(own_cache, "is damaged")


HEADERS: list[str | dict[str, Any] | list[Any] | int | None] = [
    "[" * 100_000, '{"a":' * 50_000, "1" * 10_000, "3", "nul",
    {"dtype": "F8", "shape": [1], "data_offsets": [0, 1]}, {"dtype": "I64", "shape": [2**62]},
    {"dtype": "I64", "shape": [2**62], "data_offsets": [0, 2**65]}, [], None, 7,
    {"dtype": ["I64"], "shape": [1], "data_offsets": [0, 8]},
    {"dtype": "I64", "shape": [-1], "data_offsets": [0, -8]},
    {"dtype": "I64", "shape": [1.0], "data_offsets": [0, 8]},
    {"dtype": "I64", "shape": 1, "data_offsets": [0, 8]},
]  # fmt: skip


@pytest.mark.parametrize("header", HEADERS, ids=lambda header: str(header)[:60])
def test_a_header_that_is_none_or_has_a_senseless_array(own_cache: Path, header: Any) -> None:
    prepare()
    path = the_file(own_cache)
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    is_text = isinstance(header, str)
    text = header if is_text else json.dumps({**json.loads(data[8:end]), "forward.indptr": header})
    overwrite(path, len(text).to_bytes(8, "little") + text.encode() + data[end:])
    assert main(["cache", "ls"]) == 0
    assert_rebuilt(own_cache, "its header is" if is_text else "is damaged")


@pytest.mark.usefixtures("either_way")
def test_other_bytes_than_were_written(own_cache: Path) -> None:
    """Parts of a file, flipped bits, what follows its end, and files of others."""
    prepare()
    path, draw = the_file(own_cache), random.Random(0)
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    contents = [data[:end] for end in (0, 1, 7, 8, 100, len(data) // 2, len(data) - 1)]
    contents += [data + b"more", save({"forward.indptr": torch.zeros(3)}), bytes(4096), draw.randbytes(9999)]
    for at in (*draw.sample(range(header), 60), *draw.sample(range(header, len(data)), 40)):
        contents.append(data[:at] + bytes([data[at] ^ 1 << draw.randrange(8)]) + data[at + 1 :])
    for content in contents:
        overwrite(path, content)
        assert_rebuilt(own_cache, "is damaged|its header")
        for kept in own_cache.glob("*.damaged"):  # of which there are at most a few without the mark
            kept.unlink()


@pytest.mark.usefixtures("either_way")
def test_the_file_of_another_graph(own_cache: Path) -> None:
    """It is valid, but not what its name says."""
    gnnsparse.prepare(random_graph(80, 80, 0.1, weighted=False, seed=4))
    other = the_file(own_cache)
    content = other.read_bytes()
    other.unlink()
    prepare()
    overwrite(the_file(own_cache), content)
    assert_rebuilt(own_cache, "stored under another name")


def test_the_file_of_another_format(own_cache: Path) -> None:
    prepare(**FORMATS["window"])
    tensors, metadata = read(the_file(own_cache))
    the_file(own_cache).unlink()
    prepare()
    path = the_file(own_cache)
    path.unlink()
    write_file(path, tensors, {**metadata, "key": path.stem})
    assert_rebuilt(own_cache, r"metadata\.format: is not that of csr in fp32")


def test_few_damaged_files_are_kept(own_cache: Path) -> None:
    for number in range(9):
        prepare()
        craft(
            the_file(own_cache),
            lambda tensors, _, number=number: tensors["forward.indices"].fill_(-1 - number),
        )
        with pytest.warns(CacheWarning, match="kept as"):
            prepare()
    kept = list(own_cache.glob("*.damaged"))
    assert len(kept) == 4
    newest = max(kept, key=lambda path: path.stat().st_mtime)
    assert int(read(newest)[0]["forward.indices"][3]) == -9
    assert GraphCache(own_cache).clear() == 1
    assert not list(own_cache.iterdir())


def test_verify_looks_at_the_content(own_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(**FORMATS["hrpb"])
    assert main(["cache", "verify"]) == 0
    craft(the_file(own_cache), lambda tensors, _: tensors["backward.indices"][3:4].fill_(-7))
    assert main(["cache", "verify"]) == 1
    assert "backward.indices: element 3 is -7; accepted: 0 to 89" in capsys.readouterr().out
    assert not list(own_cache.glob("*.damaged")), "verify changes nothing"


def test_a_valid_file_is_not_touched_by_a_process_that_saw_a_damaged_one(own_cache: Path) -> None:
    """Between its reading and its renaming, another process may have put a good file there."""
    prepare()
    path = the_file(own_cache)
    good = path.read_bytes()
    cache = GraphCache(own_cache)

    def replaced_meanwhile(tensors: Tensors, metadata: dict[str, Any]) -> None:
        other = own_cache / "new"
        other.write_bytes(good)
        other.replace(path)
        raise ValueError("damaged")

    with pytest.warns(CacheWarning, match="is damaged"):
        assert cache.load(path.stem, replaced_meanwhile) is None
    assert path.read_bytes() == good
    assert not list(own_cache.glob("*.damaged"))


def test_values_that_are_not_finite_are_not_stored(own_cache: Path) -> None:
    edges = torch.tensor([[0, 0], [1, 1]])
    for _ in range(2):
        with pytest.raises(ValueError, match="values: the largest"):
            gnnsparse.prepare(edges, values=torch.full((2,), 3e38))
    assert not list(own_cache.glob("*.safetensors"))


def test_check_file_knows_plans(own_cache: Path) -> None:
    numbers = dict.fromkeys(("lanes", "row_lanes", "row_limit", "group"), 1)
    check_file({}, {"plan": {"kernel": "csr", **numbers, "prescale": True, "narrow": False, "reasons": []}})
    for plan in (None, {}, {"kernel": "csr"}, {"kernel": []}):
        with pytest.raises(ValueError, match=r"metadata\.plan"):
            check_file({}, {"plan": plan})
