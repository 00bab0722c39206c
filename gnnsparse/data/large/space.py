"""Room on disks: checks of what is free, and errors of a full disk that say what to do."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

__all__ = ["NoSpaceError", "check_space", "writing"]

#: Errors of the operating system that mean that there is no more room: on the disk, for this user, in a file.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class NoSpaceError(OSError):
    """A file system has no room for what has to be written; the message says how much is free and needed."""

    def __init__(self, message: str) -> None:
        super().__init__(errno.ENOSPC, message)

    def __str__(self) -> str:
        return str(self.strerror)

    def __reduce__(self) -> tuple[type[NoSpaceError], tuple[str]]:
        return NoSpaceError, (str(self),)


def check_space(folder: Path, nbytes: int, what: str) -> None:
    """Raises NoSpaceError if the file system of a folder has fewer free bytes than `what` takes."""
    free = shutil.disk_usage(folder).free
    if free < nbytes:
        raise NoSpaceError(
            f"folder: {folder} has {_size(free)} free, and {what} takes {_size(nbytes)}; "
            "accepted: a folder with more space"
        )


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Makes errors of a full disk inside a `with` block, in which a file is written, say what is full.

    Raises:
        NoSpaceError: there is no room for the file.
        OSError: it can't be written for another reason.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL or isinstance(error, NoSpaceError):
            raise
        free = shutil.disk_usage(path.parent).free
        raise NoSpaceError(
            f"folder: {path} can't be written ({error.strerror}), {_size(free)} are free; accepted: a folder "
            "with more space"
        ) from error


def _size(nbytes: int) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.1f} MB"
