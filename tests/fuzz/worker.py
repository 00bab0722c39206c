"""Runs cases in forked processes, so that one that crashes, hangs or eats memory is found and named."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import multiprocessing
import os
import resource
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from multiprocessing.sharedctypes import RawValue
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.fuzz.common import Case, Counts, Draw, FailedCallError, Failure, Trial

_MOST_CHOICES = 1 << 16
_TEXT_BYTES = 1 << 16
_FORK = multiprocessing.get_context("fork")
#: Failures after which a run ends. `python -m tests.fuzz --keep-going` sets a larger number.
most_failures = 1


class _Shared(ctypes.Structure):
    """What a process notes of its case in memory that outlives it: choices, calls, and counts."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in ("case", "size", "written", "cases", "calls", "accepted")),
        ("choices", ctypes.c_int64 * _MOST_CHOICES),
        ("text", ctypes.c_ubyte * _TEXT_BYTES),
    ]

    def __len__(self) -> int:
        return self.size

    def append(self, value: int) -> None:
        if self.size >= _MOST_CHOICES:
            raise RuntimeError("the case draws too much")
        self.choices[self.size] = value
        self.size += 1

    def note(self, label: str) -> None:
        """Notes a call; beyond the size of the memory the last ones replace each other."""
        line = label.encode(errors="replace")[:2000] + b"\n"
        begin = self.written if self.written + len(line) <= _TEXT_BYTES else 0
        self.written = begin + len(line)
        self.text[begin : self.written] = line

    def count(self, counts: Counts) -> None:
        self.cases, self.calls, self.accepted = counts.cases, counts.calls, counts.accepted

    def failure(self, name: str, seed: int, kind: str, message: str) -> Failure:
        calls = bytes(self.text[: self.written]).decode(errors="replace").splitlines()
        return Failure(name, kind, message, seed, self.case, self.choices[: self.size], calls)


@dataclass(frozen=True)
class Generator:
    """A generator of random cases.

    Attributes:
        name: its name.
        case: makes one case. Case number i of a run depends on (name, seed, i) alone.
        around: what is entered around each run, before processes are forked.
        case_seconds: wall time that a case may take.
        batch_seconds: wall time after which a process is replaced by a fresh one.
        memory: bytes that a process may have beyond those that it begins with.
    """

    name: str
    case: Case
    around: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    case_seconds: float = 60.0
    batch_seconds: float = 10.0
    memory: int = 2 << 30

    def run(self, seed: int, seconds: float | None = None, count: int | None = None) -> Counts:
        """Runs random cases until a time or a number of calls is reached, or one fails."""
        shared, total, number = RawValue(_Shared), Counts(), 0
        end = None if seconds is None else time.monotonic() + seconds
        with self.around():
            while len(total.failures) < most_failures:
                left = self.batch_seconds if end is None else min(self.batch_seconds, end - time.monotonic())
                if left <= 0 or (count is not None and total.calls >= count):
                    break

                def work(counts: Counts, first: int = number) -> Iterator[None]:
                    at = first
                    while count is None or total.calls + counts.calls < count:
                        self._run_one(seed, at, None, shared, counts)
                        at += 1
                        yield

                shared.count(Counts())
                total.add(self._forked(work, seed, shared, left))
                number = shared.case + 1
        return total

    def replay(self, choices: Sequence[int]) -> Counts:
        """Runs one case from the choices that it drew; its seed plays no part."""
        shared = RawValue(_Shared)

        def work(counts: Counts) -> Iterator[None]:
            self._run_one(0, 0, choices, shared, counts)
            yield

        with self.around():
            return self._forked(work, 0, shared, self.batch_seconds)

    def reduce(self, failure: Failure, seconds: float) -> Failure:
        """Looks for fewer and smaller choices by which a case fails in the same way."""
        end, best, changed = time.monotonic() + seconds, failure, True

        def fails_with(choices: list[int]) -> None:
            nonlocal best, changed
            if time.monotonic() > end or (len(choices), choices) >= (len(best.choices), best.choices):
                return
            found = self.replay(choices).failures
            if found and found[0].signature == failure.signature:
                best, changed = replace(found[0], seed=failure.seed, case=failure.case), True

        while changed:
            changed = False
            for size in (64, 16, 8, 4, 2, 1):
                for at in reversed(range(0, len(best.choices), size)):
                    fails_with(best.choices[:at] + best.choices[at + size :])
            for at in range(len(best.choices)):
                for smaller in (lambda old: 0, lambda old: 1, lambda old: old // 2, lambda old: old - 1):
                    if at < len(best.choices) and (value := smaller(best.choices[at])) >= 0:
                        fails_with([*best.choices[:at], value, *best.choices[at + 1 :]])
        return best

    def _run_one(
        self, seed: int, case: int, choices: Sequence[int] | None, shared: _Shared, counts: Counts
    ) -> None:
        """Runs one case in this process; a failure is added to the counts."""
        shared.case, shared.size, shared.written = case, 0, 0
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
        self, work: Callable[[Counts], Iterator[None]], seed: int, shared: _Shared, seconds: float
    ) -> Counts:
        """Runs `work(counts)`, an iterator over cases, in a forked process for some seconds."""
        receiving, sending = _FORK.Pipe(duplex=False)
        process = _FORK.Process(target=_child, args=(work, sending, seconds, self.memory))
        base, case, since = _memory_of("self")[1], shared.case, time.monotonic()
        process.start()
        sending.close()
        failed: tuple[str, str] | None = None
        while failed is None and not receiving.poll(0.2):
            if shared.case != case:
                case, since = shared.case, time.monotonic()
            if time.monotonic() - since > self.case_seconds:
                failed = "hang", f"no end after {self.case_seconds:g} s"
            elif _memory_of(process.pid)[1] - base > self.memory:
                failed = "memory", f"more than {self.memory >> 20} MiB"
        try:
            if failed is None:
                return receiving.recv()
        except EOFError:
            pass
        finally:
            receiving.close()
            if failed is not None:
                process.kill()
            process.join()
        if failed is None:
            code = process.exitcode or 0
            failed = "crash", signal.Signals(-code).name if code < 0 else f"it ended with code {code}"
        found = Counts(shared.cases, shared.calls, shared.accepted)  # calls that were refused are not known
        found.failures.append(shared.failure(self.name, seed, *failed))
        return found


def _child(work: Callable[[Counts], Iterator[None]], pipe: Connection, seconds: float, memory: int) -> None:
    counts, end = Counts(), time.monotonic() + seconds
    faulthandler.disable()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (_memory_of("self")[0] + 2 * memory,) * 2)
    for _ in work(counts):
        if len(counts.failures) >= most_failures or time.monotonic() > end:
            break
    pipe.send(counts)
    os._exit(0)  # without what the interpreter does at its end


def _memory_of(process: int | str | None) -> tuple[int, int]:
    """Returns the bytes that a process has mapped, and those in memory that no file has.

    A forked process maps pages of files anew when it reads them: with these it would begin below its parent.
    """
    try:
        mapped, resident, of_files = map(int, Path(f"/proc/{process}/statm").read_text().split()[:3])
    except (OSError, ValueError):  # it has ended
        return 0, 0
    page = os.sysconf("SC_PAGE_SIZE")
    return page * mapped, page * (resident - of_files)
