"""Runs cases in forked processes, so that one that crashes, hangs or eats memory is found and named."""

from __future__ import annotations

import faulthandler
import mmap
import os
import pickle
import resource
import select
import signal
import time
import traceback
from collections.abc import Iterator, MutableSequence, Sequence
from dataclasses import dataclass
from pathlib import Path
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


class _Shared(MutableSequence[int]):
    """What a process notes of its case in memory that outlives it: a sequence of choices, and calls."""

    def __init__(self) -> None:
        size = 8 * (_MOST_CHOICES + _HEAD)
        self.words = memoryview(mmap.mmap(-1, size)).cast("q")
        self.text = mmap.mmap(-1, _TEXT_BYTES)

    def begin(self, case: int) -> None:
        self.words[0], self.words[1], self.words[2] = case, 0, 0

    def count(self, counts: Counts) -> None:
        self.words[3], self.words[4], self.words[5] = counts.cases, counts.calls, counts.accepted

    def counted(self) -> Counts:
        """The counts of a process that did not end by itself, but for the calls that were refused."""
        return Counts(*self.words[3:6].tolist())

    @property
    def case(self) -> int:
        return self.words[0]

    def __len__(self) -> int:
        return self.words[1]

    def __getitem__(self, at: Any) -> Any:
        return self.words[_HEAD : _HEAD + self.words[1]].tolist()[at]

    def __setitem__(self, at: Any, value: Any) -> None:
        raise TypeError("choices do not change")

    __delitem__ = insert = __setitem__  # type: ignore[assignment]

    def append(self, value: int) -> None:
        at = self.words[1]
        if at >= _MOST_CHOICES:
            raise RuntimeError("the case draws too much")
        self.words[_HEAD + at] = value
        self.words[1] = at + 1


class _Calls:
    """The calls of a case as texts in shared memory; beyond its size the last ones replace each other."""

    def __init__(self, shared: _Shared) -> None:
        self._shared = shared

    def append(self, label: str) -> None:
        line = label.encode(errors="replace")[:2000] + b"\n"
        begin = self._shared.words[2]
        if begin + len(line) > _TEXT_BYTES:
            begin = 0
        self._shared.text[begin : begin + len(line)] = line
        self._shared.words[2] = begin + len(line)

    def as_list(self) -> list[str]:
        return self._shared.text[: self._shared.words[2]].decode(errors="replace").splitlines()


def _seed_of(name: str, seed: int, case: int) -> str:
    return f"{name}/{seed}/{case}"


def _run_one(
    name: str, run: Case, seed: int, case: int, choices: Sequence[int] | None, shared: _Shared, counts: Counts
) -> None:
    """Runs one case in this process; a failure is added to the counts."""
    shared.begin(case)
    calls = _Calls(shared)
    try:
        run(Trial(Draw(_seed_of(name, seed, case), choices, shared), counts, calls))
        counts.cases += 1
    except FailedCallError as error:
        counts.failures.append(
            Failure(name, error.kind, str(error), seed, case, list(shared), calls.as_list())
        )
    except Exception as error:  # of the generator itself
        message = "".join(traceback.format_exception(error)[-4:])
        counts.failures.append(Failure(name, "generator", message, seed, case, list(shared), calls.as_list()))
    shared.count(counts)


def _child(work: Iterator[None], counts: Counts, pipe: int, limits: Limits) -> None:
    """The forked process: runs cases, sends its counts, and ends without the parent's exit handlers."""
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
    """Pages of memory of a process: all that it has addresses of (0), or those in use (1)."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[which])
    except (OSError, IndexError):  # it has ended
        return 0


def _watch(pid: int, pipe: int, shared: _Shared, limits: Limits) -> tuple[Counts | None, str, str]:
    """Waits for a process. Returns its counts, or None and how it failed (kind, message)."""
    base = _pages("self", 1) * _PAGE
    received, case, since = b"", shared.case, time.monotonic()
    failed: tuple[str, str] | None = None
    while True:
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
            break
    _, status = os.waitpid(pid, 0)
    if failed:
        return None, *failed
    if os.WIFSIGNALED(status):
        return None, "crash", signal.Signals(os.WTERMSIG(status)).name
    if os.WEXITSTATUS(status) or not received:
        return None, "crash", f"the process ended with code {os.WEXITSTATUS(status)}"
    return pickle.loads(received), "", ""


def _forked(work: Any, shared: _Shared, limits: Limits) -> tuple[Counts | None, str, str]:
    """Runs `work(counts)`, an iterator over cases, in a forked process."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        counts = Counts()
        _child(work(counts), counts, writing, limits)
    os.close(writing)
    try:
        return _watch(pid, reading, shared, limits)
    finally:
        os.close(reading)


def run_cases(
    name: str,
    run: Case,
    seed: int,
    seconds: float | None = None,
    count: int | None = None,
    limits: Limits = Limits(),
) -> Counts:
    """Runs random cases until a time or a number of calls is reached, or one fails.

    Args:
        name: of the generator.
        run: the case.
        seed: of the random choices; case number i depends on (name, seed, i) alone.
        seconds: wall time; None: no limit.
        count: calls; None: no limit.
        limits: what a case may take.
    """
    shared, total, number = _Shared(), Counts(), 0
    end = None if seconds is None else time.monotonic() + seconds
    while len(total.failures) < most_failures:
        left = limits.batch_seconds if end is None else min(limits.batch_seconds, end - time.monotonic())
        if left <= 0 or (count is not None and total.calls >= count):
            break

        def work(counts: Counts, first: int = number) -> Iterator[None]:
            at = first
            while count is None or total.calls + counts.calls < count:
                _run_one(name, run, seed, at, None, shared, counts)
                at += 1
                yield

        shared.count(Counts())
        batch = Limits(limits.case_seconds, left, limits.memory)
        counts, kind, message = _forked(work, shared, batch)
        if counts is None:
            calls = _Calls(shared).as_list()
            total.add(shared.counted())
            total.failures.append(Failure(name, kind, message, seed, shared.case, list(shared), calls))
        else:
            total.add(counts)
        number = shared.case + 1
    return total


def replay(name: str, run: Case, choices: Sequence[int], limits: Limits = Limits()) -> Counts:
    """Runs one case from its choices; its seed plays no part."""
    shared = _Shared()

    def work(counts: Counts) -> Iterator[None]:
        _run_one(name, run, 0, 0, choices, shared, counts)
        yield

    counts, kind, message = _forked(work, shared, limits)
    if counts is not None:
        return counts
    calls = _Calls(shared).as_list()
    return Counts(failures=[Failure(name, kind, message, 0, 0, list(shared), calls)])


def reduce(run: Case, failure: Failure, seconds: float, limits: Limits = Limits()) -> Failure:
    """Looks for fewer and smaller choices by which a case fails in the same way."""
    end = time.monotonic() + seconds
    best = failure

    def better(choices: list[int]) -> bool:
        nonlocal best
        if time.monotonic() > end or (len(choices), choices) >= (len(best.choices), best.choices):
            return False
        found = replay(failure.generator, run, choices, limits).failures
        if not found or found[0].signature != failure.signature:
            return False
        found[0].seed, found[0].case = failure.seed, failure.case
        best = found[0]
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
        for at in range(len(best.choices)):
            if at >= len(best.choices):
                break
            for smaller in (0, 1, best.choices[at] // 2, best.choices[at] - 1):
                if 0 <= smaller < best.choices[at] and better(
                    [*best.choices[:at], smaller, *best.choices[at + 1 :]]
                ):
                    changed = True
                    break
    return best
