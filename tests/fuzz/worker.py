"""Runs cases in forked processes, so that one that crashes, hangs or eats memory is found and named."""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import pickle
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.fuzz.common import Case, Counts, Draw, FailedCallError, Failure, Trial

_MOST_CHOICES = 1 << 16
_HEAD = 8  # words before the choices: case, choices, bytes of text, and three counts
_TEXT_BYTES = 1 << 16
#: Failures after which a run ends. `python -m tests.fuzz --keep-going` sets a larger number.
most_failures = 1
_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Limits:
    """What a case may take.

    Attributes:
        case_seconds: wall time of a case.
        batch_seconds: wall time after which a process is replaced by a fresh one.
        memory: bytes that a process may have beyond those that it begins with.
    """

    case_seconds: float = 60.0
    batch_seconds: float = 10.0
    memory: int = 2 << 30


class _Shared:
    """What a process notes of its case in memory that outlives it: a sequence of choices, and calls."""

    def __init__(self) -> None:
        self.words = memoryview(mmap.mmap(-1, 8 * (_MOST_CHOICES + _HEAD))).cast("q")
        self.text = mmap.mmap(-1, _TEXT_BYTES)

    def begin(self, case: int) -> None:
        self.words[0], self.words[1], self.words[2] = case, 0, 0

    def count(self, counts: Counts) -> None:
        self.words[3], self.words[4], self.words[5] = counts.cases, counts.calls, counts.accepted

    @property
    def case(self) -> int:
        return self.words[0]

    def __len__(self) -> int:
        return self.words[1]

    def append(self, value: int) -> None:
        at = self.words[1]
        if at >= _MOST_CHOICES:
            raise RuntimeError("the case draws too much")
        self.words[_HEAD + at] = value
        self.words[1] = at + 1

    def note(self, label: str) -> None:
        """Notes a call; beyond the size of the memory the last ones replace each other."""
        line = label.encode(errors="replace")[:2000] + b"\n"
        begin = self.words[2] if self.words[2] + len(line) <= _TEXT_BYTES else 0
        self.text[begin : begin + len(line)] = line
        self.words[2] = begin + len(line)

    def failure(self, name: str, seed: int, kind: str, message: str) -> Failure:
        choices = self.words[_HEAD : _HEAD + len(self)].tolist()
        calls = self.text[: self.words[2]].decode(errors="replace").splitlines()
        return Failure(name, kind, message, seed, self.case, choices, calls)


