"""The commands of docs/howto/runs.md, as a reader types them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "howto" / "runs.md"


@pytest.mark.slow
def test_the_commands_of_the_page(tmp_path: Path) -> None:
    """In a folder that has what the commands need of the repository's."""
    for name in ("train.py", "configs", "models"):
        (tmp_path / name).symlink_to(ROOT / name)
    scripts = Path(sys.executable).parent
    environment = {
        **os.environ, "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
        "GNNSPARSE_CACHE_DIR": str(tmp_path / "cache"), "GNNSPARSE_DATA_DIR": str(tmp_path / "data"),
    }  # fmt: skip
    (block,) = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        ["bash", "-e", "-c", block], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "best epoch" in done.stdout
    assert "of 30" in done.stdout
    assert "1797 predictions on digits" in done.stdout
    assert done.stdout.rstrip().splitlines()[-2].startswith("nodes,classes,probabilities_0,")
    files = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"README.md", "result.json", "result-1.json", "checkpoints", "logs"} <= files
