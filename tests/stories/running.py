"""Runs the blocks of a story as a user does: commands in a shell, Python in a process of its own."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.docs.blocks import ROOT, Block

TIMEOUT = 200
#: What a checkout has in the folder of the commands.
_CHECKOUT = ("train.py", "configs", "models", "docs")

_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["tests.e2e.preload"])


@dataclass(frozen=True)
class Outcome:
    """What a block left: its exit status, what it printed, and the folder that it ran in."""

    status: int
    output: str
    errors: str
    folder: Path

    def result(self, run: str = "run") -> dict[str, Any]:
        """Returns the content of a run's result.json."""
        return self.json(f"{run}/result.json")

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def rows(self, name: str) -> list[dict[str, str]]:
        """Returns the rows of a CSV file."""
        with (self.folder / name).open(newline="") as file:
            return list(csv.DictReader(file))

    def arrays(self, name: str) -> dict[str, np.ndarray]:
        """Returns the arrays of an npz file."""
        with np.load(self.folder / name) as file:
            return dict(file.items())

    def files(self, run: str = "run") -> set[str]:
        """Returns the names of what is in a run's folder."""
        return {path.name for path in (self.folder / run).iterdir()}


def environment_of(folder: Path) -> dict[str, str]:
    """Returns the environment of a story: the installed commands, and caches of its own."""
    scripts = Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",  # what else the machine does then costs least
        "GNNSPARSE_CACHE_DIR": str(folder.parent / "cache"),
        "GNNSPARSE_DATA_DIR": str(folder.parent / "data"),
        "HYDRA_FULL_ERROR": "0",
        "COLUMNS": "120",
    }


def run_block(block: Block, folder: Path) -> Outcome:
    """Runs a block in a folder, which gets what a checkout has."""
    for name in _CHECKOUT:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(ROOT / name)
    if block.language == "sh":
        done = subprocess.run(
            ["bash", "-e", "-o", "pipefail", "-c", block.text],
            cwd=folder, env=environment_of(folder), capture_output=True, text=True, timeout=TIMEOUT,
        )  # fmt: skip
        return Outcome(done.returncode, done.stdout, done.stderr, folder)
    assert block.language == "python", block.language
    (folder / "story.py").write_text(block.text)
    process = _FORKED.Process(target=_run_python, args=(folder, environment_of(folder)))
    process.start()
    process.join(TIMEOUT)
    if process.exitcode is None:
        process.kill()
        raise TimeoutError(f"{block.text} runs for more than {TIMEOUT} s")
    output, errors = ((folder.parent / name).read_text() for name in ("stdout", "stderr"))
    return Outcome(process.exitcode, output, errors, folder)


def _run_python(folder: Path, environment: dict[str, str]) -> None:
    """Runs story.py in the present process, which was forked from one that has the imports."""
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(folder.parent / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        os.dup2(file, number)
        setattr(sys, name, os.fdopen(number, "w", buffering=1))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["story.py"]
    # Of 60 nodes a model learns too little from one in a hundred initial weights.
    torch.manual_seed(0)
    runpy.run_path("story.py", run_name="__main__")