@dataclass(frozen=True)
class Generator:
    """A generator of random cases.

    Attributes:
        name: its name.
        case: makes one case. Case number i of a run depends on (name, seed, i) alone.
        limits: what a case may take.
        around: what is entered around each run, before processes are forked.
    """

    name: str
    case: Case
    limits: Limits = Limits()
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext

    def run(self, seed: int, seconds: float | None = None, count: int | None = None) -> Counts:
        """Runs random cases until a time or a number of calls is reached, or one fails.

        Args:
            seed: of the random choices.
            seconds: wall time; None: no limit.
            count: calls; None: no limit.
        """
        shared, total, number = _Shared(), Counts(), 0
        end = None if seconds is None else time.monotonic() + seconds
        with self.around():
            while len(total.failures) < most_failures:
                left = self.limits.batch_seconds
                left = left if end is None else min(left, end - time.monotonic())
                if left <= 0 or (count is not None and total.calls >= count):
                    break

                def work(counts: Counts, first: int = number) -> Iterator[None]:
                    at = first
                    while count is None or total.calls + counts.calls < count:
                        self._run_one(seed, at, None, shared, counts)
                        at += 1
                        yield

                shared.count(Counts())
                total.add(self._forked(work, seed, shared, replace(self.limits, batch_seconds=left)))
                number = shared.case + 1
        return total

    def replay(self, choices: Sequence[int]) -> Counts:
        """Runs one case from the choices that it drew; its seed plays no part."""
        shared = _Shared()

        def work(counts: Counts) -> Iterator[None]:
            self._run_one(0, 0, choices, shared, counts)
            yield

        with self.around():
            return self._forked(work, 0, shared, self.limits)

    def reduce(self, failure: Failure, seconds: float) -> Failure:
        """Looks for fewer and smaller choices by which a case fails in the same way."""
        end = time.monotonic() + seconds
        best = failure

        def better(choices: list[int]) -> bool:
            nonlocal best
            if time.monotonic() > end or (len(choices), choices) >= (len(best.choices), best.choices):
                return False
            found = self.replay(choices).failures
            if not found or found[0].signature != failure.signature:
                return False
            best = replace(found[0], seed=failure.seed, case=failure.case)
            return True

        changed = True
        while changed and time.monotonic() < end:
            changed = False
            for size in (64, 16, 8, 4, 2, 1):
                at = 0
                while at < len(best.choices) and time.monotonic() < end:
                    if better(best.choices[:at] + best.choices[at + size :]):
                        changed = True
                    else:
                        at += size
            at = 0
            while at < len(best.choices):
                old = best.choices[at]
                smaller = (value for value in (0, 1, old // 2, old - 1) if 0 <= value < old)
                if any(better([*best.choices[:at], value, *best.choices[at + 1 :]]) for value in smaller):
                    changed = True
                at += 1
        return best

    def _run_one(
        self, seed: int, case: int, choices: Sequence[int] | None, shared: _Shared, counts: Counts
    ) -> None:
        """Runs one case in this process; a failure is added to the counts."""
        shared.begin(case)
        try:
            draw = Draw(f"{self.name}/{seed}/{case}", choices, shared)
            self.case(Trial(draw, counts, SimpleNamespace(append=shared.note)))
            counts.cases += 1
        except FailedCallError as error:
            counts.failures.append(shared.failure(self.name, seed, error.kind, str(error)))
        except Exception as error:  # of the generator itself
            message = "".join(traceback.format_exception(error)[-4:])
            counts.failures.append(shared.failure(self.name, seed, "generator", message))
        shared.count(counts)

    def _forked(
        self, work: Callable[[Counts], Iterator[None]], seed: int, shared: _Shared, limits: Limits
    ) -> Counts:
        """Runs `work(counts)`, an iterator over cases, in a forked process."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            counts = Counts()
            _child(work(counts), counts, writing, limits)
        os.close(writing)
        try:
            found, kind, message = _watch(pid, reading, shared, limits)
        finally:
            os.close(reading)
        if found is None:  # calls that were refused are not known
            found = Counts(*shared.words[3:6].tolist())
            found.failures.append(shared.failure(self.name, seed, kind, message))
        return found


def _child(work: Iterator[None], counts: Counts, pipe: int, limits: Limits) -> None:
    code = 1
    try:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        size = _pages("self", 0) * _PAGE
        resource.setrlimit(resource.RLIMIT_AS, (size + 2 * limits.memory,) * 2)
        end = time.monotonic() + limits.batch_seconds
        for _ in work:
            if len(counts.failures) >= most_failures or time.monotonic() > end:
                break
        with os.fdopen(pipe, "wb") as out:
            pickle.dump(counts, out)
        code = 0
    except BaseException as error:
        traceback.print_exception(error)
    finally:
        os._exit(code)


def _pages(process: int | str, which: int) -> int:
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[which])
    except (OSError, IndexError):  # it has ended
        return 0


def _watch(pid: int, pipe: int, shared: _Shared, limits: Limits) -> tuple[Counts | None, str, str]:
    """Waits for a process. Returns its counts, or None and how it failed (kind, message)."""
    base = _pages("self", 1) * _PAGE
    received, case, since = b"", shared.case, time.monotonic()
    failed: tuple[str, str] | None = None
    while failed is None:
        ready, _, _ = select.select([pipe], [], [], 0.2)
        if ready:
            if part := os.read(pipe, 1 << 16):
                received += part
                continue
            break
        if shared.case != case:
            case, since = shared.case, time.monotonic()
        if time.monotonic() - since > limits.case_seconds:
            failed = "hang", f"no end after {limits.case_seconds:g} s"
        elif _pages(pid, 1) * _PAGE - base > limits.memory:
            failed = "memory", f"more than {limits.memory >> 20} MiB"
    if failed:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    if failed:
        return None, *failed
    if os.WIFSIGNALED(status):
        return None, "crash", signal.Signals(os.WTERMSIG(status)).name
    if os.WEXITSTATUS(status) or not received:
        return None, "crash", f"the process ended with code {os.WEXITSTATUS(status)}"
    return pickle.loads(received), "", ""
