"""Mutations of files: of bytes, of numbers in texts, and of arrays in archives, with right checksums."""

from __future__ import annotations

import gzip
import io
import json
import re
import struct
import warnings
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tests.fuzz.common import Draw

#: Numbers that programs get wrong: borders of types, absurd sizes, and none at all.
NUMBERS = (
    "0", "-1", "1", "2", "7", "2147483647", "2147483648", "-2147483649", "4294967296",
    "9223372036854775807", "9223372036854775808", "-9223372036854775809", "1000000000000000000",
    "1" * 40, "1" * 5000, "1.5", "1e400", "-1e39", "nan", "inf", "-inf", "0x10", "1_0", "", "x", "\u00b2",
    "1 1", "-0", "NaN", "1e999999999", "[]", "null",
)  # fmt: skip
_INTEGERS = (
    0, -1, 1, 2, 7, 255, 10_003, 2**31 - 1, -(2**31), 2**31, 2**32, 10**6, 2**53, 10**18, 2**63 - 1, -(2**63),
)  # fmt: skip
_REALS = (0.0, -1.0, 1e39, -1e300, float("nan"), float("inf"), float("-inf"), 1e-320, 0.5)
_TYPES = (
    "<i1", "<i2", "<i4", "<i8", "<u1", "<u8", ">i4", ">i8", "<f2", "<f4", "<f8", ">f8", "<f16", "<c16",
    "|b1", "|O", "<U3", "|S4", "<M8[s]", "|V8",
)  # fmt: skip


def mutate(draw: Draw, name: str, content: bytes) -> bytes:
    """Returns the bytes of a file after one to three mutations that fit the ending of its name."""
    for _ in range(draw.integer(1, 3)):
        content = _one(draw, name, content)
    return content


def _one(draw: Draw, name: str, content: bytes) -> bytes:
    structured: list[Callable[[Draw, bytes], bytes]] = []
    if name.endswith(".npz"):
        structured = [_archive, _archive, _members]
    elif name.endswith(".npy"):
        structured = [_npy]
    elif name.endswith(".gz"):
        structured = [lambda draw, data: gzip.compress(_text(draw, gzip.decompress(data)), 1)]
    elif name.endswith(".safetensors"):
        structured = [_safetensors]
    elif name.endswith((".mtx", ".smtx", ".json", ".csv", ".index")):
        structured = [_text, _text]
    elif ".csv" not in name and "." in name:
        structured = [_pickle]
    kind = draw.choice([*structured, mutate_bytes])
    try:
        return kind(draw, content)
    except Exception:  # an earlier mutation has left nothing that has this structure
        return mutate_bytes(draw, content)


def mutate_bytes(draw: Draw, content: bytes) -> bytes:
    """Flips bits, overwrites, cuts, repeats, removes or inserts bytes."""
    data, kind = bytearray(content), draw.below(7)
    at = draw.below(len(content) + 1)
    length = draw.choice([1, 2, 4, 8, 16, 64, 500])
    if kind == 0 and data:
        for _ in range(draw.integer(1, 8)):
            data[draw.below(len(data))] ^= 1 << draw.below(8)
    elif kind == 1:
        data[at : at + 1] = bytes([draw.choice([0, 1, 0x7F, 0x80, 0xFF, 0x20, 0x0A, 0x2D])])
    elif kind == 2:
        del data[at:]
    elif kind == 3:
        data[at:at] = data[at : at + length]
    elif kind == 4:
        del data[at : at + length]
    elif kind == 5:
        data[at:at] = bytes(draw.below(256) for _ in range(min(length, 16)))
    else:
        form = draw.choice(["<i", "<q", ">i", "<d", "<H"])
        size = struct.calcsize(form)
        if form == "<d":
            packed = struct.pack(form, draw.choice(_REALS))
        else:
            packed = (draw.choice(_INTEGERS) % 2 ** (8 * size)).to_bytes(size, "little")
        data[at : at + size] = packed
    return bytes(data)


def _text(draw: Draw, content: bytes) -> bytes:
    """Replaces a number or a word, or moves, repeats or removes a line."""
    kind = draw.below(6)
    if kind < 3:
        found = list(re.finditer(rb"[-+\w.]+", content))
        if not found:
            return mutate_bytes(draw, content)
        # Half of the time in the first lines, which say how large everything is.
        match = found[draw.below(min(len(found), 12) if draw.chance(0.5) else len(found))]
        return content[: match.start()] + draw.choice(NUMBERS).encode() + content[match.end() :]
    lines = content.splitlines(keepends=True)
    if not lines:
        return content
    at = draw.below(len(lines))
    if kind == 3:
        lines.insert(draw.below(len(lines)), lines[at])
    elif kind == 4:
        del lines[at]
    else:
        deep = [b"[" * 100_000, b'{"a":' * 20_000, b"\0" * 50, b"9" * 3_000_000, b"%" * 2_000_000]
        lines[at : at + 1] = [draw.choice([b"\n", b" \t\r\n", b"% a\n", b"\xff\xfe\n", *deep])]
    return b"".join(lines)


