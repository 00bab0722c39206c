"""Runs the blocks of a story as a user does: commands in a shell, Python in a process of its own."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests import warm
from tests.docs.blocks import ROOT, Block

TIMEOUT = 200
#: What a checkout has in the folder of the commands.
_CHECKOUT = ("train.py", "configs", "models", "docs")
#: Runs story.py. Of 60 nodes a model learns too little from one in a hundred initial weights.
_STORY = "import runpy, torch; torch.manual_seed(0); runpy.run_path('story.py', run_name='__main__')"


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
    """Returns the environment of a story: warm commands, the installed ones, and caches of its own."""
    path = [str(warm.folder()), str(Path(sys.executable).parent), os.environ["PATH"]]
    return {
        **os.environ,
        "PATH": os.pathsep.join(path),
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
    command = ["bash", "-e", "-o", "pipefail", "-c", block.text]
    if block.language == "python":
        (folder / "story.py").write_text(block.text)
        command = [warm.python(), "-c", _STORY]
    done = subprocess.run(
        command, cwd=folder, env=environment_of(folder), capture_output=True, text=True, timeout=TIMEOUT
    )
    return Outcome(done.returncode, done.stdout, done.stderr, folder)
