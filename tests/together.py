"""Runs one function in several threads or processes at once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from launch.ranks import leave


def run_together(count: int, work: Callable[[int, threading.Barrier], None]) -> None:
    """Calls `work(number of the thread, barrier of all)` in `count` threads, and raises what one raises.

    Python changes threads as often as it can meanwhile.
    """
    barrier = threading.Barrier(count)

    def guarded(number: int) -> BaseException | None:
        try:
            work(number, barrier)
        except BaseException as problem:
            barrier.abort()
            return problem
        return None

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(count) as pool:
            problems = [problem for problem in pool.map(guarded, range(count)) if problem is not None]
    finally:
        sys.setswitchinterval(before)
    # What the others raise is that the barrier was broken.
    problems.sort(key=lambda problem: isinstance(problem, threading.BrokenBarrierError))
    if problems:
        raise problems[0]


def _in_group(rank: int, work: Callable[[int, str], None], folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    try:
        # In a function of its own: torch hangs now and then if a DDP model outlives its process group.
        work(rank, folder)
    finally:
        dist.destroy_process_group()
    # Gloo's threads stay alive after a DDP model was freed and the group destroyed.
    leave(0)


def in_two_processes(work: Callable[[int, str], None], folder: str) -> None:
    """Calls `work(rank, folder)` in two processes of a gloo group, and raises what one raises."""
    mp.spawn(_in_group, args=(work, folder), nprocs=2)
