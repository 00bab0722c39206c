"""How long commands take until they have said what is wrong, or what they accept, and until the first step.

    python -m benchmarks.startup --out benchmarks/results/startup.json

The machine has to be quiet. Each command runs in a process of its own, in turn with the others, and the
medians of wall-clock seconds are written. The first step of `train.py` ends when Adam has changed weights.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.script import ROOT, record, script_parser

#: The commands that end by themselves, and the seconds that they may take.
COMMANDS = {
    "python train.py --help": 1.0,
    "gnnsparse predict --help": 1.0,
    "python train.py model=gnc": 1.0,
    "python train.py trainer.max_epoch=3": 1.0,
    "python train.py dataset=coraa": 1.0,
    "gnnsparse predict --dta x": 1.0,
}
#: Until the first step of the default model.
FIRST_STEP, MOST_SECONDS = "python train.py", 3.0
#: Runs train.py until an optimiser has made a step.
_UNTIL_A_STEP = """
import os, runpy, sys
sys.path.insert(0, os.getcwd())
from gnnsparse_cli import wait_passively
wait_passively()
from torch.optim.optimizer import register_optimizer_step_post_hook
register_optimizer_step_post_hook(lambda *_: os._exit(0))
sys.argv = ["train.py", *sys.argv[1:]]
runpy.run_path("train.py", run_name="__main__")
"""


def seconds_of(command: str, folder: str) -> float:
    """Run a command and return the seconds that it took."""
    words = command.split()
    if command == FIRST_STEP:
        words = [sys.executable, "-c", _UNTIL_A_STEP, f"hydra.run.dir={folder}/run"]
    elif words[0] == "python":
        words[0] = sys.executable
    else:
        words[0] = str(Path(sys.executable).with_name(words[0]))
    begin = time.perf_counter()
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    if done.returncode not in (0, 2) or "Traceback" in done.stderr:
        raise RuntimeError(f"{command}: {done.stderr[-1000:]}")
    return seconds


def main() -> None:
    """Measure all commands, print the medians and write them."""
    parser = script_parser(__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    goals = {**COMMANDS, FIRST_STEP: MOST_SECONDS}
    times: dict[str, list[float]] = {command: [] for command in goals}
    load = os.getloadavg()[0]
    for _ in range(options.repeats + 1):  # the first of each fills the page cache
        for command, found in times.items():
            with tempfile.TemporaryDirectory() as folder:
                found.append(seconds_of(command, folder))
    rows = [
        {"command": command, "seconds": round(statistics.median(times[command][1:]), 3), "goal": goal}
        for command, goal in goals.items()
    ]
    about = {"repeats": options.repeats, "load_before": round(load, 2)}
    record(rows, options.out, "cpu", **about)


if __name__ == "__main__":
    main()
