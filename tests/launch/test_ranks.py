"""How a process that leads several ranks notices that one has failed, and the ranks that it has died."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest
import torch

from launch import ranks
from tests.warm import ROOT, python

#: A program as train.py: what rank 1 does comes from a file, and what rank 0 does from another one.
PROGRAM = """
import errno, os, signal, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from launch import ranks

ranks._GRACE = 1.0
here = Path(__file__).parent
if ranks.is_follower():
    def train(options, resume, peers):
        (here / "pid").write_text(str(os.getpid()))
        assert (options, str(resume)) == ("model: gcn", "last.ckpt")
{follower}
    ranks._train = train
    ranks.leave(ranks.follow())
import torch.distributed as dist
leader = ranks.Leader(2)
try:
    leader.begin("model: gcn", Path("last.ckpt"), "cpu")
{leader}
except Exception as error:
    leader.refuse(error)
    raise
finally:
    leader.end()
"""

FULL = 'raise OSError(errno.ENOSPC, "No space left on device", "/data/shard")'
LEADER_WAITS = "dist.barrier(group=leader.peers.control)"


def run(folder: Path, follower: str, leader: str) -> tuple[subprocess.CompletedProcess[str], float]:
    file = folder / "program.py"
    lines = {"follower": f"        {follower}", "leader": f"    {leader}"}
    file.write_text(PROGRAM.format(root=str(ROOT), **lines))
    start = time.monotonic()
    done = subprocess.run([python(), str(file)], capture_output=True, text=True, timeout=100)
    return done, time.monotonic() - start


def follower_is_gone(folder: Path) -> bool:
    pid, end = (folder / "pid").read_text(), time.monotonic() + 15
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.1)
    return not Path(f"/proc/{pid}").exists()


# Where rank 0 sleeps, it is as a rank that waits for a message on a GPU, which no error ends.
@pytest.mark.slow
@pytest.mark.parametrize("leader", [LEADER_WAITS, "time.sleep(90)"], ids=["exchange", "hanging"])
def test_a_full_disk_of_one_rank_ends_all_with_one_line(tmp_path: Path, leader: str) -> None:
    done, seconds = run(tmp_path, FULL, leader)
    assert done.returncode == 2
    line = "train.py: rank 1: [Errno 28] No space left on device: '/data/shard'"
    assert done.stderr.splitlines() == [line]
    assert seconds < 60
    assert follower_is_gone(tmp_path)


@pytest.mark.slow
def test_ranks_end_with_rank_0(tmp_path: Path) -> None:
    waits = "while not (here / 'pid').exists(): time.sleep(0.01)"
    done, _ = run(tmp_path, "time.sleep(90)", f"{waits}\n    os.kill(os.getpid(), signal.SIGKILL)")
    assert done.returncode == -9
    assert follower_is_gone(tmp_path)


@pytest.mark.parametrize("status", [0, 3])
def test_leaving_gives_the_status_and_what_was_printed_and_does_not_end_the_interpreter(status: int) -> None:
    program = f"""
import atexit, sys
sys.path.insert(0, {str(ROOT)!r})
from launch import ranks
atexit.register(print, "the interpreter's end")
print("a line")
print("a problem", file=sys.stderr, end="")
ranks.leave({status})
"""
    done = subprocess.run([python(), "-c", program], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout, done.stderr) == (status, "a line\n", "a problem")


@pytest.mark.slow
def test_two_hosts_train_as_one_with_the_options_of_the_first(tmp_path: Path) -> None:
    """Two agents of torchrun on one machine, with two ranks each, which share no cache and no folder."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def start(program: list[str], folder: Path, *options: str) -> subprocess.Popen[bytes]:
        folder.mkdir()
        env = {**os.environ, "GNNSPARSE_CACHE_DIR": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        given = ["model=gcn", "dataset=digits", "device=cpu", "trainer.plots=false"]
        command = [*program, str(ROOT / "train.py"), *given, "model.dropout=0", *options]
        return subprocess.Popen([python(), *command], cwd=folder, env=env, stdout=subprocess.DEVNULL)

    agents = [
        start(
            ["-m", "torch.distributed.run", "--nnodes=2", f"--node-rank={host}", "--nproc-per-node=2",
             "--master-addr=127.0.0.1", f"--master-port={port}"],
            tmp_path / str(host), f"trainer.max_epochs={9 - host}",
        )
        for host in (0, 1)
    ]  # fmt: skip
    alone = start([], tmp_path / "alone", "trainer.max_epochs=9")
    assert [process.wait(200) for process in (*agents, alone)] == [0, 0, 0]
    results = {
        host: [json.loads(file.read_text()) for file in (tmp_path / host).rglob("result.json")]
        for host in ("0", "1", "alone")
    }
    assert not results["1"]
    (together,), (one,) = results["0"], results["alone"]
    assert (together["devices"], together["epochs"]) == (4, 9)
    assert together["metrics"]["test"] == pytest.approx(one["metrics"]["test"], abs=0.01)


def test_gpus_are_counted_on_each_host(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK"):
        monkeypatch.setenv(name, "0")
    for name, value in {"WORLD_SIZE": "8", "MASTER_ADDR": "first", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)

    class JoinedError(Exception):
        """The GPUs suffice, and the group would be joined."""

    def meet(store: object) -> None:
        raise JoinedError(store)

    monkeypatch.setattr(ranks, "_meet", meet)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    for here, error, match in (
        ("4", JoinedError, "None"),  # the store is torchrun's
        ("5", ValueError, "trainer.devices: got 5, torch finds 4 GPUs; accepted: up to 4"),
    ):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
        with pytest.raises(error, match=match):
            ranks.Leader(8).begin("", None, "cuda")
