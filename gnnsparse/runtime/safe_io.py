"""Opening of files that others wrote: regular files only, bounded, with one form of error."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import json
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from gnnsparse.errors import bad_value, check_memory

#: Exceptions that reading a damaged file raises, in addition to ValueError.
_DAMAGED = (
    EOFError, NotImplementedError, OverflowError, RecursionError, gzip.BadGzipFile, struct.error,
    zipfile.BadZipFile, zlib.error,
)  # fmt: skip
#: Bytes of memory for each byte of a JSON file.
_JSON_FACTOR = 12
#: The most bytes that one byte of deflated data stands for.
MAX_DEFLATE = 1032


@contextlib.contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Make errors in a `with` block that reads a file name it; a malformed or damaged one is a ValueError."""
    try:
        yield
    except _DAMAGED as error:
        raise ValueError(f"{path}: is damaged ({type(error).__name__}: {str(error)[:300]})") from error
    except OSError as error:
        if error.errno in (None, errno.EINVAL):  # a damaged archive names a place before its beginning
            raise ValueError(f"{path}: is damaged ({error})") from error
        error.filename = os.fspath(path)
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    except MemoryError as error:
        raise MemoryError(f"{path}: {error or 'what it holds needs more memory than there is'}") from error
    except RuntimeError as error:
        if "allocate memory" not in str(error):  # torch's error has no type of its own on the CPU
            raise
        raise MemoryError(f"{path}: what it holds needs more memory than there is ({error})") from error


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file to read its bytes; ValueError for a pipe, a device or a socket, else OSError."""
    # Without waiting for a pipe's writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode):
            raise ValueError(f"{path}: is a pipe, a device or a socket; accepted: a regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def check_inflated(name: str, nbytes: int, stored: int) -> None:
    """Raise if `nbytes` can't come from `stored` bytes of deflated data, or don't fit into memory."""
    if nbytes > MAX_DEFLATE * stored + MAX_DEFLATE:
        bad_value(
            name, f"promises {nbytes} bytes in {stored} bytes of the file; accepted: what they can hold"
        )
    check_memory(name, nbytes, f"an array of {nbytes} bytes")


@contextlib.contextmanager
def open_text(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a text, decompressed if its name ends in `.gz`, and yield it and the most bytes it can hold."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=file) as text:
                yield io.BufferedReader(text, 2**16), MAX_DEFLATE * size
        else:
            yield file, size


def read_small(path: Path, limit: int) -> bytes:
    """Return the bytes of a regular file of at most `limit` bytes; raise ValueError or OSError."""
    with open_regular(path) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise ValueError(f"{path}: has more than {limit} bytes; accepted: at most {limit}")
    return content


def read_json(path: Path, limit: int = 2**26) -> Any:
    """Read a JSON file; raise a ValueError that names it, or an OSError, if it is none."""
    content = read_small(path, limit)
    with reading(path):
        check_memory("content", _JSON_FACTOR * len(content), f"a JSON file of {len(content)} bytes")
        return json.loads(content)
