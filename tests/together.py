"""Runs one function in several threads at once."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    """Python changes threads as often as it can inside a `with` block."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def run_together(count: int, work: Callable[[int, threading.Barrier], None]) -> None:
    """Calls `work(number of the thread, barrier of all)` in `count` threads, and raises what one raises."""
    barrier, problems = threading.Barrier(count), list[BaseException]()

    def guarded(number: int) -> None:
        try:
            work(number, barrier)
        except BaseException as problem:
            problems.append(problem)
            barrier.abort()

    threads = [threading.Thread(target=guarded, args=(number,)) for number in range(count)]
    with impatient():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    # What the others raise is that the barrier was broken.
    problems.sort(key=lambda problem: isinstance(problem, threading.BrokenBarrierError))
    if problems:
        raise problems[0]
