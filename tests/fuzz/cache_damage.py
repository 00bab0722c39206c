"""What can happen to a file of the cache: damaged bytes, crafted content, other things in its place."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from gnnsparse.runtime.cache_files import open_file, write_file
from papers.decode import read_records
from tests.fuzz.common import Draw
from tests.fuzz.mutations import mutate, mutate_array
from tests.helpers import overwrite

#: Arrays whose content is known to be right by the checksum alone.
_VALUES = ("values", "row_scale", "col_scale", "residual_values", "edge_map", "zero_ptr", "zero_cols")
_REPLACEMENTS = (
    "empty", "text", "pipe", "folder", "full folder", "link", "dangling link", "loop", "gone", "mode",
    "sparse",
)  # fmt: skip

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Damaged:
    """What was done to a file, in words, and what may follow."""

    what: str
    unseen: bool = False  # nothing but the checksum would show it, and that is right
    blocks: bool = False  # something that is not the cache's is in its place, and has to stay there
    gone: bool = False


def damage_file(path: Path, other: bytes, draw: Draw) -> Damaged:
    """Damages a cache file at random; `other` is the content of another cache file, or of the same one."""
    kinds = (_craft, _craft, _other_graph, _bytes, _bytes, _replace)
    return draw.choice(kinds)(path, other, draw)


def _bytes(path: Path, other: bytes, draw: Draw) -> Damaged:
    """Changes bytes, or the header; white space in it means nothing, so that nobody need notice that."""
    overwrite(path, mutate(draw, path.name, path.read_bytes()))
    return Damaged("other bytes")


def _other_graph(path: Path, other: bytes, draw: Draw) -> Damaged:
    overwrite(path, other)
    return Damaged("the file of another graph under this name")


# Crafted content, with right checksums


def _changed(array: torch.Tensor, draw: Draw) -> torch.Tensor:
    """Another array; one of bfloat16, which NumPy does not know, is changed as one of integers."""
    known = array.view(torch.int16) if array.dtype == torch.bfloat16 else array
    other = mutate_array(draw, known.numpy(), ("<i8", "<i4", "<f4", "<f2", "|u1"))
    found = torch.tensor(np.array(other, order="C"))
    return found.view(array.dtype) if known is not array and found.dtype == torch.int16 else found


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.numel() == 0 or one.dtype != other.dtype or one.shape != other.shape:
        return one.dtype == other.dtype and one.shape == other.shape
    return torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


def _only_values(name: str, before: Tensors, after: Tensors) -> bool:
    """Whether an array differs in nothing but values, whose right ones only the checksum knows."""
    side, _, part = name.rpartition(".")
    if part != "packed_blocks":
        return part in _VALUES
    if any(name not in tensors or f"{side}.size_ptr" not in tensors for tensors in (before, after)):
        return False
    try:
        was, now = (read_records(tensors[f"{side}.size_ptr"], tensors[name]) for tensors in (before, after))
    except (IndexError, RuntimeError):  # the records are not even where they are said to be
        return False
    pairs = (was.block, now.block), (was.column, now.column), (was.row, now.row), (was.bitmap, now.bitmap)
    return _same(was.values[:0], now.values[:0]) and all(_same(*pair) for pair in pairs)


def _craft(path: Path, other: bytes, draw: Draw) -> Damaged:
    """Changes an array, or which arrays there are, and computes the checksums anew."""
    with open_file(path) as file:
        tensors, metadata = file.read()
    before = dict(tensors)
    names = sorted(tensors)
    name = draw.choice(names)
    kind = draw.choice(("change",) * 20 + ("drop", "rename", "add", "exchange", "two changes"))
    if kind == "drop":
        del tensors[name]
    elif kind == "rename":
        tensors[draw.choice((*names, "forward.blocked.spec", "backward.indptr", "x", ""))] = tensors.pop(name)
    elif kind == "add":
        extra = ("forward.row_ids", "edge_map", "values", "backward.indptr", "forward.blocked.rows", "y")
        tensors.setdefault(draw.choice(extra), tensors[name].clone())
    elif kind == "exchange":
        second = draw.choice(names)
        tensors[name], tensors[second] = tensors[second], tensors[name]
    else:
        for each in (name, draw.choice(names))[: 1 if kind == "change" else 2]:
            tensors[each] = _changed(tensors[each], draw)
    path.unlink()
    write_file(path, tensors, metadata)
    changed = [n for n in {**before, **tensors} if not _same(before.get(n), tensors.get(n))]
    unseen = all(_only_values(n, before, tensors) for n in changed)
    return Damaged(f"crafted {', '.join(changed)}: {kind}", unseen)


# Other things in the file's place


def _replace(path: Path, other: bytes, draw: Draw) -> Damaged:
    """Puts something else in the place of the file, or takes rights away."""
    kind = draw.choice(_REPLACEMENTS)
    if kind == "mode":
        os.chmod(path, draw.choice((0o000, 0o200, 0o444, 0o777)))
        return Damaged("the same")  # the superuser reads it nevertheless
    if kind == "sparse":
        os.chmod(path, 0o600)
        os.truncate(path, 2**40)
        os.chmod(path, 0o400)
        return Damaged("a file of a terabyte that is not there")
    path.unlink()
    if kind == "gone":
        return Damaged("removal", gone=True)
    if kind in ("empty", "text"):
        path.write_bytes(b"" if kind == "empty" else b'{"my": "notes"}' * draw.integer(1, 50))
        return Damaged(f"{kind} file")
    target = path.parent.parent / "outside.safetensors"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind in ("folder", "full folder"):
        path.mkdir()
        if kind == "full folder":
            (path / "notes").write_text("mine")
    else:
        path.symlink_to({"link": target, "dangling link": Path("nowhere"), "loop": path}[kind])
    return Damaged(f"a {kind}", blocks=True)
