"""What can happen to a file of the cache: damaged bytes, crafted content, other things in its place."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from gnnsparse.runtime.cache_files import open_file, write_file
from papers.decode import read_records
from tests.fuzz.common import Draw
from tests.fuzz.mutations import mutate

#: Arrays whose content is known to be right by the checksum alone.
_VALUES = ("values", "row_scale", "col_scale", "residual_values", "edge_map", "zero_ptr", "zero_cols")
_EXTREMES = (0, 1, -1, 2, 7, 2**31 - 1, -(2**31), 255, 10**6, 2**62, -(2**62))
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
    path.write_bytes(mutate(draw, path.name, path.read_bytes()))
    return Damaged("other bytes")


def _other_graph(path: Path, other: bytes, draw: Draw) -> Damaged:
    path.write_bytes(other)
    return Damaged("the file of another graph under this name")


# Crafted content, with right checksums


def _element(array: torch.Tensor, draw: Draw) -> torch.Tensor:
    if array.numel() == 0:
        return torch.ones(1, dtype=array.dtype)
    array, at = array.clone(), draw.below(array.numel())
    if array.dtype.is_floating_point:
        array[at] = draw.choice((0.0, float("nan"), float("inf"), -1.0, 65504.0))
        return array
    limits = torch.iinfo(array.dtype)
    near = draw.choice((int(array[at]) + 1, int(array[at]) - 1, array.numel(), *_EXTREMES))
    array[at] = min(max(near, limits.min), limits.max)
    return array


def _swap(array: torch.Tensor, draw: Draw) -> torch.Tensor:
    if array.numel() < 2:
        return array
    array, one, other = array.clone(), draw.below(array.numel()), draw.below(array.numel())
    array[[one, other]] = array[[other, one]]
    return array


def _random(array: torch.Tensor, draw: Draw) -> torch.Tensor:
    limit = 100 if array.dtype.is_floating_point else draw.choice((2, 8, max(1, array.numel()), 2**30))
    generator = torch.Generator().manual_seed(draw.seed())
    return torch.randint(0, limit, array.shape, generator=generator).to(array.dtype)


_CHANGES: dict[str, Callable[[torch.Tensor, Draw], torch.Tensor]] = {
    "element": _element,
    "swap": _swap,
    "random": _random,
    "zeros": lambda array, draw: torch.zeros_like(array),
    "extreme": lambda array, draw: torch.full_like(array, draw.choice((1, 127, -1 & 0x7F))),
    "reverse": lambda array, draw: array.flip(0),
    "roll": lambda array, draw: array.roll(1),
    "shorter": lambda array, draw: array[:-1].clone(),
    "longer": lambda array, draw: torch.cat([array, array[:1]]),
    "empty": lambda array, draw: array[:0].clone(),
    "int64": lambda array, draw: array.to(torch.int64),
    "int32": lambda array, draw: array.double().clamp(-(2**31), 2**31 - 1).nan_to_num().to(torch.int32),
    "float32": lambda array, draw: array.to(torch.float32),
    "float16": lambda array, draw: array.to(torch.float16),
    "uint8": lambda array, draw: array.contiguous().view(torch.uint8),
    "two dimensions": lambda array, draw: array.reshape(1, -1),
    "no dimension": lambda array, draw: array.reshape(-1)[:1].reshape(()) if array.numel() else array,
}


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    same = one.dtype == other.dtype and one.shape == other.shape
    return same and torch.equal(one.reshape(-1).view(torch.uint8), other.reshape(-1).view(torch.uint8))


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
    kind = draw.choice((*_CHANGES, "element", "element", "drop", "rename", "add", "exchange", "more"))
    if kind in _CHANGES:
        tensors[name] = _CHANGES[kind](tensors[name], draw)
    elif kind == "drop":
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
        for each in draw.choice(names), draw.choice(names):
            tensors[each] = _element(tensors[each], draw)
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
        os.truncate(path, 2**40)
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
