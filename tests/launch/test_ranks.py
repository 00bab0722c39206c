"""How a process that leads several ranks notices that one has failed, and the ranks that it has died."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

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
