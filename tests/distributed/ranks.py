"""Processes that tests of several ranks share: they start once, and run one function after the other."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

#: Number of processes; checks run on the first two as well.
WORLD = 3
#: Seconds after which a check that has not ended is a failure: a rank waits for another one in vain.
LIMIT = 120.0


def _serve(rank: int, world: int, backend: str, folder: str, inbox: Any, outbox: Any) -> None:
    torch.set_num_threads(1)
    if backend == "nccl":
        torch.cuda.set_device(rank)
    store = dist.FileStore(str(Path(folder) / "store"), world)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    groups = {2: dist.new_group([0, 1]), world: dist.group.WORLD}
    while (job := inbox.get()) is not None:
        function, size, args = job
        try:
            outbox.put((rank, None, function(groups[size], *args)))
        except BaseException:
            outbox.put((rank, traceback.format_exc(), None))
    dist.destroy_process_group()


class Ranks:
    """Processes with a group for all of them, and one for the first two."""

    def __init__(self, world: int = WORLD, backend: str = "gloo") -> None:
        context = mp.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        self._outbox = context.Queue()
        self._inboxes = [context.Queue() for _ in range(world)]
        before = os.environ.get("OMP_NUM_THREADS")
        os.environ["OMP_NUM_THREADS"] = "1"
        self._processes = [
            context.Process(
                target=_serve,
                args=(rank, world, backend, self._folder.name, inbox, self._outbox),
                daemon=True,
            )
            for rank, inbox in enumerate(self._inboxes)
        ]
        for process in self._processes:
            process.start()
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before

    def run(self, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Calls function(group, *args) on the first `size` ranks; returns what each of them returned."""
        for inbox in self._inboxes[:size]:
            inbox.put((function, size, args))
        found: list[Any] = [None] * size
        problems = []
        for _ in range(size):
            rank, problem, result = self._outbox.get(timeout=LIMIT)
            found[rank] = result
            if problem is not None:
                problems.append(f"rank {rank}:\n{problem}")
        assert not problems, "\n".join(problems)
        return found

    def close(self) -> None:
        for inbox in self._inboxes:
            inbox.put(None)
        for process in self._processes:
            process.join(20)
            if process.is_alive():
                process.kill()
        self._folder.cleanup()
