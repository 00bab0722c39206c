"""Run folders: each belongs to one run, which its mark says, and no run writes over another one's files."""

from __future__ import annotations

import contextlib
import datetime
import errno
import fcntl
import itertools
import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

#: The file that marks a folder as that of a run. The process that creates it owns the folder.
MARK = "run.lock"
#: What else shows that a run, or a sweep, has used a folder.
_LEFT = ("result.json", "checkpoints", "logs", "multirun.yaml")


class RunFolderError(ValueError):
    """A run can't have a folder; the message says why."""


class RunFolderWarning(UserWarning):
    """A file of a run could not be written, and training went on without it."""


class RunFolder:
    """A folder that belongs to this run alone. Made by `claim`.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path, option: str, descriptor: int, created: bool) -> None:
        self.path, self._option = path, option
        self._descriptor: int | None = descriptor
        self._created = created
        self._made: list[Path] = []
        self._new: list[Path] = []
        self._removed: list[Path] = []

    @classmethod
    def claim(
        cls, path: Path, *, option: str = "folder", resume: Path | None = None, new: bool = False
    ) -> RunFolder:
        """Make a folder that of this run, and the folder itself if it is missing.

        Args:
            path: the folder.
            option: what messages call it.
            resume: the checkpoint that the run goes on from. If it is in the folder, the run may have the
                folder of the run before it, unless that is still running.
            new: whether the folder has to be a new one, whose name may get a number: see `make_new`.

        Raises:
            RunFolderError: another run has the folder, or it can't be written to.
        """
        goes_on = resume is not None and path.resolve() in resume.resolve().parents
        missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
        if new:
            path = make_new(path, option=option)
            missing = [path, *missing[1:]] if missing else [path]
        with _writing_to(path, option):
            path.mkdir(parents=True, exist_ok=True)  # it may be a file
            try:
                descriptor, created = _open_mark(path / MARK, goes_on)
            except FileExistsError:
                _refuse_used(path, option)
        folder = cls(path, option, descriptor, created)
        folder._new = missing
        try:
            with _writing_to(path, option):
                folder._lock()
                if created and not goes_on and any(os.path.lexists(path / name) for name in _LEFT):
                    _refuse_used(path, option)
                folder._sign()
        except RunFolderError:
            folder.release()
            raise
        return folder

    def _lock(self) -> None:
        """Lock the mark for as long as this process lives."""
        assert self._descriptor is not None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._created = False
            accepted = "another folder, or to wait until it has ended"
            problem = f"a run is writing to {self.path}; accepted: {accepted}"
            raise RunFolderError(f"{self._option}: {problem}") from None
        except OSError:
            pass  # a file system without locks: the mark alone keeps other runs away

    def _sign(self) -> None:
        assert self._descriptor is not None
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        line = f"started {now} on {socket.gethostname()} by process {os.getpid()}\n".encode()
        os.lseek(self._descriptor, 0, os.SEEK_END)
        while line:  # a disk that is nearly full takes a part
            line = line[os.write(self._descriptor, line) :]
        try:
            os.fsync(self._descriptor)  # a full disk shows now
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # a file system that can't
                raise

    def finish(self) -> None:
        """End the run: the folder stays marked, and a run that resumes this one may have it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def release(self) -> None:
        """Give the folder up, without what the run has made of it and in it: the run did not begin."""
        for tree in self._removed:
            shutil.rmtree(tree, ignore_errors=True)
        for made in self._made:
            with contextlib.suppress(OSError):  # it has files, or is gone
                while made != self.path:
                    made.rmdir()
                    made = made.parent
        if self._descriptor is not None and self._created:
            with contextlib.suppress(OSError):
                os.unlink(self.path / MARK)
        with contextlib.suppress(OSError):  # it has other files by now, or another run is beside it
            for made in self._new:
                made.rmdir()
        self.finish()

    def remove_on_release(self, name: str) -> None:
        """Note a folder in this folder that `release` removes with all that is in it."""
        self._removed.append(self.path / name)

    def check_space(self, nbytes: int, what: str) -> None:
        """Raise a RunFolderError if the file system has fewer free bytes than `what` takes."""
        free = shutil.disk_usage(self.path).free
        if free < nbytes:
            problem = f"{self.path} has {free / 1e6:.1f} MB free, and {what} take {nbytes / 1e6:.1f} MB"
            accepted = "a folder with more space, or trainer.checkpoint=false"
            raise RunFolderError(f"{self._option}: {problem}; accepted: {accepted}")

    def make(self, name: str) -> Path:
        """Make a folder in this folder, and return it, or raise RunFolderError."""
        made = self.path / name
        if not made.exists():
            self._made.append(made)
        with _writing_to(made, self._option):
            made.mkdir(parents=True, exist_ok=True)
        return made

    def keep_earlier(self, name: str) -> None:
        """Rename a file of an earlier run, as result.json to result-1.json, if there is one."""
        if (free := self.first_free(name)) != name:
            os.rename(self.path / name, self.path / free)

    def first_free(self, name: str) -> str:
        """Return a name that nothing in the folder has: this one, or one with a number."""
        path = self.path / name
        numbered = (f"{path.stem}-{number}{path.suffix}" for number in itertools.count(1))
        return next(n for n in itertools.chain([name], numbered) if not os.path.lexists(self.path / n))


def make_new(path: Path, *, option: str = "folder") -> Path:
    """Make and return `path`, or if it exists `path-2`, `path-3`, ...; raise RunFolderError if it fails."""
    with _writing_to(path, option):
        path.parent.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            candidate = path if number == 1 else path.with_name(f"{path.name}-{number}")
            with contextlib.suppress(FileExistsError):
                os.mkdir(candidate)
                return candidate
    raise AssertionError


def _open_mark(path: Path, may_exist: bool) -> tuple[int, bool]:
    """Return a descriptor of the mark, and whether it was created."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644), True
    except FileExistsError:
        if not may_exist:
            raise
    return os.open(path, flags), False


def _refuse_used(path: Path, option: str) -> NoReturn:
    try:
        mark = os.open(path / MARK, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        with open(mark, errors="replace") as file:
            when = " ".join(file.read(200).split("\n")[0].split())
    except (OSError, ValueError):
        when = ""
    accepted = "another folder, or resume= a checkpoint in it to go on with that run"
    raise RunFolderError(
        f"{option}: {path} is the folder of another run{', ' if when else ''}{when}; accepted: {accepted}"
    ) from None


@contextlib.contextmanager
def _writing_to(path: Path, option: str) -> Iterator[None]:
    """Raise a RunFolderError for an OSError inside a `with` block."""
    try:
        yield
    except OSError as error:
        problem = f"{path} can't be written to ({error.strerror or error})"
        raise RunFolderError(f"{option}: {problem}; accepted: a folder that can") from error
