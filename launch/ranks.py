"""Runs on several devices: rank 0 is the process that the user started, and the others follow it.

Rank 0 reads the options, has the run's folder, writes and prints. It starts the other ranks itself, or
torchrun has started all of them. They get the options from it, train with it, and write and print nothing: an
error that ends one is rank 0's to report, in one line.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, NoReturn

from launch.console import refuse

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from gnnsparse.distributed.training import Peers
    from gnnsparse.train import Task

__all__ = ["Leader", "follow", "is_follower", "ranks_of"]

#: Environment variables by which torchrun, and rank 0, tell a process its place.
_PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
#: The key of the store under which a rank says why it ends.
_FAILED = "gnnsparse/failed"
#: The key under which rank 0 says how many threads each rank it has started may use.
_THREADS = "gnnsparse/threads"
#: Seconds between two looks at the other ranks, and that a rank has to end by itself after another one has.
_LOOK, _GRACE = 0.5, 10.0
#: Seconds that an exchange may take. Before the first one a rank may prepare a large graph.
_TIMEOUT = datetime.timedelta(minutes=30)
#: Set in processes that rank 0 has started: its number, to end with it.
_PARENT = "GNNSPARSE_LEADER"


def _under_torchrun() -> bool:
    """Return whether torchrun, or what sets the same variables, has started this process."""
    return _PARENT not in os.environ and all(name in os.environ for name in _PLACE)


def is_follower() -> bool:
    """Return whether this process is a rank other than 0."""
    return all(name in os.environ for name in _PLACE) and os.environ["RANK"] != "0"


def ranks_of(cfg: DictConfig, task: Task[Any, Any]) -> int:
    """Return the number of ranks of a run: torchrun's, or the option `trainer.devices`.

    Raises:
        ValueError: the option and torchrun say different numbers, torchrun started a sweep, or the task
            can't have several ranks.
    """
    from launch.sweeps import Sweep

    ranks = cfg.trainer.devices
    if _under_torchrun():
        started = int(os.environ["WORLD_SIZE"])
        if ranks not in (1, started):
            raise ValueError(f"trainer.devices: got {ranks}; accepted: {started}, as torchrun started them")
        ranks = started
        if ranks > 1 and Sweep.present is not None:
            raise ValueError("trainer.devices: torchrun starts one run; accepted with -m: trainer.devices=2")
    if ranks > 1 and not task.shared:
        raise ValueError(f"trainer.devices: got {ranks} for a data set of {task.name}s; accepted: 1")
    return ranks


def _store() -> Any:
    """Return the store by which ranks that rank 0 has started meet, which is rank 0's."""
    import torch.distributed as dist

    host, port, ranks = (os.environ[name] for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"))
    leads = os.environ["RANK"] == "0"
    kind: Any = dist  # whose stub lacks it
    return kind.TCPStore(host, int(port), int(ranks), leads, timeout=_TIMEOUT, wait_for_workers=False)


def _meet(store: Any) -> None:
    """Make the group of all ranks by a store; None: by torchrun's."""
    import torch.distributed as dist

    place: dict[str, Any] = {}
    if store is not None:
        place = {
            "store": store, "rank": int(os.environ["RANK"]), "world_size": int(os.environ["WORLD_SIZE"])
        }  # fmt: skip
    dist.init_process_group("gloo", timeout=_TIMEOUT, **place)


def _join(device_type: str) -> Peers:
    """Make the groups that data travel in."""
    import torch
    import torch.distributed as dist

    from gnnsparse.distributed.training import Peers, group_options

    control = dist.group.WORLD
    group = control
    if device_type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        options = group_options("nccl", _TIMEOUT)
        group = dist.new_group(backend="nccl", timeout=_TIMEOUT, pg_options=options)
    return Peers(dist.get_rank(), dist.get_world_size(), group, control)


class _Watch(threading.Thread):
    """Looks for a rank that has failed, and ends this process if it does not end by itself then.

    Args:
        others: the processes that this one has started, by rank.
        errors: what they print, by rank.
    """

    def __init__(self, others: dict[int, subprocess.Popen[bytes]], errors: dict[int, IO[bytes]]) -> None:
        super().__init__(daemon=True, name="ranks")
        self._others, self._errors = others, errors
        self._found, self._done = threading.Event(), threading.Event()
        self.problem: str | None = None

    def run(self) -> None:
        """Look until a rank has failed, or `finish` is called."""
        import torch.distributed as dist

        store = dist.distributed_c10d._get_default_store()
        while not self._done.wait(_LOOK):
            if (problem := self._look(store)) is not None:
                self.problem = problem
                self._found.set()
                break
        if self.problem is not None and not self._done.wait(_GRACE):
            # The main thread waits for the rank that has failed.
            print(f"train.py: {self.problem}", file=sys.stderr, flush=True)
            os._exit(2)

    def _look(self, store: Any) -> str | None:
        with contextlib.suppress(RuntimeError):  # the store has gone with its process
            if store.check([_FAILED]):
                return store.get(_FAILED).decode(errors="replace")
        for rank, process in self._others.items():
            if (status := process.poll()) not in (None, 0):
                return f"rank {rank} {_ended(status)}{self._last_line(rank)}"
        return None

    def _last_line(self, rank: int) -> str:
        file = self._errors[rank]
        file.seek(0)
        lines = file.read().decode(errors="replace").strip().splitlines()
        return f" ({lines[-1].strip()[:300]})" if lines else ""

    def wait(self, seconds: float) -> str | None:
        """Return what is wrong with another rank, after waiting for it; None: nothing is."""
        self._found.wait(seconds)
        return self.problem

    def finish(self) -> None:
        """End the looking."""
        self._done.set()


def _ended(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"was ended by signal {-status}"


class Leader:
    """Rank 0 of a run on several devices.

    The other ranks start with it, unless torchrun has started them, so that they import what training needs
    while rank 0 does, and before it has checked the options.

    Args:
        ranks: number of ranks.

    Attributes:
        peers: the ranks.
        early: the leader of the run that begins, if hydra has begun it: before rank 0 has imported torch.
    """

    peers: Peers
    early: ClassVar[Leader | None] = None

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._store: Any = None
        self._others: dict[int, subprocess.Popen[bytes]] = {}
        self._errors: dict[int, IO[bytes]] = {}
        self._watch = _Watch(self._others, self._errors)
        if not _under_torchrun():
            self._start()

    def listen(self) -> None:
        """Open the store that the other ranks wait for, and divide the threads of this machine."""
        import torch

        if self._store is None and not _under_torchrun():
            threads = max(1, torch.get_num_threads() // self._ranks)
            torch.set_num_threads(threads)
            self._store = _store()
            self._store.set(_THREADS, str(threads))

    def begin(self, options: str, resume: Path | None, device_type: str) -> None:
        """Give the other ranks the options of the run.

        Args:
            options: all options as YAML.
            resume: the checkpoint to go on from.
            device_type: "cpu" or "cuda".

        Raises:
            ValueError: there are fewer GPUs.
        """
        import torch
        import torch.distributed as dist

        here = self._ranks
        if _under_torchrun():  # which may have started others on other hosts
            here = int(os.environ.get("LOCAL_WORLD_SIZE", here))
        if device_type == "cuda" and here > (has := torch.cuda.device_count()):
            raise ValueError(f"trainer.devices: got {here}, torch finds {has} GPUs; accepted: up to {has}")
        self.listen()
        _meet(self._store)
        self.peers = _join(device_type)
        self._watch.start()
        job = [options, None if resume is None else str(resume), device_type]
        dist.broadcast_object_list(job, src=0, group=self.peers.control)

    def _start(self) -> None:
        """Start the other ranks on this machine."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        place = {"WORLD_SIZE": str(self._ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        os.environ.update({**place, "RANK": "0", "LOCAL_RANK": "0", _PARENT: str(os.getpid())})
        for rank in range(1, self._ranks):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            self._errors[rank] = tempfile.TemporaryFile()  # noqa: SIM115  (`end` closes it)
            self._others[rank] = subprocess.Popen(
                [sys.executable, sys.argv[0]],
                env={**os.environ, **own},
                stdin=subprocess.PIPE,  # closed when this process ends, however it does
                stdout=subprocess.DEVNULL,
                stderr=self._errors[rank],
            )
        atexit.register(self._kill)  # if the options are refused

    def _kill(self) -> None:
        for process in self._others.values():
            process.kill()

    def problem_behind(self, error: BaseException) -> str | None:
        """Return why an error of this rank is that of another one, which ended; None: it is its own.

        Args:
            error: what an exchange with other ranks has raised, or anything else.
        """
        if not isinstance(error, RuntimeError):
            return None
        first = " ".join(str(error).split())[:200]
        found = self._watch.wait(4 * _LOOK)
        if found is None and _is_of_exchange(error):
            found = f"another rank has ended without a message ({first})"
        return found

    def refuse(self, error: BaseException) -> None:
        """End the process with one line if another rank is the cause of an error, or a wrong argument is.

        Returns if it is neither, and for what was reported already.
        """
        if not isinstance(error, Exception):
            return self.end()
        problem = self.problem_behind(error)
        self.end()
        if problem is not None:
            refuse(problem)
        if isinstance(error, (ValueError, OSError)):
            refuse(error)

    def end(self) -> None:
        """Leave the group, and end what is left of the other ranks."""
        import torch.distributed as dist

        self._watch.finish()
        failed = sys.exc_info()[0] is not None or self._watch.problem is not None
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()
        if failed:
            self._kill()
        atexit.unregister(self._kill)
        for process in self._others.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()
        for file in self._errors.values():
            file.close()
        if _PARENT in os.environ:
            for name in (*_PLACE, _PARENT):
                os.environ.pop(name, None)


def _is_of_exchange(error: BaseException) -> bool:
    """Return whether an error came from an exchange with other ranks."""
    import torch.distributed as dist

    text = str(error)
    return isinstance(error, dist.DistError) or "gloo" in text.lower() or "onnection" in text


def _end_with_parent() -> None:
    """End this process when rank 0, which holds the other end of its standard input, has ended."""

    def wait() -> None:
        with contextlib.suppress(OSError, ValueError):
            while os.read(0, 4096):
                pass
        time.sleep(_GRACE)  # a run that has come to its end ends by itself
        os._exit(1)

    threading.Thread(target=wait, daemon=True, name="rank 0").start()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep what this rank prints from the user, who reads it from rank 0."""
    import warnings

    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def follow() -> int:
    """Train as a rank other than 0, with the options that rank 0 sends; return the exit status."""
    if _PARENT in os.environ:
        _end_with_parent()
    import torch
    import torch.distributed as dist

    place, store = f"rank {os.environ['RANK']}", None
    try:
        _import_all()
        if _PARENT in os.environ:
            store = _store()
            torch.set_num_threads(int(store.get(_THREADS)))
        _meet(store)
        store = dist.distributed_c10d._get_default_store()
        job: list[Any] = [None, None, None]
        dist.broadcast_object_list(job, src=0)
        options, resume, device_type = job
        with _silent():
            _train(options, None if resume is None else Path(resume), _join(device_type))
    except KeyboardInterrupt as stop:
        return 128 + int(getattr(stop, "signum", signal.SIGINT))
    except Exception as error:
        if not _is_of_exchange(error) and store is not None:
            kind = "" if isinstance(error, (ValueError, OSError)) else f"{type(error).__name__}: "
            line = " ".join(f"{place}: {kind}{error}".split())
            with contextlib.suppress(RuntimeError):  # rank 0 has ended
                store.set(_FAILED, line)
        # The others see the end of this rank's connections, and then look for the message.
        return 1
    finally:
        with contextlib.suppress(RuntimeError):
            if dist.is_initialized():
                dist.destroy_process_group()
    return 0


def _import_all() -> None:
    """Import what training needs, which takes seconds, while rank 0 does."""
    from startup import importing, light_torchmetrics

    with importing():
        light_torchmetrics()
        import gnnsparse.train.fitting  # noqa: F401
        import models  # noqa: F401  (registers them)


def leave(status: int) -> NoReturn:
    """End this process with an exit status, without shutting the interpreter down.

    Sparse operands keep the process group, and so gloo's threads, alive. A thread that has not yet freed its
    last piece of work when the interpreter shuts down waits for the interpreter's lock in a destructor, which
    aborts the process (pytorch pull request 179291). torchrun would then report a failure of a run that has
    succeeded.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # nobody reads it any more
            stream.flush()
    os._exit(status)


def _train(options: str, resume: Path | None, peers: Peers) -> None:
    """Train as one of several ranks. Nothing is written."""
    import dataclasses

    from omegaconf import DictConfig, OmegaConf

    import train
    from gnnsparse.train import fit
    from gnnsparse.train.tasks import TASKS
    from startup import import_task, importing

    with importing():
        import models  # noqa: F401  (registers them)

    cfg = OmegaConf.create(options)
    assert isinstance(cfg, DictConfig)
    settings = dataclasses.replace(train.read_settings(cfg), peers=peers)
    task = import_task(TASKS, train.task_name(cfg))
    module, data = train.set_up(cfg, task, settings, resume)
    trainer = dataclasses.replace(settings.trainer, progress=False, profile=None, plots=False)
    fit(module, data, trainer, resume=resume, identity=train.identity_of(cfg, task, settings))
