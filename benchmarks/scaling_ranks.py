"""Processes of one host that run a benchmark's jobs together, one process for each device."""

from __future__ import annotations

import gc
import os
import queue
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from gnnsparse.distributed.training import Peers, group_options

__all__ = ["JobError", "Place", "Ranks"]

#: Seconds that ranks have to end by themselves, and to say that they failed too after one of them has.
_GRACE, _FAILING = 15.0, 2.0


class JobError(Exception):
    """A job failed on a rank; the message is its last line, or says that time was up."""


@dataclass(frozen=True)
class Place:
    """Where a job runs.

    Attributes:
        rank: the number of this process.
        ranks: how many processes have the job.
        device: the device of this process.
        peers: the processes that have the job; None: it is this one alone.
    """

    rank: int
    ranks: int
    device: torch.device
    peers: Peers | None


def _groups(rank: int, counts: tuple[int, ...], backend: str) -> dict[int, Peers | None]:
    """Make the groups of the first n processes, for each count n. All processes call it."""
    found: dict[int, Peers | None] = {1: None}  # what a benchmark asks of one process
    for count in counts:
        if count == 1:
            continue
        members = list(range(count))
        control = dist.new_group(members, backend="gloo")
        group = control
        if backend != "gloo":
            group = dist.new_group(members, backend=backend, pg_options=group_options(backend))
        if rank < count:
            found[count] = Peers(rank, count, group, control)
    return found


def _serve(
    rank: int, world: int, counts: tuple[int, ...], kind: str, file: str, inbox: Any, outbox: Any
) -> None:
    device = torch.device(kind if kind == "cpu" else f"cuda:{rank}")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // world))
    dist.init_process_group("gloo", store=dist.FileStore(file, world), rank=rank, world_size=world)
    groups = _groups(rank, counts, "nccl" if device.type == "cuda" else "gloo")
    while (job := inbox.get()) is not None:
        count, function, args = job
        problem, result = None, None
        try:
            result = function(Place(rank, count, device, groups[count]), *args)
        except BaseException as error:
            problem = traceback.format_exception_only(error)[-1].strip()[:500]
            if not isinstance(error, (torch.OutOfMemoryError, ValueError)):
                traceback.print_exc()
        outbox.put((rank, problem, result))
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    dist.destroy_process_group()


class Ranks:
    """Processes that start once and run jobs until they are closed; after a failure they start anew.

    Args:
        counts: the numbers of processes that jobs will have.
        kind: "cuda": each has a GPU, and they exchange data by NCCL; "cpu": by gloo.
    """

    def __init__(self, counts: list[int], kind: str) -> None:
        self._counts, self._world, self._kind = tuple(sorted(set(counts))), max(counts), kind
        self._context = mp.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        self._starts = 0
        self._processes: list[Any] = []
        self._inboxes: list[Any] = []
        self._outbox: Any = None

    def _start(self) -> None:
        self._starts += 1
        store = str(Path(self._folder.name) / f"store{self._starts}")
        self._outbox = self._context.Queue()
        self._inboxes = [self._context.Queue() for _ in range(self._world)]
        for rank, inbox in enumerate(self._inboxes):
            args = (rank, self._world, self._counts, self._kind, store, inbox, self._outbox)
            self._processes.append(self._context.Process(target=_serve, args=args, daemon=True))
            self._processes[-1].start()

    def run(self, count: int, function: Callable[..., Any], *args: Any, limit: float = 300.0) -> list[Any]:
        """Call function(place, *args) on the first `count` processes; returns what each of them returned.

        Raises:
            JobError: it failed on one of them, one of them ended, or it took longer than `limit` seconds. The
                processes are ended then, since what they still exchange may belong to the failed call.
        """
        if not self._processes:
            self._start()
        for inbox in self._inboxes[:count]:
            inbox.put((count, function, args))
        found: list[Any] = [None] * count
        problems, until = [], time.monotonic() + limit
        for done in range(count):
            try:
                rank, problem, found_here = self._answer(until)
            except TimeoutError:
                # What a rank that was killed leaves is an error of each rank that waits for it.
                problems = [*self._ended(), *problems, f"{count - done} of {count} ranks did not end"]
                break
            found[rank] = found_here
            if problem is not None:
                problems.append(f"rank {rank}: {problem}")
                until = min(until, time.monotonic() + _FAILING)
        if problems:
            self.stop(0.0)
            raise JobError("; ".join(problems[:2]))  # others fail by the first one
        return found

    def _ended(self) -> list[str]:
        """Return which processes have ended, and how."""
        codes = ((rank, process.exitcode) for rank, process in enumerate(self._processes))
        return [f"rank {rank} ended with status {code}" for rank, code in codes if code not in (None, 0)]

    def _answer(self, until: float) -> Any:
        while (left := until - time.monotonic()) > 0:
            try:
                return self._outbox.get(timeout=min(left, 1.0))
            except queue.Empty:
                if self._ended():
                    until = min(until, time.monotonic() + _FAILING)
        raise TimeoutError

    def stop(self, grace: float = _GRACE) -> None:
        """End the processes, by force those that have not ended by themselves after some seconds."""
        for inbox in self._inboxes:
            inbox.put(None)
        until = time.monotonic() + grace
        for process in self._processes:
            process.join(max(until - time.monotonic(), 0.0))
            if process.is_alive():
                process.kill()
                process.join()
        self._processes, self._inboxes = [], []

    def close(self) -> None:
        """End the processes and remove what they shared."""
        self.stop()
        self._folder.cleanup()