def _pickle(draw: Draw, content: bytes) -> bytes:
    """Puts another name, or a call of a function, into a pickle."""
    kind = draw.below(4)
    if kind == 0:
        names = [b"numpy\nndarray", b"numpy\ndtype", b"scipy.sparse.csr\ncsr_matrix", b"__builtin__\nlist"]
        found = [name for name in names if name in content]
        other = draw.choice([b"os\nsystem", b"builtins\neval", b"numpy\nload", b"collections\ndeque", *names])
        return content.replace(draw.choice(found), other, 1)
    if kind == 1:
        return b"cos\nsystem\n(S'touch executed'\ntR."
    if kind == 2:
        return _text(draw, content)
    at = draw.below(len(content) + 1)
    instructions = [
        b"R", b"b", b"\x81", b"s", b"u", b"a", b"e", b"r\xff\xff\xff\x7f", b"j\xff\xff\xff\x00", b"0", b"(",
        b"\x96" + b"\xff" * 8, b"\x8e\0\0\0\0\1\0\0\0",
    ]  # fmt: skip
    return content[:at] + draw.choice(instructions) + content[at:]


def _safetensors(draw: Draw, content: bytes) -> bytes:
    """Changes the head of a safetensors file, or elements."""
    (size,) = struct.unpack("<Q", content[:8])
    head, body = json.loads(content[8 : 8 + size]), content[8 + size :]
    if draw.chance(0.5):
        return content[: 8 + size] + mutate_bytes(draw, body)
    text = _text(draw, json.dumps(head).encode())
    return struct.pack("<Q", len(text)) + text + body


def mutate_array(draw: Draw, array: np.ndarray, types: Sequence[str] = _TYPES) -> np.ndarray:
    """Changes elements, their order, the type, the length or the shape of an array."""
    flat = array.reshape(-1).copy()
    size, at, random = flat.size, draw.below(flat.size + 1), np.random.default_rng(draw.seed())
    changes: list[Callable[[], np.ndarray]] = [
        *[lambda: _with_element(draw, flat).reshape(array.shape if size else 1)] * 4,
        lambda: flat.astype(draw.choice(types)).reshape(array.shape),
        lambda: flat[:at],
        lambda: np.concatenate([flat, flat[:at]]),
        lambda: draw.choice([array[None], flat, np.asarray(flat[:1].sum()), np.asfortranarray(array)]),
        lambda: flat[::-1].reshape(array.shape),
        lambda: np.roll(flat, at).reshape(array.shape),
        lambda: np.full_like(array, draw.choice([0, 1, 127])),
        lambda: random.integers(0, draw.choice([2, 8, max(1, size), 2**30]), array.shape).astype(array.dtype),
    ]
    with np.errstate(all="ignore"):
        return draw.choice(changes)()


def _with_element(draw: Draw, flat: np.ndarray) -> np.ndarray:
    if flat.size == 0:
        return np.ones(1, flat.dtype)
    at, other = draw.below(flat.size), flat[draw.below(flat.size)]
    near: tuple[Any, ...] = _REALS
    if flat.dtype.kind != "f":
        near = (int(flat[at]) + 1, int(flat[at]) - 1, int(other), flat.size, *_INTEGERS)
    flat[at] = np.array(draw.choice(near)).astype(flat.dtype)
    return flat


def _npy(draw: Draw, content: bytes) -> bytes:
    """Changes an array, or the text of its head."""
    if draw.below(6) == 0:
        end = content.index(b"\n") + 1
        head = content[10:end]
        values = {
            rb"'[<>|=]?\w+'": b"'%s'" % draw.choice(_TYPES).encode(), rb"\d+": draw.choice(NUMBERS).encode(),
            rb"True|False": b"True", rb"\(.*\)": b"(%s,)" % draw.choice(NUMBERS).encode(),
        }  # fmt: skip
        word = draw.choice(list(values))
        head = re.sub(word, lambda _: values[word], head, count=1)
        return content[:8] + struct.pack("<H", len(head) % 2**16) + head + content[end:]
    array = mutate_array(draw, np.load(io.BytesIO(content), allow_pickle=False))
    file = io.BytesIO()
    np.save(file, array, allow_pickle=True)
    return file.getvalue()


def _archive(draw: Draw, content: bytes) -> bytes:
    """Changes an array of an archive; the checksum is made again."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = draw.choice(sorted(members))
    if draw.chance(0.1):
        del members[name]
    else:
        members[name] = _npy(draw, members[name]) if draw.chance(0.8) else mutate_bytes(draw, members[name])
    return _zipped(list(members.items()), draw.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]))


def _members(draw: Draw, content: bytes) -> bytes:
    """Repeats or adds members, compresses otherwise, or changes what the archive promises."""
    kind = draw.below(4)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    if kind == 0:
        members.append(draw.choice(members))
        return _zipped(members, zipfile.ZIP_STORED)
    if kind == 1:
        return _zipped(members, draw.choice([zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]))
    if kind == 2:
        name, data = draw.choice(members)
        end = data.index(b"\n") + 1
        members = [(n, d if n != name else data[:end] + b"\0" * 5_000_000) for n, d in members]
        return _zipped(members, zipfile.ZIP_DEFLATED)
    data = bytearray(content)
    found = [match.start() for match in re.finditer(b"PK\x01\x02", content)]
    at = draw.choice(found) + draw.choice([8, 10, 16, 20, 24, 28, 30, 42])
    data[at : at + 4] = draw.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\1\0\0\0", b"\0\0\0\x40"])
    return bytes(data)


def _zipped(members: list[tuple[str, bytes]], method: int) -> bytes:
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of names that come twice
        with zipfile.ZipFile(file, "w", method) as archive:
            for name, data in members:
                archive.writestr(name, data)
    return file.getvalue()
